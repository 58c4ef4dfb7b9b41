"""Previews an operator's act: applies it to an in-memory copy of the tasks that it can reach.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import sqlite3
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..domain.acts import DONE, ActPreview, parse_command
from ..domain.event_payloads import OperatorActed, TaskChanged
from ..domain.events import EventKind
from ..domain.states import PAUSED_NOTE, TaskState
from ..domain.trigger_rules import CHANGE_KINDS, change_kind
from .operator_actions import apply
from .sql import in_list, marks
from .transitions import Transaction, descendants_of, parents_of
from .undo import RecordedAct, find_act

_TABLES = ("run", "task", "attempt", "edge", "event", "page", "page_task", "quarantine", "breaker")
_OF_RUN = "WHERE run_id = ?"
_OF_TASK = "WHERE run_id = ? AND name = ?"
_LATEST_ATTEMPT = _OF_TASK + " AND attempt = (SELECT attempt FROM task WHERE run_id = ? AND name = ?)"
_STARTING = ("requeue", "skip")
_PAUSED = "SELECT 1 FROM run WHERE run_id = ? AND paused_since IS NOT NULL"
_INDEXES = ("idx_edge_parent", "idx_event_command")


def preview(connection: sqlite3.Connection, command: Dict[str, Any], at: Optional[int] = None) -> ActPreview:
    """Apply a command (in its JSON form) to a copy. The file is only read. ``at``: microseconds UTC; None: now."""
    at = int(time.time() * 1000000) if at is None else at
    asked = parse_command(command)
    run_id = asked.run_id or ""
    act = find_act(connection, str(asked.options.get("command") or ""))
    if act is not None:
        run_id = act.run_id or run_id
    roots = [target.task for target in asked.targets]
    roots += list(act.payload.was) if act is not None else []
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _copy(connection, copy, run_id, roots, act)
        transaction = Transaction(copy, at)
        answer = apply(transaction, asked._replace(reason=asked.reason or "preview"))
        done = [result.task for result in answer.results if result.outcome == DONE]
        blocked = _blocked_below(copy, run_id, done)
        acted = (event.payload for event in transaction.events if isinstance(event.payload, OperatorActed))
        notes = [note for payload in acted for note in payload.notes]
        if done and asked.act in _STARTING and copy.execute(_PAUSED, (run_id,)).fetchone() is not None:
            notes.append(PAUSED_NOTE)
        groups = _group(transaction, done)
        return ActPreview(*answer, stay_blocked=blocked, notes=notes, **groups)
    finally:
        copy.close()


def _copy(
    source: sqlite3.Connection, copy: sqlite3.Connection, run_id: str, roots: List[str], undone: Optional[RecordedAct]
) -> None:
    """Copy what an act on a run can reach. ``undone``: the act that it takes back, which may have changed more runs."""
    below: Set[str] = set()
    for root in roots:
        if root not in below:
            below.update(descendants_of(source, run_id, root))
    names = below.union(roots)
    parents = {parent.name for name in names for parent in parents_of(source, run_id, name)}
    wanted = names | parents
    for (sql,) in source.execute(f"SELECT sql FROM main.sqlite_master WHERE name IN {in_list(_TABLES + _INDEXES)}"):
        copy.execute(sql)
    rows = _RowCopier(source, copy)
    other_runs = [other for _, _, *other in undone.payload.was_run] if undone is not None else []
    for changed_run in {run_id}.union(*other_runs):
        rows.copy("run", _OF_RUN, (changed_run,))
    for table, where in (("page", ""), ("breaker", ""), ("page_task", _OF_RUN)):
        rows.copy(table, where, (run_id,) if where else ())
    rows.copy("event", "WHERE command_id IS NOT NULL AND run_id = ?", (run_id,))
    if undone is not None:
        rows.copy("event", "WHERE run_id = ? AND seq > ? AND command_id IS NULL", (run_id, undone.seq))
    for name in set(roots):
        rows.copy("attempt", _LATEST_ATTEMPT, (run_id, name) * 2)
    for name in wanted:
        rows.copy("task", _OF_TASK, (run_id, name))
    for name in names:
        rows.copy("quarantine", _OF_TASK, (run_id, name))
        rows.copy("edge", "WHERE run_id = ? AND child = ?", (run_id, name))


class _RowCopier(object):
    """Copies rows by the names of their columns, whose order differs between a new file and an upgraded one."""

    def __init__(self, source: sqlite3.Connection, copy: sqlite3.Connection) -> None:
        self._source = source
        self._copy = copy
        self._names: Dict[str, List[str]] = {}
        for table in _TABLES:
            self._names[table] = [row[1] for row in copy.execute(f"PRAGMA table_info({table})")]

    def copy(self, table: str, where: str, values: Tuple[object, ...]) -> None:
        names = self._names[table]
        rows = self._source.execute("SELECT {} FROM {} {}".format(", ".join(names), table, where), values)
        sql = "INSERT INTO {} ({}) VALUES ({})".format(table, ", ".join(names), marks(names))
        self._copy.executemany(sql, rows)


def _group(transaction: Transaction, done: List[str]) -> Dict[str, Any]:
    """Group the changed tasks by their first and last state, and by whether they were targets that were done.

    What the act moves away and back again, it does not change.
    """
    begin: Dict[str, str] = {}
    end: Dict[str, str] = {}
    stale: List[str] = []
    for event in transaction.events:
        if event.kind == EventKind.TASK and event.task is not None:
            begin.setdefault(event.task, str(event.old))
            end[event.task] = str(event.new)
        elif isinstance(event.payload, TaskChanged) and event.payload.set.get("stale"):
            stale.append(str(event.task))
    sorted_names: Dict[str, List[str]] = {kind: [] for kind in CHANGE_KINDS}
    for name, state in end.items():
        if state != begin[name]:
            sorted_names[change_kind(begin[name], state, name in done)].append(name)
    return dict(sorted_names, stale=stale)


def _blocked_below(copy: sqlite3.Connection, run_id: str, names: List[str]) -> List[Tuple[str, Optional[str]]]:
    blocked: Dict[str, Optional[str]] = {}
    sql = "SELECT blocked_by FROM task WHERE run_id = ? AND name = ? AND state = ?"
    for name in names:
        for below in descendants_of(copy, run_id, name):
            row = copy.execute(sql, (run_id, below, str(TaskState.UPSTREAM_FAILED))).fetchone()
            if row is not None:
                blocked[below] = row[0]
    return list(blocked.items())
