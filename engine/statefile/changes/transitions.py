"""What a state change writes: one guarded UPDATE of the task and one event, in the caller's transaction.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``Transaction.move`` is the only place where a task changes its state. Its UPDATE is guarded by the expected state and
generation: if another writer was first, it changes no row, emits no event and returns False. The caller owns BEGIN and
COMMIT.
"""

import json
import sqlite3
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ...domain.command import BY_EXECUTOR, Author
from ...domain.event_codec import encode, kind_of
from ...domain.event_columns import AttemptColumns, TaskColumns
from ...domain.event_payloads import NO_TASK_COLUMNS, Payload, RunChanged, TaskChanged, TaskMoved
from ...domain.events import Event
from ...domain.states import LEGAL_MOVES

_INSERT_EVENT = (
    "INSERT INTO event (at, kind, run_id, task, old, new, attempt, generation, actor, reason, command_id, data)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
)

_update_cache: Dict[Tuple[str, ...], str] = {}


def _update_task(columns: Tuple[str, ...], guard: str) -> str:
    key = (guard,) + columns
    sql = _update_cache.get(key)
    if sql is None:
        assignments = "".join(", {} = ?".format(column) for column in columns)
        sql = "UPDATE task SET state = ?{} WHERE run_id = ? AND name = ? AND state = ? AND generation = ?{}".format(
            assignments, guard
        )
        _update_cache[key] = sql
    return sql


def _assign(columns: Iterable[str]) -> str:
    return ", ".join(map("{} = ?".format, columns))


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
        set: Optional[TaskColumns] = None,
        attempt: Optional[int] = None,
        payload: Optional[TaskMoved] = None,
        guard: str = "",
        guarded: Iterable[object] = (),
    ) -> bool:
        """Move one task from ``old`` (in ``generation``) to ``new`` and emit it. False: the task has moved since.

        ``set``: further columns of the task. ``payload``: further fields of the event. ``guard``: SQL from AND on that
        must hold of the task as well, with the values ``guarded``. Raises ValueError for a move outside LEGAL_MOVES.
        """
        old, new = str(old), str(new)
        if new not in LEGAL_MOVES[old]:
            raise ValueError("illegal move of {!r}: {} -> {}".format(name, old, new))
        columns = set or NO_TASK_COLUMNS
        self._before_change(run_id, name, columns)
        values = [new] + list(columns.values()) + [run_id, name, old, generation] + list(guarded)
        cursor = self.connection.execute(_update_task(tuple(columns), guard), values)
        if cursor.rowcount != 1:
            return False
        self.emit(
            payload._replace(set=columns, act=self.act or payload.act) if payload else TaskMoved(columns, act=self.act),
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
        set: TaskColumns,
        attempt: Optional[int] = None,
        why: Optional[str] = None,
        act: Optional[str] = None,
    ) -> None:
        """Change columns of a task that keeps its state, and emit it. ``why`` and ``act`` go into the event only."""
        self._before_change(run_id, name, set)
        self.connection.execute(
            "UPDATE task SET {} WHERE run_id = ? AND name = ?".format(_assign(set)), list(set.values()) + [run_id, name]
        )
        self.emit(TaskChanged(set, why=why, act=act or self.act), run_id, name, attempt=attempt)

    def change_run(self, run_id: str, change: RunChanged, old: Optional[str] = None, new: Optional[str] = None) -> None:
        """Write the columns ``change.set`` of a run, and emit the change."""
        columns = change.set
        self._before_run_change(run_id, change)
        if columns:
            self.connection.execute(
                "UPDATE run SET {} WHERE run_id = ?".format(_assign(columns)), list(columns.values()) + [run_id]
            )
        self.emit(change, run_id, old=old, new=new)

    def _before_change(self, run_id: str, name: str, columns: Mapping[str, object]) -> None:
        """Called before columns of a task change, beside its state and generation."""

    def _before_run_change(self, run_id: str, change: RunChanged) -> None:
        """Called before columns of a run change."""

    def insert(self, table: str, row: Mapping[str, object]) -> int:
        """Insert a row, and return its number; the caller emits the event, which carries the columns that are shown."""
        sql = "INSERT INTO {} ({}) VALUES ({})".format(table, ", ".join(row), ",".join("?" * len(row)))
        return self.connection.execute(sql, list(row.values())).lastrowid or 0

    def change_attempt(self, run_id: str, name: str, attempt: int, set: AttemptColumns) -> None:
        """Change columns of an attempt; the caller emits an event with those that the console shows."""
        self.connection.execute(
            "UPDATE attempt SET {} WHERE run_id = ? AND name = ? AND attempt = ?".format(_assign(set)),
            list(set.values()) + [run_id, name, attempt],
        )

    def emit(
        self,
        payload: Payload,
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
