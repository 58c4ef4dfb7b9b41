"""Ends by time and verdict: a task that nobody decides about, a run at its deadline, and a run by its verdict.

``domain/states.py`` states the rule of the deadline (SPEC 4.7).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from ..core.causes import PageRequest
from ..core.run_outcome import HeldTasks, RunOutcome, evaluate_run
from ..core.waiting import HUMAN_WAITS, WaitReason
from ..domain import event_payloads as payloads
from ..domain import states
from ..domain.events import EventKind
from ..domain.states import DeadLetterKind, RunState, TaskState
from ..domain.text import counted, format_duration
from ..statefile.action import TaskSnapshot, read_task, reopen_run
from ..statefile.clean_ups import bound_clean_ups, describe_bound, is_clean_up
from ..statefile.requeue import end_generation
from ..statefile.sql import IS_APPROVAL, in_list, run_columns
from ..statefile.transitions import Transaction, propagate, resolve, resolve_deadlines, resolve_vanished
from . import runs
from .pages import trigger_held_page, trigger_page

# --- Undecided tasks ------------------------------------------------------------------------------------------------


def expires_at(connection: sqlite3.Connection, run_id: str, at: int) -> int | None:
    """Return when a dead letter created at ``at`` expires; None: never. Times in microseconds UTC.

    It expires after the flow's ``dead_letter_ttl``, or at the deadline of the run if that is in the future and sooner.
    """
    ttl = _ttl_seconds(connection, run_id)
    if ttl is None:
        return None
    by_ttl = at + round(ttl * 1e6)
    deadline_at: int | None = run_columns(connection, run_id, "deadline_at")[0]
    return min(by_ttl, deadline_at) if deadline_at is not None and deadline_at > at else by_ttl


def _ttl_seconds(connection: sqlite3.Connection, run_id: str) -> float | None:
    row = run_columns(connection, run_id, "options")
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
    bound_clean_ups(transaction, run_id, stays)
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


def end_at_deadline(transaction: Transaction, run_id: str) -> None:
    """End a run that its deadline has ended and that no executor runs, unless a task still runs."""
    run = runs.load_run(transaction.connection, run_id, has_attempts=False)
    if run.run.ended_at is not None or any(row.state in states.MOVING for row in run.tasks.values()):
        return
    end_run(transaction, run_id, evaluate_run(run))


# --- The verdict ----------------------------------------------------------------------------------------------------


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
    end_run(transaction, run_id, verdict)


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
        act=("systems breakers", "--probe" if is_refused else "--close", held.downstream),
    )


def end_run(transaction: Transaction, run_id: str, outcome: RunOutcome) -> None:
    """Write the end of a run, with one event."""
    columns: payloads.RunColumns = {"state": str(outcome.state), "ended_at": transaction.at, "blocked_since": None}
    ended = payloads.RunChanged(payloads.RunChange.ENDED, columns, why=outcome.why)
    transaction.change_run(run_id, ended, old=str(RunState.RUNNING), new=str(outcome.state))
    if outcome.state is RunState.SUCCESS:
        resolve_vanished(transaction, run_id)
        resolve_deadlines(transaction, run_id)
