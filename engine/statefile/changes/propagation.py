"""Applies the trigger rules to a run in a state file, when a task ends or runs again.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``domain/trigger_rules.py`` has the rules; here their graph is read and written with SQL. The edges of a run never
change, so every function walks from a task along its edges:

- ``propagate``: after the end of a task, stop or skip the descendants that can no longer start.
- ``unpropagate``: when a cause is gone, return the descendants that no other cause stops.
- ``hold_children``: when a task runs again, make its children wait for it.
- ``mark_stale``: when a task runs again, flag the descendants that ran with its old result.
"""

import sqlite3
from typing import Collection, Iterable, List, Optional, Set

from ...domain import trigger_rules
from ...domain.event_columns import TaskColumns
from ...domain.event_payloads import TaskMoved
from ...domain.states import RAN, TaskState
from ...domain.trigger_rules import STATES_OF, DerivedState, ParentStatus, RequeueGraph, TaskNode, rules_with
from ..state_lists import in_list
from .transitions import Transaction


def _satisfies(status: ParentStatus) -> str:
    """SQL: ``parent`` has this status, and it satisfies the rule of ``task``."""
    sql = "parent.state IN " + in_list(STATES_OF[status]) + " AND task.rule IN " + in_list(rules_with(status))
    by_operator = {ParentStatus.PERMITTED: " IS 'operator'", ParentStatus.NOT_TAKEN: " IS NOT 'operator'"}.get(status)
    return "(" + sql + (" AND parent.skip_cause" + by_operator if by_operator else "") + ")"


#: SQL: an edge of ``task`` whose parent does not allow it to start. A DEAD_LETTER holds its children under every rule.
UNSATISFIED_PARENT = (
    "SELECT 1 FROM edge JOIN task AS parent ON parent.run_id = edge.run_id AND parent.name = edge.parent"
    " WHERE edge.run_id = task.run_id AND edge.child = task.name"
    " AND NOT (" + " OR ".join(_satisfies(status) for status in ParentStatus if rules_with(status)) + ")"
)

_DESCENDANTS = (
    "WITH RECURSIVE below(name) AS ("
    " SELECT child FROM edge WHERE run_id = :run AND parent = :name"
    " UNION SELECT edge.child FROM below CROSS JOIN edge ON edge.run_id = :run AND edge.parent = below.name)"
    " SELECT name FROM below"
)

_COLUMNS = "task.name, task.state, task.generation, task.rule, task.skip_cause, task.blocked_by"
_TASK = "SELECT " + _COLUMNS + " FROM task WHERE run_id = ? AND name = ?"
_IN_ORDER = " ORDER BY task.position, task.name"
# CROSS JOIN fixes the order of the loops: without statistics the planner may walk all edges for each task found.
_CHILDREN = (
    "SELECT " + _COLUMNS + " FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ?"
)
_PARENTS = (
    "SELECT " + _COLUMNS + " FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ?" + _IN_ORDER
)
_IS_HELD = "SELECT EXISTS (" + UNSATISFIED_PARENT + ") FROM task WHERE run_id = ? AND name = ?"


def children_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[TaskNode]:
    """Direct children, in the order of the flow."""
    return [TaskNode(*values) for values in connection.execute(_CHILDREN + _IN_ORDER, (run_id, name))]


def parents_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[TaskNode]:
    """Direct parents, in the order of the flow."""
    return [TaskNode(*values) for values in connection.execute(_PARENTS, (run_id, name))]


def descendants_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[str]:
    """All descendants of a task, nearest first."""
    return [name for (name,) in connection.execute(_DESCENDANTS, {"run": run_id, "name": name})]


class _RunGraph(RequeueGraph):
    """A run in a state file, read with SQL and written through a transaction."""

    def __init__(self, transaction: Transaction, run_id: str) -> None:
        self._journal = transaction
        self._connection = transaction.connection
        self._run_id = run_id

    def task(self, name: str) -> TaskNode:
        return TaskNode(*self._connection.execute(_TASK, (self._run_id, name)).fetchone())

    def parents(self, name: str) -> List[TaskNode]:
        return parents_of(self._connection, self._run_id, name)

    def children(self, name: str, states: Collection[str]) -> List[TaskNode]:
        sql = _CHILDREN + " AND task.state IN " + in_list(states) + _IN_ORDER
        return [TaskNode(*values) for values in self._connection.execute(sql, (self._run_id, name))]

    def is_held(self, task: TaskNode) -> bool:
        return bool(self._connection.execute(_IS_HELD, (self._run_id, task.name)).fetchone()[0])

    def apply(self, task: TaskNode, derived: DerivedState) -> None:
        if derived.state == task.state:
            self._journal.change(self._run_id, task.name, {"blocked_by": derived.blocked_by})
            return
        columns: TaskColumns = {"skip_cause": derived.skip_cause, "blocked_by": derived.blocked_by}
        columns["ended_at"] = None if derived.state == TaskState.PENDING else self._journal.at
        self._journal.move(self._run_id, task.name, task.state, derived.state, task.generation, set=columns)

    def hold(self, task: TaskNode, parent: Optional[str]) -> None:
        self._journal.move(
            self._run_id, task.name, task.state, TaskState.PENDING, task.generation, payload=TaskMoved(waits_for=parent)
        )


def propagate(transaction: Transaction, run_id: str, name: str) -> List[str]:
    """See ``trigger_rules.propagate``."""
    return trigger_rules.propagate(_RunGraph(transaction, run_id), name)


def unpropagate(transaction: Transaction, run_id: str, names: Iterable[str]) -> List[str]:
    """Call ``trigger_rules.unpropagate`` on the state file."""
    return trigger_rules.unpropagate(_RunGraph(transaction, run_id), names)


def hold_children(transaction: Transaction, run_id: str, names: Iterable[str]) -> List[str]:
    """See ``trigger_rules.hold_children``."""
    return trigger_rules.hold_children(_RunGraph(transaction, run_id), names)


def hold_if_blocked(transaction: Transaction, run_id: str, name: str) -> bool:
    """See ``trigger_rules.hold_if_blocked``."""
    return trigger_rules.hold_if_blocked(_RunGraph(transaction, run_id), name)


def mark_stale(transaction: Transaction, run_id: str, names: Iterable[str]) -> List[str]:
    """Flag the descendants of ``names`` that run or ran with the old results. Returns the newly flagged tasks."""
    below: Set[str] = set()
    for name in names:
        if name not in below:
            below.update(descendants_of(transaction.connection, run_id, name))
    sql = "SELECT 1 FROM task WHERE run_id = ? AND name = ? AND stale = 0 AND state IN " + in_list(RAN)
    stale = [name for name in sorted(below) if transaction.connection.execute(sql, (run_id, name)).fetchone()]
    for name in stale:
        transaction.change(run_id, name, {"stale": 1})
    return stale


def reevaluate(transaction: Transaction, run_id: str, name: str) -> str:
    """See ``trigger_rules.reevaluate``."""
    return trigger_rules.reevaluate(_RunGraph(transaction, run_id), name)
