"""Finds a row that no redrive has written: the reason why a state file of a stranger cannot be shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ..core.breaker import BreakerState
from ..core.spec import TaskSpec
from ..domain.states import DeadLetterKind, RunState, SkipCause, TaskState
from ..domain.trigger_rules import RULES
from ..errors import CorruptFileError, RedriveError
from ..statefile.header import has_content
from ..statefile.open_readonly import TABLES
from . import database

INSTANT_MAX_US = 253_370_764_800_000_000  # the year 9999, which has a local time in every zone

#: Columns that hold a word of a list; SQLite checks it only while it writes.
_WORDS: dict[tuple[str, str], frozenset[str]] = {
    ("run", "state"): frozenset(RunState),
    ("task", "state"): frozenset(TaskState),
    ("task", "rule"): frozenset(RULES),
    ("task", "skip_cause"): frozenset(SkipCause),
    ("task", "dead_letter_kind"): frozenset(DeadLetterKind),
    ("breaker", "state"): frozenset(BreakerState),
    ("event", "old"): frozenset(RunState) | frozenset(TaskState),
    ("event", "new"): frozenset(RunState) | frozenset(TaskState),
}
#: Columns that hold JSON, and its type.
_JSON: dict[tuple[str, str], type] = {
    ("run", "params"): dict,
    ("run", "options"): dict,
    ("task", "overrides"): dict,
    ("attempt", "fingerprint_detail"): dict,
    ("event", "data"): dict,
    ("page", "body"): dict,
    ("breaker", "window"): list,
    ("breaker", "detail"): dict,
}
_TYPES = {
    "INTEGER": {"integer", "null"},
    "TEXT": {"text", "null"},
    "REAL": {"real", "integer", "null"},
    "BLOB": {"blob", "null"},
}
_STRAY_EDGES = (
    "SELECT e.run_id, e.child, e.parent FROM edge e"
    " LEFT JOIN task c ON c.run_id = e.run_id AND c.name = e.child"
    " LEFT JOIN task p ON p.run_id = e.run_id AND p.name = e.parent WHERE c.name IS NULL OR p.name IS NULL LIMIT 1"
)
_STRAY_ROWS = (
    "SELECT 'attempt', run_id, name, 'task' FROM attempt WHERE (run_id, name) NOT IN (SELECT run_id, name FROM task)"
    " UNION ALL SELECT 'task', run_id, name, 'run' FROM task WHERE run_id NOT IN (SELECT run_id FROM run) LIMIT 1"
)


def require_known_rows(path: str) -> None:
    """Read every row. Raises CorruptFileError that names the first one with an unknown value."""
    with database.reading(path) as connection:
        for problem in _problems(connection):
            raise CorruptFileError(f"{path} is damaged: {problem}; restore a copy")


@contextmanager
def explained_by_rows(path: str) -> Iterator[None]:
    """Turn an exception in the block into a CorruptFileError that names the bad row, or into an error for SQLite's."""
    try:
        yield
    except (RedriveError, OSError):
        raise
    except sqlite3.Error as error:
        raise database.translate(error, path) from error
    except Exception:
        if has_content(path):
            require_known_rows(path)
        raise


def _problems(connection: sqlite3.Connection) -> Iterator[str]:
    for table in sorted(TABLES):
        columns = [(name, kind) for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")]
        types = ", ".join(f"typeof({name})" for name, _ in columns)
        for values in connection.execute(f"SELECT *, {types} FROM {table}"):
            found = zip(columns, values[: len(columns)], values[len(columns) :], strict=True)
            for (name, kind), value, stored in found:
                if stored not in _TYPES.get(kind, ()) or not _is_known(table, name, value):
                    yield f"table {table}, {columns[0][0]} {values[0]!r:.60}: no redrive writes this {name}"
    for run_id, child, parent in connection.execute(_STRAY_EDGES):
        yield f"table edge, run {run_id!r}: {child!r} after {parent!r} names no task"
    for table, run_id, name, missing in connection.execute(_STRAY_ROWS):
        yield f"table {table}, run {run_id!r}, {name!r}: there is no such {missing}"


def _is_known(table: str, column: str, value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= INSTANT_MAX_US
    if not isinstance(value, str):
        return True
    words = _WORDS.get((table, column))
    if words is not None:
        return value in words
    if (table, column) == ("task", "spec"):
        return value == "{}" or _decodes(value, TaskSpec)
    return (table, column) not in _JSON or _decodes(value, _JSON[table, column])


def _decodes(text: str, kind: type) -> bool:
    try:
        msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError, RedriveError):
        return False
    return True
