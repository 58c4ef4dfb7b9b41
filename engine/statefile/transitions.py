"""State changes: one guarded UPDATE of the task and one event, in the caller's transaction.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``Transaction.move`` is the only place where a task changes its state. Its UPDATE is guarded by the expected state and
generation: if another writer was first, it changes no row, emits no event and returns False. The caller owns BEGIN and
COMMIT.
"""

import json
import sqlite3
from functools import lru_cache
from typing import Collection, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..domain import event_payloads as payloads
from ..domain import trigger_rules
from ..domain.acts import BY_EXECUTOR, Author
from ..domain.event_codec import encode, kind_of
from ..domain.events import Event
from ..domain.states import LEGAL_MOVES, OPEN, RAN, SkipCause, TaskState, deadline_cause
from ..domain.task_options import child_bounds
from ..domain.trigger_rules import STATES_OF, DerivedState, ParentStatus, TaskGraph, TaskNode, rules_with
from .lists import FOLLOWS_RUN
from .sql import IS_MAP, in_list, marks, run_columns

_INSERT_EVENT = (
    "INSERT INTO event (at, kind, run_id, task, old, new, attempt, generation, actor, reason, command_id, data)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
)


@lru_cache(maxsize=None)
def _update_task(columns: Tuple[str, ...], guard: str) -> str:
    assignments = "".join(f", {column} = ?" for column in columns)
    where = f"run_id = ? AND name = ? AND state = ? AND generation = ?{guard}"
    return f"UPDATE task SET state = ?{assignments} WHERE {where}"


class Transaction(object):
    """Writes changes with their events inside the caller's transaction.

    ``at`` is the instant of all changes, in microseconds UTC. ``events`` collects the emitted events, which the caller
    applies to its projection after the COMMIT. ``act``: of an operator, named in the events of tasks.
    """

    act: Optional[str] = None
    dump = staticmethod(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode)

    def __init__(self, connection: sqlite3.Connection, at: int, author: Author = BY_EXECUTOR) -> None:
        self.connection = connection
        self.at = at
        self.author = author
        self.events: List[Event] = []

    def move(
        self,
        run_id: str,
        name: str,
        old: str,
        new: str,
        generation: int,
        set: Optional[payloads.TaskColumns] = None,
        attempt: Optional[int] = None,
        payload: Optional[payloads.TaskMoved] = None,
        guard: str = "",
        guarded: Iterable[object] = (),
        token: Optional[str] = None,
    ) -> bool:
        """Move one task from ``old`` (in ``generation``) to ``new`` and emit it. False: the task has moved since.

        ``set``: further columns of the task. ``payload``: further fields of the event. ``guard``: SQL from AND on that
        must hold of the task as well, with the values ``guarded``. ``token``: of the attempt that starts, for nobody
        but its executor, so the event does not have it. Raises ValueError for a move outside LEGAL_MOVES.
        """
        old, new = str(old), str(new)
        if new not in LEGAL_MOVES[old]:
            raise ValueError(f"illegal move of {name!r}: {old} -> {new}")
        columns = set or payloads.EMPTY
        self._before_change(run_id, name, columns)
        written = columns if token is None else dict(columns, claim_token=token)
        values = [new] + list(written.values()) + [run_id, name, old, generation] + list(guarded)
        cursor = self.connection.execute(_update_task(tuple(written), guard), values)
        if cursor.rowcount != 1:
            return False
        moved = payload or payloads.TaskMoved()
        self.emit(
            moved._replace(set=columns, act=self.act or moved.act),
            run_id,
            name,
            old=old,
            new=new,
            attempt=attempt,
            generation=columns.get("generation", generation),
        )
        return True

    def change(
        self,
        run_id: str,
        name: str,
        set: payloads.TaskColumns,
        attempt: Optional[int] = None,
        why: Optional[str] = None,
        act: Optional[str] = None,
        attempt_set: payloads.AttemptColumns = payloads.EMPTY,
    ) -> None:
        """Change columns of a task that keeps its state, and emit it.

        ``why``, ``act`` and ``attempt_set`` go into the event only: the caller has changed that attempt.
        """
        self._before_change(run_id, name, set)
        self._update("task", set, "run_id = ? AND name = ?", run_id, name)
        changed = payloads.TaskChanged(set, why=why, act=act or self.act, attempt_set=attempt_set)
        self.emit(changed, run_id, name, attempt=attempt)

    def restore(
        self,
        run_id: str,
        name: str,
        now: str,
        state: str,
        generation: int,
        set: payloads.TaskColumns,
        why: Optional[str] = None,
    ) -> None:
        """Give a task that is ``now`` in another state an earlier state again, by way of PENDING if that is no move."""
        if state != now and state not in LEGAL_MOVES[now]:
            self.move(run_id, name, now, TaskState.PENDING, generation)
            now = str(TaskState.PENDING)
        if state != now:
            self.move(run_id, name, now, state, generation, set, payload=payloads.TaskMoved(why=why))
        elif set:
            self.change(run_id, name, set, why=why)

    def change_run(
        self, run_id: str, change: payloads.RunChanged, old: Optional[str] = None, new: Optional[str] = None
    ) -> None:
        """Write the columns ``change.set`` of a run, and emit the change.

        If that ends a time in which the run waited for a human, the time is added to ``waited_us``.
        """
        change = self._with_waited_time(run_id, change)
        self._before_run_change(run_id, change)
        if change.set:
            self._update("run", change.set, "run_id = ?", run_id)
        self.emit(change, run_id, old=old, new=new)

    def _with_waited_time(self, run_id: str, change: payloads.RunChanged) -> payloads.RunChanged:
        if change.set.get("blocked_since", 0) is not None and change.set.get("ended_at", 0) is not None:
            return change
        row = run_columns(self.connection, run_id, "blocked_since, ended_at, waited_us")
        if row is None or (row[0] is None and row[1] is None):
            return change
        began = row[0] if row[0] is not None else row[1]
        return change._replace(set=dict(change.set, waited_us=row[2] + max(self.at - began, 0)))

    def _before_change(self, run_id: str, name: str, columns: Mapping[str, object]) -> None:
        """Called before columns of a task change, beside its state and generation."""

    def _before_run_change(self, run_id: str, change: payloads.RunChanged) -> None:
        """Called before columns of a run change."""

    def before_page_change(self, page_id: int, task: Optional[str]) -> None:
        """Called before a page changes, or what it knows of a task, because of a task or of its run."""

    def insert(self, table: str, row: Mapping[str, object]) -> int:
        """Insert a row, and return its number; the caller emits the event, which carries the columns that are shown."""
        sql = "INSERT INTO {} ({}) VALUES ({})".format(table, ", ".join(row), marks(row))
        return self.connection.execute(sql, list(row.values())).lastrowid or 0

    def change_attempt(self, run_id: str, name: str, attempt: int, set: payloads.AttemptColumns) -> None:
        """Change columns of an attempt; the caller emits an event with those that the console shows."""
        self._update("attempt", set, "run_id = ? AND name = ? AND attempt = ?", run_id, name, attempt)

    def change_page(self, page_id: int, set: payloads.PageColumns) -> None:
        """Change columns of a page; the caller emits the event."""
        self._update("page", dict(set, updated_at=self.at), "id = ?", page_id)

    def _update(self, table: str, set: Mapping[str, object], where: str, *key: object) -> None:
        sql = "UPDATE {} SET {} WHERE {}".format(table, ", ".join(map("{} = ?".format, set)), where)
        self.connection.execute(sql, list(set.values()) + list(key))

    def emit(
        self,
        payload: payloads.Payload,
        run_id: Optional[str] = None,
        task: Optional[str] = None,
        old: Optional[str] = None,
        new: Optional[str] = None,
        attempt: Optional[int] = None,
        generation: Optional[int] = None,
    ) -> int:
        """Write one event and return its seq. The type of ``payload`` determines the kind."""
        columns = (self.at, kind_of(payload), run_id, task, old, new, attempt, generation) + self.author
        cursor = self.connection.execute(_INSERT_EVENT, columns + (self.dump(encode(payload)),))
        seq = int(cursor.lastrowid or 0)
        self.events.append(Event(seq, *columns, payload=payload))
        return seq


# --- Changes of pages that follow from their tasks -------------------------------------------------------------------
#
# A requeue re-arms a page, and its last resolved task resolves it.


_WAITING = (
    "SELECT page.id, page.cause, page.episode, page.rearmed FROM page_task"
    " JOIN page ON page.id = page_task.page_id AND page.state <> 'resolved'"
    " WHERE page_task.run_id = ? AND page_task.task = ? AND page_task.done = 0"
)


class _Page(NamedTuple):
    id: int
    cause: str
    episode: int
    rearmed: int


def rearm(transaction: Transaction, run_id: str, names: Iterable[str]) -> None:
    """Re-arm the pages of requeued tasks: if the cause returns, it is a new episode and pages again."""
    for name in names:
        for page in _pages_of(transaction, run_id, name):
            if not page.rearmed:
                transaction.before_page_change(page.id, name)
                _change(transaction, run_id, name, page, payloads.PageChange.REARMED, {"rearmed": 1})


def resolve(transaction: Transaction, run_id: str, name: str) -> None:
    """Mark a task as resolved in its pages: it succeeded, or an operator decided. The last task resolves the page."""
    for page in _pages_of(transaction, run_id, name):
        transaction.before_page_change(page.id, name)
        transaction.connection.execute(
            "UPDATE page_task SET done = 1 WHERE run_id = ? AND task = ? AND page_id = ?", (run_id, name, page.id)
        )
        left = transaction.connection.execute(
            "SELECT 1 FROM page_task WHERE page_id = ? AND done = 0 LIMIT 1", (page.id,)
        ).fetchone()
        if left is None:
            _change(transaction, run_id, name, page, payloads.PageChange.RESOLVED, {"state": "resolved"})


#: SQL: the bounds of the names of the children of ``task``, if it is a map task.
CHILDREN_FROM, CHILDREN_TO = (f"task.name || '{bound}'" for bound in child_bounds(""))
_EARLIER = (
    "SELECT DISTINCT page_task.run_id, page_task.task FROM run AS later CROSS JOIN page_task"
    " CROSS JOIN run ON run.run_id = page_task.run_id WHERE later.run_id = :run AND page_task.done = 0"
    " AND " + FOLLOWS_RUN + " AND "
)
_OF_TASK = "page_task.task = :task"
_OF_CHILDREN = "page_task.task >= :first AND page_task.task < :last"
_OF_VANISHED = (
    "NOT EXISTS (SELECT 1 FROM task WHERE task.run_id = later.run_id AND task.name IN"
    " (page_task.task, substr(page_task.task, 1, instr(page_task.task, '[') - 1))"
    " AND (task.name = page_task.task OR " + IS_MAP.format("task") + "))"
)


def resolve_by_success(transaction: Transaction, run_id: str, name: str, is_map: bool = False) -> None:
    """End the episodes of a task that has succeeded: in its run, and those that began in earlier runs.

    Of a map task also those of its children in earlier runs: these may have no such element now.
    """
    resolve(transaction, run_id, name)
    _resolve_earlier(transaction, run_id, _OF_TASK, {"task": name})
    if is_map:
        _resolve_earlier(transaction, run_id, _OF_CHILDREN, dict(zip(("first", "last"), child_bounds(name))))


def resolve_vanished(transaction: Transaction, run_id: str) -> None:
    """End the episodes of tasks that the flow has no more, once a run has succeeded without them."""
    _resolve_earlier(transaction, run_id, _OF_VANISHED, {})


_MISSED_DEADLINES = (
    "SELECT page.cause FROM run AS later CROSS JOIN page CROSS JOIN run ON run.run_id = page.run_id"
    " WHERE later.run_id = ? AND page.state <> 'resolved' AND page.cause = ? || run.run_id AND " + FOLLOWS_RUN
)


def resolve_deadlines(transaction: Transaction, run_id: str) -> None:
    """End the episodes of deadlines that earlier runs have missed, once a run has succeeded."""
    for (cause,) in transaction.connection.execute(_MISSED_DEADLINES, (run_id, deadline_cause(""))).fetchall():
        resolve_cause(transaction, cause)


def _resolve_earlier(transaction: Transaction, run_id: str, which: str, values: Mapping[str, str]) -> None:
    found = transaction.connection.execute(_EARLIER + which, dict(values, run=run_id))
    for earlier, name in found.fetchall():
        resolve(transaction, earlier, name)


def resolve_cause(transaction: Transaction, cause: str) -> None:
    """Resolve the pages of a cause without tasks."""
    sql = "SELECT id, cause, episode, rearmed, run_id FROM page WHERE cause = ? AND state <> 'resolved'"
    for *columns, run_id in transaction.connection.execute(sql, (cause,)).fetchall():
        transaction.before_page_change(columns[0], None)
        _change(transaction, run_id, None, _Page(*columns), payloads.PageChange.RESOLVED, {"state": "resolved"})


_LATEST_EPISODE = (
    "SELECT latest.id, latest.cause, latest.episode, latest.rearmed, latest.state, latest.acked_by, latest.sent_at"
    " FROM page JOIN page AS latest ON latest.cause = page.cause WHERE page.id = ? ORDER BY latest.episode DESC LIMIT 1"
)


def reopen_pages(transaction: Transaction, run_id: str, was: payloads.RowLists, names: Collection[str]) -> None:
    """Undo: the pages of these tasks are open again, as they were; those of the run, too, which name no task.

    Another failure may have opened the next episode of the cause: then they belong to that. ``was``: the entries that
    ``before_page_change`` recorded.
    """
    for page_id, state, rearmed, tasks in was:
        found = transaction.connection.execute(_LATEST_EPISODE, (page_id,)).fetchone()
        again = [name for name in tasks if name in names]
        if found is None or (tasks and not again):
            continue
        page, (now, acked_by, sent_at) = _Page(*found[:4]), found[4:]
        sql = "INSERT OR REPLACE INTO page_task (run_id, task, page_id) VALUES (?,?,?)"
        transaction.connection.executemany(sql, [(run_id, name, page.id) for name in again])
        flag = rearmed if len(again) == len(tasks) else page.rearmed
        if (page.id == page_id and (state, flag) != (now, page.rearmed)) or now == "resolved":
            columns = {"state": state, "rearmed": flag, "acked_by": acked_by, "sent_at": sent_at}
            _change(transaction, run_id, next(iter(again), None), page, payloads.PageChange.REOPENED, columns)


def _pages_of(transaction: Transaction, run_id: str, name: str) -> List[_Page]:
    return [_Page(*row) for row in transaction.connection.execute(_WAITING, (run_id, name)).fetchall()]


def _change(
    transaction: Transaction,
    run_id: Optional[str],
    name: Optional[str],
    page: _Page,
    what: str,
    columns: payloads.PageColumns,
) -> None:
    transaction.change_page(page.id, columns)
    transaction.emit(payloads.PageChanged(what, page.id, page.cause, page.episode, page=columns), run_id, name)


# --- Applies the trigger rules to a run in a state file, when a task ends or runs again ------------------------------
#
# ``domain/trigger_rules.py`` has the rules; here their graph is read and written with SQL. The edges of a run never
# change, so every function walks from a task along its edges:
#
# - ``propagate``: after the end of a task, stop or skip the descendants that cannot start.
# - ``unpropagate``: when a task runs again or ends in another way, derive the states again that follow from it.
# - ``hold_children``: when a task runs again, make its children wait for it.
# - ``mark_stale``: when a task runs again, flag the descendants that ran with its old result.


#: SQL: the run of ``task`` is over, so that its clean-ups wait for nobody's decision.
RUN_IS_OVER = (
    "EXISTS (SELECT 1 FROM run WHERE run.run_id = task.run_id"
    " AND coalesce(run.deadline_passed_at, run.abandoned_at) IS NOT NULL)"
)


def _satisfies(status: ParentStatus) -> str:
    """SQL: ``parent`` has this status, and it satisfies the rule of ``task``."""
    by_operator = (
        "(coalesce(parent.skip_cause, '') = '" + SkipCause.OPERATOR.value + "')"
    )  # of no cause: false, not NULL
    has_status = ["parent.state IN " + in_list(STATES_OF[status])] if status in STATES_OF else []
    if status is ParentStatus.FAILED:
        has_status.append("parent.state = 'DEAD_LETTER' AND " + RUN_IS_OVER)
    if status is ParentStatus.PERMITTED:
        has_status.append("parent.state = 'SKIPPED' AND " + by_operator)
    if status is ParentStatus.NOT_TAKEN:
        has_status.append("parent.state = 'SKIPPED' AND NOT " + by_operator)
    rules = in_list(rules_with(status))
    return "((" + " OR ".join(has_status) + ") AND coalesce(edge.rule, task.rule) IN " + rules + ")"


#: SQL: an edge of ``task`` whose parent does not allow it to start. A DEAD_LETTER holds its children under every rule,
#: until the run is over.
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

_TASK_COLUMNS = "task.name, task.state, task.generation, task.rule, task.skip_cause, task.blocked_by"
_TASK = "SELECT " + _TASK_COLUMNS + " FROM task WHERE run_id = ? AND name = ?"
_COLUMNS = _TASK_COLUMNS + ", edge.rule"
_IN_ORDER = " ORDER BY task.position, task.name"
# CROSS JOIN fixes the order of the loops: without statistics the planner may walk all edges for each task found.
_CHILDREN = (
    "SELECT " + _COLUMNS + " FROM edge INDEXED BY idx_edge_parent"
    " CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ?"
)
_PARENTS = (
    "SELECT " + _COLUMNS + " FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ?" + _IN_ORDER
)
_IS_HELD = "SELECT EXISTS (" + UNSATISFIED_PARENT + ") FROM task WHERE run_id = ? AND name = ?"
#: The last parents come first: most end in the order of the flow.
_OPEN_PARENT = (
    "SELECT 1 FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ? AND task.state IN " + in_list(OPEN) + ""
    " ORDER BY edge.parent DESC LIMIT 1"
)


def children_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[TaskNode]:
    """Direct children, in the order of the flow."""
    return [TaskNode(*values) for values in connection.execute(_CHILDREN + _IN_ORDER, (run_id, name))]


def parents_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[TaskNode]:
    """Direct parents, in the order of the flow."""
    return [TaskNode(*values) for values in connection.execute(_PARENTS, (run_id, name))]


def descendants_of(connection: sqlite3.Connection, run_id: str, name: str) -> List[str]:
    """All descendants of a task, nearest first."""
    return [name for (name,) in connection.execute(_DESCENDANTS, {"run": run_id, "name": name})]


class _RunGraph(TaskGraph):
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

    def has_open_parent(self, name: str) -> bool:
        return self._connection.execute(_OPEN_PARENT, (self._run_id, name)).fetchone() is not None

    def apply(self, task: TaskNode, derived: DerivedState) -> None:
        if derived.state == task.state:
            self._journal.change(self._run_id, task.name, {"blocked_by": derived.blocked_by})
            return
        columns: payloads.TaskColumns = {"skip_cause": derived.skip_cause, "blocked_by": derived.blocked_by}
        columns["ended_at"] = None if derived.state == TaskState.PENDING else self._journal.at
        self._journal.move(self._run_id, task.name, task.state, derived.state, task.generation, set=columns)

    def hold(self, task: TaskNode) -> None:
        self._journal.move(self._run_id, task.name, task.state, TaskState.PENDING, task.generation)


def propagate(transaction: Transaction, run_id: str, name: str) -> List[str]:
    return trigger_rules.propagate(_RunGraph(transaction, run_id), name)


def unpropagate(transaction: Transaction, run_id: str, names: Iterable[str]) -> List[str]:
    """Call ``trigger_rules.unpropagate`` on the state file."""
    return trigger_rules.unpropagate(_RunGraph(transaction, run_id), names)


def hold_children(transaction: Transaction, run_id: str, names: Iterable[str]) -> List[str]:
    return trigger_rules.hold_children(_RunGraph(transaction, run_id), names)


def hold_if_blocked(transaction: Transaction, run_id: str, name: str) -> bool:
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
    return trigger_rules.reevaluate(_RunGraph(transaction, run_id), name)
