"""Prints events and the output of tasks as lines, for pipes, cron and systemd; ``text/event_text.py`` has the words."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import TextIO

from ...engine.domain.event_payloads import (
    ExecutorChange,
    ExecutorChanged,
    RunChange,
    RunChanged,
    ScheduleChanged,
    TaskMoved,
)
from ...engine.domain.events import Event
from ...engine.domain.states import TaskState
from ..model.log import LineAssembler
from ..text.event_text import pieces_of_event
from ..text.pieces import Line
from ..text.task_events import sensor_checks
from ..text.text import echo, one_line, sanitize_lines
from .group import discard_output
from .output import Shown, painted


class EventLabeller:
    """Makes the lines of events in order, and labels those of another run than the latest executor runs.

    ``has_date``: each line has the date; otherwise the first line of each day. ``has_each_check``: each check of a
    sensor has lines; otherwise the checks 1, 2, 4, 8, ... have one.
    """

    def __init__(self, *, has_date: bool = False, target: str = "", has_each_check: bool = False) -> None:
        self.run_id: str | None = None  # the run of the latest executor; None before its first event
        self._has_date = has_date
        self._target = target
        self._day: date | None = None  # local, of the latest event with a line; None if each line has it
        self._sensing: set[tuple[str | None, str]] | None = None if has_each_check else set()  # runs and tasks

    def lines(self, event: Event) -> Iterator[Line]:
        """The lines of the next event."""
        payload = event.payload
        if isinstance(payload, TaskMoved) and self._is_repeated_check(event, payload):
            return
        if isinstance(payload, ExecutorChanged) and payload.what == ExecutorChange.STARTED:
            self.run_id = event.run_id
        is_named = isinstance(payload, RunChanged | ScheduleChanged)  # by its lines
        is_other = self.run_id is not None and event.run_id not in (None, self.run_id)
        label = f"run {one_line(event.run_id or '')}: " if is_other and not is_named else ""
        day = None if self._has_date else datetime.fromtimestamp(event.at // 1_000_000).astimezone().date()
        for line in pieces_of_event(event, has_date=day is None or day != self._day, label=label, target=self._target):
            self._day = day
            yield line

    def _is_repeated_check(self, event: Event, payload: TaskMoved) -> bool:
        """Whether a move of a task is the start or the end of a check that needs no line."""
        if self._sensing is None or event.task is None:
            return False
        task = event.run_id, event.task
        if event.new == TaskState.SENSING:
            self._sensing.add(task)
            return (checks := sensor_checks(payload)) & (checks - 1) != 0  # no power of two
        if event.new in (TaskState.READY, TaskState.RUNNING):
            return task in self._sensing
        self._sensing.discard(task)
        return False


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
        self._write_safe("".join(f"{painted(line)}\n" for event in events for line in self._lines_of(event)))

    def _lines_of(self, event: Event) -> Iterator[Shown]:
        """The lines of an event; before the end of an attempt, the unfinished line of its output.

        The output of an attempt comes without a commit, and so before the event of its start, which waits for one.
        """
        task, payload = event.task, event.payload
        is_start = event.new == TaskState.RUNNING
        if task is not None and isinstance(payload, TaskMoved) and "outcome" in payload.attempt_set and not is_start:
            self._running.discard(task)
            if (assembler := self._open_output.pop(task, None)) is not None:
                yield from (_output_line(task, text) for text in assembler.close())
        yield from self._labeller.lines(event)
        if task is not None and isinstance(payload, TaskMoved) and is_start:
            self._running.add(task)
            yield from self._output_lines(task, self._early_output.pop(task, ""))

    def print_output(self, task: str, text: str) -> None:
        """Print the finished lines of a task's output."""
        if task not in self._running:
            self._early_output[task] = self._early_output.get(task, "") + text
            return
        self.write(self._output_lines(task, text))

    def _output_lines(self, task: str, text: str) -> Iterator[str]:
        assembler = self._open_output.setdefault(task, LineAssembler())
        return (_output_line(task, line) for line in assembler.append(text))

    def write(self, lines: Iterable[str]) -> None:
        """Print lines at once. Errors of stdout are not raised."""
        self._write_safe(sanitize_lines("".join(f"{line}\n" for line in lines)))

    def _write_safe(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:  # `| head` has seen enough
            self._give_up()
        except OSError as error:
            self._give_up()
            why = f"cannot print any more ({error.strerror})"
            echo(f"redrive: {why}; the run goes on; its events have it", err=True)

    def _give_up(self) -> None:
        """Stop printing, and redirect stdout so that the interpreter's flush at exit does not fail."""
        stream, self._stream = self._stream, None
        if stream is not None:
            discard_output(stream.fileno())


def _output_line(task: str, text: str) -> str:
    return f"{one_line(task)} | {text}"
