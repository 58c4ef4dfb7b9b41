"""The end of an attempt, written: read the task's history, decide, move, and tell it, all in one transaction.

The decision is made where the row cannot move under it: on the writer, between BEGIN and COMMIT.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from ..core.advice import Took, advise, spread
from ..core.decide import (
    Cancel,
    DeadLetter,
    Decision,
    Fail,
    History,
    Interrupt,
    Retry,
    Sense,
    Skip,
    Succeed,
    Uniform,
    counter_of,
    decide,
    decide_loss,
)
from ..core.environment_fields import CIRCUMSTANCES
from ..core.outcome import Failure, FailureClass, FailureMode, Outcome, OutcomeKind
from ..core.spec import TaskSpec
from ..domain.event_payloads import AttemptColumns, AttemptLate, TaskColumns, TaskMoved
from ..domain.liveness import effect_key
from ..domain.overrides import read
from ..domain.states import DeadLetterKind, SkipCause, TaskState
from ..statefile.changes.action import who_asked
from ..statefile.changes.page_lifecycle import resolve
from ..statefile.changes.propagation import propagate, wait_again
from ..statefile.changes.transitions import Journal
from . import quarantine, rollout
from .claims import Claim
from .expiry import expires_at
from .history import healed_count, past_of, weekday_of
from .pages import Trouble, page

ERROR_SUMMARY_CHARACTERS = 200  # task.error, as document 003 has it; the whole story is in the attempt


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of an ended attempt. ``decision`` is None where it came too late to matter."""

    decision: Decision | None


def settle(
    journal: Journal,
    claim: Claim,
    spec: TaskSpec,
    outcome: Outcome,
    uniform: Uniform,
    *,
    path_seconds: float = 0.0,
    deadline_at: int | None = None,
    is_probe: bool = False,
    interrupted: bool = False,
) -> Settlement:
    """Write the end of an attempt. ``interrupted``: the executor ended it because it stops itself."""
    history = read_history(journal.connection, claim, spec, outcome.failure)
    history = replace(history, path_seconds=path_seconds, deadline_at=deadline_at, is_probe=is_probe)
    outcome = advised(journal.connection, claim, spec, outcome, journal.at)
    if interrupted and not history.cancel_requested and outcome.kind is OutcomeKind.CANCELLED:
        # Stopped half-way: what may not happen twice is no better known than after a crash.
        decision: Decision = Interrupt() if history.idempotent else decide_loss(history, spec.retry, uniform)
    else:
        decision = decide(history, outcome, spec.retry, journal.at, uniform)
    with _signed_by_who_asked(journal, claim, decision):
        written = write_decision(journal, claim, spec, outcome, decision, history)
    if not written:
        _tell_late(journal, claim, outcome)
        return Settlement(None)
    return Settlement(decision)


@contextmanager
def _signed_by_who_asked(journal: Journal, claim: Claim, decision: Decision) -> Iterator[None]:
    """What follows from a cancel is told in the name of who wanted it."""
    asked = who_asked(journal.connection, claim.run_id, claim.name) if isinstance(decision, Cancel) else None
    before = journal.actor, journal.reason, journal.command_id
    if asked is not None:
        journal.actor, journal.reason, journal.command_id = asked.actor, asked.reason, asked.command_id
    try:
        yield
    finally:
        journal.actor, journal.reason, journal.command_id = before


def write_decision(
    journal: Journal, claim: Claim, spec: TaskSpec, outcome: Outcome, decision: Decision, history: History
) -> bool:
    """Move the task as decided, close the attempt's row, carry the consequences. False: it came too late."""
    attempt = attempt_columns(journal.at, outcome, decision)
    state, columns, payload = _COLUMNS[type(decision)](journal, decision, outcome, history)
    columns["claim_token"] = None
    if history.cancel_requested:
        columns["cancel_requested_at"] = None
    if state is TaskState.DEAD_LETTER and (expires := expires_at(journal.connection, claim.run_id, journal.at)):
        columns["expires_at"] = expires
    shown: AttemptColumns = {**_without_long_texts(attempt), **_output_columns(journal.connection, claim)}
    moved = journal.move(
        claim.run_id,
        claim.name,
        TaskState.RUNNING,
        state,
        claim.generation,
        set=columns,
        attempt=claim.attempt,
        token=claim.token,
        payload=payload._replace(attempt_set=shown),
    )
    if not moved:
        return False
    journal.change_attempt(claim.run_id, claim.name, claim.attempt, attempt)
    _carry(journal, claim, spec, decision, outcome)
    return True


def _output_columns(connection: sqlite3.Connection, claim: Claim) -> AttemptColumns:
    """How much it wrote: counted silently while it ran, told with its end."""
    row = connection.execute(
        "SELECT output_bytes, output_dropped_bytes FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?",
        (claim.run_id, claim.name, claim.attempt),
    ).fetchone()
    if row is None or not row[0]:
        return {}
    return {"output_bytes": row[0], "output_dropped_bytes": row[1]}


def _carry(journal: Journal, claim: Claim, spec: TaskSpec, decision: Decision, outcome: Outcome) -> None:
    """What follows from a decision beyond the task itself."""
    if isinstance(decision, Succeed):
        quarantine.confirm(journal, claim.run_id, claim.name, claim.attempt, claim.generation)
    else:
        final = isinstance(decision, Fail | DeadLetter | Cancel | Skip)
        quarantine.discard(journal, claim.run_id, claim.name, claim.attempt, final)
    match decision:
        case Fail():
            propagate(journal, claim.run_id, claim.name)
            page(journal, _trouble(claim, spec, decision, outcome))
        case Cancel() | Skip():
            propagate(journal, claim.run_id, claim.name)
            resolve(journal, claim.run_id, claim.name)
        case Succeed():
            resolve(journal, claim.run_id, claim.name)
        case DeadLetter():
            page(journal, _trouble(claim, spec, decision, outcome))
        case Retry() | Sense() | Interrupt():
            wait_again(journal, claim.run_id, claim.name)
    rollout.conclude(journal, claim.run_id, claim.name, decision)


def _trouble(claim: Claim, spec: TaskSpec, decision: Fail | DeadLetter, outcome: Outcome) -> Trouble:
    kind = decision.kind if isinstance(decision, DeadLetter) else None
    return Trouble(
        run_id=claim.run_id,
        task=claim.name,
        title=_title(decision),
        why=decision.why,
        kind=kind,
        mode=decision.mode,
        failure=outcome.failure,
        downstream=spec.downstream,
        owner=spec.owner,
    )


def _title(decision: Fail | DeadLetter) -> str:
    if isinstance(decision, Fail):
        return "budget spent"
    if decision.not_fixed:
        return "not fixed"
    return "poison-pill" if decision.kind is DeadLetterKind.POISON else str(decision.kind)


# --- Reading -------------------------------------------------------------------------------------------------------


#: Failures of the generation so far, and for each circumstance whether it was the same. Under others it is not the same
#: failure again: another try is the first one there (SPEC part 4, proof of determinism).
_PAST = (
    f"SELECT past.fingerprint, past.failure_class, past.fingerprint_loose,"
    f" {', '.join(f'past.{column} IS now.{column}' for column in CIRCUMSTANCES)}"
    " FROM attempt AS now CROSS JOIN attempt AS past ON past.run_id = now.run_id AND past.name = now.name"
    " WHERE now.run_id = ? AND now.name = ? AND now.attempt = ? AND past.generation = ? AND past.attempt < now.attempt"
    " AND past.fingerprint IS NOT NULL AND past.outcome IN ('error', 'timed_out') ORDER BY past.attempt"
)
_NO_ROW = (0, 0, 0, 0, None, None, None, None, 0)


def read_history(connection: sqlite3.Connection, claim: Claim, spec: TaskSpec, failure: Failure | None) -> History:
    """The task's past as ``decide`` needs it: counters of the generation, fingerprints in order, what healed before."""
    row = connection.execute(
        "SELECT failures, losses, deferrals, refusals, delay_us, first_started_at, cancel_requested_at, overrides,"
        " key_generation FROM task WHERE run_id = ? AND name = ?",
        (claim.run_id, claim.name),
    ).fetchone()
    failures, losses, deferrals, refusals, delay_us, first_started_at, cancel_at, overrides, key_generation = (
        row or _NO_ROW
    )
    past = connection.execute(_PAST, (claim.run_id, claim.name, claim.attempt, claim.generation)).fetchall()
    return History(
        failures=failures,
        losses=losses,
        deferrals=deferrals,
        refusals=refusals,
        previous_delay=None if delay_us is None else delay_us / 1e6,
        fingerprints=tuple(fingerprint for fingerprint, _, _, *same in past if all(same)),
        classes=tuple(FailureClass(name) for _, name, *_ in past if name),
        healed=0 if failure is None else healed_count(connection, claim.name, failure.fingerprint.strict),
        first_started_at=first_started_at,
        p99_seconds=_p99_seconds(connection, claim.name) if _is_timeout(failure) else None,
        timeout_seconds=spec.timeout,
        idempotent=spec.idempotent,
        effect_key=effect_key(claim.run_id, claim.name, key_generation) if spec.effect else None,
        max_losses=spec.max_losses,
        recheck_seconds=spec.recheck_seconds,
        cancel_requested=cancel_at is not None,
        changed=() if failure is None else _changed(past, failure.fingerprint.loose),
        verifies=read(overrides).get("verifies"),
    )


def _changed(past: Sequence[tuple[Any, ...]], loose: str) -> tuple[str, ...]:
    """What was not the same when it last failed like this; nothing where it never did."""
    same = next((row[3:] for row in reversed(past) if row[2] == loose), ())
    return tuple(word for word, alike in zip(CIRCUMSTANCES.values(), same, strict=False) if not alike)


def _is_timeout(failure: Failure | None) -> bool:
    return failure is not None and failure.failure_class is FailureClass.TIMEOUT


def _p99_seconds(connection: sqlite3.Connection, name: str) -> float | None:
    seen = spread(past_of(connection, name))
    return None if seen is None else seen.p99


def advised(connection: sqlite3.Connection, claim: Claim, spec: TaskSpec, outcome: Outcome, at: int) -> Outcome:
    """The outcome; of a timeout with what earlier attempts, and the task's own progress, say of that timeout."""
    failure, timeout = outcome.failure, spec.timeout
    if outcome.kind is not OutcomeKind.TIMED_OUT or failure is None or timeout is None:
        return outcome
    weekday = weekday_of(at)
    past = [*past_of(connection, claim.name), Took(weekday, timeout, ended=False)]
    advice = advise(past, timeout, weekday, outcome.usage.get("needs_seconds"))
    if advice is None:
        return outcome
    diagnostic = "; ".join(filter(None, (failure.diagnostic, advice.reason)))
    return replace(outcome, failure=replace(failure, diagnostic=diagnostic))


# --- Columns -------------------------------------------------------------------------------------------------------

#: In the attempt's row, but not in events: they are read on demand.
LONG_TEXTS = frozenset(["traceback", "stack", "fingerprint_detail"])


def _without_long_texts(columns: AttemptColumns) -> AttemptColumns:
    return cast(AttemptColumns, {column: value for column, value in columns.items() if column not in LONG_TEXTS})


_USAGE_COLUMNS = (
    "exit_code",
    "signal",
    "max_rss_kb",
    "cpu_user_us",
    "cpu_system_us",
    "duration_us",
    "stack",
)


def attempt_columns(at: int, outcome: Outcome, decision: Decision | None) -> AttemptColumns:
    """The columns of ``attempt`` that its end fills."""
    measured = {key: outcome.usage[key] for key in _USAGE_COLUMNS if outcome.usage.get(key) is not None}
    columns = cast(AttemptColumns, {"ended_at": at, "outcome": str(outcome.kind), **measured})
    failure = outcome.failure
    if failure is not None:
        mark = failure.fingerprint
        detail = {"explain": mark.explain, "parts": mark.parts, "v1": mark.v1, "facts": dict(failure.facts)}
        columns.update(
            {
                "error_type": failure.error_type,
                "error": failure.message,
                "diagnostic": failure.diagnostic,
                "traceback": failure.traceback or None,
                "failure_class": str(failure.failure_class),
                "fingerprint": mark.strict,
                "fingerprint_loose": mark.loose,
                "explain": mark.explain or None,
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
    """``task.error``: one line."""
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


Columns = tuple[TaskState, TaskColumns, TaskMoved]


def _succeed(journal: Journal, decision: Any, outcome: Outcome, history: History) -> Columns:
    return TaskState.SUCCESS, {"ended_at": journal.at, "result": outcome.result, "next_retry_at": None}, TaskMoved()


def _retry(journal: Journal, decision: Retry, outcome: Outcome, history: History) -> Columns:
    columns = _failure_columns(outcome.failure, decision.mode)
    columns.update(
        {
            "ended_at": journal.at,
            "next_retry_at": journal.at + round(decision.delay * 1e6),
            "delay_us": round(decision.delay * 1e6),
            "ceiling_us": round(decision.ceiling * 1e6),
            "shortened_us": None if decision.shortened_from is None else round(decision.shortened_from * 1e6),
            **_counted(history, decision),
        }
    )
    due_at = None if decision.shortened_from is None else history.deadline_at
    return TaskState.RETRYING, columns, TaskMoved(explain=_explain(outcome), changed=history.changed, due_at=due_at)


def _fail(journal: Journal, decision: Fail, outcome: Outcome, history: History) -> Columns:
    columns = _failure_columns(outcome.failure, decision.mode)
    columns.update({"ended_at": journal.at, "next_retry_at": None, **_counted(history, decision)})
    return TaskState.FAILED, columns, TaskMoved(why=decision.why, explain=_explain(outcome))


def _dead_letter(journal: Journal, decision: DeadLetter, outcome: Outcome, history: History) -> Columns:
    columns = _failure_columns(outcome.failure, decision.mode)
    columns.update({"ended_at": journal.at, "next_retry_at": None, "dead_letter_kind": str(decision.kind)})
    columns.update(_counted(history, decision))
    if decision.mode is FailureMode.LOST:  # no error of the task's own says what a human has to find out
        columns["error"] = decision.why[:ERROR_SUMMARY_CHARACTERS]
    return TaskState.DEAD_LETTER, columns, TaskMoved(why=decision.why, explain=_explain(outcome))


def _sense(journal: Journal, decision: Sense, outcome: Outcome, history: History) -> Columns:
    due = journal.at + round(decision.delay * 1e6)
    columns: TaskColumns = {"ended_at": journal.at, "next_retry_at": due, **_counted(history, decision)}
    return TaskState.SENSING, columns, TaskMoved()


def _skip(journal: Journal, decision: Skip, outcome: Outcome, history: History) -> Columns:
    said = outcome.said.strip()[:ERROR_SUMMARY_CHARACTERS] or None
    return (
        TaskState.SKIPPED,
        {"ended_at": journal.at, "skip_cause": str(SkipCause.CONDITION), "error": said},
        TaskMoved(),
    )


def _cancel(journal: Journal, decision: Cancel, outcome: Outcome, history: History) -> Columns:
    columns = _failure_columns(outcome.failure, FailureMode.OTHER)
    columns.update({"ended_at": journal.at, "next_retry_at": None})
    return TaskState.CANCELLED, columns, TaskMoved()


def _interrupt(journal: Journal, decision: Interrupt, outcome: Outcome, history: History) -> Columns:
    return TaskState.RETRYING, {"ended_at": journal.at, "next_retry_at": journal.at}, TaskMoved(why=decision.why)


def _counted(history: History, decision: Decision) -> TaskColumns:
    counter = counter_of(decision)
    return {} if counter is None else cast(TaskColumns, {counter: getattr(history, counter) + 1})


def _explain(outcome: Outcome) -> str | None:
    return None if outcome.failure is None else outcome.failure.fingerprint.explain


_COLUMNS: dict[type, Callable[..., Columns]] = {
    Succeed: _succeed,
    Retry: _retry,
    Fail: _fail,
    DeadLetter: _dead_letter,
    Sense: _sense,
    Skip: _skip,
    Cancel: _cancel,
    Interrupt: _interrupt,
}


def _tell_late(journal: Journal, claim: Claim, outcome: Outcome) -> None:
    """The task has moved on: keep what came of the attempt, change nothing else (SPEC 4.9)."""
    columns = attempt_columns(journal.at, outcome, None)
    columns["late"] = 1
    journal.change_attempt(claim.run_id, claim.name, claim.attempt, columns)
    quarantine.discard(journal, claim.run_id, claim.name, claim.attempt, final=False)
    journal.emit(
        AttemptLate(_without_long_texts(columns)),
        claim.run_id,
        claim.name,
        attempt=claim.attempt,
        generation=claim.generation,
    )
