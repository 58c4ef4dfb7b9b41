"""The keys on breakers, pages and quarantined rows: what each asks, and what it sends."""

from __future__ import annotations

import pytest

from ..conftest import StillClock
from .nights import at_the_console
from .outages import OutageSession, outage


@pytest.fixture
def night(clock: StillClock) -> OutageSession:
    """One breaker open, two pages open, three rows held."""
    return outage(clock)


def acts(session: OutageSession) -> list[tuple[str, dict[str, object]]]:
    return [(command.act, dict(command.options)) for command in session.commands]


async def test_a_probe_is_sent_at_once(night, clock):
    async with at_the_console(night, clock, "7", "b"):
        assert [("breaker", {"downstream": "rates-api", "how": "probe"})] == acts(night)


@pytest.mark.parametrize(("key", "how"), [("f", "open"), ("c", "close"), ("u", "disable")])
async def test_what_opens_or_closes_a_breaker_is_asked_first(night, clock, key, how):
    async with at_the_console(night, clock, "7", key) as hand:
        assert "rates-api" in hand.text and "Cancel" in hand.text
        assert [] == acts(night)
        await hand.press("escape")
        assert [] == acts(night)
        await hand.press(key)
        await hand.type("maintenance")
        await hand.press("enter")
        assert [("breaker", {"downstream": "rates-api", "how": how})] == acts(night)
        assert "maintenance" == night.commands[0].reason


async def test_the_same_key_twice_changes_nothing(night, clock):
    """A key that bounces, or a burst of a bad line, answers no question."""
    async with at_the_console(night, clock, "7", "f", "f"):
        assert [] == acts(night)


async def test_a_probe_of_a_breaker_that_lets_calls_through_is_refused_in_words(night, clock):
    async with at_the_console(night, clock, "7", "G", "g", "j", "j", "b") as hand:
        assert [] == acts(night)
        assert "nothing to probe" in hand.text


async def test_a_page_is_acknowledged_by_one_key(night, clock):
    async with at_the_console(night, clock, "7", "n", "a"):
        (act, options), *rest = acts(night)
        assert ("ack", []) == (act, rest)
        assert [night.lists["pages"][0]["id"]] == options["pages"]


async def test_a_page_is_snoozed_for_a_time_that_is_asked(night, clock):
    async with at_the_console(night, clock, "7", "n", "s") as hand:
        assert [] == acts(night)
        await hand.press("enter")
        (act, options) = acts(night)[0]
        assert "snooze" == act
        assert options["seconds"] > 0  # type: ignore[operator]


async def test_rows_are_requeued_as_the_group_that_was_seen(night, clock):
    async with at_the_console(night, clock, "7", "N", "r") as hand:
        assert "3" in hand.text and [] == acts(night)
        await hand.press("enter")
        assert [("requeue-rows", {"groups": [["import_customers", "c0ffee", 3]]})] == acts(night)


async def test_marked_rows_alone_are_discarded(night, clock):
    async with at_the_console(night, clock, "7", "N", "enter", "space", "space", "x") as hand:
        await hand.type("doubles")
        await hand.press("enter")
        (act, options) = acts(night)[0]
        assert "discard-rows" == act
        assert 2 == len(options["rows"])  # type: ignore[arg-type]
        assert "doubles" == night.commands[0].reason


async def test_rows_are_not_discarded_without_a_reason(night, clock):
    async with at_the_console(night, clock, "7", "N", "x") as hand:
        assert "Reason" in hand.text
        await hand.press("enter")
        assert [] == acts(night)


async def test_a_key_for_another_kind_of_row_says_for_which(night, clock):
    async with at_the_console(night, clock, "7", "n", "f") as hand:
        assert "that is for a breaker" in hand.text
        assert [] == acts(night)


async def test_the_tab_counts_what_wants_a_human(night, clock):
    async with at_the_console(night, clock, "2") as hand:
        assert "7 Systems ◆4" in hand.lines[1]


async def test_a_task_that_a_breaker_holds_leads_to_it(night, clock):
    async with at_the_console(night, clock, "2") as hand:
        hand.app.selected = "quote_CHF"
        await hand.press("7")
        assert "rates-api" in hand.lines[-5]
