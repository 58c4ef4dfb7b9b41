"""Table ``breaker``: breakers and retry budgets, kept across restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import cast

from ..core.breaker import PASSING, BreakerRecord, StoredBreaker
from ..domain.event_payloads import BreakerChanged
from ..statefile.changes.breaker_actions import release_runs
from ..statefile.changes.transitions import Transaction


def read_rows(connection: sqlite3.Connection) -> list[BreakerRecord]:
    """Return the rows of all breakers."""
    cursor = connection.execute("SELECT downstream, state, reopens_at, window, tokens, detail, changed_at FROM breaker")
    names = [column[0] for column in cursor.description]
    return [cast("BreakerRecord", dict(zip(names, values, strict=True))) for values in cursor.fetchall()]


def store(transaction: Transaction, rows: Mapping[str, StoredBreaker]) -> None:
    """Write breaker rows; emits no event."""
    for name, columns in rows.items():
        transaction.connection.execute(
            f"INSERT OR REPLACE INTO breaker (downstream, {', '.join(columns)}) VALUES (?{',?' * len(columns)})",
            (name, *columns.values()),
        )


def emit_change(
    transaction: Transaction, run_id: str, change: BreakerChanged, rows: Mapping[str, StoredBreaker]
) -> None:
    """Write breaker rows with the event of a change of state."""
    store(transaction, rows)
    transaction.emit(change, run_id)
    if change.state in PASSING:
        release_runs(transaction, change.downstream)
