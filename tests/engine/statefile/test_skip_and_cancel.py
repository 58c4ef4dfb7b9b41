"""Skip, cancel, extend, hurry and pause."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.engine.domain.event_payloads import RunChange, RunChanged
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile import transitions

from ..store.conftest import RUN, SECOND, START, StateFile
from .act_helpers import CHAIN, results, sentence, table

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
    state_file.write(lambda j: transitions.propagate(j, RUN, "a"))
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


def test_a_pause_names_who_paused_and_why_and_happens_once(state_file: StateFile) -> None:
    by = 'ana@ops: "the vendor has fixed it"'
    state_file.create({"a": ""})
    assert state_file.act("pause")["ok"]
    assert (state_file.run_column("paused_since"), state_file.run_column("paused_by")) == (START, by)
    state_file.now += 3 * SECOND
    again = state_file.send(state_file.command("pause", actor="ben@ops"))
    assert not again["ok"] and again["message"] == f"already paused 3s ago by {by}"
    assert state_file.act("unpause")["ok"] and state_file.run_column("paused_since") is None
    assert not state_file.act("unpause")["ok"]


@pytest.mark.parametrize(
    ("held", "columns", "blocked_since"),
    [
        ("PENDING", {}, START),
        ("PENDING", {"next_retry_at": START}, None),
        ("READY", {}, None),
        ("RETRYING", {}, None),
        ("READY", {"spec": '{"kind":"approval"}', "started_at": START}, START),
        ("READY", {"spec": '{"kind":"approval"}'}, None),
    ],
)
def test_after_a_pause_a_run_stays_blocked_unless_the_pause_held_a_task(
    state_file: StateFile, held: str, columns: dict[str, int | str], blocked_since: int | None
) -> None:
    state_file.create({"dead": "", "held": "dead"})
    state_file.set_state("dead", "DEAD_LETTER")
    state_file.set_state("held", held, **columns)
    state_file.act("pause")
    blocked = RunChanged(RunChange.BLOCKED, {"blocked_since": START})
    state_file.write(lambda transaction: transaction.change_run(RUN, blocked))
    assert state_file.act("unpause")["ok"]
    assert state_file.run_column("blocked_since") == blocked_since


def test_a_late_unpause_leaves_the_duration_of_an_ended_run(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.act("pause")
    ended = RunChanged(RunChange.ENDED, {"state": "FAILED", "ended_at": START})
    state_file.write(lambda transaction: transaction.change_run(RUN, ended))
    state_file.now += 3 * SECOND
    assert state_file.act("unpause")["ok"]
    assert state_file.run_column("waited_us") == 0


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_cancel_of_several_tasks_is_the_same_in_any_order(state_file: StateFile, names: tuple[str, str]) -> None:
    state_file.create(CHAIN)
    assert results(state_file.act("cancel", *names)) == {"a": "done", "b": "done"}
    assert [state_file.states()[name] for name in names] == ["CANCELLED", "CANCELLED"]
