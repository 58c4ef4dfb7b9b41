"""Acts at once touch only the task under the cursor; others are asked about, and what is not in sight is named."""

from __future__ import annotations

import pytest
from redrive.console.screens.dialogs import ChoiceDialog
from redrive.console.text.pieces import line_of, plain
from redrive.console.widgets.dialog import Dialog
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock, press, rest, settle, shown
from ..model.runs import failed_task, projection_of
from .screen_driver import open_console

MARK = "space"  # and the cursor goes on to the next row

REQUEUE, RETRY, ACKNOWLEDGE = ("r",), ("b",), (":", *"acknowledge", "enter")
AT_ONCE = [REQUEUE, ACKNOWLEDGE]


def failed_run(count: int = 40, dead: int = 40) -> FakeSession:
    """Parts without edges, of which the first ``dead`` are dead letters."""
    names = [f"{'load' if number % 2 else 'part'}_{number:03}" for number in range(count)]
    projection = projection_of([(name, []) for name in names])
    for name in names[:dead]:
        failed_task(projection, name)
    return FakeSession(projection)


def question(app) -> str:
    """The facts of the question on the screen; of a choice its title."""
    if isinstance(app.screen, ChoiceDialog):
        return app.screen._warning
    assert isinstance(app.screen, Dialog)
    return " ".join(" ".join(plain(line_of(fact)) for fact in app.screen.question.facts).split())


@parametrize_mostly_long(
    ("view", "hide"),
    [
        ("2", ("slash", *"load_001", "enter")),
        ("2", ("slash", *"nothing_like_it", "enter")),
        ("2", ("G",)),
        ("4", ("G",)),
    ],
    ids=["a filter", "a filter that finds nothing", "scrolled out of the graph", "scrolled out of the inbox"],
    quick=1,
)
async def test_one_mark_out_of_sight_is_asked_about_by_name(clock: StillClock, view, hide):
    session = failed_run()
    async with open_console(session, clock, view, *(("enter", "g", "j") if view == "4" else ("g",)), MARK) as driver:
        await driver.press(*hide)
        for act in AT_ONCE:
            await driver.press(*act)
            assert "Not in sight now: part_000." in question(driver.app)
            await driver.press("escape")
        assert not session.commands


async def test_a_mark_in_sight_but_not_under_the_cursor_is_asked_about(clock: StillClock):
    session = failed_run(8, 8)
    async with shown(session, clock) as (app, pilot):
        for act in AT_ONCE:
            session.commands.clear()
            await press(app, pilot, "2", "g", MARK, *act)
            assert not session.commands and "Not in sight" not in question(app)
            await press(app, pilot, "escape", "k", *act)  # the cursor on the marked row
            assert [command.targets[0][0] for command in session.commands] == ["part_000"]


@pytest.mark.long
async def test_every_question_names_what_is_out_of_sight(clock: StillClock):
    session = failed_run(dead=20)
    for event in session.builder.start("part_020"):
        session.projection.apply(event)
    async with shown(session, clock) as (app, pilot):
        app.screen.graph_view.marks = dict.fromkeys(("part_000", "load_001", "part_020"))
        await press(app, pilot, "2", "slash", *"load_00", "enter")
        for act in [("s",), ("x",), (":", *"snooze", "enter"), REQUEUE]:
            await press(app, pilot, *act)
            assert "ot in sight now: part_000, part_020" in question(app)
            assert "3 marked, 2 not shown" in "\n".join(rows_of_screen_below(app))
            await press(app, pilot, "escape")


def rows_of_screen_below(app) -> list[str]:
    """What the screen below the dialog says."""
    return [plain(app.screen_stack[0].heading.line(0))] if hasattr(app.screen_stack[0], "heading") else []


async def test_the_only_problem_of_a_folded_group_is_asked_about(clock: StillClock):
    names = [f"part_{number:03}" for number in range(90)]
    projection = projection_of([*((name, []) for name in names), ("report", names)])
    failed_task(projection, "part_042")
    session = FakeSession(projection)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "2", "minus", "g")
        assert app.screen.graph.is_on_many
        await press(app, pilot, "r")
        assert not session.commands
        assert question(app)  # although the group is open at its problem: the cursor is on the group


async def test_a_task_that_the_mouse_wheel_has_moved_out_of_sight_is_asked_about(clock: StillClock):
    session = failed_run(120, 120)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "2", "equals_sign", "g")
        app.screen.graph_view.move_by_wheel(60, is_shifted=False)
        await settle(app, pilot)
        await press(app, pilot, "r")
        assert not session.commands
        assert "Not in sight now: part_000." in question(app)


async def test_the_only_problem_of_a_group_in_the_timeline_is_asked_about(clock: StillClock):
    names = [f"part_{number:03}" for number in range(90)]
    projection = projection_of([(name, []) for name in names])
    session = FakeSession(projection)
    for name in names[:50]:
        for event in session.builder.start(name):
            projection.apply(event)
    failed_task(projection, "part_042")
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "3", "g")
        await rest(app, pilot)
        assert isinstance(app.screen.timeline.cursor_key, int)
        await press(app, pilot, "r")
        assert not session.commands
        assert question(app)


async def test_a_mark_whose_task_has_moved_on_is_asked_about(clock: StillClock):
    session = failed_run(8, 8)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "2", "g", MARK, "k")
        session.emit(session.builder.move("part_000", "PENDING", generation=1))
        await settle(app, pilot)
        assert app.live.board.row("part_000").state == "PENDING"
        await press(app, pilot, "r")
        assert not session.commands


# --- The list in the dialog -------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_no_two_names_of_the_list_read_alike(clock: StillClock):
    ends = ["FASTQC_RAW", "FASTQC_TRIM", "FASTP", "BAM_SORT_STATS_SAMTOOLS_INDEX", "BAM_SORT_STATS_SAMTOOLS_FLAGSTAT"]
    names = [f"NFCORE_VIRALRECON.ILLUMINA.FASTQ_TRIM_FASTP_FASTQC.{end}" for end in ends]
    projection = projection_of([(name, []) for name in names])
    for name in names:
        failed_task(projection, name)
    session = FakeSession(projection)
    async with shown(session, clock) as (app, pilot):
        await press(app, pilot, "2", "a")
        for columns, rows in [(80, 24), (120, 40), (40, 15)]:
            await pilot.resize_terminal(columns, rows)
            await press(app, pilot, "r")
            head, *lines = map(plain, app.screen.question.preview)
            assert head == "All begin with NFCORE_VIRALRECON.ILLUMINA.FASTQ_TRIM_FASTP_FASTQC."
            shown_names = [line.split()[1] for line in lines]
            assert len(set(shown_names)) == len(names)
            assert shown_names == ends or columns < 80
            room = app.screen.query_one("#preview").columns
            assert all("DEAD" in line[:room] for line in lines)
            await press(app, pilot, "escape")
