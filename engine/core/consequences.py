"""Derive what the end of an attempt changes: (time, decision, outcome, history) -> one value, which the store writes.

``_TABLE`` has a row for each decision; the columns of the task and of the attempt follow below.
"""

from __future__ import annotations

import json
from enum import Enum

import msgspec

from ..domain.event_payloads import AttemptColumns, TaskColumns, TaskMoved
from ..domain.states import MOVING, DeadLetterKind, SkipCause, TaskState
from .advice import duration_literal
from .causes import PageRequest
from .decide import Cancel, DeadLetter, Decision, Defer, Fail, Interrupt, Retry, Skip, Succeed, TaskHistory, counter_of
from .outcome import Failure, FailureMode, Outcome
from .spec import TaskSpec

ERROR_SUMMARY_CHARACTERS = 200  # task.error; the attempt has the full text


class Children(Enum):
    """The effect on the tasks below."""

    EXPAND = "the maps over the result get their tasks, and their trigger rules are applied"
    PROPAGATE = "their trigger rules are applied"
    WAIT = "they wait; the task waits with them if it is blocked"
    HELD = "they wait for the decision of a human"


class RowEffects(Enum):
    """The effect on the rows that the attempt put into quarantine."""

    CONFIRM = "they are held"
    DROP = "the next attempt processes them again"
    DROP_FOR_GOOD = "no attempt follows by itself: rows that were requeued are held again"


#: Decision -> the state of the task, the tasks below, quarantined rows, whether open pages of the task are resolved.
_TABLE: dict[type[Decision], tuple[TaskState, Children, RowEffects, bool]] = {
    Succeed: (TaskState.SUCCESS, Children.EXPAND, RowEffects.CONFIRM, True),
    Retry: (TaskState.RETRYING, Children.WAIT, RowEffects.DROP, False),
    Fail: (TaskState.FAILED, Children.PROPAGATE, RowEffects.DROP_FOR_GOOD, False),
    DeadLetter: (TaskState.DEAD_LETTER, Children.HELD, RowEffects.DROP_FOR_GOOD, False),
    Defer: (TaskState.SENSING, Children.WAIT, RowEffects.DROP, False),
    Skip: (TaskState.SKIPPED, Children.PROPAGATE, RowEffects.DROP_FOR_GOOD, True),
    Cancel: (TaskState.CANCELLED, Children.PROPAGATE, RowEffects.DROP_FOR_GOOD, True),
    Interrupt: (TaskState.RETRYING, Children.WAIT, RowEffects.DROP, False),
}


class Consequences(msgspec.Struct, frozen=True):
    """All that the end of an attempt changes."""

    state: TaskState
    columns: TaskColumns  # of the task
    attempt: AttemptColumns
    payload: TaskMoved
    children: Children
    rows: RowEffects
    resolves_pages: bool  # of the task: it has succeeded, or somebody has decided about it
    page: PageRequest | None = None  # its failure is paged
    proven: Failure | None = None  # repeats by evidence: siblings that failed alike may be ended


def consequences_of(at: int, run_id: str, decision: Decision, outcome: Outcome, history: TaskHistory) -> Consequences:
    """Return what follows from a decision. ``at``: the end of the attempt, microseconds UTC."""
    spec, (state, children, rows, resolves_pages) = history.spec, _TABLE[type(decision)]
    columns: TaskColumns = {"ended_at": at, **_columns_of(at, decision, outcome, history), "claim_token": None}
    if counter := counter_of(decision):
        columns.update({counter: getattr(history, counter) + 1})
    if history.cancel_requested:
        columns["cancel_requested_at"] = None
    if history.bounded_until is not None and state not in MOVING:
        columns["expires_at"] = None
    if isinstance(decision, Cancel) and decision.why:
        resolves_pages = False
    is_poison = isinstance(decision, DeadLetter) and decision.kind is DeadLetterKind.POISON
    return Consequences(
        state,
        columns,
        attempt_columns(at, outcome, decision),
        _payload_of(decision, outcome, history),
        children,
        rows,
        resolves_pages,
        page=page_of(run_id, spec, decision, outcome.failure) if isinstance(decision, Fail | DeadLetter) else None,
        proven=outcome.failure if is_poison else None,
    )


def page_of(run_id: str, spec: TaskSpec, decision: Fail | DeadLetter, failure: Failure | None) -> PageRequest:
    """Return the reason for a page about a task that has failed."""
    kind, timeout = (decision.kind, decision.timeout) if isinstance(decision, DeadLetter) else (None, None)
    return PageRequest(
        run_id=run_id,
        task=spec.name,
        title=_title(decision),
        why=decision.why,
        kind=kind,
        mode=decision.mode,
        failure=failure,
        downstream=spec.downstream,
        owner=spec.owner,
        options=() if timeout is None else ("--timeout", duration_literal(timeout)),
    )


def _title(decision: Fail | DeadLetter) -> str:
    if isinstance(decision, Fail):
        return "budget spent"
    if decision.fix_failed:
        return "not fixed"
    return _TITLES.get(decision.kind, str(decision.kind))


_TITLES = {DeadLetterKind.POISON: "poison-pill", DeadLetterKind.TIMEOUT: "timeout too short"}

# --- The task --------------------------------------------------------------------------------------------------------


def _columns_of(at: int, decision: Decision, outcome: Outcome, history: TaskHistory) -> TaskColumns:
    """Return the columns of the task besides those of every end."""
    match decision:
        case Succeed():
            in_time: TaskColumns = {"failure_mode": None, "error": None}  # although its deadline has passed
            return {**success_columns(outcome), **(in_time if history.deadline_passed is not None else {})}
        case Retry():
            waits = _wait_columns(decision)
            return {
                **_failure_columns(outcome.failure, decision.mode),
                "next_retry_at": at + waits["delay_us"],
                "shortened_us": None,
                **waits,
            }
        case Fail():
            return {**_failure_columns(outcome.failure, decision.mode), "next_retry_at": None}
        case DeadLetter():
            columns: TaskColumns = {**_failure_columns(outcome.failure, decision.mode), "next_retry_at": None}
            columns["dead_letter_kind"] = str(decision.kind)
            if decision.mode in (FailureMode.LOST, FailureMode.SLOW):  # the error of the attempt says less
                columns["error"] = decision.why[:ERROR_SUMMARY_CHARACTERS]
            return columns
        case Defer(has_answered=has_answered):
            said = summary(outcome.failure) or _said(outcome.defer_reason)
            columns = {"next_retry_at": at + round(decision.delay * 1e6), "error": said}
            return {**columns, "failures": 0} if has_answered and history.failures else columns
        case Skip():
            return {"skip_cause": str(SkipCause.CONDITION), "error": _said(outcome.skip_reason)}
        case Cancel(why=None):
            return {**_failure_columns(outcome.failure, FailureMode.OTHER), "next_retry_at": None}
        case Cancel(why=why):
            return {"failure_mode": str(FailureMode.DEADLINE), "error": why, "next_retry_at": None}
        case Interrupt():
            return {"next_retry_at": at + round(outcome.fence_seconds * 1e6)}


def success_columns(outcome: Outcome) -> TaskColumns:
    """Return the columns of a task that has succeeded, besides those of every end."""
    keys: TaskColumns = {"element_keys": json.dumps(outcome.element_keys)} if outcome.element_keys else {}
    return {"result": outcome.result, "next_retry_at": None, **keys}


def _wait_columns(decision: Retry) -> dict[str, int]:
    """Return the columns that the task and the attempt have of a wait."""
    columns = {"delay_us": decision.delay, "ceiling_us": decision.ceiling, "shortened_us": decision.shortened_from}
    return {name: round(seconds * 1e6) for name, seconds in columns.items() if seconds is not None}


def _failure_columns(failure: Failure | None, mode: FailureMode) -> TaskColumns:
    if failure is None:
        return {"failure_mode": str(mode)}
    return {
        "error": summary(failure),
        "failure_fingerprint": failure.fingerprint.strict,
        "failure_class": str(failure.failure_class),
        "failure_mode": str(mode),
    }


def summary(failure: Failure | None) -> str | None:
    """Return the text of ``task.error``."""
    if failure is None:
        return None
    message = failure.message.strip() or failure.error_type
    return message[:ERROR_SUMMARY_CHARACTERS]


def _said(reason: str) -> str | None:
    return reason.strip()[:ERROR_SUMMARY_CHARACTERS] or None


def _payload_of(decision: Decision, outcome: Outcome, history: TaskHistory) -> TaskMoved:
    explain = None if outcome.failure is None else outcome.failure.fingerprint.explain
    match decision:
        case Retry(due_at=due_at):
            return TaskMoved(explain=explain, changed=history.changed, due_at=due_at)
        case Fail(why=why) | DeadLetter(why=why):
            return TaskMoved(why=why, explain=explain)
        case Cancel(why=str(why)) | Interrupt(why=why):
            return TaskMoved(why=why)
        case _:
            return TaskMoved()


# --- The attempt -----------------------------------------------------------------------------------------------------

#: Columns of the attempt that are left out of events and read on demand.
LONG_TEXTS = frozenset(["traceback", "stack", "fingerprint_detail"])


def without_long_texts(columns: AttemptColumns) -> AttemptColumns:
    """Return the columns for an event."""
    return {column: value for column, value in columns.items() if column not in LONG_TEXTS}


_MEASURED = frozenset(["exit_code", "signal", "max_rss_kb", "cpu_user_us", "cpu_system_us", "duration_us", "stack"])


def attempt_columns(at: int, outcome: Outcome, decision: Decision | None) -> AttemptColumns:
    """Return the columns of ``attempt`` at its end."""
    measured = {key: value for key, value in outcome.attempt_columns.items() if value is not None and key in _MEASURED}
    columns = {"ended_at": at, "outcome": str(outcome.kind), **measured}
    failure = outcome.failure
    if failure is not None:
        fingerprint = failure.fingerprint
        detail = {name: getattr(fingerprint, name) for name in ("explain", "parts", "fields", "v1")}
        detail["facts"] = dict(failure.facts)
        columns.update(
            {
                "error_type": failure.error_type,
                "error": failure.message,
                "diagnostic": failure.diagnostic,
                "traceback": failure.traceback or None,
                "failure_class": str(failure.failure_class),
                "fingerprint": fingerprint.strict,
                "fingerprint_loose": fingerprint.loose,
                "explain": fingerprint.explain or None,
                "fingerprint_detail": json.dumps(detail, ensure_ascii=False),
            }
        )
    if isinstance(decision, Retry | Fail | DeadLetter):
        columns["failure_mode"] = str(decision.mode)
    if isinstance(decision, Retry):
        columns.update(_wait_columns(decision))
    return columns
