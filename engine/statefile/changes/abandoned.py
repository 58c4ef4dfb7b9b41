"""Tasks that a dead executor left RUNNING, when an operator acts on them before the run is resumed.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

While a process of such a task lives, every act on the task is refused (SPEC 4.9). Otherwise its attempt is settled as
lost, as ``recovery.py`` does on a resume, and the act follows in the same transaction. A task that is not idempotent
becomes a dead letter, and an act sent before that does not requeue it: its operator saw RUNNING, and must check first.
"""

import json
from typing import Iterator, NamedTuple, Optional

from ...domain.command import REFUSED, Target
from ...domain.event_columns import AttemptColumns, TaskColumns
from ...domain.event_payloads import AttemptReclaimed, TaskMoved
from ...domain.liveness import HEARTBEAT_SECONDS, describe_lost, effect_key, fence_seconds
from ...domain.spec_defaults import GRACE_SECONDS
from ...domain.states import DeadLetterKind, TaskState
from ...json_types import JsonObject
from ..processes import ancestors, identity, is_alive, pids
from .action import ActionContext, TaskSnapshot, check_target, read_task
from .canary import abandon_canary
from .executor_token import has_token
from .quarantine_actions import drop_provisional
from .transitions import Transaction

_ATTEMPT = (
    "SELECT attempt.pid, attempt.pid_start_ticks, attempt.executor_id, executor.boot_id, executor.heartbeat_at,"
    " task.losses, task.spec, task.key_generation, executor.pid, executor.start_ticks FROM task"
    " JOIN attempt ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = task.attempt"
    " LEFT JOIN executor ON executor.executor_id = attempt.executor_id WHERE task.run_id = ? AND task.name = ?"
)
_EVIDENCE = (
    "SELECT pid, pid_start_ticks, executor_id, max(attempt.started_at, coalesce(last_heartbeat_at, 0)) FROM attempt"
    " JOIN task USING (run_id, name) WHERE run_id = ? AND name = ? AND attempt.attempt = ?"
)


class _RunningAttempt(NamedTuple):
    """The columns of ``_ATTEMPT``."""

    pid: Optional[int]
    start_ticks: Optional[int]
    executor_id: Optional[str]
    boot_id: Optional[str]
    heartbeat_at: Optional[int]
    losses: int
    spec: str
    key_generation: int
    executor_pid: Optional[int]
    executor_ticks: Optional[int]


def resolve_targets(context: ActionContext) -> Iterator[TaskSnapshot]:
    """Yield the targets that are unchanged, one by one: an act on one may settle or change the next."""
    for target in context.targets:
        row = resolve_target(context, target)
        if row is not None:
            yield row


def resolve_target(context: ActionContext, target: Target) -> Optional[TaskSnapshot]:
    """Return the target if it is unchanged, as ``check_target`` does; settle it as lost first if it runs no more."""
    row = check_target(context, target)
    if row is None or row.state != TaskState.RUNNING or not context.is_abandoned:
        return row
    connection = context.connection
    attempt = _RunningAttempt(*connection.execute(_ATTEMPT, (context.run_id, row.name)).fetchone())
    spec: JsonObject = json.loads(attempt.spec)
    obstacle = _living_process(context, attempt) or _remaining_lease(context, attempt, spec)
    if obstacle is not None:
        context.set_result(row.name, REFUSED, obstacle)
        return None
    # A transaction that records nothing, because an undo of the act must not revive the attempt.
    transaction = Transaction(connection, context.transaction.at)
    transaction.events = context.transaction.events
    columns: TaskColumns = {"losses": attempt.losses + 1}
    if spec.get("idempotent", True):
        columns["next_retry_at"] = transaction.at
        _settle(transaction, context.run_id, row, TaskState.RETRYING, columns)
        return read_task(connection, context.run_id, row.name)
    abandon_canary(transaction, context.run_id, row.name, row.overrides)
    key = effect_key(context.run_id, row.name, attempt.key_generation) if spec.get("effect") else None
    columns["dead_letter_kind"] = str(DeadLetterKind.INDETERMINATE)
    columns["error"] = describe_lost(key)
    _settle(transaction, context.run_id, row, TaskState.DEAD_LETTER, columns)
    if context.act == "requeue":
        context.set_result(row.name, REFUSED, "{}; it is a dead letter now".format(describe_lost(key)))
        return None
    return read_task(connection, context.run_id, row.name)


def emit_reclaimed(transaction: Transaction, run_id: str, name: str, attempt: int, generation: int) -> None:
    """Emit the evidence for taking an attempt from its task: its executor is dead, and no process of it lives."""
    found = transaction.connection.execute(_EVIDENCE, (run_id, name, attempt)).fetchone()
    pid, start_ticks, executor_id, seen_at = found
    evidence = AttemptReclaimed(pid, start_ticks, "gone", round((transaction.at - seen_at) / 1e6, 1), executor_id)
    transaction.emit(evidence, run_id, name, attempt=attempt, generation=generation)


def _living_process(context: ActionContext, attempt: _RunningAttempt) -> Optional[str]:
    """The refusal while a process of the dead executor lives."""
    if is_alive(attempt.executor_pid, attempt.executor_ticks, attempt.boot_id):
        return None  # this file is a copy: the processes belong to the original
    pid = attempt.pid
    ticks, boot = identity(pid) if pid else (None, None)
    if ticks is None or (ticks, boot) != (attempt.start_ticks, attempt.boot_id or boot):
        pid = _orphan_of(context, str(attempt.executor_id))
    if pid is None:
        return None
    sentence = "its executor is dead, but process {0} of it still lives: redrive resume ends that, or kill -9 {0}"
    return sentence.format(pid)


def _orphan_of(context: ActionContext, executor_id: str) -> Optional[int]:
    if executor_id not in context.orphan_pids:
        spared = ancestors()
        found = (pid for pid in pids() if pid not in spared and has_token(pid, [executor_id]))
        context.orphan_pids[executor_id] = next(found, None)
    return context.orphan_pids[executor_id]


def _remaining_lease(context: ActionContext, attempt: _RunningAttempt, spec: JsonObject) -> Optional[str]:
    """The refusal while an attempt on another host may live: it ends itself when its lease is not renewed."""
    if spec.get("isolation") != "dask" or attempt.heartbeat_at is None:
        return None
    grace_seconds = spec.get("grace_seconds", GRACE_SECONDS)
    fence = fence_seconds(float(grace_seconds) if isinstance(grace_seconds, (int, float)) else 0.0)
    left = HEARTBEAT_SECONDS + fence - (context.transaction.at - attempt.heartbeat_at) / 1e6
    sentence = "it may still run on a Dask worker until its lease is over: try again in {:.0f} s"
    return sentence.format(left) if left > 0 else None


def _settle(transaction: Transaction, run_id: str, row: TaskSnapshot, state: TaskState, columns: TaskColumns) -> None:
    """Write the end of a lost attempt, as ``settle.py`` does, but with the state that the act needs."""
    emit_reclaimed(transaction, run_id, row.name, row.attempt, row.generation)
    ended: AttemptColumns = {"ended_at": transaction.at, "outcome": "lost", "failure_mode": "lost"}
    transaction.change_attempt(run_id, row.name, row.attempt, ended)
    drop_provisional(transaction, run_id, row.name, row.attempt)
    columns.update({"ended_at": transaction.at, "failure_mode": "lost", "claim_token": None})
    if row.cancel_requested_at is not None:
        columns["cancel_requested_at"] = None
    payload = TaskMoved(attempt_set=ended)
    transaction.move(run_id, row.name, row.state, state, row.generation, columns, row.attempt, payload=payload)
