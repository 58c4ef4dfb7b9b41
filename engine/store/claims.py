"""Writes of the executor's loop: claims of tasks, the verdict of the run, quarantined rows, clock steps."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import asdict

from ... import __version__
from ..core.breaker import PASSING
from ..core.causes import PageRequest
from ..core.decide import passed_reason
from ..core.downstreams import END_WHEN_OPEN
from ..core.outcome import unstored_result
from ..core.projection import RunProjection
from ..core.spec import TaskSpec
from ..core.waiting import HUMAN_WAITS, HeldTasks, RunOutcome, WaitReason, evaluate_run
from ..domain import event_payloads as payloads
from ..domain import states
from ..domain.elements import GONE
from ..domain.event_codec import decode
from ..domain.events import EventKind
from ..domain.rows import BreakerRow
from ..domain.states import DeadLetterKind, TaskState
from ..domain.text import counted, format_duration
from ..runner.protocol import BadRow
from ..statefile import large_results, map_tasks, processes
from ..statefile.action import TaskSnapshot, read_task, reopen_run
from ..statefile.breakers import release_runs, store_breakers
from ..statefile.clean_ups import bound_clean_up, describe_bound, is_clean_up
from ..statefile.lists import IS_APPROVAL, in_list
from ..statefile.quarantine import drop_provisional, emit_and_count, hold_requeued_rows
from ..statefile.requeue import abandon_canary, end_generation
from ..statefile.transitions import Transaction, propagate, resolve
from . import runs
from .database import path_of
from .pages import is_paged, trigger_held_page, trigger_page


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


def random_hex(size: int) -> str:
    """Return the hex digits of random bytes."""
    return os.urandom(size).hex()


class ExecutorIdentity(msgspec.Struct, frozen=True, dict=True):
    """The executor that claims: columns shared by all of its attempts."""

    executor_id: str
    host: str
    code_hash: str | None
    params: Mapping[str, object] = {}  # of the run
    image_hash: str | None = None  # interpreter and packages
    random_hex: Callable[[int], str] = random_hex

    @cached_property
    def params_hash(self) -> str:
        """The hash of the parameters of an attempt whose task has none of its own."""
        return map_tasks.hash_of(self.params, {})


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
    ordered = {order.task: order.generation for order in orders if not order.is_ready}
    if promote or ordered:
        promoted = runs.promote(transaction, run_id, {**promote, **ordered})
        runs.wake(transaction, run_id, {name: ordered[name] for name in ordered.keys() - promoted})
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
    attempt = runs.claim(transaction, run_id, order.task, order.generation, token, columns, is_first=order.is_first)
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
        checkpoint, key_generation = transaction.connection.execute(
            "SELECT checkpoint, key_generation FROM task WHERE run_id = ? AND name = ?", (run_id, order.task)
        ).fetchone()
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
    """Record that a task is later or slower than expected, and page once for its cause."""
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
    runs.promote(transaction, run_id, seen)
    runs.wake(transaction, run_id, seen)
    refusals, overrides = transaction.connection.execute(
        "SELECT refusals, overrides FROM task WHERE run_id = ? AND name = ?", (run_id, order.task)
    ).fetchone()
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


#: The events that may change a verdict.
_CHANGED_SINCE = "SELECT 1 FROM event WHERE seq > ? AND run_id = ? AND kind IN " + in_list(
    [EventKind.TASK, EventKind.TASK_CHANGED, EventKind.RUN, EventKind.MAPPED]
)


def write_verdict(transaction: Transaction, run_id: str, verdict: RunOutcome, seq: int) -> None:
    """Mark a run blocked, or end it; neither if it has changed since event ``seq``, which the verdict has seen last."""
    if transaction.connection.execute(_CHANGED_SINCE, (seq, run_id)).fetchone() is not None:
        return
    if verdict.is_blocked:
        blocked = payloads.RunChanged(
            payloads.RunChange.BLOCKED, {"blocked_since": transaction.at}, why=verdict.why, asked=verdict.asked
        )
        transaction.change_run(run_id, blocked)
        for held in (one for one in verdict.held if one.reason is not WaitReason.APPROVAL):  # paged when it was asked
            trigger_held_page(transaction, _held_page(run_id, held))
        return
    runs.end_run(transaction, run_id, verdict)


def _held_page(run_id: str, held: HeldTasks) -> PageRequest:
    title, is_refused = HUMAN_WAITS[held.reason].page, held.reason is WaitReason.CREDENTIAL
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
        act=("systems", "breakers", "--probe" if is_refused else "--close", held.downstream),
    )


# --- Table ``executor``: the executors of the state file, with start, heartbeat and end ------------------------------


def insert_executor(transaction: Transaction, identity: ExecutorIdentity, run_id: str) -> None:
    """Insert this process as the executor; emits no event."""
    start_ticks, boot_id = processes.identity(os.getpid())
    row = {
        "executor_id": identity.executor_id,
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": boot_id,
        "host": identity.host,
        "version": __version__,
        "started_at": transaction.at,
        "heartbeat_at": transaction.at,
        "run_id": run_id,
        "state_path": _storable(path_of(transaction.connection)),
    }
    transaction.insert("executor", row)


def _storable(path: str) -> str | None:
    """Return a path as SQLite can keep it; None for a database in memory, or a name that is no Unicode."""
    return path if path and path.isprintable() else None


def write_heartbeat(transaction: Transaction, executor_id: str) -> None:
    """Update the heartbeat; emits no event."""
    transaction.connection.execute(
        "UPDATE executor SET heartbeat_at = ? WHERE executor_id = ?", (transaction.at, executor_id)
    )


def mark_executor_stopped(transaction: Transaction, executor_id: str) -> None:
    """Record the regular end of an executor, with its event."""
    transaction.connection.execute(
        "UPDATE executor SET stopped_at = ?, heartbeat_at = ? WHERE executor_id = ?",
        (transaction.at, transaction.at, executor_id),
    )
    transaction.emit(payloads.ExecutorChanged(payloads.ExecutorChange.STOPPED, executor_id))


# --- Table ``breaker``: breakers and retry budgets, kept across restarts ---------------------------------------------


def emit_change(
    transaction: Transaction, run_id: str, change: payloads.BreakerChanged, rows: Iterable[BreakerRow]
) -> None:
    """Write breaker rows with the event of a change of state."""
    store_breakers(transaction.connection, rows)
    transaction.emit(change, run_id)
    if change.state in PASSING:
        release_runs(transaction, change.downstream)


# --- Expiry of dead letters ------------------------------------------------------------------------------------------
#
# What time ends in a run: undecided dead letters after ``dead_letter_ttl``, and the run at its deadline (SPEC 4.7).
#
# ``domain/states.py`` states the rule of the deadline.


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
    """Fail the tasks that are still undecided: approvals, and dead letters that wait for no canary. End clean-ups.

    ``seen``: by name, the generation that the caller saw, which has checked ``expires_at``.
    """
    for name, generation in seen.items():
        _expire_approval(transaction, run_id, name, generation)
        _expire_clean_up(transaction, run_id, name, generation)
        row = transaction.connection.execute(
            "SELECT ended_at, dead_letter_kind FROM task WHERE run_id = ? AND name = ? AND state = 'DEAD_LETTER'"
            " AND expires_at IS NOT NULL AND canary IS NULL",
            (run_id, name),
        ).fetchone()
        if row is not None:
            _expire(transaction, run_id, name, generation, *row)
    reopen_run(transaction, run_id)  # its children may start, or it ends: also if this executor dies now


def _expire_approval(transaction: Transaction, run_id: str, name: str, generation: int) -> None:
    """Fail a task that still waits for an approval; of any other task this changes nothing."""
    sql = f"SELECT expires_at FROM task WHERE run_id = ? AND name = ? AND expires_at IS NOT NULL AND {IS_APPROVAL}"
    row = transaction.connection.execute(sql, (run_id, name)).fetchone()
    if row is None:
        return
    why = states.describe_unanswered(row[0])
    columns: payloads.TaskColumns = {
        "ended_at": transaction.at,
        "expires_at": None,
        "error": why,
        "failure_class": states.UNANSWERED,
    }
    place = (run_id, name, TaskState.READY, TaskState.FAILED, generation)
    if transaction.move(*place, set=columns, payload=payloads.TaskMoved(why=why)):
        resolve(transaction, run_id, name)
        propagate(transaction, run_id, name)
        cause = f"{states.UNANSWERED}:{run_id}/{name}"
        trigger_page(transaction, PageRequest(run_id=run_id, task=name, title="not approved", why=why, cause=cause))


def _expire_clean_up(transaction: Transaction, run_id: str, name: str, generation: int) -> None:
    """End a clean-up whose bound has passed; of any other task this changes nothing."""
    task = read_task(transaction.connection, run_id, name)
    if (
        task is None
        or task.generation != generation
        or task.state not in states.MOVING
        or not is_clean_up(task.read_spec())
    ):
        return
    if task.state == TaskState.RUNNING:
        transaction.change(run_id, name, {"expires_at": None})
    _end_task(transaction, run_id, task, describe_bound(task))


def _expire(
    transaction: Transaction,
    run_id: str,
    name: str,
    generation: int,
    ended_at: int | None,
    kind: str | None,
    *,
    is_paged: bool = True,
) -> None:
    waited_us = None if ended_at is None else transaction.at - ended_at
    counts_at_once = _ttl_seconds(transaction.connection, run_id) == 0
    waited = "" if waited_us is None else f" for {format_duration(waited_us)}"
    undecided = f"no operator has decided about it{waited}: dead_letter_ttl"
    why = "a dead letter counts as failed: dead_letter_ttl=0" if counts_at_once else undecided
    columns: payloads.TaskColumns = {"expires_at": None}
    payload = payloads.TaskMoved(why=why)
    if not transaction.move(
        run_id, name, TaskState.DEAD_LETTER, TaskState.FAILED, generation, set=columns, payload=payload
    ):
        return
    propagate(transaction, run_id, name)
    if counts_at_once or not is_paged:
        return  # another page is about the same
    known = None if kind is None else DeadLetterKind(kind)
    trigger_page(transaction, PageRequest(run_id=run_id, task=name, title="dead letter expired", why=why, kind=known))


# --- The deadline --------------------------------------------------------------------------------------------------

_RUN = "SELECT deadline_at, deadline_passed_at, options FROM run WHERE run_id = ? AND ended_at IS NULL"
_EXPIRED = (
    "SELECT name, generation, ended_at, dead_letter_kind FROM task WHERE run_id = ? AND state = 'DEAD_LETTER'"
    " AND expires_at <= ? AND canary IS NULL ORDER BY position, name"
)
_PAGED = "SELECT 1 FROM page WHERE cause = ? AND state <> 'resolved' AND rearmed = 0"  # as a risk, before it came true
_DEAD_LETTERS = "SELECT count(*) FROM task WHERE run_id = ? AND state = 'DEAD_LETTER'"


def pass_deadline(transaction: Transaction, run_id: str) -> bool:
    """End what the deadline of a run ends; False: it has no deadline that ends it now.

    The run itself ends when no task runs any more: ``end_at_deadline``, or ``executor/run_end.py``.
    """
    row = transaction.connection.execute(_RUN, (run_id,)).fetchone()
    if row is None:
        return False
    deadline_at, passed_at, options = row
    if not states.is_due(deadline_at, passed_at, options, transaction.at):
        return False
    why = states.describe_passed(deadline_at)
    for expired in transaction.connection.execute(_EXPIRED, (run_id, transaction.at)).fetchall():
        _expire(transaction, run_id, *expired, is_paged=False)
    names = runs.unfinished_tasks(transaction.connection, run_id)
    found = [row for name in names if (row := read_task(transaction.connection, run_id, name)) is not None]
    moving = [task for task in found if not is_clean_up(task.read_spec())]
    stays = [task for task in found if is_clean_up(task.read_spec())]
    for task in moving:
        _end_task(transaction, run_id, task, why)
    for task in stays:
        if task.state != TaskState.PENDING:
            bound_clean_up(transaction, run_id, task.name)
    (dead,) = transaction.connection.execute(_DEAD_LETTERS, (run_id,)).fetchone()
    sentence = f"{why}: {_describe_ended(moving, dead, stays)}"
    columns: payloads.RunColumns = {"deadline_passed_at": transaction.at, "blocked_since": None}
    transaction.change_run(run_id, payloads.RunChanged(payloads.RunChange.DEADLINE, columns, why=sentence))
    if transaction.connection.execute(_PAGED, (states.deadline_cause(run_id),)).fetchone() is None:
        act = ("postpone", "1h")
        request = PageRequest(run_id, None, "deadline missed", sentence, kind=DeadLetterKind.DEADLINE, act=act)
        trigger_page(transaction, request)
    return True


def _end_task(transaction: Transaction, run_id: str, task: TaskSnapshot, why: str) -> None:
    """Cancel a task that does not run; request the end of one that runs, unless an operator has done so."""
    columns: payloads.TaskColumns = {"failure_mode": states.DEADLINE_MODE, "error": why}
    if task.state != TaskState.RUNNING:
        end_generation(transaction, run_id, task, TaskState.CANCELLED, columns, why)
    elif task.cancel_requested_at is None:
        columns["cancel_requested_at"] = transaction.at
        transaction.change(run_id, task.name, columns, attempt=task.attempt, why=why)


def _describe_ended(moving: list[TaskSnapshot], dead: int, stays: list[TaskSnapshot]) -> str:
    running = [task.name for task in moving if task.state == TaskState.RUNNING]
    others = len(moving) - len(running)
    parts = [f"{running[0]} is ended" if len(running) == 1 else f"{len(running):,} tasks are ended"] if running else []
    parts += [f"{counted(others, 'task')} {'is' if others == 1 else 'are'} cancelled"] if others else []
    parts += [f"{counted(dead, 'dead letter')} {'waits' if dead == 1 else 'wait'} for a human"] if dead else []
    parts += [f"{', '.join(task.name for task in stays[:3])} cleans up"] if len(stays) == 1 else []
    parts += [f"{len(stays):,} tasks clean up"] if len(stays) > 1 else []
    return ", ".join(parts)


def _verdict_of(run: RunProjection) -> RunOutcome:
    is_abandoned = run.run.abandoned_at is not None
    return evaluate_run(run.tasks.values(), 0, over=passed_reason(run.run), is_abandoned=is_abandoned)


def end_at_deadline(transaction: Transaction, run_id: str) -> None:
    """End a run that its deadline has ended and that no executor runs, unless a task still runs."""
    run = runs.load_run(transaction.connection, run_id, has_attempts=False)
    if run.run.ended_at is not None or any(row.state in states.MOVING for row in run.tasks.values()):
        return
    runs.end_run(transaction, run_id, _verdict_of(run))


# --- Quarantined rows of successful tasks: provisional until the attempt succeeds, then held for an operator ---------
#
# A row counts only if its attempt succeeds; otherwise retries would count it twice. Requeued rows run through the same
# task in a new generation: a row that fails again is held again, the others are resolved (SPEC 000.31, 004.38, 4.15).


#: A requeued row: its key, and its payload when it was quarantined.
KeyAndPayload = tuple[str, str | None]

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
