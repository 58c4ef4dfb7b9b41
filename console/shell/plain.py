"""The run as plain lines, for pipes, cron and systemd: one line per event, in the shape of document 000.

::

    [03:11:00] settle_M_000042 RUNNING
    [03:11:00] settle_M_000042 FAILED ZeroDivisionError settle.py:87 (fp=4a7c1d)
    [03:11:00] settle_M_000042 RETRYING attempt=1 next_retry_at=03:11:01.34
    [03:11:01] settle_M_000042 DEAD_LETTER ZeroDivisionError settle.py:87 (fp=4a7c1d)
    [03:11:01] PAGED on-call: poison-pill on settle_M_000042 (4a7c1d)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from ...engine.core.events import Event, EventKind
from ...engine.core.results import unkept_kind
from ...engine.core.states import SkipCause, TaskState
from ..model.sentences import columns_of, cut, of_schedule
from ..present.text import one_line

FINGERPRINT_DIGITS = 6


def lines(event: Event) -> Iterator[str]:
    """The lines that tell an event; none for what only the console shows."""
    tell = _TELLERS.get(event.kind)
    if tell is None:
        return
    for text in tell(event):
        yield f"[{_clock(event.at)}] {one_line(text)}"


def _task(event: Event) -> Iterator[str]:
    tell = _MOVES.get(str(event.new))
    if tell is not None:
        yield from tell(event)


def _running(event: Event) -> Iterator[str]:
    yield f"{event.task} RUNNING" + (f" attempt={event.attempt}" if (event.attempt or 0) > 1 else "")


def _ended(event: Event) -> Iterator[str]:
    kind = unkept_kind(columns_of(event).get("result"))
    lost = "" if kind is None else f" (its result, a {kind}, is not JSON: it is not kept)"
    yield f"{event.task} {event.new}{_by(event)}{lost}"


def _skipped(event: Event) -> Iterator[str]:
    columns = columns_of(event)
    said = columns.get("error") if columns.get("skip_cause") == SkipCause.CONDITION else None
    yield f"{event.task} SKIPPED{_by(event)}{f': {said}' if said else ''}"


def _retrying(event: Event) -> Iterator[str]:
    yield from _advised(event)
    columns = columns_of(event)
    outcome = str((event.data.get("attempt") or {}).get("outcome", "error"))
    word = {"error": "FAILED", "timed_out": "TIMED_OUT", "lost": "LOST", "cancelled": "STOPPED"}.get(outcome, "FAILED")
    yield f"{event.task} {word} {_failure(event)}".rstrip()
    due_at = columns.get("next_retry_at")
    drawn = columns.get("delay_us")
    ceiling = columns.get("ceiling_us")
    waits = f" drew {drawn / 1e6:.2f} s of {ceiling / 1e6:g} s" if drawn is not None and ceiling is not None else ""
    more = f"{waits}{_changed(event)}{cut(event)}"
    yield f"{event.task} RETRYING attempt={event.attempt} next_retry_at={_instant(due_at)}{more}"


def _changed(event: Event) -> str:
    """What was not the same when it last failed like this, so that it is tried once more."""
    words = event.data.get("changed")
    return f" changed={','.join(map(str, words))}" if words else ""


def _advised(event: Event) -> Iterator[str]:
    """How far a task came until its timeout, and what that timeout should be."""
    attempt = event.data.get("attempt") or {}
    if attempt.get("outcome") == "timed_out" and attempt.get("diagnostic"):
        yield f"{event.task} {attempt['diagnostic']}"


def _failed(event: Event) -> Iterator[str]:
    yield from _advised(event)
    yield f"{event.task} FAILED {_failure(event)}{_why(event)}"


def _dead_letter(event: Event) -> Iterator[str]:
    yield from _advised(event)
    yield f"{event.task} DEAD_LETTER {_failure(event)}{_why(event)}"


def _sensing(event: Event) -> Iterator[str]:
    yield f"{event.task} SENSING next_look_at={_instant(columns_of(event).get('next_retry_at'))}"


def _upstream_failed(event: Event) -> Iterator[str]:
    yield f"{event.task} UPSTREAM_FAILED because of {columns_of(event).get('blocked_by')}"


def _pending(event: Event) -> Iterator[str]:
    if event.old not in (None, TaskState.READY):
        yield f"{event.task} PENDING again{_by(event)}"


_MOVES: dict[str, Callable[[Event], Iterator[str]]] = {
    TaskState.RUNNING: _running,
    TaskState.SUCCESS: _ended,
    TaskState.RETRYING: _retrying,
    TaskState.FAILED: _failed,
    TaskState.DEAD_LETTER: _dead_letter,
    TaskState.SENSING: _sensing,
    TaskState.UPSTREAM_FAILED: _upstream_failed,
    TaskState.SKIPPED: _skipped,
    TaskState.CANCELLED: _ended,
    TaskState.PENDING: _pending,
}


def _run(event: Event) -> Iterator[str]:
    what = event.data.get("what")
    if what == "ended":
        yield f"run {event.run_id} {event.new}"
    elif what == "blocked":
        yield f"run {event.run_id} BLOCKED: dead letters wait for a human (redrive inbox)"
    elif what in ("paused", "unpaused", "reopened", "unblocked"):
        yield f"run {event.run_id} {str(what).upper()}{_by(event)}"


def _deadline(event: Event) -> Iterator[str]:
    yield f"{event.task} timeout reached"


def _stack(event: Event) -> Iterator[str]:
    if event.data.get("hang"):
        yield f"{event.task} at its end: {event.data['hang']}"
    elif event.data.get("where"):
        yield f"{event.task} was in {event.data['where']}"


def _sigterm(event: Event) -> Iterator[str]:
    yield f"{event.task} sending SIGTERM"


def _sigkill(event: Event) -> Iterator[str]:
    yield f"{event.task} still alive, sending SIGKILL"


def _swept(event: Event) -> Iterator[str]:
    pids = event.data.get("pids") or []
    yield f"{event.task} left {len(pids)} process{'' if len(pids) == 1 else 'es'} behind: killed"


def _leaked(event: Event) -> Iterator[str]:
    yield f"{event.task} ignores its cancel token: its slot is taken until its thread ends"


def _effect(event: Event) -> Iterator[str]:
    yield f"{event.task} begins its effect, at most once: key {event.data.get('key')}"


def _retried(event: Event) -> Iterator[str]:
    data = event.data
    elapsed, delay = data.get("elapsed_seconds", 0), data.get("delay_seconds", 0)
    tries = f"try {data.get('try')} after {elapsed:.1f} s, waits {delay:.2f} s"
    said = f"{data.get('error_type')}: {data.get('message')}"
    more = f"; {data['untold']:,} more since the line before" if data.get("untold") else ""
    yield f"{event.task} retries {data.get('function')} inside ({tries}): {said}{more}"


def _breaker(event: Event) -> Iterator[str]:
    data = event.data
    until = f", held until {_clock(data['reopens_at'])}" if data.get("reopens_at") else ""
    why = f": {data['why']}" if data.get("why") and data.get("state") != "HALF_OPEN" else ""
    yield f"downstream {data.get('downstream')} {data.get('state')}{why}{until}"


def _silent(event: Event) -> Iterator[str]:
    seconds, pid, process = (event.data.get(field) for field in ("silent_seconds", "pid", "process"))
    yield f"{event.task} silent for {seconds} s; its process {pid} is {process}"


def _reclaimed(event: Event) -> Iterator[str]:
    yield f"{event.task} attempt={event.attempt} reclaimed: its process {event.data.get('pid') or ''} is gone"


def _quarantined(event: Event) -> Iterator[str]:
    count = event.data.get("count") or 0
    if event.data.get("what") == "held" and count:
        yield f"{event.task} holds {count} row{'' if count == 1 else 's'} in quarantine (redrive quarantine)"


def _late(event: Event) -> Iterator[str]:
    outcome = (event.data.get("attempt") or {}).get("outcome")
    yield f"{event.task} attempt={event.attempt} ended late ({outcome}): it changes nothing any more"


def _page(event: Event) -> Iterator[str]:
    data = event.data
    if data.get("what") == "opened":
        about = f" on {event.task} ({_digits(data.get('fingerprint'))})" if event.task is not None else ""
        yield f"PAGED on-call: {data.get('title')}{about}"
    elif data.get("what") == "send-failed" and data.get("tries") == 1:
        yield f"page {data.get('id')} not sent by {data.get('sender')}, will be tried again: {data.get('error')}"


def _storage(event: Event) -> Iterator[str]:
    yield f"storage {event.data.get('what')}: {event.data.get('sentence', '')}"


def _executor(event: Event) -> Iterator[str]:
    tell = _OF_EXECUTOR.get(str(event.data.get("what")))
    if tell is not None:
        yield from tell(event)


def _started(event: Event) -> Iterator[str]:
    """What is doubtful about the import of the flow, and what it printed; else nothing."""
    for warning in event.data.get("warnings") or ():
        yield f"warning: {warning}"
    yield from _printed("the import", event)


def _zygote_died(event: Event) -> Iterator[str]:
    data = event.data
    yield f"process {data.get('pid')}, which forks the attempts, died ({data.get('how')}): what ran counts as lost"
    yield from _printed("it", event)


def _threads_killed(event: Event) -> Iterator[str]:
    leaked, lost = event.data.get("leaked") or (), event.data.get("lost") or ()
    also = f"; with it goes {', '.join(lost)}, to run again" if lost else ""
    yield f"process {event.data.get('pid')} of threads killed: {', '.join(leaked)} ignored the cancel token{also}"


def _printed(who: str, event: Event) -> Iterator[str]:
    for line in str(event.data.get("printed") or "").splitlines():
        yield f"{who} printed: {line}"


_OF_EXECUTOR: dict[str, Callable[[Event], Iterator[str]]] = {
    "started": _started,
    "zygote-died": _zygote_died,
    "threads-killed": _threads_killed,
}


def _moved_clock(event: Event) -> Iterator[str]:
    yield f"the clock moved by {event.data.get('moved_us', 0) / 1e6:+.1f} s"


def _schedule(event: Event) -> Iterator[str]:
    yield f"run {event.run_id}: {of_schedule(event)}" if event.run_id else of_schedule(event)


_TELLERS: dict[str, Callable[[Event], Iterator[str]]] = {
    EventKind.TASK: _task,
    EventKind.RUN: _run,
    EventKind.ATTEMPT_EFFECT: _effect,
    EventKind.ATTEMPT_DEADLINE: _deadline,
    EventKind.ATTEMPT_STACK: _stack,
    EventKind.ATTEMPT_SIGTERM: _sigterm,
    EventKind.ATTEMPT_SIGKILL: _sigkill,
    EventKind.ATTEMPT_SWEPT: _swept,
    EventKind.ATTEMPT_LEAKED: _leaked,
    EventKind.ATTEMPT_LATE: _late,
    EventKind.ATTEMPT_RETRY: _retried,
    EventKind.ATTEMPT_SILENT: _silent,
    EventKind.ATTEMPT_RECLAIMED: _reclaimed,
    EventKind.QUARANTINE: _quarantined,
    EventKind.BREAKER: _breaker,
    EventKind.PAGE: _page,
    EventKind.STORAGE: _storage,
    EventKind.CLOCK: _moved_clock,
    EventKind.SCHEDULE: _schedule,
    EventKind.EXECUTOR: _executor,
}


# --- Pieces --------------------------------------------------------------------------------------------------------


def _failure(event: Event) -> str:
    attempt = event.data.get("attempt") or {}
    explain = event.data.get("explain") or event.data.get("why") or attempt.get("error") or ""
    fingerprint = attempt.get("fingerprint")
    return f"{explain} (fp={_digits(fingerprint)})" if fingerprint else str(explain)


def _why(event: Event) -> str:
    why = event.data.get("why")
    return f": {why}" if why and event.data.get("explain") else ""


def _by(event: Event) -> str:
    if not event.actor:
        return ""
    return f" by {event.actor}" + (f": {event.reason}" if event.reason else "")


def _digits(fingerprint: Any) -> str:
    return str(fingerprint)[:FINGERPRINT_DIGITS] if fingerprint else "-"


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at // 1_000_000).astimezone().strftime("%H:%M:%S")


def _instant(at: Any) -> str:
    if not isinstance(at, int):
        return "-"
    return f"{_clock(at)}.{at % 1_000_000 // 10_000:02}"
