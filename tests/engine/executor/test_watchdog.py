"""Heartbeats, the sweep, and a deadline out of reach: with real attempts."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, RetryAfter, RetryPolicy, RunOptions, TransientError
from redrive.engine.agent import command_client
from redrive.engine.domain import liveness
from redrive.engine.domain.acts import parse_command
from redrive.engine.executor import attempts
from redrive.engine.executor.opening import Machine
from redrive.engine.runner.attempt import Attempt
from redrive.engine.runner.forked_process import ForkedProcess
from support.commands import quoted
from support.waiting import wait_until

QUICK = RetryPolicy(max_attempts=3, base=0.01, cap=0.02)


def run(tmp_path: Path, flow: Flow, run_id: str = "r", **options: Any) -> str:
    executor = Executor(
        run_id=run_id, flow=flow, state=tmp_path / "state.db", options=RunOptions(**options), machine=often_checked()
    )
    return str(executor.run_result().state)


def often_checked() -> Machine:
    """A machine on which a run is checked ten times a second."""
    return Machine(heartbeat_seconds=0.1)


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


def events(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(data) for (data,) in ask(tmp_path, f"SELECT data FROM event WHERE kind = '{kind}' ORDER BY seq")]


# --- Heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_is_written_beside_the_task_and_says_nothing_of_progress(tmp_path):
    """003.40: the worker writes last_heartbeat_at."""
    flow = Flow("f")

    @flow.task(timeout=30)
    def long(ctx: Any) -> None:
        ctx.heartbeat()

    run(tmp_path, flow)
    ((beat, started, done),) = ask(tmp_path, "SELECT last_heartbeat_at, started_at, progress_done FROM task")
    assert beat >= started and done is None


def test_progress_is_a_heartbeat_too(tmp_path):
    flow = Flow("f")

    @flow.task(timeout=30)
    def long(ctx: Any) -> None:
        ctx.progress(3, 8)

    run(tmp_path, flow)
    ((beat, done, total),) = ask(tmp_path, "SELECT last_heartbeat_at, progress_done, progress_total FROM task")
    assert beat is not None and (3, 8) == (done, total)


def test_a_task_that_says_it_is_alive_all_the_time_costs_one_write_in_ten_seconds(tmp_path, monkeypatch):
    from redrive.engine.runner import context

    monkeypatch.setattr(context, "HEARTBEAT_SECONDS", 0.0)
    flow = Flow("f")

    @flow.task(timeout=30)
    def talkative(ctx: Any) -> None:
        for _ in range(1000):
            ctx.heartbeat()

    run(tmp_path, flow)
    assert 1 == len([one for one in events(tmp_path, "task.changed") if "last_heartbeat_at" in one.get("set", {})])


# --- The sweep ------------------------------------------------------------------------------------------------------


def test_an_attempt_whose_process_has_vanished_is_taken_from_its_task_with_the_evidence(tmp_path, monkeypatch):
    """003.40: RUNNING and nobody there -> RETRYING, by a look at the process and not by the clock."""
    monkeypatch.setattr(liveness, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(attempts, "STARTED_DELAY_SECONDS", 0.0)
    on_exited = ForkedProcess.exited
    lost: list[Any] = []

    def swallow_the_first(self: ForkedProcess, exited: Any) -> None:
        if lost:
            on_exited(self, exited)
        lost.append(exited)

    monkeypatch.setattr(ForkedProcess, "exited", swallow_the_first)
    flow = Flow("f")

    @flow.task(timeout=60, retry=RetryPolicy(max_attempts=3, base=0.01, cap=0.01))
    def vanishes(ctx: Any) -> None:
        if ctx.attempt == 1:
            os._exit(0)

    assert "SUCCESS" == run(tmp_path, flow)
    (evidence,) = events(tmp_path, "attempt.reclaimed")
    (pid,) = ask(tmp_path, "SELECT pid FROM attempt WHERE attempt = 1")
    assert ("gone", pid[0]) == (evidence["process"], evidence["pid"]) and evidence["start_ticks"]
    assert [("lost",), ("success",)] == ask(tmp_path, "SELECT outcome FROM attempt ORDER BY attempt")
    assert [(0, 1)] == ask(tmp_path, "SELECT failures, losses FROM task"), "a loss spends no attempt of the budget"


def test_a_task_that_has_gone_silent_is_reported_once_and_goes_on(tmp_path, monkeypatch):
    """003.41: five seconds of garbage collection must not kill it."""
    monkeypatch.setattr(liveness, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 0.2)
    flow, silent = Flow("f"), tmp_path / "silent"
    os.mkfifo(silent)

    @flow.task(timeout=60)
    def pauses(ctx: Any) -> str:
        ctx.heartbeat()
        silent.read_text()  # until its silence is reported
        time.sleep(0.5)  # five more checks
        return "done"

    def listen(batch: Any) -> None:
        if any(event.kind == "attempt.silent" for event in batch):
            silent.write_text("reported")

    executor = Executor(run_id="r", flow=flow, state=tmp_path / "state.db", machine=often_checked(), on_events=listen)
    assert "SUCCESS" == executor.run()
    (silence,) = events(tmp_path, "attempt.silent")
    assert silence["silent_seconds"] >= 0.2 and silence["process"][0] in "SRD"
    assert [] == events(tmp_path, "attempt.reclaimed")
    assert [(1,)] == ask(tmp_path, "SELECT attempt FROM task")


def test_a_silent_task_that_never_promised_anything_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 0.1)
    flow = Flow("f")
    flow.command("quiet", "sleep 0.5", timeout=60)
    assert "SUCCESS" == run(tmp_path, flow)
    assert [] == events(tmp_path, "attempt.silent")


def test_a_killed_task_is_not_started_again_before_its_process_is_gone(tmp_path, monkeypatch):
    """SPEC 4.9: SIGKILL is not instant, and a process in an uninterruptible call takes as long as that call."""
    on_exited, reaped, is_gone = Attempt.exited, queue.SimpleQueue(), threading.Event()

    def withhold(self: Attempt, exited: Any, crash_dump: str) -> None:
        if is_gone.is_set() or exited.signal != signal.SIGKILL:  # else SIGTERM came before it was ignored
            on_exited(self, exited, crash_dump)
        else:
            reaped.put(lambda: on_exited(self, exited, crash_dump))

    def extend_then_stop(loop: asyncio.AbstractEventLoop) -> None:
        emit = reaped.get(timeout=60)
        target = ["hangs", "RUNNING", 0]
        command = {"id": "1", "act": "requeue", "run_id": "r", "targets": [target], "actor": "ana", "reason": "now"}
        answers.append(command_client.send_blocking(str(tmp_path / "state.db"), parse_command(command)).as_json())
        killed.touch()
        is_gone.set()
        loop.call_soon_threadsafe(emit)

    def listen(batch: Any) -> None:
        if any(event.kind == "attempt.sigkill" for event in batch) and not is_gone.is_set():
            threading.Thread(target=extend_then_stop, args=[asyncio.get_running_loop()]).start()

    monkeypatch.setattr(Attempt, "exited", withhold)
    answers: list[Any] = []
    flow, killed = Flow("f"), tmp_path / "killed"
    body = f'trap "" TERM; while [ ! -e {quoted(killed)} ]; do sleep 0.05; done'
    again = RetryPolicy(max_attempts=100, base=0.01, cap=0.02, poison_after=None)
    flow.command("hangs", body, timeout=0.3, grace_seconds=0.2, retry=again)
    executor = Executor(run_id="r", flow=flow, state=tmp_path / "state.db", on_events=listen)
    assert "SUCCESS" == executor.run()
    (answer,) = answers
    assert [["hangs", "refused", "it runs: cancel it first, then requeue it"]] == answer["results"]
    rows = ask(tmp_path, "SELECT coalesce(new, kind) FROM event WHERE task = 'hangs' ORDER BY seq")
    steps = [step for (step,) in rows if step in ("RUNNING", "attempt.sigkill", "RETRYING", "SUCCESS")]
    killed_at = steps.index("attempt.sigkill")
    assert ["RUNNING", "attempt.sigkill", "RETRYING", "RUNNING"] == steps[killed_at - 1 : killed_at + 3]
    assert "SUCCESS" == steps[-1]


# --- Outages --------------------------------------------------------------------------------------------------------


def outage(tmp_path: Path, seconds: float) -> Flow:
    """Six tasks against an API that is down for a while."""
    back_at = time.monotonic() + seconds
    flow = Flow("f", max_parallel=2)
    flow.downstream("api", minimum_calls=2, open_seconds=0.5, release_per_second=50)

    def call() -> None:
        if time.monotonic() < back_at:
            raise TransientError("503")

    for number in range(6):
        flow.task(call, name=f"t{number}", downstream="api", retry=QUICK, timeout=30)
    return flow


@pytest.mark.long
def test_a_long_outage_pages_once_although_no_task_has_failed(tmp_path, monkeypatch):
    """004.26: by the time the wait is that long, the pipeline should be telling someone."""
    from redrive.engine.core import causes

    monkeypatch.setattr(causes, "LONG_OUTAGE_SECONDS", 1.5)
    assert "SUCCESS" == run(tmp_path, outage(tmp_path, 5))
    ((title, cause, count, state, body),) = ask(tmp_path, "SELECT title, cause, count, state, body FROM page")
    assert title.startswith("api is down on t") and ("downstream:api", 1, "resolved") == (cause, count, state)
    # those that wait for their next try count too, whatever the breaker does just then
    assert re.fullmatch(r"api has failed for \d+(\.\d+)?s, and [4-6] tasks wait for it", json.loads(body)["why"])


def test_a_short_outage_pages_nobody(tmp_path):
    assert "SUCCESS" == run(tmp_path, outage(tmp_path, 0.5))
    assert [] == ask(tmp_path, "SELECT title FROM page")


@pytest.mark.long
def test_a_breaker_that_was_open_before_the_run_is_reported_by_the_run(tmp_path):
    """The events of a run are enough to know each state of the breaker during the run."""
    failures = tmp_path / "failures"
    flow = Flow("f", max_parallel=1)  # the first two calls fail before any succeeds: the breaker opens
    flow.downstream("api", minimum_calls=2, open_seconds=0.5, release_per_second=50)

    def call() -> None:
        with failures.open("a") as file:
            file.write("x")
            if file.tell() <= 2:
                raise TransientError("503")

    for number in range(6):
        flow.task(call, name=f"t{number}", downstream="api", retry=QUICK, timeout=30)
    assert "SUCCESS" == run(tmp_path, flow, run_id="before")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert 1 == connection.execute("UPDATE breaker SET state = 'OPEN', reopens_at = 0").rowcount
    assert "SUCCESS" == run(tmp_path, flow, run_id="tonight")
    states = ask(
        tmp_path,
        "SELECT json_extract(data, '$.state') FROM event WHERE kind = 'breaker' AND run_id = 'tonight' ORDER BY seq",
    )
    assert [("OPEN",), ("HALF_OPEN",), ("CLOSED",)] == states
    first = ask(
        tmp_path, "SELECT min(seq) FROM event WHERE run_id = 'tonight' AND new = 'RUNNING' AND task IS NOT NULL"
    )
    assert ask(tmp_path, "SELECT min(seq) FROM event WHERE kind = 'breaker' AND run_id = 'tonight'") < first


# --- Deadlines ------------------------------------------------------------------------------------------------------


def deadline_flow(extract: str, deadline: float | None) -> Flow:
    flow = Flow("night", deadline=deadline)
    flow.command("extract", extract, timeout=60)
    flow.command("load", "sleep 0.1", after="extract", timeout=60)
    return flow


@pytest.mark.long
def test_a_run_that_can_no_longer_make_its_deadline_pages_before_the_deadline(tmp_path):
    """SPEC part 4, 2: at 01:12 this run can no longer make 02:00, with the one task responsible."""
    assert "SUCCESS" == run(tmp_path, deadline_flow("sleep 1", None), run_id="yesterday")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("UPDATE attempt SET duration_us = 24000000 WHERE name = 'load'")
    paged = tmp_path / "paged"

    def go_on() -> None:
        wait_until(lambda: ask(tmp_path, "SELECT 1 FROM page"))
        paged.touch()

    threading.Thread(target=go_on).start()
    run(tmp_path, deadline_flow(f"until [ -e {quoted(paged)} ]; do sleep 0.1; done", 30), run_id="tonight")
    ((title, severity, cause, body, at),) = ask(tmp_path, "SELECT title, severity, cause, body, created_at FROM page")
    assert ("deadline at risk on extract", "critical", "deadline:tonight") == (title, severity, cause)
    command = json.loads(body)["command"]
    assert command == f"redrive attach {quoted(tmp_path / 'state.db')}@tonight"  # a task that runs is not requeued
    assert "can no longer make" in json.loads(body)["why"] and "extract is not done (running" in json.loads(body)["why"]
    assert at < ask(tmp_path, "SELECT deadline_at FROM run WHERE run_id = 'tonight'")[0][0]


def test_a_run_that_makes_it_pages_nobody(tmp_path):
    run(tmp_path, deadline_flow("sleep 0.1", None), run_id="yesterday")
    run(tmp_path, deadline_flow("sleep 0.1", 600), run_id="tonight")
    assert [] == ask(tmp_path, "SELECT title FROM page")


def test_a_retry_that_could_not_finish_in_time_is_refused_at_once_and_pages(tmp_path):
    """004.30, SPEC 4.14: dead-letter now rather than discover it at 02:00."""
    flow = Flow("f", deadline=30)

    @flow.task(timeout=30, retry=RetryPolicy(max_attempts=5))
    def flaky() -> None:
        raise RetryAfter(60, "503")

    run(tmp_path, flow)
    assert [("DEAD_LETTER", "deadline", 1)] == ask(tmp_path, "SELECT state, dead_letter_kind, attempt FROM task")
    assert [("critical", "deadline:r")] == ask(tmp_path, "SELECT severity, cause FROM page")


def run_with_deadline(tmp_path: Path, seconds: float) -> str:
    """A task that fails twice, and whose second wait would be longer than the deadline leaves time for."""
    flow = Flow("f", deadline=seconds)

    @flow.task(timeout=30, retry=RetryPolicy(max_attempts=5, base=0.1, factor=1000, cap=100, jitter="none"))
    def flaky(ctx: Any) -> None:
        if ctx.attempt < 3:
            raise TransientError(f"503, {ctx.attempt}")

    return run(tmp_path, flow)


def test_a_wait_that_the_deadline_leaves_no_time_for_is_shortened_and_reported(tmp_path):
    """SPEC part 4, 2: a shorter wait that can still make it, with what it was in the attempt and in the event."""
    for seconds in (1.5, 5, 40):  # the later ones for a machine that stood still until it was too late
        if run_with_deadline(tmp_path, seconds) == "SUCCESS":
            break
        (tmp_path / "state.db").unlink()
    first, second, third = ask(tmp_path, "SELECT delay_us, ceiling_us, shortened_us FROM attempt ORDER BY attempt")
    assert ((100_000, 100_000, None), (None, None, None)) == (first, third)
    assert 100_000 < second[0] <= seconds * 500_000 and 100_000_000 == second[2]
    waits = [
        json.loads(data) for (data,) in ask(tmp_path, "SELECT data FROM event WHERE new = 'RETRYING' ORDER BY seq")
    ]
    ((deadline,),) = ask(tmp_path, "SELECT deadline_at FROM run")
    assert [None, deadline] == [wait.get("due_at") for wait in waits]


@pytest.mark.parametrize("fits", [True, False])
def test_max_elapsed_bounds_all_attempts_together(tmp_path, fits):
    """004.28: elapsed time is a dimension of its own."""
    flow = Flow("f")
    policy = RetryPolicy(max_attempts=10, base=0.2, cap=0.2, jitter="none", max_elapsed=60 if fits else 0.3)

    @flow.task(timeout=30, retry=policy)
    def flaky(ctx: Any) -> None:
        if ctx.attempt < 4:
            raise TransientError("503")

    assert ("SUCCESS" if fits else "FAILED") == run(tmp_path, flow)
