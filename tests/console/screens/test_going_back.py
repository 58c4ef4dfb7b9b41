"""Esc and q lead back to where one came from, through views and what lies over them, and leave at the top level."""

from __future__ import annotations

import pytest
from redrive.console.app.navigation import STOPS_MAX, NavigationHistory
from redrive.console.keys.actions import ScreenName
from redrive.console.model.inbox import InboxRow

from ..conftest import FakeSession, StillClock
from .nights import Hand, at_the_console, poisoned_night


@pytest.fixture
def night(clock: StillClock) -> FakeSession:
    return poisoned_night(clock)


def place(hand: Hand) -> str:
    """The view in front, and behind a slash what lies over it."""
    over = "/".join(type(screen).__name__ for screen in hand.app.screen_stack[1:])
    return f"{hand.app.current_mode}/{over}".rstrip("/")


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_the_log_leads_back_to_the_inbox_with_its_cursor_as_it_was(key, night, clock):
    async with at_the_console(night, clock, "4", "l", "j", "j", "o") as hand:
        assert place(hand) == "log"
        await hand.press(key)
        assert place(hand) == "inbox"
        assert hand.app.screen.table.cursor_key == InboxRow("c0ffee", "load_part_0002")


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_the_log_leads_back_to_the_cause_that_it_was_opened_from(key, night, clock):
    async with at_the_console(night, clock, "4", "o", key) as hand:
        assert hand.app.screen.table.cursor_key == InboxRow("c0ffee")


async def test_the_log_leads_back_to_the_graph_and_the_graph_to_leaving(night, clock):
    async with at_the_console(night, clock, "n", "o", "escape") as hand:
        assert place(hand) == "graph"
        await hand.press("escape")
        assert place(hand) == "graph"
        await hand.pilot.press("q")
        assert hand.app.return_code == 0


async def test_details_are_still_there_when_the_log_that_they_led_to_is_left(night, clock):
    async with at_the_console(night, clock, "n", "d", "o") as hand:
        assert place(hand) == "log"
        await hand.press("escape")
        assert place(hand) == "graph/DetailScreen"
        await hand.press("escape")
        assert place(hand) == "graph"


async def test_evidence_is_still_there_when_the_log_that_it_led_to_is_left(night, clock):
    async with at_the_console(night, clock, "4", "l", "j", "enter", "o", "q") as hand:
        assert place(hand) == "inbox/EvidenceScreen"


async def test_the_details_of_a_log_lead_back_to_that_log(night, clock):
    async with at_the_console(night, clock, "n", "o", "d", "o") as hand:
        assert place(hand) == "log"
        await hand.press("escape")
        assert place(hand) == "graph"


async def test_a_search_in_the_log_is_ended_before_one_goes_back(night, clock):
    async with at_the_console(night, clock, "n", "o", "slash", "a", "enter", "escape") as hand:
        assert place(hand) == "log"
        assert hand.app.screen.filter_text == ""
        await hand.press("escape")
        assert place(hand) == "graph"


async def test_a_filter_and_marks_stay_while_one_reads_a_log(night, clock):
    async with at_the_console(night, clock, "4", "slash", "u", "t", "f", "enter", "l", "j", "space", "o") as hand:
        await hand.press("escape")
        inbox = hand.app.screen
        assert (inbox.filter_text, inbox.table.marked_count) == ("utf", 1)
        await hand.press("escape")
        assert (inbox.filter_text, inbox.table.marked_count) == ("utf", 0)
        await hand.press("escape")
        assert (inbox.filter_text, place(hand)) == ("", "inbox")


async def test_a_view_chosen_by_its_key_is_a_top_level(night, clock):
    async with at_the_console(night, clock, "4", "o", "3", "escape") as hand:
        assert place(hand) == "timeline"


async def test_a_view_chosen_by_its_key_shows_itself_and_not_what_lay_over_it(night, clock):
    async with at_the_console(night, clock, "n", "d", "3", "2") as hand:
        assert place(hand) == "graph"


async def test_the_selection_comes_back_with_the_view(night, clock):
    async with at_the_console(night, clock, "4", "l", "j", "o") as hand:
        hand.app.selected = "archive"
        await hand.press("escape")
        assert hand.app.selected == "load_part_0001"


async def test_a_run_chosen_from_the_list_leads_back_to_the_list(night, clock):
    async with at_the_console(night, clock, "1", "enter") as hand:
        assert place(hand) == "graph"
        await hand.press("escape")
        assert place(hand) == "runs"


async def test_the_keys_say_where_back_is(night, clock):
    async with at_the_console(night, clock, "4", "o") as hand:
        assert "Esc back to inbox" in hand.lines[-1]
        await hand.press("escape")
        assert "Esc" not in hand.lines[-1]


async def test_why_is_answered_in_the_log(night, clock):
    async with at_the_console(night, clock, "4", "l", "j", "o", "i") as hand:
        assert "load_part_0001: " in "\n".join(hand.lines[-2:])


def test_a_trail_keeps_the_latest_stops_alone() -> None:
    trail = NavigationHistory()
    for number in range(STOPS_MAX + 10):
        trail.push(ScreenName.GRAPH, f"task_{number}")
    last = trail.last
    assert last is not None and last.selected == f"task_{STOPS_MAX + 9}"
    found = [trail.pop() for _ in range(STOPS_MAX)]
    assert found[-1] == (ScreenName.GRAPH, "task_10")
    assert trail.pop() is None
