"""What time ends in a run: undecided dead letters after ``dead_letter_ttl``, and the run at its deadline (SPEC 4.7).

``domain/deadline.py`` states the rule of the deadline.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from ..core.deadline import passed_reason
from ..core.run_outcome import evaluate_run
from ..domain.counting import counted
from ..domain.deadline import deadline_cause, describe_passed, is_due
from ..domain.durations import format_duration
from ..domain.event_changes import RunChange
from ..domain.event_columns import TaskColumns
from ..domain.event_payloads import RunChanged, TaskMoved
from ..domain.states import DEADLINE_MODE, MOVING, DeadLetterKind, TaskState
from ..statefile.changes.action import reopen_run
from ..statefile.changes.canary import abandon_canary
from ..statefile.changes.propagation import propagate
from ..statefile.changes.transitions import Transaction
from ..statefile.state_lists import in_list
from . import runs
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
    if counts_at_once or not is_paged:
        return  # another page is about the same
    known = None if kind is None else DeadLetterKind(kind)
    trigger_page(transaction, PageRequest(run_id=run_id, task=name, title="dead letter expired", why=why, kind=known))


# --- The deadline --------------------------------------------------------------------------------------------------

_RUN = "SELECT deadline_at, deadline_passed_at, options FROM run WHERE run_id = ? AND ended_at IS NULL"
_MOVING = (
    "SELECT name, state, generation, attempt, overrides, cancel_requested_at FROM task"
    f" WHERE run_id = ? AND state IN {in_list(MOVING)} ORDER BY position, name"
)
_EXPIRED = (
    "SELECT name, generation, ended_at, dead_letter_kind FROM task WHERE run_id = ? AND state = 'DEAD_LETTER'"
    " AND expires_at <= ? AND canary IS NULL ORDER BY position, name"
)
_PAGED = "SELECT 1 FROM page WHERE cause = ? AND state <> 'resolved' AND rearmed = 0"  # as a risk, before it came true
_DEAD_LETTERS = "SELECT count(*) FROM task WHERE run_id = ? AND state = 'DEAD_LETTER'"


class _MovingTask(NamedTuple):
    name: str
    state: str
    generation: int
    attempt: int
    overrides: str | None
    cancel_requested_at: int | None


def pass_deadline(transaction: Transaction, run_id: str) -> bool:
    """End what the deadline of a run ends; False: it has no deadline that ends it now.

    The run itself ends when no task runs any more: ``end_at_deadline``, or ``executor/run_end.py``.
    """
    row = transaction.connection.execute(_RUN, (run_id,)).fetchone()
    if row is None:
        return False
    deadline_at, passed_at, options = row
    if not is_due(deadline_at, passed_at, options, transaction.at):
        return False
    why = describe_passed(deadline_at)
    for expired in transaction.connection.execute(_EXPIRED, (run_id, transaction.at)).fetchall():
        _expire(transaction, run_id, *expired, is_paged=False)
    moving = [_MovingTask(*values) for values in transaction.connection.execute(_MOVING, (run_id,)).fetchall()]
    for task in moving:
        _end_task(transaction, run_id, task, why)
    (dead,) = transaction.connection.execute(_DEAD_LETTERS, (run_id,)).fetchone()
    sentence = f"{why}: {_describe_ended(moving, dead)}"
    passed = RunChanged(RunChange.DEADLINE, {"deadline_passed_at": transaction.at}, why=sentence)
    transaction.change_run(run_id, passed)
    if transaction.connection.execute(_PAGED, (deadline_cause(run_id),)).fetchone() is None:
        act = ("postpone", "1h")
        request = PageRequest(run_id, None, "deadline missed", sentence, kind=DeadLetterKind.DEADLINE, act=act)
        trigger_page(transaction, request)
    return True


def _end_task(transaction: Transaction, run_id: str, task: _MovingTask, why: str) -> None:
    """Cancel a task that does not run; request the end of one that runs, unless an operator has done so."""
    if task.state == TaskState.RUNNING:
        if task.cancel_requested_at is None:
            requested: TaskColumns = {
                "cancel_requested_at": transaction.at,
                "failure_mode": DEADLINE_MODE,
                "error": why,
            }
            transaction.change(run_id, task.name, requested, attempt=task.attempt, why=why)
        return
    abandon_canary(transaction, run_id, task.name, task.overrides)
    ended: TaskColumns = {
        "ended_at": transaction.at,
        "next_retry_at": None,
        "failure_mode": DEADLINE_MODE,
        "error": why,
    }
    payload = TaskMoved(why=why)
    transaction.move(run_id, task.name, task.state, TaskState.CANCELLED, task.generation, set=ended, payload=payload)


def _describe_ended(moving: list[_MovingTask], dead: int) -> str:
    running = [task.name for task in moving if task.state == TaskState.RUNNING]
    others = len(moving) - len(running)
    parts = [f"{running[0]} is ended"] if len(running) == 1 else [f"{counted(len(running), 'task')} are ended"]
    parts = parts if running else []
    parts += [f"{counted(others, 'task')} {'is' if others == 1 else 'are'} cancelled"] if others else []
    parts += [f"{counted(dead, 'dead letter')} {'waits' if dead == 1 else 'wait'} for a human"] if dead else []
    return ", ".join(parts)


def end_at_deadline(transaction: Transaction, run_id: str) -> None:
    """End a run that its deadline has ended and that no executor runs, unless a task still runs."""
    run = runs.load_run(transaction.connection, run_id, has_attempts=False)
    if run.run.ended_at is not None or any(row.state in MOVING for row in run.tasks.values()):
        return
    runs.end_run(transaction, run_id, evaluate_run(run.tasks.values(), 0, over=passed_reason(run.run)))
