"""Requeue: a new generation of a task, and its effect on the tasks above and below it."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.core.spec import with_overrides
from redrive.engine.domain.event_payloads import RunChange, RunChanged, TaskMoved
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile import transitions
from redrive.engine.statefile.transitions import Transaction

from ..store.conftest import RUN, SECOND, START, StateFile
from .act_helpers import CHAIN, DIAMOND, ran, results, sentence, table


def test_a_requeue_is_a_new_generation_that_keeps_its_attempts(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a")
    columns = {"failures": 2, "losses": 1, "deferrals": 4, "refusals": 5, "error": "boom", "ended_at": START}
    columns |= {"failure_fingerprint": "f1", "dead_letter_kind": "poison", "failure_mode": "poisoned"}
    state_file.move("a", "DEAD_LETTER", **columns)
    answer = state_file.act("requeue", "a")
    assert (answer["ok"], answer["message"], results(answer)) == (True, "1 requeued", {"a": "done"})
    row = state_file.projection().tasks["a"]
    assert (row.state, row.generation, row.attempt, list(row.attempts)) == (TaskState.PENDING, 1, 1, [1])
    assert (row.failures, row.losses, row.deferrals, row.refusals) == (0, 0, 0, 0)
    assert (row.error, row.failure_fingerprint, row.dead_letter_kind, row.failure_mode) == (None,) * 4
    assert (row.ended_at, row.next_retry_at, row.first_started_at) == (None,) * 3
    event = next(event for event in state_file.emitted if event.kind == EventKind.TASK and event.new == "PENDING")
    assert (event.actor, event.reason, event.generation) == ("ana@ops", "the vendor has fixed it", 1)


def test_a_requeue_keeps_counters_waits_and_changes_the_budget_on_request(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "FAILED", failures=3)
    answer = state_file.act("requeue", "a", reset_count=False, not_before=90, max_attempts=1)
    assert answer["message"].endswith(", in 1m30") and "; starts not before " in answer["message"]
    row = state_file.projection().tasks["a"]
    assert (row.failures, row.next_retry_at, row.max_attempts) == (3, START + 90 * SECOND, 1)


def test_what_a_requeue_changes_holds_for_its_generation_alone(state_file: StateFile) -> None:
    state_file.create({"a": ""}, a={"retry": RetryPolicy(max_attempts=5), "timeout": 30.0})
    state_file.connection.execute("UPDATE run SET params = ?", (json.dumps({"day": 3, "dry": False, "note": "x"}),))
    state_file.set_state("a", "FAILED")
    params = {"day": "4", "dry": "yes", "note": "7"}
    answer = state_file.act("requeue", "a", timeout=1200, params=params, single_shot=True)
    assert sentence(answer, "a") == "runs again timeout 20m00, one try, day=4, dry=True, note=7"
    row = state_file.projection().tasks["a"]
    assert row.max_attempts == 1
    spec = with_overrides(spec_of(row), row.overrides)
    assert (spec.timeout, spec.retry.max_attempts, spec.params) == (1200, 1, {"day": 4, "dry": True, "note": "7"})
    event = next(event for event in state_file.emitted if event.new == "PENDING")
    assert isinstance(event.payload, TaskMoved)
    assert json.loads(event.payload.set["overrides"] or "")["timeout"] == 1200
    state_file.set_state("a", "FAILED")
    state_file.act("requeue", "a")
    row = state_file.projection().tasks["a"]
    assert (row.max_attempts, row.overrides, with_overrides(spec_of(row), row.overrides)) == (5, None, row.spec)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "a timeout is a number of seconds above 0"),
        ({"timeout": "20m"}, "a timeout is a number of seconds above 0"),
        ({"params": {"month": 1}}, "no parameter 'month'; it declares: day"),
        ({"params": {"day": "monday"}}, "parameter 'day' wants a whole number like 3, not 'monday'"),
        ({"params": {"day": 2**70}}, "parameter 'day' is larger than a task can receive: 1180591620717411303424"),
        ({"max_attempts": 0}, "max_attempts is a whole number"),
        ({"not_before": "soon"}, "not_before is a number"),
        ({"rate_per_second": -1}, "rate_per_second is a number"),
        ({"time_out": 5}, "takes no option 'time_out'"),
    ],
)
def test_what_cannot_be_changed_is_refused_whole_and_in_one_sentence(
    state_file: StateFile, options: dict[str, Any], words: str
) -> None:
    state_file.create({"a": ""})
    state_file.connection.execute("UPDATE run SET params = ?", (json.dumps({"day": 3}),))
    state_file.set_state("a", "FAILED")
    before = table(state_file)
    answer = state_file.act("requeue", "a", **options)
    assert not answer["ok"] and words in answer["message"]
    assert table(state_file) == before


def test_the_idempotency_key_stays_unless_another_is_asked_for(state_file: StateFile) -> None:
    """It is the same logical work, whoever runs it again (SPEC 4.4)."""
    state_file.create({"a": ""})
    keys = []
    for options in ({}, {"new_key": True}, {}):
        state_file.set_state("a", "FAILED")
        state_file.act("requeue", "a", **options)
        keys.append(state_file.column("a", "key_generation"))
    assert keys == [0, 2, 2]


@pytest.mark.parametrize("state", ["READY", "RETRYING", "SENSING", "SUCCESS", "FAILED", "SKIPPED", "CANCELLED"])
def test_whatever_rests_or_waits_can_be_requeued(state_file: StateFile, state: str) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", state)
    assert results(state_file.act("requeue", "a")) == {"a": "done"}
    assert state_file.states() == {"a": "PENDING"}


@pytest.mark.parametrize(("state", "words"), [("RUNNING", "cancel it first"), ("PENDING", "has not run yet")])
def test_what_runs_or_has_not_run_cannot_be_requeued(state_file: StateFile, state: str, words: str) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", state)
    answer = state_file.act("requeue", "a")
    assert not answer["ok"] and words in answer["message"] and state_file.states() == {"a": state}


@pytest.mark.parametrize("act", ["requeue", "skip"])
def test_what_is_being_ended_is_not_to_be_cancelled_again(state_file: StateFile, act: str) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "RUNNING", cancel_requested_at=1)
    message = state_file.act(act, "a")["message"]
    assert message == f"a: its attempt was cancelled and still runs: {act} it when the attempt has ended"


def test_a_requeue_brings_back_what_the_failure_had_stopped(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "FAILED")
    state_file.write(lambda j: transitions.propagate(j, RUN, "a"))
    answer = state_file.act("requeue", "a")
    assert state_file.states() == {"a": "PENDING", "b": "PENDING", "c": "PENDING"}
    assert answer["message"] == "1 requeued; 2 unblocked"


@pytest.mark.parametrize("first", ["b", "c"])
def test_a_diamond_comes_back_when_both_of_its_sides_do(state_file: StateFile, first: str) -> None:
    other = "c" if first == "b" else "b"
    state_file.create(DIAMOND)
    for name in ("b", "c"):
        state_file.set_state(name, "FAILED")
        state_file.write(lambda j, name=name: transitions.propagate(j, RUN, name))
    state_file.act("requeue", first)
    assert state_file.states()["d"] == state_file.states()["e"] == "UPSTREAM_FAILED"
    assert state_file.column("e", "blocked_by") == other
    state_file.act("requeue", other)
    assert state_file.states()["d"] == state_file.states()["e"] == "PENDING"


def test_a_stopped_task_is_requeued_with_its_cause_or_not_at_all(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "FAILED")
    state_file.write(lambda j: transitions.propagate(j, RUN, "a"))
    refused = state_file.act("requeue", "c")
    assert not refused["ok"] and "blocked by a" in refused["message"]
    both = state_file.act("requeue", "c", "a")
    assert results(both) == {"a": "done", "c": "done"} and sentence(both, "c") == "unblocked"
    assert state_file.column("c", "generation") == 0


def test_a_requeue_below_a_failure_says_that_it_is_not_enough(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "FAILED")
    state_file.set_state("b", "DEAD_LETTER")
    answer = state_file.act("requeue", "b")
    assert sentence(answer, "b") == "but blocked by a: requeue or skip that"
    assert state_file.states()["b"] == state_file.states()["c"] == "UPSTREAM_FAILED"


def test_a_parent_that_runs_again_holds_back_what_waits_and_marks_what_ran(state_file: StateFile) -> None:
    state_file.create({"a": "", "ready": "a", "done": "a", "below": "done", "running": "a"})
    for name, state in {"a": "SUCCESS", "ready": "READY", "done": "SUCCESS", "running": "RUNNING"}.items():
        state_file.set_state(name, state)
    state_file.set_state("below", "SUCCESS")
    answer = state_file.act("requeue", "a")
    assert state_file.states()["ready"] == "PENDING"
    stale = {name for name in state_file.states() if state_file.column(name, "stale")}
    assert stale == {"done", "below", "running"}
    assert "1 waiting for it again" in answer["message"] and "3 ran before it" in answer["message"]


def test_a_cascade_runs_everything_below_again(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    for name in CHAIN:
        state_file.set_state(name, "SUCCESS")
    answer = state_file.act("requeue", "a", cascade=True)
    assert set(results(answer)) == {"a", "b", "c"} and set(state_file.states().values()) == {"PENDING"}
    assert [state_file.column(name, "generation") for name in CHAIN] == [1, 1, 1]
    assert [state_file.column(name, "stale") for name in CHAIN] == [0, 0, 0]


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        ({"state": "FAILED"}, "SUCCESS"),
        ({"state": "SKIPPED", "skip_cause": "operator"}, "SUCCESS"),
        ({"state": "SKIPPED", "skip_cause": "cascade"}, "PENDING"),
        ({"state": "UPSTREAM_FAILED"}, "PENDING"),
        ({"state": "CANCELLED"}, "SUCCESS"),
        ({"state": "CANCELLED", "failure_mode": "deadline"}, "PENDING"),
    ],
    ids=repr,
)
def test_a_cascade_runs_again_what_waits_for_a_task_that_does(
    state_file: StateFile, columns: dict[str, str], last: str
) -> None:
    """Below a task that stays as it is, a success would start before the task that was requeued."""
    state_file.create(CHAIN)
    for name in CHAIN:
        state_file.set_state(name, "SUCCESS")
    state_file.set_state("b", columns.pop("state"), **columns)
    state_file.act("requeue", "a", cascade=True)
    assert (state_file.states()["c"], state_file.column("c", "stale")) == (last, last == "SUCCESS")


def test_a_requeue_opens_a_finished_run_again(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "FAILED")
    state_file.write(lambda j: j.change_run(RUN, RunChanged("ended", {"state": "FAILED", "ended_at": START})))
    state_file.act("requeue", "a")
    assert (state_file.run_column("state"), state_file.run_column("ended_at")) == ("RUNNING", None)
    event = next(event for event in state_file.emitted if getattr(event.payload, "what", None) == "reopened")
    assert (event.old, event.new, event.actor) == ("FAILED", "RUNNING", "ana@ops")


def test_a_requeue_in_a_blocked_run_unblocks_it(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "DEAD_LETTER")
    state_file.write(lambda j: j.change_run(RUN, RunChanged("blocked", {"blocked_since": START})))
    state_file.act("requeue", "a")
    assert state_file.run_column("blocked_since") is None


def test_a_refused_act_opens_nothing(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "SUCCESS")
    state_file.write(lambda j: j.change_run(RUN, RunChanged("ended", {"state": "SUCCESS", "ended_at": START})))
    assert not state_file.act("cancel", "a")["ok"]
    assert state_file.run_column("state") == "SUCCESS"


def test_a_late_result_of_the_old_generation_changes_nothing(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a", token="old")
    state_file.move("a", "CANCELLED")
    state_file.act("requeue", "a")
    state_file.move("a", "READY")
    state_file.claim("a", token="new")
    late = state_file.write(
        lambda j: j.move(RUN, "a", "RUNNING", "SUCCESS", 0, guard=" AND claim_token = ?", guarded=("old",))
    )
    also = state_file.write(
        lambda j: j.move(RUN, "a", "RUNNING", "SUCCESS", 1, guard=" AND claim_token = ?", guarded=("old",))
    )
    assert (late, also, state_file.states()) == (False, False, {"a": "RUNNING"})


@pytest.mark.parametrize("act", ["requeue"])
def test_a_second_requeue_names_who_was_first(state_file: StateFile, act: str) -> None:
    """It has run, also twice: only since the requeue it has not."""
    state_file.create({"a": ""})
    ran(state_file, "a", "FAILED", ended_at=1)
    assert results(state_file.act("requeue", "a")) == {"a": "done"}
    answer = state_file.act(act, "a")
    assert not answer["ok"]
    assert "a: already requeued by " in answer["message"] and "it has not started since" in answer["message"]


def test_the_time_in_which_a_run_waited_for_a_human_is_counted(state_file: StateFile) -> None:
    """Blocked, then ended and reopened: what is usual is the work alone."""

    def waited() -> int:
        return int(state_file.connection.execute("SELECT waited_us FROM run").fetchone()[0])

    def change(at: int, what: str, **columns: Any) -> None:
        def write(transaction: Transaction) -> None:
            transaction.at = at
            transaction.change_run(RUN, RunChanged(what, cast(Any, columns)))

        state_file.write(write)

    state_file.create({"a": ""})
    change(10_000, RunChange.BLOCKED, blocked_since=10_000)
    change(12_000, RunChange.UNBLOCKED, blocked_since=None)
    change(13_000, RunChange.UNBLOCKED, blocked_since=None)
    assert waited() == 2_000
    change(15_000, RunChange.ENDED, state="SUCCESS", ended_at=15_000, blocked_since=None)
    change(20_000, RunChange.REOPENED, state="RUNNING", ended_at=None, blocked_since=None)
    assert waited() == 7_000
    change(21_000, RunChange.BLOCKED, blocked_since=21_000)
    change(26_000, RunChange.ENDED, state="ABANDONED", ended_at=26_000, blocked_since=None)
    assert waited() == 12_000
