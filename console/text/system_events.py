"""The words of the events of breakers, pages, rows, schedules and operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.core.causes import LAST_TRIES_SECONDS
from ...engine.domain import event_payloads as payloads
from ...engine.domain.acts import past_of
from ...engine.domain.event_payloads import PageChange
from ...engine.domain.events import Event
from ...engine.domain.text import counted, first_names
from .event_words import Lines, WordsRow, by, digits, words, words_by
from .figures import offset, wall


def _breaker(event: Event, payload: payloads.BreakerChanged) -> str:
    why = f": {payload.why}" if payload.why else ""
    again = f"; tried again at {wall(payload.reopens_at)}" if payload.reopens_at else ""
    return f"breaker {(payload.state or '?').replace('_', ' ').lower()}{why}{again}"


#: Who sends a page that its executor could not send: ``store/pages.py: STALE_AFTER_US``.
UNSENT_UNTIL = "the next run, resume or serve on this state file sends it, within 24 h"


_SENT = {
    "digest": "page sent in a digest",
    "reminder": "reminder sent",
    "joined": "sent with the page of flow {}, which has the same cause",
    "past": "page sent before this could be written",
}


def _page_opened(event: Event, payload: payloads.PageChanged) -> str:
    return f"page opened{f': {payload.title}' if payload.title else ''}{f'; {payload.why}' if payload.why else ''}"


def _page_opened_line(event: Event, payload: payloads.PageChanged) -> str:
    task = f" on {event.task}" if event.task is not None else ""
    return f"no page is sent about {payload.title}{task}: {payload.why}" if payload.why else ""


def _page_sent(event: Event, payload: payloads.PageChanged) -> str:
    return _SENT.get(payload.how or "", "page sent").format(payload.sender)


def _page_sent_line(event: Event, payload: payloads.PageChanged) -> str:
    fingerprint = f" ({digits(payload.fingerprint)})" if payload.fingerprint else ""
    joined = f", with the page of flow {payload.sender}" if payload.how == "joined" else ""
    what = "REMINDED" if payload.how == "reminder" else "PAGED"
    past = ", before this could be written" if payload.how == "past" else ""
    return f"{what} on-call{joined}{past}: {payload.title}{fingerprint}"


def _page_unsent(event: Event, payload: payloads.PageChanged) -> str:
    return f"{payload.error or 'no time was left'}; {UNSENT_UNTIL}"


def _page_unsent_line(event: Event, payload: payloads.PageChanged) -> str:
    return f"page {payload.id} NOT SENT: {_page_unsent(event, payload)}"


def _page_refused_line(event: Event, payload: payloads.PageChanged) -> str:
    until = f"until {LAST_TRIES_SECONDS:g} s after the end of the run"
    line = f"page {payload.id} not sent by {payload.sender}, tried again {until}: {payload.error}"
    return line if payload.tries == 1 else ""


def _rows(event: Event, payload: payloads.RowsChanged) -> str:
    rows = counted(payload.rows, "row") if payload.rows is not None else "rows"
    return f"{rows} {_ROW_WORDS.get(payload.what, payload.what.replace('-', ' '))}"


_ROW_WORDS = {
    payloads.RowsChange.HELD: "held in quarantine",
    payloads.RowsChange.PROVISIONAL: "set aside so far",
    payloads.RowsChange.DROPPED: "dropped with the attempt that failed",
}


def _rows_line(event: Event, payload: payloads.RowsChanged) -> str:
    is_held = payload.what == payloads.RowsChange.HELD and payload.rows
    return f"{event.task}: {_rows(event, payload)}{by(event)}" if is_held or event.actor else ""


def _canary(sentence: str) -> Callable[[Event, payloads.CanaryEnded], str]:
    return lambda event, payload: sentence.format(counted(len(payload.tasks), "other"))


def _schedule(event: Event, payload: payloads.ScheduleChanged) -> str:
    """A change of a schedule. Logical times are in its time zone."""
    flow, what, last = payload.flow, payload.what, _minute(payload.last)
    if what in (payloads.ScheduleChange.BEGUN, payloads.ScheduleChange.CHANGED):
        verb = "begins" if what == payloads.ScheduleChange.BEGUN else "is now"
        return f"schedule of {flow} {verb}: {payload.expression} {payload.timezone}"
    if what == payloads.ScheduleChange.MISSED:
        more = "" if payload.is_all else " or more"
        span = f"{payload.runs}{more}, from {_minute(payload.first)} to {last}"
        when = f"the one of {last}" if payload.runs == 1 else span
        why = "skipped by an operator" if payload.misfire is None else f"given up (misfire {payload.misfire})"
        return f"runs of {flow} {why}: {when}"
    if what == payloads.ScheduleChange.LATE_START:
        others = f", nor {payload.runs - 1} before it" if payload.runs and payload.runs > 1 else ""
        return f"{flow} of {last} has not started as promised{others}"
    if what == payloads.ScheduleChange.TAKEN_BACK:
        started = f", except {counted(payload.runs, 'run')}" if payload.runs else ""
        return f"{flow}: what was decided until {last}, ahead of the clock, is undecided again{started}"
    if what == payloads.ScheduleChange.LATE_END:
        return f"not ended by {wall(payload.due_at or 0)}, when it was due"
    return ""


def _minute(text: str | None) -> str:
    """Shorten an instant in ISO 8601 to ``2026-11-21 02:00``."""
    return str(text)[:16].replace("T", " ")


def _operator(event: Event, payload: payloads.OperatorActed) -> str:
    message = payload.answer.get("message")
    return f"{payload.act}: {message}" if message else payload.act or payload.what or ""


#: Acts of which no other event tells: the others change a task, a run, a page, rows or a breaker.
_UNTOLD_ACTS = frozenset(["hurry", "reload", "stop"])


def _operator_line(event: Event, payload: payloads.OperatorActed) -> str:
    if payload.act not in _UNTOLD_ACTS or not payload.answer.get("ok"):
        return ""
    tasks = [task for task, *_ in payload.answer.get("results") or ()]
    return f"{first_names(tasks) or f'run {event.run_id}'} {past_of(payload.act)}{by(event)}"


SYSTEM_EVENTS: Sequence[WordsRow] = (
    *words(
        payloads.BreakerChanged,
        _breaker,
        lambda event, payload: f"downstream {payload.downstream}: {_breaker(event, payload)}",
    ),
    *words_by(
        payloads.PageChanged,
        {
            PageChange.OPENED: (_page_opened, _page_opened_line),
            PageChange.FOLDED: "the open page counts one more failure, {payload.occurrences} in all",
            PageChange.WOKEN: "page no longer snoozed",
            PageChange.SENT: (_page_sent, _page_sent_line),
            PageChange.SEND_FAILED: ("page not sent by {payload.sender}: {payload.error}", _page_refused_line),
            PageChange.UNSENT: (_page_unsent, _page_unsent_line),
            PageChange.BELL: "the terminal bell has rung",
            PageChange.ACKED: ("page {payload.id} acknowledged", Lines.SENTENCE),
            PageChange.SNOOZED: ("page {payload.id} snoozed", Lines.SENTENCE),
            PageChange.REARMED: "the next failure pages again",
            PageChange.RESOLVED: "page resolved",
            PageChange.REOPENED: "page as before the act that was undone",
        },
    ),
    *words(payloads.RowsChanged, _rows, _rows_line),
    *words_by(
        payloads.CanaryEnded,
        {
            payloads.CanaryEnd.RELEASED: _canary("it succeeded: {} of its cause may run"),
            payloads.CanaryEnd.NOT_FIXED: _canary("the fix did not help: {} held"),
            payloads.CanaryEnd.FAILED: _canary("it failed with another error: {} held"),
        },
    ),
    *words(
        payloads.NoteWritten,
        "on {payload.fingerprint}: {payload.text}",
        lambda event, payload: f"note on {digits(payload.fingerprint)}{by(event)}: {payload.text}",
    ),
    *words(payloads.StorageChanged, "storage {payload.what}: {payload.sentence}", Lines.SENTENCE),
    *words(
        payloads.ClockMoved,
        lambda event, payload: f"the clock moved by {offset(payload.moved_us)}",
        Lines.SENTENCE,
    ),
    *words(payloads.ScheduleChanged, _schedule, Lines.SENTENCE),
    *words_by(
        payloads.OperatorActed,
        {
            payloads.OperatorNotice.BREAKER: ("breaker {payload.downstream}: {payload.how}", Lines.SENTENCE),
        },
    ),
    *words(payloads.OperatorActed, _operator, _operator_line),
)
