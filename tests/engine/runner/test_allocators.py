"""A flow runs whichever allocator the interpreter has, in every isolation and at the end of each kind of attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "variables",
    [{"PYTHONMALLOC": "malloc"}, {"PYTHONMALLOC": "debug"}, {"PYTHONDEVMODE": "1"}],
    ids=["malloc", "debug", "development mode"],
)
def test_a_run_ends_under_every_allocator(tmp_path: Path, variables: dict[str, str]) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    words = [sys.executable, "-P", "-c", PROGRAM, str(flow), str(tmp_path / "s.db")]
    ran = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    states, results = json.loads(ran.stdout)
    expected = {f"{one}-{which}": "SUCCESS" for one in ISOLATIONS for which in ("first", "second")}
    expected |= {f"{one}-failing": "FAILED" for one in ISOLATIONS} | {"command": "SUCCESS"}
    assert states == expected
    is_development = "PYTHONDEVMODE" in variables
    assert results == {f"{one}-second": [is_development, 499500] for one in ISOLATIONS}


def test_a_run_with_warnings_as_errors_prints_nothing_else(tmp_path: Path) -> None:
    """The executor, the process that forks the attempts, and each kind of attempt."""
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    words = [sys.executable, "-P", "-W", "error", "-m", "redrive", "run", str(flow), "--state", str(tmp_path / "s.db")]
    ran = subprocess.run([*words, "--plain"], capture_output=True, text=True, timeout=90)
    assert (ran.returncode, ran.stderr) == (1, ""), ran.stdout
