"""The tour of the demo: each stage names what has happened and a key, and that key ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.console.keys.keymap import DEFAULT_KEYS
from redrive.console.model.board import Board
from redrive.console.present.tour import STAGES, advance, tour_line
from redrive.console.text.pieces import plain, width
from redrive.engine import examples
from redrive.engine.core.projection import RunSummary
from redrive.engine.domain.events import Event
from redrive.engine.domain.states import TaskState
from redrive.engine.flow.loading import load_flow
from support.film import SIZE, film

from ..conftest import FakeSession, StillClock, emit_events, press, rows_of, settle, shown
from ..model.runs import START, EventBuilder, failed_task, projection_of

DEMO = load_flow(str(Path(examples.__file__).with_name("demo.py")))
HINT_CELLS = 14
DEAD = {"dead_letter_kind": "poison"}


@pytest.fixture
def session() -> FakeSession:
    """The demo, before its first failure."""
    return FakeSession(projection_of([(task.name, []) for task in DEMO.tasks], max_parallel=6))


def failures(builder: EventBuilder) -> Iterator[list[Event]]:
    """What happens in the demo, for one stage after the other."""
    for name in ("quote_USD", "quote_GBP", "quote_JPY", "fetch_calendar"):
        yield [*builder.start(name), *builder.fail(name)]
    yield [*builder.start("settle"), *builder.fail("settle")]
    yield [*builder.start("settle"), *builder.fail("settle", "DEAD_LETTER", failures=2, **DEAD)]
    yield [*builder.start("fetch_invoices"), *builder.fail("fetch_invoices", "DEAD_LETTER", **DEAD)]


def test_every_stage_is_about_the_demo_names_a_key_and_fits_eighty_columns(session: FakeSession) -> None:
    board = Board(session.projection)
    for events in failures(EventBuilder(session.projection)):
        for event in events:
            session.projection.apply(event)
    names = {name for stage in STAGES for name, _ in stage.failures} | {one.decides for one in STAGES if one.decides}
    assert names <= {task.name for task in DEMO.tasks}
    for place, stage in enumerate(STAGES):
        line = tour_line(place, board, DEFAULT_KEYS)
        assert plain(line).endswith(
            f"{stage.happened or 'no task runs, and each says why'}; press {DEFAULT_KEYS.label(stage.action)}"
        )
        assert width(line) <= 80 - HINT_CELLS
    assert width(tour_line(len(STAGES), board, DEFAULT_KEYS)) <= 80 - HINT_CELLS


def test_a_stage_ends_by_its_own_key_and_not_before_it_has_begun(session: FakeSession) -> None:
    board = Board(session.projection)
    assert advance(0, board, "view_inbox") == 0
    assert advance(0, board, "details") == 1
    assert advance(1, board, "view_systems") == 1
    for name in ("quote_USD", "quote_GBP", "quote_JPY"):
        failed_task(session.projection, name, "RETRYING")
    assert advance(1, board, "view_systems") == 2


def test_a_decision_that_came_before_its_stage_is_not_asked_for(session: FakeSession) -> None:
    board, place = Board(session.projection), [stage.action for stage in STAGES].index("skip")
    failed_task(session.projection, "fetch_invoices")
    assert advance(place, board) == place
    session.projection.tasks["fetch_invoices"].state = TaskState.SKIPPED
    assert advance(place, board) == len(STAGES)


async def test_the_line_follows_the_run_and_the_operator(session: FakeSession, clock: StillClock) -> None:
    async with shown(session, clock, has_tour=True) as (app, pilot):
        lines = [tour(app)]
        assert session.builder is not None
        for events in failures(session.builder):
            await emit_events(app, pilot, session, events)
        for key in ("d", "escape", "7", "3", "4"):
            await press(app, pilot, key)
            lines.append(tour(app))
        assert [line.partition(" of 6: ")[0].strip() for line in lines] == ["1", "2", "2", "3", "4", "5"]
        await press(app, pilot, "X")
        assert "of 6" not in "\n".join(rows_of(app))
        await press(app, pilot, "X")
        assert tour(app) == lines[-1]
        await emit_events(app, pilot, session, session.builder.move("settle", "PENDING", generation=1))
        assert "6 of 6: fetch_invoices" in tour(app)
        await emit_events(app, pilot, session, session.builder.move("fetch_invoices", "SKIPPED"))
        assert "6 of 6 done" in tour(app)


def tour(app: ConsoleApp) -> str:
    """The line above the keys."""
    return rows_of(app)[-2]


async def test_a_click_on_a_tab_counts_as_its_key(session: FakeSession, clock: StillClock) -> None:
    failed_task(session.projection, "fetch_calendar", "RETRYING")
    async with shown(session, clock, has_tour=True) as (app, pilot):
        app._tour_stage = 2
        await pilot.click("#header", offset=(rows_of(app)[1].index("Timeline"), 1))
        await settle(app, pilot)
        assert app.console_screen.PLACE.value == "timeline" and "3 of 6 done" in tour(app)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_tour_leaves_the_keys_of_every_view_on_the_screen(
    session: FakeSession, clock: StillClock, size: tuple[int, int]
) -> None:
    for name, row in session.projection.tasks.items():
        if name == "fetch_invoices":
            failed_task(session.projection, name)
        else:
            row.state, row.started_at, row.ended_at = TaskState.SUCCESS, START, START
    counts = {str(state): count for state, count in Board(session.projection).counts.items()}
    session.summaries = [RunSummary(session.projection.run, counts)]
    async with shown(session, clock, size, has_tour=True) as (app, pilot):
        for key in "1234567":
            await press(app, pilot, key)
            assert rows_of(app)[-1].endswith("? keys") and "of 6" in tour(app), app.console_screen.PLACE


async def test_other_runs_have_no_tour(session: FakeSession, clock: StillClock) -> None:
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "d", "X")
        assert "of 6" not in "\n".join(rows_of(app))
        assert "there is a tour in the demo: redrive demo" in rows_of(app)[-1]


async def test_a_film_stores_each_row_once(session: FakeSession, clock: StillClock) -> None:
    async with shown(session, clock, SIZE, has_tour=True) as (app, pilot):
        first = app.export_screenshot()
        await press(app, pilot, "d")
        second = app.export_screenshot()
    root = ElementTree.fromstring(film([first, first, second], 1.0))
    ids = [one.get("id") for one in root.iter() if (one.get("id") or "").startswith("r")]
    uses = [one.get("href") for one in root.iter() if one.tag.endswith("}use")]
    assert len(ids) == len(set(ids)) and {f"#{one}" for one in ids} >= set(uses)
    assert len(ids) < len(uses) <= 2 * SIZE[1]
    style = next(one.text for one in root.iter() if one.tag.endswith("}style")) or ""
    assert style.count("%{transform") == 2 and "3.0s step-end" in style
