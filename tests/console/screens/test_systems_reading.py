"""Lists beside the run are read when events say so and at no other time; rows that nobody looks at are never read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from redrive.console.screens import downstreams as screen
from redrive.console.sessions.session import Link
from redrive.console.text.pieces import Line
from redrive.engine.domain.command import Answer, Command, TargetResult
from redrive.engine.domain.events import EventKind
from redrive.engine.errors import LinkError
from support.marks import parametrize_mostly_long

from ..conftest import StillClock
from ..model.runs import S
from .nights import Hand, at_the_console
from .outages import QUOTES, OutageSession, breaker_row, outage, row_of_breaker, row_of_group, row_of_page

MANY = 100_000


@pytest.fixture
def night(clock: StillClock) -> OutageSession:
    """One breaker open, two pages open, three rows held."""
    return outage(clock)


def asked(session: OutageSession) -> Counter[str]:
    """What was read since the last question."""
    found = Counter(what for what, _ in session.asked)
    session.asked.clear()
    return found


def many(session: OutageSession) -> OutageSession:
    """More rows than anybody can look at."""
    session.rows = session.lists["quarantine_groups"][0]["rows"] = MANY
    session.lists["quarantine_groups"][0]["last_id"] = MANY
    return session


async def seconds(hand: Hand, clock: StillClock, count: int) -> None:
    for _ in range(count):
        clock.now += S
        hand.app.tick(clock.now)
    await hand.settle()


# --- When lists are read ---------------------------------------------------------------------------------------------


async def test_a_screen_that_is_not_seen_reads_nothing(night, clock):
    async with at_the_console(night, clock) as hand:
        asked(night)
        await hand.tell(night, night.story.tell(EventKind.BREAKER, data={"downstream": "mail", "state": "OPEN"}))
        assert Counter() == asked(night)
        await hand.press("7")
        assert Counter(breakers=1, page_heads=1, quarantine_groups=1) == asked(night)


async def test_seconds_that_pass_tick_countdowns_and_ask_nobody(night, clock):
    async with at_the_console(night, clock, "7") as hand:
        asked(night)
        assert "probe 7s" in hand.find("rates-api") and "snoozed 59m00" in hand.text
        await seconds(hand, clock, 2)
        assert "probe 5s" in hand.find("rates-api") and "snoozed 58m58" in hand.text
        await seconds(hand, clock, 40)
        assert "probe due" in hand.find("rates-api")
        assert "none" in hand.find("rates-api"), "what failed has left the window"
        assert Counter() == asked(night)


@pytest.mark.parametrize(
    ("kind", "read"),
    [(EventKind.BREAKER, "breakers"), (EventKind.PAGE, "page_heads"), (EventKind.QUARANTINE, "quarantine_groups")],
)
async def test_an_event_reads_its_own_list_once_however_many_come(night, clock, kind, read):
    async with at_the_console(night, clock, "7") as hand:
        asked(night)
        await hand.tell(night, [night.story.tell(kind, "settle", data={"what": "folded"}) for _ in range(500)])
        assert Counter({read: 1}) == asked(night)


async def test_what_a_call_has_counted_is_read_when_the_file_has_it(night, clock, monkeypatch):
    monkeypatch.setattr(screen, "CALL_COUNT_SECONDS", 0.3)
    async with at_the_console(night, clock, "7") as hand:
        asked(night)
        await hand.tell(night, night.story.start("fetch_orders"))
        assert Counter() == asked(night), "it calls nobody"
        night.lists["breakers"][1]["tokens"] = 2.0
        await hand.tell(night, night.story.start("fetch_payments"))
        assert Counter(breakers=1) == asked(night)
        assert hand.find("payments-api").rstrip().endswith("2")


async def test_a_door_that_fails_keeps_the_picture_and_is_asked_again_by_the_next_event(night, clock):
    async with at_the_console(night, clock, "7") as hand:
        night.error = LinkError("the line is down")
        await hand.tell(night, night.story.tell(EventKind.PAGE, "settle", data={"what": "folded"}))
        assert "poison on settle" in hand.text
        night.lists["page_heads"] = [row_of_page(9, "something new")]
        await hand.tell(night, night.story.tell(EventKind.QUARANTINE, "settle", data={"what": "held"}))
        assert "something new" in hand.text


async def test_who_is_held_follows_the_tasks_without_a_reading(night, clock):
    async with at_the_console(night, clock, "7") as hand:
        assert "holds 5" in hand.find("rates-api")
        asked(night)
        await hand.tell(night, night.story.move(QUOTES[4], "CANCELLED"))
        await seconds(hand, clock, 1)
        assert "holds 4" in hand.find("rates-api")
        assert 0 == asked(night)["quarantine_groups"]


async def test_a_breaker_that_closes_is_quiet_and_the_cursor_stays_on_its_row(night, clock):
    async with at_the_console(night, clock, "7") as hand:
        night.lists["breakers"][0] = row_of_breaker("rates-api", "CLOSED")
        await hand.tell(night, night.story.tell(EventKind.BREAKER, data={"downstream": "rates-api", "state": "CLOSED"}))
        assert "none of 3 open" in hand.find("Breakers")
        assert "rates-api ✓ closed" in hand.find("closed for")
        assert "7 Systems ◆3" in hand.lines[1]


# --- Rows that nobody could ever read ---------------------------------------------------------------------------------


async def test_of_a_hundred_thousand_rows_only_those_in_view_are_read(night, clock):
    async with at_the_console(many(night), clock, "7", "N", "enter") as hand:
        assert "c-00000" in hand.text and "1 of 100,000" in hand.text
        await hand.press("G")
        assert "c-99999" in hand.text and "100,000 of 100,000" in hand.text
        await hand.press("pageup", "g")
        windows = [options for what, options in night.asked if what == "quarantine_rows"]
        assert len(windows) <= 4
        assert 100 == max(options["limit"] for options in windows)


async def test_all_of_them_marked_are_the_group_up_to_the_row_that_was_seen(night, clock):
    async with at_the_console(many(night), clock, "7", "N", "enter", "a", "r") as hand:
        assert "Requeue 100,000 rows of import_customers" in hand.text
        assert "Type 100000 to go on" in hand.text
        await hand.press("enter")
        await hand.type("100000")
        await hand.press("enter")
        (command,) = night.commands
        assert {"groups": [["import_customers", "c0ffee", MANY]]} == command.options
        assert (("import_customers", "SUCCESS", 0),) == command.targets
        assert [{"skip": 0}] == [
            {"skip": options["skip"]} for what, options in night.asked if what == "quarantine_rows"
        ]


async def test_rows_that_are_dealt_with_are_seen_when_their_event_comes(night, clock):
    async with at_the_console(night, clock, "7", "N", "enter") as hand:
        assert "3 held" in hand.text
        night.lists["quarantine_groups"] = [
            row_of_group("import_customers", "held", 2, "KeyError: 'country'"),
            row_of_group("import_customers", "requeued", 1, "KeyError: 'country'"),
        ]
        await hand.tell(night, night.story.tell(EventKind.QUARANTINE, "import_customers", data={"what": "requeued"}))
        assert "2 held, 1 requeued" in hand.text


async def test_enter_on_a_row_reads_all_of_it(night, clock):
    async with at_the_console(night, clock, "7", "N", "enter", "j", "enter") as hand:
        assert "Row c-00001" in hand.text and "what it held" in hand.text
        assert ("quarantine", {"run_id": "night-7", "task": "import_customers", "after": 1, "limit": 1}) in night.asked


async def test_the_answer_says_how_many_rows_run_again(night, clock):
    def answer(command: Command) -> Answer:
        return Answer(True, "1 requeued", (TargetResult("import_customers", "done", "runs again over 2 of its rows"),))

    night.answer = answer
    async with at_the_console(night, clock, "7", "N", "r", "enter") as hand:
        assert "import_customers runs again over 2 of its rows" in hand.lines[-1]


# --- When nothing may be done -----------------------------------------------------------------------------------------

LOCKS: list[tuple[dict[str, Any], str]] = [
    ({"link": Link.STALE, "data_age_seconds": 14.0}, "stale 14s"),
    ({"read_only": "opened read-only"}, "read-only: opened read-only"),
]


@pytest.mark.parametrize(("status", "said"), LOCKS)
@parametrize_mostly_long("keys", [("b",), ("f",), ("n", "a"), ("n", "s"), ("N", "r"), ("N", "x")], quick=2)
async def test_a_locked_console_says_why_at_every_key(night, clock, keys, status, said):
    night.become(**status)
    async with at_the_console(night, clock, "7", *keys) as hand:
        assert said in hand.lines[-1]
        assert [] == night.commands


async def test_without_an_executor_a_breaker_holds_nobody_and_cannot_be_set(night, clock):
    night.become(executor_alive=False, heartbeat_age_seconds=None, executor_gone_at=clock.now)
    async with at_the_console(night, clock, "7", "f") as hand:
        assert "no executor is alive to call rates-api" in hand.text
        assert [] == night.commands
        await hand.press("n", "a")
        assert ["ack"] == [command.act for command in night.commands]


async def test_what_has_just_come_under_the_cursor_is_not_acknowledged(night, clock):
    async with at_the_console(night, clock, "7", "n") as hand:
        night.lists["page_heads"] = night.lists["page_heads"][1:]
        await hand.tell(night, night.story.tell(EventKind.PAGE, "settle", data={"what": "resolved", "cause": "x"}))
        await hand.press("a")
        assert [] == night.commands
        assert "has just left" in hand.lines[-1]


# --- From elsewhere ---------------------------------------------------------------------------------------------------


async def test_why_says_which_key_shows_the_breaker(night, clock):
    async with at_the_console(night, clock, size=(120, 24)) as hand:
        hand.app.selected = QUOTES[3]
        await hand.press("i")
        assert "7 shows it" in hand.text
        hand.app.selected = "settle"
        await hand.press("i")
        assert "7 shows it" not in hand.text


def asked_about(hand: Hand) -> list[Line]:
    """What the question says before it is answered."""
    question = hand.app.screen.question
    return [question.title, *question.facts]


async def test_the_command_and_the_key_ask_the_same_question(night, clock):
    async with at_the_console(night, clock, "7", "f") as hand:
        by_key = asked_about(hand)
        await hand.press("escape", "2", "colon")
        await hand.type("reset breaker")
        await hand.press("enter", "enter", "j", "j", "enter")
        assert by_key == asked_about(hand)


async def test_texts_from_tasks_are_data(night, clock):
    hostile = "x\x1b[2J\x07\u202e[bold]"
    night.lists["page_heads"].append(row_of_page(7, hostile, severity=hostile, send_error=f"{hostile}: {hostile}"))
    night.lists["quarantine_groups"].append(row_of_group("settle", "held", 1, hostile, fingerprint=hostile))
    night.lists["breakers"][0]["detail"]["why"] = hostile
    async with at_the_console(night, clock, "7", size=(120, 40)) as hand:
        for key in ("j", "j", "j", "j", "j", "j", "j", "j", "j"):
            assert not set(hand.text) & {"\x1b", "\x07", "\u202e"}
            await hand.press(key)


async def test_another_moment_shows_its_breakers_and_locks_the_keys(night, clock):
    async with at_the_console(night, clock, "7") as hand:
        live = hand.app.live
        moment = live.board.snapshot.with_projection(live.board.projection)
        live.board.update_lists([breaker_row("rates-api", "CLOSED")])
        asked(night)
        live.seek(moment, clock.now - 5 * S)
        await hand.settle()
        assert "open" in hand.find("rates-api") and "holds 5" in hand.find("rates-api")
        assert "2 unacknowledged then" in hand.find("Pages")
        assert "3 held then" in hand.find("Quarantined rows")
        assert Counter() == asked(night)
        live.seek_present()
        await hand.settle()
        assert "poison on settle" in hand.text
