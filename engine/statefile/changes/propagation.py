"""What the end of one task means for those that wait for it, and what its return means for those it had stopped.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``domain/trigger_rules.py`` decides; here its graph is a run in a state file. Who waits for whom never changes while a run
lives, so every function works from a task outwards, over edges:

- ``propagate``: the end of a task stops or skips whoever can no longer start.
- ``unpropagate``: when the cause is gone, exactly those come back that no other cause still stops.
- ``hold_back`` and ``mark_stale``: a parent that runs again makes its children wait, or what they did out of date.
"""

import sqlite3
from typing import Collection, Iterable, List, Optional, Set

from ...domain import trigger_rules
from ...domain.event_payloads import TaskColumns, TaskMoved
from ...domain.states import RAN, TaskState
from ...domain.trigger_rules import STATES_OF, Fate, Graph, Standing, Task, rules_with
from ..state_lists import in_list
from .transitions import Journal


def _satisfies(standing: Standing) -> str:
    """SQL: ``parent`` has this standing, and that satisfies the rule of ``task``."""
    said = "parent.state IN " + in_list(STATES_OF[standing]) + " AND task.rule IN " + in_list(rules_with(standing))
    by_operator = {Standing.PERMITTED: " IS 'operator'", Standing.NOT_TAKEN: " IS NOT 'operator'"}.get(standing)
    return "(" + said + (" AND parent.skip_cause" + by_operator if by_operator else "") + ")"


#: An edge of ``task`` whose parent does not let it start yet. A DEAD_LETTER holds its children under every rule.
UNSATISFIED_PARENT = (
    "SELECT 1 FROM edge JOIN task AS parent ON parent.run_id = edge.run_id AND parent.name = edge.parent"
    " WHERE edge.run_id = task.run_id AND edge.child = task.name"
    " AND NOT (" + " OR ".join(_satisfies(standing) for standing in Standing if rules_with(standing)) + ")"
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


def children_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[Task]:
    """Direct children, in the order of the flow."""
    return [Task(*values) for values in connection.execute(_CHILDREN + _IN_ORDER, (run_id, name))]


def parents_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[Task]:
    """Direct parents, in the order of the flow."""
    return [Task(*values) for values in connection.execute(_PARENTS, (run_id, name))]


def descendants_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[str]:
    """Everything below a task, nearest first."""
    return [name for (name,) in connection.execute(_DESCENDANTS, {"run": run_id, "name": name})]


class _RunGraph(Graph):
    """A run in a state file, written through a journal."""

    def __init__(self, journal: Journal, run_id: str) -> None:
        self._journal = journal
        self._connection = journal.connection
        self._run_id = run_id

    def task(self, name: str) -> Task:
        return Task(*self._connection.execute(_TASK, (self._run_id, name)).fetchone())

    def parents(self, name: str) -> List[Task]:
        return parents_of(self._connection, self._run_id, name)

    def children(self, name: str, states: Collection[str]) -> List[Task]:
        sql = _CHILDREN + " AND task.state IN " + in_list(states) + _IN_ORDER
        return [Task(*values) for values in self._connection.execute(sql, (self._run_id, name))]

    def is_held(self, task: Task) -> bool:
        return bool(self._connection.execute(_IS_HELD, (self._run_id, task.name)).fetchone()[0])

    def apply(self, task: Task, fate: Fate) -> None:
        if fate.state == task.state:
            self._journal.change(self._run_id, task.name, {"blocked_by": fate.blocked_by})
            return
        columns: TaskColumns = {"skip_cause": fate.skip_cause, "blocked_by": fate.blocked_by}
        columns["ended_at"] = None if fate.state == TaskState.PENDING else self._journal.at
        self._journal.move(self._run_id, task.name, task.state, fate.state, task.generation, set=columns)

    def hold(self, task: Task, parent: Optional[str]) -> None:
        self._journal.move(
            self._run_id,
            task.name,
            task.state,
            TaskState.PENDING,
            task.generation,
            payload=TaskMoved(waits_for=parent),
        )


# --- The cause appears ---------------------------------------------------------------------------------------------


def propagate(journal: Journal, run_id: str, name: str) -> List[str]:
    """Hand the end of ``name`` down: stop or skip every waiting descendant that can no longer start.

    Returns the names of those descendants, nearest first.
    """
    return trigger_rules.propagate(_RunGraph(journal, run_id), name)


# --- The cause is gone ---------------------------------------------------------------------------------------------


def unpropagate(journal: Journal, run_id: str, names: Iterable[str]) -> List[str]:
    """Bring back the descendants of ``names`` that nothing stops any more; return their names.

    ``names`` have just left FAILED, CANCELLED or SKIPPED.
    """
    return trigger_rules.unpropagate(_RunGraph(journal, run_id), names)


# --- A parent runs again -------------------------------------------------------------------------------------------


def hold_back(journal: Journal, run_id: str, names: Iterable[str]) -> List[str]:
    """Let the children of ``names`` that were about to start wait for them again; return the names of those children.

    A child that has meanwhile lost another parent for good is stopped instead.
    """
    return trigger_rules.hold_back(_RunGraph(journal, run_id), names)


def wait_again(journal: Journal, run_id: str, name: str) -> bool:
    """Make a task that is about to start wait for its parents, or stop with them. False: all of them allow it."""
    return trigger_rules.wait_again(_RunGraph(journal, run_id), name)


def mark_stale(journal: Journal, run_id: str, names: Iterable[str]) -> List[str]:
    """Flag what ran, or runs, below ``names``: it did so before they were run again. Answers with the newly flagged."""
    below: Set[str] = set()
    for name in names:
        if name not in below:
            below.update(descendants_of(journal.connection, run_id, name))
    sql = "SELECT 1 FROM task WHERE run_id = ? AND name = ? AND stale = 0 AND state IN " + in_list(RAN)
    stale = [name for name in sorted(below) if journal.connection.execute(sql, (run_id, name)).fetchone()]
    for name in stale:
        journal.change(run_id, name, {"stale": 1})
    return stale


def reconsider(journal: Journal, run_id: str, name: str) -> str:
    """Give a waiting task the state that its parents leave it, and its descendants theirs; return that state.

    For the one that was about to start when it turned out that a parent no longer allows it.
    """
    return trigger_rules.reconsider(_RunGraph(journal, run_id), name)
