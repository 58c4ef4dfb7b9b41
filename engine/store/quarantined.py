"""The rows that an attempt quarantines: provisional until it succeeds, then held for an operator.

A row counts only if its attempt succeeds; otherwise retries would count it twice. Requeued rows run through the same
task in a new generation: a row that fails again is held again, the others are resolved (SPEC 000.31, 004.38, 4.15).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ..domain import event_payloads as payloads
from ..runner.protocol import BadRow
from ..statefile.quarantine import drop_provisional, emit_and_count, hold_requeued_rows
from ..statefile.transitions import Transaction
from .claims import Claim, emit

ERROR_CHARACTERS = 200  # in events; the row has the full text


def add_rows(transaction: Transaction, claim: Claim, rows: Sequence[BadRow]) -> None:
    """Write quarantined rows of a running attempt."""
    place = (claim.run_id, claim.task, claim.attempt, claim.generation)
    transaction.connection.executemany(
        "INSERT INTO quarantine (run_id, name, attempt, generation, row_key, payload, error, fingerprint, at)"
        " VALUES (?,?,?,?,?,?,?,?,?)",
        [(*place, row["row_key"], row["payload"], row["error"], row["fingerprint"], transaction.at) for row in rows],
    )
    latest = rows[-1]
    error = latest["error"][:ERROR_CHARACTERS]
    emit(
        transaction,
        claim,
        payloads.RowsChanged(payloads.RowsChange.PROVISIONAL, len(rows), row_key=latest["row_key"], error=error),
    )


def confirm_rows(transaction: Transaction, claim: Claim) -> None:
    """Hold the quarantined rows of a successful attempt, and resolve the earlier rows that it processed again.

    Call it if the task has rows. These are the requeued rows of its generation, or else all earlier rows of the task.
    """
    connection, task = transaction.connection, (claim.run_id, claim.task)
    resolved = connection.execute(
        "UPDATE quarantine SET state = 'resolved' WHERE run_id = ? AND name = ? AND state = 'requeued'"
        " AND generation = ?",
        (*task, claim.generation),
    ).rowcount
    if not resolved:
        connection.execute(
            "UPDATE quarantine SET state = 'resolved' WHERE run_id = ? AND name = ? AND state IN ('held', 'requeued')",
            task,
        )
    held = connection.execute(
        "UPDATE quarantine SET state = 'held' WHERE run_id = ? AND name = ? AND attempt = ? AND state = 'provisional'",
        (*task, claim.attempt),
    ).rowcount
    emit_and_count(transaction, *task, payloads.RowsChanged(payloads.RowsChange.HELD, held, resolved), claim.attempt)


def discard_rows(transaction: Transaction, claim: Claim, *, final: bool) -> None:
    """Drop the quarantined rows of a failed attempt.

    ``final``: no automatic retry follows, so requeued rows are held again.
    """
    task = (claim.run_id, claim.task)
    if not _has_rows(transaction.connection, *task):
        return
    dropped = drop_provisional(transaction, *task, claim.attempt)
    if final:
        hold_requeued_rows(transaction, *task)
    if dropped or final:
        emit_and_count(transaction, *task, payloads.RowsChanged(payloads.RowsChange.DROPPED, dropped), claim.attempt)


def _has_rows(connection: sqlite3.Connection, run_id: str, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM quarantine WHERE run_id = ? AND name = ? LIMIT 1", (run_id, name))
    return found.fetchone() is not None
