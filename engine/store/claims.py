"""Writes of the executor's loop: claims of tasks, the verdict of the run, and shifts after a clock step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from ..core.dispatch_rules import END_WHEN_OPEN
from ..core.run_outcome import HeldTasks, RunOutcome
from ..core.spec import TaskSpec
from ..core.waits import WAITS, WaitReason
from ..domain.event_changes import RunChange
from ..domain.event_columns import AttemptColumns, TaskColumns
from ..domain.event_payloads import AttemptEffect, AttemptExtended, Payload, RunChanged
from ..domain.events import EventKind
from ..domain.liveness import effect_key
from ..domain.states import DeadLetterKind, TaskState
from ..statefile.changes import canary, mapping
from ..statefile.changes.propagation import propagate
from ..statefile.changes.transitions import Transaction
from ..statefile.state_lists import in_list
from . import quarantine, runs
from .expiry import expires_at
from .pages import PageRequest, is_paged, trigger_held_page, trigger_page


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt that was started. ``token``: the task accepts the outcome of the attempt with its current token."""

    run_id: str
    name: str
    attempt: int
    generation: int
    token: str
    only_rows: tuple[quarantine.KeyAndPayload, ...] = ()  # the generation processes only these quarantined rows
    checkpoint: str | None = None  # JSON of an earlier attempt of the generation
    earlier_result: str | None = None  # JSON of the task before its rows were requeued
    key_generation: int = 0  # the generation in the idempotency key


def emit(transaction: Transaction, claim: Claim, payload: Payload) -> None:
    """Emit an event of an attempt."""
    transaction.emit(payload, claim.run_id, claim.name, attempt=claim.attempt, generation=claim.generation)


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """A task to be claimed, in the generation that the executor saw."""

    name: str
    generation: int
    spec: TaskSpec
    is_ready: bool = False  # no promotion is needed; the claim itself checks the state once more
    is_first: bool = False  # no attempt has started; the claim itself checks that once more


def random_hex(size: int) -> str:
    """Return the hex digits of random bytes."""
    return os.urandom(size).hex()


@dataclass(frozen=True)
class ExecutorIdentity:
    """The executor that claims: columns shared by all of its attempts."""

    executor_id: str
    host: str
    code_hash: str | None
    params: Mapping[str, object] = field(default_factory=dict)  # of the run
    image_hash: str | None = None  # interpreter and packages
    random_hex: Callable[[int], str] = random_hex

    @cached_property
    def params_hash(self) -> str:
        """The hash of the parameters of an attempt whose task has none of its own."""
        return mapping.hash_of(self.params, {})


def dispatch(
    transaction: Transaction,
    run_id: str,
    promote: Mapping[str, int],
    orders: Sequence[ClaimOrder],
    identity: ExecutorIdentity,
) -> list[Claim]:
    """Promote the tasks whose parents allow it, then claim the READY ones of ``orders``, in one transaction.

    ``promote``: by name, the generation that the caller saw.
    """
    ordered = {order.name: order.generation for order in orders if not order.is_ready}
    if promote or ordered:
        promoted = runs.promote(transaction, run_id, {**promote, **ordered})
        runs.wake(transaction, run_id, {name: ordered[name] for name in ordered.keys() - promoted})
    claims = (_claim(transaction, run_id, order, identity) for order in orders)
    return [claim for claim in claims if claim is not None]


def _claim(transaction: Transaction, run_id: str, order: ClaimOrder, identity: ExecutorIdentity) -> Claim | None:
    token = identity.random_hex(8)
    spec = order.spec
    if spec.map is not None:  # a resume or a requeue may have changed it since its parent succeeded
        mapping.expand(transaction, run_id, order.name)
    item = None if spec.item is None else asdict(spec.item)
    has_parents = bool(spec.parents) or spec.map is not None
    columns: AttemptColumns = {
        "executor_id": identity.executor_id,
        "host": identity.host,
        "code_hash": identity.code_hash,
        "image_hash": identity.image_hash,
        "params_hash": mapping.hash_of(identity.params, spec.params) if spec.params else identity.params_hash,
        "input_hash": mapping.input_hash(transaction.connection, run_id, order.name, item) if has_parents else None,
        "timeout_us": None if spec.timeout is None else round(spec.timeout * 1e6),
        "grace_us": round(spec.grace_seconds * 1e6),
    }
    attempt = runs.claim(transaction, run_id, order.name, order.generation, token, columns, is_first=order.is_first)
    if not attempt:
        return None
    only_rows = (
        quarantine.requeued_rows(transaction.connection, run_id, order.name, order.generation)
        if order.generation  # a requeue begins a generation
        else ()
    )
    earlier = quarantine.earlier_result(transaction.connection, run_id, order.name) if only_rows else None
    checkpoint, key_generation = None, 0  # of a first attempt
    if attempt > 1 or order.generation:
        checkpoint, key_generation = transaction.connection.execute(
            "SELECT checkpoint, key_generation FROM task WHERE run_id = ? AND name = ?", (run_id, order.name)
        ).fetchone()
    if spec.effect:
        effect = AttemptEffect(effect_key(run_id, order.name, key_generation))
        transaction.emit(effect, run_id, order.name, attempt=attempt, generation=order.generation)
    return Claim(run_id, order.name, attempt, order.generation, token, only_rows, checkpoint, earlier, key_generation)


def save_checkpoint(transaction: Transaction, claim: Claim, value: str) -> None:
    """Store JSON for the next attempt; emits no event, and ignores a late attempt."""
    transaction.connection.execute(
        "UPDATE task SET checkpoint = ? WHERE run_id = ? AND name = ? AND claim_token = ?",
        (value, claim.run_id, claim.name, claim.token),
    )


def write_notice(transaction: Transaction, run_id: str, name: str, notice: str, request: PageRequest) -> None:
    """Record that a task is later or slower than expected, and page once for its cause."""
    if is_paged(transaction.connection, request.cause or ""):
        return
    transaction.change(run_id, name, {"notice": notice})
    trigger_page(transaction, request)


def extend_timeout(transaction: Transaction, claim: Claim, timeout: float, seconds: float) -> None:
    """Record that an operator extended a timeout by ``seconds`` to ``timeout`` seconds in total."""
    columns: AttemptColumns = {"timeout_us": round(timeout * 1e6)}
    transaction.change_attempt(claim.run_id, claim.name, claim.attempt, columns)
    emit(transaction, claim, AttemptExtended(seconds, columns))


def reject(transaction: Transaction, run_id: str, order: ClaimOrder, how: str) -> None:
    """End a task whose downstream is open. ``how``: ``on_open`` of the downstream, ``fail`` or ``dead_letter``."""
    seen = {order.name: order.generation}
    runs.promote(transaction, run_id, seen)
    runs.wake(transaction, run_id, seen)
    refusals, overrides = transaction.connection.execute(
        "SELECT refusals, overrides FROM task WHERE run_id = ? AND name = ?", (run_id, order.name)
    ).fetchone()
    columns: TaskColumns = {"ended_at": transaction.at, "error": f"{order.spec.downstream} is open"}
    columns["refusals"] = refusals + 1
    state = END_WHEN_OPEN[how]
    assert state is not None, "the flow lets tasks wait for this downstream"
    if state is TaskState.DEAD_LETTER:
        columns["dead_letter_kind"] = str(DeadLetterKind.BREAKER)
        columns["expires_at"] = expires_at(transaction.connection, run_id, transaction.at)
    if not transaction.move(run_id, order.name, TaskState.READY, state, order.generation, set=columns):
        return
    canary.abandon_canary(transaction, run_id, order.name, overrides)
    if state is TaskState.FAILED:
        propagate(transaction, run_id, order.name)
    trigger_page(transaction, _rejected(run_id, order))


def _rejected(run_id: str, order: ClaimOrder) -> PageRequest:
    downstream = order.spec.downstream
    return PageRequest(
        run_id=run_id,
        task=order.name,
        title=f"{downstream} is down",
        why=f"the breaker of {downstream} is open, and the flow wants no waiting",
        kind=DeadLetterKind.BREAKER,
        downstream=downstream,
        owner=order.spec.owner,
    )


#: The events that may change a verdict.
_CHANGED_SINCE = "SELECT 1 FROM event WHERE seq > ? AND run_id = ? AND kind IN " + in_list(
    [EventKind.TASK, EventKind.TASK_CHANGED, EventKind.RUN, EventKind.MAPPED]
)


def write_verdict(transaction: Transaction, run_id: str, verdict: RunOutcome, seq: int) -> None:
    """Mark a run blocked, or end it; neither if it has changed since event ``seq``, which the verdict has seen last."""
    if transaction.connection.execute(_CHANGED_SINCE, (seq, run_id)).fetchone() is not None:
        return
    if verdict.is_blocked:
        why = "; ".join(held.why for held in verdict.held) or None
        transaction.change_run(run_id, RunChanged(RunChange.BLOCKED, {"blocked_since": transaction.at}, why=why))
        for held in verdict.held:
            trigger_held_page(transaction, _held_page(run_id, held))
        return
    runs.end_run(transaction, run_id, verdict)


def _held_page(run_id: str, held: HeldTasks) -> PageRequest:
    title, is_refused = WAITS[held.reason].page or "", held.reason is WaitReason.CREDENTIAL
    if held.downstream is None:
        cause = f"{held.reason}:{run_id}"
        act = ("unpause",) if held.reason is WaitReason.PAUSE else ("skip", held.names[0])
        return PageRequest(run_id, held.names[0], title, held.why, cause=cause, act=act)
    return PageRequest(
        run_id,
        held.names[0],
        f"{held.downstream} {title}",
        held.why,
        kind=DeadLetterKind.AUTH if is_refused else DeadLetterKind.BREAKER,
        downstream=held.downstream,
        act=("breakers", "--probe" if is_refused else "--close", held.downstream),
    )
