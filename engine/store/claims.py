"""The start of tasks: promotes them, wakes them, claims them; and what is written of an attempt that runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import asdict

from ..core.causes import PageRequest
from ..core.downstreams import END_WHEN_OPEN
from ..core.outcome import unstored_result
from ..core.spec import TaskSpec, decode_task_spec, with_overrides
from ..domain import event_payloads as payloads
from ..domain import states
from ..domain.elements import GONE
from ..domain.event_codec import decode
from ..domain.events import EventKind
from ..domain.states import DeadLetterKind, TaskState
from ..domain.text import format_clock
from ..statefile import large_results, map_tasks
from ..statefile.clean_ups import bound_clean_up
from ..statefile.requeue import abandon_canary
from ..statefile.sql import IS_APPROVAL, chunks, in_list, marks, task_columns
from ..statefile.transitions import RUN_IS_OVER, UNSATISFIED_PARENT, Transaction, propagate, reevaluate
from .endings import expires_at
from .executors import ExecutorIdentity
from .pages import is_paged, trigger_page

#: A requeued row: its key, and its payload when it was quarantined.
KeyAndPayload = tuple[str, str | None]


class Claim(msgspec.Struct, frozen=True):
    """An attempt that was started. ``token``: the task accepts the outcome of the attempt with its current token."""

    run_id: str
    task: str
    attempt: int
    generation: int
    token: str
    only_rows: tuple[KeyAndPayload, ...] = ()  # the generation processes only these quarantined rows
    checkpoint: str | None = None  # JSON of an earlier attempt of the generation
    earlier_result: str | None = None  # JSON of the task before its rows were requeued
    key_generation: int = 0  # the generation in the idempotency key
    large_inputs: Mapping[str, str] = {}  # by parent: JSON that no memory holds


def emit(transaction: Transaction, claim: Claim, payload: payloads.Payload) -> None:
    transaction.emit(payload, claim.run_id, claim.task, attempt=claim.attempt, generation=claim.generation)


class ClaimOrder(msgspec.Struct, frozen=True):
    """A task to be claimed, in the generation that the executor saw."""

    task: str
    generation: int
    spec: TaskSpec
    is_ready: bool = False  # no promotion is needed; the claim itself checks the state once more
    is_first: bool = False  # no attempt has started; the claim itself checks that once more


_PROMOTABLE = (
    "SELECT name, next_retry_at, " + IS_APPROVAL + ", " + RUN_IS_OVER + ""
    " FROM task WHERE run_id = ? AND name IN ({marks})"
    " AND state = 'PENDING' AND NOT EXISTS (" + UNSATISFIED_PARENT + ") ORDER BY position"
)


def promote(transaction: Transaction, run_id: str, seen: Mapping[str, int]) -> list[str]:
    """Move PENDING tasks whose parents allow it, by their trigger rule, to READY, and return their names.

    ``seen``: by name, the generation that the caller saw. The check and the move share a transaction. The caller, which
    has the timers, has checked ``not_before`` for that generation.
    """
    promoted = []
    for chunk in chunks(seen):
        sql = _PROMOTABLE.format(marks=marks(chunk))
        for name, due, is_approval, is_over in transaction.connection.execute(sql, (run_id, *chunk)).fetchall():
            columns: payloads.TaskColumns | None = None if due is None else {"next_retry_at": None}
            if is_approval:
                _request_approval(transaction, run_id, name, seen[name])
            elif transaction.move(run_id, name, TaskState.PENDING, TaskState.READY, seen[name], set=columns):
                promoted.append(name)
                if is_over:
                    bound_clean_up(transaction, run_id, name)
    return promoted


def _request_approval(transaction: Transaction, run_id: str, name: str, generation: int) -> None:
    """Let an approval wait for an operator, and page for it. No executor starts it."""
    text, overrides = task_columns(transaction.connection, run_id, name, "spec, overrides")
    spec = with_overrides(decode_task_spec(text), overrides)
    expires = None if spec.timeout is None else transaction.at + round(spec.timeout * 1e6)
    columns: payloads.TaskColumns = {"next_retry_at": None, "expires_at": expires, "started_at": transaction.at}
    asked = payloads.TaskMoved(why="it waits for an approval")
    if not transaction.move(run_id, name, TaskState.PENDING, TaskState.READY, generation, set=columns, payload=asked):
        return
    limit = "" if expires is None else f"; without an answer it fails at {format_clock(expires)}"
    why = f"{name} waits for an approval{limit}"
    cause = f"{states.APPROVAL}:{run_id}/{name}"
    page = PageRequest(run_id, name, "approval", why, owner=spec.owner, cause=cause, act=("approve", name))
    trigger_page(transaction, page)


def wake(transaction: Transaction, run_id: str, seen: Mapping[str, int]) -> list[str]:
    """Move RETRYING and SENSING tasks whose due time has come to READY; see ``promote``."""
    woken = []
    for chunk in chunks(seen):
        rows = transaction.connection.execute(
            f"SELECT name, state FROM task WHERE run_id = ? AND name IN ({marks(chunk)})"
            f" AND state IN {in_list(states.TIMED)} ORDER BY position",
            (run_id, *chunk),
        ).fetchall()
        for name, state in rows:
            if transaction.move(run_id, name, state, TaskState.READY, seen[name], set={"next_retry_at": None}):
                woken.append(name)
    return woken


_CLAIMABLE = (
    "SELECT attempt, stale, first_started_at, progress_done, EXISTS (" + UNSATISFIED_PARENT + ")"
    " FROM task WHERE run_id = ? AND name = ? AND state = 'READY' AND generation = ?"
)


#: SQL: the task has never started, and its parents allow it to start.
_IS_FIRST = (
    " AND attempt = 0 AND stale = 0 AND first_started_at IS NULL AND progress_done IS NULL"
    " AND NOT EXISTS (" + UNSATISFIED_PARENT + ")"
)


def claim(
    transaction: Transaction,
    run_id: str,
    name: str,
    generation: int,
    token: str,
    attempt_row: payloads.AttemptColumns,
    *,
    is_first: bool = False,
) -> int:
    """Start the next attempt of a READY task: insert its row, and return its number.

    0: the task is not READY in this generation any more. If its parents no longer allow it, the task is moved to the
    state that follows from them. ``attempt_row``: further columns of the attempt. ``is_first``: the caller has seen no
    attempt; such a task is claimed without a look at its row.
    """
    at = transaction.at
    started: payloads.TaskColumns = {"started_at": at, "ended_at": None}
    if is_first:
        columns: payloads.TaskColumns = {"attempt": 1, **started, "first_started_at": at}
        if _start(transaction, run_id, name, generation, token, columns, attempt_row, _IS_FIRST):
            return 1
    found = transaction.connection.execute(_CLAIMABLE, (run_id, name, generation)).fetchone()
    if found is None:
        return 0
    attempts, stale, first_started_at, progress_done, is_held = found
    if is_held:
        reevaluate(transaction, run_id, name)
        return 0
    attempt = int(attempts) + 1
    columns = {"attempt": attempt, **started}
    if first_started_at is None:
        columns["first_started_at"] = at
    if stale:
        columns["stale"] = 0  # the attempt gets the latest results of its parents
    if progress_done is not None:
        columns["progress_done"] = columns["progress_total"] = None
    return attempt if _start(transaction, run_id, name, generation, token, columns, attempt_row) else 0


def _start(
    transaction: Transaction,
    run_id: str,
    name: str,
    generation: int,
    token: str,
    columns: payloads.TaskColumns,
    attempt_row: payloads.AttemptColumns,
    guard: str = "",
) -> bool:
    """Move a READY task to RUNNING, if ``guard`` holds, and insert the row of its attempt."""
    attempt = columns["attempt"]
    shown: payloads.AttemptColumns = {"generation": generation, "started_at": transaction.at, **attempt_row}
    moved = transaction.move(
        run_id,
        name,
        TaskState.READY,
        TaskState.RUNNING,
        generation,
        set=columns,
        attempt=attempt,
        payload=payloads.TaskMoved(attempt_set=shown),
        guard=guard,
        token=token,
    )
    if moved:
        transaction.insert("attempt", {"run_id": run_id, "name": name, "attempt": attempt, "token": token, **shown})
    return moved


def dispatch(
    transaction: Transaction,
    run_id: str,
    promotable: Mapping[str, int],
    orders: Sequence[ClaimOrder],
    identity: ExecutorIdentity,
) -> list[Claim]:
    """Promote the tasks whose parents allow it, then claim the READY ones of ``orders``, in one transaction.

    ``promotable``: by name, the generation that the caller saw.
    """
    ordered = {order.task: order.generation for order in orders if not order.is_ready}
    if promotable or ordered:
        promoted = promote(transaction, run_id, {**promotable, **ordered})
        wake(transaction, run_id, {name: ordered[name] for name in ordered.keys() - promoted})
    claims = (_claim(transaction, run_id, order, identity) for order in orders)
    return [claim for claim in claims if claim is not None]


def _claim(transaction: Transaction, run_id: str, order: ClaimOrder, identity: ExecutorIdentity) -> Claim | None:
    token = identity.random_hex(8)
    spec = order.spec
    if spec.item is not None and spec.item.index == GONE:
        map_tasks.set_aside(transaction, run_id, order.task)
        return None
    if spec.map is not None:  # a resume or a requeue may have changed it since its parent succeeded
        map_tasks.expand(transaction, run_id, order.task)
    item = None if spec.item is None else asdict(spec.item)
    has_parents = bool(spec.parents) or spec.map is not None
    inputs = map_tasks.read_inputs(transaction.connection, run_id, order.task) if has_parents else []
    columns: payloads.AttemptColumns = {
        "executor_id": identity.executor_id,
        "host": identity.host,
        "code_hash": identity.code_hash,
        "image_hash": identity.image_hash,
        "params_hash": map_tasks.hash_of(identity.params, spec.params) if spec.params else identity.params_hash,
        "input_hash": map_tasks.hash_inputs(transaction.connection, run_id, inputs, item),
        "timeout_us": None if spec.timeout is None else round(spec.timeout * 1e6),
        "grace_us": round(spec.grace_seconds * 1e6),
    }
    attempt = claim(transaction, run_id, order.task, order.generation, token, columns, is_first=order.is_first)
    if not attempt:
        return None
    only_rows = (
        requeued_rows(transaction.connection, run_id, order.task, order.generation)
        if order.generation  # a requeue begins a generation
        else ()
    )
    earlier = earlier_result(transaction.connection, run_id, order.task) if only_rows else None
    earlier = large_results.load(transaction.connection, run_id, order.task, earlier)
    checkpoint, key_generation = None, 0  # of a first attempt
    if attempt > 1 or order.generation:
        stored = task_columns(transaction.connection, run_id, order.task, "checkpoint, key_generation")
        checkpoint, key_generation = stored
    if spec.effect:
        effect = payloads.AttemptEffect(states.effect_key(run_id, order.task, key_generation))
        transaction.emit(effect, run_id, order.task, attempt=attempt, generation=order.generation)
    large = {
        parent: large_results.load(transaction.connection, run_id, parent, text) or unstored_result("it is gone")
        for parent, _, text in inputs
        if large_results.is_large(text)
    }
    rows = (only_rows, checkpoint, earlier)
    return Claim(run_id, order.task, attempt, order.generation, token, *rows, key_generation, large)


def save_checkpoint(transaction: Transaction, claim: Claim, value: str) -> None:
    """Store JSON for the next attempt; emits no event, and ignores a late attempt."""
    transaction.connection.execute(
        "UPDATE task SET checkpoint = ? WHERE run_id = ? AND name = ? AND claim_token = ?",
        (value, claim.run_id, claim.task, claim.token),
    )


def write_notice(transaction: Transaction, run_id: str, name: str, notice: str, request: PageRequest) -> None:
    """Record that a task is later than expected, or waits long, and page once for its cause."""
    if is_paged(transaction.connection, request.cause or ""):
        return
    transaction.change(run_id, name, {"notice": notice})
    trigger_page(transaction, request)


def extend_timeout(transaction: Transaction, claim: Claim, timeout: float, seconds: float) -> None:
    """Record that an operator extended a timeout by ``seconds`` to ``timeout`` seconds in total."""
    columns: payloads.AttemptColumns = {"timeout_us": round(timeout * 1e6)}
    transaction.change_attempt(claim.run_id, claim.task, claim.attempt, columns)
    emit(transaction, claim, payloads.AttemptExtended(seconds, columns))


def reject(transaction: Transaction, run_id: str, order: ClaimOrder, how: str) -> None:
    """End a task whose downstream is open. ``how``: ``on_open`` of the downstream, ``fail`` or ``dead_letter``."""
    seen = {order.task: order.generation}
    promote(transaction, run_id, seen)
    wake(transaction, run_id, seen)
    refusals, overrides = task_columns(transaction.connection, run_id, order.task, "refusals, overrides")
    why = f"{order.spec.downstream} is open"
    columns: payloads.TaskColumns = {"ended_at": transaction.at, "error": why, "refusals": refusals + 1}
    state = END_WHEN_OPEN[how]
    assert state is not None, "the flow lets tasks wait for this downstream"
    if state is TaskState.DEAD_LETTER:
        columns["dead_letter_kind"] = str(DeadLetterKind.BREAKER)
        columns["expires_at"] = expires_at(transaction.connection, run_id, transaction.at)
    if not transaction.move(run_id, order.task, TaskState.READY, state, order.generation, set=columns):
        return
    abandon_canary(transaction, run_id, order.task, overrides)
    if state is TaskState.FAILED:
        propagate(transaction, run_id, order.task)
    trigger_page(transaction, _rejected(run_id, order))


def _rejected(run_id: str, order: ClaimOrder) -> PageRequest:
    downstream = order.spec.downstream
    return PageRequest(
        run_id=run_id,
        task=order.task,
        title=f"{downstream} is down",
        why=f"the breaker of {downstream} is open, and the flow wants no waiting",
        kind=DeadLetterKind.BREAKER,
        downstream=downstream,
        owner=order.spec.owner,
    )


def earlier_result(connection: sqlite3.Connection, run_id: str, name: str) -> str | None:
    """Return what a task returned when it last succeeded, as JSON; a requeue clears the column of the task."""
    row = connection.execute(
        "SELECT data FROM event WHERE run_id = ? AND task = ? AND kind = ? AND new = 'SUCCESS'"
        " ORDER BY seq DESC LIMIT 1",
        (run_id, name, EventKind.TASK),
    ).fetchone()
    payload = None if row is None else decode(EventKind.TASK, json.loads(row[0]))
    return payload.set.get("result") if isinstance(payload, payloads.TaskMoved) else None


def requeued_rows(connection: sqlite3.Connection, run_id: str, name: str, generation: int) -> tuple[KeyAndPayload, ...]:
    """Return the rows that this generation of a task processes; empty: all rows."""
    rows = connection.execute(
        "SELECT row_key, payload FROM quarantine WHERE run_id = ? AND name = ? AND state = 'requeued'"
        " AND generation = ? ORDER BY id",
        (run_id, name, generation),
    )
    return tuple(rows.fetchall())
