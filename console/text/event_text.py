"""Describes each kind of event in one sentence, for the journal.

The sentence does not name the task, which is shown beside it. Values come from tasks and people: a caller that shows
a sentence passes it through ``text/text.py`` first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ...engine.core.flow_difference import FlowDifference, describe, join_names
from ...engine.domain import event_payloads as payloads
from ...engine.domain import task_options as overridden
from ...engine.domain.event_payloads import (
    AttemptColumns,
    CanaryEnd,
    ExecutorChange,
    ExecutorChanged,
    OperatorNotice,
    PageChange,
    Payload,
    RowsChange,
    RunChange,
    RunChanged,
    ScheduleChange,
)
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import SkipCause, TaskState
from ...engine.domain.text import counted, format_duration
from .figures import format_seconds, offset, wall

# --- Tables of functions by the type of an event's payload -----------------------------------------------------------


_P = TypeVar("_P", bound=Payload)
_Result = TypeVar("_Result")

#: Payload type -> function of the event and its payload.
PayloadTable = Mapping[type, Callable[[Event, Any], _Result]]


def payload_row(
    payload_type: type[_P], describe: Callable[[Event, _P], _Result]
) -> tuple[type, Callable[[Event, Any], _Result]]:
    """A row of a table by payload type; the type checker compares the function with the payload type."""
    return payload_type, describe


# --- Describes the events of tasks and attempts in one sentence each, for the journal --------------------------------


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
        return (
            f"runs again: {overridden.describe_overrides(overrides)}"
            if overridden.describe_overrides(overrides)
            else "runs again"
        )
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


# --- Describes the events of runs and executors in one sentence each, for the journal --------------------------------


def _run(event: Event, payload: RunChanged) -> str:
    what = payload.what
    if what == RunChange.CREATED:
        return f"run began: {'?' if payload.tasks is None else payload.tasks} tasks"
    if what == RunChange.ENDED:
        return f"run ended: {str(event.new).lower()}{f' ({payload.why})' if payload.why else ''}"
    if what == RunChange.CUT_OFF:
        return f"cut off: {payload.why}"
    if what in (RunChange.DEADLINE, RunChange.POSTPONED):
        return payload.why or ""
    if what == RunChange.FLOW_CHANGED:
        return f"the flow changed: {'; '.join(describe(_flow_difference(payload)))}"
    if what in _CODE_SENTENCES:
        return _CODE_SENTENCES[what](payload)
    if what == RunChange.POOL_WAITS:
        return _pool_waits(payload)
    if what == RunChange.PARAMS:
        return f"parameters: {_describe_params(payload)}"
    return _RUN_SENTENCES.get(what, "")


def _pool_waits(payload: RunChanged) -> str:
    """Name the pools of the machine that tasks wait for."""
    try:
        waits = json.loads(payload.set.get("pool_waits") or "{}")
        sentence = "; ".join(f"pool {pool} of this machine is held by {holders}" for pool, holders in waits.items())
    except (ValueError, AttributeError):
        return ""
    return sentence or "has slots in the pools of this machine again"


_RUN_SENTENCES = {
    RunChange.BLOCKED: "blocked: what is left waits for a human",
    RunChange.UNBLOCKED: "no longer blocked",
    RunChange.PAUSED: "paused: nothing new starts",
    RunChange.UNPAUSED: "unpaused: tasks start again",
    RunChange.CLOCK: "the start of its pause moved with the clock",
    RunChange.REOPENED: "open again",
    RunChange.OPENED: "opened by an executor",
    RunChange.OPTIONS: "pools, downstreams, pages, deadline_action or dead_letter_ttl of the flow changed",
}


def _flow_difference(payload: RunChanged) -> FlowDifference:
    return FlowDifference(
        added=tuple(payload.added),
        changed=tuple(payload.changed),
        outdated=tuple(payload.outdated),
        removed=tuple(payload.removed),
        unfinished=tuple(payload.skipped),
    )


def _code_changed(payload: RunChanged) -> str:
    if not payload.files:
        return "the code on the disk is again the code that the executor loaded"
    return f"{join_names(payload.files)} changed since the executor loaded it: a requeue or redrive reload loads it"


def _code_loaded(payload: RunChanged) -> str:
    return "; ".join([f"loaded {join_names(payload.files) or 'the flow'} again", *describe(_flow_difference(payload))])


def _flow_refused(payload: RunChanged) -> str:
    return f"not resumed: {payload.why or '?'}"


def _code_refused(payload: RunChanged) -> str:
    return f"{join_names(payload.files)} changed but cannot be used, the old code stays: {payload.why or '?'}"


_CODE_SENTENCES: Mapping[str, Callable[[RunChanged], str]] = {
    RunChange.CODE_CHANGED: _code_changed,
    RunChange.CODE_LOADED: _code_loaded,
    RunChange.CODE_REFUSED: _code_refused,
    RunChange.FLOW_REFUSED: _flow_refused,
}


def _describe_params(payload: RunChanged) -> str:
    parts = [f"{name} was {old}, is {new}" for name, (old, new) in payload.params_changed.items()]
    parts += [f"{name}={value} is new" for name, value in payload.params_added.items()]
    parts += [f"{name}={value} is gone from the flow" for name, value in payload.params_removed.items()]
    return ", ".join(parts)


def _executor(event: Event, payload: ExecutorChanged) -> str:
    describe = _EXECUTOR_SENTENCES.get(payload.what)
    return "" if describe is None else describe(payload)


def _executor_started(payload: ExecutorChanged) -> str:
    where = f" on {payload.host}, process {payload.pid}" if payload.host else ""
    doubts = "".join(f"; warning: {warning}" for warning in payload.warnings)
    return f"started{where}{doubts}{_last_output_line('the import', payload)}"


def _zygote_died(payload: ExecutorChanged) -> str:
    died = f"process {payload.pid}, which forks the attempts, died ({payload.how})"
    return f"{died}: what it ran counts as lost{_last_output_line('it', payload)}"


def _threads_killed(payload: ExecutorChanged) -> str:
    sentence = f"process {payload.pid} killed: {', '.join(payload.leaked)} ignored the cancel token"
    return sentence + (f"; {', '.join(payload.lost)} ran in it too and will run again" if payload.lost else "")


def _last_output_line(who: str, payload: ExecutorChanged) -> str:
    """The last line of the output of a process; of a traceback, the error."""
    lines = (payload.printed or "").strip().splitlines()
    return f"; {who} printed: {lines[-1]}" if lines else ""


_EXECUTOR_SENTENCES: dict[str, Callable[[ExecutorChanged], str]] = {
    ExecutorChange.STARTED: _executor_started,
    ExecutorChange.STOPPED: lambda payload: "stopped",
    ExecutorChange.LOST: lambda payload: "is gone: what it ran counts as lost",
    ExecutorChange.ZYGOTE_DIED: _zygote_died,
    ExecutorChange.THREADS_KILLED: _threads_killed,
    ExecutorChange.WORKER_RETIRED: lambda payload: f"worker {payload.pid} ends and is replaced: {payload.how}",
    ExecutorChange.CLUSTER_CHANGED: lambda payload: payload.how or "",
    ExecutorChange.PING_FAILED: lambda payload: payload.printed or "",
}


RUN_SENTENCES: PayloadTable[str] = dict([payload_row(RunChanged, _run), payload_row(ExecutorChanged, _executor)])


# --- Every kind of event ---------------------------------------------------------------------------------------------
#


def describe_event(event: Event) -> str:
    """One sentence, without task, actor and reason."""
    describe = _DESCRIPTIONS.get(type(event.payload))
    return (describe(event, event.payload) if describe is not None else "") or _default_text(event)


def event_subject(event: Event) -> str:
    """The subject of an event: a task, the number of tasks, or a part of the engine."""
    if event.task is not None:
        return event.task
    names = target_tasks(event)
    if names:
        return names[0] if len(names) == 1 else f"{len(names):,} tasks"
    if isinstance(event.payload, payloads.BreakerChanged):
        return event.payload.downstream or event.kind
    return "run" if event.kind == EventKind.OPERATOR else event.kind


def target_tasks(event: Event) -> list[str]:
    """The tasks that an operator's act named."""
    return [task for task, _, _ in target_results(event)]


def target_results(event: Event) -> list[list[str]]:
    """The result of an operator's act: task, word and sentence for each target."""
    payload = event.payload
    return (payload.answer.get("results") or []) if isinstance(payload, payloads.OperatorActed) else []


def _default_text(event: Event) -> str:
    """The text for an event without a function below."""
    what = getattr(event.payload, "what", None)
    return f"{event.kind}: {what}" if what else event.kind.replace(".", " ")


def _breaker(event: Event, payload: payloads.BreakerChanged) -> str:
    why = f": {payload.why}" if payload.why else ""
    again = f"; tried again at {wall(payload.reopens_at, None)}" if payload.reopens_at else ""
    return f"breaker {(payload.state or '?').replace('_', ' ').lower()}{why}{again}"


#: Who sends a page that its executor could not send: ``store/pages.py: STALE_AFTER_US``.
UNSENT_UNTIL = "the next run, resume or serve on this state file sends it, within 24 h"


def _page(event: Event, payload: payloads.PageChanged) -> str:
    title = f": {payload.title}" if payload.title else ""
    return {
        PageChange.OPENED: f"page opened{title}" + (f"; {payload.why}" if payload.why else ""),
        PageChange.FOLDED: f"the open page counts one more failure, {payload.occurrences} in all",
        PageChange.WOKEN: "page no longer snoozed",
        PageChange.SENT: "page sent in a digest" if payload.how == "digest" else "page sent",
        PageChange.SEND_FAILED: f"page not sent by {payload.sender}: {payload.error}",
        PageChange.UNSENT: f"{payload.error or 'no time was left'}; {UNSENT_UNTIL}",
        PageChange.BELL: "the terminal bell has rung",
        PageChange.ACKED: "page acknowledged",
        PageChange.SNOOZED: "page snoozed",
        PageChange.RESOLVED: "page resolved",
    }.get(payload.what, "")


def _quarantine(event: Event, payload: payloads.RowsChanged) -> str:
    count = payload.rows
    rows = counted(count, "row") if count is not None else "rows"
    words = {RowsChange.HELD: "held in quarantine", RowsChange.PROVISIONAL: "set aside so far"}
    words[RowsChange.DROPPED] = "dropped with the attempt that failed"
    return f"{rows} {words.get(payload.what, payload.what.replace('-', ' '))}"


def _canary(event: Event, payload: payloads.CanaryEnded) -> str:
    count = len(payload.tasks)
    others = counted(count, "other")
    return {
        CanaryEnd.RELEASED: f"it succeeded: {others} of its cause may run",
        CanaryEnd.NOT_FIXED: f"the fix did not help: {others} held",
        CanaryEnd.FAILED: f"it failed with another error: {others} held",
    }.get(payload.what, "")


def _schedule(event: Event, payload: payloads.ScheduleChanged) -> str:
    """A change of a schedule. Logical times are in its time zone."""
    flow, what, last = payload.flow, payload.what, _minute(payload.last)
    if what in (ScheduleChange.BEGUN, ScheduleChange.CHANGED):
        verb = "begins" if what == ScheduleChange.BEGUN else "is now"
        return f"schedule of {flow} {verb}: {payload.expression} {payload.timezone}"
    if what == ScheduleChange.MISSED:
        more = "" if payload.is_all else " or more"
        span = f"{payload.runs}{more}, from {_minute(payload.first)} to {last}"
        when = f"the one of {last}" if payload.runs == 1 else span
        return f"runs of {flow} given up (misfire {payload.misfire}): {when}"
    if what == ScheduleChange.LATE_START:
        others = f", nor {payload.runs - 1} before it" if payload.runs and payload.runs > 1 else ""
        return f"{flow} of {last} has not started as promised{others}"
    if what == ScheduleChange.LATE_END:
        return f"not ended by {wall(payload.due_at or 0, None)}, when it was due"
    return ""


def _minute(text: str | None) -> str:
    """Shorten an instant in ISO 8601 to ``2026-11-21 02:00``."""
    return str(text)[:16].replace("T", " ")


def _operator(event: Event, payload: payloads.OperatorActed) -> str:
    if payload.what in (OperatorNotice.ATTACH, OperatorNotice.DETACH):
        return "opened a console" if payload.what == OperatorNotice.ATTACH else "left the console"
    if payload.what == OperatorNotice.BREAKER:
        return f"breaker {payload.downstream}: {payload.how}"
    message = payload.answer.get("message")
    return f"{payload.act}: {message}" if message else payload.act or ""


_DESCRIPTIONS: PayloadTable[str] = {
    **TASK_SENTENCES,
    **RUN_SENTENCES,
    **dict(
        [
            payload_row(payloads.BreakerChanged, _breaker),
            payload_row(payloads.PageChanged, _page),
            payload_row(payloads.RowsChanged, _quarantine),
            payload_row(payloads.CanaryEnded, _canary),
            payload_row(payloads.NoteWritten, lambda event, payload: f"on {payload.fingerprint}: {payload.text}"),
            payload_row(payloads.StorageChanged, lambda event, payload: f"storage {payload.what}: {payload.sentence}"),
            payload_row(payloads.ClockMoved, lambda event, payload: f"the clock moved by {offset(payload.moved_us)}"),
            payload_row(payloads.ScheduleChanged, _schedule),
            payload_row(payloads.OperatorActed, _operator),
        ]
    ),
}


# --- What a fingerprint is made of, in words -------------------------------------------------------------------------


def fields_text(fields: Iterable[Sequence[str]], dot: str = "·") -> str:
    """The fields of a fingerprint: ``type httpx.HTTPStatusError · place fetch.py:get · status 404``."""
    return f" {dot} ".join(" ".join(field).rstrip() for field in fields)


def detail_text(fingerprint_detail: str, dot: str = "·") -> str:
    """The fields in the detail of a fingerprint, as an attempt stores it in JSON; empty without one."""
    detail = json.loads(fingerprint_detail) if fingerprint_detail else {}
    return fields_text(detail.get("fields") or (), dot)
