"""The rails: one row per task, and what they connect is exactly what the edges connect."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.graph.drawing import leading_to
from redrive.console.model.graph.rails import Rails
from redrive.console.text.glyphs import DOWN, LEFT, RIGHT, UP, UTF8
from redrive.engine.core.dag import Dag

from ..graphs import dags, edges, layered

ARMS = {sign: arms for arms, sign in enumerate(UTF8.lines) if sign != " "}


def picture(rails):
    lines = []
    for row in range(rails.height):
        line = rails.line(row)
        signs = "".join(UTF8.lines[arms] for arms in line.cells).ljust(line.at + 1)
        lines.append(signs[: line.at] + "@" + signs[line.at + 1 :])
    return lines


def traced(rails):
    """Follow the rails from top to bottom, knowing only the picture and which task stands in which row."""
    found = set()
    carried = {}  # column cell -> the task whose rail it is
    for row, text in enumerate(picture(rails)):
        name, at = rails.name_at(row), text.index("@")
        touched = [at] if at in carried else []
        for step, towards in ((-1, RIGHT), (1, LEFT)):
            cell = at + step
            while 0 <= cell < len(text) and text[cell] != " ":
                arms = ARMS[text[cell]]
                if arms & towards and arms & UP:
                    touched.append(cell)
                cell += step
        found |= {(carried[cell], name) for cell in touched}
        carried = {cell: task for cell, task in carried.items() if cell < len(text) and goes_on(text[cell])}
        carried[at] = name
    return found


def goes_on(sign):
    return bool(ARMS.get(sign, 0) & DOWN)


@given(dags())
def test_the_rails_connect_exactly_the_tasks_that_the_edges_do(dag):
    assert traced(Rails(dag)) == edges(dag)


@pytest.mark.parametrize("seed", range(4))
def test_the_rails_of_a_large_graph_connect_exactly_the_tasks_that_the_edges_do(seed):
    dag = Dag(layered(300, 6, seed))
    assert traced(Rails(dag)) == edges(dag)


@given(dags(), st.data())
def test_whatever_leads_to_a_problem_comes_first_and_the_rails_stay_right(dag, data):
    wanted = data.draw(st.sets(st.sampled_from(dag.names)) if dag.names else st.just(set()))
    rank = leading_to(dag, wanted)
    rails = Rails(dag, rank)
    assert traced(rails) == edges(dag)
    assert all(rails.row_of(parent) < rails.row_of(child) for parent, child in edges(dag))
    roots = [rank[task] for task in rails.order if not dag.parent_numbers[task]]
    assert not wanted or roots[0] == 0


@given(dags())
def test_every_task_has_one_row_below_those_of_its_parents(dag):
    rails = Rails(dag)
    assert sorted(rails.order) == list(range(len(dag)))
    assert all(rails.row_of(parent) < rails.row_of(child) for parent, child in edges(dag))


def test_a_chain_and_a_join_are_drawn_as_one_expects():
    dag = Dag(
        [
            ("orders", []),
            ("payments", []),
            ("clean_orders", ["orders"]),
            ("clean_payments", ["payments"]),
            ("revenue", ["clean_orders", "clean_payments"]),
            ("dashboard", ["revenue"]),
            ("notify", ["revenue"]),
            ("alone", []),
        ]
    )
    rails = Rails(dag)
    assert [f"{left:5}{rails.name_at(row)}" for row, left in enumerate(picture(rails))] == [
        "@    orders",
        "@    clean_orders",
        "│ @  payments",
        "│ @  clean_payments",
        "@─╯  revenue",
        "├─@  dashboard",
        "@    notify",
        "  @  alone",
    ]


def test_a_task_never_stands_right_below_one_that_is_not_its_parent():
    rails = Rails(Dag([("a", []), ("b", []), ("c", []), ("d", [])]))
    assert picture(rails) == ["@", "  @", "@", "  @"]


@given(dags())
def test_the_task_itself_shows_what_goes_on_above_below_and_beside_it(dag):
    """So an edge between two rows below each other is a line, too."""
    rails = Rails(dag)
    for row, line in enumerate(map(rails.line, range(rails.height))):
        name = rails.name_at(row)
        columns = {rails.column[dag.number[parent]] for parent in dag.parents(name)}
        own = rails.column[dag.number[name]]
        assert bool(line.arms & DOWN) == bool(dag.children(name))
        assert bool(line.arms & UP) == (own in columns)
        assert bool(line.arms & LEFT) == any(column < own for column in columns)
        assert bool(line.arms & RIGHT) == any(column > own for column in columns)


@given(dags(), st.data())
def test_lit_rails_reach_the_chosen_children_and_no_other_task(dag, data):
    rails = Rails(dag)
    all_edges = sorted(edges(dag))
    chosen = data.draw(st.lists(st.sampled_from(all_edges), max_size=4)) if all_edges else []
    lit = rails.highlight(chosen)
    reached = {rails.name_at(row) for row in range(rails.height) if row in lit.across}
    assert reached == {child for _, child in chosen}
    for row in range(rails.height):
        line = rails.line(row, lit)
        cells = {cell for cell in line.lit if cell != line.at}
        assert all(line.cells[cell] for cell in cells), "a cell without a line is lit"


def test_ten_thousand_tasks_get_their_rails_quickly():
    dag = Dag(layered(10_000, 40, seed=1))
    started = time.process_time()
    rails = Rails(dag)
    for row in range(60):
        rails.line(5_000 + row)
    assert time.process_time() - started < 20
    assert rails.columns > 12


def test_a_chain_of_ten_thousand_tasks_is_one_column():
    rails = Rails(Dag((f"t{n}", [f"t{n - 1}"] if n else []) for n in range(10_000)))
    assert rails.columns == 1
