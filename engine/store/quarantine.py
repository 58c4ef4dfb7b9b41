"""Quarantined rows of successful tasks: provisional until the attempt succeeds, then held for an operator.

A row counts only if its attempt succeeds; otherwise retries would count it twice. Requeued rows run through the same
task in a new generation: a row that fails again is held again, the others are resolved (SPEC 000.31, 004.38, 4.15).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from ..domain.event_codec import decode
from ..domain.event_payloads import RowsChange, RowsChanged, TaskMoved
from ..domain.events import EventKind
from ..runner.listener import BadRow
from ..statefile.quarantine import drop_provisional, emit_and_count, hold_requeued_rows
from ..statefile.transitions import Transaction

#: A requeued row: its key, and its payload when it was quarantined.
KeyAndPayload = tuple[str, str | None]

ERROR_CHARACTERS = 200  # in events; the row has the full text


def add(
    transaction: Transaction, run_id: str, name: str, attempt: int, generation: int, rows: Sequence[BadRow]
) -> None:
    """Write quarantined rows of a running attempt: row_key, payload, error, fingerprint."""
    transaction.connection.executemany(
        "INSERT INTO quarantine (run_id, name, attempt, generation, row_key, payload, error, fingerprint, at)"
        " VALUES (?,?,?,?,?,?,?,?,?)",
        [
            (
                run_id,
                name,
                attempt,
                generation,
                str(row["row_key"]),
                row.get("payload"),
                row.get("error"),
                row.get("fingerprint"),
                transaction.at,
            )
            for row in rows
        ],
    )
    latest = rows[-1]
    error = str(latest.get("error") or "")[:ERROR_CHARACTERS]
    added = RowsChanged(RowsChange.PROVISIONAL, len(rows), row_key=str(latest["row_key"]), error=error)
    transaction.emit(added, run_id, name, attempt=attempt, generation=generation)


def confirm(transaction: Transaction, run_id: str, name: str, attempt: int, generation: int) -> None:
    """Hold the quarantined rows of a successful attempt, and resolve the earlier rows that it processed again.

    Call it if the task has rows. These are the requeued rows of its generation, or else all earlier rows of the task.
    """
    connection = transaction.connection
    resolved = connection.execute(
        "UPDATE quarantine SET state = 'resolved' WHERE run_id = ? AND name = ? AND state = 'requeued'"
        " AND generation = ?",
        (run_id, name, generation),
    ).rowcount
    if not resolved:
        connection.execute(
            "UPDATE quarantine SET state = 'resolved' WHERE run_id = ? AND name = ? AND state IN ('held', 'requeued')",
            (run_id, name),
        )
    held = connection.execute(
        "UPDATE quarantine SET state = 'held' WHERE run_id = ? AND name = ? AND attempt = ? AND state = 'provisional'",
        (run_id, name, attempt),
    ).rowcount
    emit_and_count(transaction, run_id, name, RowsChanged(RowsChange.HELD, held, resolved), attempt)


def discard(transaction: Transaction, run_id: str, name: str, attempt: int, final: bool) -> None:
    """Drop the quarantined rows of a failed attempt.

    ``final``: no automatic retry follows, so requeued rows are held again.
    """
    if not _has_rows(transaction.connection, run_id, name):
        return
    dropped = drop_provisional(transaction, run_id, name, attempt)
    if final:
        hold_requeued_rows(transaction, run_id, name)
    if dropped or final:
        emit_and_count(transaction, run_id, name, RowsChanged(RowsChange.DROPPED, dropped), attempt)


def _has_rows(connection: sqlite3.Connection, run_id: str, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM quarantine WHERE run_id = ? AND name = ? LIMIT 1", (run_id, name))
    return found.fetchone() is not None


def earlier_result(connection: sqlite3.Connection, run_id: str, name: str) -> str | None:
    """Return what a task returned when it last succeeded, as JSON; a requeue clears the column of the task."""
    row = connection.execute(
        "SELECT data FROM event WHERE run_id = ? AND task = ? AND kind = ? AND new = 'SUCCESS'"
        " ORDER BY seq DESC LIMIT 1",
        (run_id, name, EventKind.TASK),
    ).fetchone()
    payload = None if row is None else decode(EventKind.TASK, json.loads(row[0]))
    return payload.set.get("result") if isinstance(payload, TaskMoved) else None


def requeued_rows(connection: sqlite3.Connection, run_id: str, name: str, generation: int) -> tuple[KeyAndPayload, ...]:
    """Return the rows that this generation of a task processes; empty: all rows."""
    rows = connection.execute(
        "SELECT row_key, payload FROM quarantine WHERE run_id = ? AND name = ? AND state = 'requeued'"
        " AND generation = ? ORDER BY id",
        (run_id, name, generation),
    )
    return tuple(rows.fetchall())
