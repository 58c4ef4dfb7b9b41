"""Lists beside the run are read when events say so and at no other time; rows that nobody looks at are never read."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from redrive.console.model.session_status import Link
from redrive.console.screens import systems as screen
from redrive.engine.domain.acts import Answer, Command, TargetResult
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.errors import LinkError
from redrive.engine.statefile.supervisor_file import NightSummary
from support.marks import parametrize_mostly_long

from ..conftest import StillClock
from ..model.runs import S
from .outages import QUOTES, OutageSession, breaker_row, outage, row_of_breaker, row_of_group, row_of_page
from .screen_driver import ScreenDriver, open_console

MANY = 100_000


@pytest.fixture
def session(clock: StillClock) -> OutageSession:
    """One breaker open, two pages open, three rows held."""
    return outage(clock)


def asked(session: OutageSession) -> Counter[str]:
    """What was read since the last question."""
    found = Counter(what for what, _ in session.asked)
    session.asked.clear()
    return found


def many(session: OutageSession) -> OutageSession:
    """More rows than anybody can look at."""
    session.row_count = session.lists["quarantine_groups"][0]["held"] = MANY
    session.lists["quarantine_groups"][0]["last_id"] = MANY
    return session


async def seconds(driver: ScreenDriver, clock: StillClock, count: int) -> None:
    for _ in range(count):
        clock.now += S
        driver.app.tick(clock.now)
    await driver.settle()


# --- When lists are read ---------------------------------------------------------------------------------------------


async def test_a_screen_that_is_not_seen_reads_nothing(session, clock):
    async with open_console(session, clock) as driver:
        asked(session)
        await driver.emit(
            session, session.builder.event(EventKind.BREAKER, data={"downstream": "mail", "state": "OPEN"})
        )
        assert Counter() == asked(session)
        await driver.press("7")
        assert Counter(breakers=1, page_heads=1, quarantine_groups=1, events_of_kind=1) == asked(session)


async def test_seconds_that_pass_tick_countdowns_and_ask_nobody(session, clock):
    async with open_console(session, clock, "7") as driver:
        asked(session)
        assert "probe 7s" in driver.find("rates-api") and "snoozed 59m00" in driver.text
        await seconds(driver, clock, 2)
        assert "probe 5s" in driver.find("rates-api") and "snoozed 58m58" in driver.text
        await seconds(driver, clock, 40)
        assert "probe due" in driver.find("rates-api")
        assert " no calls " in driver.find("rates-api"), "what failed has left the window"
        assert Counter() == asked(session)


@pytest.mark.parametrize(
    ("kind", "read"),
    [(EventKind.BREAKER, "breakers"), (EventKind.PAGE, "page_heads"), (EventKind.QUARANTINE, "quarantine_groups")],
)
async def test_an_event_reads_its_own_list_once_however_many_come(session, clock, kind, read):
    async with open_console(session, clock, "7") as driver:
        asked(session)
        await driver.emit(session, [session.builder.event(kind, "settle", data={"what": "folded"}) for _ in range(500)])
        assert Counter({read: 1}) == asked(session)


async def test_what_a_call_has_counted_is_read_when_the_file_has_it(session, clock, monkeypatch):
    monkeypatch.setattr(screen, "CALL_COUNT_SECONDS", 0.3)
    async with open_console(session, clock, "7") as driver:
        asked(session)
        await driver.emit(session, session.builder.start("fetch_orders"))
        assert Counter() == asked(session), "it calls nobody"
        session.lists["breakers"][1]["tokens"] = 2.0
        await driver.emit(session, session.builder.start("fetch_payments"))
        assert Counter(breakers=1) == asked(session)
        assert driver.find("payments-api").rstrip().endswith("2 left")


async def test_a_session_that_fails_keeps_the_picture_and_is_asked_again_by_the_next_event(session, clock):
    async with open_console(session, clock, "7") as driver:
        session.error = LinkError("the line is down")
        await driver.emit(session, session.builder.event(EventKind.PAGE, "settle", data={"what": "folded"}))
        assert "poison on settle" in driver.text
        session.error = None
        session.lists["page_heads"] = [row_of_page(9, "something new")]
        await driver.emit(session, session.builder.event(EventKind.QUARANTINE, "settle", data={"what": "held"}))
        assert "something new" in driver.text


async def test_who_is_held_follows_the_tasks_without_a_reading(session, clock):
    async with open_console(session, clock, "7") as driver:
        assert "holds 5" in driver.find("rates-api")
        asked(session)
        await driver.emit(session, session.builder.move(QUOTES[4], "CANCELLED"))
        await seconds(driver, clock, 1)
        assert "holds 4" in driver.find("rates-api")
        assert 0 == asked(session)["quarantine_groups"]


async def test_a_breaker_that_closes_is_quiet_and_the_cursor_stays_on_its_row(session, clock):
    async with open_console(session, clock, "7") as driver:
        session.lists["breakers"][0] = row_of_breaker("rates-api", "CLOSED")
        await driver.emit(
            session, session.builder.event(EventKind.BREAKER, data={"downstream": "rates-api", "state": "CLOSED"})
        )
        assert "none of 3 open" in driver.find("Breakers")
        assert "rates-api ✓ closed" in driver.find("closed for")
        assert "7 Systems ◆2" in driver.lines[1]


# --- Rows that nobody could ever read ---------------------------------------------------------------------------------


async def test_of_a_hundred_thousand_rows_only_those_in_view_are_read(session, clock):
    async with open_console(many(session), clock, "7", "N", "enter") as driver:
        assert "c-00000" in driver.text and "1 of 100,000" in driver.text
        await driver.press("G")
        assert "c-99999" in driver.text and "100,000 of 100,000" in driver.text
        await driver.press("pageup", "g")
        windows = [options for what, options in session.asked if what == "quarantine_rows"]
        assert len(windows) <= 4
        assert 100 == max(options["limit"] for options in windows)


async def test_all_of_them_marked_are_the_group_up_to_the_row_that_was_seen(session, clock):
    async with open_console(many(session), clock, "7", "N", "enter", "a", "r") as driver:
        assert "Requeue 100,000 rows of import_customers" in driver.text
        assert "Type 100000 to go on" in driver.text
        await driver.press("enter")
        await driver.submit("100000")
        (command,) = session.commands
        assert {"groups": [["import_customers", "c0ffee", MANY]]} == command.options
        assert (("import_customers", "SUCCESS", 0),) == command.targets
        assert [{"skip": 0}] * 2 == [  # those that the list names, and the first page
            {"skip": options["skip"]} for what, options in session.asked if what == "quarantine_rows"
        ]


async def test_rows_that_are_dealt_with_are_seen_when_their_event_comes(session, clock):
    async with open_console(session, clock, "7", "N", "enter") as driver:
        assert "3 held" in driver.text
        session.lists["quarantine_groups"] = [
            row_of_group("import_customers", "held", 2, "KeyError: 'country'", requeued=1),
        ]
        await driver.emit(
            session, session.builder.event(EventKind.QUARANTINE, "import_customers", data={"what": "requeued"})
        )
        assert "2 held, 1 requeued" in driver.text


async def test_enter_on_a_row_reads_all_of_it(session, clock):
    async with open_console(session, clock, "7", "N", "enter", "j", "enter") as driver:
        assert "Row c-00001" in driver.text and "what it held" in driver.text
        assert (
            "quarantine",
            {"run_id": "night-7", "task": "import_customers", "after": 1, "limit": 1},
        ) in session.asked


async def test_the_answer_says_how_many_rows_run_again(session, clock):
    def answer(command: Command) -> Answer:
        return Answer(True, "1 requeued", (TargetResult("import_customers", "done", "runs again over 2 of its rows"),))

    session.answer = answer
    async with open_console(session, clock, "7", "N", "r", "enter") as driver:
        assert "import_customers runs again over 2 of its rows" in driver.lines[-1]


# --- When nothing may be done -----------------------------------------------------------------------------------------

LOCKS: list[tuple[dict[str, Any], str]] = [
    ({"link": Link.STALE, "data_age_seconds": 14.0}, "stale 14s"),
    ({"read_only": "opened read-only"}, "opened read-only"),
]


@pytest.mark.parametrize(("status", "message"), LOCKS)
@parametrize_mostly_long("keys", [("b",), ("f",), ("n", "a"), ("n", "s"), ("N", "r"), ("N", "x")], quick=2)
async def test_a_locked_console_says_why_at_every_key(session, clock, keys, status, message):
    session.set_status(**status)
    async with open_console(session, clock, "7", *keys) as driver:
        assert message in driver.lines[-1]
        assert [] == session.commands


async def test_without_an_executor_a_breaker_holds_nobody_and_is_set_for_the_next_one(session, clock):
    session.set_status(executor=ExecutorState(gone_at=clock.now))
    async with open_console(session, clock, "7", "f") as driver:
        assert "Force open rates-api" in driver.text and "It holds" not in driver.text
        await driver.press(*"bank", "enter", "f", "escape", "n", "a")
        assert ["breaker", "ack"] == [command.act for command in session.commands]


async def test_what_has_just_come_under_the_cursor_is_not_acknowledged(session, clock):
    async with open_console(session, clock, "7", "n") as driver:
        session.lists["page_heads"] = session.lists["page_heads"][1:]
        await driver.emit(
            session, session.builder.event(EventKind.PAGE, "settle", data={"what": "resolved", "cause": "x"})
        )
        await driver.press("a")
        assert [] == session.commands
        assert "nothing was done: the cursor has just moved" in driver.lines[-1]


# --- From elsewhere ---------------------------------------------------------------------------------------------------


async def test_why_says_which_key_shows_the_breaker(session, clock):
    async with open_console(session, clock, size=(120, 24)) as driver:
        driver.app.selected = QUOTES[3]
        await driver.press("i")
        assert "7 shows it" in driver.text
        driver.app.selected = "settle"
        await driver.press("i")
        assert "7 shows it" not in driver.text


async def test_texts_from_tasks_are_data(session, clock):
    hostile = "x\x1b[2J\x07\u202e[bold]"
    session.lists["page_heads"].append(row_of_page(7, hostile, severity=hostile, send_error=f"{hostile}: {hostile}"))
    session.lists["quarantine_groups"].append(row_of_group("settle", "held", 1, hostile, fingerprint=hostile))
    session.lists["breakers"][0]["detail"]["why"] = hostile
    async with open_console(session, clock, "7", size=(120, 40)) as driver:
        for key in ("j", "j", "j", "j", "j", "j", "j", "j", "j"):
            assert not set(driver.text) & {"\x1b", "\x07", "\u202e"}
            await driver.press(key)


async def test_another_moment_shows_its_breakers_and_locks_the_keys(session, clock):
    async with open_console(session, clock, "7") as driver:
        live = driver.app.live
        moment = live.board.snapshot.with_projection(live.board.projection)
        live.board.update_lists([breaker_row("rates-api", "CLOSED")])
        asked(session)
        live.seek(moment, clock.now - 5 * S)
        await driver.settle()
        assert "open" in driver.find("rates-api") and "holds 5" in driver.find("rates-api")
        assert "2 unacknowledged then" in driver.find("Pages")
        assert "3 held then" in driver.find("Quarantined rows")
        assert Counter() == asked(session)
        live.seek_present()
        await driver.settle()
        assert "poison on settle" in driver.text


async def test_a_click_on_a_head_changes_nothing(session, clock):
    async with open_console(session, clock, "7") as driver:
        before = driver.app.screen.table.cursor_key
        await driver.pilot.click(driver.app.screen.table, offset=(5, 0))
        await driver.settle()
        assert driver.app.screen.table.cursor_key == before


@pytest.mark.parametrize(("left", "bar"), [(10.0, "█▏ +10 left"), (9.9, "░▏ +9 left")])
async def test_what_is_left_of_the_retries_is_named_and_a_full_bar_is_all_of_them(left, bar, session, clock):
    session.lists["breakers"][1]["tokens"] = left
    async with open_console(session, clock, "7", size=(200, 50)) as driver:
        assert re.search(bar, driver.find("payments-api"))


async def test_the_last_nights_stand_below_a_list_that_leaves_rows(session, clock):
    session.last_nights = [NightSummary("SUCCESS", 60 * S, f"2026-04-{day}") for day in (23, 24, 25)]
    async with open_console(session, clock, "7", size=(120, 40)) as driver:
        left = [line.partition("│")[0].strip() for line in driver.lines]
        below = left.index("Last nights  usually 1m00")
        assert left[below + 1].split()[:3] == ["Sat", "25", "Apr"] and not left[below - 1]
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        assert "Last nights" not in driver.text, "its rows are those of the details"
