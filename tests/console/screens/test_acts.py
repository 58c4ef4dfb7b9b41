"""Acts by key: what is sent, what is asked first, and that the screen changes only when the event comes back."""

from __future__ import annotations

import json
import re

import pytest
from msgspec import structs
from redrive.console.app.app import ConsoleApp
from redrive.console.keys.actions import VIEWS, footer_of
from redrive.console.model.session_status import Link
from redrive.console.text.pieces import line_of, plain
from redrive.console.widgets.dialog import Dialog
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.domain.acts import Answer, TargetResult
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.errors import LinkError

from ..conftest import FakeSession, StillClock, emit_events, press, rows_of, settle, shown, text_of
from ..model.runs import START, EventBuilder, S, failed_task, projection_of


def many_failed(count: int, done: int = 0) -> FakeSession:
    """A run of which ``count`` tasks are dead letters."""
    names = [f"load_{number:03}" for number in range(count)]
    projection = projection_of([*((name, []) for name in names), ("report", names)])
    for name in names:
        failed_task(projection, name)
    return FakeSession(projection)


async def test_one_dead_letter_is_requeued_at_once_as_it_was_seen(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r")
        (command,) = revenue.commands
        assert command.act == "requeue"
        assert command.targets == (("clean_refunds", "DEAD_LETTER", 0),)
        assert command.actor == "ana@ops-1"
        assert command.reason
        assert command.options["not_before"] > 0


async def test_what_may_have_happened_is_not_requeued_before_the_operator_was_told_where_to_check(
    revenue: FakeSession, clock: StillClock
):
    row = revenue.projection.tasks["clean_refunds"]
    row.dead_letter_kind = "indeterminate"
    row.spec = structs.replace(spec_of(row), effect=True, idempotent=False)
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r")
        assert isinstance(app.screen, Dialog)
        key = f"{revenue.projection.run.run_id}/clean_refunds/0"
        facts = " ".join(" ".join(plain(line_of(fact)) for fact in app.screen.question.facts).split())
        assert f"First look for the key {key} in the other system: clean_refunds may have happened." in facts
        await press(app, pilot, "enter")  # is on Cancel
        assert not revenue.commands
        await press(app, pilot, "r", "a")
        assert revenue.commands[-1].act == "requeue"


async def test_nothing_changes_on_the_screen_before_the_event_comes(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r")
        assert "DEAD     ZeroDivisionError" in text_of(app)
        await emit_events(
            app, pilot, revenue, revenue.builder.move("clean_refunds", "PENDING", failures=0, generation=1)
        )
        assert "DEAD     ZeroDivisionError" not in text_of(app)


async def test_the_footer_counts_the_grace_down_in_which_z_takes_the_requeue_back(
    revenue: FakeSession, clock: StillClock
):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r", "z")
        requeue, undo = revenue.commands
        assert undo.act == "undo"
        assert undo.options == {"command": requeue.id}
        await press(app, pilot, "r")
        assert revenue.commands[-1].id != requeue.id, "two acts have two ids"
        assert "clean_refunds requeued" in rows_of(app)[-1]
        assert "5s" in rows_of(app)[-1]
        clock.now += 3 * S
        app.tick(clock.now)
        await settle(app, pilot)
        assert "2s" in rows_of(app)[-1]
        clock.now += 3 * S
        app.tick(clock.now)
        revenue.lists["journal"] = []
        await press(app, pilot, "z")
        assert [command.act for command in revenue.commands] == ["requeue", "undo", "requeue"]


async def test_what_has_succeeded_is_asked_about_before_it_runs_again(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "g", "r")
        assert isinstance(app.screen, Dialog)
        assert [plain(line).split() for line in app.screen.question.preview] == [["✓", "extract_orders", "ok"]]
        assert revenue.commands == []
        await press(app, pilot, "a")
        assert revenue.commands[0].targets == (("extract_orders", "SUCCESS", 0),)


async def test_many_are_shown_as_a_list_and_cancel_is_the_answer_of_enter(clock: StillClock):
    session = many_failed(3)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "a", "r")
        assert isinstance(app.screen, Dialog)
        text = text_of(app)
        assert "Requeue 3 tasks" in text
        assert all(name in text for name in ("load_000", "load_001", "load_002"))
        assert "1 task may go on: report" in text
        await press(app, pilot, "enter")
        assert session.commands == []
        await press(app, pilot, "r", "r", "r")
        assert session.commands == [], "the key that asked is not the key that answers"
        await press(app, pilot, "a")
        assert len(session.commands) == 1


async def test_exactly_the_previewed_list_is_sent(clock: StillClock):
    session = many_failed(3)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "a", "r")
        builder = EventBuilder(session.projection)
        await emit_events(app, pilot, session, builder.move("load_001", "PENDING", generation=1))
        await press(app, pilot, "a")
        seen = {target[0]: target for target in session.commands[0].targets}
        assert seen["load_001"] == ("load_001", "DEAD_LETTER", 0)
        assert len(seen) == 3


async def test_many_failures_can_be_tried_on_one_of_them_first(clock: StillClock):
    session = many_failed(3)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "a", "r")
        assert "Or one first: the others follow when it has succeeded" in " ".join(text_of(app).split())
        await press(app, pilot, "o")
        (command,) = session.commands
        assert (command.act, len(command.targets), command.options["canary"]) == ("requeue", 3, True)
        assert command.options["rate_per_second"] > 0


async def test_a_skip_asks_for_what_a_child_cannot_do_without(clock: StillClock):
    projection = projection_of([("fetch", []), ("load", ["fetch"])], {"load": {"requires": ("fetch",)}})
    failed_task(projection, "fetch")
    session = FakeSession(projection)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "n", "s")
        assert "load requires the result of fetch" in text_of(app)
        await press(app, pilot, *"{]", "enter")
        assert "That is not JSON" in text_of(app) and session.commands == []
        await press(app, pilot, "backspace", "}", "enter", *"known", "enter")
        (command,) = session.commands
        assert (command.act, command.reason, command.options) == ("skip", "known", {"substitute": {}})


async def test_more_than_twenty_need_their_number_typed_and_are_spread(clock: StillClock):
    session = many_failed(25)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "a", "r", "enter")
        assert session.commands == []
        await press(app, pilot, "2", "5", "enter", "enter")
        assert session.commands == [], "Enter alone accepts nothing: Cancel is chosen"
        await press(app, pilot, "r", "2", "5", "tab", "backspace", "2", "a")
        assert len(session.commands[0].targets) == 25
        options = session.commands[0].options
        assert (options["rate_per_second"], options["not_before"]) == (2.0, 5)
        assert options["fingerprint"], "the journal shows one command for all"


async def test_the_canary_needs_one_key_from_the_number_field(clock: StillClock):
    session = many_failed(25)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "a", "r", "o")
        assert session.commands[0].options["canary"] is True
        assert session.commands[0].options["rate_per_second"] == 5


async def test_a_requeue_where_no_executor_can_be_started_promises_no_start(clock: StillClock):
    session = many_failed(1)
    session.set_status(executor=ExecutorState(stopped=True, pid=7, gone_at=START))
    async with shown(session, clock, (120, 30), state_path="/tmp/no such file.db") as (app, pilot):
        await press(app, pilot, "n", "r")
        await settle(app, pilot)
        assert "No executor starts here then" in text_of(app) and session.commands == []
        await press(app, pilot, "a")
        assert [command.act for command in session.commands] == ["requeue"]
        assert "starts in" not in text_of(app)


async def test_an_explanation_says_what_is_true_now_and_goes_with_its_screen(revenue: FakeSession, clock: StillClock):
    def lasts(app: ConsoleApp) -> list[str]:
        return re.findall(r"clean_refunds: needs a decision for (\w+)", text_of(app))

    async with shown(revenue, clock) as (app, pilot):
        app.screen.graph_view.select("clean_refunds")
        await press(app, pilot, "i")
        (before,) = lasts(app)
        clock.now += 60 * S
        app.tick(clock.now)
        await pilot.pause()
        assert lasts(app) and lasts(app) != [before]
        await press(app, pilot, "d", "escape")
        assert not lasts(app)
        await press(app, pilot, "i")
        assert lasts(app)
        await press(app, pilot, "escape")
        assert not lasts(app)


async def test_each_act_on_a_task_asks_what_it_needs_or_says_why_it_is_refused(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        select = app.screen.graph_view.select
        select("notify")
        await press(app, pilot, "r")
        assert "it has not run yet" in rows_of(app)[-1]
        await press(app, pilot, "g", "x")
        assert not isinstance(app.screen, Dialog)
        assert "a task in SUCCESS cannot be cancelled" in rows_of(app)[-1]
        select("clean_refunds")
        await press(app, pilot, "x")
        assert "SIGTERM" not in text_of(app), "no attempt of a dead letter runs"
        assert "What does not run now counts as cancelled" in text_of(app)
        await press(app, pilot, "escape", "s", "enter")
        assert "A reason is needed" in text_of(app)
        assert revenue.commands == []
        await press(app, pilot, *"late", "enter")
        skip = revenue.commands[-1]
        assert (skip.act, skip.reason) == ("skip", "late")
        select("clean_orders")
        await press(app, pilot, "x")
        assert "SIGTERM" in text_of(app)
        await press(app, pilot, *"hot", "enter")
        stop = revenue.commands[-1]
        assert (stop.act, stop.targets) == ("cancel", (("clean_orders", "RUNNING", 0),))
        select("extract_payments")
        await press(app, pilot, "b")
        assert [command.act for command in revenue.commands] == ["skip", "cancel", "hurry"]


async def test_p_pauses_and_then_goes_on(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "p")
        paused = revenue.builder.event("run", data={"what": "paused", "set": {"paused_since": clock.now}})
        await emit_events(app, pilot, revenue, paused)
        assert "paused" in rows_of(app)[0]
        await press(app, pilot, "p")
        assert [command.act for command in revenue.commands] == ["pause", "unpause"]


async def test_an_old_act_is_undone_after_a_question(revenue: FakeSession, clock: StillClock):
    was = {"clean_refunds": {"state": "DEAD_LETTER"}}
    revenue.lists["journal"] = [
        _act("one", "skip", was, clock.now - 3 * S),
        _act("two", "requeue", was, clock.now - 2 * S),
        _act("three", "undo", {}, clock.now - S, options={"command": "two"}),
    ]
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "4")
        assert "z undo…" in rows_of(app)[-1], "an act can be taken back"
        await press(app, pilot, "z")
        assert "skip by bob@ops-2 3s ago" in text_of(app)
        assert "clean_refunds" in text_of(app)
        await press(app, pilot, "a")
        assert revenue.commands[0].options == {"command": "one"}


async def test_an_act_after_which_a_task_below_has_started_is_too_late_to_undo(revenue: FakeSession, clock: StillClock):
    revenue.lists["journal"] = [_act("one", "approve", {"extract_orders": {"state": "READY"}}, START)]
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "z")
        assert "too late: what the last approve" in rows_of(app)[-1]


def _act(command_id: str, act: str, was: dict, at: int, options: dict | None = None) -> dict:
    data = {"act": act, "was": was, "options": options or {}, "answer": {"ok": True, "message": f"1 {act}"}}
    return {"kind": "operator", "at": at, "actor": "bob@ops-2", "command_id": command_id, "data": json.dumps(data)}


async def test_a_picture_that_may_be_old_locks_every_act_and_says_why(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):

        async def assert_locked(keys: str, why: str) -> None:
            await settle(app, pilot)
            for key in keys:
                await press(app, pilot, "n", key)
                assert not isinstance(app.screen, Dialog)
                assert why in rows_of(app)[-1]
            assert revenue.commands == []

        revenue.set_status(data_age_seconds=14.0)
        await assert_locked("rsxbpz", "stale 14s")
        revenue.set_status(data_age_seconds=0.0, executor=ExecutorState(alive=True, age_us=12 * S))
        await assert_locked("r", "executor silent for 12s")
        down = {"problem": "far does not answer", "retry_in_seconds": 3.0, "data_age_seconds": 4.0}
        revenue.set_status(link=Link.STALE, **down)
        await assert_locked("r", "reconnecting in 3s")


async def test_with_the_executor_gone_acts_still_work(revenue: FakeSession, clock: StillClock):
    revenue.set_status(executor=ExecutorState(gone_at=clock.now - 60 * S))
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r")
        assert len(revenue.commands) == 1


async def test_who_came_first_is_said(revenue: FakeSession, clock: StillClock):
    sentence = "already requeued by ana 3s ago, now RUNNING attempt 4"
    revenue.answer = lambda command: Answer(
        False, f"clean_refunds: {sentence}", (TargetResult("clean_refunds", "refused", sentence),)
    )
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r")
        assert sentence in rows_of(app)[-1]


async def test_of_many_what_was_refused_is_listed_task_by_task(clock: StillClock):
    session = many_failed(3)
    session.answer = lambda command: Answer(
        True,
        "1 requeued, 2 refused",
        (
            TargetResult("load_000", "done", "runs again"),
            TargetResult("load_001", "refused", "by ana"),
            TargetResult("load_002", "refused", "by bob"),
        ),
    )
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "a", "r", "a")
        text = text_of(app)
        assert "1 requeued, 2 refused" in text
        assert "by ana" in text
        assert "by bob" in text
        await press(app, pilot, "escape")
        assert list(app.screen.graph_view.marks) == ["load_001", "load_002"]


async def test_an_act_that_could_not_be_sent_is_said_in_one_sentence(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n")
        revenue.error = LinkError("the executor took the command but has not answered for 30 s")
        await press(app, pilot, "r")
        assert "has not answered" in rows_of(app)[-1]


async def test_a_read_only_console_sends_nothing(revenue: FakeSession, clock: StillClock):
    revenue.set_status(read_only="opened read-only")
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n", "r")
        assert "read-only" in rows_of(app)[-1] and revenue.commands == []


async def test_a_read_only_console_offers_no_acts(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (200, 40)) as (app, pilot):
        for view in "234":
            revenue.set_status(read_only=None)
            await press(app, pilot, view)
            acts = {action.label for action in footer_of(VIEWS[int(view) - 1]) if action.act}
            assert acts & offered(app)
            revenue.set_status(read_only="opened read-only")
            await settle(app, pilot)
            assert not acts & offered(app)
            assert rows_of(app)[-1].startswith(" opened read-only ")


def offered(app: ConsoleApp) -> set[str]:
    """The words of the key bar."""
    return {word for _, word in app.console_screen.hints()}


@pytest.mark.long
async def test_a_dialog_says_of_a_cut_off_task_what_the_row_says(revenue: FakeSession, clock: StillClock):
    revenue.set_status(executor=ExecutorState(gone_at=clock.now))
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        app.selected = "clean_orders"
        app.screen.graph_view.select("clean_orders")
        await press(app, pilot, "x")
        assert "Stop clean_orders" in text_of(app)
        assert "SIGTERM" not in text_of(app), "nobody is left to get it"
        await press(app, pilot, "escape", "r")
        assert "○ clean_orders" in text_of(app) and "cut off" in text_of(app)
        assert "● clean_orders" not in text_of(app)


async def test_what_follows_a_canary_is_not_listed_as_refused(clock: StillClock):
    session = many_failed(30)
    held = [TargetResult(f"load_{number:03}", "held", "follow when load_000 has succeeded") for number in range(1, 30)]
    message = "1 requeued; 29 follow when load_000 has succeeded"
    session.answer = lambda command: Answer(True, message, (TargetResult("load_000", "done", "requeued"), *held))
    async with shown(session, clock, (120, 40)) as (app, pilot):
        await press(app, pilot, "a", "r", "3", "0", "o")
        assert session.commands[0].options["canary"]
        assert len(app.screen_stack) == 1, "no list of refusals"
        assert message in rows_of(app)[-1] and "✗" not in rows_of(app)[-1]
