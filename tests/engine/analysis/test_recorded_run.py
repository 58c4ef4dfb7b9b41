"""What the record of a run says of tries that were never made."""

from __future__ import annotations

import pytest
from redrive.engine.analysis.what_if import FailureAttribution, RecordedAttempt, RecordedRun
from redrive.engine.core.outcome import FailureClass, OutcomeKind
from redrive.engine.domain.states import TaskState

from .records import SECOND, START, Tried, projection_of

BANK = {"downstream": "bank"}
NUMBER, TIME = FailureAttribution


def at(seconds: float) -> int:
    return START + round(seconds * SECOND)


def is_success(found: RecordedAttempt) -> bool:
    return found.outcome.kind is OutcomeKind.SUCCESS


def test_by_number_a_try_ends_as_its_own_did() -> None:
    record = RecordedRun(projection_of({"t": [Tried(3, "transient", 1.0), Tried(5)]}))
    first, second = (record.predict("t", number, at(900), NUMBER) for number in range(2))
    assert first.outcome.failure is not None and first.outcome.failure.failure_class is FailureClass.TRANSIENT
    assert (first.seconds, second.seconds, is_success(second), record.delay_seconds("t", 0)) == (3, 5, True, 1.0)


def test_by_time_it_ends_as_the_nearest_call_of_the_same_system() -> None:
    tries = {"a": [Tried(1, "transient", at=10)], "b": [Tried(1, at=50)], "other": [Tried(1, "transient", at=49)]}
    record = RecordedRun(projection_of(tries, specs={"a": BANK, "b": BANK}))
    assert not is_success(record.predict("a", 0, at(20), TIME))
    assert is_success(record.predict("a", 0, at(45), TIME))
    assert not is_success(record.predict("b", 0, at(5), TIME))


def test_what_starts_when_it_did_ends_as_it_did_whoever_else_was_near() -> None:
    tries = {"a": [Tried(1, "transient", at=10.0)], "b": [Tried(1, at=10.1)]}
    record = RecordedRun(projection_of(tries, specs=dict.fromkeys(tries, BANK)))
    assert not is_success(record.predict("a", 0, at(10.09), TIME))


def test_before_and_behind_all_calls_the_record_says_nothing() -> None:
    tries = {"a": [Tried(1, at=10)], "b": [Tried(1, at=50)]}
    record = RecordedRun(projection_of(tries, specs=dict.fromkeys(tries, BANK)))
    assert [record.predict("a", 0, at(one), TIME).is_recorded for one in (5, 30, 70)] == [False, True, False]


def test_a_sensor_gives_no_other_task_its_not_yet() -> None:
    tries = {"sensor": [Tried(1, outcome="deferred", at=10), Tried(1, at=40)], "task": [Tried(1, at=60)]}
    record = RecordedRun(projection_of(tries, specs=dict.fromkeys(tries, BANK)))
    assert is_success(record.predict("task", 0, at(10), TIME))
    assert record.predict("sensor", 0, at(12), TIME).outcome.kind is OutcomeKind.DEFERRED
    assert is_success(record.predict("sensor", 0, at(38), TIME))


def test_a_try_is_as_long_as_it_held_its_slot_unless_the_clock_was_moved() -> None:
    projection = projection_of({"t": [Tried(1), Tried(1)]})
    slow, moved = projection.tasks["t"].attempts.values()
    slow.ended_at, moved.ended_at = slow.started_at + round(1.2 * SECOND), moved.started_at + 3600 * SECOND
    record = RecordedRun(projection)
    assert [record.predict("t", number, at(0), NUMBER).seconds for number in range(2)] == [1.2, 1.0]


@pytest.mark.parametrize("outcome", ["lost", "cancelled"])
def test_what_was_lost_or_stopped_says_nothing(outcome: str) -> None:
    record = RecordedRun(projection_of({"t": [Tried(1, outcome=outcome), Tried(4)]}))
    assert record.predict("t", 0, at(0), NUMBER).seconds == 4
    assert record.attempt_count == 1


def test_who_asked_to_be_left_alone_is_known_by_waits_that_the_policy_does_not_explain() -> None:
    tries = [Tried(1, "transient", 1.0), Tried(1, "transient", 1.0, asked=30.0), Tried(1)]
    record = RecordedRun(projection_of({"t": tries}, states={"t": TaskState.SUCCESS}))
    found = [record.predict("t", number, at(0), NUMBER).outcome.failure for number in range(2)]
    assert [one and one.retry_after_seconds for one in found] == [None, pytest.approx(30.0)]
