"""Pictures of the runs, the graph, the details and what lies over them: at a small, the usual and a large terminal."""

from __future__ import annotations

import random
from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.console.app.theme import load_theme
from redrive.console.model.launch_context import LaunchContext
from redrive.console.model.session_status import Link
from redrive.console.present.states import legend_lines
from redrive.console.present.timeline_text import bar_entries
from redrive.console.screens.dialogs import TextDialog
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from redrive.console.text.pieces import Line, Piece, Role
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.statefile.logs import AttemptText, LogChunk
from support.idle import is_settled, pass_time
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, make_app, press, settle
from ..model.runs import START, S, failed_task, projection_of, ran_task

SIZES = [(80, 24), (120, 40), (40, 15)]
TRACEBACK = """Traceback (most recent call last):
  File "/srv/revenue/settle.py", line 87, in settle
    return amount / rates[currency]
ZeroDivisionError: division by zero
"""


def size_id(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def keys(app: ConsoleApp, *pressed: str):
    """Press keys before the picture is taken, and wait until the detail pane has read its texts."""

    async def prepare(pilot: Any) -> None:
        await settle(app, pilot)
        await wait_for_texts(app, pilot)
        await press(app, pilot, *pressed)
        await wait_for_texts(app, pilot)

    return prepare


async def wait_for_texts(app: ConsoleApp, pilot: Any) -> None:
    while not is_settled(app.screen):
        await pass_time(pilot)
    await settle(app, pilot)


@pytest.fixture
def session(revenue: FakeSession) -> FakeSession:
    """The run of the pictures, with texts to read."""
    for attempt in (1, 2):
        revenue.texts["clean_refunds", attempt] = AttemptText(traceback=TRACEBACK)
        revenue.logs["clean_refunds", attempt] = [LogChunk(1, 0, "settling 1,187 refunds\nrate of INR is 0\n")]
    return revenue


@parametrize_mostly_long("size", [*SIZES, (200, 60)], ids=size_id, quick=1)
def test_picture_of_the_graph(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app))


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture_of_the_drawing(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app, "equals_sign"))


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture_of_groups(size, clock, snap_compare):
    app = make_app(large_run(), clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app, "n"))


@parametrize_mostly_long("size", [(80, 24), (120, 40), (200, 55)], ids=size_id, quick=1)
def test_picture_of_a_silhouette(size, clock, snap_compare):
    app = make_app(deep_run(), clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app, "n"))


def test_picture_of_a_ribbon(clock, snap_compare):
    names = [f"{['extract', 'load', 'check', 'post'][n % 4]}_{n:02}" for n in range(40)]
    session = FakeSession(projection_of([(name, names[n - 1 : n] if n else []) for n, name in enumerate(names)]))
    for n, name in enumerate(names[:17]):
        ran_task(session.projection, name, START - (80 - 4 * n) * S, (2 + n % 3) * S)
    failed_task(session.projection, names[17], at=START)
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=(120, 40), run_before=keys(app))


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture_of_details(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app, "d"))


#: Rows as those of help, under its legend: the keys themselves are asserted in ``test_commands``.
HELP_ROWS: list[Line] = [
    [],
    [Piece("Change the run", Role.STRONG)],
    [Piece("  r         ", Role.KEY), Piece("requeue: ", Role.DIM), Piece("Run again: one at once.")],
    [Piece("  Ctrl+F    ", Role.KEY), Piece("filter: ", Role.DIM), Piece("Show only rows that match.")],
    *([Piece(f"row {number}")] for number in range(40)),
]


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture_of_a_text(size, session, clock, snap_compare):
    app = make_app(session, clock)

    async def prepare(pilot: Any) -> None:
        await settle(app, pilot)
        await wait_for_texts(app, pilot)  # of the details, which the dialog leaves uncovered

        def lines(columns: int) -> list[Line]:
            return [*legend_lines(app.glyphs, columns, bar_entries(app.glyphs)), *HELP_ROWS]

        app.push_screen(TextDialog([Piece("Signs, and the keys", Role.TITLE)], lines))
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=prepare)


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture_of_a_question(size, clock, snap_compare):
    app = make_app(large_run(), clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app, "a", "r"))


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture_of_the_palette(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=keys(app, "colon", "r", "e"))


def test_picture_of_leaving(session, clock, snap_compare):
    app = ConsoleApp(session, clock=clock, tty=Tty(TerminalCapabilities()), launch=LaunchContext(started_here=True))
    assert snap_compare(app, run_before=keys(app, "q"))


def test_picture_of_the_grace(session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, run_before=keys(app, "r"))


def test_picture_of_an_old_picture(session, clock, snap_compare):
    session.set_status(link=Link.STALE, problem="far does not answer", data_age_seconds=14.0, retry_in_seconds=3.0)
    app = make_app(session, clock)
    assert snap_compare(app, run_before=keys(app))


def test_picture_of_an_executor_that_has_gone(session, clock, snap_compare):
    session.set_status(executor=ExecutorState(gone_at=clock.now - 60 * S))
    app = ConsoleApp(
        session, clock=clock, tty=Tty(TerminalCapabilities()), launch=LaunchContext(state_path="/srv/revenue.db")
    )
    assert snap_compare(app, run_before=keys(app))


def test_picture_without_a_run(clock, snap_compare):
    app = make_app(FakeSession(None), clock)
    assert snap_compare(app, run_before=keys(app))


def test_picture_in_ascii(session, clock, snap_compare):
    app = make_app(session, clock, TerminalCapabilities(has_unicode=False))
    assert snap_compare(app, run_before=keys(app))


def test_picture_of_a_screen_that_is_too_small(session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=(38, 8), run_before=keys(app))


@parametrize_mostly_long("name", ["dark", "light", "high-contrast", "colour-blind"])
def test_picture_of_a_theme(name, session, clock, snap_compare):
    app = ConsoleApp(session, clock=clock, tty=Tty(TerminalCapabilities()), theme=load_theme(name))
    assert snap_compare(app, terminal_size=(120, 30), run_before=keys(app))


# --- Runs to look at ------------------------------------------------------------------------------------------------


def large_run() -> FakeSession:
    """A wide flow of the kind that people really run: few levels, large families, some trouble."""
    pairs: list[tuple[str, list[str]]] = [("split", [])]
    align = [f"align_{number:03}" for number in range(180)]
    pairs += [(name, ["split"]) for name in align]
    call = [f"call_{number:03}" for number in range(180)]
    pairs += [(name, [align[number]]) for number, name in enumerate(call)]
    pairs += [("merge", call), ("annotate", ["merge"]), ("report", ["annotate"])]
    projection = projection_of(pairs)
    projection.run = projection.run._replace(run_id="night-117", dag_name="variants")
    for name in ("align_017", "align_044", "call_090"):
        failed_task(projection, name, at=START)
    states = {"split": "SUCCESS", **dict.fromkeys(set(align[:120]) - {"align_017", "align_044"}, "SUCCESS")}
    states.update(dict.fromkeys(align[120:132], "RUNNING"))
    states.update(dict.fromkeys(align[132:135], "RETRYING"))
    states.update(dict.fromkeys(call[:90], "SUCCESS"))
    for name, state in states.items():
        row = projection.tasks[name]
        row.state = type(row.state)(state)
        row.started_at, row.ended_at = START - 60 * S, START if state == "SUCCESS" else None
        row.attempt = 1
    return FakeSession(projection, "ssh://ops@build-7/var/lib/redrive/variants.db")


def deep_run() -> FakeSession:
    """Families of packages that need each other both ways, half of them built."""
    dice = random.Random(3)
    names = [f"{dice.choice(['py-', 'r-', 'lib', 'perl-'])}{number:03}x" for number in range(600)]
    pairs: list[tuple[str, list[str]]] = []
    for number, name in enumerate(names):
        near = names[max(number - 40, 0) : number]
        pairs.append((name, sorted({dice.choice(near) for _ in range(2)}) if near and dice.random() < 0.95 else []))
    projection = projection_of(pairs)
    for number, name in enumerate(names[:330]):
        ran_task(projection, name, START - (700 - 2 * number) * S, dice.randint(1, 30) * S)
    for name in (names[70], names[71], names[250]):
        failed_task(projection, name, at=START)
    return FakeSession(projection)
