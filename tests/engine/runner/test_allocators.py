"""A flow runs whichever allocator, mode or profiler the interpreters have, in every isolation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.marks import parametrize_mostly_long

FLOW = """
import sys
from redrive.engine import Flow, RetryPolicy

flow = Flow("allocators", retry=RetryPolicy(max_attempts=1))
for isolation in ("process", "worker", "thread"):

    @flow.task(name=f"{isolation}-first", isolation=isolation, timeout=60)
    def first():
        print("a line")
        return list(range(1000))

    @flow.task(name=f"{isolation}-second", isolation=isolation, timeout=60, after=f"{isolation}-first")
    def second(ctx):
        (numbers,) = ctx.inputs.values()
        return [sys.flags.dev_mode, sum(numbers)]

    @flow.task(name=f"{isolation}-failing", isolation=isolation, timeout=60)
    def failing():
        raise ValueError("no such row")

flow.command("command", "echo a line", timeout=60)
"""

PROGRAM = """
import json, sys
from redrive.engine import Executor

result = Executor(run_id="r", flow=sys.argv[1], state=sys.argv[2]).run_result()
print(json.dumps([result.states, {name: result[name] for name in result.states if name.endswith("second")}]))
"""

ISOLATIONS = ("process", "worker", "thread")


@parametrize_mostly_long(
    "variables",
    [{"PYTHONMALLOC": "malloc"}, {"PYTHONMALLOC": "debug"}, {"PYTHONDEVMODE": "1"}],
    ids=["malloc", "debug", "development mode"],
    quick=1,
)
def test_a_run_ends_under_every_allocator(tmp_path: Path, variables: dict[str, str]) -> None:
    states, results = _run(tmp_path, variables)
    expected = {f"{one}-{which}": "SUCCESS" for one in ISOLATIONS for which in ("first", "second")}
    expected |= {f"{one}-failing": "FAILED" for one in ISOLATIONS} | {"command": "SUCCESS"}
    assert states == expected
    is_development = "PYTHONDEVMODE" in variables
    assert results == {f"{one}-second": [is_development, 499500] for one in ISOLATIONS}


#: Calls a function at each call of every thread, and notes in which processes.
PROFILER = """
import os, sys, threading

def profile(frame, event, argument):
    global counted
    counted += 1
    if frame.f_code.co_name in ("first", "second"):
        open(os.path.join(os.path.dirname(__file__), f"{frame.f_code.co_name}-{os.getpid()}"), "w").close()

counted = 0
sys.setprofile(profile)
threading.setprofile(profile)
"""


@pytest.mark.long
def test_a_run_ends_beside_a_profiler_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PROFILER)
    states, results = _run(tmp_path, {"PYTHONPATH": str(tmp_path)})
    assert {name: state for name, state in states.items() if state != "SUCCESS"} == {
        f"{one}-failing": "FAILED" for one in ISOLATIONS
    }
    assert results == {f"{one}-second": [False, 499500] for one in ISOLATIONS}
    assert len(list(tmp_path.glob("first-*"))) == len(ISOLATIONS), "one process of each isolation was profiled"


def _run(folder: Path, variables: dict[str, str]) -> tuple[dict[str, str], dict[str, list[object]]]:
    """Run the flow in an interpreter with these variables. Returns the states, and the results of the second tasks."""
    flow = folder / "flow.py"
    flow.write_text(FLOW)
    words = [sys.executable, "-P", "-c", PROGRAM, str(flow), str(folder / "s.db")]
    ran = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    states, results = json.loads(ran.stdout)
    return states, results


@pytest.mark.long
def test_a_run_with_warnings_as_errors_prints_nothing_else(tmp_path: Path) -> None:
    """The executor, the process that forks the attempts, and each kind of attempt: all of them read the variable."""
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    words = [sys.executable, "-P", "-m", "redrive", "run", str(flow), "--state", str(tmp_path / "s.db"), "--plain"]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90)
    assert (ran.returncode, ran.stderr) == (1, ""), ran.stdout
