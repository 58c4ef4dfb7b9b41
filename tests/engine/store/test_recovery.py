"""After a crash: nothing runs in the file that does not run on the machine, and nothing waits for ever."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.domain.event_payloads import ExecutorChanged, StorageChanged
from redrive.engine.domain.events import EventKind
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import recovery

from .conftest import RUN, SECOND, START, StateFile

DAY = 24 * 3600 * SECOND


def begin(state_file: StateFile, executor_id: str) -> None:
    state_file.connection.execute(
        "INSERT INTO executor (executor_id, pid, host, version, started_at, heartbeat_at) VALUES (?, 1, '', '', ?, ?)",
        (executor_id, state_file.now, state_file.now),
    )


def recover(state_file: StateFile, uniform: Any = lambda low, high: low) -> Any:
    return state_file.write(lambda transaction: recovery.recover(transaction, "executor-2", uniform))


def crash_while_running(state_file: StateFile, name: str = "a") -> None:
    """The task runs under executor-1, which then is no more."""
    state_file.move(name, "READY")
    assert state_file.claim(name)


def attempt(state_file: StateFile, number: int = 1) -> Any:
    return state_file.projection().tasks["a"].attempts[number]


def test_what_ran_is_lost_and_runs_again_after_a_wait(state_file: StateFile) -> None:
    """Not at once, as document 003 has it: a task that kills its host would kill it again."""
    state_file.create({"a": "", "b": "a"}, a={"retry": RetryPolicy(max_attempts=2, base=7, jitter="full")})
    crash_while_running(state_file)
    state_file.now += SECOND
    recover(state_file)
    row = state_file.projection().tasks["a"]
    assert (row.state, row.losses, row.failures) == ("RETRYING", 1, 0)
    assert state_file.column("a", "claim_token") is None
    assert row.next_retry_at == state_file.now + 7 * SECOND
    assert (attempt(state_file).outcome, attempt(state_file).ended_at) == ("lost", state_file.now)
    assert state_file.states()["b"] == "PENDING"


def test_the_wait_after_losses_grows_and_is_never_below_base(state_file: StateFile) -> None:
    spec = {"retry": RetryPolicy(base=2, cap=600), "max_losses": 9}
    state_file.create({"a": ""}, a=spec)
    waits = []
    for _ in range(4):
        crash_while_running(state_file)
        recover(state_file, lambda low, high: high)
        waits.append((state_file.column("a", "next_retry_at") - state_file.now) // SECOND)
    assert waits == [2, 4, 8, 16]


def test_the_third_loss_of_a_day_is_a_crash_loop(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a"})
    for expected in ("RETRYING", "RETRYING", "DEAD_LETTER"):
        crash_while_running(state_file)
        recover(state_file)
        assert state_file.states() == {"a": expected, "b": "PENDING"}
        state_file.now += 3600 * SECOND
    assert state_file.column("a", "dead_letter_kind") == "crash-loop"


def test_losses_of_other_days_say_nothing(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    for _ in range(6):
        crash_while_running(state_file)
        recover(state_file)
        state_file.now += DAY // 2 + SECOND
    assert state_file.states() == {"a": "RETRYING"} and state_file.column("a", "losses") == 2


def test_what_must_not_run_twice_waits_for_a_human(state_file: StateFile) -> None:
    state_file.create({"a": ""}, a={"idempotent": False})
    crash_while_running(state_file)
    recover(state_file)
    assert (state_file.states()["a"], state_file.column("a", "dead_letter_kind")) == ("DEAD_LETTER", "indeterminate")
    assert "find out" in state_file.column("a", "error")


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_an_operator_wanted_to_end_is_cancelled_in_his_name(state_file: StateFile, idempotent: bool) -> None:
    """It used to be tried again: that somebody had cancelled it was known to the dead executor alone."""
    state_file.create({"a": "", "b": "a", "c": ""}, a={"idempotent": idempotent})
    crash_while_running(state_file)
    crash_while_running(state_file, "c")
    assert state_file.act("cancel", "a")["ok"]
    recover(state_file)
    assert state_file.states() == {"a": "CANCELLED", "b": "UPSTREAM_FAILED", "c": "RETRYING"}
    assert (attempt(state_file).outcome, state_file.column("a", "cancel_requested_at")) == ("lost", None)
    signed = {
        (event.task, event.actor, event.reason) for event in state_file.emitted if event.kind == "task" and event.actor
    }
    assert signed == {(name, "ana@ops", "the vendor has fixed it") for name in ("a", "b")}


def test_what_had_succeeded_is_kept(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    crash_while_running(state_file)
    state_file.move("a", "SUCCESS")
    state_file.write(lambda j: j.change_attempt(RUN, "a", 1, {"outcome": "success"}))
    before = state_file.projection()
    assert recover(state_file) == []
    assert state_file.projection() == before


def test_an_attempt_whose_task_moved_on_is_closed_as_late(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    crash_while_running(state_file)
    state_file.move("a", "CANCELLED")
    recover(state_file)
    assert state_file.states() == {"a": "CANCELLED"}
    assert (attempt(state_file).outcome, attempt(state_file).late) == ("lost", 1)


def test_a_second_recovery_finds_nothing(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    begin(state_file, "executor-1")
    crash_while_running(state_file)
    recover(state_file)
    emitted_before = len(state_file.emitted)
    assert recover(state_file) == [] and len(state_file.emitted) == emitted_before


def test_every_run_of_the_file_is_recovered(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    crash_while_running(state_file)
    state_file.connection.execute("UPDATE run SET state = 'FAILED'")
    recover(state_file)
    assert (state_file.states(), attempt(state_file).outcome) == ({"a": "RETRYING"}, "lost")


def test_what_this_executor_runs_is_not_lost(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    crash_while_running(state_file)
    state_file.write(lambda transaction: recovery.recover(transaction, "executor-1", lambda low, high: low))
    assert (state_file.states(), attempt(state_file).outcome) == ({"a": "RUNNING"}, "running")


def test_executors_without_a_last_event_are_reported_once(state_file: StateFile) -> None:
    for executor_id in ("executor-0", "executor-1", "executor-2"):
        begin(state_file, executor_id)
    state_file.connection.execute("UPDATE executor SET stopped_at = 5 WHERE executor_id = 'executor-0'")
    assert recovery.unstopped_executors(state_file.connection, "executor-2") == ["executor-1"]
    assert recover(state_file) == ["executor-1"]
    (event,) = state_file.emitted
    assert (event.kind, event.payload) == (EventKind.EXECUTOR, ExecutorChanged("lost", "executor-1", 1, ""))
    assert recovery.unstopped_executors(state_file.connection, "executor-2") == []


def test_provisional_bad_rows_of_a_lost_attempt_are_dropped(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    crash_while_running(state_file)
    for number, state in ((1, "provisional"), (1, "held")):
        state_file.connection.execute(
            "INSERT INTO quarantine (run_id, name, attempt, row_key, state, at) VALUES (?, 'a', ?, ?, ?, 0)",
            (RUN, number, state, state),
        )
    recover(state_file)
    rows = dict(state_file.connection.execute("SELECT row_key, state FROM quarantine").fetchall())
    assert rows == {"provisional": "dropped", "held": "held"}


@pytest.mark.parametrize(
    ("state", "delay_us", "longest_seconds"),
    [("RETRYING", None, 600), ("RETRYING", 3600 * SECOND, 3600), ("SENSING", None, 60)],
)
def test_a_clock_that_was_ahead_parks_no_task_for_years(
    state_file: StateFile, state: str, delay_us: int | None, longest_seconds: int
) -> None:
    """The wait that the other side asked for is kept, though it is longer than the cap."""
    state_file.create({"a": "", "b": ""})
    ten_years = state_file.now + 3650 * DAY
    state_file.set_state("a", state, next_retry_at=ten_years, delay_us=delay_us)
    state_file.set_state("b", state, next_retry_at=state_file.now + 5 * SECOND)
    recover(state_file)
    assert state_file.column("a", "next_retry_at") == START + longest_seconds * SECOND
    assert state_file.column("b", "next_retry_at") == START + 5 * SECOND
    assert state_file.emitted[-1].kind == EventKind.TASK_CHANGED


def test_waits_keep_their_length_if_the_clock_was_set_back_while_no_executor_lived(state_file: StateFile) -> None:
    """The wait of a requeue has no bound by which it could be clamped."""
    state_file.create({"a": "", "b": ""})
    state_file.set_state("a", "FAILED")
    state_file.set_state("b", "DEAD_LETTER", expires_at=START + 600 * SECOND)
    state_file.act("requeue", "a", not_before=20)
    state_file.now -= DAY
    recover(state_file)
    assert state_file.column("a", "next_retry_at") == START - DAY + 20 * SECOND
    assert state_file.column("b", "expires_at") == START - DAY + 600 * SECOND
    assert state_file.emitted[-1].kind == EventKind.CLOCK
    recover(state_file)  # the latest event is of now
    assert state_file.column("a", "next_retry_at") == START - DAY + 20 * SECOND


def test_waits_keep_their_length_if_an_executor_died_between_a_step_back_and_its_shift(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "FAILED")
    state_file.act("requeue", "a", not_before=20)
    state_file.now -= DAY
    state_file.write(lambda transaction: transaction.emit(StorageChanged("degraded", "full"), RUN))
    recover(state_file)
    assert state_file.column("a", "next_retry_at") == START - DAY + 20 * SECOND


@pytest.mark.parametrize("ahead_seconds", [0, 365 * 24 * 3600])
def test_a_sensor_keeps_the_wait_that_it_asked_for_itself(state_file: StateFile, ahead_seconds: int) -> None:
    """``NotReady(recheck_seconds=...)`` may be longer than the sensor's own rhythm; a clock that was ahead is not."""
    state_file.create({"a": ""}, a={"kind": "sensor", "recheck_seconds": 1.0})
    checked = state_file.now + ahead_seconds * SECOND
    state_file.set_state("a", "SENSING", ended_at=checked, next_retry_at=checked + 3600 * SECOND)
    recover(state_file)
    assert state_file.column("a", "next_retry_at") == state_file.now + 3600 * SECOND


def test_a_kill_in_any_transaction_leaves_a_file_that_recovers(state_file: StateFile) -> None:
    """A writer is killed -9 at random while it works; what is left is whole, and one recovery makes it sane."""
    state_file.create({f"t{number}": "" for number in range(20)})
    for round_number in range(12):
        pid = os.fork()
        if pid == 0:
            work_until_killed(state_file)
        signal.sigtimedwait([], 0.004 * (round_number + 1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        survivor = StateFile(state_file.path)
        assert survivor.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        running = survivor.connection.execute(
            "SELECT count(*) FROM task WHERE state = 'RUNNING'"
            " AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.name = task.name AND outcome = 'running')"
        ).fetchone()
        assert running == (0,)
        recover(survivor)
        assert "RUNNING" not in survivor.states().values()
        projection = survivor.projection()
        assert all(row.attempt == len(row.attempts) for row in projection.tasks.values())
        survivor.connection.close()


def work_until_killed(parent: StateFile) -> None:
    mine = StateFile(parent.path)
    while True:
        for name, state in mine.states().items():
            if state == "DEAD_LETTER":
                mine.act("requeue", name)
            elif state in ("PENDING", "RETRYING"):
                mine.move(name, "READY")
            elif state == "READY":
                mine.claim(name)
            elif state == "RUNNING":
                mine.write(lambda j, n=name: give_up(j, n, mine.column(n, "attempt"), mine.column(n, "generation")))


def give_up(transaction: Transaction, name: str, attempt_number: int, generation: int) -> None:
    transaction.move(RUN, name, "RUNNING", "RETRYING", generation)
    transaction.change_attempt(RUN, name, attempt_number, {"outcome": "error"})
