"""The drawing: its lines connect exactly the right tasks, and asking for a row costs what is visible of it."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.graph.drawing import Drawing, Ribbon
from redrive.console.text.glyphs import DOWN, UP
from redrive.engine.core.dag import Dag
from support.marks import for_each

from ..graphs import dags, edges, layered
from ..tracing import ARMS, picture, traced_edges

REVENUE = Dag(
    [
        ("orders", []),
        ("payments", []),
        ("clean_orders", ["orders"]),
        ("clean_payments", ["payments"]),
        ("revenue", ["clean_orders", "clean_payments"]),
        ("dashboard", ["revenue"]),
        ("notify", ["revenue"]),
    ]
)


def drawn(dag, size=4):
    return Drawing(dag, [size] * len(dag))


@given(dags())
def test_the_lines_of_a_drawing_connect_exactly_the_tasks_that_the_edges_do(dag):
    assert traced_edges(drawn(dag)) == edges(dag)


@for_each("seed", range(6))
def test_the_lines_of_a_large_drawing_connect_exactly_the_tasks_that_the_edges_do(seed):
    dag = Dag(layered(250, 4 + seed * 2, seed, long_edges=0.1 + seed / 20))
    assert traced_edges(drawn(dag)) == edges(dag)


def test_two_by_two_tasks_that_all_depend_on_each_other_share_one_line():
    dag = Dag([("a", []), ("b", []), ("c", ["a", "b"]), ("d", ["a", "b"])])
    assert picture(drawn(dag)) == [
        "@...─┬──@...",
        "@...─┴──@...",
    ]


def test_tasks_that_swap_rows_with_other_edges_between_them_are_still_distinguished():
    """Both rows have a line that leaves and another that enters: without a row of its own one would be the other."""
    dag = Dag([("a", []), ("b", []), ("c", ["a"]), ("x", ["a", "b"]), ("y", ["b"]), ("z", ["a", "y"])])
    assert traced_edges(drawn(dag)) == edges(dag)


def test_a_small_flow_is_drawn_as_one_expects():
    assert picture(drawn(REVENUE)) == [
        "@...───@...─┬──@...─┬──@...",
        "@...───@...─╯       ╰──@...",
    ]


def test_lines_that_turn_beside_each_other_have_a_cell_between_them():
    dag = Dag([("a", []), ("b", []), ("c", []), ("x", ["a", "b", "c"]), ("y", ["b", "c"])])
    assert [line.rstrip() for line in picture(drawn(dag))] == [
        "@...─╮",
        "@...─┤─╮",
        "@...─┤─┤",
        "     ╰─│──@...",
        "       ╰──@...",
    ]


@given(dags())
def test_roots_stand_left_and_lines_begin_where_their_task_ends(dag):
    drawing = drawn(dag)
    lines = picture(drawing)
    for name in dag.names:
        x, y, width = drawing.place(name)
        assert dag.parents(name) or x == 0
        assert lines[y][x + width : x + width + 1].strip(" @") in ({"─"} if dag.children(name) else {"", "│"})


@given(dags())
def test_a_second_row_under_each_row_carries_its_lines_on(dag):
    """Whatever leaves a cell downwards goes on in the row between, and only that."""
    drawing = drawn(dag)
    lines = picture(drawing)
    for y, line in enumerate(lines):
        down = {x for x, sign in enumerate(line) if ARMS.get(sign, 0) & DOWN}
        below = drawing.below(y, 0, drawing.width)
        assert {run.x for run in below if run.task < 0} == down
        assert {drawing.dag.names[run.task] for run in below if run.task >= 0} == {
            name for name in dag.names if drawing.place(name)[1] == y
        }


@given(dags())
def test_the_span_of_a_row_holds_everything_that_the_row_shows_from_left_to_right(dag):
    drawing = drawn(dag)
    for y in range(drawing.height):
        tasks = [drawing.place(name) for name in dag.names if drawing.place(name)[1] == y]
        first, end = drawing.spans[y]
        assert all(first <= x and x + width <= end for x, _, width in tasks)
        assert end <= drawing.width


@given(dags(), st.integers(0, 40), st.integers(1, 40))
def test_a_window_of_a_row_is_a_cut_of_the_whole_row(dag, left, size):
    drawing = drawn(dag)
    whole = [line.ljust(left + size)[left : left + size].replace("@", ".") for line in picture(drawing)]
    assert [line.replace("@", ".") for line in picture(drawing, left, left + size)] == whole


@given(dags())
def test_every_task_is_found_where_it_is_placed_and_nowhere_else(dag):
    drawing = drawn(dag)
    found = {}
    for y in range(drawing.height):
        for x in range(drawing.width):
            name = drawing.at(x, y)
            if name is not None:
                found.setdefault(name, []).append((x, y))
    assert found.keys() == set(dag.names)
    for name, cells in found.items():
        x, y, width = drawing.place(name)
        assert cells == [(x + offset, y) for offset in range(width)]


@given(dags(), st.integers(1, 9))
def test_a_resized_drawing_is_the_one_that_a_layout_with_those_widths_makes(dag, size):
    assert picture(drawn(dag).resized([size] * len(dag))) == picture(drawn(dag, size))


@given(dags())
def test_children_stand_right_of_their_parents(dag):
    drawing = drawn(dag)
    for parent, child in edges(dag):
        x, _, width = drawing.place(parent)
        assert drawing.place(child)[0] > x + width


@given(dags(), st.data())
def test_lit_cells_lead_from_task_to_task_along_the_chosen_edges(dag, data):
    """Following only lit cells connects the chosen edges, and no task without a chosen edge."""
    drawing = drawn(dag)
    all_edges = sorted(edges(dag))
    chosen = data.draw(st.lists(st.sampled_from(all_edges), max_size=4)) if all_edges else []
    lit = drawing.highlight(chosen)
    cells = {
        (run.x + offset, y)
        for y in range(drawing.height)
        for run in drawing.segments(y, 0, drawing.width, lit)
        if run.lit
        for offset in range(run.width)
    }
    entered = {name for name in dag.names if (drawing.place(name)[0] - 1, drawing.place(name)[1]) in cells}
    assert entered == {child for _, child in chosen}


def test_five_thousand_tasks_are_laid_out_quickly():
    """About 0.12 s of CPU on a small machine; the bound is generous, a quadratic step would break it."""
    dag = Dag(layered(5000, 30, seed=3))
    started = time.process_time()
    drawing = drawn(dag)
    assert time.process_time() - started < 20
    assert drawing.height < 5000


def test_a_page_of_a_large_drawing_costs_what_is_visible():
    """60 rows of 200 cells out of 5,000 tasks: about 10 ms of CPU."""
    drawing = drawn(Dag(layered(5000, 30, seed=3)))
    started = time.process_time()
    for y in range(60):
        drawing.segments(drawing.height // 2 + y, 900, 1100)
    assert time.process_time() - started < 10


@pytest.mark.long
def test_a_chain_of_ten_thousand_tasks_is_one_row():
    dag = Dag((f"t{n}", [f"t{n - 1}"] if n else []) for n in range(10_000))
    drawing = drawn(dag)
    assert drawing.height == 1
    assert drawing.place("t9999")[1] == 0


def test_an_empty_flow_has_an_empty_drawing():
    drawing = Drawing(Dag([]), [])
    assert (drawing.width, drawing.height) == (0, 0)
    assert drawing.segments(0, 0, 80) == []
    assert drawing.at(0, 0) is None


@given(st.integers(1, 60), st.integers(1, 20), st.integers(4, 120), st.data())
def test_a_ribbon_shows_each_task_once_in_order_and_its_line_goes_on_below(count, size, columns, data):
    names = [f"t{n}" for n in range(count)]
    widths = data.draw(st.lists(st.integers(1, size), min_size=count, max_size=count))
    ribbon = Ribbon(Dag((name, names[n - 1 : n] if n else []) for n, name in enumerate(names)), widths, columns)
    shown = []
    for y in range(ribbon.height):
        row = ribbon.segments(y, 0, ribbon.width)
        assert all(one.x + one.width <= other.x for one, other in pairwise(row)), "nothing overlaps"
        shown += [names[one.task] for one in row if one.task >= 0]
        is_last = y == ribbon.height - 1
        assert bool(row[0].arms & UP and row[0].task < 0) == (y > 0)
        assert bool(row[-1].arms & DOWN and row[-1].task < 0) != is_last
        for start in (0, 3, 17):
            window = ribbon.segments(y, start, start + 9)
            assert all(one in row for one in window)
    assert shown == names
    for number, name in enumerate(names):
        x, y, cells = ribbon.place(name)
        assert (ribbon.at(x, y), ribbon.at(x + cells - 1, y), cells) == (name, name, widths[number])
    assert ribbon.width <= max(columns, ribbon.place(names[0])[0] + max(widths) + 8)


@given(dags(), st.integers(1, 9))
def test_lit_lines_go_on_in_further_rows_from_the_first_to_the_last_lit_one(dag, size):
    drawing = drawn(dag, size)
    lit = drawing.highlight(edges(dag))
    for y in range(drawing.height - 1):
        below = {one.x: one.lit for one in drawing.below(y, 0, drawing.width, lit) if one.task < 0}
        assert all(below.values())
        assert not any(one.lit for one in drawing.below(y, 0, drawing.width))
