"""The tour of the demo: each line is true, names the key that comes next, and leads to every job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from redrive.console.keys.actions import ScreenName
from redrive.console.keys.keymap import keys_of
from redrive.console.model.board import Board
from redrive.console.present.tour import STAGES, ScreenState, advance, tour_line
from redrive.console.text.pieces import Role, plain, width
from redrive.engine import examples
from redrive.engine.domain.acts import Answer, Command
from redrive.engine.domain.events import Event
from redrive.engine.domain.rows import RunSummary
from redrive.engine.domain.states import TaskState
from redrive.engine.flow.loading import load_flow
from support.film import SIZE, film, keys_of_line
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock, done, emit_events, press, rows_of, shown
from ..model.runs import START, EventBuilder, failed_task, projection_of
from .outages import row_of_group

DEMO = load_flow(str(Path(examples.__file__).with_name("demo.py")))
HINT_CELLS = 14
QUOTES = ("quote_USD", "quote_GBP", "quote_JPY")
GRAPH = ScreenState(ScreenName.GRAPH, None)


class DemoSession(FakeSession):
    """The demo, before its first failure; an act changes tasks as the engine would."""

    def __init__(self) -> None:
        specs: dict[str, dict[str, Any]] = {name: {"downstream": "rates-api"} for name in QUOTES}
        options = json.dumps({"downstreams": [{"name": "rates-api"}]})
        super().__init__(
            projection_of(
                [(task.name, list(task.parents)) for task in DEMO.spec().tasks], specs, max_parallel=6, options=options
            )
        )
        self.answer = self._act
        self.lists["quarantine_groups"] = [row_of_group("load_customers", "held", 3, "KeyError")]

    def _act(self, command: Command) -> Answer:
        builder, names = self.events_of, [name for name, _, _ in command.targets]
        if command.act == "undo":
            self.emit(builder.move("fetch_invoices", "DEAD_LETTER"))
        elif command.act == "skip":
            self.lists["journal"] = [_skipped(command)]
            self.emit(*(builder.move(name, "SKIPPED") for name in names))
        elif command.act == "requeue-rows":
            self.emit(builder.move("load_customers", "PENDING", generation=1, bad_rows=0))
        elif command.act == "requeue":
            self.emit(*(builder.move(name, "PENDING", generation=1) for name in names))
        return done(command)

    @property
    def events_of(self) -> EventBuilder:
        assert self.builder is not None
        return self.builder


def _skipped(command: Command) -> dict[str, Any]:
    data = {"act": "skip", "was": {"fetch_invoices": {"state": "DEAD_LETTER"}}, "options": {}, "answer": {"ok": True}}
    return {"kind": "operator", "at": START, "actor": "me", "command_id": command.id, "data": json.dumps(data)}


@pytest.fixture
def session() -> DemoSession:
    return DemoSession()


def failures(builder: EventBuilder) -> Iterator[list[Event]]:
    """What happens in the demo."""
    for name in (*QUOTES, "fetch_calendar"):
        yield [*builder.start(name), *builder.fail(name)]
    yield [*builder.start("load_customers"), builder.move("load_customers", "SUCCESS", bad_rows=3)]
    yield [*builder.start("settle"), *builder.fail("settle")]
    for name, kind in (("settle", "poison"), ("fetch_invoices", "permanent")):
        yield [*builder.start(name), *builder.fail(name, "DEAD_LETTER", dead_letter_kind=kind)]


@parametrize_mostly_long("size", [(80, 24), (120, 40)], quick=1)
async def test_a_newcomer_does_every_job_by_the_keys_that_the_line_names(
    session: DemoSession, clock: StillClock, size: tuple[int, int]
) -> None:
    async with shown(session, clock, size, has_tour=True) as (app, pilot):
        for events in failures(session.events_of):
            await emit_events(app, pilot, session, events)
        assert "──· notify" in "\n".join(rows_of(app)), "the edges of the demo are drawn"
        lines = [plain(app.tour_line)]
        while not lines[-1].startswith(" 8 of 8 done") and len(lines) < 40:
            clock.now += 10_000_000  # nothing depends on how long somebody reads
            app.tick(clock.now)
            await press(app, pilot, *keys_of_line(app.tour_line))
            lines.append(plain(app.tour_line))
        assert [str(place) for place in range(1, 9)] == list(dict.fromkeys(line[1] for line in lines)), lines
        assert lines[-1].startswith(" 8 of 8 done"), lines
        assert [command.act for command in session.commands] == ["skip", "undo", "requeue-rows", "requeue", "requeue"]
        assert plain(app.tour_line) in rows_of(app)[-2]
        await press(app, pilot, "X")
        assert "of 8" not in "\n".join(rows_of(app))


async def test_a_key_of_the_line_does_what_it_says_or_the_line_names_the_way_back(
    session: DemoSession, clock: StillClock
) -> None:
    """The cursor, a filter, a box, the past: each changes what the next key is."""
    async with shown(session, clock, has_tour=True) as (app, pilot):
        assert app.selected == "notify" and keys_of_line(app.tour_line) == ["i"]
        for pressed, named in (
            ("h", "2"),
            ("2", "i"),
            ("/", "escape"),
            ("escape", "i"),
            ("?", "escape"),
            ("escape", "i"),
            ("space", "i"),
            ("h", "2"),
            ("2", "i"),
            ("3", "2"),
            ("2", "i"),
        ):
            await press(app, pilot, pressed)
            assert keys_of_line(app.tour_line) == [named], pressed
        await press(app, pilot, "/", "s", "e", "t", "t", "enter", "2")
        assert app.selected == "notify" and keys_of_line(app.tour_line) == ["i"]
        for events in failures(session.events_of):
            await emit_events(app, pilot, session, events)
        assert app.selected == "notify", "news of another stage leave the cursor where it is"


async def test_other_runs_have_no_tour(session: DemoSession, clock: StillClock) -> None:
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "d", "X")
        assert "of 8" not in "\n".join(rows_of(app))
        assert "there is a tour in the demo: redrive demo" in rows_of(app)[-1]


def test_every_stage_is_about_the_demo_and_its_lines_fit_eighty_columns(session: DemoSession) -> None:
    board = Board(session.projection)
    for name in [name for stage in STAGES for name in stage.abouts if name != "rates-api"]:
        assert name in {task.name for task in DEMO.tasks}
    assert plain(tour_line(1, board, GRAPH)) == " 1 of 8 done: the next waits for rates-api"
    for events in failures(session.events_of):
        for event in events:
            session.projection.apply(event)
    for place, stage in enumerate([*STAGES, STAGES[0]]):
        sights = [
            GRAPH,
            ScreenState(ScreenName.RUNS, None),
            ScreenState(stage.view or ScreenName.LOG, stage.about(board)),
        ]
        asked = ScreenState(ScreenName.LOG, None, leave="Esc", asked_by=keys_of(stage.action)[0])
        for sight in (*sights, asked, ScreenState(ScreenName.LOG, None, leave="Esc")):
            assert width(tour_line(place, board, sight)) <= 80 - HINT_CELLS
            narrow = tour_line(place, board, sight._replace(columns=40))
            assert place == len(STAGES) or (width(narrow) <= 40 and narrow[-1].role == Role.KEY)


def test_a_stage_that_is_done_or_no_longer_possible_is_passed_over(session: DemoSession) -> None:
    """Whoever is faster than the tour is asked for nothing again."""
    board, tasks = Board(session.projection), session.projection.tasks
    assert advance(1, board) == 1
    for name in (*QUOTES, "fetch_calendar"):
        failed_task(session.projection, name, "SUCCESS")
    assert advance(1, board) == 1, "what has happened is worth a look"
    for name in ("settle", "fetch_invoices"):
        tasks[name].state, tasks[name].generation = TaskState.SUCCESS, 1
    tasks["load_customers"].state = TaskState.SUCCESS
    assert advance(3, board) == len(STAGES)
    failed_task(session.projection, "fetch_invoices", "SKIPPED")
    tasks["fetch_invoices"].generation = 0
    assert advance(4, board) == 5, "a skip can be taken back"
    tasks["report"].state = TaskState.RUNNING
    assert advance(4, board) == len(STAGES), "it no longer can"


@parametrize_mostly_long("size", [(80, 24), (120, 40)], quick=0)
async def test_the_tour_leaves_the_keys_of_every_view_on_the_screen(
    session: DemoSession, clock: StillClock, size: tuple[int, int]
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
            assert rows_of(app)[-1].endswith("? keys") and "of 8" in rows_of(app)[-2], app.console_screen.PLACE


async def test_a_film_stores_each_row_once(session: DemoSession, clock: StillClock) -> None:
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
