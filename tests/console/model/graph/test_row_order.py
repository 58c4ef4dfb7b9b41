"""The list of a graph: one row per task, parents above children, families together."""

import time

from hypothesis import given
from redrive.console.model.graph.rows import TaskRows
from redrive.engine.core.dag import Dag

from ..graphs import dags, edges, layered


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
