"""Back and forth in a night: the screen shows what it showed then, nothing can be changed there, and now is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redrive.console.app import time_travel
from redrive.engine.domain.event_payloads import TaskMoved
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import LinkError, SnapshotNeeded
from redrive.engine.statefile.lists import Listing, Row
from redrive.engine.statefile.logs import AttemptText, LogChunk
from support.marks import parametrize_mostly_long

from ..conftest import (
    REVENUE,
    FakeSession,
    StillClock,
    emit_events,
    make_app,
    press,
    rest,
    revenue_events,
    rows_of,
    settle,
    shown,
    text_of,
    until,
)
from ..model.runs import START, EventBuilder, S, projection_of

BACK, ON, PROBLEM_BACK, PROBLEM_ON, FASTER, SLOWER = "[", "]", "{", "}", ">", "<"
EVERYWHERE = {"graph": "2", "timeline": "3", "inbox": "4", "journal": "6"}


class CountingSession(FakeSession):
    """A door that remembers how often the past was asked for; ``gate`` keeps it waiting."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def run_events(self, run_id: str, after: int, limit: int) -> list[Event]:
        self.asked += 1
        await self.gate.wait()
        return list(await super().run_events(run_id, after, limit))

    async def rows(self, listing: Listing[Row], **options: Any) -> Sequence[Row]:
        if listing.name != "journal":
            return await super().rows(listing, **options)
        before = options.get("before")
        rows = [listing.row._make(event) for event in self._emitted if before is None or event.seq < before]
        return rows[-options["limit"] :]


def created(builder: EventBuilder) -> Event:
    columns = {"dag_name": "revenue", "started_at": builder.at, "state": "RUNNING", "max_parallel": 4}
    data = {"what": "created", "tasks": len(REVENUE), "set": columns}
    return builder.event(EventKind.RUN, new="RUNNING", data=data)


def act(builder: EventBuilder, name: str = "clean_refunds") -> list[Event]:
    """Ana requeues a dead letter."""
    answer = {"ok": True, "message": "1 requeued", "results": [[name, "done", "runs again after attempt 2"]]}
    moved = builder.move(name, "PENDING", None, generation=1, ended_at=None, error=None)
    events = builder.event(EventKind.OPERATOR, actor="ana@ops-1", data={"act": "requeue", "answer": answer})
    assert isinstance(moved.payload, TaskMoved)
    return [moved._replace(payload=moved.payload._replace(act="requeue")), events]


@pytest.fixture
async def session(clock: StillClock) -> CountingSession:
    """The night of the pictures from its first event on; its last ones are an act of ana's, 44 s after the start."""
    projection = projection_of(REVENUE)
    projection.run = projection.run._replace(run_id="run-2026-04-25", dag_name="revenue")
    builder = EventBuilder(projection)
    events = [created(builder), *revenue_events(builder), *act(builder.after(3))]
    for event in events:
        projection.apply(event)
    session = CountingSession(projection)
    session.builder = builder
    session.emit(events)
    clock.now = builder.at + 60 * S
    return session


def header(app: Any) -> str:
    return rows_of(app)[0]


def row_of(app: Any, name: str) -> str:
    """The row of a task in the list, where two blanks follow its name; below the drawing, where a line does."""
    return next(row for row in rows_of(app) if f" {name}  " in row)


# --- Where one is ----------------------------------------------------------------------------------------------------


async def test_one_event_back_the_screen_is_as_it_was_before_it(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        now = text_of(app)
        assert "pending" in row_of(app, "clean_refunds")
        await press(app, pilot, BACK)
        assert "event 23 of 24" in header(app)
        await press(app, pilot, BACK)
        assert header(app).startswith(" ◂ 03:06:56 · event 21 of 24 · Esc: now ")
        assert "DEAD" in row_of(app, "clean_refunds") and "◆1" in rows_of(app)[1]
        assert set(rows_of(app)[2]) == {"═"}
        await press(app, pilot, "escape")
        assert text_of(app) == now


async def test_countdowns_and_ages_are_those_of_the_moment(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        assert "due" in row_of(app, "extract_payments")
        await press(app, pilot, BACK, BACK)
        assert "retry in 32s" in row_of(app, "extract_payments")
        assert "4s" in row_of(app, "clean_orders")
        await press(app, pilot, *[BACK] * 9)
        assert header(app).startswith(" ◂ 03:06:52 · event 12")
        assert "retry in  1s" in row_of(app, "clean_refunds")


@pytest.mark.long
async def test_steps_pass_over_progress_and_end_at_the_first_event_and_in_the_present(
    session: CountingSession, clock: StillClock
):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, *[BACK] * 40)
        assert "event 1 of 24" in header(app) and "0/10" in header(app)
        await press(app, pilot, *[ON] * 20)
        assert "event 21 of 24" in header(app)
        await press(app, pilot, ON, ON)
        assert "event 24 of 24" in header(app)
        await press(app, pilot, ON)
        assert "this is the present" in rows_of(app)[-1] and "◂" not in header(app)


async def test_the_line_of_keys_says_what_happened_and_how_to_go_on(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, BACK, BACK)
        assert "clean_refunds: needs a human" in rows_of(app)[-1]
        assert "[ ] step" in rows_of(app)[-1] and "{ } problem" in rows_of(app)[-1]


async def test_another_day_is_named(session: CountingSession, clock: StillClock):
    clock.now = START + 86_400 * S
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK)
        assert header(app).startswith(" ◂ 04-24 03:07:24 ")


async def test_every_view_goes_back_and_returns(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        for view, key in EVERYWHERE.items():
            await press(app, pilot, key)
            await rest(app, pilot)
            now = text_of(app)
            await press(app, pilot, BACK, BACK)
            assert header(app).startswith(" ◂ 03:06:56"), view
            await press(app, pilot, "escape")
            await rest(app, pilot)
            assert text_of(app) == now or view == "journal"  # its cursor stays at the event


@pytest.mark.long
async def test_who_goes_to_another_view_stays_in_the_past(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, BACK, "4")
        assert "1 dead letter" in text_of(app) and "◂" in header(app)
        await press(app, pilot, "3", "d")
        assert "◂" in header(app)
        await press(app, pilot, "escape")
        assert "◂" not in header(app) and app.screen.PLACE.value == "detail"


async def test_the_list_of_runs_has_no_past_and_says_so(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, "1")
        assert "◂" in header(app) and "the other runs are those of now" in rows_of(app)[-1]
        assert "step" not in rows_of(app)[-1]


async def test_escape_and_q_lead_to_the_present_before_anything_else(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "slash", "c", "l", "enter", BACK, "escape")
        assert app.screen.filter_text == "cl" and not app.live.is_past
        await press(app, pilot, BACK, "q")
        assert not app.live.is_past and app.is_running
        await press(app, pilot, "escape")
        assert app.screen.filter_text == ""


# --- Nothing is changed there ----------------------------------------------------------------------------------------


async def test_every_act_is_locked_and_says_why(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, BACK)
        for key in "rsxbpz":
            await press(app, pilot, "n", key)
            assert session.commands == [] and len(app.screen_stack) == 1
            assert "this is 03:06:56 and not now: Esc returns to the present" in rows_of(app)[-1]
        await press(app, pilot, "escape", "p")
        assert [command.act for command in session.commands] == ["pause"], "back in the present acts work again"


# --- The present goes on ---------------------------------------------------------------------------------------------


async def test_what_happens_meanwhile_is_taken_unseen(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, BACK)
        before = text_of(app)
        await emit_events(app, pilot, session, session.builder.after(70).succeed("clean_orders"))
        assert text_of(app) == before.replace("of 24", "of 25")
        await press(app, pilot, "escape")
        assert " ok " in row_of(app, "clean_orders")


@parametrize_mostly_long("view", ["graph", "timeline", "inbox"], quick=1)
async def test_the_present_is_that_of_a_console_that_never_left_it(
    view: str, session: CountingSession, clock: StillClock
):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, EVERYWHERE[view], PROBLEM_BACK, BACK, BACK)
        builder = session.builder
        later = [*builder.after(70).succeed("clean_orders", duration_us=90 * S), *builder.start("clean_refunds")]
        later += [*builder.fail("clean_refunds", "DEAD_LETTER"), *builder.start("extract_payments")]
        await emit_events(app, pilot, session, later)
        clock.now = builder.at + 5 * S
        await press(app, pilot, "escape", "2", "g", EVERYWHERE[view])
        await rest(app, pilot)
        visited, board = text_of(app), app.live.board
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, EVERYWHERE[view], "2", "g", EVERYWHERE[view])
        await rest(app, pilot)
        assert text_of(app) == visited
        assert app.live.board.projection == board.projection and app.live.board.problems == board.problems


async def test_what_has_happened_since_can_be_stepped_to(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK)
        await emit_events(app, pilot, session, session.builder.succeed("clean_orders"))
        await press(app, pilot, ON, ON)
        assert "event 25 of 25" in header(app) and " ok " in row_of(app, "clean_orders")


async def test_standing_still_in_the_past_paints_nothing(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, BACK)
        painted: list[Any] = []
        app.screen._compositor.update_widgets = lambda widgets: painted.extend(widgets)
        for _ in range(3):
            clock.now += S
            app.live._on_second()
            await pilot.pause()
        assert painted == []


async def test_another_picture_ends_the_visit(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK, BACK)
        session.break_off(SnapshotNeeded("read again"))
        while app.live.is_past:
            await pilot.pause(0.02)
        await settle(app, pilot)
        assert "◂" not in header(app)
        assert app.live.board.row("clean_refunds").state is TaskState.PENDING
        await press(app, pilot, BACK)
        assert "event 23 of 24" in header(app)


# --- Troubles, times, events -----------------------------------------------------------------------------------------


async def test_from_problem_to_problem_with_its_task_under_the_cursor(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        found = []
        for _ in range(4):
            await press(app, pilot, PROBLEM_BACK)
            found.append((app.time_travel.position.seq, app.selected))
        assert found == [
            (24, "clean_refunds"),
            (21, "extract_payments"),
            (20, "clean_refunds"),
            (12, "clean_refunds"),
        ]
        await press(app, pilot, PROBLEM_BACK)
        assert "no problem before this" in rows_of(app)[-1] and "event 12 " in header(app)
        await press(app, pilot, PROBLEM_ON)
        assert "event 20 " in header(app)
        await press(app, pilot, "(")  # to the first failure of the run
        assert (app.time_travel.position.seq, app.selected) == (12, "clean_refunds")


@pytest.mark.long
async def test_a_clock_time_is_typed_into_the_palette(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        for text in ("noon", "", "25:00"):
            await press(app, pilot, "@", *text, "enter")
            assert "is not a time" in text_of(app) and not app.live.is_past
            await press(app, pilot, "escape")
        await press(app, pilot, "@", *"03:06:50", "enter")
        assert header(app).startswith(" ◂ 03:06:50 · event 10 of 24")
        assert "1s" in row_of(app, "clean_refunds")
        await press(app, pilot, ":", *"at", "space", *"21", "enter")
        assert "event 21 of 24" in header(app)
        await press(app, pilot, "@", *"04:00", "enter")
        assert header(app).startswith(" ◂ 03:08:24 · event 24 of 24")  # the last event, and no later than now
        await press(app, pilot, "@", *"9999", "enter")
        assert not app.live.is_past and "this is the present" in rows_of(app)[-1]


async def test_a_row_of_the_journal_leads_to_its_moment_and_moments_to_their_rows(
    session: CountingSession, clock: StillClock
):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "6", *["k"] * 3, "@")
        assert "event 21 of 24" in header(app)
        await press(app, pilot, BACK)
        assert app.screen.table.cursor_key == 20 and app.selected == "clean_refunds"
        await press(app, pilot, "2", BACK, BACK, "6")
        assert app.screen.table.cursor_key == 18


async def test_the_journal_reads_back_to_a_moment_that_it_does_not_hold(session: CountingSession, clock: StillClock):
    builder = session.builder
    later = [builder.after(1).event(EventKind.ATTEMPT_SWEPT, "clean_orders") for _ in range(700)]
    for event in later:
        session.projection.apply(event)
    session.emit(later)
    clock.now = builder.at
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "6")
        assert app.screen.journal.first > 500
        await press(app, pilot, PROBLEM_BACK)
        assert app.screen.table.cursor_key == 24
        assert "ana@ops-1" in text_of(app)


# --- Details ---------------------------------------------------------------------------------------------------------


async def test_the_details_of_a_running_attempt_do_not_report_how_it_ended(session: CountingSession, clock: StillClock):
    session.texts["clean_refunds", 1] = AttemptText(traceback="ZeroDivisionError: division by zero")
    row = session.projection.tasks["clean_refunds"].attempts[1]
    session.logs["clean_refunds", 1] = [LogChunk(1, row.started_at, "connecting\n"), LogChunk(2, row.ended_at, "bye\n")]
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "@", *"12", "enter", "n")
        app.selected = "clean_refunds"
        await press(app, pilot, "d")
        assert "division by zero" in text_of(app)
        await press(app, pilot, BACK, BACK)
        assert "running" in text_of(app) and "division" not in text_of(app)
        await until(app, pilot, lambda: "connecting" in text_of(app))
        assert "bye" not in text_of(app)
        await press(app, pilot, ON, ON)
        assert "division by zero" in text_of(app)


@pytest.mark.long
async def test_a_log_holds_only_what_was_written_by_then(session: CountingSession, clock: StillClock):
    """Back and forth; in the present all of it."""
    row = session.projection.tasks["clean_refunds"]
    began, ended = row.attempts[1].started_at, row.attempts[1].ended_at
    session.logs["clean_refunds", 1] = [LogChunk(1, began, "connecting\n"), LogChunk(2, ended, "division by zero\n")]
    async with shown(session, clock) as (app, pilot):
        app.selected = "clean_refunds"
        await press(app, pilot, "@", *"10", "enter", "5")
        await until(app, pilot, lambda: "connecting" in text_of(app))
        assert "division" not in text_of(app)
        app.time_travel.to_event(session.projection.seq - 2)
        app.screen.go_to_attempt(-1)
        await until(app, pilot, lambda: "division by zero" in text_of(app))
        app.time_travel.to_event(10)
        await until(app, pilot, lambda: "division" not in text_of(app) and "connecting" in text_of(app))
        await press(app, pilot, "escape")
        app.screen.go_to_attempt(-1)
        await until(app, pilot, lambda: "division by zero" in text_of(app))


@pytest.mark.long
async def test_bars_of_the_timeline_end_at_the_moment_and_rows_keep_their_places(
    session: CountingSession, clock: StillClock
):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "3")
        order, span = list(app.screen.timeline.order), app.screen.timeline.span
        bar = row_of(app, "clean_orders")
        await press(app, pilot, *[PROBLEM_BACK] * 3)
        assert list(app.screen.timeline.order) == order and app.screen.timeline.span == span
        assert 0 < row_of(app, "clean_orders").count("▆") < bar.count("▆")
        await press(app, pilot, *[BACK] * 8)
        assert row_of(app, "clean_orders").count("▆") == 0
        await press(app, pilot, "escape")
        assert row_of(app, "clean_orders") == bar


# --- Playing ---------------------------------------------------------------------------------------------------------


async def play_on(app: Any, pilot: Any, clock: StillClock, seconds: float) -> None:
    """Let time pass while the run is played, and wait for the frame that shows it."""
    clock.now += round(seconds * S)
    instant = app.live.now_us
    await until(app, pilot, lambda: app.live.now_us != instant)


async def test_the_run_is_played_from_here_until_it_is_the_present(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "@", *"12", "enter", FASTER, FASTER)
        assert header(app).startswith(" ▸ 03:06:5") and "×10" in header(app)
        seen = set()
        while app.live.is_past:
            seen.add(app.time_travel.position.seq)
            await play_on(app, pilot, clock, seconds=0.5)
        assert len(seen) > 1
        assert "this is the present" in rows_of(app)[-1]


async def test_played_countdowns_count(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "@", *"21", "enter", FASTER, FASTER)
        assert "×10" in header(app) and "retry in 32s" in text_of(app)
        clock.now += 1 * S
        await until(app, pilot, lambda: "retry in 22s" in text_of(app))
        await press(app, pilot, SLOWER)
        assert "×1 " in header(app)
        await press(app, pilot, SLOWER)
        assert " ◂ 03:0" in header(app) and app.time_travel._timer is None
        await press(app, pilot, SLOWER)
        assert app.live.is_past and "playback stopped" in rows_of(app)[-1]


async def test_from_the_present_it_is_played_from_the_beginning(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, FASTER, FASTER)
        assert "×10" in header(app) and app.time_travel.position.seq < 10
        await press(app, pilot, "escape")
        assert not app.live.is_past and app.time_travel._timer is None
        await press(app, pilot, "@", *"21", "enter", FASTER, BACK)  # a step ends the playing
        assert " ◂ 03:06:56 · event 20 " in header(app) and app.time_travel._timer is None


async def test_faster_is_counted_while_the_past_is_being_read(session: CountingSession, clock: StillClock):
    session.gate.clear()
    async with shown(session, clock) as (app, pilot):
        await pilot.press(FASTER, FASTER, FASTER)
        session.gate.set()
        await until(app, pilot, lambda: "×60" in header(app))
        await press(app, pilot, "escape", SLOWER)
        assert "this is the present" in rows_of(app)[-1]


async def test_a_long_silence_is_cut_short(session: CountingSession, clock: StillClock):
    builder = session.builder
    late = builder.after(7200).succeed("clean_orders")
    session.projection.apply(late[0])
    session.emit(late)
    clock.now = builder.at + 10 * S
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "@", *"24", "enter", FASTER)
        await until(app, pilot, lambda: header(app).startswith(" ▸ 05:07:23"))
        await play_on(app, pilot, clock, seconds=1)
        assert not app.live.is_past


# --- What can be in the way ------------------------------------------------------------------------------------------


async def test_presses_while_the_past_is_being_read_lead_to_one_moment(session: CountingSession, clock: StillClock):
    session.gate.clear()
    async with shown(session, clock) as (app, pilot):
        await pilot.press(BACK, BACK, BACK)
        await pilot.pause()
        assert not app.live.is_past
        session.gate.set()
        await settle(app, pilot)
        assert "event 20 of 24" in header(app)
        assert session.asked == 2  # the night, and the stretch


async def test_who_leaves_while_the_past_is_being_read_stays_in_the_present(
    session: CountingSession, clock: StillClock
):
    session.gate.clear()
    async with shown(session, clock) as (app, pilot):
        await pilot.press(BACK, "escape")
        await pilot.pause()
        session.gate.set()
        await settle(app, pilot)
        assert not app.live.is_past
        await press(app, pilot, BACK)
        assert "event 23 of 24" in header(app)


@pytest.mark.long
async def test_stretches_that_were_examined_are_not_read_again(session: CountingSession, clock: StillClock):
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, ON)
        assert "this is the present" in rows_of(app)[-1]
        assert session.asked == 0
        session.error = LinkError("no answer from far for 30 s")
        await press(app, pilot, BACK)
        assert "no answer from far" in rows_of(app)[-1] and not app.live.is_past, "one stays where one is"
        session.error = None
        await press(app, pilot, BACK)
        assert "event 23 of 24" in header(app)
        asked = session.asked
        await press(app, pilot, BACK, BACK, ON, PROBLEM_BACK, "escape", BACK)
        assert session.asked == asked


async def test_a_run_whose_beginning_was_removed_says_so(session: CountingSession, clock: StillClock):
    del session._emitted[:5]
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK)
        assert "what happened before 04-24 03:06:40 was removed from the file" in text_of(app) and not app.live.is_past


async def test_a_run_of_which_nothing_is_left_says_so(session: CountingSession, clock: StillClock):
    session._emitted.clear()
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, BACK)
        assert "the file no longer has the events of this run" in rows_of(app)[-1] and not app.live.is_past


def test_speeds_are_reported_by_the_help_of_their_key():
    from redrive.console.keys.actions import BY_NAME

    assert all(str(speed) in BY_NAME["faster"].help for speed in time_travel.SPEEDS[1:])


@parametrize_mostly_long("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: f"{size[0]}x{size[1]}", quick=1)
@pytest.mark.parametrize("view", ["graph", "timeline"])
def test_picture_of_the_past(size, view, session: CountingSession, clock: StillClock, snap_compare):
    app = make_app(session, clock)

    async def prepare(pilot: Any) -> None:
        await settle(app, pilot)
        await press(app, pilot, EVERYWHERE[view], *[PROBLEM_BACK] * 2)
        app.console_screen.on_cursor_rest()  # what the task wrote is read now, not after a while
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=prepare)
