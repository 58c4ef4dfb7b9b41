"""The timeline of a large run: one row per group, which opens to its tasks."""

from __future__ import annotations

import pytest
from redrive.console.model.group_activity import GroupActivity
from redrive.console.present.timeline import group_duration_text
from redrive.console.present.timeline_text import bar_entries, bar_legend
from redrive.console.text.glyphs import ASCII, UTF8
from redrive.console.text.pieces import Role, plain, width
from redrive.engine.domain.rows import ExecutorState
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, make_app
from ..model.runs import START, EventBuilder, S, projection_of
from .screen_driver import open_console, pressing

LOADS = [f"load_{number:02}" for number in range(40)]
CHECKS = [f"check_{number:02}" for number in range(40)]
FETCH, LOAD, CHECK, REPORT = "fetch", 1, 2, "report"  # rows: tasks by name, groups by index


@pytest.fixture
def session(clock):
    """All loads have ended, two of them as dead letters; ten checks run, one is to be retried."""
    flow = [("fetch", []), *((name, ["fetch"]) for name in LOADS)]
    flow += [(check, [load]) for check, load in zip(CHECKS, LOADS, strict=True)]
    session = FakeSession(projection_of([*flow, ("report", CHECKS)]))
    session.projection.run = session.projection.run._replace(run_id="run-2026-04-25", dag_name="nightly")
    for event in _check_events(session.builder):
        session.projection.apply(event)
    clock.now = session.builder.at
    return session


def _check_events(builder):
    yield from builder.start("fetch")
    yield from builder.after(10).succeed("fetch", duration_us=10 * S)
    for name in LOADS:
        yield from builder.start(name)
    for number, name in enumerate(LOADS):
        builder.after(0.5)
        yield from builder.fail(name, "DEAD_LETTER", failures=2) if number in (20, 30) else builder.succeed(name)
    for name in CHECKS[:11]:
        yield from builder.start(name)
    yield from builder.after(8).fail("check_04", "RETRYING", failures=1, next_retry_at=builder.at + 20 * S)
    builder.after(2)


def order(driver):
    return list(driver.app.screen.timeline.order)


async def test_a_group_has_one_row_with_its_title_and_its_counts(session, clock):
    async with open_console(session, clock, "2", "3") as driver:
        assert order(driver) == [FETCH, LOAD, "load_20", CHECK, REPORT]
        assert "▾ ◆ load   38/40 ◆2 " in driver.find(" load ")
        assert "▸ ● check        40 " in driver.find(" check ")
        assert driver.app.selected == "load_20"
        await driver.press("n")  # a task that is jumped to is listed below its closed group
        assert order(driver) == [FETCH, LOAD, "load_30", CHECK, REPORT]
        await driver.press("k", "h")
        assert order(driver) == [FETCH, LOAD, CHECK, REPORT]


async def test_the_bar_of_a_group_is_as_tall_as_many_tasks_ran_and_shows_what_failed(session, clock):
    async with open_console(session, clock, "3", "g") as driver:
        loads, checks = driver.find(" load  "), driver.find(" check  ")
        bar = loads[driver.app.screen.timeline.label_columns :]
        assert bar.count("◆") == 2
        heights = [sign for sign in bar if sign in UTF8.spark]
        assert heights == sorted(heights, reverse=True)
        assert (heights[0], heights[-1]) == ("▆", "▁")
        assert "↻" in checks
        assert "● 10" in checks
        await driver.press("j")  # it is explained by its counts and its worst tasks
        assert " load  ◆2  38 ok   40 tasks · 03:06:50 to 03:07:10 · 6m50 of work" in driver.text
        assert "DEAD" in driver.find("◆ load_20  ")
        assert driver.text.index("load_20") < driver.text.index("load_30") < driver.text.index("load_00")
        timeline, middle = driver.app.screen.timeline, START + 20 * S
        place = timeline.span.cell(middle)
        await driver.press("equals_sign", "equals_sign")
        assert abs(timeline.span.cell(middle) - place) <= 1, "zooming keeps its middle"
        await driver.press("escape")
        await driver.emit(session, session.builder.after(5).fail("check_05", "DEAD_LETTER"))
        assert "0/40 ◆1" in driver.find(" check ") and driver.find(" check ").endswith("● 9")


async def test_without_an_executor_no_group_looks_as_if_it_ran(session, clock):
    session.set_status(executor=ExecutorState(gone_at=clock.now))
    async with open_console(session, clock, "3", "g") as driver:
        screen = driver.app.screen
        shown = [*screen.label(CHECK, 20), *screen.bar(CHECK, screen.timeline.span)]
        assert Role.RUNNING not in {piece.role for piece in shown}
        assert "○" in driver.find(" check "), "cut off, as everywhere"


async def test_enter_opens_a_group_and_closes_it_as_right_and_left_do(session, clock):
    async with open_console(session, clock, "3", "g", "j", "enter") as driver:
        timeline = driver.app.screen.timeline
        assert order(driver) == [FETCH, LOAD, *LOADS, CHECK, REPORT]
        assert timeline.cursor_key == LOAD
        await driver.press("enter")
        assert order(driver) == [FETCH, LOAD, CHECK, REPORT]
        await driver.press("l", "j", "j")
        assert driver.app.selected == "load_01"
        await driver.press("h")  # also from a task
        assert timeline.cursor_key == LOAD
        assert order(driver) == [FETCH, LOAD, CHECK, REPORT]
        await driver.press("l", "j", "equals_sign", "equals_sign")
        start = timeline.span.start
        await driver.press("h")
        assert timeline.span.start < start, "left is earlier while a part of the run is shown"
        assert "load_00" in order(driver)


async def test_a_click_on_the_sign_of_a_group_opens_it(session, clock):
    async with open_console(session, clock, "3", "g") as driver:
        await driver.pilot.click("#timeline", offset=(1, 1))
        await driver.settle()
        assert order(driver) == [FETCH, LOAD, *LOADS, CHECK, REPORT]


@pytest.mark.long
async def test_a_task_selected_on_another_screen_is_listed(session, clock):
    async with open_console(session, clock, "3", "2") as driver:
        driver.app.selected = "check_07"
        await driver.press("3")
        assert order(driver) == [FETCH, LOAD, CHECK, "check_07", REPORT]
        assert driver.app.screen.timeline.cursor_key == "check_07"


@pytest.mark.long
async def test_the_filter_lists_tasks_without_groups(session, clock):
    async with open_console(session, clock, "2", "3", "slash") as driver:
        await driver.type("dead_letter")
        assert order(driver) == ["load_20", "load_30"]
        await driver.press("escape")
        assert order(driver) == [FETCH, LOAD, "load_20", CHECK, REPORT]


async def test_an_act_on_a_group_is_meant_for_what_needs_a_human(session, clock):
    async with open_console(session, clock, "2", "3", "g", "j") as driver:
        assert driver.app.screen.target_tasks() == ["load_20", "load_30"]
        await driver.press("j", "j", "r")
        assert "nothing in this group needs a human" in driver.lines[-1]


def test_a_group_took_as_long_as_from_its_first_start_to_its_last_end():
    """Not the work of all its tasks, which a run of four at a time does in a quarter of that."""
    projection = projection_of([("a", []), ("b", []), ("c", [])])
    builder = EventBuilder(projection)
    for event in (*builder.start("a"), *builder.after(5).start("b"), *builder.after(15).succeed("a")):
        projection.apply(event)
    rows = projection.tasks.values()
    assert group_duration_text(GroupActivity(rows), builder.at + 30 * S).strip() == "50s"
    for event in builder.succeed("b"):
        projection.apply(event)
    assert group_duration_text(GroupActivity(rows), builder.at + 30 * S).strip() == "20s"


@pytest.mark.parametrize("glyphs", [UTF8, ASCII], ids=["utf8", "ascii"])
@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_the_legend_drops_whole_entries(glyphs, columns):
    signs = [
        "retried",
        "waits",
        "failed",
        "dead letter",
        "timeout",
        "SIGTERM",
        "grace",
        "SIGKILL",
        "lost",
        "not ready",
        "cut off",
    ]
    words = ["few to many ran", *signs]
    (line,) = bar_legend(bar_entries(glyphs), glyphs, columns, has_groups=True)
    entries = [entry.split(" ", 1)[1] for entry in plain(line).strip().split("  ")]
    assert width(line) <= columns
    assert entries == [word for word in words if word in entries]
    assert {"few to many ran", "dead letter"} <= set(entries)


@parametrize_mostly_long("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)), quick=1)
def test_picture(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "2", "3"))


# --- The first page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "first"), [(5, 0), (60, 53)])
async def test_a_list_begins_at_its_top_if_the_first_page_holds_the_cursor(place, first, clock):
    flow = [(f"step_{n:02}", [f"step_{n - 1:02}"] if n else []) for n in range(80)]
    async with open_console(FakeSession(projection_of(flow)), clock, "2") as driver:
        driver.app.screen.graph_view.select(f"step_{place:02}")
        await driver.press("3")
        timeline = driver.app.screen.timeline
        assert (timeline.cursor, timeline.first_visible) == (place, first)
