"""The graph screen's model: groups, silhouette, zoom, what is drawn above, and one selection through all of them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.board import Board, Delta
from redrive.console.model.graph import groups
from redrive.console.model.graph.drawing import (
    WHOLE_EDGES_MAX,
    WHOLE_TASKS_MAX,
    LabelSize,
    TaskDrawings,
)
from redrive.console.model.graph.groups import (
    LEVEL_PARTS_MAX,
    PROBLEMS_SHOWN,
    GroupRow,
    Groups,
    ZoomStep,
    name_groups,
)
from redrive.console.model.graph.view import Graph
from redrive.engine import Flow
from redrive.engine.core.dag import Dag
from redrive.engine.domain.states import TaskState

from ..graphs import dags, edges, layered
from ..runs import EventBuilder, failed_task, projection_of

FAMILIES = [
    ("start", []),
    *((f"load_{n}", ["start"]) for n in range(20)),
    *((f"check_{n}", [f"load_{n}"]) for n in range(20)),
    ("report", [f"check_{n}" for n in range(20)]),
    *((f"mail_{n}", ["report"]) for n in range(30)),
]

STEPS = (ZoomStep.GROUPS, ZoomStep.ROWS, ZoomStep.DRAWING)


def graph_of(pairs, *dead, size=(80, 24)):
    projection = projection_of(pairs)
    for name in dead:
        failed_task(projection, name)
    graph = Graph(Board(projection), lambda name: len(name) + 2)
    graph.resize(*size)
    return graph


def graph_of_flow(flow):
    projection = projection_of([(task.name, list(task.parents)) for task in flow.spec().tasks])
    for task in flow.spec().tasks:
        projection.tasks[task.name].spec = task
    graph = Graph(Board(projection), lambda name: len(name) + 2)
    graph.resize(80, 24)
    return graph


def shown(graph):
    def text(row: GroupRow) -> str:
        if row.hidden:
            return f"... {row.hidden}"
        group = graph.groups.groups[row.group]
        return f"{group.title} x{len(group.members)}" if row.task is None else f"- {graph.dag.names[row.task]}"

    return [text(row) for row in graph.groups.rows]


def test_groups_of_a_large_graph_are_made_once_and_only_when_needed(monkeypatch):
    build_row = []
    make = groups.GraphGroup
    monkeypatch.setattr(groups, "GraphGroup", lambda *fields: build_row.append(fields) or make(*fields))
    board = Board(projection_of(FAMILIES))
    drawn = Graph(board, len, zoom=ZoomStep.DRAWING)
    drawn.resize(80, 24)
    drawn.select("load_3")
    failed_task(board.projection, "load_3")
    drawn.apply(Delta(moves=[("load_3", TaskState.PENDING, TaskState.DEAD_LETTER)], are_problems_changed=True))
    assert build_row == []
    assert len(drawn.groups.groups) == len(build_row) == 5
    assert drawn.groups.groups[drawn.groups.group_of[drawn.dag.number["load_3"]]].counts[TaskState.DEAD_LETTER] == 1


# --- Where it begins -----------------------------------------------------------------------------------------------


def test_a_small_graph_begins_task_by_task_and_a_large_one_by_groups():
    assert graph_of([("a", []), ("b", ["a"])]).zoom is ZoomStep.ROWS
    assert graph_of(FAMILIES).zoom is ZoomStep.GROUPS
    assert graph_of([(f"n{n}x", [f"n{n - 1}x"] if n else []) for n in range(300)]).zoom is ZoomStep.ROWS


def test_where_names_say_nothing_the_groups_are_levels():
    chains = [(f"w{n:05x}z", [f"w{n - 1:05x}z"] if n % 200 else []) for n in range(3000)]
    graph = graph_of(chains)
    assert graph.zoom is ZoomStep.GROUPS
    assert shown(graph)[:2] == ["w* L0-16 x255", "w* L17-33 x255"]
    assert len(shown(graph)) == LEVEL_PARTS_MAX


def test_the_first_problem_is_selected_at_once():
    assert graph_of(FAMILIES, "check_7", "load_3").selected == "load_3"
    assert graph_of(FAMILIES).selected == "start"


# --- Groups --------------------------------------------------------------------------------------------------------


def test_a_group_of_the_flow_is_one_group_whatever_its_levels_and_names():
    flow = Flow("f")
    with flow.group("extract") as extract:
        for name in ("orders", "customers", "prices"):
            flow.command(f"clean_{name}", "true", after=flow.command(name, "true"))
    for number in range(3):
        flow.command(f"load_{number}", "true", after=extract.tasks)
    with flow.group("mail"):
        flow.command("all", "true", after=["load_0", "load_1", "load_2"])
    graph = graph_of_flow(flow)
    assert ["extract x6", "load x3", "- mail.all"] == shown(graph)
    graph.groups.toggle(0)
    assert {f"- {name}" for name in extract.tasks} == set(shown(graph)[1:7])


def test_the_end_of_a_map_is_in_its_group_and_counted_only_if_it_needs_a_human():
    parts = [f"load[{number}]" for number in range(60)]
    dag = Dag([("list", []), *((part, ["list"]) for part in parts), ("load", parts), ("report", ["load"])])
    found = Groups(dag, dict.fromkeys(dag.names, TaskState.PENDING), dict.fromkeys(parts, "load"))
    assert [(one.title, one.counts.total()) for one in found.groups] == [("list", 1), ("load", 60), ("report", 1)]
    found.apply_move("load", TaskState.PENDING, TaskState.DEAD_LETTER)
    assert found.groups[1].counts == {TaskState.PENDING: 60, TaskState.DEAD_LETTER: 1}


def test_tasks_of_one_level_and_family_are_one_row():
    graph = graph_of(FAMILIES)
    assert shown(graph) == ["- start", "load x20", "check x20", "- report", "mail x30"]


def test_a_group_with_a_problem_opens_to_just_that_problem():
    graph = graph_of(FAMILIES, "load_3")
    assert shown(graph) == ["- start", "load x20", "- load_3", "check x20", "- report", "mail x30"]


def test_many_problems_are_counted_after_the_first_few():
    graph = graph_of(FAMILIES, *(f"load_{n}" for n in range(12)), size=(80, 9))
    assert shown(graph)[1:8] == ["load x20", *(f"- load_{n}" for n in range(PROBLEMS_SHOWN)), "... 7"]


def test_rows_that_would_be_empty_show_more_problems():
    graph = graph_of(FAMILIES, *(f"load_{n}" for n in range(12)), "check_1", size=(80, 24))
    assert [f"- load_{n}" for n in range(8)] == shown(graph)[2:10]
    assert len(shown(graph)) <= 24
    graph.resize(80, 40)
    assert [f"- load_{n}" for n in range(12)] == shown(graph)[2:14]


# --- Groups by name --------------------------------------------------------------------------------------------------


def test_dotted_and_slashed_names_belong_to_their_first_part_others_to_the_name_without_numbers():
    names = ["ALIGN.SORT_3", "ALIGN.INDEX.RUN_4", "test / unit (3.11)", "test / lint", "load_7", "load_8", "3: merge"]
    assert name_groups(names) == ["ALIGN", "ALIGN", "test", "test", "load", "load", "3: merge"]


def test_where_most_names_begin_alike_the_next_part_counts():
    names = ["etl.load.a", "etl.load.b", "etl.check.a", "etl.check.b", "etl.mail", "notify"]
    assert name_groups(names) == ["etl.load", "etl.load", "etl.check", "etl.check", "etl.mail", "notify"]


def test_many_names_alone_are_grouped_by_their_first_word_or_letter():
    packages = [f"py_{word}" for word in ("numpy", "pandas", "attrs")] + ["r-base", "r-utils", "r-stats"]
    others = [f"{letter}{end}" for letter in "Zabcdefgh" for end in ("lib", "tool", "kit", "doc", "cli")]
    assert name_groups([*packages, *others]) == ["py_*"] * 3 + ["r-*"] * 3 + [
        f"{name[0].casefold()}*" for name in others
    ]
    assert name_groups(packages) == packages


@given(st.lists(st.text(alphabet="ab1._- /é", max_size=9), max_size=40))
def test_each_name_has_one_title_in_any_order_and_none_is_others(names):
    titles = dict(zip(names, name_groups(names), strict=True))
    shuffled = sorted(names, key=lambda name: name[::-1])
    assert dict(zip(shuffled, name_groups(shuffled), strict=True)) == titles
    for name, title in titles.items():
        assert name.casefold().startswith(title.removesuffix("*").casefold())


# --- Groups and their problems ---------------------------------------------------------------------------------------


def test_a_problem_that_comes_and_goes_opens_and_closes_its_group():
    projection = projection_of(FAMILIES)
    board = Board(projection)
    graph, builder = Graph(board, len), EventBuilder(projection)
    assert graph.apply(board.apply([*builder.start("check_4"), *builder.fail("check_4", "DEAD_LETTER")]))
    assert "- check_4" in shown(graph)
    assert graph.apply(board.apply([builder.move("check_4", "PENDING")]))
    assert "- check_4" not in shown(graph)


def test_the_operator_may_close_a_group_with_a_problem_until_there_is_a_new_one():
    projection = projection_of(FAMILIES)
    failed_task(projection, "load_3")
    board = Board(projection)
    graph, builder = Graph(board, len), EventBuilder(projection)
    graph.select("load_3")
    graph.toggle()
    assert len(graph.groups.rows) == 25
    graph.toggle()
    assert shown(graph) == ["- start", "load x20", "check x20", "- report", "mail x30"]
    graph.apply(board.apply([*builder.start("load_9"), *builder.fail("load_9", "DEAD_LETTER")]))
    assert shown(graph)[1:4] == ["load x20", "- load_3", "- load_9"]


def test_counts_of_groups_and_levels_follow_the_moves():
    projection = projection_of(FAMILIES)
    board = Board(projection)
    graph, builder = Graph(board, len), EventBuilder(projection)
    _ = graph.silhouette(60)
    graph.apply(board.apply([*builder.start("load_3"), *builder.start("load_4"), *builder.succeed("load_4")]))
    fresh = Graph(board, len)
    for here, there in zip(graph.groups.groups, fresh.groups.groups, strict=True):
        assert +here.counts == +there.counts
    levels = zip(graph.silhouette(60).columns, fresh.silhouette(60).columns, strict=True)
    assert all(+here.counts == +there.counts for here, there in levels)
    assert graph.groups.groups[1].counts[TaskState.RUNNING] == 1


@given(dags(most=40), st.data())
def test_every_task_is_found_in_the_row_that_shows_it_or_its_group(dag, data):
    graph = graph_of([(name, dag.parents(name)) for name in dag.names], data.draw(st.sampled_from(dag.names)))
    graph.groups.toggle(data.draw(st.sampled_from(graph.groups.groups)).index)
    for name in dag.names:
        row = graph.groups.row_of(name)
        found = graph.groups.rows[row]
        assert found.group == graph.groups.group_at(row) == graph.groups.group_of[dag.number[name]]
        assert found.task in (None, dag.number[name])


def test_edges_that_others_imply_are_left_out_of_the_drawing_of_the_groups():
    flow = [(f"{stem}.{n}", []) for stem in "abcd" for n in range(20)]
    flow += [("a.x", []), ("b.x", ["a.x"]), ("c.x", ["b.x", "a.x"]), ("d.x", ["c.x", "a.x", "b.x"])]
    graph = graph_of(flow)
    drawn = graph.groups.dag
    titles = {str(group.index): group.title for group in graph.groups.groups}
    found = {(titles[above], titles[name]) for name in drawn.names for above in drawn.parents(name)}
    assert found == {("a", "b"), ("b", "c"), ("c", "d")}


@given(dags(most=40))
def test_the_drawing_of_the_groups_keeps_who_comes_before_whom(dag):
    names = [f"{'pqrs'[level % 4]}{level}.{name}" for level, name in zip(dag.levels, dag.names, strict=True)]
    graph = graph_of([(name, [names[above] for above in dag.parent_numbers[n]]) for n, name in enumerate(names)])
    drawn, of = graph.groups.dag, graph.groups.group_of
    for pair in edges(graph.dag):
        above, child = (drawn.number[str(of[graph.dag.number[name]])] for name in pair)
        assert above == child or drawn.bits_below(above) >> child & 1


# --- Selection -----------------------------------------------------------------------------------------------------


@given(dags(most=30), st.data())
def test_the_selection_survives_every_zoom(dag, data):
    graph = graph_of([(name, dag.parents(name)) for name in dag.names])
    graph.select(data.draw(st.sampled_from(dag.names)))
    before = graph.selected
    for step in data.draw(st.lists(st.sampled_from([1, -1]), max_size=8)):
        graph.zoom_by(step)
        assert graph.selected == before
        assert 0 <= graph.cursor_row < graph.height


@given(dags(most=30), st.sampled_from(STEPS), st.data())
def test_the_cursor_always_stands_on_a_task_that_exists(dag, zoom, data):
    graph = graph_of([(name, dag.parents(name)) for name in dag.names], data.draw(st.sampled_from(dag.names)))
    graph.zoom = zoom
    for dx, dy in data.draw(st.lists(st.tuples(st.integers(-1, 1), st.integers(-9, 9)), max_size=12)):
        graph.move(dx, dy)
        assert graph.selected in dag
        assert 0 <= graph.cursor_row < graph.height


@pytest.mark.parametrize("zoom", [ZoomStep.GROUPS, ZoomStep.ROWS])
def test_walking_down_reaches_the_last_row_and_up_the_first(zoom):
    graph = graph_of(FAMILIES, *(f"load_{n}" for n in range(12)))
    graph.zoom = zoom
    for _ in range(graph.height + 1):
        graph.move(0, 1)
    assert graph.cursor_row == graph.height - 1
    for _ in range(graph.height + 1):
        graph.move(0, -1)
    assert graph.cursor_row == 0


def test_right_opens_a_group_and_left_goes_up_to_it_and_closes_it():
    graph = graph_of(FAMILIES)
    graph.select_row(1)
    assert graph.selected_group == 1
    graph.move(1, 0)
    assert graph.groups.is_open(1)
    graph.move(0, 3)
    assert (graph.selected, graph.selected_group) == ("load_2", None)
    graph.move(-1, 0)
    assert graph.selected_group == 1
    graph.move(-1, 0)
    assert not graph.groups.is_open(1)


def test_sideways_in_list_and_drawing_goes_along_the_edges():
    graph = graph_of([("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["c"])], "c")
    for zoom in (ZoomStep.ROWS, ZoomStep.DRAWING):
        graph.zoom = zoom
        graph.select("d")
        assert graph.move(-1, 0)
        assert graph.selected == "c"
        assert graph.move(-1, 0)
        assert graph.selected == "a"
        assert not graph.move(-1, 0)
    graph.zoom = ZoomStep.ROWS
    graph.move(1, 0)
    assert graph.selected == "c", "of several children the one that needs a human"


def test_the_next_problem_is_shown_even_where_its_group_counts_it_only():
    graph = graph_of(FAMILIES, *(f"load_{n}" for n in range(12)))
    graph.select("load_4")
    assert graph.to_problem()
    assert (graph.selected, graph.on_group) == ("load_5", False)
    assert graph.groups.rows[graph.cursor_row].task == graph.dag.number["load_5"]


def test_a_click_selects_what_it_hits_and_nothing_beside_it():
    graph = graph_of([("a", []), ("b", ["a"])])
    graph.zoom = ZoomStep.DRAWING
    assert graph.select_at(*graph.drawing.place("b")[:2])
    assert graph.selected == "b"
    assert not graph.select_at(graph.drawing.place("b")[0] - 1, 0)


# --- The silhouette ----------------------------------------------------------------------------------------------


@given(dags(most=40), st.integers(1, 90))
def test_the_silhouette_has_every_task_once_in_columns_side_by_side(dag, size):
    silhouette = graph_of([(name, dag.parents(name)) for name in dag.names]).silhouette(size)
    columns = silhouette.columns
    assert sorted(task for column in columns for task in column.tasks) == list(range(len(dag)))
    assert all(sum(column.counts.values()) == len(column.tasks) for column in columns)
    assert [column.x for column in columns] == [
        sum(column.cells for column in columns[:place]) for place in range(len(columns))
    ]
    assert sum(column.cells for column in columns) <= size
    for name in dag.names:
        column = columns[silhouette.index_of(name)]
        assert silhouette.task_at(column.x, name.__eq__) == name
        assert silhouette.task_at(column.x + column.cells - 1, lambda _: False) == dag.names[column.tasks[0]]
    assert all(
        silhouette.index_of(above) <= silhouette.index_of(name) for name in dag.names for above in dag.parents(name)
    )
    assert silhouette.task_at(size, lambda _: True) is None


# --- Large graphs --------------------------------------------------------------------------------------------------


def test_a_graph_with_too_many_tasks_or_lines_has_no_step_with_a_drawing():
    chain = [(f"n{n}x", [f"n{n - 1}x"] if n else []) for n in range(WHOLE_TASKS_MAX + 1)]
    above = [f"a{n}x" for n in range(250)]
    dense = [*((name, []) for name in above), *((f"b{n}x", above[: WHOLE_EDGES_MAX // 250 + 1]) for n in range(250))]
    assert ZoomStep.DRAWING in graph_of(chain[:-1]).steps
    assert ZoomStep.DRAWING not in graph_of(chain).steps
    assert ZoomStep.DRAWING not in graph_of(dense).steps


def test_a_change_among_ten_thousand_tasks_costs_next_to_nothing():
    """About 10 us; the bound would not survive a new layout."""
    projection = projection_of(layered(10_000, 40, seed=2))
    board = Board(projection)
    graph, builder = Graph(board, len), EventBuilder(projection)
    _ = graph.rows, graph.silhouette(100), graph.groups.rows
    batches = [builder.start(name) for name in list(projection.tasks)[:200]]
    started = time.process_time()
    for batch in batches:
        graph.apply(board.apply(batch))
    assert time.process_time() - started < 10


def test_the_row_of_a_task_is_found_without_a_search_through_its_group():
    """An open group of 10,000 tasks: each frame asks for the rows of its dead letters."""
    graph = graph_of([(f"load_{n:05}", []) for n in range(10_000)], "load_00000")
    graph.groups.toggle(0)
    began = time.process_time()
    assert [graph.groups.row_of(name) for name in graph.dag.names] == list(range(1, 10_001))
    assert time.process_time() - began < 2  # a search in the group takes ten seconds


def test_free_cells_go_to_the_levels_whose_names_lack_few():
    dag = Dag([("extract_orders", []), ("cleaned_day", ["extract_orders"]), ("load", ["cleaned_day"])])
    drawings = TaskDrawings(dag, lambda name: 2 + min(len(name), drawings.label_size.name_cells))
    drawings.set_label_size(LabelSize(8, has_time=False))
    least = drawings.current.width

    def name_cells(free: int) -> list[int]:
        drawings.widen(least + 1 + free)
        drawn = drawings.current
        assert drawn.width == least + min(free, 9)
        return [drawn.place(name)[2] - 2 for name in dag.names]

    assert name_cells(4) == [9, 11, 4]
    drawings.set_label_size(LabelSize(8, has_time=False))  # the same again: what was widened is not kept
    assert name_cells(0) == [8, 8, 4]
    assert name_cells(20) == [14, 11, 4]
