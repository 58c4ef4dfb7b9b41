"""What stands above and in the rows of the graph, by the size and the shape of a run."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.console.model.board import Board
from redrive.console.model.graph.drawing import LABEL_SIZES, TaskDrawings
from redrive.console.model.graph.view import Graph, Overview, part_rows
from redrive.console.present import states
from redrive.console.present.graph import Highlight, drawing_row
from redrive.console.present.silhouette import critical_path_with_times, silhouette_lines, silhouette_marks
from redrive.console.present.tasks import RunContext, TaskNames
from redrive.console.screens.graph import GraphScreen
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Role, plain, width
from redrive.engine.core.views import part_done, task_view
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import NEEDS_HUMAN, TaskState
from redrive.engine.statefile.durations import DurationStats
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession
from ..model.graphs import dags
from ..model.runs import START, EventBuilder, S, failed_task, projection_of
from .screen_driver import open_console


def pipeline(steps: int, name: str = "transform_of_the_region") -> FakeSession:
    """Two long names a step, each step after both of the one before."""
    flow: list[tuple[str, list[str]]] = []
    for step in range(steps):
        above = [f"{name}_{step - 1}{side}" for side in "ab"] if step else []
        flow += [(f"{name}_{step}{side}", above) for side in "ab"]
    return FakeSession(projection_of(flow))


@pytest.mark.parametrize(("steps", "is_whole"), [(3, True), (6, True), (9, False)])
async def test_names_are_shortened_so_that_the_whole_graph_is_drawn(steps, is_whole, clock):
    async with open_console(pipeline(steps), clock, "2", size=(120, 40)) as driver:
        screen = driver.app.screen
        assert (screen._overview is Overview.TASKS) == is_whole
        drawn = screen.map_view.graph
        assert (drawn.drawing.width < 120) == is_whole


async def test_nothing_is_laid_out_before_the_size_is_known(clock, monkeypatch):
    """The layout of 9,000 tasks takes seconds, and a busy machine ticks before it has painted."""
    async with open_console(pipeline(3), clock, "2"):
        screen = GraphScreen()
        monkeypatch.setattr(TaskDrawings, "current", property(lambda self: pytest.fail("laid out")))
        screen.tick(clock.now)


async def test_of_a_drawing_without_room_the_part_near_the_selected_task_is_in_view(clock):
    names = [f"long_name_of_step_{n:02}" for n in range(30)]
    flow = [("one", []), ("other", []), (names[0], ["one", "other"])]
    flow += [(name, [above]) for above, name in pairwise(names)]
    async with open_console(FakeSession(projection_of(flow)), clock, "2", size=(120, 40)) as driver:
        assert driver.app.screen._overview is Overview.PART
        for selected, near in (("one", names[0]), (names[29], names[28])):
            driver.app.screen.graph_view.select(selected)
            await driver.settle()
            in_sight = driver.app.screen.map_view.visible_tasks()
            assert selected in in_sight and near in in_sight


async def test_a_fan_of_tasks_with_like_names_is_one_node_and_one_row(clock):
    loads = [f"load_{n:02}" for n in range(58)]
    flow = [("plan", []), *((name, ["plan"]) for name in loads), ("join", loads)]
    async with open_console(FakeSession(projection_of(flow)), clock, "2", size=(80, 24)) as driver:
        assert driver.app.screen._overview is Overview.GROUPS
        assert "▸ load             58" in driver.text
        assert driver.app.screen._group_drawing.drawing.width > 60, "the bar has the room that names leave"


async def test_beside_a_finished_task_stand_the_tasks_of_what_runs(clock):
    """A fan that fills: the cursor is still on the task before it."""
    loads = [f"load_{n:02}" for n in range(58)]
    session = FakeSession(projection_of([("plan", []), *((name, ["plan"]) for name in loads), ("join", loads)]))
    builder = session.builder
    for event in (*builder.start("plan"), *builder.after(3).succeed("plan"), *builder.start("load_07")):
        session.projection.apply(event)
    clock.now = builder.at + 5 * S
    async with open_console(session, clock, "2", size=(120, 40)) as driver:
        driver.app.screen.graph_view.select("plan")
        await driver.settle()
        await driver.app.screen._read_texts()
        assert "load  58 tasks" in driver.text and "● load_07" in driver.text


def test_a_tall_terminal_has_more_rows_for_a_part_of_a_drawing():
    assert [part_rows(rows) for rows in (26, 35, 50, 95)] == [9, 9, 14, 29]


async def test_a_chain_is_a_plain_list_that_begins_at_what_runs(clock):
    session = FakeSession(projection_of([(f"step_{n:03}", [f"step_{n - 1:03}"] if n else []) for n in range(300)]))
    for n in range(141):
        for event in session.builder.start(f"step_{n:03}"):
            session.projection.apply(event)
        for event in session.builder.after(1).succeed(f"step_{n:03}") if n < 140 else ():
            session.projection.apply(event)
    async with open_console(session, clock, "2", size=(120, 40)) as driver:
        assert driver.app.selected == "step_140"
        assert "\n ● step_140 " in driver.text
        assert not set("┃╻╹") & set(driver.text)
        assert not driver.app.screen.graph_view.highlight.related


def test_screens_start_on_the_most_frequent_failure_of_dead_letters():
    projection = projection_of([(name, []) for name in ("failed", "denied", "one", "other")])
    assert Board(projection).starting_task() == "failed"  # the first of all
    projection.tasks["other"].failures = 2
    assert Board(projection).starting_task() == "other", "nothing needs a human: what failed most on its way"
    failed_task(projection, "failed", "FAILED")
    assert Board(projection).starting_task() == "failed"
    failed_task(projection, "denied", error="PermissionError")
    assert Board(projection).starting_task() == "denied"
    for name in ("one", "other"):
        failed_task(projection, name, error="KeyError")
    assert Board(projection).starting_task() == "one"


async def test_the_cursor_leaves_the_colours_of_a_bar_as_they_are(clock):
    flow = [(f"{stem}_{n:02}", []) for stem in ("load", "check") for n in range(40)]
    session = FakeSession(projection_of(flow))
    failed_task(session.projection, "load_07")
    async with open_console(session, clock, "2", "g", size=(120, 40)) as driver:
        view = driver.app.screen.graph_view
        assert view.row_role(0) is None
        roles = {piece.role for piece in view.line(0)}
        assert {Role.CURSOR, Role.HUMAN} <= roles
        await driver.press("j")
        assert view.row_role(1) == Role.CURSOR  # a task: its whole row


async def test_the_heading_names_the_step_alone_where_it_has_more_to_say(clock):
    prefix = "NFCORE_VIRALRECON:ILLUMINA:OF_THE_REGION:"
    session = FakeSession(projection_of([(f"{prefix}{stem}_{n}", []) for stem in ("TRIM", "ALIGN") for n in range(40)]))
    async with open_console(session, clock, "2", size=(120, 40)) as driver:
        assert f"all begin with {prefix} " in driver.find("all begin with")
        assert " groups  " in driver.find("all begin with")
        assert "rows" not in driver.text


def test_counts_are_words_or_signs_but_never_cut():
    found = {TaskState.DEAD_LETTER: 1, TaskState.RUNNING: 2, TaskState.SUCCESS: 15, TaskState.PENDING: 9}
    without = (TaskState.PENDING,)
    assert plain(states.counts_within(found, UTF8, 30, without)) == "◆1  2 running  15 ok"
    assert plain(states.counts_within(found, UTF8, 12, without)).rstrip() == "◆1 ●2 ✓15"


def test_a_group_has_the_sign_of_a_finished_one_only_if_all_its_tasks_are():
    assert states.leading_state({TaskState.SUCCESS: 3, TaskState.PENDING: 1}) is TaskState.PENDING
    assert states.leading_state({TaskState.SUCCESS: 3, TaskState.SKIPPED: 1}) is TaskState.SKIPPED
    assert states.leading_state({TaskState.SUCCESS: 3, TaskState.RUNNING: 1}) is TaskState.RUNNING


async def test_the_drawing_and_the_rows_have_one_cursor(clock):
    session = pipeline(3)
    async with open_console(session, clock, "2", size=(120, 40)) as driver:
        screen = driver.app.screen
        last = list(screen.board.dag.names)[-1]
        driver.app.selected = last  # as the console does when it moves to the first problem
        await driver.press("3", "2")
        assert screen.graph.selected == screen.map_view.graph.selected == last
        screen.graph_view.set_graph(screen.graph)
        driver.app.selected = first = next(iter(screen.board.dag.names))
        screen.board_replaced(screen.board)
        assert screen.graph.selected == screen.map_view.graph.selected == first


async def test_the_details_of_a_group_say_what_failed_what_runs_and_what_comes_next(clock):
    flow = [(f"load_{n:03}", []) for n in range(80)] + [("join", [f"load_{n:03}" for n in range(80)])]
    session = FakeSession(projection_of(flow))
    for n in range(20):
        failed_task(session.projection, f"load_{n:03}", error="KeyError" if n else "OSError")
    builder = EventBuilder(session.projection)
    for event in (*builder.start("load_050"), *builder.after(90).start("load_060")):
        session.projection.apply(event)
    clock.now = builder.at + 5 * S
    async with open_console(session, clock, "2", "g", size=(120, 60)) as driver:
        page = [line[77:].strip() for line in driver.lines]
        assert page[page.index("Need a human  20") + 1].startswith("◆19 KeyError settle.py:87")
        running = page.index("Running  2, the longest first")
        assert page[running + 1].split()[:3] == ["●", "load_050", "1m35"]
        assert page[page.index("Followed by  1 group") + 1].startswith("· join")
        await driver.press("j")
        assert "◆ DEAD for" in driver.text
        await driver.press("k")
        assert "Need a human  20" in driver.text


@parametrize_mostly_long("size", [(80, 24), (120, 40), (200, 55)])
async def test_a_graph_too_large_to_draw_is_a_silhouette_with_its_problems(size, clock):
    names = [f"{'ab'[n % 3 == 0]}_{n}" for n in range(400)]  # groups that depend on each other both ways
    flow = [(name, [names[n - 1]] if n % 40 else []) for n, name in enumerate(names)]
    session = FakeSession(projection_of(flow))
    dead = [names[n] for n in (3, 85, 399)]
    for name in dead:
        failed_task(session.projection, name)
    async with open_console(session, clock, "2", size=size) as driver:
        screen = driver.app.screen
        assert screen.silhouette_view.display
        assert not screen.map_view.display
        heading = driver.find("400 tasks in 40 levels")
        assert "◆3" in heading
        columns = screen.graph.silhouette(size[0] - 2).columns
        bottom = driver.lines[screen.silhouette_view.region.bottom - 4]
        for name in dead:
            column = columns[screen.graph.silhouette(size[0] - 2).index_of(name)]
            assert bottom[1 + column.x] == "◆"
        await driver.pilot.click(offset=(1 + columns[39].x, 5))
        await driver.settle()
        assert driver.app.selected == names[399]


async def test_the_name_of_a_running_task_fills_as_its_usual_duration_passes(clock):
    flow = [("load", []), ("check", ["load"]), ("other", [])]
    session = FakeSession(projection_of(flow))
    session.durations = {"load": DurationStats(40 * S, 60 * S, 5)}
    builder = EventBuilder(session.projection)
    for event in (*builder.start("load"), *builder.start("other", timeout_us=20 * S)):
        session.projection.apply(event)
    async with open_console(session, clock, "2", size=(80, 40)) as driver:
        driver.app.screen.graph_view.select("check")
        for seconds, filled in ((0, ""), (10, "l"), (20, "lo"), (39, "load"), (90, "load")):
            clock.now = builder.at + seconds * S
            driver.app.screen.tick(clock.now)
            graph, context = driver.app.screen.map_view.graph, driver.app.screen.run_context()
            graph.drawings.set_label_size(LABEL_SIZES[0])
            line = drawing_row(graph, 0, 0, 80, replace(context, now_us=clock.now), Highlight())
            assert "".join(piece.text for piece in line if piece.role == Role.PROGRESS) == filled


def test_how_far_a_task_is_comes_from_its_progress_else_from_its_usual_duration_else_from_its_timeout():
    projection = projection_of([("load", []), ("rest", [])])
    builder = EventBuilder(projection)
    for event in builder.start("load", timeout_us=100 * S):
        projection.apply(event)
    row, now = projection.tasks["load"], builder.at + 30 * S
    view = task_view(projection, "load", now)
    assert part_done(row, view) == 0.3
    assert part_done(row, view, 60 * S) == 0.5
    assert part_done(row, view, 10 * S) == 1.0
    row.progress_done, row.progress_total = 3, 4
    assert part_done(row, view, 60 * S) == 0.75
    rest = projection.tasks["rest"]
    assert part_done(rest, task_view(projection, "rest", now), 60 * S) is None


def test_the_path_of_a_silhouette_has_the_time_of_all_attempts_and_says_what_is_expected():
    projection = projection_of([("flaky", []), ("report", ["flaky"])])
    builder = EventBuilder(projection)
    board = Board(projection)
    for _ in range(2):
        board.apply([*builder.start("flaky"), *builder.after(30).fail("flaky", "RETRYING")])
    board.duration_stats = {"report": DurationStats(15 * S, 15 * S, 9)}
    context = RunContext(board, builder.at, UTF8)

    def heading(*names: str) -> str:
        return plain(
            silhouette_lines(Graph(board, len).silhouette(120), critical_path_with_times(names, context), 9, context)[0]
        )

    assert "critical path 1m00 so far" in heading("flaky")
    assert "critical path 1m15 expected" in heading("flaky", "report")


@given(dags(most=40), st.integers(1, 120), st.integers(5, 20), st.data())
def test_a_silhouette_shows_every_problem_at_its_level_and_nothing_overlaps(dag, columns, rows, data):
    projection = projection_of([(name, dag.parents(name)) for name in dag.names])
    for row in projection.tasks.values():
        row.state = data.draw(st.sampled_from(list(TaskState)))
    context = RunContext(Board(projection), START, UTF8, names=TaskNames(dag.names))
    graph = Graph(context.board, len)
    silhouette, path = graph.silhouette(columns), critical_path_with_times(dag.order, context)
    lines = silhouette_lines(silhouette, path, rows, context)
    marks = silhouette_marks(silhouette, graph.selected, UTF8)
    assert lines == silhouette_lines(graph.silhouette(columns), path, rows, context)
    assert len(lines) == rows
    assert all(width(line) <= columns for line in (*lines, marks))
    bottom = [role for piece in lines[rows - 4] for role in [piece.role] * width([piece])]
    for column in silhouette.columns:
        is_bad = any(column.counts[state] for state in NEEDS_HUMAN)
        assert (bottom[column.x] in (Role.HUMAN, Role.FAILED)) >= is_bad


def test_few_problems_of_a_low_level_are_few_signs():
    """Of 75 tasks beside 900 two are dead: two cells of the row, not the whole of it."""
    flow = [*((f"a{n}", []) for n in range(75)), *((f"b{n}", ["a0"]) for n in range(900))]
    projection = projection_of(flow)
    for n, row in enumerate(projection.tasks.values()):
        row.state = TaskState.DEAD_LETTER if n < 2 else TaskState.SUCCESS
    context = RunContext(Board(projection), START, UTF8)
    silhouette = Graph(context.board, len).silhouette(78)
    lines = silhouette_lines(silhouette, critical_path_with_times((), context), 6, context)
    assert 1 <= sum(plain(line).count(UTF8.dead) for line in lines[1:3]) <= 2


async def test_the_node_of_a_task_says_what_its_row_says_when_an_executor_starts_and_as_time_passes(clock):
    session = FakeSession(projection_of([("go", []), ("on", ["go"])]))
    session.projection.tasks["go"].next_retry_at = clock.now + 9 * S
    session.set_status(executor=ExecutorState(gone_at=clock.now - S, pid=7, stopped=True))
    async with open_console(session, clock, "2", size=(120, 40)) as driver:
        assert driver.text.count("queued, no executor runs it") == 2
        session.set_status(executor=ExecutorState(alive=True, pid=8))
        await driver.settle()
        assert driver.text.count("not before its time, in  9s") == 2
        assert "waiting 0/2" in driver.text
        clock.now += 4 * S
        driver.app.tick(clock.now)
        await driver.settle()
        assert driver.text.count("not before its time, in  5s") == 2
