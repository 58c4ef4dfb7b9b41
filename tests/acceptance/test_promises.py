"""Promises of the documents that belong to no single module, kept by the engine as a whole."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, RetryPolicy, TransientError, retry
from redrive.engine.domain.states import EXECUTOR_MOVES, LEGAL_MOVES, MOVING, OPERATOR_MOVES, RESTING, TaskState

QUICK = RetryPolicy(max_attempts=3, base=0.01, cap=0.02)


def run(tmp_path: Path, flow: Flow, run_id: str = "r") -> str:
    return Executor(run_id=run_id, flow=flow, state=tmp_path / "state.db").run()


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A file in which two runs of one flow have ended."""
    flow = Flow("f")
    flow.command("a", "true", timeout=30)
    flow.command("b", "true", after="a", timeout=30)
    assert ["SUCCESS", "SUCCESS"] == [run(tmp_path, flow, run_id) for run_id in ("monday", "tuesday")]
    return tmp_path


# --- Document 000 ---------------------------------------------------------------------------------------------------


def test_the_three_failure_modes_are_distinguished_on_every_attempt(tmp_path):
    """000.02: flaky, hanging and poisoned look the same to a fixed retry loop."""
    flow = Flow("f")

    @flow.task(retry=QUICK, timeout=30)
    def flaky(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise TransientError("503")

    flow.command("hangs", "sleep 300", max_attempts=1, timeout=0.5, grace_seconds=0.2)
    flow.task(lambda: 1 / 0, name="poisoned", retry=QUICK, timeout=30)
    run(tmp_path, flow)
    modes = "SELECT name, failure_mode FROM attempt WHERE outcome <> 'success' ORDER BY name, attempt"
    assert [("flaky", "transient"), ("hangs", "hang"), ("poisoned", "other"), ("poisoned", "poisoned")] == ask(
        tmp_path, modes
    )


@pytest.mark.parametrize("timeout", [None, 30])
def test_a_task_without_a_timeout_is_isolated_as_well_and_never_killed(tmp_path, timeout):
    """000.25, 000.44: no deadline is enforced, but a crash takes nobody along."""
    flow = Flow("f")
    flow.task(os.getpid, name="one", timeout=timeout)
    flow.task(lambda: os._exit(9), name="dies", timeout=timeout, max_attempts=1)
    assert "FAILED" == run(tmp_path, flow)
    ((pid, timeout_us),) = ask(
        tmp_path, "SELECT task.result, timeout_us FROM task JOIN attempt USING (run_id, name) WHERE name = 'one'"
    )
    assert os.getpid() != int(pid)
    assert timeout_us == (None if timeout is None else 30_000_000)


def test_the_idempotency_key_is_the_same_for_all_attempts_of_a_generation(tmp_path):
    """000.49: what a MERGE or a payment provider recognises a repetition by."""
    flow = Flow("f")

    @flow.task(retry=QUICK, timeout=30)
    def pays(ctx: Any) -> str:
        with (tmp_path / "keys").open("a") as file:
            file.write(ctx.idempotency_key + "\n")
        if ctx.attempt < 3:
            raise TransientError("no answer: was it paid?")
        return str(ctx.idempotency_key)

    run(tmp_path, flow)
    keys = (tmp_path / "keys").read_text().split()
    assert 3 == len(keys) and 1 == len(set(keys))


# --- Document 001 ---------------------------------------------------------------------------------------------------


def test_the_decorator_stacks_with_one_that_measures_each_try():
    """001.15."""
    measured: list[tuple[str, float]] = []

    def metered(function: Callable[[], int]) -> Callable[[], int]:
        @wraps(function)
        def timed() -> int:
            started = time.monotonic()
            try:
                value = function()
            except TimeoutError:
                measured.append(("failed", time.monotonic() - started))
                raise
            measured.append(("succeeded", time.monotonic() - started))
            return value

        return timed

    @retry(retries=3, base=0, exceptions=(TimeoutError,))
    @metered
    def flaky() -> int:
        if len(measured) < 2:
            raise TimeoutError
        return 42

    assert 42 == flaky()
    assert ["failed", "failed", "succeeded"] == [how for how, _ in measured]


# --- Document 003 ---------------------------------------------------------------------------------------------------


def test_the_tables_have_the_columns_of_the_document_and_one_for_events(finished):
    """003.05, 003.06, 003.08."""

    def columns(table: str) -> set[str]:
        return {row[1] for row in ask(finished, f"PRAGMA table_info({table})")}

    tables = {name for (name,) in ask(finished, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables >= {"attempt", "event", "log", "quarantine", "breaker", "page", "executor", "meta"}
    assert {"run_id", "dag_name", "started_at", "ended_at", "state"} <= columns("run")
    assert {
        "run_id",
        "name",
        "state",
        "attempt",
        "max_attempts",
        "started_at",
        "ended_at",
        "next_retry_at",
        "error",
        "failure_fingerprint",
    } <= columns("task")
    assert {"run_id", "parent", "child"} <= columns("edge")
    assert {"seq", "at", "kind", "task", "old", "new"} <= columns("event")


def test_the_query_of_the_document_works_as_it_stands_there(finished):
    """003.29."""
    sql = "SELECT name, state, attempt, error FROM task WHERE run_id = 'monday' ORDER BY name"
    assert [("a", "SUCCESS", 1, None), ("b", "SUCCESS", 1, None)] == ask(finished, sql)


def test_one_file_holds_many_runs_of_one_dag(finished):
    """003.12: run_id is the partition."""
    assert [("monday", 2), ("tuesday", 2)] == ask(finished, "SELECT run_id, count(*) FROM task GROUP BY 1 ORDER BY 1")
    assert [(2, 2)] == ask(finished, "SELECT count(*), count(DISTINCT run_id) FROM edge")


def test_readiness_has_its_indexes(finished):
    """003.11; the document's own order of the key makes the query quadratic."""
    assert "idx_task_state" in {
        name for (name,) in ask(finished, "SELECT name FROM sqlite_master WHERE type = 'index'")
    }
    ((sql,),) = ask(finished, "SELECT sql FROM sqlite_master WHERE name = 'edge'")
    assert "PRIMARY KEY (run_id, child, parent)" in sql


def test_the_states_are_those_of_the_documents_and_two_more():
    """003.09, 000.33: nine of theirs, SKIPPED and CANCELLED of ours."""
    document_003 = {"PENDING", "READY", "RUNNING", "SUCCESS", "FAILED", "UPSTREAM_FAILED", "RETRYING"}
    document_000 = {"SENSING", "DEAD_LETTER"}
    assert document_003 | document_000 | {"SKIPPED", "CANCELLED"} == set(map(str, TaskState))


def test_the_diagram_and_the_code_of_the_document_are_reconciled():
    """003.10, 003.13: PENDING passes through READY, and a retry goes RUNNING -> RETRYING -> READY, not over FAILED."""
    assert TaskState.RUNNING not in EXECUTOR_MOVES[TaskState.PENDING]
    assert TaskState.RUNNING in EXECUTOR_MOVES[TaskState.READY]
    assert TaskState.RETRYING in EXECUTOR_MOVES[TaskState.RUNNING]
    assert TaskState.READY in EXECUTOR_MOVES[TaskState.RETRYING]
    assert TaskState.RETRYING not in LEGAL_MOVES[TaskState.FAILED]


def test_every_state_has_an_exit():
    """000.54: what moves comes to rest by the executor alone, and out of rest an operator takes it."""
    for state in MOVING:
        reached = {state}
        while more := {new for one in reached for new in EXECUTOR_MOVES[one]} - reached:
            reached |= more
        assert reached & RESTING, state
    assert all(OPERATOR_MOVES[state] for state in RESTING)


def test_every_move_is_an_event_with_what_it_changed(finished):
    """003.36: the audit log."""
    moves = ask(finished, "SELECT old, new FROM event WHERE run_id = 'monday' AND task = 'a' AND kind = 'task'")
    assert [("PENDING", "READY"), ("READY", "RUNNING"), ("RUNNING", "SUCCESS")] == moves


# --- Document 004 ---------------------------------------------------------------------------------------------------

leaked: list[int] = []


def test_every_attempt_meets_a_fresh_process(tmp_path):
    """004.35: what a parser leaked in one attempt cannot poison the next."""
    flow = Flow("f")

    @flow.task(retry=QUICK, timeout=30)
    def leaks(ctx: Any) -> int:
        leaked.append(ctx.attempt)
        if ctx.attempt < 3:
            raise TransientError("again")
        return len(leaked)

    run(tmp_path, flow)
    assert [("1",)] == ask(tmp_path, "SELECT result FROM task")
    assert [] == leaked


def test_a_message_that_crashes_its_worker_is_moved_aside_and_the_others_go_on(tmp_path):
    """004.34: the poison pill that kills every worker which takes it."""
    flow = Flow("f", max_parallel=1)
    flow.command("poison", "kill -SEGV $$", retry=QUICK, timeout=30)
    for number in range(3):
        flow.command(f"message_{number}", "true", timeout=30)
    run(tmp_path, flow)
    assert [("DEAD_LETTER", 2)] == ask(tmp_path, "SELECT state, attempt FROM task WHERE name = 'poison'")
    assert [(3,)] == ask(tmp_path, "SELECT count(*) FROM task WHERE state = 'SUCCESS'")
