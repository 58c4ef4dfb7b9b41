"""Esc and q lead back to where one came from, through views and what lies over them, and leave at the top level."""

from __future__ import annotations

import pytest
from redrive.console.app.views import STOPS_MAX
from redrive.console.keys.actions import ScreenName
from redrive.console.model.inbox import InboxRow

from ..conftest import FakeSession, StillClock
from .screen_driver import ScreenDriver, open_console, poisoned_run


@pytest.fixture
def session(clock: StillClock) -> FakeSession:
    return poisoned_run(clock)


def place(driver: ScreenDriver) -> str:
    """The view in front, and behind a slash what lies over it."""
    over = "/".join(type(screen).__name__ for screen in driver.app.screen_stack[1:])
    return f"{driver.app.current_mode}/{over}".rstrip("/")


async def places_after(driver: ScreenDriver, *keys: str) -> list[str]:
    """The place after each key."""
    places = []
    for key in keys:
        await driver.press(key)
        places.append(place(driver))
    return places


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_the_log_leads_back_to_the_inbox_with_its_cursor_as_it_was(key, session, clock):
    async with open_console(session, clock, "4", "o") as driver:
        assert "Esc back to inbox" in driver.lines[-1], "the keys say where back is"
        await driver.press(key)
        assert driver.app.screen.table.cursor_key == InboxRow("c0ffee"), "the cause that it was opened from"
        assert "Esc" not in driver.lines[-1]
        await driver.press("l", "j", "j", "o")
        assert place(driver) == "log"
        await driver.press(key)
        assert place(driver) == "inbox"
        assert driver.app.screen.table.cursor_key == InboxRow("c0ffee", "load_part_0002")


async def test_the_log_leads_back_to_the_graph_and_the_graph_to_leaving(session, clock):
    async with open_console(session, clock, "n", "o", "escape") as driver:
        assert place(driver) == "graph"
        assert await places_after(driver, "escape") == ["graph"]
        # details are still there when the log that they led to is left
        assert await places_after(driver, "d", "o", "escape", "escape") == [
            "graph/DetailScreen", "log", "graph/DetailScreen", "graph",
        ]  # fmt: skip
        # the details of a log lead back to that log
        assert (await places_after(driver, "o", "d", "o", "escape"))[2:] == ["log", "graph"]
        # a search in the log is ended before one goes back
        assert (await places_after(driver, "o", "slash", "a", "enter", "escape"))[-1] == "log"
        assert driver.app.screen.filter_text == ""
        assert await places_after(driver, "escape") == ["graph"]
        # a view chosen by its key shows itself and not what lay over it
        assert (await places_after(driver, "d", "3", "2"))[-1] == "graph"
        # it is a top level
        assert (await places_after(driver, "4", "o", "3", "escape"))[-1] == "timeline"
        await driver.press("2")
        await driver.pilot.press("q")
        assert driver.app.return_code == 0


async def test_the_selection_comes_back_with_the_view(session, clock):
    async with open_console(session, clock, "4", "l", "j", "o", "i") as driver:
        assert "load_part_0001: " in "\n".join(driver.lines[-2:]), "why is answered in the log"
        driver.app.selected = "archive"
        await driver.press("escape")
        assert driver.app.selected == "load_part_0001"


async def test_evidence_is_still_there_when_the_log_that_it_led_to_is_left(session, clock):
    async with open_console(session, clock, "4", "l", "j", "enter", "o", "q") as driver:
        assert place(driver) == "inbox/DetailScreen"


@pytest.mark.long
async def test_a_filter_and_marks_stay_while_one_reads_a_log(session, clock):
    async with open_console(session, clock, "4", "slash", "u", "t", "f", "enter", "l", "j", "space", "o") as driver:
        await driver.press("escape")
        inbox = driver.app.screen
        assert (inbox.filter_text, len(inbox.table.marks)) == ("utf", 1)
        await driver.press("escape")
        assert (inbox.filter_text, len(inbox.table.marks)) == ("utf", 0)
        await driver.press("escape")
        assert (inbox.filter_text, place(driver)) == ("", "inbox")


async def test_a_run_chosen_from_the_list_leads_back_to_the_list(session, clock):
    async with open_console(session, clock, "1", "enter") as driver:
        assert place(driver) == "graph"
        assert await places_after(driver, "escape") == ["runs"]


@pytest.mark.long
async def test_the_latest_stops_alone_are_kept(session, clock):
    async with open_console(session, clock) as driver:
        for number in range(STOPS_MAX + 10):
            driver.app.selected = f"load_part_{number % 8:04}"
            driver.app.open_view((ScreenName.INBOX, ScreenName.GRAPH)[number % 2])
        assert driver.app.history[-1].selected == f"load_part_{(STOPS_MAX + 9) % 8:04}"
        assert [len(driver.app.history), driver.app.history[0].selected] == [STOPS_MAX, "load_part_0002"]
