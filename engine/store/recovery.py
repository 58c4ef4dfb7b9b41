"""Recovery after a crash: settles the attempts of dead executors as lost, and corrects due times of a wrong clock.

Runs under the lock and after the sweep, so that no recovered attempt can still be alive. Afterwards no attempt is
``running``, and every task either moves on automatically or waits for an operator, with the reason.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable

from ..clock import CLOCK_JUMP_SECONDS
from ..core.causes import PageRequest
from ..core.outcome import Outcome, OutcomeKind
from ..core.policy import Uniform
from ..core.spec import TaskSpec, decode_task_spec, with_overrides
from ..domain.event_payloads import ExecutorChange, ExecutorChanged, RunChange, RunChanged
from ..domain.events import EventKind
from ..domain.liveness import fence_seconds
from ..domain.states import TIMED, TaskState, cut_off_cause
from ..statefile.clean_ups import set_bounds
from ..statefile.clock_steps import shift_times
from ..statefile.processes import is_alive
from ..statefile.requeue import emit_reclaimed, recent_losses
from ..statefile.sql import in_list, task_columns
from ..statefile.transitions import Transaction
from .claims import Claim
from .pages import trigger_page
from .settle import settle

EVENTS_SINCE_STEP_MAX = 1000  # more do not follow a step of the clock before the executor detects it


def unstopped_executors(connection: sqlite3.Connection, executor_id: str) -> list[str]:
    """Return the executors without a recorded end, except ``executor_id``."""
    rows = connection.execute(
        "SELECT executor_id FROM executor WHERE stopped_at IS NULL AND executor_id <> ? ORDER BY started_at",
        (executor_id,),
    )
    return [dead for (dead,) in rows]


def sweepable_executors(connection: sqlite3.Connection, executor_id: str) -> list[str]:
    """Return the dead executors whose processes may be killed.

    A copy of a state file may name a living executor, which still writes the original: its processes are spared.
    """
    dead = unstopped_executors(connection, executor_id)
    rows = connection.execute("SELECT executor_id, pid, start_ticks, boot_id FROM executor").fetchall()
    alive = {identity for identity, *process in rows if is_alive(*process)}
    return [identity for identity in dead if identity not in alive]


_OVER = "SELECT run_id FROM run WHERE ended_at IS NULL AND coalesce(deadline_passed_at, abandoned_at) IS NOT NULL"


def recover(transaction: Transaction, executor_id: str, uniform: Uniform) -> list[str]:
    """Settle the running attempts of executors before ``executor_id`` in every run, and return the dead executors.

    A lost attempt spends no retry budget but counts as a loss: its task waits at least ``base`` before it runs again.
    It becomes a dead letter after ``max_losses`` within a day (crash loop), or at once if it is not idempotent, because
    its progress is unknown (SPEC 4.2, 003.32).
    """
    _follow_clock_back(transaction)
    for claim in _running_attempts(transaction.connection, executor_id):
        _settle_as_lost(transaction, claim, uniform)
    for (run_id,) in transaction.connection.execute(_OVER).fetchall():
        set_bounds(transaction, run_id)
    executors = unstopped_executors(transaction.connection, executor_id)
    for dead in executors:
        transaction.connection.execute(
            "UPDATE executor SET stopped_at = ? WHERE executor_id = ? AND stopped_at IS NULL", (transaction.at, dead)
        )
        sql = "SELECT pid, host FROM executor WHERE executor_id = ?"
        pid, host = transaction.connection.execute(sql, (dead,)).fetchone()
        transaction.emit(ExecutorChanged(ExecutorChange.LOST, dead, pid, host))
    _clamp_due_times(transaction)
    return executors


def _follow_clock_back(transaction: Transaction) -> None:
    """Shift stored times if the clock was set back and no executor has shifted them: an event lies in the future.

    It need not be the latest one: an executor may have died between the step and its shift.
    """
    first = transaction.events[0].seq if transaction.events else sys.maxsize
    rows = transaction.connection.execute(
        "SELECT kind, at FROM event WHERE seq < ? ORDER BY seq DESC LIMIT ?", (first, EVENTS_SINCE_STEP_MAX)
    )
    ahead_us = 0
    for kind, at in rows:
        ahead_us = max(ahead_us, at - transaction.at)
        if kind == EventKind.CLOCK:
            break  # earlier events are of the clock before that step
    if ahead_us <= CLOCK_JUMP_SECONDS * 1e6:
        return
    runs = transaction.connection.execute("SELECT run_id FROM run WHERE ended_at IS NULL ORDER BY run_id")
    shift_times(transaction, [run_id for (run_id,) in runs.fetchall()], -ahead_us)


def _running_attempts(connection: sqlite3.Connection, executor_id: str) -> list[Claim]:
    rows = connection.execute(
        "SELECT run_id, name, attempt, generation, token FROM attempt"
        " WHERE outcome = 'running' AND executor_id IS NOT ? ORDER BY run_id, name, attempt",
        (executor_id,),
    )
    return [Claim(*row) for row in rows.fetchall()]


def _settle_as_lost(transaction: Transaction, claim: Claim, uniform: Uniform) -> None:
    _drop_old_losses(transaction, claim)
    emit_reclaimed(transaction, claim.run_id, claim.task, claim.attempt, claim.generation)
    spec = _spec(transaction.connection, claim)
    settle(transaction, claim, spec, Outcome(OutcomeKind.LOST), uniform)
    if spec.isolation == "dask":
        _delay_until_fence(transaction, claim, spec)


def _delay_until_fence(transaction: Transaction, claim: Claim, spec: TaskSpec) -> None:
    """Delay the retry until the attempt on another host, which no sweep reaches, has ended by its fence."""
    key = (claim.run_id, claim.task)
    earliest = transaction.at + round(fence_seconds(spec.grace_seconds) * 1e6)
    row = transaction.connection.execute(
        "SELECT next_retry_at FROM task WHERE run_id = ? AND name = ? AND state = 'RETRYING'", key
    ).fetchone()
    if row is not None and row[0] < earliest:
        transaction.change(*key, {"next_retry_at": earliest})


def _drop_old_losses(transaction: Transaction, claim: Claim) -> None:
    key = (claim.run_id, claim.task)
    (losses,) = task_columns(transaction.connection, *key, "losses")
    recent = recent_losses(transaction, *key, claim.generation)
    if recent < losses:
        transaction.change(*key, {"losses": recent})


def _spec(connection: sqlite3.Connection, claim: Claim) -> TaskSpec:
    text, overrides = task_columns(connection, claim.run_id, claim.task, "spec, overrides")
    return with_overrides(_decode(claim.task, text), overrides)


def _decode(name: str, text: str) -> TaskSpec:
    return TaskSpec(name) if text == "{}" else decode_task_spec(text)


def _clamp_due_times(transaction: Transaction) -> None:
    """Reduce due times beyond the longest wait of their policy, written while the clock was ahead."""
    rows = transaction.connection.execute(
        "SELECT run_id, name, state, next_retry_at, next_retry_at - ended_at, delay_us, spec FROM task"
        " WHERE run_id IN (SELECT run_id FROM run WHERE ended_at IS NULL)"  # else it reads every task of the file
        f" AND state IN {in_list(TIMED)} AND next_retry_at IS NOT NULL ORDER BY run_id, position"
    ).fetchall()
    for run_id, name, state, due_at, stored_us, delay_us, text in rows:
        wait_us = delay_us if state == TaskState.RETRYING else stored_us
        latest = transaction.at + _longest_wait_us(_decode(name, text), state, wait_us)
        if due_at > latest:
            transaction.change(run_id, name, {"next_retry_at": latest})


def _longest_wait_us(spec: TaskSpec, state: str, wait_us: int | None) -> int:
    """Return the longest plausible wait. ``wait_us``: the drawn or requested wait, which may be longer."""
    seconds = spec.retry.cap if state == TaskState.RETRYING else 2 * spec.recheck_seconds
    return max(round(seconds * 1e6), wait_us or 0)


# --- Runs that were cut off ------------------------------------------------------------------------------------------
#
# Reports unfinished runs whose executor has died, when the next executor opens the state file for another run.


_UNFINISHED = (
    "SELECT run.run_id, executor.pid, executor.host FROM executor JOIN run ON run.run_id = executor.run_id"
    " WHERE executor_id = ? AND run.run_id <> ? AND run.ended_at IS NULL AND run.blocked_since IS NULL"
)


def report_cut_off(transaction: Transaction, dead_executors: Iterable[str], run_id: str) -> None:
    """Emit an event and a page for each unfinished run of ``dead_executors``, except ``run_id``.

    An executor is reported dead once. A blocked run was paged for its dead letters and loses nothing.
    """
    for dead in dead_executors:
        for unfinished, pid, host in transaction.connection.execute(_UNFINISHED, (dead, run_id)).fetchall():
            why = f"its executor (pid {pid} on {host}) died, and no executor has resumed it"
            transaction.emit(RunChanged(RunChange.CUT_OFF, why=why), unfinished)
            title = f"run {unfinished} was cut off"
            trigger_page(transaction, PageRequest(unfinished, None, title, why=why, cause=cut_off_cause(unfinished)))
