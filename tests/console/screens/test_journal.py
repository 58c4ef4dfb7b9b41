"""The journal: everything that happened, who did what, and how to do it again from a shell."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.engine.domain.event_codec import encode, listed_event
from redrive.engine.domain.events import Event, EventKind, EventRow
from redrive.engine.errors import LinkError
from support.marks import parametrize_mostly_long

from ..conftest import REVENUE, FakeSession, make_app, revenue_events
from ..model.runs import START, EventBuilder, S, projection_of
from .screen_driver import open_console, pressing


class Door(FakeSession):
    """A door to a journal that is read in windows; ``asked`` are the options of each reading."""

    asked: list[Any]
    stored: list[EventRow]

    async def rows(self, listing, **options):
        if listing.name != "journal":
            return await super().rows(listing, **options)
        self._raise()
        if not options.get("acts"):  # the header reads the acts for the progress of a redrive
            self.asked.append(options)
        before = options.get("before")
        rows = [row for row in self.stored if before is None or row.seq < before]
        return rows[-options["limit"] :]


def row_of(event: Event) -> EventRow:
    return EventRow(*event[:-1], json.dumps(encode(event.payload)))


def act(builder, name="clean_refunds", what="requeue", reason="the table is mended", **options):
    """An operator's act, as the engine records it."""
    answer = {"ok": True, "message": f"1 {what}d", "results": [[name, "done", "runs again after attempt 2"]]}
    return builder.event(
        EventKind.OPERATOR,
        actor="ana@ops-1",
        reason=reason,
        command_id="c0ffee",
        data={"act": what, "options": options, "answer": answer},
    )


@pytest.fixture
def session(clock):
    projection = projection_of(REVENUE, deadline_at=START + 3 * 3600 * S)
    projection.run = projection.run._replace(run_id="run-2026-04-25", dag_name="revenue")
    builder = EventBuilder(projection)
    events = [builder.event(EventKind.RUN, new="RUNNING", data={"what": "created", "tasks": len(REVENUE)})]
    events += revenue_events(builder)
    events.append(act(builder.after(3)))
    for event in events:
        projection.apply(event)
    session = Door(projection)
    session.builder = builder
    session.stored = [row_of(event) for event in events]
    session.asked = []
    clock.now = builder.at
    return session


def shown(driver):
    """The rows of the list itself."""
    return driver.lines[4:-2]


def many(builder, count):
    """Rows of as many events, one a second."""
    return [row_of(builder.after(1).event(EventKind.CLOCK, data={"moved_us": n * S})) for n in range(count)]


async def test_the_newest_stands_at_the_end_with_who_and_why(session, clock):
    async with open_console(session, clock, "6", size=(110, 40)) as driver:
        assert driver.lines[3].startswith(" 23 events · 1 act · times since 03:06:40")
        last = [line for line in shown(driver) if line][-1]
        assert " ".join(last.split()) == ("+44s ▸ clean_refunds requeue: 1 requeued · ana@ops-1: the table is mended")
        assert "+16s ◆ clean_refunds" in driver.find("needs a human")
        assert "attempt 1 failed, again in 9s of 16s: ConnectTimeout" in driver.text


async def test_what_happens_is_followed_while_the_end_is_in_view(session, clock):
    async with open_console(session, clock, "6") as driver:
        await driver.emit(
            session, session.builder.after(9).event(EventKind.RUN, data={"what": "paused"}, actor="bob@pi")
        )
        assert shown(driver)[-1].split() == ["+53s", "·", "run", "paused:", "nothing", "new", "starts", "·", "bob@pi"]
        assert "following" in driver.lines[3]
        await driver.press("k")
        before = shown(driver)
        await driver.emit(session, session.builder.move("notify", "SKIPPED"))
        assert shown(driver) == before, "who reads further up is left in peace"
        assert "25 events" in driver.lines[3] and "following" not in driver.lines[3]
        await driver.press("G")
        assert "notify" in shown(driver)[-1]
        await driver.press("2")
        await driver.emit(session, session.builder.move("load_dashboard", "SKIPPED"))
        await driver.press("6")
        assert "load_dashboard" in shown(driver)[-1], "what happened behind another screen is there as well"


async def test_t_changes_between_the_time_since_the_start_and_the_clock(session, clock):
    async with open_console(session, clock, "6", "t") as driver:
        assert shown(driver)[-1].startswith(" 03:07:24 ▸ clean_refunds")
        assert "times since" not in driver.lines[3]
        await driver.press("t")
        assert shown(driver)[-1].startswith("   +44s ▸ clean_refunds")


async def test_n_goes_to_what_somebody_did_or_has_to_do(session, clock):
    async with open_console(session, clock, "6", "g", "n") as driver:
        table = driver.app.screen.table
        assert table.cursor_key == 20
        await driver.press("n")
        assert table.cursor_key == 23
        await driver.press("N")
        assert table.cursor_key == 20
        await driver.press("slash")
        await driver.type("nothing like it")
        assert "nothing matches /nothing like it; Esc shows all" in driver.text
        await driver.press("escape")
        assert "23 events · 1 act" in driver.lines[3]


async def test_earlier_events_are_read_when_they_are_scrolled_to(session, clock):
    session.stored += many(session.builder, 1_000)
    async with open_console(session, clock, "6") as driver:
        assert len(session.asked) == 1
        assert "200+ events" in driver.lines[3]
        await driver.press("g")
        assert [asked["before"] for asked in session.asked] == [None, 824]
        assert "400+ events" in driver.lines[3]
        cursor = driver.app.screen.table.cursor_key
        assert cursor == 824
        for _ in range(5):
            await driver.press("g")
        assert "1,023 events" in driver.lines[3]
        assert "run began: 10 tasks" in shown(driver)[0]


async def test_too_many_are_let_go_at_the_end_and_come_back_there(session, clock, monkeypatch):
    monkeypatch.setattr("redrive.console.model.replay.EVENTS_MAX", 500)
    session.stored += many(session.builder, 1_000)
    async with open_console(session, clock, "6", "g", "g", "g") as driver:
        assert "500+ events" in driver.lines[3] and "300 newer ↓" in driver.lines[3]
        await driver.emit(session, session.builder.move("notify", "SKIPPED"))
        session.stored.append(row_of(session._emitted[-1]))
        assert "301 newer ↓" in driver.lines[3]
        await driver.press("G")
        assert "notify" in shown(driver)[-1]
        assert "newer" not in driver.lines[3]


@pytest.mark.long
async def test_the_filter_reads_back_until_the_screen_is_full(session, clock):
    session.stored += many(session.builder, 1_000)
    async with open_console(session, clock, "6", "slash") as driver:
        await driver.submit("clean_refunds !ready")
        assert "1,023 events" in driver.lines[3]
        assert "/clean_refunds !ready: 5" in driver.lines[3]
        assert len([line for line in shown(driver) if line]) == 5
        await driver.press("escape")
        assert "the clock moved" in shown(driver)[-1]


@pytest.mark.long
async def test_everything_about_an_act_is_a_key_away_and_y_copies_its_command_line(session, clock, monkeypatch):
    copied = []
    monkeypatch.setattr(ConsoleApp, "copy_to_clipboard", lambda app, text: copied.append(text))
    async with open_console(session, clock, "6", size=(110, 40)) as driver:
        for columns in (110, 120):
            await driver.pilot.resize_terminal(columns, 40)
            await driver.press("enter")
            assert "The same from a shell  y copies it" in driver.text
            assert "runs again after attempt 2" in driver.text
            assert "04-24 03:07:24.000000 UTC" in driver.text
            await driver.press("y", "escape")
            line = "redrive requeue local:revenue.db@run-2026-04-25 --reason 'the table is mended' --"
            assert copied.pop() == f"{line} clean_refunds"
            assert driver.app.screen.table.has_focus
        await driver.press("y", "k", "y")  # from the list, and the sentence of an event that is no act
        assert copied == [f"{line} clean_refunds", "clean_orders 41 of 100 done"]
        assert "sentence sent to the terminal's clipboard" in driver.lines[-1]


async def test_with_room_the_event_under_the_cursor_is_reported_beside_the_list(session, clock):
    async with open_console(session, clock, "6", size=(120, 40)) as driver:
        assert "Event 23" in driver.text
        await driver.press("slash")  # also after a filter
        await driver.submit("began")
        assert "Event 23" not in driver.text
        assert "run began: 10 tasks" in "\n".join(line[72:] for line in driver.lines)
        await driver.press("escape", "G")
        assert "Event 23" in driver.text
        await driver.press("g")
        assert "run began: 10 tasks" in "\n".join(line[72:] for line in driver.lines)
        await driver.visit("tab", driver.app.screen.beside)


async def test_enter_on_an_event_shows_what_was_recorded(session, clock):
    async with open_console(session, clock, "6", "k", "k", "enter", size=(120, 40)) as driver:
        assert "RUNNING → RETRYING" in driver.text
        assert "extract_payments, attempt 1" in driver.text
        assert '"ceiling_us": 16000000' in driver.text
        assert "from a shell" not in driver.text


async def test_the_task_of_the_row_is_selected_everywhere(session, clock):
    async with open_console(session, clock, "6", "k", "k") as driver:
        assert driver.app.selected == "extract_payments"
        await driver.press("d")
        assert "ConnectTimeout" in driver.text
        await driver.press("escape", "o")
        assert driver.lines[3].startswith(" extract_payments  #1")


async def test_a_session_that_fails_says_so(session, clock):
    async with open_console(session, clock) as driver:
        session.error = LinkError("the line is down")
        await driver.press("6")
        assert "the line is down" in driver.lines[-1]
        session.error = None
        await driver.press("2", "6")
        assert "23 events" in driver.lines[3]


async def test_other_runs_are_read_again(session, clock):
    async with open_console(session, clock, "6") as driver:
        session.projection.run = session.projection.run._replace(run_id="run-2")
        session.stored = [row._replace(run_id="run-2") for row in session.stored[:1]]
        driver.app.live.follow("run-2")
        await driver.settle()
        await driver.press("6")
        assert session.asked[-1]["run_id"] == "run-2"
        assert "1 events" not in driver.lines[3] and "1 event " in driver.lines[3]


async def test_reasons_and_names_cannot_do_anything(session, clock):
    hostile = "\x1b]0;pwned\x07[red]x[/red]\x9b2J\u202ey\n"
    session.stored.append(row_of(act(session.builder, name=hostile, reason=hostile)))
    async with open_console(session, clock, "6", "enter", size=(120, 40)) as driver:
        assert "[red]x[/red]" in driver.text
        assert not any(unfit in driver.text for unfit in "\x1b\x07\x9b\u202e")


async def test_a_second_repaints_nothing(session, clock, monkeypatch):
    async with open_console(session, clock, "6") as driver:
        painted = []
        for widget in (driver.app.screen.table, driver.app.screen.heading):
            monkeypatch.setattr(widget, "refresh", lambda *regions, **_: painted.append(regions))
        clock.now += S
        driver.app.tick(clock.now)
        assert painted == []


@pytest.mark.long
async def test_twenty_thousand_events_are_filtered_without_a_wait(session, clock):
    async with open_console(session, clock, "6") as driver:
        screen = driver.app.screen
        screen.journal.append(listed_event(row) for row in many(session.builder, 19_000))
        began = time.thread_time()
        screen.filter_changed("clean !ready")
        screen.filter_changed("")
        assert time.thread_time() - began < 10


# --- Pictures --------------------------------------------------------------------------------------------------------


@parametrize_mostly_long("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)), quick=1)
def test_picture(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "6", "k"))


def test_picture_of_an_act(session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=(80, 24), run_before=pressing(app, "6", "enter"))


async def test_m_leaves_failures_and_acts_and_shows_all_again(session, clock):
    async with open_console(session, clock, "6") as driver:
        every = [row for row in shown(driver) if row]
        await driver.press("m")
        left = [row for row in shown(driver) if row]
        assert 0 < len(left) < len(every) and "/is:problem" in driver.lines[3]
        assert all(any(word in row for word in ("failed", "needs a human", "ana@ops-1")) for row in left), left
        await driver.press("m")
        assert [row for row in shown(driver) if row] == every


async def test_tries_that_end_alike_are_one_row_until_enter(session, clock):
    builder = session.builder
    for _ in range(4):
        due = builder.after(30).at + 30 * S
        session.stored.append(row_of(builder.start("load_dashboard")[-1]))
        ended = builder.move("load_dashboard", "SENSING", {"outcome": "deferred", "ended_at": due}, next_retry_at=due)
        session.stored.append(row_of(ended))
    async with open_console(session, clock, "6") as driver:
        (row,) = [line for line in shown(driver) if "times in" in line]
        assert "◷ load_dashboard" in row and "▸ 4 times in 1m30: not there yet" in row
        await driver.press("enter")
        assert "in 1m30: " not in driver.text and driver.text.count("not there yet") > 2
        await driver.press("escape")
        assert driver.find("4 times in 1m30") == row
        await driver.press("m")
        assert "m everything" in driver.lines[-1]


async def test_the_reports_of_progress_of_an_attempt_are_one_row(session, clock):
    builder = session.builder
    for done in range(1, 5):
        data = {"set": {"progress_done": done, "progress_total": 9}}
        event = builder.after(1).event(EventKind.TASK_CHANGED, "load_dashboard", data=data)
        session.stored.append(row_of(event))
    async with open_console(session, clock, "6") as driver:
        (row,) = [line for line in shown(driver) if "of 9 done" in line]
        assert "▸ 4 reports in 3s: 4 of 9 done" in row
