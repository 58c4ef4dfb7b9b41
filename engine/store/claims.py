"""What the executor's loop writes between attempts: it starts some, ends the run, or moves instants with the clock."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..core.dispatch_rules import END_WHEN_OPEN
from ..core.run_outcome import RunVerdict
from ..core.spec import TaskSpec
from ..domain.event_payloads import (
    AttemptColumns,
    AttemptEffect,
    AttemptExtended,
    ClockMoved,
    RunChange,
    RunChanged,
    TaskColumns,
)
from ..domain.liveness import effect_key
from ..domain.states import MOVING, WITH_INSTANT, DeadLetterKind, RunState, TaskState
from ..statefile.changes import canary
from ..statefile.changes.propagation import propagate
from ..statefile.changes.transitions import Journal
from ..statefile.state_lists import in_list
from . import quarantine, runs
from .expiry import expires_at
from .pages import Trouble, page


@dataclass(frozen=True, slots=True)
class Claim:
    """Which attempt this is: the token says whether the task still waits for it."""

    run_id: str
    name: str
    attempt: int
    generation: int
    token: str
    only_rows: tuple[quarantine.KeyAndPayload, ...] = ()  # the generation is about these quarantined rows alone
    checkpoint: str | None = None  # JSON that an earlier attempt of the generation left
    key_generation: int = 0  # that the idempotency key was made in


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """A task to be claimed, in the generation in which the executor saw it."""

    name: str
    generation: int
    spec: TaskSpec


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: columns that every attempt of an executor shares."""

    executor_id: str
    host: str
    code_hash: str | None
    params: Mapping[str, Any] = field(default_factory=dict)  # of the run
    image_hash: str | None = None  # interpreter and packages


def dispatch(
    journal: Journal, run_id: str, promote: Mapping[str, int], orders: Sequence[ClaimOrder], claimant: Claimant
) -> list[Claim]:
    """Make READY all whose parents allow it, and start those of ``orders`` that are READY then, in one transaction.

    ``promote``: names, and the generation in which each was seen.
    """
    ordered = {order.name: order.generation for order in orders}
    runs.promote(journal, run_id, {**promote, **ordered})
    runs.wake(journal, run_id, ordered)
    claims = (_claim(journal, run_id, order, claimant) for order in orders)
    return [claim for claim in claims if claim is not None]


def _claim(journal: Journal, run_id: str, order: ClaimOrder, claimant: Claimant) -> Claim | None:
    token = uuid.uuid4().hex[:16]
    spec = order.spec
    columns: AttemptColumns = {
        "executor_id": claimant.executor_id,
        "host": claimant.host,
        "code_hash": claimant.code_hash,
        "image_hash": claimant.image_hash,
        "params_hash": _hash(claimant.params, spec.params),
        "input_hash": _input_hash(journal, run_id, order.name),
        "timeout_us": None if spec.timeout is None else round(spec.timeout * 1e6),
        "grace_us": round(spec.grace_seconds * 1e6),
    }
    attempt = runs.claim(journal, run_id, order.name, order.generation, token, columns)
    if not attempt:
        return None
    only_rows = quarantine.sent_back(journal.connection, run_id, order.name, order.generation)
    checkpoint, key_generation = journal.connection.execute(
        "SELECT checkpoint, key_generation FROM task WHERE run_id = ? AND name = ?", (run_id, order.name)
    ).fetchone()
    if spec.effect:
        effect = AttemptEffect(effect_key(run_id, order.name, key_generation))
        journal.emit(effect, run_id, order.name, attempt=attempt, generation=order.generation)
    return Claim(run_id, order.name, attempt, order.generation, token, only_rows, checkpoint, key_generation)


def _hash(*values: Any) -> str:
    """To tell whether two attempts were given the same, and nothing else."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:12]


# CROSS JOIN: without statistics the planner may walk all tasks of the run for the parents of one.
_INPUTS = (
    "SELECT edge.parent, parent.state, parent.result FROM edge CROSS JOIN task AS parent"
    " ON parent.run_id = edge.run_id AND parent.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ? ORDER BY edge.parent"
)


def _input_hash(journal: Journal, run_id: str, name: str) -> str | None:
    """None for a task that nobody hands anything."""
    inputs = journal.connection.execute(_INPUTS, (run_id, name)).fetchall()
    return _hash(inputs) if inputs else None


def checkpoint(journal: Journal, claim: Claim, value: str) -> None:
    """Keep what a running attempt leaves for the next one; tells no event, and nothing of an attempt that is late."""
    journal.connection.execute(
        "UPDATE task SET checkpoint = ? WHERE run_id = ? AND name = ? AND claim_token = ?",
        (value, claim.run_id, claim.name, claim.token),
    )


def extend(journal: Journal, claim: Claim, timeout: float, seconds: float) -> None:
    """Tell that a running attempt may take ``timeout`` seconds in all now, ``seconds`` more than before."""
    columns: AttemptColumns = {"timeout_us": round(timeout * 1e6)}
    journal.change_attempt(claim.run_id, claim.name, claim.attempt, columns)
    extended = AttemptExtended(seconds, columns)
    journal.emit(extended, claim.run_id, claim.name, attempt=claim.attempt, generation=claim.generation)


def turn_away(journal: Journal, run_id: str, order: ClaimOrder, how: str) -> None:
    """End a task that would call an open downstream, as its flow wants it: ``fail`` or ``dead_letter``."""
    seen = {order.name: order.generation}
    runs.promote(journal, run_id, seen)
    runs.wake(journal, run_id, seen)
    refusals, overrides = journal.connection.execute(
        "SELECT refusals, overrides FROM task WHERE run_id = ? AND name = ?", (run_id, order.name)
    ).fetchone()
    columns: TaskColumns = {"ended_at": journal.at, "error": f"{order.spec.downstream} is open"}
    columns["refusals"] = refusals + 1
    state = END_WHEN_OPEN[how]
    assert state is not None, "the flow lets tasks wait for this downstream"
    if state is TaskState.DEAD_LETTER:
        columns["dead_letter_kind"] = str(DeadLetterKind.BREAKER)
        columns["expires_at"] = expires_at(journal.connection, run_id, journal.at)
    if not journal.move(run_id, order.name, TaskState.READY, state, order.generation, set=columns):
        return
    canary.abandon(journal, run_id, order.name, overrides)
    if state is TaskState.FAILED:
        propagate(journal, run_id, order.name)
    page(journal, _turned_away(run_id, order))


def _turned_away(run_id: str, order: ClaimOrder) -> Trouble:
    downstream = order.spec.downstream
    return Trouble(
        run_id=run_id,
        task=order.name,
        title=f"{downstream} is down",
        why=f"the breaker of {downstream} is open, and the flow wants no waiting",
        kind=DeadLetterKind.BREAKER,
        downstream=downstream,
        owner=order.spec.owner,
    )


def write_verdict(journal: Journal, run_id: str, verdict: RunVerdict) -> None:
    """Mark a run blocked, or end it."""
    if verdict.blocked:
        journal.change_run(run_id, RunChanged(RunChange.BLOCKED, {"blocked_since": journal.at}))
        return
    ended = RunChanged(RunChange.ENDED, {"state": str(verdict.state), "ended_at": journal.at, "blocked_since": None})
    journal.change_run(run_id, ended, old=str(RunState.RUNNING), new=str(verdict.state))


def shift_instants(journal: Journal, run_id: str, jump_us: int) -> None:
    """The wall clock moved: stored instants move with it, so that what is left until them, and since them, stays."""
    moved = set()
    for column, sql in _SHIFTED.items():
        for name, instant in journal.connection.execute(sql, (run_id,)).fetchall():
            journal.change(run_id, name, cast(TaskColumns, {column: instant + jump_us}))
            moved.add(name)
    journal.emit(ClockMoved(jump_us, len(moved)), run_id)


#: What is waited for, and what max_elapsed is counted from. The deadline of a run is a time of day, and stays.
_SHIFTED = {
    "next_retry_at": "SELECT name, next_retry_at FROM task WHERE run_id = ? AND next_retry_at IS NOT NULL"
    " AND state IN " + in_list(WITH_INSTANT),
    "first_started_at": "SELECT name, first_started_at FROM task WHERE run_id = ? AND first_started_at IS NOT NULL"
    " AND state IN " + in_list(MOVING),
    "expires_at": "SELECT name, expires_at FROM task JOIN run USING (run_id) WHERE run_id = ?"
    " AND expires_at IS NOT NULL AND expires_at IS NOT run.deadline_at AND task.state = 'DEAD_LETTER'",
}
