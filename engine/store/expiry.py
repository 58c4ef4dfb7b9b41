"""Expiry of undecided dead letters: after ``dead_letter_ttl`` they become FAILED, and the run can end (SPEC 4.7)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from ..domain.durations import format_duration
from ..domain.event_columns import TaskColumns
from ..domain.event_payloads import TaskMoved
from ..domain.states import DeadLetterKind, TaskState
from ..statefile.changes.action import reopen_run
from ..statefile.changes.propagation import propagate
from ..statefile.changes.transitions import Transaction
from .pages import PageRequest, trigger_page


def expires_at(connection: sqlite3.Connection, run_id: str, at: int) -> int | None:
    """Return when a dead letter created at ``at`` expires; None: never. Times in microseconds UTC.

    It expires after the flow's ``dead_letter_ttl``, or at the deadline of the run if that is in the future and sooner.
    """
    ttl = _ttl_seconds(connection, run_id)
    if ttl is None:
        return None
    by_ttl = at + round(ttl * 1e6)
    row = connection.execute("SELECT deadline_at FROM run WHERE run_id = ?", (run_id,)).fetchone()
    deadline_at: int | None = row[0]
    return min(by_ttl, deadline_at) if deadline_at is not None and deadline_at > at else by_ttl


def _ttl_seconds(connection: sqlite3.Connection, run_id: str) -> float | None:
    row = connection.execute("SELECT options FROM run WHERE run_id = ?", (run_id,)).fetchone()
    ttl: float | None = json.loads(row[0]).get("dead_letter_ttl") if row is not None else None
    return ttl


def expire(transaction: Transaction, run_id: str, seen: Mapping[str, int]) -> None:
    """Fail the tasks that are still dead letters and wait for no canary. The caller has checked ``expires_at``.

    ``seen``: by name, the generation that the caller saw.
    """
    for name, generation in seen.items():
        row = transaction.connection.execute(
            "SELECT ended_at, dead_letter_kind FROM task WHERE run_id = ? AND name = ? AND state = 'DEAD_LETTER'"
            " AND expires_at IS NOT NULL AND canary IS NULL",
            (run_id, name),
        ).fetchone()
        if row is not None:
            _expire(transaction, run_id, name, generation, *row)
    reopen_run(transaction, run_id)  # its children may start, or it ends: also if this executor dies now


def _expire(
    transaction: Transaction, run_id: str, name: str, generation: int, ended_at: int | None, kind: str | None
) -> None:
    waited_us = None if ended_at is None else transaction.at - ended_at
    counts_at_once = _ttl_seconds(transaction.connection, run_id) == 0
    waited = "" if waited_us is None else f" for {format_duration(waited_us)}"
    why = (
        "a dead letter counts as failed: dead_letter_ttl=0"
        if counts_at_once
        else (f"no operator has decided about it{waited}: dead_letter_ttl")
    )
    columns: TaskColumns = {"expires_at": None}
    payload = TaskMoved(why=why)
    if not transaction.move(
        run_id, name, TaskState.DEAD_LETTER, TaskState.FAILED, generation, set=columns, payload=payload
    ):
        return
    propagate(transaction, run_id, name)
    if counts_at_once:
        return  # the page about the dead letter is as old as the failure
    known = None if kind is None else DeadLetterKind(kind)
    trigger_page(transaction, PageRequest(run_id=run_id, task=name, title="dead letter expired", why=why, kind=known))
