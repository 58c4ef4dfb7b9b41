"""The tasks of a run that failed alike: counted as evidence, and ended together once the failure is proven to repeat.

1,247 tasks that read one corrupt file fail alike. Three of them prove it with two failures each; every other needs one
start: it becomes a dead letter at its first failure, or at once if it waits for its retry.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from ..core.decide import SIBLINGS_MIN, SIBLINGS_REASON, Siblings
from ..core.failures.determinism import nature_of
from ..core.outcome import Failure, FailureMode
from ..core.spec import TaskSpec
from ..domain.event_columns import TaskColumns
from ..domain.event_payloads import TaskMoved
from ..domain.states import DeadLetterKind, TaskState
from ..statefile.changes.transitions import Transaction
from .expiry import expires_at
from .history import healed_count
from .pages import PageRequest, trigger_page

#: SQL: other tasks of the run whose latest failure is the same. A requeue forgets the failure of its task.
_SAME = "FROM task WHERE run_id = :run AND failure_fingerprint = :fingerprint AND name <> :name"
_CONDITIONS = ("", " AND state = 'DEAD_LETTER' AND dead_letter_kind = 'poison'", " AND state = 'SUCCESS'")
_COUNTS = ", ".join(f"(SELECT count(*) FROM (SELECT 1 {_SAME}{condition} LIMIT :most))" for condition in _CONDITIONS)

#: Those that wait for their next attempt. What an operator changed for a generation (a canary, too) stays his.
_WAITING = (
    f"SELECT name, state, generation, spec {_SAME} AND state IN ('RETRYING', 'READY') AND overrides IS NULL"
    " AND canary IS NULL ORDER BY position"
)


def read_siblings(connection: sqlite3.Connection, run_id: str, name: str, fingerprint: str) -> Siblings:
    """Count the other tasks of the run that failed with this strict fingerprint; an index bounds the work."""
    place = {"run": run_id, "name": name, "fingerprint": fingerprint, "most": SIBLINGS_MIN}
    return Siblings(*connection.execute(f"SELECT {_COUNTS}", place).fetchone())


def end_siblings(transaction: Transaction, run_id: str, name: str, failure: Failure) -> None:
    """Make dead letters of those that failed like ``name`` and wait for a retry, once all of them are proof."""
    fingerprint = failure.fingerprint.strict
    every = read_siblings(transaction.connection, run_id, "", fingerprint)  # ``name`` included
    if nature_of(failure) is None or not every.are_proof:
        return
    columns: TaskColumns = {
        "ended_at": transaction.at,
        "next_retry_at": None,
        "failure_mode": str(FailureMode.POISONED),
        "dead_letter_kind": str(DeadLetterKind.POISON),
    }
    if expires := expires_at(transaction.connection, run_id, transaction.at):
        columns["expires_at"] = expires
    payload = TaskMoved(why=SIBLINGS_REASON, explain=failure.fingerprint.explain)
    for state, generation, spec in _waiting(transaction.connection, run_id, name, fingerprint):
        moved = transaction.move(
            run_id, spec.name, state, TaskState.DEAD_LETTER, generation, set=columns, payload=payload
        )
        if moved:
            trigger_page(transaction, _page_request(run_id, spec, failure))


def _waiting(
    connection: sqlite3.Connection, run_id: str, name: str, fingerprint: str
) -> Iterator[tuple[TaskState, int, TaskSpec]]:
    place = {"run": run_id, "name": name, "fingerprint": fingerprint}
    for sibling, state, generation, text in connection.execute(_WAITING, place).fetchall():
        spec = msgspec.json.decode(text, type=TaskSpec)
        if spec.retry.poison_after == "evidence" and not healed_count(connection, sibling, fingerprint):
            yield TaskState(state), int(generation), msgspec.structs.replace(spec, name=sibling)


def _page_request(run_id: str, spec: TaskSpec, failure: Failure) -> PageRequest:
    return PageRequest(
        run_id=run_id,
        task=spec.name,
        title="poison-pill",
        why=SIBLINGS_REASON,
        kind=DeadLetterKind.POISON,
        mode=FailureMode.POISONED,
        failure=failure,
        downstream=spec.downstream,
        owner=spec.owner,
    )
