"""What the end of one task means for those that wait for it, and what its return means for those it had stopped.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Who waits for whom never changes while a run lives, so every function here works from a task outwards, over edges:

- ``propagate_failure``: FAILED and CANCELLED make UPSTREAM_FAILED of whoever can no longer start.
- ``cascade_skip``: a branch that is not taken takes those along that need it.
- ``unpropagate``: when the cause is gone, exactly those come back that no other cause still stops.
- ``hold_back`` and ``mark_stale``: a parent that runs again makes its children wait, or what they did out of date.
"""

import sqlite3
from collections import deque
from typing import Deque, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..core.event_payloads import TaskColumns, TaskMoved
from ..core.states import SkipCause, TaskState
from .journal import Journal

#: An edge of ``task`` whose parent does not let it start yet. A DEAD_LETTER holds its children under every rule.
UNSATISFIED_PARENT = (
    "SELECT 1 FROM edge JOIN task AS parent ON parent.run_id = edge.run_id AND parent.name = edge.parent"
    " WHERE edge.run_id = task.run_id AND edge.child = task.name AND NOT ("
    "parent.state = 'SUCCESS'"
    " OR (parent.state = 'SKIPPED' AND task.rule <> 'all_success_strict'"
    " AND (parent.skip_cause IS 'operator' OR task.rule <> 'all_success'))"
    " OR (parent.state IN ('FAILED', 'UPSTREAM_FAILED', 'CANCELLED') AND task.rule = 'all_done'))"
)

# CROSS JOIN fixes the order of the loops: without statistics the planner may walk all edges for each task found.
_DOOMED = (
    "WITH RECURSIVE doomed(name) AS ("
    " SELECT edge.child FROM edge JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    "  WHERE edge.run_id = :run AND edge.parent = :name"
    "  AND task.state IN ('PENDING', 'READY') AND task.rule <> 'all_done'"
    " UNION"
    " SELECT edge.child FROM doomed CROSS JOIN edge ON edge.run_id = :run AND edge.parent = doomed.name"
    "  CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    "  WHERE task.state IN ('PENDING', 'READY') AND task.rule <> 'all_done')"
    " SELECT task.name, task.state, task.generation FROM doomed"
    " CROSS JOIN task ON task.run_id = :run AND task.name = doomed.name"
)

_DESCENDANTS = (
    "WITH RECURSIVE below(name) AS ("
    " SELECT child FROM edge WHERE run_id = :run AND parent = :name"
    " UNION SELECT edge.child FROM below CROSS JOIN edge ON edge.run_id = :run AND edge.parent = below.name)"
    " SELECT name FROM below"
)


class Row(NamedTuple):
    """What decides the fate of a task that has none of its own."""

    name: str
    state: str
    generation: int
    rule: str
    skip_cause: Optional[str]
    blocked_by: Optional[str]


_ROW_COLUMNS = "task.name, task.state, task.generation, task.rule, task.skip_cause, task.blocked_by"
_CHILDREN = (
    "SELECT " + _ROW_COLUMNS + " FROM edge JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ? ORDER BY task.position, task.name"
)
_PARENTS = (
    "SELECT " + _ROW_COLUMNS + " FROM edge JOIN task ON task.run_id = edge.run_id AND task.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ? ORDER BY task.position, task.name"
)

_WAITING = (TaskState.PENDING, TaskState.READY)

#: What a task without a fate of its own is: (state, skip_cause, blocked_by).
Fate = Tuple[str, Optional[str], Optional[str]]


def row_of(connection: sqlite3.Connection, run_id: str, name: str) -> Optional[Row]:
    """One task, None where there is none."""
    sql = "SELECT " + _ROW_COLUMNS + " FROM task WHERE run_id = ? AND name = ?"
    values = connection.execute(sql, (run_id, name)).fetchone()
    return None if values is None else Row(*values)


def children_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[Row]:
    """Direct children, in the order of the flow."""
    return [Row(*values) for values in connection.execute(_CHILDREN, (run_id, name))]


def parents_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[Row]:
    """Direct parents, in the order of the flow."""
    return [Row(*values) for values in connection.execute(_PARENTS, (run_id, name))]


def descendants_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[str]:
    """Everything below a task, nearest first."""
    return [name for (name,) in connection.execute(_DESCENDANTS, {"run": run_id, "name": name})]


# --- The cause appears ---------------------------------------------------------------------------------------------


def propagate_failure(journal: Journal, run_id: str, name: str) -> List[str]:
    """Fail every waiting descendant whose rule can no longer be met; answer with their names, nearest first.

    ``name`` has just become FAILED or CANCELLED. Tasks with the rule ``all_done`` are not stopped, nor what is below
    them. Tasks that have started already keep the fate of their own.
    """
    doomed = journal.connection.execute(_DOOMED, {"run": run_id, "name": name}).fetchall()
    for child, state, generation in doomed:
        _stop(journal, run_id, child, state, generation, name)
    return [child for child, _, _ in doomed]


def _stop(journal: Journal, run_id: str, name: str, state: str, generation: int, cause: str) -> None:
    columns: TaskColumns = {"blocked_by": cause, "ended_at": journal.at}
    journal.move(run_id, name, state, TaskState.UPSTREAM_FAILED, generation, set=columns)


def cascade_skip(journal: Journal, run_id: str, name: str) -> List[str]:
    """Skip every waiting descendant that needs the branch which ``name`` decided not to take."""
    skipped: List[str] = []
    queue: Deque[str] = deque([name])
    while queue:
        for child in children_of(journal.connection, run_id, queue.popleft()):
            if child.state not in _WAITING:
                continue
            fate = _fate(child, parents_of(journal.connection, run_id, child.name))
            if fate[0] == TaskState.SKIPPED:
                _adopt(journal, run_id, child, fate)
                skipped.append(child.name)
                queue.append(child.name)
    return skipped


def stop_strict_children(journal: Journal, run_id: str, name: str) -> List[str]:
    """After an operator skipped ``name``: stop the waiting children that accept nothing but its success."""
    stopped: List[str] = []
    for child in children_of(journal.connection, run_id, name):
        if child.rule == "all_success_strict" and child.state in _WAITING:
            _stop(journal, run_id, child.name, child.state, child.generation, name)
            stopped.append(child.name)
            below = propagate_failure(journal, run_id, child.name)
            for grandchild in below:
                journal.change(run_id, grandchild, {"blocked_by": name})
            stopped += below
    return stopped


# --- The cause is gone ---------------------------------------------------------------------------------------------


def unpropagate(journal: Journal, run_id: str, names: Iterable[str]) -> List[str]:
    """Bring back the descendants of ``names`` that nothing stops any more; answer with their names.

    ``names`` have just left FAILED, CANCELLED or SKIPPED. A diamond whose other side has failed stays UPSTREAM_FAILED,
    and ``blocked_by`` then names that side.
    """
    held = _derived_descendants(journal.connection, run_id, names)
    fates: Dict[str, Fate] = {}
    freed: List[str] = []
    for row, parents in _parents_first(journal.connection, run_id, held):
        fate = _fate(row, [_with_fate(parent, fates.get(parent.name)) for parent in parents])
        fates[row.name] = fate
        if _adopt(journal, run_id, row, fate) and fate[0] == TaskState.PENDING:
            freed.append(row.name)
    return freed


def _derived_descendants(connection: sqlite3.Connection, run_id: str, names: Iterable[str]) -> Dict[str, Row]:
    """Descendants that are what they are because of somebody above, as far as they hang together.

    Of ``names`` themselves those that are so: an undo puts such tasks back while their cause may be gone.
    """
    queue = deque(names)
    found = {name: row for name in queue for row in [row_of(connection, run_id, name)] if row and _is_derived(row)}
    while queue:
        for child in children_of(connection, run_id, queue.popleft()):
            if child.name not in found and _is_derived(child):
                found[child.name] = child
                queue.append(child.name)
    return found


def _is_derived(row: Row) -> bool:
    cascaded = row.state == TaskState.SKIPPED and row.skip_cause == SkipCause.CASCADE
    return cascaded or row.state == TaskState.UPSTREAM_FAILED


def _parents_first(
    connection: sqlite3.Connection, run_id: str, rows: Dict[str, Row]
) -> Iterable[Tuple[Row, List[Row]]]:
    parents = {name: parents_of(connection, run_id, name) for name in rows}
    waits = {name: sum(1 for parent in parents[name] if parent.name in rows) for name in rows}
    children: Dict[str, List[str]] = {}
    for name in rows:
        for parent in parents[name]:
            children.setdefault(parent.name, []).append(name)
    queue = deque(name for name, count in waits.items() if count == 0)
    while queue:
        name = queue.popleft()
        yield rows[name], parents[name]
        for child in children.get(name, ()):
            waits[child] -= 1
            if waits[child] == 0:
                queue.append(child)


def _with_fate(row: Row, fate: Optional[Fate]) -> Row:
    return row if fate is None else row._replace(state=fate[0], skip_cause=fate[1], blocked_by=fate[2])


def _fate(row: Row, parents: List[Row]) -> Fate:
    """What its parents make of a task that has not started: PENDING, UPSTREAM_FAILED (by whom), or SKIPPED."""
    if row.rule == "all_done":
        return TaskState.PENDING, None, None
    causes = [cause for cause in (_cause(row, parent) for parent in parents) if cause is not None]
    if causes:
        return TaskState.UPSTREAM_FAILED, None, row.blocked_by if row.blocked_by in causes else causes[0]
    if _is_skipped_by(row, parents):
        return TaskState.SKIPPED, str(SkipCause.CASCADE), None
    return TaskState.PENDING, None, None


def _cause(row: Row, parent: Row) -> Optional[str]:
    """The failed ancestor that a parent stands for; None where the parent stops nothing."""
    if parent.state in (TaskState.FAILED, TaskState.CANCELLED):
        return parent.name
    if parent.state == TaskState.UPSTREAM_FAILED:
        return parent.blocked_by or parent.name
    by_operator = parent.state == TaskState.SKIPPED and parent.skip_cause == SkipCause.OPERATOR
    return parent.name if by_operator and row.rule == "all_success_strict" else None


def _is_skipped_by(row: Row, parents: List[Row]) -> bool:
    not_taken = [
        parent for parent in parents if parent.state == TaskState.SKIPPED and parent.skip_cause != SkipCause.OPERATOR
    ]
    if row.rule == "none_failed":  # goes on with what there is, unless there is nothing
        return bool(parents) and len(not_taken) == len(parents)
    return bool(not_taken)


def _adopt(journal: Journal, run_id: str, row: Row, fate: Fate) -> bool:
    """Write a fate. False: the task is there already."""
    state, skip_cause, blocked_by = fate
    if state == row.state:
        if blocked_by != row.blocked_by:
            journal.change(run_id, row.name, {"blocked_by": blocked_by})
        return False
    ended_at = None if state == TaskState.PENDING else journal.at
    columns: TaskColumns = {"skip_cause": skip_cause, "blocked_by": blocked_by, "ended_at": ended_at}
    return journal.move(run_id, row.name, row.state, state, row.generation, set=columns)


# --- A parent runs again -------------------------------------------------------------------------------------------


def hold_back(journal: Journal, run_id: str, names: Iterable[str]) -> List[str]:
    """Let the children of ``names`` that were about to start wait for them again; answer with their names.

    One that has meanwhile lost another parent for good is stopped instead.
    """
    held: List[str] = []
    sql = "SELECT child FROM edge WHERE run_id = ? AND parent = ?"
    for name in names:
        for (child,) in journal.connection.execute(sql, (run_id, name)).fetchall():
            if wait_again(journal, run_id, child, waits_for=name):
                held.append(child)
    return held


_ABOUT_TO_START = (
    "SELECT state, generation FROM task WHERE run_id = ? AND name = ? AND state IN ('READY', 'RETRYING', 'SENSING')"
    " AND EXISTS (" + UNSATISFIED_PARENT + ")"
)


def wait_again(journal: Journal, run_id: str, name: str, waits_for: Optional[str] = None) -> bool:
    """Make a task that is about to start wait for its parents, or stop with them. False: all of them allow it.

    Without this a task that ran while its parent was requeued, and failed, would wait in RETRYING for ever.
    """
    row = journal.connection.execute(_ABOUT_TO_START, (run_id, name)).fetchone()
    payload = TaskMoved(waits_for=waits_for)
    if row is None or not journal.move(run_id, name, row[0], TaskState.PENDING, row[1], payload=payload):
        return False
    reconsider(journal, run_id, name)
    return True


def mark_stale(journal: Journal, run_id: str, names: Iterable[str]) -> List[str]:
    """Flag what ran, or runs, below ``names``: it did so before they were run again. Answers with the newly flagged."""
    below: Set[str] = set()
    for name in names:
        if name not in below:
            below.update(descendants_of(journal.connection, run_id, name))
    sql = "SELECT 1 FROM task WHERE run_id = ? AND name = ? AND state IN ('SUCCESS', 'RUNNING') AND stale = 0"
    stale = [name for name in sorted(below) if journal.connection.execute(sql, (run_id, name)).fetchone()]
    for name in stale:
        journal.change(run_id, name, {"stale": 1})
    return stale


def reconsider(journal: Journal, run_id: str, name: str) -> str:
    """Give a waiting task the state that its parents leave it, and its descendants theirs; answer with that state.

    For the one that was about to start when it turned out that a parent no longer allows it.
    """
    row = row_of(journal.connection, run_id, name)
    assert row is not None
    if row.state not in _WAITING:
        return row.state
    fate = _fate(row, parents_of(journal.connection, run_id, name))
    if fate[0] == TaskState.PENDING and row.state == TaskState.READY and not _is_held(journal, run_id, name):
        return row.state
    _adopt(journal, run_id, row, fate)
    if fate[0] == TaskState.UPSTREAM_FAILED:
        for below in propagate_failure(journal, run_id, name):
            journal.change(run_id, below, {"blocked_by": fate[2]})
    elif fate[0] == TaskState.SKIPPED:
        cascade_skip(journal, run_id, name)
    return fate[0]


def _is_held(journal: Journal, run_id: str, name: str) -> bool:
    sql = "SELECT EXISTS (" + UNSATISFIED_PARENT + ") FROM task WHERE run_id = ? AND name = ?"
    return bool(journal.connection.execute(sql, (run_id, name)).fetchone()[0])
