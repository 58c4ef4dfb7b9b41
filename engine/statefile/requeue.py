"""The generations of a task: starting a new one (requeue), and ending one by an operator's decision.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from typing import Dict, List, NamedTuple, Optional

from ..domain import event_payloads as payloads
from ..domain import states
from ..domain.acts import HELD, REFUSED, REQUEUE_FLAGS, Answer, Target
from ..domain.events import JsonObject
from ..domain.liveness import HEARTBEAT_SECONDS, fence_seconds
from ..domain.task_options import GRACE_SECONDS, MAX_ATTEMPTS, Overrides, load_overrides, parse_overrides
from ..domain.text import counted, format_clock
from .action import ActionContext, TaskSnapshot, check_target, read_known_task, read_task, reopen_run
from .ownership import has_token
from .processes import ancestors, identity, is_alive, pids
from .quarantine import drop_provisional
from .sql import IS_APPROVAL, in_list, run_columns
from .transitions import Transaction, descendants_of, hold_if_blocked, reevaluate, resolve, resolve_cause

#: Columns of the task that a new generation resets. The attempts stay, and their numbers continue.
RESET: payloads.TaskColumns = {
    "ended_at": None,
    "error": None,
    "failure_fingerprint": None,
    "failure_class": None,
    "failure_mode": None,
    "dead_letter_kind": None,
    "next_retry_at": None,
    "delay_us": None,
    "ceiling_us": None,
    "shortened_us": None,
    "first_started_at": None,
    "blocked_by": None,
    "skip_cause": None,
    "claim_token": None,
    "result": None,
    "checkpoint": None,
    "progress_done": None,
    "progress_total": None,
    "stale": 0,
    "notice": None,
    "expires_at": None,
    "overrides": None,
    "canary": None,
    "aside": None,
    "element_keys": None,
}
COUNTERS: payloads.TaskColumns = {"failures": 0, "losses": 0, "deferrals": 0, "refusals": 0}

_OPTIONS = frozenset(REQUEUE_FLAGS).union(
    ("fingerprint", "max_attempts", "not_before", "params", "rate_per_second", "reset_count"),
    ("rollout", "timeout", "verifies"),
)


def overrides_from_options(context: ActionContext) -> Overrides:
    """The overrides in the options of a requeue. Raises ValueError with one sentence."""
    unknown = set(context.options) - _OPTIONS
    if unknown:
        raise ValueError("a requeue takes no option {}".format(", ".join(sorted(repr(name) for name in unknown))))
    row = run_columns(context.connection, context.run_id, "params, options")
    params, flow_options = (json.loads(text) for text in row) if row is not None else ({}, {})
    return parse_overrides(context.options, params, flow_options.get("params") or {})


def start_generation(
    context: ActionContext, row: TaskSnapshot, overrides: Optional[Overrides] = None, new_key: bool = False
) -> None:
    """Move a task to PENDING in a new generation, with its columns reset. Its attempts stay.

    Children are not changed here; ``task_acts._update_dependents`` does that.
    """
    abandon_canary(context.transaction, context.run_id, row.name, row.overrides)
    columns = dict(RESET, generation=row.generation + 1)
    if context.options.get("reset_count", True):
        columns.update(COUNTERS)
    wait_seconds = _wait_seconds(context)
    if wait_seconds > 0:
        columns["next_retry_at"] = context.transaction.at + int(wait_seconds * 1000000)
    if overrides:
        columns["overrides"] = json.dumps(overrides, ensure_ascii=False, sort_keys=True)
    starts = _max_attempts(row, overrides or {})
    if starts is not None:
        columns["max_attempts"] = starts
    if new_key:
        columns["key_generation"] = row.generation + 1
    context.transaction.move(context.run_id, row.name, row.state, states.TaskState.PENDING, row.generation, set=columns)


def run_again(transaction: Transaction, run_id: str, name: str, state: str, generation: int) -> None:
    """Move a task that an operator did not name to PENDING in a new generation: another one runs again."""
    columns = dict(RESET, generation=generation + 1, **COUNTERS)
    transaction.move(run_id, name, state, states.TaskState.PENDING, generation, set=columns)


def end_generation(
    transaction: Transaction,
    run_id: str,
    row: TaskSnapshot,
    state: states.TaskState,
    columns: payloads.TaskColumns = payloads.EMPTY,
    why: Optional[str] = None,
) -> None:
    """Move a task that does not run to a final ``state``, clear its instants, and release the followers of a canary.

    ``columns``: further columns to set.
    """
    abandon_canary(transaction, run_id, row.name, row.overrides)
    ended: payloads.TaskColumns = {
        "ended_at": transaction.at,
        "next_retry_at": None,
        "expires_at": None,
        "canary": None,
    }
    ended.update(columns)
    payload = payloads.TaskMoved(why=why)
    transaction.move(run_id, row.name, row.state, state, row.generation, set=ended, payload=payload)


def skip_generation(transaction: Transaction, run_id: str, name: str, cause: states.SkipCause, why: str) -> None:
    """Skip a task that does not run and that nothing will run any more; what it has paged is resolved."""
    row = read_known_task(transaction.connection, run_id, name)
    columns: payloads.TaskColumns = {"skip_cause": str(cause), "blocked_by": None}
    end_generation(transaction, run_id, row, states.TaskState.SKIPPED, columns, why)
    resolve(transaction, run_id, name)


def _max_attempts(row: TaskSnapshot, overrides: Overrides) -> Optional[int]:
    """The new value of the column ``max_attempts``; None if it does not change."""
    if "max_attempts" in overrides:
        return int(overrides["max_attempts"])
    if "max_attempts" not in load_overrides(row.overrides):
        return None
    return int(row.read_spec().get("retry", {}).get("max_attempts", MAX_ATTEMPTS))


def _wait_seconds(context: ActionContext) -> float:
    """Seconds that the next target waits: a redrive of a thousand tasks must not cause the next outage."""
    seconds = float(context.options.get("not_before") or 0)
    rate = float(context.options.get("rate_per_second") or 0)
    return seconds + len(context.results) / rate if rate > 0 else seconds


# --- Canaries: of many tasks with one cause the first is requeued, and the others follow after it has succeeded ------
#
# Until then the followers stay dead letters with the canary's name in column ``canary``, so that nothing has to be
# reverted if the fix does not work. ``settle.py`` handles the end of the canary.


def canary_refusal(row: TaskSnapshot) -> Optional[str]:
    """Why a task cannot be a canary or a follower, in one sentence; None if it can."""
    return None if row.state in states.NEEDS_HUMAN else f"a canary is for what has failed: it is {row.state}"


def loose_fingerprint(context: ActionContext, row: TaskSnapshot) -> Optional[str]:
    """The loose fingerprint of the failure that the fix should have ended."""
    found = context.connection.execute(
        "SELECT fingerprint_loose FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?",
        (context.run_id, row.name, row.attempt),
    ).fetchone()
    return None if found is None else found[0]


def hold_for_canary(context: ActionContext, row: TaskSnapshot, first: str) -> None:
    """Make a task a follower of the canary ``first``."""
    refused = canary_refusal(row)
    if refused:
        context.set_result(row.name, REFUSED, refused)
        return
    context.transaction.change(context.run_id, row.name, {"canary": first})
    context.set_result(row.name, HELD, f"follow when {first} has succeeded")


def release_followers(transaction: Transaction, run_id: str, first: str) -> List[str]:
    """Release the followers of ``first``: they wait for a human again. Returns their names, in order."""
    sql = "SELECT name FROM task WHERE run_id = ? AND canary = ? ORDER BY position, name"
    names = [name for (name,) in transaction.connection.execute(sql, (run_id, first)).fetchall()]
    for name in names:
        transaction.change(run_id, name, {"canary": None})
    return names


def abandon_canary(transaction: Transaction, run_id: str, name: str, overrides: Optional[str]) -> None:
    """Release the followers of a canary that is decided before it ran. No effect on other tasks."""
    if "rollout" in load_overrides(overrides):
        release_followers(transaction, run_id, name)


# --- Tasks that a dead executor left RUNNING, when an operator acts on them before the run is resumed ----------------
#
# While a process of such a task lives, every act on the task is refused (SPEC 4.9). Otherwise its attempt is settled
# as lost, as ``recovery.py`` does on a resume, and the act follows in the same transaction. A task that is not
# idempotent becomes a dead letter, and an act sent before that does not requeue it: its operator saw RUNNING, and must
# check first.


_ATTEMPT = (
    "SELECT attempt.pid, attempt.pid_start_ticks, attempt.executor_id, executor.boot_id, executor.heartbeat_at,"
    " executor.pid, executor.start_ticks FROM task"
    " JOIN attempt ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = task.attempt"
    " LEFT JOIN executor ON executor.executor_id = attempt.executor_id WHERE task.run_id = ? AND task.name = ?"
)
_EVIDENCE = (
    "SELECT pid, pid_start_ticks, executor_id, max(attempt.started_at, coalesce(last_heartbeat_at, 0)) FROM attempt"
    " JOIN task USING (run_id, name) WHERE run_id = ? AND name = ? AND attempt.attempt = ?"
)


LOSSES_WINDOW_SECONDS = 24 * 3600
_LOSSES = (
    "SELECT min(losses, (SELECT count(*) FROM attempt WHERE attempt.run_id = task.run_id AND attempt.name = task.name"
    " AND attempt.generation = ? AND attempt.outcome = 'lost' AND attempt.ended_at > ?)) FROM task"
    " WHERE run_id = ? AND name = ?"
)


class _RunningAttempt(NamedTuple):
    """The columns of ``_ATTEMPT``."""

    pid: Optional[int]
    start_ticks: Optional[int]
    executor_id: Optional[str]
    boot_id: Optional[str]
    heartbeat_at: Optional[int]
    executor_pid: Optional[int]
    executor_ticks: Optional[int]


def resolve_target(context: ActionContext, target: Target) -> Optional[TaskSnapshot]:
    """Return the target if it is unchanged, as ``check_target`` does; settle it as lost first if it runs no more."""
    row = check_target(context, target)
    if row is None or row.state != states.TaskState.RUNNING or not context.is_abandoned:
        return row
    connection = context.connection
    attempt = _RunningAttempt(*connection.execute(_ATTEMPT, (context.run_id, row.name)).fetchone())
    spec = row.read_spec()
    obstacle = _living_process(context, attempt) or _remaining_lease(context, attempt, spec)
    if obstacle is not None:
        context.set_result(row.name, REFUSED, obstacle)
        return None
    # A transaction that records nothing, because an undo of the act must not revive the attempt.
    transaction = Transaction(connection, context.transaction.at)
    transaction.events = context.transaction.events
    columns: payloads.TaskColumns = {"losses": recent_losses(transaction, context.run_id, row.name, row.generation) + 1}
    if spec.get("idempotent", True):
        columns["next_retry_at"] = transaction.at
        _settle(transaction, context.run_id, row, states.TaskState.RETRYING, columns)
        return read_task(connection, context.run_id, row.name)
    abandon_canary(transaction, context.run_id, row.name, row.overrides)
    key = states.effect_key(context.run_id, row.name, row.key_generation) if spec.get("effect") else None
    columns["dead_letter_kind"] = str(states.DeadLetterKind.INDETERMINATE)
    columns["error"] = states.describe_lost(key)
    _settle(transaction, context.run_id, row, states.TaskState.DEAD_LETTER, columns)
    if context.act == "requeue":
        context.set_result(row.name, REFUSED, f"{states.describe_lost(key)}; it is a dead letter now")
        return None
    return read_task(connection, context.run_id, row.name)


def recent_losses(transaction: Transaction, run_id: str, name: str, generation: int) -> int:
    """The losses of a task that count towards a crash loop: none that is older than LOSSES_WINDOW_SECONDS."""
    since = transaction.at - LOSSES_WINDOW_SECONDS * 1000000
    (losses,) = transaction.connection.execute(_LOSSES, (generation, since, run_id, name)).fetchone()
    return int(losses)


def emit_reclaimed(transaction: Transaction, run_id: str, name: str, attempt: int, generation: int) -> None:
    """Emit the evidence for taking an attempt from its task: its executor is dead, and no process of it lives."""
    found = transaction.connection.execute(_EVIDENCE, (run_id, name, attempt)).fetchone()
    pid, start_ticks, executor_id, seen_at = found
    evidence = payloads.AttemptReclaimed(
        pid, start_ticks, "gone", round((transaction.at - seen_at) / 1e6, 1), executor_id
    )
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
    sentence = "its executor is dead, but process {0} of it still lives: kill -9 {0}, or resume the run, which ends it"
    return sentence.format(pid)


def _orphan_of(context: ActionContext, executor_id: str) -> Optional[int]:
    if executor_id not in context.orphan_pids:
        spared = ancestors()
        found = (pid for pid in pids() if pid not in spared and has_token(pid, [executor_id]))
        context.orphan_pids[executor_id] = next(found, None)
    return context.orphan_pids[executor_id]


def fence_of(spec: JsonObject) -> Optional[float]:
    """Seconds that an attempt may live after its executor or its worker has gone silent; None: it runs here."""
    if spec.get("isolation") != "dask":
        return None
    grace_seconds = spec.get("grace_seconds", GRACE_SECONDS)
    return fence_seconds(float(grace_seconds) if isinstance(grace_seconds, (int, float)) else 0.0)


def _remaining_lease(context: ActionContext, attempt: _RunningAttempt, spec: JsonObject) -> Optional[str]:
    """The refusal while an attempt on another host may live: it ends itself when its lease is not renewed."""
    fence = fence_of(spec)
    if fence is None or attempt.heartbeat_at is None:
        return None
    left = HEARTBEAT_SECONDS + fence - (context.transaction.at - attempt.heartbeat_at) / 1e6
    sentence = "it may still run on a Dask worker until its lease is over: try again in {:.0f} s"
    return sentence.format(left) if left > 0 else None


def _settle(
    transaction: Transaction, run_id: str, row: TaskSnapshot, state: states.TaskState, columns: payloads.TaskColumns
) -> None:
    """Write the end of a lost attempt, as ``settle.py`` does, but with the state that the act needs."""
    emit_reclaimed(transaction, run_id, row.name, row.attempt, row.generation)
    ended: payloads.AttemptColumns = {"ended_at": transaction.at, "outcome": "lost", "failure_mode": "lost"}
    transaction.change_attempt(run_id, row.name, row.attempt, ended)
    drop_provisional(transaction, run_id, row.name, row.attempt)
    columns.update({"ended_at": transaction.at, "failure_mode": "lost", "claim_token": None})
    if row.cancel_requested_at is not None:
        columns["cancel_requested_at"] = None
    payload = payloads.TaskMoved(attempt_set=ended)
    transaction.move(run_id, row.name, row.state, state, row.generation, columns, row.attempt, payload=payload)


# --- A run after its deadline: an operator lifts the deadline by running tasks again, or gives the run another one ---
#
# ``domain/states.py`` states the rule; ``store/endings.py`` ends the run at its deadline.


_LATE = (
    "SELECT name, generation FROM task WHERE run_id = ? AND state = 'CANCELLED' AND failure_mode = ?"
    " ORDER BY position, name"
)
_ENDING = "SELECT count(*) FROM task WHERE run_id = ? AND state = 'RUNNING' AND failure_mode = ?"


def restart_cancelled(context: ActionContext) -> None:
    """Lift a deadline that has passed, and run the tasks again that it had cancelled below those that the act changed.

    Whoever lets a task run after the deadline wants what follows from it as well.
    """
    changed = context.done_names()
    if not changed:
        return
    late = late_tasks(context)
    if late:
        below = {name for root in changed for name in descendants_of(context.connection, context.run_id, root)}
        again = _run_again(context, {name: late[name] for name in late if name in below})
        context.add_consequence(again, _LATE_AGAIN)
    lift_passed_deadline(context)


_LATE_AGAIN = "cancelled by the deadline, to run again"


def lift_passed_deadline(context: ActionContext) -> None:
    """Lift a deadline that has passed: a task may start again."""
    row = run_columns(context.connection, context.run_id, "deadline_at, deadline_passed_at, abandoned_at, options")
    if row is None:
        return
    deadline_at, passed_at, abandoned_at, options = row
    if abandoned_at is not None:
        goes_on = payloads.RunChanged(payloads.RunChange.REOPENED, {"abandoned_at": None})
        context.transaction.change_run(context.run_id, goes_on)
        context.notes.append("the run was abandoned: it goes on")
    if deadline_at is None or not states.ends_run(options):
        return
    if passed_at is not None or context.transaction.at >= deadline_at:  # the clock may have been set back since
        why = f"{states.describe_passed(deadline_at)}: it goes on without one"
        _set_deadline(context, None, why)
        context.notes.append(why)


def postpone(context: ActionContext) -> Answer:
    """Give the run another deadline, in ``seconds`` from now; without ``seconds`` none. ``is_time``: a time of day.

    What the old one had cancelled runs again. Refused while the old one still ends attempts.
    """
    deadline_at, passed_at = run_columns(context.connection, context.run_id, "deadline_at, deadline_passed_at")
    seconds = context.options.get("seconds")
    if seconds is None and deadline_at is None:
        return Answer(False, "the run has no deadline")
    if seconds is not None and seconds <= 0:
        return Answer(False, "a deadline is in the future: give seconds above 0")
    (ending,) = context.connection.execute(_ENDING, (context.run_id, states.DEADLINE_MODE)).fetchone()
    if ending and not context.is_abandoned:
        return Answer(
            False, "the old deadline still ends {}: postpone it in a moment".format(counted(ending, "attempt"))
        )
    until = None if seconds is None else context.transaction.at + int(seconds * 1000000)
    before = "" if deadline_at is None else f", it was {format_clock(deadline_at)}"
    new = "the run has no deadline any more" if until is None else f"the deadline is {format_clock(until)}"
    why = new + before
    _set_deadline(context, until, why, is_time=until is not None and bool(context.options.get("is_time")))
    again = _run_again(context, late_tasks(context))
    if passed_at is not None:
        reopen_run(context.transaction, context.run_id)
    context.add_consequence(again, _LATE_AGAIN)
    return Answer(True, "; ".join([why] + context.consequences))


#: SQL: the clean-ups of a run that is over which can start or run (``clean_ups.py``).
BOUNDED_CLEAN_UPS = (
    "SELECT name FROM task WHERE run_id = ? AND expires_at IS NOT NULL AND state IN " + in_list(states.MOVING) + ""
    " AND NOT " + IS_APPROVAL + " ORDER BY position, name"
)


def _set_deadline(context: ActionContext, deadline_at: Optional[int], why: str, is_time: bool = False) -> None:
    columns: payloads.RunColumns = {
        "deadline_at": deadline_at,
        "deadline_passed_at": None,
        "deadline_is_time": int(is_time),
    }
    context.transaction.change_run(context.run_id, payloads.RunChanged(payloads.RunChange.POSTPONED, columns, why=why))
    for (name,) in context.connection.execute(BOUNDED_CLEAN_UPS, (context.run_id,)).fetchall():
        context.transaction.change(context.run_id, name, {"expires_at": None})
        hold_if_blocked(context.transaction, context.run_id, name)
    resolve_cause(context.transaction, states.deadline_cause(context.run_id))


def late_tasks(context: ActionContext) -> Dict[str, int]:
    """The tasks that the deadline has cancelled, with their generations, in the order of the flow."""
    return dict(context.connection.execute(_LATE, (context.run_id, states.DEADLINE_MODE)).fetchall())


def _run_again(context: ActionContext, late: Dict[str, int]) -> List[str]:
    for name, generation in late.items():
        run_again(context.transaction, context.run_id, name, str(states.TaskState.CANCELLED), generation)
    for name in late:
        reevaluate(context.transaction, context.run_id, name)
    return list(late)
