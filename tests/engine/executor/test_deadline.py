"""The deadline of a run with real attempts: what runs is killed, nothing starts, and the run is FAILED."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, PermanentError, RetryPolicy, RunOptions, TransientError
from redrive.engine.executor.run_end import RunResult

DEADLINE = 1.2


def run(tmp_path: Path, flow: Flow, **options: Any) -> RunResult:
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db", options=RunOptions(**options)).run_result()


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


def overtime(tmp_path: Path) -> float:
    """Seconds from the deadline to the end of the run."""
    ((ended_at, deadline_at),) = ask(tmp_path, "SELECT ended_at, deadline_at FROM run")
    return float(ended_at - deadline_at) / 1e6


def test_what_runs_is_ended_and_what_waits_does_not_start(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE)

    @flow.task(timeout=60)
    def long() -> None:
        time.sleep(25)

    @flow.task(after=long)
    def child() -> None:
        raise AssertionError("it starts after the deadline")

    result = run(tmp_path, flow)
    assert (result.state, result.states) == ("FAILED", {"long": "CANCELLED", "child": "CANCELLED"})
    assert 0 <= overtime(tmp_path) < 3
    assert ask(tmp_path, "SELECT name, outcome FROM attempt") == [("long", "cancelled")]
    assert ask(tmp_path, "SELECT title, count FROM page") == [("deadline missed", 1)]


def test_a_task_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE)
    pids = tmp_path / "pids"

    @flow.task(timeout=60, grace_seconds=0.5)
    def stubborn() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
            os._exit(0)
        pids.write_text(f"{os.getpid()} {child}")
        time.sleep(60)

    assert run(tmp_path, flow).states == {"stubborn": "CANCELLED"}
    assert not any(Path("/proc", pid).exists() for pid in pids.read_text().split())
    kinds = [kind for (kind,) in ask(tmp_path, "SELECT kind FROM event WHERE kind LIKE 'attempt.sig%' ORDER BY seq")]
    assert kinds == ["attempt.sigterm", "attempt.sigkill"]


def test_what_may_start_before_the_deadline_starts(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE * 2)

    @flow.task
    def first() -> None:
        time.sleep(DEADLINE)

    flow.task(after=first, name="second")(lambda: None)
    flow.task(name="long")(lambda: time.sleep(60))
    assert run(tmp_path, flow).states == {"first": "SUCCESS", "second": "SUCCESS", "long": "CANCELLED"}


def test_a_retry_that_waits_is_cancelled(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE, deadline_action="end")

    @flow.sensor(every="1h", timeout=5)
    def file() -> bool:
        return False

    assert run(tmp_path, flow).states == {"file": "CANCELLED"}


def test_an_executor_that_stays_for_a_blocked_run_ends_it_at_the_deadline(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE)

    @flow.task
    def broken() -> None:
        raise PermanentError("no")

    flow.task(after=broken, name="below")(lambda: None)
    result = run(tmp_path, flow, stay=True)
    assert (result.state, result.states) == ("FAILED", {"broken": "DEAD_LETTER", "below": "CANCELLED"})
    assert [title for (title,) in ask(tmp_path, "SELECT title FROM page ORDER BY id")] == [
        "permanent on broken",
        "deadline missed",
    ]


def test_an_executor_that_opens_a_run_after_its_deadline_ends_it_at_once(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE)

    @flow.task
    def broken() -> None:
        raise PermanentError("no")

    flow.task(after=broken, name="below")(lambda: None)
    assert run(tmp_path, flow).state == "BLOCKED"
    (((deadline_at,),)) = ask(tmp_path, "SELECT deadline_at FROM run")
    time.sleep(max(0.0, deadline_at / 1e6 - time.time()))
    assert run(tmp_path, flow).state == "FAILED"


def test_a_deadline_that_only_pages_lets_the_run_end_as_it_does(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE, deadline_action="page")

    @flow.task(retry=RetryPolicy(max_attempts=2, base=0.1, cap=0.1))
    def late(ctx: Any) -> None:
        time.sleep(DEADLINE * 2)
        if ctx.attempt == 1:
            raise TransientError("again")

    assert run(tmp_path, flow).state == "SUCCESS"
    ((title, count),) = ask(tmp_path, "SELECT title, count FROM page")
    assert (title, count) == ("deadline missed on late", 1)


@pytest.mark.parametrize("isolation", ["worker", "thread"])
def test_workers_and_threads_are_ended_as_well(tmp_path: Path, isolation: Any) -> None:
    flow = Flow("f", deadline=DEADLINE)

    @flow.task(timeout=60, isolation=isolation)
    def long(ctx: Any) -> None:
        while not ctx.cancelled:
            time.sleep(0.05)

    assert run(tmp_path, flow).states == {"long": "CANCELLED"}
