"""The list of a graph: one row per task, parents above children, families together."""

import time

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.graph.drawing import leading_to
from redrive.console.model.graph.rows import TaskRows
from redrive.engine.core.dag import Dag

from ..graphs import dags, edges, layered


@given(dags(), st.data())
def test_whatever_leads_to_a_problem_comes_first(dag, data):
    wanted = data.draw(st.sets(st.sampled_from(dag.names)) if dag.names else st.just(set()))
    rank = leading_to(dag, wanted)
    rows = TaskRows(dag, rank)
    assert all(rows.row_of(parent) < rows.row_of(child) for parent, child in edges(dag))
    roots = [rank[task] for task in rows.order if not dag.parent_numbers[task]]
    assert not wanted or roots[0] == 0


@given(dags())
def test_every_task_has_one_row_below_those_of_its_parents(dag):
    rows = TaskRows(dag)
    assert sorted(rows.order) == list(range(len(dag)))
    assert all(rows.row_of(parent) < rows.row_of(child) for parent, child in edges(dag))


def test_a_child_follows_its_parents_and_a_join_its_last_one():
    pairs = [("orders", []), ("payments", []), ("clean_orders", ["orders"]), ("clean_payments", ["payments"])]
    pairs += [("revenue", ["clean_orders", "clean_payments"]), ("dashboard", ["revenue"]), ("alone", [])]
    rows = TaskRows(Dag(pairs))
    assert [rows.name_at(row) for row in range(rows.height)] == [
        "orders",
        "clean_orders",
        "payments",
        "clean_payments",
        "revenue",
        "dashboard",
        "alone",
    ]


def test_ten_thousand_tasks_are_ordered_quickly():
    started = time.process_time()
    TaskRows(Dag(layered(10_000, 40, seed=1)))
    assert time.process_time() - started < 20
