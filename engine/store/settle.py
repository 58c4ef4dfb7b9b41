"""Settles the end of an attempt: loads the task's history, decides, moves the task and emits, in one transaction.

The decision is made on the writer, between BEGIN and COMMIT, so that the row cannot change in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

from ..core.advice import TimeoutJudgement, duration_literal
from ..core.breaker import DownstreamHealth
from ..core.decide import (
    Cancel,
    DeadLetter,
    Decision,
    Defer,
    Fail,
    Interrupt,
    Retry,
    Skip,
    Succeed,
    TaskHistory,
    counter_of,
    decide,
    decide_loss,
)
from ..core.failures.failure import describe_wait_timeout
from ..core.outcome import Failure, FailureMode, Outcome, OutcomeKind
from ..core.policy import Uniform
from ..core.spec import TaskSpec
from ..domain.event_columns import AttemptColumns, TaskColumns
from ..domain.event_payloads import AttemptLate, TaskMoved
from ..domain.overrides import load_overrides
from ..domain.states import DeadLetterKind, SkipCause, TaskState
from ..statefile.changes.action import find_cancel_request
from ..statefile.changes.mapping import expand_below
from ..statefile.changes.page_lifecycle import resolve
from ..statefile.changes.propagation import hold_if_blocked, propagate
from ..statefile.changes.transitions import Transaction
from . import quarantine, rollout
from .claims import Claim, emit
from .expiry import expires_at
from .pages import PageRequest, trigger_page
from .siblings import end_siblings
from .task_history import IS_PLAIN_SUCCESS, StoredTask, read_history, read_stored

ERROR_SUMMARY_CHARACTERS = 200  # task.error; the attempt has the full text


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of ``settle``. ``decision`` None: the attempt ended too late, and the task has moved on."""

    decision: Decision | None


def settle(
    transaction: Transaction,
    claim: Claim,
    spec: TaskSpec,
    outcome: Outcome,
    uniform: Uniform,
    *,
    path_seconds: float = 0.0,
    deadline_at: int | None = None,
    health: DownstreamHealth = DownstreamHealth.UP,
    interrupted: bool = False,
    is_silent: bool = False,
) -> Settlement:
    """Write the end of an attempt.

    ``interrupted``: the executor terminated it because the executor stops. ``is_silent``: it has written no output.
    """
    if is_silent and outcome.kind is OutcomeKind.SUCCESS and _settle_plain_success(transaction, claim, outcome):
        return Settlement(Succeed())
    stored = read_stored(transaction.connection, claim, is_success=outcome.kind is OutcomeKind.SUCCESS)
    history = read_history(
        transaction.connection,
        claim,
        spec,
        outcome,
        stored,
        at=transaction.at,
        path_seconds=path_seconds,
        deadline_at=deadline_at,
        health=health,
    )
    outcome = _with_reason(outcome, history.timeout)
    if interrupted and not history.cancel_requested and outcome.kind is OutcomeKind.CANCELLED:
        # A half-done attempt that is not idempotent is as uncertain as after a crash.
        decision: Decision = Interrupt() if history.idempotent else decide_loss(history, spec.retry, uniform)
    else:
        decision = decide(history, outcome, spec.retry, transaction.at, uniform)
    if isinstance(decision, Fail) and outcome.failure is None:
        outcome = replace(outcome, failure=describe_wait_timeout(claim.name, decision.why, outcome.defer_reason))
    with _attributed_to_requester(transaction, claim) if isinstance(decision, Cancel) else nullcontext():
        written = write_decision(transaction, claim, spec, outcome, decision, history, stored)
    if not written:
        _write_late(transaction, claim, outcome)
        return Settlement(None)
    return Settlement(decision)


def _settle_plain_success(transaction: Transaction, claim: Claim, outcome: Outcome) -> bool:
    """Settle a success without further consequences; False: it may have some, or it is late.

    Most are such: to read nothing before saves a fifth of the statements of a short attempt.
    """
    columns: TaskColumns = {"ended_at": transaction.at, **_success_columns(outcome), "claim_token": None}
    attempt = attempt_columns(transaction.at, outcome, None)
    payload = TaskMoved(attempt_set=attempt if "stack" not in attempt else _without_long_texts(attempt))
    return _write_end(transaction, claim, TaskState.SUCCESS, columns, payload, attempt, IS_PLAIN_SUCCESS)


@contextmanager
def _attributed_to_requester(transaction: Transaction, claim: Claim) -> Iterator[None]:
    """Emit the events of a cancel in the name of the operator who requested it."""
    request = find_cancel_request(transaction.connection, claim.run_id, claim.name)
    before = transaction.author
    if request is not None:
        transaction.author = request.author
    try:
        yield
    finally:
        transaction.author = before


def write_decision(
    transaction: Transaction,
    claim: Claim,
    spec: TaskSpec,
    outcome: Outcome,
    decision: Decision,
    history: TaskHistory,
    stored: StoredTask,
) -> bool:
    """Move the task as decided, close the attempt's row, and apply the consequences. False: the attempt is late."""
    attempt = attempt_columns(transaction.at, outcome, decision)
    state, own, payload = _move_of(transaction.at, decision, outcome, history)
    columns: TaskColumns = {"ended_at": transaction.at, **own, "claim_token": None}
    if counter := counter_of(decision):
        columns.update(cast(TaskColumns, {counter: getattr(history, counter) + 1}))
    if history.cancel_requested:
        columns["cancel_requested_at"] = None
    if state is TaskState.DEAD_LETTER and (expires := expires_at(transaction.connection, claim.run_id, transaction.at)):
        columns["expires_at"] = expires
    event_columns: AttemptColumns = {**_without_long_texts(attempt), **_output_columns(stored)}
    payload = payload._replace(attempt_set=event_columns)
    if not _write_end(transaction, claim, state, columns, payload, attempt, _IS_CURRENT):
        return False
    _apply_consequences(transaction, claim, spec, decision, outcome, stored)
    return True


_IS_CURRENT = " AND claim_token = ?"  # against a late outcome


def _write_end(
    transaction: Transaction,
    claim: Claim,
    state: TaskState,
    columns: TaskColumns,
    payload: TaskMoved,
    attempt: AttemptColumns,
    guard: str,
) -> bool:
    """Move the task, if ``guard`` holds of its claim token, and close the attempt's row."""
    place, token = (claim.run_id, claim.name), (claim.token,)
    moved = transaction.move(
        *place,
        TaskState.RUNNING,
        state,
        claim.generation,
        set=columns,
        attempt=claim.attempt,
        payload=payload,
        guard=guard,
        guarded=token,
    )
    if moved:
        transaction.change_attempt(*place, claim.attempt, attempt)
    return moved


def _output_columns(stored: StoredTask) -> AttemptColumns:
    """Return the output counters, which are emitted only with the end of the attempt."""
    if not stored.output_bytes:
        return {}
    return {"output_bytes": stored.output_bytes, "output_dropped_bytes": stored.output_dropped_bytes or 0}


def _apply_consequences(
    transaction: Transaction, claim: Claim, spec: TaskSpec, decision: Decision, outcome: Outcome, stored: StoredTask
) -> None:
    """Apply the consequences of a decision beyond the task itself."""
    if stored.has_bad_rows and isinstance(decision, Succeed):
        quarantine.confirm(transaction, claim.run_id, claim.name, claim.attempt, claim.generation)
    elif stored.has_bad_rows:
        final = isinstance(decision, Fail | DeadLetter | Cancel | Skip)
        quarantine.discard(transaction, claim.run_id, claim.name, claim.attempt, final)
    match decision:
        case Fail():
            propagate(transaction, claim.run_id, claim.name)
            trigger_page(transaction, _page_request(claim, spec, decision, outcome))
        case Cancel() | Skip():
            propagate(transaction, claim.run_id, claim.name)
            if not (isinstance(decision, Cancel) and decision.why):  # nobody has decided about it
                resolve(transaction, claim.run_id, claim.name)
        case Succeed():
            if stored.has_pages:
                resolve(transaction, claim.run_id, claim.name)
            if stored.has_maps_below:
                expand_below(transaction, claim.run_id, claim.name)
        case DeadLetter():
            trigger_page(transaction, _page_request(claim, spec, decision, outcome))
            if decision.kind is DeadLetterKind.POISON and outcome.failure is not None:
                end_siblings(transaction, claim.run_id, claim.name, outcome.failure)
        case Retry() | Defer() | Interrupt():
            hold_if_blocked(transaction, claim.run_id, claim.name)
    if stored.overrides:
        rollout.finish_canary(transaction, claim.run_id, claim.name, decision, load_overrides(stored.overrides))


def _page_request(claim: Claim, spec: TaskSpec, decision: Fail | DeadLetter, outcome: Outcome) -> PageRequest:
    kind = decision.kind if isinstance(decision, DeadLetter) else None
    timeout = decision.timeout if isinstance(decision, DeadLetter) else None
    return PageRequest(
        run_id=claim.run_id,
        task=claim.name,
        title=_title(decision),
        why=decision.why,
        kind=kind,
        mode=decision.mode,
        failure=outcome.failure,
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


def _with_reason(outcome: Outcome, judged: TimeoutJudgement) -> Outcome:
    """Add the judgement of its timeout to the diagnostic of an attempt that was killed at it."""
    if outcome.failure is None or not judged.reason:
        return outcome
    diagnostic = "; ".join(filter(None, (outcome.failure.diagnostic, judged.reason)))
    return replace(outcome, failure=replace(outcome.failure, diagnostic=diagnostic))


# --- Columns -------------------------------------------------------------------------------------------------------

#: Columns of the attempt that are left out of events and read on demand.
LONG_TEXTS = frozenset(["traceback", "stack", "fingerprint_detail"])


def _without_long_texts(columns: AttemptColumns) -> AttemptColumns:
    return cast(AttemptColumns, {column: value for column, value in columns.items() if column not in LONG_TEXTS})


_MEASURED = frozenset(["exit_code", "signal", "max_rss_kb", "cpu_user_us", "cpu_system_us", "duration_us", "stack"])


def attempt_columns(at: int, outcome: Outcome, decision: Decision | None) -> AttemptColumns:
    """Return the columns of ``attempt`` at its end."""
    measured = {key: value for key, value in outcome.attempt_columns.items() if value is not None and key in _MEASURED}
    columns = cast(AttemptColumns, {"ended_at": at, "outcome": str(outcome.kind), **measured})
    failure = outcome.failure
    if failure is not None:
        fingerprint = failure.fingerprint
        detail = {
            "explain": fingerprint.explain,
            "parts": fingerprint.parts,
            "fields": fingerprint.fields,
            "v1": fingerprint.v1,
            "facts": dict(failure.facts),
        }
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
        columns.update({"delay_us": round(decision.delay * 1e6), "ceiling_us": round(decision.ceiling * 1e6)})
        if decision.shortened_from is not None:
            columns["shortened_us"] = round(decision.shortened_from * 1e6)
    return columns


def summary(failure: Failure | None) -> str | None:
    """Return the text of ``task.error``."""
    if failure is None:
        return None
    message = failure.message.strip() or failure.error_type
    return message[:ERROR_SUMMARY_CHARACTERS]


def _failure_columns(failure: Failure | None, mode: FailureMode) -> TaskColumns:
    if failure is None:
        return {"failure_mode": str(mode)}
    return {
        "error": summary(failure),
        "failure_fingerprint": failure.fingerprint.strict,
        "failure_class": str(failure.failure_class),
        "failure_mode": str(mode),
    }


def _success_columns(outcome: Outcome) -> TaskColumns:
    return {"result": outcome.result, "next_retry_at": None}


def _move_of(
    at: int, decision: Decision, outcome: Outcome, history: TaskHistory
) -> tuple[TaskState, TaskColumns, TaskMoved]:
    """Return the state that the task moves to, its columns besides those of every end, and the event."""
    explain = None if outcome.failure is None else outcome.failure.fingerprint.explain
    columns: TaskColumns
    match decision:
        case Succeed():
            columns = _success_columns(outcome)
            if history.deadline_passed is not None:  # it has ended in time
                columns.update({"failure_mode": None, "error": None})
            return TaskState.SUCCESS, columns, TaskMoved()
        case Retry(delay=delay, shortened_from=shortened_from):
            columns = {
                **_failure_columns(outcome.failure, decision.mode),
                "next_retry_at": at + round(delay * 1e6),
                "delay_us": round(delay * 1e6),
                "ceiling_us": round(decision.ceiling * 1e6),
                "shortened_us": None if shortened_from is None else round(shortened_from * 1e6),
            }
            due_at = None if shortened_from is None else history.deadline_at
            return TaskState.RETRYING, columns, TaskMoved(explain=explain, changed=history.changed, due_at=due_at)
        case Fail():
            columns = {**_failure_columns(outcome.failure, decision.mode), "next_retry_at": None}
            return TaskState.FAILED, columns, TaskMoved(why=decision.why, explain=explain)
        case DeadLetter():
            columns = {**_failure_columns(outcome.failure, decision.mode), "next_retry_at": None}
            columns["dead_letter_kind"] = str(decision.kind)
            if decision.mode in (FailureMode.LOST, FailureMode.SLOW):  # the error of the attempt says less
                columns["error"] = decision.why[:ERROR_SUMMARY_CHARACTERS]
            return TaskState.DEAD_LETTER, columns, TaskMoved(why=decision.why, explain=explain)
        case Defer():
            return TaskState.SENSING, {"next_retry_at": at + round(decision.delay * 1e6)}, TaskMoved()
        case Skip():
            message = outcome.skip_reason.strip()[:ERROR_SUMMARY_CHARACTERS] or None
            return TaskState.SKIPPED, {"skip_cause": str(SkipCause.CONDITION), "error": message}, TaskMoved()
        case Cancel(why=None):
            columns = {**_failure_columns(outcome.failure, FailureMode.OTHER), "next_retry_at": None}
            return TaskState.CANCELLED, columns, TaskMoved()
        case Cancel(why=why):
            columns = {"failure_mode": str(FailureMode.DEADLINE), "error": why, "next_retry_at": None}
            return TaskState.CANCELLED, columns, TaskMoved(why=why)
        case Interrupt():
            return TaskState.RETRYING, {"next_retry_at": at}, TaskMoved(why=decision.why)


def _write_late(transaction: Transaction, claim: Claim, outcome: Outcome) -> None:
    """Record the end of an attempt whose task has moved on; the task stays unchanged (SPEC 4.9)."""
    columns = attempt_columns(transaction.at, outcome, None)
    columns["late"] = 1
    transaction.change_attempt(claim.run_id, claim.name, claim.attempt, columns)
    quarantine.discard(transaction, claim.run_id, claim.name, claim.attempt, final=False)
    emit(transaction, claim, AttemptLate(_without_long_texts(columns)))
