"""The rules around a list say how many of its rows are above and below the screen."""

from __future__ import annotations

import re

import pytest

from ..conftest import FakeSession
from ..model.runs import failed_task, projection_of
from .outages import outage
from .screen_driver import open_console, poisoned_run


@pytest.fixture
def chain():
    """Fifty tasks, one after the other: a list on every screen."""
    return FakeSession(projection_of([(f"step_{n:02}", [f"step_{n - 1:02}"] if n else []) for n in range(50)]))


async def test_a_list_counts_its_rows_below_and_above(chain, clock):
    async with open_console(chain, clock, "3", "g") as driver:
        rows = driver.app.screen.timeline.rows
        assert f"─ ▾ {50 - rows} more ──" in driver.text
        assert "▴" not in driver.text
        await driver.press(*["j"] * rows)
        assert "─ ▴ 1 more ──" in driver.lines[2]
        assert f"─ ▾ {49 - rows} more ──" in driver.text
        await driver.press("G")
        assert f"─ ▴ {50 - rows} more ──" in driver.lines[2]
        assert "─ ▾" not in driver.text
        await driver.press("g")
        driver.app.screen.timeline.scroll_rows(3)  # as the wheel does
        await driver.settle()
        assert "─ ▴ 3 more ──" in driver.lines[2]


@pytest.mark.parametrize(("view", "hidden"), [("2", (", ◆2", ", ◆1")), ("3", ("", ", ◆3"))])
async def test_a_list_says_that_dead_letters_are_below_and_above(view, hidden, clock):
    """The timeline begins with what has started."""
    session = FakeSession(projection_of([(f"step_{n:02}", []) for n in range(50)]))
    for name in ("step_01", "step_47", "step_48"):
        failed_task(session.projection, name)
    failed_task(session.projection, "step_46", "FAILED")
    async with open_console(session, clock, view, "equals_sign", "equals_sign", "g") as driver:
        (below,) = re.findall(r"─ ▾ \d+ more(.*?) ──", driver.text)
        await driver.press("G")
        (above,) = re.findall(r"─ ▴ \d+ more(.*?) ──", driver.text)
        assert (below, above) == hidden


async def test_a_list_below_a_drawing_counts_on_the_rule_between(chain, clock):
    chain.projection.parents["step_30"] = ()  # two chains are drawn
    async with open_console(chain, clock, "2", "G", size=(120, 40)) as driver:
        screen = driver.app.screen
        hidden = screen.graph_view.hidden_rows[0]
        assert hidden > 0
        assert f"─ ▴ {hidden} more ──" in driver.lines[screen.map_rule.region.y]
        assert "more" not in driver.lines[2]


async def test_a_rule_that_is_shown_before_a_layout_counts_again_after_it(clock):
    """The list becomes longer, and the lines below it become fewer: for a moment some rows have no room."""
    async with open_console(outage(clock), clock, "7") as driver:
        screen = driver.app.screen
        for order in (screen.table.order[:-3], screen.table.order):
            screen.table.set_order(order)
            screen.show_row()
            screen.show_frame()  # as for another state of the executor
            await driver.settle()
            assert "more" not in driver.lines[screen.lower_rule.region.y]


@pytest.mark.parametrize("view", ["2", "4"])
async def test_every_list_and_its_details_say_what_is_hidden(view, clock):
    async with open_console(poisoned_run(clock), clock, view, "equals_sign", "g", size=(120, 24)) as driver:
        hidden = [
            one.hidden_rows[1] for one in driver.app.screen.query("LineView") if one.display and one.hidden_rows[1]
        ]
        assert hidden
        assert [count for count in hidden if f"▾ {count} more" not in driver.text] == []
        row = driver.lines[driver.app.screen.lower_rule.region.y]
        assert row.count("┴") == 1
        assert row.index("▾") < row.index("┴"), "counts fit beside the divider"


@pytest.mark.parametrize("is_on_group", [True, False])
async def test_an_open_group_counts_all_of_its_dead_letters_that_are_hidden(is_on_group, clock):
    session = FakeSession(projection_of([(f"load_{n:03}", []) for n in range(300)]))
    for n in range(200):
        failed_task(session.projection, f"load_{n:03}")
    async with open_console(session, clock, "2", "g", "l", *([] if is_on_group else ["j"])) as driver:
        view = driver.app.screen.graph_view
        assert (view.graph.on_group, view.graph.height) == (is_on_group, 301)
        assert f"▾ {301 - view.rows} more, ◆{201 - view.rows} ──" in driver.text
        await driver.press("G")
        assert f"▴ {301 - view.rows} more, ◆200 ──" in driver.text
