"""On tall terminals free rows serve: lists open what fits, details show more of the log, charts grow."""

from __future__ import annotations

import pytest
from redrive.console.model.board import Board
from redrive.console.model.graph.view import Graph
from redrive.console.present.group import members_page
from redrive.console.present.tasks import RunContext
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock
from ..model.runs import START, S, projection_of, ran_task
from .outages import outage
from .screen_driver import open_console, poisoned_run
from .test_log import chunks_of

TALL = [(200, 55), (120, 60)]


@pytest.mark.long
async def test_the_inbox_opens_its_causes_if_all_tasks_fit(clock: StillClock) -> None:
    for size in TALL:
        async with open_console(poisoned_run(clock, 15), clock, "4", size=size) as driver:
            assert len(driver.app.screen.table.order) == 3 + 17
            assert "load_part_0015" in driver.text
            await driver.press("minus", "2", "4")  # what the operator has closed stays closed
            assert len(driver.app.screen.table.order) == 3
        async with open_console(poisoned_run(clock, 100), clock, "4", size=size) as driver:
            assert len(driver.app.screen.table.order) == 3


@parametrize_mostly_long("size", [(80, 24), (120, 40)])
async def test_the_rows_that_the_inbox_leaves_free_have_the_traceback(clock: StillClock, size: tuple[int, int]) -> None:
    async with open_console(poisoned_run(clock, 100), clock, "4", size=size) as driver:
        assert "Traceback  attempts #1 #2, the same" in driver.text
        assert driver.lines[8].startswith(" load_part_0001 "), "of a cause that of its first task"
        assert driver.text.count("Traceback (most recent call last)") == 1, "the details beside the list have no second"
        assert driver.lines[7].startswith("─"), "the list has only the rows that it needs"
        await driver.press("n")
        assert "Traceback" not in driver.text, "this failure has none"
        await driver.press("N", "enter")
        assert "Traceback" not in driver.text or size == (120, 40), "the tasks need the rows"


@pytest.mark.long
async def test_downstreams_show_what_is_resolved_if_it_fits(clock: StillClock) -> None:
    for size in (*TALL, (120, 40)):
        async with open_console(outage(clock), clock, "7", size=size) as driver:
            assert any(row.hidden for row in driver.app.screen.table.order) == (size not in TALL)
            assert "resolved (" not in driver.text or size not in TALL


@pytest.mark.long
async def test_details_show_more_of_the_log_where_there_is_room(revenue: FakeSession, clock: StillClock) -> None:
    lines = {}
    for size in ((200, 55), (120, 40)):
        revenue.logs = {("clean_refunds", 2): chunks_of("".join(f"row {number:02}\n" for number in range(60)))}
        async with open_console(revenue, clock, "2", size=size) as driver:
            lines[size] = sum("row " in line for line in driver.lines)
    assert lines[200, 55] > 16 > lines[120, 40]


async def test_below_a_short_list_of_groups_are_the_tasks_of_the_group(clock: StillClock) -> None:
    session = FakeSession(projection_of([(f"load_{number:03}", []) for number in range(160)]))
    for number, row in enumerate(list(session.projection.tasks)):
        ran_task(session.projection, row, START, (1 + number % 9) * S)
    async with open_console(session, clock, "2", size=(200, 50)) as driver:
        driver.app.screen.graph_view.go_to_row(0)
        await driver.settle()
        assert "How long they took  5s median" in driver.text
        assert "load  160 tasks" in driver.text and " 1s " in driver.text and " 9s" in driver.text
        assert "✓ load_000    1s" in driver.text and "more (Enter)" not in driver.text
        await driver.press("right")
        assert "How long they took" not in driver.text, "the group is open: its tasks are rows"


def test_the_ends_of_a_chart_of_like_durations_differ() -> None:
    projection = projection_of([(f"load_{number}", []) for number in range(30)])
    for number, name in enumerate(list(projection.tasks)):
        ran_task(projection, name, START, 120_000 + 1_000 * number)
    board = Board(projection)
    lines = [*map(plain, members_page(Graph(board, len), 0, RunContext(board, START, UTF8), 80, 12))]
    assert any(line.split() == ["120ms", "149ms"] for line in lines), lines


@pytest.mark.long
async def test_the_timeline_lists_the_problems_of_closed_groups_if_they_fit(clock: StillClock) -> None:
    for size, is_listed in (((120, 80), True), ((120, 60), False), ((120, 40), False)):
        async with open_console(poisoned_run(clock, 31), clock, "3", size=size) as driver:
            parts = [key for key in driver.app.screen.timeline.order if str(key).startswith("load_part")]
            assert len(parts) == (31 if is_listed else 0)
