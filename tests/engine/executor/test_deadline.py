"""The deadline of a run with real attempts: what runs is killed, nothing starts, and the run is FAILED."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, PermanentError, RetryPolicy, RunOptions, TransientError
from redrive.engine.executor.run_end import RunResult

DEADLINE = 0.5
LATER = (3, 10, 60)  # deadlines for a machine that does not come so far within that of a test


def run(tmp_path: Path, flow: Flow, **options: Any) -> RunResult:
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db", options=RunOptions(**options)).run_result()


def run_so_far(
    tmp_path: Path,
    make_flow: Callable[[float], Flow],
    is_met: Callable[[Path, RunResult], object],
    *,
    deadline: float = DEADLINE,
    **options: Any,
) -> tuple[Path, RunResult]:
    """Run it with the first deadline before which it comes so far. Returns the folder of its file, and its result."""
    for number, seconds in enumerate((deadline, *LATER)):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run(folder, make_flow(seconds), **options)
        if is_met(folder, result):
            break
    return folder, result


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


def overtime(tmp_path: Path) -> float:
    """Seconds from the deadline to the end of the run."""
    ((ended_at, deadline_at),) = ask(tmp_path, "SELECT ended_at, deadline_at FROM run")
    return float(ended_at - deadline_at) / 1e6


def test_what_runs_is_ended_and_what_waits_does_not_start(tmp_path: Path) -> None:
    def make_flow(seconds: float) -> Flow:
        flow = Flow("f", deadline=seconds)

        @flow.task(timeout=600)
        def long() -> None:
            time.sleep(seconds + 25)

        @flow.task(after=long)
        def child() -> None:
            raise AssertionError("it starts after the deadline")

        return flow

    folder, result = run_so_far(tmp_path, make_flow, lambda folder, _: ask(folder, "SELECT 1 FROM attempt"))
    assert (result.state, result.states) == ("FAILED", {"long": "CANCELLED", "child": "CANCELLED"})
    assert 0 <= overtime(folder) < 20
    assert ask(folder, "SELECT name, outcome FROM attempt") == [("long", "cancelled")]
    assert ask(folder, "SELECT title, count FROM page") == [("deadline missed", 1)]


def test_a_task_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def make_flow(seconds: float) -> Flow:
        flow = Flow("f", deadline=seconds)

        @flow.task(timeout=600, grace_seconds=0.5)
        def stubborn() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            pids.write_text(f"{os.getpid()} {child}")
            time.sleep(600)

        return flow

    folder, result = run_so_far(tmp_path, make_flow, lambda *_: pids.exists())
    assert result.states == {"stubborn": "CANCELLED"}
    assert not any(Path("/proc", pid).exists() for pid in pids.read_text().split())
    kinds = [kind for (kind,) in ask(folder, "SELECT kind FROM event WHERE kind LIKE 'attempt.sig%' ORDER BY seq")]
    assert kinds == ["attempt.sigterm", "attempt.sigkill"]


def test_what_may_start_before_the_deadline_starts(tmp_path: Path) -> None:
    def make_flow(seconds: float) -> Flow:
        flow = Flow("f", deadline=seconds)

        @flow.task
        def first() -> None:
            time.sleep(DEADLINE)

        flow.task(after=first, name="second")(lambda: None)
        flow.task(name="long")(lambda: time.sleep(600))
        return flow

    states = {"first": "SUCCESS", "second": "SUCCESS", "long": "CANCELLED"}
    _, result = run_so_far(tmp_path, make_flow, lambda _, result: result.states == states, deadline=DEADLINE * 2)
    assert result.states == states


def test_a_retry_that_waits_is_cancelled(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE, deadline_action="end")

    @flow.sensor(every="1h", timeout=5)
    def file() -> bool:
        return False

    assert run(tmp_path, flow).states == {"file": "CANCELLED"}


def broken_flow(seconds: float) -> Flow:
    flow = Flow("f", deadline=seconds)

    @flow.task
    def broken() -> None:
        raise PermanentError("no")

    flow.task(after=broken, name="below")(lambda: None)
    return flow


def test_an_executor_that_stays_for_a_blocked_run_ends_it_at_the_deadline(tmp_path: Path) -> None:
    is_met = lambda _, result: result.states["broken"] == "DEAD_LETTER"  # noqa: E731
    folder, result = run_so_far(tmp_path, broken_flow, is_met, stay=True)
    assert (result.state, result.states) == ("FAILED", {"broken": "DEAD_LETTER", "below": "CANCELLED"})
    assert [title for (title,) in ask(folder, "SELECT title FROM page ORDER BY id")] == [
        "permanent on broken",
        "deadline missed",
    ]


def test_an_executor_that_opens_a_run_after_its_deadline_ends_it_at_once(tmp_path: Path) -> None:
    folder, result = run_so_far(tmp_path, broken_flow, lambda _, result: result.state == "BLOCKED")
    assert result.state == "BLOCKED"
    (((deadline_at,),)) = ask(folder, "SELECT deadline_at FROM run")
    time.sleep(max(0.0, deadline_at / 1e6 - time.time()))
    assert run(folder, broken_flow(DEADLINE)).state == "FAILED"


def test_a_deadline_that_only_pages_lets_the_run_end_as_it_does(tmp_path: Path) -> None:
    flow = Flow("f", deadline=DEADLINE, deadline_action="page")

    @flow.task(retry=RetryPolicy(max_attempts=2, base=0.1, cap=0.1))
    def late(ctx: Any) -> None:
        if ctx.attempt == 1:
            time.sleep(DEADLINE * 2)
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
