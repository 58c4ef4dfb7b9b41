"""Describes each kind of event in one sentence, for the journal.

The sentence does not name the task, which is shown beside it. Values come from tasks and people: a caller that shows
a sentence passes it through ``text/text.py`` first.
"""

from __future__ import annotations

from ...engine.domain import event_payloads as payloads
from ...engine.domain.counting import counted
from ...engine.domain.event_changes import CanaryEnd, OperatorNotice, PageChange, RowsChange, ScheduleChange
from ...engine.domain.events import Event, EventKind
from .durations import offset, wall
from .payload_table import PayloadTable, payload_row
from .run_event_text import RUN_SENTENCES
from .task_event_text import TASK_SENTENCES


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
