"""kill -9 of the executor at random moments, then resume: nothing is lost, nothing is run twice, nobody is left alive.

``REDRIVE_KILL_ROUNDS=100 pytest tests/crash/test_kill_executor.py -n0`` does it a hundred times.
"""

import os
import random
import signal
import sqlite3
from pathlib import Path

import psutil
import pytest
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.rows import RunRow
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import runs
from support.commands import start_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

ROUNDS = int(os.environ.get("REDRIVE_KILL_ROUNDS", "6"))

FLOW = """
import os, random, subprocess, time
from redrive.engine import Flow, RetryPolicy, TransientError

flow = Flow("crash", max_parallel=4)
QUICK = RetryPolicy(max_attempts=6, base=0.02, cap=0.1)
dice = random.Random(7)

def body(number):
    def run(ctx):
        if number % 10 == 3:  # leaves a process behind that has left its group
            subprocess.Popen(["sleep", "300"], start_new_session=True)
        time.sleep(0.005 + number % 7 * 0.004)
        if number % 4 == 0 and ctx.attempt - 1 < number % 3:
            raise TransientError("not yet")
    return run

names = []
for number in range(40):
    parents = dice.sample(names, k=min(len(names), dice.randint(0, 3)))
    names.append(f"task{number}")
    isolation = "worker" if number % 2 else "process"
    flow.task(body(number), name=names[-1], after=parents, retry=QUICK, timeout=30, isolation=isolation)
"""


def bearers(executor_ids: list[str]) -> list[int]:
    """Processes that carry the token of one of these executors."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("REDRIVE_EXECUTOR") in executor_ids:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.spawns  # processes are found by the token in the environment of their program
@parametrize_mostly_long("number", range(ROUNDS), quick=0, daily=1)
def test_a_killed_run_is_taken_up_and_ends(tmp_path, number):
    dice = random.Random(number)
    flow, state = tmp_path / "flow.py", tmp_path / "state.db"
    flow.write_text(FLOW)
    first = start_redrive("run", str(flow), "--state", str(state), "--run-id", "r", "--plain")
    for _ in range(dice.randint(1, 90)):  # a moment somewhere in the run, told by its own output
        if not first.stdout.readline():
            break
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=120)
    before = successes(state)

    second = start_redrive("resume", str(state), "--plain")
    output, _ = second.communicate(timeout=240)
    assert second.returncode == 0, output
    check(state, before)


def successes(state: Path) -> set[str]:
    if not state.exists():
        return set()
    with sqlite3.connect(state) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'task'").fetchone():
            return set()
        return {name for (name,) in connection.execute("SELECT name FROM task WHERE state = 'SUCCESS'")}


def check(state: Path, before: set[str]) -> None:
    connection = sqlite3.connect(state)
    assert [("ok",)] == connection.execute("PRAGMA integrity_check").fetchall()
    assert {"SUCCESS"} == {state for (state,) in connection.execute("SELECT DISTINCT state FROM task")}
    assert [("SUCCESS",)] == connection.execute("SELECT state FROM run").fetchall()
    starts = connection.execute("SELECT seq, task FROM event WHERE kind = 'task' AND new = 'RUNNING'").fetchall()
    ended = "SELECT task, min(seq) FROM event WHERE kind = 'task' AND new = 'SUCCESS' GROUP BY task"
    ends = dict(connection.execute(ended))
    assert not [task for seq, task in starts if seq > ends[task]], "finished work was started again"
    assert before <= set(ends)
    assert 0 == connection.execute("SELECT count(*) FROM attempt WHERE outcome = 'running'").fetchone()[0]
    executors = [identity for (identity,) in connection.execute("SELECT executor_id FROM executor")]
    wait_until(lambda: not bearers(executors))
    projection_is_table(connection)


def projection_is_table(connection: sqlite3.Connection) -> None:
    now = runs.load_run(connection, "r")
    projection = RunProjection(RunRow("r"))
    for name, row in now.tasks.items():
        projection.tasks[name] = TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
    for event in map(event_of, connection.execute(*events_query(0, 1_000_000))):
        projection.apply(event)
    assert now.tasks == projection.tasks
