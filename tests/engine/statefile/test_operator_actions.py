"""Acts of operators: each one whole or not at all, once however often it arrives, and told with who came first."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.domain.acts import Answer
from redrive.engine.domain.events import EventKind
from redrive.engine.statefile import action, dry_run, operator_actions, run_acts, task_acts, transitions, undo
from redrive.engine.statefile.dry_run import preview as preview_act
from support.marks import for_each

from ..store.conftest import RUN, SECOND, START, StateFile
from .act_helpers import CHAIN, ran, results, table

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


# --- Preview -------------------------------------------------------------------------------------------------------


def test_a_preview_reports_exactly_what_the_act_then_does(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": "a", "d": "a b", "done": "c", "ready": "s", "s": ""})
    for name in "ab":
        state_file.set_state(name, "FAILED")
        state_file.write(lambda j, name=name: transitions.propagate(j, RUN, name))
    state_file.set_state("s", "SUCCESS")
    state_file.set_state("ready", "READY")
    state_file.set_state("done", "SUCCESS")
    before = table(state_file)
    command = state_file.command("requeue", "a", "s")
    shown = preview_act(state_file.connection, {**command, "reason": ""}, START)
    assert table(state_file) == before
    assert shown.run_again == ["a", "s"] and shown.unblocked == ["c"]
    assert shown.stay_blocked == [("d", "b")] and shown.stale == ["done"] and shown.held_back == ["ready"]
    answer = state_file.send(command)
    assert Answer(shown.ok, shown.message, tuple(shown.results)).as_json() == answer
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
    assert shown.cancelled == ["a"] and shown.stopped == ["b", "c"]
    state_file.act("cancel", "a")
    shown = preview_act(state_file.connection, state_file.command("skip", "a"), START)
    assert shown.skipped == ["a"] and shown.unblocked == ["b", "c"] and shown.stay_blocked == []


def test_a_preview_refuses_as_the_act_would_and_names_who_came_first(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("skip", "a", actor="ben@ops")
    state_file.act("requeue", "a")
    shown = preview_act(state_file.connection, command, START + SECOND)
    assert (
        shown.message == "a: already requeued by ana@ops 1s ago, now PENDING" == state_file_message(state_file, command)
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
    assert shown.ok and {name for name, _, _ in shown.results} == {"a", "b", "c"}
    state_file.move("a", "PENDING")
    late = preview_act(state_file.connection, undo_it, START)
    assert not late.ok and late.message == "too late: a is PENDING now"


def test_a_preview_only_reads(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command("requeue", "a")
    state_file.connection.execute("PRAGMA query_only = 1")
    assert preview_act(state_file.connection, command, START).run_again == ["a"]


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


@for_each("module", [action, transitions, operator_actions, run_acts, task_acts, dry_run, undo])
def test_what_ssh_carries_is_python_3_6_and_standard_library(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= {"json", "sqlite3", "time", "typing", "collections", "functools"}
    annotations = {ast.dump(node) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    assert not any("Name(id='list'" in text or "Name(id='dict'" in text for text in annotations)
    assert not any(isinstance(node, ast.JoinedStr) and "=" in ast.unparse(node)[-3:] for node in ast.walk(tree))
