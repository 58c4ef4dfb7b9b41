"""Acts of operators: each one whole or not at all, once however often it arrives, and told with who came first."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.core.spec import with_overrides
from redrive.engine.domain.event_changes import RunChange
from redrive.engine.domain.event_columns import AnswerFields
from redrive.engine.domain.event_payloads import RunChanged, TaskMoved
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.changes import action, dry_run, operator_actions, propagation, transitions, undo
from redrive.engine.statefile.changes.clock_steps import shift_times
from redrive.engine.statefile.changes.dry_run import preview as preview_act

from ...store.conftest import RUN, SECOND, START, StateFile

CHAIN = {"a": "", "b": "a", "c": "b"}
DIAMOND = {"a": "", "b": "", "c": "", "d": "b c", "e": "d"}


def results(answer: AnswerFields) -> dict[str, str]:
    return {name: result for name, result, _ in answer["results"]}


def sentence(answer: AnswerFields, name: str) -> str:
    return next(text for task, _, text in answer["results"] if task == name)


def ran(state_file: StateFile, name: str, state: str, **columns: Any) -> None:
    """Bring a task there as a run would."""
    state_file.move(name, "READY")
    state_file.claim(name)
    state_file.move(name, state, **columns)


def table(state_file: StateFile) -> list[tuple[Any, ...]]:
    return state_file.connection.execute("SELECT * FROM task ORDER BY name").fetchall()


# --- Requeue -------------------------------------------------------------------------------------------------------


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
    state_file.act("requeue", "a", reset_count=False, not_before=90, max_attempts=1)
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
        ({"params": {"month": 1}}, "no parameter 'month'; it has: day"),
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


def test_a_requeue_brings_back_what_the_failure_had_stopped(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "FAILED")
    state_file.write(lambda j: propagation.propagate(j, RUN, "a"))
    answer = state_file.act("requeue", "a")
    assert state_file.states() == {"a": "PENDING", "b": "PENDING", "c": "PENDING"}
    assert answer["message"] == "1 requeued; 2 unblocked"


@pytest.mark.parametrize("first", ["b", "c"])
def test_a_diamond_comes_back_when_both_of_its_sides_do(state_file: StateFile, first: str) -> None:
    other = "c" if first == "b" else "b"
    state_file.create(DIAMOND)
    for name in ("b", "c"):
        state_file.set_state(name, "FAILED")
        state_file.write(lambda j, name=name: propagation.propagate(j, RUN, name))
    state_file.act("requeue", first)
    assert state_file.states()["d"] == state_file.states()["e"] == "UPSTREAM_FAILED"
    assert state_file.column("e", "blocked_by") == other
    state_file.act("requeue", other)
    assert state_file.states()["d"] == state_file.states()["e"] == "PENDING"


def test_a_stopped_task_is_requeued_with_its_cause_or_not_at_all(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "FAILED")
    state_file.write(lambda j: propagation.propagate(j, RUN, "a"))
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
    assert "requeue that as well" in sentence(answer, "b")
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
    late = state_file.write(lambda j: j.move(RUN, "a", "RUNNING", "SUCCESS", 0, token="old"))
    also = state_file.write(lambda j: j.move(RUN, "a", "RUNNING", "SUCCESS", 1, token="old"))
    assert (late, also, state_file.states()) == (False, False, {"a": "RUNNING"})


# --- Skip ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["DEAD_LETTER", "FAILED", "RETRYING", "SENSING", "PENDING", "READY", "CANCELLED"])
def test_a_skip_permits_the_failure_and_children_start(state_file: StateFile, state: str) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", state, next_retry_at=START)
    assert results(state_file.act("skip", "a", substitute={"rows": 0})) == {"a": "done"}
    row = state_file.projection().tasks["a"]
    assert (row.state, row.skip_cause, row.result) == (TaskState.SKIPPED, "operator", '{"rows": 0}')
    assert (row.next_retry_at, row.ended_at) == (None, START)


def test_a_skip_brings_back_what_was_stopped_but_not_what_accepts_nothing_else(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "strict": "a", "below": "strict"}, strict={"rule": "all_success_strict"})
    state_file.set_state("a", "FAILED")
    state_file.write(lambda j: propagation.propagate(j, RUN, "a"))
    state_file.act("skip", "a")
    assert state_file.states() == {
        "a": "SKIPPED",
        "b": "PENDING",
        "strict": "UPSTREAM_FAILED",
        "below": "UPSTREAM_FAILED",
    }


def test_a_skip_stops_waiting_children_that_accept_nothing_else(state_file: StateFile) -> None:
    state_file.create({"a": "", "strict": "a"}, strict={"rule": "all_success_strict"})
    state_file.set_state("a", "DEAD_LETTER")
    answer = state_file.act("skip", "a")
    assert state_file.states()["strict"] == "UPSTREAM_FAILED" and "1 stopped" in answer["message"]


@pytest.mark.parametrize("state", ["RUNNING", "SUCCESS", "SKIPPED"])
def test_what_runs_or_is_over_cannot_be_skipped(state_file: StateFile, state: str) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", state)
    assert results(state_file.act("skip", "a")) == {"a": "refused"}


NEEDS = {"b": {"requires": ("a",)}}


def test_nothing_is_skipped_whose_result_a_child_cannot_do_without(state_file: StateFile) -> None:
    """SPEC 4.6: the child fails validation before the skip is accepted, and not at four in the morning."""
    state_file.create(CHAIN, **NEEDS)
    state_file.set_state("a", "DEAD_LETTER")
    before = table(state_file)
    answer = state_file.act("skip", "a")
    assert results(answer) == {"a": "refused"}
    assert sentence(answer, "a") == "b needs its result: give a substitute, or skip both"
    assert table(state_file) == before


@pytest.mark.parametrize("substitute", [{"rows": 0}, None, "a text", 0, []])
def test_any_json_value_can_stand_in_for_a_result(state_file: StateFile, substitute: Any) -> None:
    state_file.create(CHAIN, **NEEDS)
    state_file.set_state("a", "DEAD_LETTER")
    assert results(state_file.act("skip", "a", substitute=substitute)) == {"a": "done"}
    assert json.loads(state_file.column("a", "result")) == substitute


@pytest.mark.parametrize(
    ("child", "spec"),
    [
        ("SUCCESS", {}),  # it has what it needed
        ("CANCELLED", {}),
        ("PENDING", {"rule": "all_success_strict"}),  # the skip stops it anyway
    ],
)
def test_a_child_that_will_not_ask_is_no_obstacle_to_a_skip(
    state_file: StateFile, child: str, spec: dict[str, Any]
) -> None:
    state_file.create(CHAIN, b={"requires": ("a",), **spec})
    state_file.set_state("a", "DEAD_LETTER")
    state_file.set_state("b", child)
    assert results(state_file.act("skip", "a")) == {"a": "done"}


def test_a_task_is_skipped_together_with_the_child_that_needs_it(state_file: StateFile) -> None:
    state_file.create(CHAIN, **NEEDS)
    state_file.set_state("a", "DEAD_LETTER")
    assert results(state_file.act("skip", "a", "b")) == {"a": "done", "b": "done"}


def test_a_substitute_is_no_larger_than_a_result(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    answer = state_file.act("skip", "a", substitute="x" * 70_000)
    assert not answer["ok"] and "at most" in answer["message"] and state_file.states()["a"] == "DEAD_LETTER"


# --- Cancel, hurry, pause ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["PENDING", "READY", "RETRYING", "SENSING", "DEAD_LETTER"])
def test_a_cancel_stops_a_task_and_what_waits_for_it(state_file: StateFile, state: str) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", state)
    answer = state_file.act("cancel", "a")
    assert state_file.states() == {"a": "CANCELLED", "b": "UPSTREAM_FAILED", "c": "UPSTREAM_FAILED"}
    assert answer["message"] == "1 cancelled; 2 below stopped with it" and state_file.column("c", "blocked_by") == "a"


def test_a_running_task_is_left_to_its_executor(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "RUNNING")
    answer = state_file.act("cancel", "a")
    assert (answer["ok"], results(answer)) == (True, {"a": "running"})
    assert state_file.states()["a"] == "RUNNING" and state_file.states()["b"] == "PENDING"


def test_that_somebody_wants_the_end_of_a_running_task_is_in_the_file(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.move("a", "READY")
    state_file.claim("a")
    assert state_file.act("cancel", "a")["message"] == "1 to be ended"
    assert state_file.projection().tasks["a"].cancel_requested_at == START
    event = next(
        event for event in state_file.emitted if getattr(event.payload, "set", None) == {"cancel_requested_at": START}
    )
    assert (event.actor, event.reason, event.attempt) == ("ana@ops", "the vendor has fixed it", 1)


def test_a_second_cancel_of_a_running_task_names_who_came_first(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a")
    state_file.act("cancel", "a")
    state_file.now += 3 * SECOND
    again = state_file.act("cancel", "a", actor="bob@ops")
    assert results(again) == {"a": "running"} and "ana@ops asked for it 3s ago" in sentence(again, "a")
    assert state_file.column("a", "cancel_requested_at") == START


def test_the_end_of_a_running_task_cannot_be_taken_back(state_file: StateFile) -> None:
    """Its processes have their SIGTERM already."""
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a")
    command = state_file.command("cancel", "a")
    state_file.send(command)
    undone = state_file.act("undo", command=command["id"])
    assert not undone["ok"] and "nothing to undo" in undone["message"]
    assert state_file.column("a", "cancel_requested_at") == START


def test_only_what_runs_under_a_timeout_can_be_given_more_time(state_file: StateFile) -> None:
    state_file.create({"bounded": "", "endless": "", "waiting": ""})
    for name in ("bounded", "endless"):
        state_file.move(name, "READY")
        state_file.claim(name, f"token-{name}")
    state_file.write(lambda j: j.change_attempt(RUN, "bounded", 1, {"timeout_us": 60 * SECOND}))
    answer = state_file.act("extend", "bounded", "endless", "waiting", seconds=600)
    assert results(answer) == {"bounded": "running", "endless": "refused", "waiting": "refused"}
    assert "no timeout" in sentence(answer, "endless") and "does not run" in sentence(answer, "waiting")


@pytest.mark.parametrize("seconds", [0, -5, "600", None, 1e9])
def test_more_time_is_a_number_of_seconds(state_file: StateFile, seconds: Any) -> None:
    state_file.create({"a": ""})
    answer = state_file.act("extend", "a", seconds=seconds)
    assert not answer["ok"] and "seconds" in answer["message"]


def test_what_is_being_ended_is_given_no_more_time(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a")
    state_file.act("cancel", "a")
    assert "asked for its end" in sentence(state_file.act("extend", "a", seconds=600), "a")


@pytest.mark.parametrize("state", ["RETRYING", "SENSING"])
def test_hurry_does_not_wait_for_the_instant(state_file: StateFile, state: str) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", state, next_retry_at=START + SECOND)
    state_file.act("hurry", "a")
    assert (state_file.states(), state_file.column("a", "next_retry_at")) == ({"a": "READY"}, None)


def test_hurry_clears_a_not_before_and_nothing_else(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    state_file.set_state("a", "PENDING", next_retry_at=START + SECOND)
    answer = state_file.act("hurry", "a", "b")
    assert results(answer) == {"a": "done", "b": "refused"} and state_file.column("a", "next_retry_at") is None


def test_a_pause_names_who_paused_and_happens_once(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    assert state_file.act("pause")["ok"]
    assert (state_file.run_column("paused_since"), state_file.run_column("paused_by")) == (START, "ana@ops")
    state_file.now += 3 * SECOND
    again = state_file.send(state_file.command("pause", actor="ben@ops"))
    assert not again["ok"] and again["message"] == "already paused by ana@ops 3s ago"
    assert state_file.act("unpause")["ok"] and state_file.run_column("paused_since") is None
    assert not state_file.act("unpause")["ok"]


# --- Two operators, double keys ------------------------------------------------------------------------------------


def test_the_answer_to_the_second_of_two_operators_names_the_first(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    for _ in range(3):
        ran(state_file, "a", "RETRYING")
        state_file.move("a", "READY")
        state_file.set_state("a", "PENDING")
    ran(state_file, "a", "DEAD_LETTER")
    ana, ben = state_file.command("requeue", "a"), state_file.command("requeue", "a", actor="ben@ops")
    assert state_file.send(ana)["ok"]
    state_file.move("a", "READY")
    state_file.claim("a")
    state_file.now += 3 * SECOND
    before = table(state_file)
    answer = state_file.send(ben)
    assert answer["message"] == "a: already requeued by ana@ops 3s ago, now RUNNING attempt 5"
    assert (answer["ok"], table(state_file)) == (False, before)


def test_a_task_that_moved_on_by_itself_is_reported_as_it_is(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "RETRYING")
    command = state_file.command("cancel", "a")
    state_file.move("a", "READY")
    state_file.claim("a")
    assert state_file.send(command)["message"] == "a: no longer RETRYING: now RUNNING attempt 1"


def test_an_older_act_is_not_blamed_for_what_came_later(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "FAILED")
    state_file.act("requeue", "a")
    state_file.move("a", "READY")
    command = state_file.command("cancel", "a")
    state_file.claim("a")
    assert state_file.send(command)["message"] == "a: no longer READY: now RUNNING attempt 1"


def test_the_same_command_again_is_answered_again_and_done_once(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a")
    first = state_file.send(command)
    ran(state_file, "a", "DEAD_LETTER")  # it failed again before the lost answer was asked for again
    before, emitted_before = table(state_file), len(state_file.emitted)
    assert state_file.send(command) == first
    assert (table(state_file), len(state_file.emitted)) == (before, emitted_before)


def test_a_refusal_is_stored_as_well(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "RUNNING")
    command = state_file.command("requeue", "a")
    first = state_file.send(command)
    state_file.set_state("a", "DEAD_LETTER")
    command["targets"] = [["a", "DEAD_LETTER", 0]]
    assert state_file.send(command) == first and state_file.states() == {"a": "DEAD_LETTER"}


def test_one_target_that_no_longer_holds_does_not_stop_the_others(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": ""})
    for name in "abc":
        state_file.set_state(name, "DEAD_LETTER")
    command = state_file.command("requeue", "a", "b", "c")
    state_file.act("skip", "b")
    answer = state_file.send(command)
    assert results(answer) == {"a": "done", "b": "refused", "c": "done"}
    assert answer["message"] == "2 requeued, 1 refused"


def test_a_bulk_act_touches_its_frozen_list_and_nothing_else(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "later": ""})
    for name in "ab":
        state_file.set_state(name, "DEAD_LETTER", failure_fingerprint="f1f1f1f1")
    command = state_file.command("requeue", "a", "b")
    state_file.set_state("later", "DEAD_LETTER", failure_fingerprint="f1f1f1f1")
    state_file.send(command)
    assert state_file.states() == {"a": "PENDING", "b": "PENDING", "later": "DEAD_LETTER"}


# --- What is asked ill ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"act": "explode"}, "no act 'explode'"),
        ({"act": None}, "is a text"),
        ({"id": ""}, "carries an id"),
        ({"actor": ""}, "who sends it"),
        ({"reason": "  "}, "say why"),
        ({"targets": [["a", "FAILED"]]}, "a target is"),
        ({"targets": [["a", "FAILED", "x"]]}, "a target is"),
        ({"reason": "\ud800"}, "no lone surrogates"),
        ({"options": {"not_before": float("nan")}}, "no NaN"),
    ],
)
def test_an_ill_formed_command_is_refused_without_a_trace(
    state_file: StateFile, change: dict[str, Any], words: str
) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "FAILED")
    emitted_before = len(state_file.emitted)
    answer = state_file.send({**state_file.command("requeue", "a"), **change})
    assert not answer["ok"] and words in answer["message"]
    assert (state_file.states(), len(state_file.emitted)) == ({"a": "FAILED"}, emitted_before)


def test_unknown_tasks_and_hostile_names_match_nothing(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    command = state_file.command("requeue")
    command["targets"] = [["' OR 1=1 --", "FAILED", 0], ["ghost", "FAILED", 0]]
    assert set(results(state_file.send(command)).values()) == {"refused"}
    assert state_file.states() == {"a": "PENDING"}


# --- Undo ----------------------------------------------------------------------------------------------------------


def send_and_undo(state_file: StateFile, command: dict[str, Any]) -> AnswerFields:
    assert state_file.send(command)["ok"]
    return state_file.act("undo", command=command["id"])


def test_an_abandoned_run_is_taken_back_with_its_tasks(state_file: StateFile) -> None:
    state_file.create({"root": "", "dead": "root", "waits": "dead", "later": "root"})
    state_file.set_state("root", "SUCCESS")
    state_file.set_state("dead", "DEAD_LETTER", failures=2, error="boom", dead_letter_kind="poison")
    state_file.set_state("later", "RETRYING", next_retry_at=START + 9)
    state_file.write(lambda j: j.change_run(RUN, RunChanged("blocked", {"blocked_since": START})))
    before, run_before = table(state_file), state_file.connection.execute("SELECT * FROM run").fetchall()
    command = state_file.command("abandon")
    answer = state_file.send(command)
    assert answer["ok"] and answer["message"] == f"run {RUN} is abandoned: 3 tasks cancelled"
    assert state_file.states() == {"root": "SUCCESS", "dead": "CANCELLED", "waits": "CANCELLED", "later": "CANCELLED"}
    assert state_file.connection.execute("SELECT state, blocked_since FROM run").fetchall() == [("ABANDONED", None)]
    undone = state_file.act("undo", command=command["id"])
    assert undone["ok"], undone
    assert table(state_file) == before
    assert state_file.connection.execute("SELECT * FROM run").fetchall() == run_before


@pytest.mark.parametrize("act_name", ["requeue", "skip", "cancel", "hurry"])
@pytest.mark.parametrize("state", [str(state) for state in TaskState if state != "RUNNING"])
def test_every_act_can_be_taken_back_to_the_letter(state_file: StateFile, act_name: str, state: str) -> None:
    """Whatever the act did, to the task, to those below and to the run, is as it was."""
    state_file.create(
        {"root": "", "a": "root", "b": "a", "c": "b", "done": "a", "strict": "a"}, strict={"rule": "all_success_strict"}
    )
    state_file.set_state("root", "SUCCESS")
    state_file.set_state("a", state, failures=2, error="boom", next_retry_at=START + 9, failure_fingerprint="f")
    state_file.set_state("done", "SUCCESS")
    if state == "SKIPPED":
        state_file.set_state("a", state, skip_cause="condition")
        state_file.write(lambda j: propagation.propagate(j, RUN, "a"))
    elif state in ("FAILED", "CANCELLED", "UPSTREAM_FAILED"):
        cause = "root" if state == "UPSTREAM_FAILED" else "a"
        if cause == "root":
            state_file.set_state("root", "FAILED")
            state_file.set_state("a", "PENDING")
        state_file.write(lambda j: propagation.propagate(j, RUN, cause))
        state_file.write(lambda j: j.change_run(RUN, RunChanged("ended", {"state": "FAILED", "ended_at": START})))
    before, run_before = table(state_file), state_file.connection.execute("SELECT * FROM run").fetchall()
    command = state_file.command(act_name, "a")
    if not state_file.send(command)["ok"]:
        assert table(state_file) == before
        return
    assert table(state_file) != before
    assert state_file.act("undo", command=command["id"])["ok"]
    assert table(state_file) == before
    assert state_file.connection.execute("SELECT * FROM run").fetchall() == run_before


def test_an_undo_can_be_undone(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("skip", "a")
    state_file.send(command)
    after = table(state_file)
    back = state_file.command("undo", command=command["id"])
    state_file.send(back)
    assert state_file.states()["a"] == "DEAD_LETTER"
    assert state_file.act("undo", command=back["id"])["ok"]
    assert table(state_file) == after


def test_an_undo_that_blocked_the_run_again_can_be_undone(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "DEAD_LETTER")
    blocked = RunChanged(RunChange.BLOCKED, {"blocked_since": START})
    state_file.write(lambda transaction: transaction.change_run(RUN, blocked))
    skip_it = state_file.command("skip", "a")
    state_file.send(skip_it)
    back = state_file.command("undo", command=skip_it["id"])
    assert state_file.send(back)["ok"] and state_file.run_column("blocked_since") == START
    assert state_file.act("undo", command=back["id"])["ok"]
    assert (state_file.states()["a"], state_file.run_column("blocked_since")) == ("SKIPPED", None)


def test_times_that_an_undo_restores_follow_the_steps_of_the_clock_since(state_file: StateFile) -> None:
    state_file.create(dict.fromkeys(["waits", "dead", "late"], ""))
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (START + 900 * SECOND,))
    state_file.set_state("waits", "RETRYING", next_retry_at=START + 60 * SECOND)
    state_file.set_state("dead", "DEAD_LETTER", expires_at=START + 600 * SECOND)
    state_file.set_state(
        "late", "DEAD_LETTER", expires_at=START + 900 * SECOND
    )  # with the run's deadline, a time of day
    skip_all = state_file.command("skip", "waits", "dead", "late")
    state_file.send(skip_all)
    state_file.write(lambda transaction: shift_times(transaction, RUN, 3600 * SECOND))
    assert state_file.act("undo", command=skip_all["id"])["ok"]
    assert state_file.column("waits", "next_retry_at") == START + 3660 * SECOND
    assert state_file.column("dead", "expires_at") == START + 4200 * SECOND
    assert state_file.column("late", "expires_at") == START + 900 * SECOND


def test_a_pause_that_an_undo_restores_began_on_the_clock_of_now(state_file: StateFile) -> None:
    """Or it would be paged a day too late."""
    state_file.create({"a": ""})
    state_file.act("pause")
    since = state_file.run_column("paused_since")
    unpause = state_file.command("unpause")
    state_file.send(unpause)
    state_file.write(lambda transaction: shift_times(transaction, RUN, -3600 * SECOND))
    assert state_file.act("undo", command=unpause["id"])["ok"]
    assert state_file.run_column("paused_since") == since - 3600 * SECOND


def test_a_blocked_run_goes_on_with_a_task_that_an_undo_restores(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    command = state_file.command("skip", "a")
    state_file.send(command)
    blocked = RunChanged(RunChange.BLOCKED, {"blocked_since": START})
    state_file.write(lambda transaction: transaction.change_run(RUN, blocked))
    assert state_file.act("undo", command=command["id"])["ok"]
    assert (state_file.states()["a"], state_file.run_column("blocked_since")) == ("READY", None)


def test_a_promotion_is_no_obstacle_because_nothing_ran(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a")
    state_file.send(command)
    state_file.move("a", "READY")
    assert state_file.act("undo", command=command["id"])["ok"]
    assert (state_file.states()["a"], state_file.column("a", "generation")) == ("DEAD_LETTER", 0)


def test_what_has_started_is_not_undone(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a")
    state_file.send(command)
    state_file.move("a", "READY")
    state_file.claim("a")
    answer = state_file.act("undo", command=command["id"])
    assert answer["message"] == "too late: a is running now" and state_file.states()["a"] == "RUNNING"


def test_a_skip_is_undone_until_a_child_has_started(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("skip", "a")
    state_file.send(command)
    state_file.move("b", "READY")
    state_file.claim("b")
    answer = state_file.act("undo", command=command["id"])
    assert answer["message"] == "too late: b, which depends on it, has started"


def test_a_run_that_ended_after_a_skip_is_open_again_after_its_undo(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "RETRYING", next_retry_at=START + SECOND)
    command = state_file.command("skip", "a")
    assert state_file.send(command)["ok"]
    end_run(state_file, "PARTIAL")
    undo_it = state_file.command("undo", command=command["id"])
    assert state_file.send(undo_it)["ok"]
    run = state_file.projection().run
    assert (state_file.states()["a"], run.state, run.ended_at) == ("RETRYING", "RUNNING", None)
    assert state_file.act("undo", command=undo_it["id"])["ok"]
    assert (state_file.states()["a"], state_file.projection().run.state) == ("SKIPPED", "PARTIAL")


def end_run(state_file: StateFile, state: str) -> None:
    ended = RunChanged(RunChange.ENDED, {"state": state, "ended_at": START})
    state_file.write(lambda transaction: transaction.change_run(RUN, ended, "RUNNING", state))


def test_an_end_by_a_skip_is_decided_again_after_the_undo_of_the_skip(state_file: StateFile) -> None:
    """Also if no task moves on: the run is FAILED without the skip, not PARTIAL."""
    state_file.create({"a": ""})
    state_file.set_state("a", "CANCELLED")
    command = state_file.command("skip", "a")
    state_file.send(command)
    end_run(state_file, "PARTIAL")
    assert state_file.act("undo", command=command["id"])["ok"]
    assert (state_file.states()["a"], state_file.projection().run.state) == ("CANCELLED", "RUNNING")


def test_an_abandoned_run_is_abandoned_again_after_the_undo_of_a_requeue(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    state_file.set_state("a", "DEAD_LETTER")
    end_run(state_file, "ABANDONED")
    command = state_file.command("requeue", "a")
    assert state_file.send(command)["ok"] and state_file.projection().run.state == "RUNNING"
    assert state_file.act("undo", command=command["id"])["ok"]
    assert (state_file.states()["a"], state_file.projection().run.state) == ("DEAD_LETTER", "ABANDONED")


def test_an_undo_leaves_it_to_the_executor_to_block_the_run_for_a_breaker(state_file: StateFile) -> None:
    """The skip has resolved the page: who only set the run blocked again would call nobody."""
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    blocked = RunChanged(RunChange.BLOCKED, {"blocked_since": START})
    state_file.write(lambda transaction: transaction.change_run(RUN, blocked))
    command = state_file.command("skip", "a")
    assert state_file.send(command)["ok"]
    assert state_file.act("undo", command=command["id"])["ok"]
    assert (state_file.states()["a"], state_file.projection().run.blocked_since) == ("READY", None)


def test_an_undo_ends_no_run_in_which_another_task_has_moved_since(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    ran(state_file, "a", "FAILED")
    ran(state_file, "b", "FAILED")
    end_run(state_file, "FAILED")
    command = state_file.command("requeue", "a")
    state_file.send(command)
    state_file.act("requeue", "b")
    state_file.move("b", "READY")
    state_file.claim("b")
    assert state_file.act("undo", command=command["id"])["ok"]
    run = state_file.projection().run
    assert (state_file.states(), run.state, run.ended_at) == ({"a": "FAILED", "b": "RUNNING"}, "RUNNING", None)


def test_a_child_that_was_promoted_meanwhile_waits_again_after_the_undo(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("skip", "a")
    state_file.send(command)
    state_file.move("b", "READY")
    assert state_file.act("undo", command=command["id"])["ok"]
    assert state_file.claim("b") == 0 and state_file.states()["b"] == "PENDING"


def test_a_task_below_what_a_cancel_has_stopped_waits_again_after_the_undo(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"}, c={"rule": "all_done"})
    command = state_file.command("cancel", "a")
    state_file.send(command)
    state_file.move("c", "READY")  # a is CANCELLED, b UPSTREAM_FAILED
    assert state_file.act("undo", command=command["id"])["ok"]
    assert state_file.states() == {"a": "PENDING", "b": "PENDING", "c": "PENDING"}


def test_what_another_operator_touched_is_not_undone(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a")
    state_file.send(command)
    state_file.send(state_file.command("skip", "a", actor="ben@ops"))
    state_file.now += 120 * SECOND
    answer = state_file.act("undo", command=command["id"])
    assert answer["message"] == "too late: a was skipped by ben@ops 2m00 ago"


def test_an_undo_of_many_restores_each_task_that_has_not_started(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": ""})
    for name in "abc":
        state_file.set_state(name, "DEAD_LETTER")
    command = state_file.command("requeue", "a", "b", "c")
    state_file.send(command)
    state_file.move("b", "READY")
    state_file.claim("b")
    answer = state_file.act("undo", command=command["id"])
    assert answer["ok"]
    assert answer["message"] == "2 changed back, 1 had moved on and stays"
    assert state_file.states() == {"a": "DEAD_LETTER", "b": "RUNNING", "c": "DEAD_LETTER"}
    assert ["b", "refused", "stays: b is running now"] in [list(result) for result in answer["results"]]
    again = state_file.act("undo", command=command["id"])
    assert not again["ok"]


def test_a_task_below_a_task_that_has_started_stays_and_one_below_a_restored_task_stops_again(
    state_file: StateFile,
) -> None:
    """``join`` was stopped by both failures; one of them runs again, the other one is restored."""
    state_file.create({"a": "", "b": "", "join": "a b", "only_a": "a"})
    for name in "ab":
        state_file.set_state(name, "FAILED")
    for name in ("join", "only_a"):
        state_file.set_state(name, "UPSTREAM_FAILED", blocked_by="a")
    command = state_file.command("requeue", "a", "b")
    state_file.send(command)
    state_file.move("a", "READY")
    state_file.claim("a")
    assert state_file.act("undo", command=command["id"])["ok"]
    states = {"a": "RUNNING", "b": "FAILED", "join": "UPSTREAM_FAILED", "only_a": "PENDING"}
    assert state_file.states() == states


def test_an_undo_respects_what_other_acts_made_of_the_rest(state_file: StateFile) -> None:
    """b's requeue freed nothing because of c; c's did; then b fails again by undo: the join must stop again."""
    state_file.create(DIAMOND)
    for name in ("c", "b"):
        state_file.set_state(name, "FAILED")
        state_file.write(lambda j, name=name: propagation.propagate(j, RUN, name))
    first = state_file.command("requeue", "b")
    state_file.send(first)
    state_file.act("requeue", "c")
    assert state_file.states()["d"] == "PENDING"
    assert state_file.act("undo", command=first["id"])["ok"]
    assert state_file.states()["d"] == state_file.states()["e"] == "UPSTREAM_FAILED"
    assert state_file.column("d", "blocked_by") == "b"


def test_there_is_nothing_to_undo_in_a_refusal_or_in_nothing(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    refused = state_file.command("requeue", "a")
    state_file.send(refused)
    assert "nothing to undo" in state_file.act("undo", command=refused["id"])["message"]
    assert "no such act" in state_file.act("undo", command="ghost")["message"]


# --- Preview -------------------------------------------------------------------------------------------------------


def test_a_preview_reports_exactly_what_the_act_then_does(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": "a", "d": "a b", "done": "c", "ready": "s", "s": ""})
    for name in "ab":
        state_file.set_state(name, "FAILED")
        state_file.write(lambda j, name=name: propagation.propagate(j, RUN, name))
    state_file.set_state("s", "SUCCESS")
    state_file.set_state("ready", "READY")
    state_file.set_state("done", "SUCCESS")
    before = table(state_file)
    command = state_file.command("requeue", "a", "s")
    shown = preview_act(state_file.connection, {**command, "reason": ""}, START)
    assert table(state_file) == before
    assert shown["run_again"] == ["a", "s"] and shown["unblocked"] == ["c"]
    assert shown["stay_blocked"] == [["d", "b"]] and shown["stale"] == ["done"] and shown["held_back"] == ["ready"]
    answer = state_file.send(command)
    assert {key: shown[key] for key in answer} == answer
    assert state_file.states() == {
        "a": "PENDING",
        "b": "FAILED",
        "c": "PENDING",
        "d": "UPSTREAM_FAILED",
        "done": "SUCCESS",
        "ready": "PENDING",
        "s": "PENDING",
    }


def test_a_preview_reports_what_a_cancel_stops_and_what_a_skip_frees(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    shown = preview_act(state_file.connection, state_file.command("cancel", "a"), START)
    assert shown["cancelled"] == ["a"] and shown["stopped"] == ["b", "c"]
    state_file.act("cancel", "a")
    shown = preview_act(state_file.connection, state_file.command("skip", "a"), START)
    assert shown["skipped"] == ["a"] and shown["unblocked"] == ["b", "c"] and shown["stay_blocked"] == []


def test_a_preview_refuses_as_the_act_would_and_names_who_came_first(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("skip", "a", actor="ben@ops")
    state_file.act("requeue", "a")
    shown = preview_act(state_file.connection, command, START + SECOND)
    assert (
        shown["message"]
        == "a: already requeued by ana@ops 1s ago, now PENDING"
        == state_file_message(state_file, command)
    )


def state_file_message(state_file: StateFile, command: dict[str, Any]) -> str:
    state_file.now = START + SECOND
    return str(state_file.send(command)["message"])


def test_a_preview_of_an_undo_shows_what_would_come_back(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("cancel", "a")
    state_file.send(command)
    undo_it = state_file.command("undo", command=command["id"])
    shown = preview_act(state_file.connection, undo_it, START)
    assert shown["ok"] and {name for name, _, _ in shown["results"]} == {"a", "b", "c"}
    state_file.move("a", "PENDING")
    late = preview_act(state_file.connection, undo_it, START)
    assert not late["ok"] and late["message"] == "too late: a is PENDING now"


def test_a_preview_only_reads(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a")
    state_file.connection.execute("PRAGMA query_only = 1")
    assert preview_act(state_file.connection, command, START)["run_again"] == ["a"]


# --- Pages ---------------------------------------------------------------------------------------------------------


def open_page(state_file: StateFile, cause: str, task: str) -> None:
    state_file.connection.execute(
        "INSERT INTO page (cause, episode, run_id, task, severity, title, created_at, updated_at)"
        " VALUES (?, 1, ?, ?, 'normal', 'x', 0, 0)",
        (cause, RUN, task),
    )


def pages(state_file: StateFile) -> dict[str, tuple[str, Any, Any]]:
    rows = state_file.connection.execute("SELECT cause, state, acked_by, snoozed_until FROM page")
    return {cause: (state, by, until) for cause, state, by, until in rows}


def test_pages_are_acknowledged_by_cause_by_id_or_by_task(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    for cause, task in (("f1", "a"), ("f2", "b"), ("f3", "b"), ("f4", "b")):
        open_page(state_file, cause, task)
    assert state_file.act("ack", "a")["message"] == "1 acknowledged"
    assert state_file.act("ack", cause="f2")["ok"] and state_file.act("ack", pages=[3])["ok"]
    assert {cause: state for cause, (state, _, _) in pages(state_file).items()} == {
        "f1": "acked",
        "f2": "acked",
        "f3": "acked",
        "f4": "open",
    }
    assert pages(state_file)["f1"][1] == "ana@ops"
    assert not state_file.act("ack", cause="f1")["ok"]
    event = next(event for event in state_file.emitted if event.kind == EventKind.PAGE)
    assert (event.task, event.payload.what, event.actor) == ("a", "acked", "ana@ops")


def test_a_snooze_is_silence_until_an_instant(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    open_page(state_file, "f1", "a")
    assert state_file.act("snooze", "a", seconds=600)["ok"]
    assert pages(state_file)["f1"][::2] == ("snoozed", START + 600 * SECOND)


# --- The audit trail, and far hosts --------------------------------------------------------------------------------


def test_every_act_leaves_who_when_why_and_the_answer(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a", reset_count=False)
    answer = state_file.send(command)
    event = state_file.emitted[-1]
    assert (event.kind, event.actor, event.reason, event.command_id) == (
        EventKind.OPERATOR,
        "ana@ops",
        "the vendor has fixed it",
        command["id"],
    )
    assert (event.payload.act, event.payload.options, event.payload.answer) == (
        "requeue",
        {"reset_count": False},
        answer,
    )
    assert {emitted_before.command_id for emitted_before in state_file.emitted[1:]} == {command["id"]}


@pytest.mark.parametrize(
    "module", [action, transitions, operator_actions, dry_run, propagation, undo], ids=lambda m: m.__name__
)
def test_what_ssh_carries_is_python_3_6_and_standard_library(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= {"json", "sqlite3", "time", "typing", "collections"}
    annotations = {ast.dump(node) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    assert not any("Name(id='list'" in text or "Name(id='dict'" in text for text in annotations)
    assert not any(isinstance(node, ast.JoinedStr) and "=" in ast.unparse(node)[-3:] for node in ast.walk(tree))
