"""Undo: it restores exactly what an act changed, as far as nothing has happened since."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.engine.domain.event_payloads import RunChange, RunChanged
from redrive.engine.domain.states import TaskState
from redrive.engine.domain.text import format_clock
from redrive.engine.statefile import transitions
from redrive.engine.statefile.clock_steps import shift_times

from ..store.conftest import RUN, SECOND, START, StateFile
from .act_helpers import CHAIN, DIAMOND, ran, table


def act_on_dead_letter(state_file: StateFile, act: str) -> str:
    """Make the head of a chain a dead letter and act on it; the id of the command."""
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    command = state_file.command(act, "a")
    state_file.send(command)
    return str(command["id"])


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
        state_file.write(lambda j: transitions.propagate(j, RUN, "a"))
    elif state in ("FAILED", "CANCELLED", "UPSTREAM_FAILED"):
        cause = "root" if state == "UPSTREAM_FAILED" else "a"
        if cause == "root":
            state_file.set_state("root", "FAILED")
            state_file.set_state("a", "PENDING")
        state_file.write(lambda j: transitions.propagate(j, RUN, cause))
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
    command_id = act_on_dead_letter(state_file, "skip")
    after = table(state_file)
    back = state_file.command("undo", command=command_id)
    state_file.send(back)
    assert state_file.states()["a"] == "DEAD_LETTER"
    assert state_file.act("undo", command=back["id"])["ok"]
    assert table(state_file) == after


def test_after_an_act_that_was_taken_back_the_one_before_can_be(state_file: StateFile) -> None:
    state_file.create(CHAIN)
    state_file.set_state("a", "DEAD_LETTER")
    before = table(state_file)
    requeue = state_file.command("requeue", "a")
    state_file.send(requeue)
    cancel = state_file.command("cancel", "a")
    state_file.send(cancel)
    back = state_file.command("undo", command=cancel["id"])
    state_file.send(back)
    again = state_file.command("undo", command=back["id"])
    state_file.send(again)
    assert "a was cancelled" in state_file.act("undo", command=requeue["id"])["message"]
    assert state_file.act("undo", command=again["id"])["ok"]
    assert state_file.act("undo", command=requeue["id"])["ok"] and table(state_file) == before


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
    state_file.set_state("late", "DEAD_LETTER", expires_at=START + 900 * SECOND)  # with the deadline of the run
    skip_all = state_file.command("skip", "waits", "dead", "late")
    state_file.send(skip_all)
    state_file.write(lambda transaction: shift_times(transaction, [RUN], 3600 * SECOND))
    assert state_file.act("undo", command=skip_all["id"])["ok"]
    assert state_file.column("waits", "next_retry_at") == START + 3660 * SECOND
    assert state_file.column("dead", "expires_at") == START + 4200 * SECOND
    assert state_file.column("late", "expires_at") == state_file.run_column("deadline_at") == START + 4500 * SECOND


@pytest.mark.parametrize(("options", "then"), [({}, START + 3660 * SECOND), ({"is_time": True}, START + 60 * SECOND)])
def test_a_deadline_is_a_duration_unless_an_operator_gives_a_time_of_day(
    state_file: StateFile, options: dict[str, Any], then: int
) -> None:
    state_file.create({"a": ""})
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (START + 900 * SECOND,))
    postpone = state_file.command("postpone", seconds=60.0, **options)
    assert state_file.send(postpone)["ok"]
    state_file.write(lambda transaction: shift_times(transaction, [RUN], 3600 * SECOND))
    assert state_file.run_column("deadline_at") == then
    assert state_file.act("undo", command=postpone["id"])["ok"]
    assert state_file.run_column("deadline_at") == START + 4500 * SECOND
    changes = [event.payload for event in state_file.emitted if isinstance(event.payload, RunChanged)]
    assert changes[-1].why == f"the deadline is {format_clock(START + 4500 * SECOND)} again"


def test_a_pause_that_an_undo_restores_began_on_the_clock_of_now(state_file: StateFile) -> None:
    """Or it would be paged a day too late."""
    state_file.create({"a": ""})
    state_file.act("pause")
    since = state_file.run_column("paused_since")
    unpause = state_file.command("unpause")
    state_file.send(unpause)
    state_file.write(lambda transaction: shift_times(transaction, [RUN], -3600 * SECOND))
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
    command_id = act_on_dead_letter(state_file, "requeue")
    state_file.move("a", "READY")
    assert state_file.act("undo", command=command_id)["ok"]
    assert (state_file.states()["a"], state_file.column("a", "generation")) == ("DEAD_LETTER", 0)


def test_what_has_started_is_not_undone(state_file: StateFile) -> None:
    command_id = act_on_dead_letter(state_file, "requeue")
    state_file.move("a", "READY")
    state_file.claim("a")
    answer = state_file.act("undo", command=command_id)
    assert answer["message"] == "too late: a is running now" and state_file.states()["a"] == "RUNNING"


def test_a_skip_is_undone_until_a_child_has_started(state_file: StateFile) -> None:
    command_id = act_on_dead_letter(state_file, "skip")
    state_file.move("b", "READY")
    state_file.claim("b")
    answer = state_file.act("undo", command=command_id)
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
    command_id = act_on_dead_letter(state_file, "skip")
    state_file.move("b", "READY")
    assert state_file.act("undo", command=command_id)["ok"]
    assert state_file.claim("b") == 0 and state_file.states()["b"] == "PENDING"


def test_an_undo_leaves_alone_what_is_again_as_the_act_found_it(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"}, c={"rule": "all_done"})
    state_file.move("a", "SKIPPED", skip_cause="condition")
    state_file.move("b", "SKIPPED", skip_cause="cascade")
    state_file.move("c", "READY")
    command = state_file.command("requeue", "b")
    state_file.send(command)
    assert state_file.states() == {"a": "SKIPPED", "b": "SKIPPED", "c": "PENDING"}
    state_file.move("c", "READY")
    assert state_file.act("undo", command=command["id"])["ok"]
    assert state_file.states()["c"] == "READY"


def test_a_task_below_what_a_cancel_has_stopped_waits_again_after_the_undo(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"}, c={"rule": "all_done"})
    command = state_file.command("cancel", "a")
    state_file.send(command)
    state_file.move("c", "READY")  # a is CANCELLED, b UPSTREAM_FAILED
    assert state_file.act("undo", command=command["id"])["ok"]
    assert state_file.states() == {"a": "PENDING", "b": "PENDING", "c": "PENDING"}


def test_what_another_operator_touched_is_not_undone(state_file: StateFile) -> None:
    command_id = act_on_dead_letter(state_file, "requeue")
    state_file.send(state_file.command("skip", "a", actor="ben@ops"))
    state_file.now += 120 * SECOND
    answer = state_file.act("undo", command=command_id)
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
    assert ["b", "refused", "stays: it is running now"] in [list(result) for result in answer["results"]]
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
        state_file.write(lambda j, name=name: transitions.propagate(j, RUN, name))
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


def test_a_task_below_one_that_stays_requeued_stays_stale(state_file: StateFile) -> None:
    """``ran`` has moved since, so ``top`` stays requeued: ``runs`` has its old result all the same."""
    state_file.create({"top": "", "ran": "top", "runs": "top"})
    state_file.set_state("top", "SUCCESS")
    for name in ("ran", "runs"):
        state_file.move(name, "READY")
        state_file.claim(name)
    act = state_file.command("requeue", "top")
    state_file.send(act)
    state_file.move("ran", "SUCCESS")
    answer = state_file.act("undo", command=act["id"])
    assert not answer["ok"]
    assert (state_file.states()["top"], state_file.column("runs", "stale")) == ("PENDING", 1)
