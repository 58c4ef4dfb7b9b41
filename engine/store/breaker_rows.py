"""Table ``breaker``: breakers and retry budgets as they are kept across restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from ..domain.event_payloads import BreakerChanged
from ..statefile.changes.transitions import Journal


def read_rows(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """What the file remembers of all breakers."""
    cursor = connection.execute("SELECT downstream, state, reopens_at, window, tokens, detail, changed_at FROM breaker")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def store(journal: Journal, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write breaker rows; emits no event."""
    for name, columns in rows.items():
        journal.connection.execute(
            f"INSERT OR REPLACE INTO breaker (downstream, {', '.join(columns)}) VALUES (?{',?' * len(columns)})",
            (name, *columns.values()),
        )


def emit_change(journal: Journal, run_id: str, change: BreakerChanged, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write breaker rows with the event of a change of state."""
    store(journal, rows)
    journal.emit(change, run_id)
