"""Events as plain lines for pipes, cron and systemd, and their printer.

SPEC 000 defines the lines below; other events have the sentence of the journal (``text/event_text.py``).

::

    [03:11:00] settle_M_000042 RUNNING
    [03:11:00] settle_M_000042 FAILED ZeroDivisionError settle.py:87 (fp=4a7c1d): division by zero
    [03:11:00] settle_M_000042 RETRYING attempt=1 next_retry_at=03:11:01.34
    [03:11:01] settle_M_000042 DEAD_LETTER ZeroDivisionError settle.py:87 (fp=4a7c1d): division by zero; the same ...
    [03:11:01] PAGED on-call: poison-pill on settle_M_000042 (4a7c1d)
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import TextIO

from ...engine.core.causes import LAST_TRIES_SECONDS
from ...engine.core.outcome import reason_of_unstored
from ...engine.domain import event_payloads as payloads
from ...engine.domain.event_payloads import ExecutorChange, PageChange, RowsChange, RunChange, RunChanged, TaskMoved
from ...engine.domain.events import Event
from ...engine.domain.states import SkipCause, TaskState
from ..model.log import LineAssembler
from ..text.event_text import PayloadTable, describe_event, payload_row, shortening_text
from ..text.text import echo, one_line, sanitize_lines, shorten

FINGERPRINT_DIGITS = 6
ERROR_CELLS = 160  # of the first line of an error


def lines_of_event(event: Event, *, has_date: bool = False, label: str = "", target: str = "") -> Iterator[str]:
    """The lines of an event, with ``label`` before each text; none for events that only the console shows.

    ``target``: the state file that commands in the lines name; empty: the default one.
    """
    words = _LINES.get(type(event.payload))
    if words is None:
        return
    for text in words(event, event.payload):
        yield f"[{_clock(event.at, has_date)}] {label}{one_line(text + _advice(event, target))}"


class EventLabeller:
    """Makes the lines of events in order, and labels those of another run than the latest executor runs.

    ``has_date``: each line has the date; otherwise the first line of each day. ``has_each_check``: each check of a
    sensor has lines; otherwise the checks 1, 2, 4, 8, ... have one.
    """

    def __init__(self, *, has_date: bool = False, target: str = "", has_each_check: bool = False) -> None:
        self.run_id: str | None = None  # the run of the latest executor; None before its first event
        self._has_date = has_date
        self._target = target
        self._day: date | None = None  # local, of the latest event with a line
        self._sensing: set[tuple[str | None, str]] | None = None if has_each_check else set()  # runs and tasks

    def lines(self, event: Event) -> Iterator[str]:
        """The lines of the next event."""
        payload = event.payload
        if isinstance(payload, payloads.TaskMoved) and self._is_repeated_check(event, payload):
            return
        if isinstance(payload, payloads.ExecutorChanged) and payload.what == ExecutorChange.STARTED:
            self.run_id = event.run_id
        is_named = isinstance(payload, payloads.RunChanged | payloads.ScheduleChanged)  # these lines name their run
        is_other = self.run_id is not None and event.run_id not in (None, self.run_id)
        label = f"run {one_line(event.run_id or '')}: " if is_other and not is_named else ""
        day = datetime.fromtimestamp(event.at // 1_000_000).astimezone().date()
        for line in lines_of_event(
            event, has_date=self._has_date or day != self._day, label=label, target=self._target
        ):
            self._day = day
            yield line

    def _is_repeated_check(self, event: Event, payload: payloads.TaskMoved) -> bool:
        """Whether a move of a task is the start or the end of a check that needs no line."""
        if self._sensing is None or event.task is None:
            return False
        task = event.run_id, event.task
        if event.new == TaskState.SENSING:
            self._sensing.add(task)
            return not _is_power_of_two(_checks(payload))
        if event.new in (TaskState.READY, TaskState.RUNNING):
            return task in self._sensing
        self._sensing.discard(task)
        return False


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _sentence(event: Event, payload: payloads.Payload) -> Iterator[str]:
    """The subject of the event and the sentence of the journal."""
    about = event.task or (
        f"run {event.run_id}" if isinstance(payload, payloads.ScheduleChanged) and event.run_id else ""
    )
    yield f"{about}: {describe_event(event)}" if about else describe_event(event)


# --- Tasks -----------------------------------------------------------------------------------------------------------


def _task(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    words = _MOVES.get(str(event.new))
    if words is not None:
        yield from words(event, payload)


def _noticed(event: Event, payload: payloads.TaskChanged) -> Iterator[str]:
    if notice := payload.set.get("notice"):
        yield f"{event.task} LATE: {notice}"


def _running(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    yield f"{event.task} RUNNING" + (f" attempt={event.attempt}" if (event.attempt or 0) > 1 else "")


def _ended(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    why = reason_of_unstored(payload.set.get("result"))
    lost = "" if why is None else f" (its result was not stored: {why})"
    yield f"{event.task} {event.new}{_by(event)}{lost}{f': {payload.why}' if payload.why else ''}"


def _skipped(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    columns = payload.set
    reason = columns.get("error") if columns.get("skip_cause") == SkipCause.CONDITION else None
    yield f"{event.task} SKIPPED{_by(event)}{f': {reason}' if reason else ''}"


def _retrying(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    yield from _advised(event, payload)
    columns = payload.set
    outcome = payload.attempt_set.get("outcome", "error")
    word = {"error": "FAILED", "timed_out": "TIMED_OUT", "lost": "LOST", "cancelled": "STOPPED"}.get(outcome, "FAILED")
    yield f"{event.task} {word} {_failure(payload)}".rstrip()
    drawn = columns.get("delay_us")
    ceiling = columns.get("ceiling_us")
    waits = f" drew {drawn / 1e6:.2f} s of {ceiling / 1e6:g} s" if drawn is not None and ceiling is not None else ""
    changed = f" changed={','.join(payload.changed)}" if payload.changed else ""
    due = _instant(columns.get("next_retry_at"))
    yield f"{event.task} RETRYING attempt={event.attempt} next_retry_at={due}{waits}{changed}{shortening_text(payload)}"


def _advised(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    """The advice after a timeout: the progress until then, and a longer timeout."""
    attempt = payload.attempt_set
    if attempt.get("outcome") == "timed_out" and (diagnostic := attempt.get("diagnostic")):
        yield f"{event.task} {diagnostic}"


def _failed(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    """FAILED or DEAD_LETTER."""
    yield from _advised(event, payload)
    between = "; " if _explanation(payload)[1] else ": "
    failure = _failure(payload)
    why = f"{between}{payload.why}" if payload.why and payload.explain and not failure.endswith(payload.why) else ""
    yield f"{event.task} {event.new} {failure}{why}"


def _sensing(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    checks, due = _checks(payload), _instant(payload.set.get("next_retry_at"))
    yield f"{event.task} SENSING next_check_at={due}" + (f" checks={checks}" if checks > 1 else "")


def _checks(payload: payloads.TaskMoved) -> int:
    """How often a sensor has found nothing yet."""
    return int(payload.set.get("deferrals") or 0)


def _upstream_failed(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    yield f"{event.task} UPSTREAM_FAILED because of {payload.set.get('blocked_by')}"


def _pending(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    if event.old not in (None, TaskState.READY):
        yield f"{event.task} PENDING again{_by(event)}"


_MOVES: dict[str, Callable[[Event, payloads.TaskMoved], Iterator[str]]] = {
    TaskState.RUNNING: _running,
    TaskState.SUCCESS: _ended,
    TaskState.RETRYING: _retrying,
    TaskState.FAILED: _failed,
    TaskState.DEAD_LETTER: _failed,
    TaskState.SENSING: _sensing,
    TaskState.UPSTREAM_FAILED: _upstream_failed,
    TaskState.SKIPPED: _skipped,
    TaskState.CANCELLED: _ended,
    TaskState.PENDING: _pending,
}


# --- Attempts --------------------------------------------------------------------------------------------------------


def _stack(event: Event, payload: payloads.AttemptStack) -> Iterator[str]:
    if payload.hang:
        yield f"{event.task} at its end: {payload.hang}"
    elif payload.where:
        yield f"{event.task} was in {payload.where}"


def _retried(event: Event, payload: payloads.AttemptRetry) -> Iterator[str]:
    elapsed, delay = payload.elapsed_seconds or 0.0, payload.delay_seconds or 0.0
    tries = f"try {payload.try_number} after {elapsed:.1f} s, waits {delay:.2f} s"
    more = f"; {payload.untold:,} more since the line before" if payload.untold else ""
    error = f"{payload.error_type}: {payload.message}"
    yield f"{event.task} retries {payload.function} inside ({tries}): {error}{more}"


# --- Other events ----------------------------------------------------------------------------------------------------


def _run(event: Event, payload: payloads.RunChanged) -> Iterator[str]:
    if payload.what == RunChange.ENDED:
        yield f"run {event.run_id} {event.new}{_by(event)}{f': {payload.why}' if payload.why else ''}"
    elif payload.what == RunChange.BLOCKED:
        yield f"run {event.run_id} BLOCKED: {payload.why or 'dead letters wait for a human'}"
    elif payload.what == RunChange.CUT_OFF:
        yield f"run {event.run_id} was CUT OFF: {payload.why}"
    elif payload.what in _RUN_SENTENCES:
        yield f"run {event.run_id}: {describe_event(event)}"
    elif payload.what in _RUN_WORDS:
        yield f"run {event.run_id} {payload.what.upper()}{_by(event)}"


def _advice(event: Event, target: str) -> str:
    """The commands that end the wait of a run, as they are typed."""
    what = event.payload.what if isinstance(event.payload, payloads.RunChanged) else None
    place, option = ([target], ["--state", target]) if target else ([], [])
    if what == RunChange.BLOCKED:
        return f" ({shlex.join(['redrive', 'inbox', *place])})"
    if what != RunChange.CUT_OFF:
        return ""
    resume = shlex.join(["redrive", "resume", *place, "--run", event.run_id or ""])
    return f"; {resume} goes on with it, {shlex.join(['redrive', 'abandon', *option, event.run_id or ''])} ends it"


_RUN_SENTENCES = frozenset(
    [
        RunChange.DEADLINE,
        RunChange.POSTPONED,
        RunChange.FLOW_CHANGED,
        RunChange.FLOW_REFUSED,
        RunChange.CODE_CHANGED,
        RunChange.CODE_LOADED,
        RunChange.CODE_REFUSED,
    ]
)
_RUN_WORDS = frozenset([RunChange.PAUSED, RunChange.UNPAUSED, RunChange.REOPENED, RunChange.UNBLOCKED])


def _breaker(event: Event, payload: payloads.BreakerChanged) -> Iterator[str]:
    until = f", held until {_clock(payload.reopens_at)}" if payload.reopens_at else ""
    why = f": {payload.why}" if payload.why and payload.state != "HALF_OPEN" else ""
    yield f"downstream {payload.downstream} {payload.state}{why}{until}"


def _page(event: Event, payload: payloads.PageChanged) -> Iterator[str]:
    if payload.what == PageChange.SENT:
        fingerprint = f" ({_digits(payload.fingerprint)})" if payload.fingerprint else ""
        yield f"PAGED on-call: {payload.title}{fingerprint}"
    elif payload.what == PageChange.OPENED and payload.why:
        task = f" on {event.task}" if event.task is not None else ""
        yield f"no page is sent about {payload.title}{task}: {payload.why}"
    elif payload.what == PageChange.SEND_FAILED and payload.tries == 1:
        until = f"until {LAST_TRIES_SECONDS:g} s after the end of the run"
        yield f"page {payload.id} not sent by {payload.sender}, tried again {until}: {payload.error}"
    elif payload.what == PageChange.UNSENT:
        yield f"page {payload.id} NOT SENT: {describe_event(event)} (redrive pages)"


def _rows(event: Event, payload: payloads.RowsChanged) -> Iterator[str]:
    if payload.what == RowsChange.HELD and payload.rows:
        yield from (f"{line} (redrive quarantine)" for line in _sentence(event, payload))


_PRINTED = frozenset(
    [
        ExecutorChange.THREADS_KILLED,
        ExecutorChange.WORKER_RETIRED,
        ExecutorChange.PING_FAILED,
        ExecutorChange.CLUSTER_CHANGED,
    ]
)


def _executor(event: Event, payload: payloads.ExecutorChanged) -> Iterator[str]:
    """Warnings and output of the flow's import, and failures of the executor's processes."""
    if payload.what == ExecutorChange.STARTED:
        for warning in payload.warnings:
            yield f"warning: {warning}"
        for line in (payload.printed or "").splitlines():
            yield f"the import printed: {line}"
    elif payload.what == ExecutorChange.ZYGOTE_DIED:
        for line in (payload.printed or "").splitlines()[:-1]:  # the sentence has the last line
            yield f"process {payload.pid} printed: {line}"
        yield describe_event(event)
    elif payload.what in _PRINTED:
        yield describe_event(event)


_LINES: PayloadTable[Iterable[str]] = dict(
    [
        payload_row(payloads.TaskMoved, _task),
        payload_row(payloads.TaskChanged, _noticed),
        payload_row(payloads.TaskMapped, lambda event, payload: [f"{event.task} {describe_event(event)}"]),
        payload_row(payloads.RunChanged, _run),
        payload_row(payloads.AttemptEffect, _sentence),
        payload_row(payloads.AttemptDeadline, lambda event, payload: [f"{event.task} timeout reached"]),
        payload_row(payloads.AttemptStack, _stack),
        payload_row(payloads.AttemptSigterm, lambda event, payload: [f"{event.task} sending SIGTERM"]),
        payload_row(payloads.AttemptSigkill, lambda event, payload: [f"{event.task} still alive, sending SIGKILL"]),
        payload_row(payloads.AttemptSwept, _sentence),
        payload_row(payloads.AttemptLeaked, _sentence),
        payload_row(payloads.AttemptLate, _sentence),
        payload_row(payloads.AttemptRetry, _retried),
        payload_row(payloads.AttemptSilent, _sentence),
        payload_row(payloads.AttemptReclaimed, _sentence),
        payload_row(payloads.RowsChanged, _rows),
        payload_row(payloads.BreakerChanged, _breaker),
        payload_row(payloads.PageChanged, _page),
        payload_row(payloads.StorageChanged, _sentence),
        payload_row(payloads.ClockMoved, _sentence),
        payload_row(payloads.ScheduleChanged, _sentence),
        payload_row(payloads.ExecutorChanged, _executor),
    ]
)


# --- Pieces --------------------------------------------------------------------------------------------------------


def _failure(payload: payloads.TaskMoved) -> str:
    explain, message = _explanation(payload)
    fingerprint = payload.attempt_set.get("fingerprint")
    named = f"{explain} (fp={_digits(fingerprint)})" if fingerprint else explain
    return f"{named}: {message}" if message else named


def _explanation(payload: payloads.TaskMoved) -> tuple[str, str]:
    """The failure in a few words, and the first line of the error unless the words contain it."""
    attempt, explain = payload.attempt_set, payload.explain
    error = (attempt.get("error") or "").strip()
    if not explain or not error or attempt.get("outcome") == "timed_out":  # a timeout has its own lines
        return explain or payload.why or error, ""
    message = shorten(one_line(error.splitlines()[0]), ERROR_CELLS)
    known = " ".join(explain.partition("<")[0].split())  # of a command, the error with <n> for numbers
    return (message, "") if " ".join(message.split()).startswith(known) else (explain, message)


def _by(event: Event) -> str:
    if not event.actor:
        return ""
    return f" by {event.actor}" + (f": {event.reason}" if event.reason else "")


def _digits(fingerprint: str | None) -> str:
    return fingerprint[:FINGERPRINT_DIGITS] if fingerprint else "-"


def _clock(at: int, has_date: bool = False) -> str:
    return (
        datetime.fromtimestamp(at // 1_000_000).astimezone().strftime("%Y-%m-%d %H:%M:%S" if has_date else "%H:%M:%S")
    )


def _instant(at: int | None) -> str:
    return "-" if at is None else f"{_clock(at)}.{at % 1_000_000 // 10_000:02}"


# --- Prints the lines of events and the output of tasks while a run goes on ------------------------------------------


class EventPrinter:
    """Prints lines until the reader has gone or writing fails; the run goes on without it.

    ``stream``: None if the process was started without a stdout. ``target``: the state file, for commands in the lines.
    """

    def __init__(self, stream: TextIO | None, target: str = "") -> None:
        self._open_output: dict[str, LineAssembler] = {}
        self._running: set[str] = set()
        self._early_output: dict[str, str] = {}  # by task: what came before the line that says that it runs
        self.has_printed_end = False  # whether the latest line about the run says that it ended or is blocked
        self._labeller = EventLabeller(target=os.path.abspath(target) if target else "")
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # cron's locale may not encode names of tasks

    def print_events(self, events: Sequence[Event]) -> None:
        """Print the lines of a batch of events."""
        for event in events:
            if isinstance(event.payload, RunChanged) and event.run_id == (self._labeller.run_id or event.run_id):
                self.has_printed_end = event.payload.what in (RunChange.ENDED, RunChange.BLOCKED)
        self.write("".join(f"{line}\n" for event in events for line in self._lines_of(event)))

    def _lines_of(self, event: Event) -> Iterator[str]:
        """The lines of an event; before the end of an attempt, the unfinished line of its output.

        The output of an attempt comes without a commit, and so before the event of its start, which waits for one.
        """
        is_start = event.task is not None and isinstance(event.payload, TaskMoved) and event.new == TaskState.RUNNING
        if event.task is not None and is_start:
            yield from self._labeller.lines(event)
            self._running.add(event.task)
            yield from self._output_lines(event.task, self._early_output.pop(event.task, ""))
            return
        if event.task is not None and isinstance(event.payload, TaskMoved) and "outcome" in event.payload.attempt_set:
            self._running.discard(event.task)
            assembler = self._open_output.pop(event.task, None)
            if assembler is not None:
                yield from (_output_line(event.task, text) for text in assembler.close())
        yield from self._labeller.lines(event)

    def print_output(self, task: str, text: str) -> None:
        """Print the finished lines of a task's output."""
        if task not in self._running:
            self._early_output[task] = self._early_output.get(task, "") + text
            return
        self.write("".join(f"{line}\n" for line in self._output_lines(task, text)))

    def _output_lines(self, task: str, text: str) -> Iterator[str]:
        assembler = self._open_output.setdefault(task, LineAssembler())
        return (_output_line(task, line) for line in assembler.append(text))

    def write(self, text: str) -> None:
        """Print text at once. Errors of stdout are not raised."""
        if self._stream is None:
            return
        try:
            self._stream.write(sanitize_lines(text))
            self._stream.flush()
        except BrokenPipeError:  # `| head` has seen enough
            self._give_up()
        except OSError as error:
            self._give_up()
            _warn(f"cannot print any more ({error.strerror}); the run goes on, redrive events shows it")

    def _give_up(self) -> None:
        """Stop printing, and redirect stdout so that the interpreter's flush at exit does not fail."""
        stream, self._stream = self._stream, None
        if stream is not None:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)


def _output_line(task: str, text: str) -> str:
    return f"{one_line(task)} | {text}"


def _warn(sentence: str) -> None:
    if sys.stderr is not None:
        echo(f"redrive: {sentence}", err=True)
