"""The keys on breakers, pages and quarantined rows: what each asks, and what it sends."""

from __future__ import annotations

import pytest
from support.marks import parametrize_mostly_long

from ..conftest import StillClock
from .outages import OutageSession, outage
from .screen_driver import open_console


@pytest.fixture
def session(clock: StillClock) -> OutageSession:
    """One breaker open, two pages open, three rows held."""
    return outage(clock)


def acts(session: OutageSession) -> list[tuple[str, dict[str, object]]]:
    return [(command.act, dict(command.options)) for command in session.commands]


async def test_a_probe_is_sent_at_once(session, clock):
    async with open_console(session, clock, "7", "b"):
        assert [("breaker", {"downstream": "rates-api", "how": "probe"})] == acts(session)


@parametrize_mostly_long(("key", "how"), [("f", "open"), ("c", "close"), ("u", "disable")])
async def test_what_opens_or_closes_a_breaker_is_asked_first(session, clock, key, how):
    async with open_console(session, clock, "7", key) as driver:
        assert "rates-api" in driver.text and "Cancel" in driver.text
        assert [] == acts(session)
        await driver.press("escape")
        assert [] == acts(session)
        await driver.press(key)
        await driver.submit("maintenance")
        assert [("breaker", {"downstream": "rates-api", "how": how})] == acts(session)
        assert "maintenance" == session.commands[0].reason


@pytest.mark.long
async def test_the_same_key_twice_changes_nothing(session, clock):
    """A key that bounces, or a burst of a bad line, answers no question."""
    async with open_console(session, clock, "7", "f", "f"):
        assert [] == acts(session)


async def test_a_probe_of_a_breaker_that_lets_calls_through_is_refused_in_words(session, clock):
    async with open_console(session, clock, "7", "G", "g", "j", "j", "b") as driver:
        assert [] == acts(session)
        assert "nothing to probe" in driver.text


async def test_a_page_is_acknowledged_by_one_key(session, clock):
    async with open_console(session, clock, "7", "n", "a"):
        (act, options), *rest = acts(session)
        assert ("ack", []) == (act, rest)
        assert [session.lists["pages"][0]["id"]] == options["pages"]


async def test_a_page_is_snoozed_for_a_time_that_is_asked(session, clock):
    async with open_console(session, clock, "7", "n", "s") as driver:
        assert [] == acts(session)
        await driver.press("enter")
        (act, options) = acts(session)[0]
        assert "snooze" == act
        assert options["seconds"] > 0  # type: ignore[operator]


async def test_rows_are_requeued_as_the_group_that_was_seen(session, clock):
    async with open_console(session, clock, "7", "N", "r") as driver:
        assert "3" in driver.text and [] == acts(session)
        await driver.press("enter")
        assert [("requeue-rows", {"groups": [["import_customers", "c0ffee", 3]]})] == acts(session)


async def test_marked_rows_alone_are_discarded(session, clock):
    async with open_console(session, clock, "7", "N", "enter", "space", "space", "x") as driver:
        await driver.submit("doubles")
        (act, options) = acts(session)[0]
        assert "discard-rows" == act
        assert 2 == len(options["rows"])  # type: ignore[arg-type]
        assert "doubles" == session.commands[0].reason


async def test_rows_are_not_discarded_without_a_reason(session, clock):
    async with open_console(session, clock, "7", "N", "x") as driver:
        assert "Reason" in driver.text
        await driver.press("enter")
        assert [] == acts(session)


async def test_a_key_for_another_kind_of_row_says_for_which(session, clock):
    async with open_console(session, clock, "7", "n", "f") as driver:
        assert "select a breaker first" in driver.text
        assert [] == acts(session)


async def test_the_tab_counts_what_wants_a_human(session, clock):
    async with open_console(session, clock, "2") as driver:
        assert "7 Systems ◆3" in driver.lines[1]


async def test_a_task_that_a_breaker_holds_leads_to_it(session, clock):
    async with open_console(session, clock, "2") as driver:
        driver.app.selected = "quote_CHF"
        await driver.press("7")
        assert any(line.startswith(" rates-api ✗ open for") for line in driver.lines), "below the list"
