"""What a program gets back from a run, and that it may start one where an event loop runs, as a notebook does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, Missing, PermanentError, RetryPolicy
from redrive.engine.executor.run_end import RunResult
from support.marks import parametrize_mostly_long


def run(tmp_path: Path, flow: Flow) -> RunResult:
    return Executor(run_id="monday", flow=flow, state=tmp_path / "state.db").run_result()


def test_a_result_has_the_results_of_the_tasks(tmp_path: Path) -> None:
    flow = Flow("f")
    flow.task(lambda: {"rows": [1, 2]}, name="extract")
    flow.task(lambda: None, name="load", after="extract")
    flow.task(lambda: object(), name="open", after="extract")
    result = run(tmp_path, flow)
    assert result["extract"] == {"rows": [1, 2]} and result["load"] is None
    assert isinstance(result["open"], Missing) and "not stored" in result["open"].why
    assert result.state == "SUCCESS" and result.states == dict.fromkeys(("extract", "load", "open"), "SUCCESS")
    assert repr(result) == "<run 'monday': SUCCESS, 3 tasks SUCCESS>"
    with pytest.raises(KeyError, match="run 'monday' has no task 'lod'; it has extract, load, open"):
        result["lod"]


def test_a_run_that_waits_for_an_operator_is_blocked(tmp_path: Path) -> None:
    flow = Flow("f")

    @flow.task(retry=RetryPolicy(max_attempts=1))
    def poisoned() -> None:
        raise PermanentError("no")

    flow.task(lambda: None, name="child", after=poisoned)
    result = run(tmp_path, flow)
    assert (result.state, result.run_state, result.blocked) == ("BLOCKED", "RUNNING", True)
    assert repr(result) == "<run 'monday': BLOCKED, 1 task DEAD_LETTER, 1 task PENDING>"
    assert repr(result["poisoned"]) == "<no result of 'poisoned': dead letter>"
    assert Executor(run_id="monday", flow=flow, state=tmp_path / "state.db").run() == "BLOCKED"


NOTEBOOK = """
import asyncio, os, signal, sys
from redrive.engine import Executor, Flow
flow = Flow("notebook")
@flow.task(timeout=30)
def extract(): return [5, 7]
@flow.task(after=extract, timeout=30)
async def add(extract):
    if "interrupt" in sys.argv:
        await asyncio.sleep(60)
    return sum(extract)

def interrupt(events):
    if "interrupt" in sys.argv and any(e.task == "add" and e.new == "RUNNING" for e in events):
        os.kill(os.getpid(), signal.SIGINT)

def executor():
    return Executor(run_id="r", flow=flow, state="state.db", on_events=interrupt)

async def cell():
    result = executor().run_result() if "here" not in sys.argv else await executor().run_here()
    print(result.state, result["add"])

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(cell())
except KeyboardInterrupt:
    print("interrupted")
loop.close()
"""


def notebook(folder: Path, *words: str) -> tuple[str, str]:
    """Return what a cell prints, and its errors and warnings."""
    (folder / "cell.py").write_text(NOTEBOOK)
    command = [sys.executable, "-W", "always", "cell.py", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.stdout, done.stderr


@parametrize_mostly_long("how", ["blocking", "here"], quick=1)
def test_a_run_starts_inside_of_a_running_event_loop(tmp_path: Path, how: str) -> None:
    assert notebook(tmp_path, how) == ("SUCCESS 12\n", "")


@pytest.mark.long
def test_an_interrupt_ends_a_run_inside_of_a_running_event_loop(tmp_path: Path) -> None:
    assert notebook(tmp_path, "interrupt") == ("interrupted\n", "")
    assert notebook(tmp_path, "here") == ("SUCCESS 12\n", ""), "nobody owns the state file any more"
