"""Describes the events of tasks and attempts in one sentence each, for the journal."""

from __future__ import annotations

from collections.abc import Callable

from ...engine.domain import event_payloads as payloads
from ...engine.domain import overrides as overridden
from ...engine.domain.event_columns import AttemptColumns
from ...engine.domain.events import Event
from ...engine.domain.states import SkipCause, TaskState
from .durations import format_duration, format_seconds, wall
from .payload_table import PayloadTable, payload_row


def _task(event: Event, payload: payloads.TaskMoved) -> str:
    describe = _STATE_SENTENCES.get(str(event.new))
    return describe(event, payload) if describe is not None else str(event.new).lower()


def _running(event: Event, payload: payloads.TaskMoved) -> str:
    return f"attempt {event.attempt} started" if event.attempt else "started"


def _success(event: Event, payload: payloads.TaskMoved) -> str:
    took = payload.attempt_set.get("duration_us")
    return f"succeeded after {format_duration(took)}" if took is not None else "succeeded"


def _retrying(event: Event, payload: payloads.TaskMoved) -> str:
    who = f"attempt {event.attempt} " if event.attempt else ""
    return f"{who}{_outcome(payload)}{_next_attempt(event, payload)}{_failure_text(payload)}{_changed_inputs(payload)}"


def _changed_inputs(payload: payloads.TaskMoved) -> str:
    words = payload.changed
    return f"; the {' and the '.join(words)} changed since its last such failure" if words else ""


def _outcome(payload: payloads.TaskMoved) -> str:
    outcome = payload.attempt_set.get("outcome") or "error"
    words = {"error": "failed", "timed_out": "timed out", "lost": "was lost", "cancelled": "was stopped"}
    return words.get(outcome, outcome)


def _next_attempt(event: Event, payload: payloads.TaskMoved) -> str:
    """When the next attempt is due: the delay that was drawn, and its ceiling."""
    columns = payload.set
    due_at, drawn, ceiling = columns.get("next_retry_at"), columns.get("delay_us"), columns.get("ceiling_us")
    if drawn is None:
        return "" if due_at is None else f", again in {format_duration(due_at - event.at)}"
    return (
        f", again in {format_duration(drawn)}"
        + (f" of {format_duration(ceiling)}" if ceiling is not None else "")
        + shortening_text(payload)
    )


def shortening_text(payload: payloads.TaskMoved) -> str:
    """A delay shortened by the deadline of the run: ``, shortened from 4m: the run is due 02:00:00``."""
    before = payload.set.get("shortened_us")
    if before is None or payload.due_at is None:
        return ""
    return f", shortened from {format_duration(before)}: the run is due {wall(payload.due_at, None)}"


def _failure_text(payload: payloads.TaskMoved) -> str:
    attempt: AttemptColumns = payload.attempt_set
    failure = payload.explain or attempt.get("explain") or attempt.get("error") or payload.why
    return f": {failure}" if failure else ""


def _dead_letter(event: Event, payload: payloads.TaskMoved) -> str:
    kind = payload.set.get("dead_letter_kind")
    return f"needs a human{_failure_text(payload)}" + (f" ({kind})" if kind else "")


def _sensing(event: Event, payload: payloads.TaskMoved) -> str:
    due_at = payload.set.get("next_retry_at")
    return "not there yet" + (f"; next check in {format_duration(due_at - event.at)}" if due_at is not None else "")


def _upstream(event: Event, payload: payloads.TaskMoved) -> str:
    return f"cannot run: {payload.set.get('blocked_by') or 'a task above it'} failed"


def _skipped(event: Event, payload: payloads.TaskMoved) -> str:
    if payload.set.get("skip_cause") == SkipCause.OPERATOR:
        return "failure permitted: skipped"
    return f"skipped: {reason}" if (reason := payload.set.get("error")) else "skipped"


def _pending(event: Event, payload: payloads.TaskMoved) -> str:
    if payload.act == "requeue":
        overrides = overridden.load_overrides(payload.set.get("overrides"))
        return f"runs again: {overridden.describe(overrides)}" if overridden.describe(overrides) else "runs again"
    return f"waits again: {payload.act}" if payload.act else "waits for its parents"


_STATE_SENTENCES: dict[str, Callable[[Event, payloads.TaskMoved], str]] = {
    TaskState.READY: lambda event, payload: "ready to run",
    TaskState.RUNNING: _running,
    TaskState.SUCCESS: _success,
    TaskState.RETRYING: _retrying,
    TaskState.FAILED: lambda event, payload: f"failed for good{_failure_text(payload)}",
    TaskState.DEAD_LETTER: _dead_letter,
    TaskState.SENSING: _sensing,
    TaskState.UPSTREAM_FAILED: _upstream,
    TaskState.SKIPPED: _skipped,
    TaskState.CANCELLED: lambda event, payload: f"stopped{_failure_text(payload)}",
    TaskState.PENDING: _pending,
}


def _changed(event: Event, payload: payloads.TaskChanged) -> str:
    columns = payload.set
    if total := columns.get("progress_total"):
        return f"{columns.get('progress_done') or 0:,} of {total:,} done"
    if notice := columns.get("notice"):
        return notice
    if columns.get("stale"):
        return "stale: something above it runs again"
    if "canary" in columns:
        first = columns["canary"]
        return f"runs after {first} has succeeded" if first else "no longer waits for another task"
    if columns.get("cancel_requested_at"):
        return f"is ended: {payload.why}" if payload.why else "cancel requested"
    if due_at := columns.get("next_retry_at"):
        return f"next attempt at {wall(due_at, None)}"
    return f"changed: {', '.join(columns)}" if columns else ""


def _mapped(event: Event, payload: payloads.TaskMapped) -> str:
    gone = f", and {len(payload.removed):,} elements are gone" if payload.removed else ""
    added = len(payload.added)
    return f"has {added:,} more {'child' if added == 1 else 'children'}, for a list of {payload.size:,}{gone}"


def _started(event: Event, payload: payloads.AttemptStarted) -> str:
    pid = payload.attempt_set.get("pid")
    host = payload.attempt_set.get("host")  # set only if it is not the executor's host
    where = f" on {host}" if host else ""
    return f"process {pid}{where} runs attempt {event.attempt}" if pid else f"attempt {event.attempt} has a process"


def _deadline(event: Event, payload: payloads.AttemptDeadline) -> str:
    allowed = payload.timeout
    return f"timeout of {format_seconds(allowed)} passed" if allowed else "timeout passed"


def _extended(event: Event, payload: payloads.AttemptExtended) -> str:
    allowed = payload.attempt_set.get("timeout_us")
    in_all = f": {format_duration(allowed)} in all" if allowed is not None else ""
    return f"given {format_seconds(payload.seconds)} more{in_all}" if payload.seconds else "given more time"


def _stack(event: Event, payload: payloads.AttemptStack) -> str:
    return payload.hang or (f"it was in {payload.where}" if payload.where else "")


def _sigterm(event: Event, payload: payloads.AttemptSigterm) -> str:
    grace = payload.grace_seconds
    return "SIGTERM sent" + (f"; {format_seconds(grace)} to end" if grace is not None else "")


def _sigkill(event: Event, payload: payloads.AttemptSigkill) -> str:
    count = len(payload.pids)
    return "SIGKILL sent" + (f" to {count} processes" if count > 1 else "")


def _swept(event: Event, payload: payloads.AttemptSwept) -> str:
    count = len(payload.pids)
    return f"{count} process{'' if count == 1 else 'es'} left behind, killed"


def _silent(event: Event, payload: payloads.AttemptSilent) -> str:
    lasts = "?" if payload.silent_seconds is None else format_seconds(payload.silent_seconds)
    return f"no heartbeat for {lasts}; its process: {payload.process or '?'}"


def _reclaimed(event: Event, payload: payloads.AttemptReclaimed) -> str:
    return f"attempt {event.attempt} is lost: its processes are gone"


TASK_SENTENCES: PayloadTable[str] = dict(
    [
        payload_row(payloads.TaskMoved, _task),
        payload_row(payloads.TaskChanged, _changed),
        payload_row(payloads.TaskMapped, _mapped),
        payload_row(payloads.AttemptStarted, _started),
        payload_row(
            payloads.AttemptEffect, lambda event, payload: f"begins its effect, at most once: key {payload.key}"
        ),
        payload_row(payloads.AttemptExtended, _extended),
        payload_row(payloads.AttemptDeadline, _deadline),
        payload_row(payloads.AttemptStack, _stack),
        payload_row(payloads.AttemptSigterm, _sigterm),
        payload_row(payloads.AttemptSigkill, _sigkill),
        payload_row(payloads.AttemptSwept, _swept),
        payload_row(
            payloads.AttemptLate, lambda event, payload: f"attempt {event.attempt} ended late: it changes nothing"
        ),
        payload_row(
            payloads.AttemptLeaked, lambda *_: "ignores its cancel token: its slot is taken until its thread ends"
        ),
        payload_row(payloads.AttemptSilent, _silent),
        payload_row(payloads.AttemptReclaimed, _reclaimed),
        payload_row(payloads.AttemptRetry, lambda event, payload: "retried something inside the attempt"),
    ]
)
