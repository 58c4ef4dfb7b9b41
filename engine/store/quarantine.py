"""Rows that were bad while their task was good: provisional until the attempt succeeds, then held for an operator.

A row that an attempt set aside counts only with the success of that attempt, or a task that is retried would double
it. What an operator sends back runs through the same task in a new generation; a row that fails there again is held
again, one that does not is resolved (SPEC 000.31, 004.38, 4.15).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from ..domain.event_payloads import RowsChange, RowsChanged
from ..statefile.changes.quarantine_actions import drop_provisional, hold_again
from ..statefile.changes.transitions import Journal

#: As a row travels to the attempt: its key, and what it held when it was set aside.
KeyAndPayload = tuple[str, str | None]

ERROR_CHARACTERS = 200  # in events; all of it is in the row


def add(
    journal: Journal, run_id: str, name: str, attempt: int, generation: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write rows that a running attempt has set aside: row_key, payload, error, fingerprint."""
    journal.connection.executemany(
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
                journal.at,
            )
            for row in rows
        ],
    )
    latest = rows[-1]
    error = str(latest.get("error") or "")[:ERROR_CHARACTERS]
    added = RowsChanged(RowsChange.PROVISIONAL, len(rows), row_key=str(latest["row_key"]), error=error)
    journal.emit(added, run_id, name, attempt=attempt, generation=generation)


def confirm(journal: Journal, run_id: str, name: str, attempt: int, generation: int) -> None:
    """The attempt succeeded: its bad rows are held from now on, and earlier ones of the task are dealt with.

    Earlier rows went through this attempt again: all of them, or those that an operator had sent back.
    """
    connection = journal.connection
    if not _has_rows(connection, run_id, name):
        return
    again = connection.execute(
        "UPDATE quarantine SET state = 'resolved' WHERE run_id = ? AND name = ? AND state = 'requeued'"
        " AND generation = ?",
        (run_id, name, generation),
    ).rowcount
    if not again:
        connection.execute(
            "UPDATE quarantine SET state = 'resolved' WHERE run_id = ? AND name = ? AND state IN ('held', 'requeued')",
            (run_id, name),
        )
    held = connection.execute(
        "UPDATE quarantine SET state = 'held' WHERE run_id = ? AND name = ? AND attempt = ? AND state = 'provisional'",
        (run_id, name, attempt),
    ).rowcount
    _count(journal, run_id, name, attempt, RowsChanged(RowsChange.HELD, held, again))


def discard(journal: Journal, run_id: str, name: str, attempt: int, final: bool) -> None:
    """The attempt did not succeed: what it set aside never counts. ``final``: nor will another attempt come by itself.

    Rows that an operator had sent back are held again then.
    """
    if not _has_rows(journal.connection, run_id, name):
        return
    dropped = drop_provisional(journal, run_id, name, attempt)
    if final:
        hold_again(journal, run_id, name)
    if dropped or final:
        _count(journal, run_id, name, attempt, RowsChanged(RowsChange.DISCARDED, dropped))


def _has_rows(connection: sqlite3.Connection, run_id: str, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM quarantine WHERE run_id = ? AND name = ? LIMIT 1", (run_id, name))
    return found.fetchone() is not None


def _count(journal: Journal, run_id: str, name: str, attempt: int, payload: RowsChanged) -> None:
    """Emit what became of rows, and keep ``task.bad_rows`` true."""
    journal.emit(payload, run_id, name, attempt=attempt)
    held, known = journal.connection.execute(
        "SELECT (SELECT count(*) FROM quarantine WHERE run_id = task.run_id AND name = task.name AND state = 'held'),"
        " bad_rows FROM task WHERE run_id = ? AND name = ?",
        (run_id, name),
    ).fetchone()
    if held != known:
        journal.change(run_id, name, {"bad_rows": held})


def sent_back(connection: sqlite3.Connection, run_id: str, name: str, generation: int) -> tuple[KeyAndPayload, ...]:
    """Return the rows that this generation of a task is about; empty: about all of them."""
    rows = connection.execute(
        "SELECT row_key, payload FROM quarantine WHERE run_id = ? AND name = ? AND state = 'requeued'"
        " AND generation = ? ORDER BY id",
        (run_id, name, generation),
    )
    return tuple(rows.fetchall())
