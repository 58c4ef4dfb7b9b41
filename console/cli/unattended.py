"""``redrive run --quiet``, for cron: a run in this process that nobody watches.

A quiet run is silent if it succeeds; else it prints everything that the mail should say: the lines of the tasks with
problems, with dates; each cause, with the end of the output of its first task; the commands to type.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from ...engine.domain.event_payloads import TaskMoved
from ...engine.domain.events import Event
from ...engine.domain.states import ENDED_BADLY, TIMED
from ...engine.errors import NotRunError, RedriveError
from ...engine.executor.executor import Executor
from ...engine.executor.run_end import RunResult
from ...engine.executor.run_options import RunOptions
from ..text.event_text import lines_of_event
from .event_lines import EventPrinter
from .group import ExitCode, code_of_result
from .passthrough import Passthrough

LINES_MAX = 2000  # the latest ones, of tasks with problems and of the run itself

_PROBLEMS = ENDED_BADLY | TIMED


def run_quietly(
    flow: str | None,
    state: str,
    run_id: str | None,
    options: RunOptions,
    *,
    report: TextIO | None = None,
    streams: Passthrough | None = None,
    on_lock: Callable[[], None] | None = None,
) -> RunResult:
    """Run the executor in this process; print a report unless the run has succeeded.

    ``report``: where to, if not on stdout; ``streams``: they have the output of the tasks, which the report leaves out.

    Raises:
        NotRunError: a stream did not take all of the output.
    """
    record = FailureRecord(state)
    printer = EventPrinter(report or sys.stdout, state)
    executor = Executor(
        run_id=run_id,
        flow=flow,
        state=state,
        options=options,
        on_events=record.add,
        streams=streams,
        on_lock=on_lock,
        handle_signals=True,
    )
    try:
        try:
            result = executor.run_result()
        finally:
            if streams is not None:
                streams.finish()
    except RedriveError:
        _print_record(printer, record.lines())  # the command prints the error itself
        raise
    if code_of_result(result) != ExitCode.SUCCESS:
        _print_record(printer, record.lines())
        from .failure_report import report_lines  # here: most runs succeed

        _print_record(printer, report_lines(os.path.abspath(state), result, has_output=streams is None))
    if streams is not None and streams.failure:
        raise NotRunError(streams.failure)
    return result


def _print_record(printer: EventPrinter, lines: Iterable[str]) -> None:
    printer.write("".join(f"{line}\n" for line in lines))


class FailureRecord:
    """The event lines of a run and of its tasks with problems. ``state``: the file, for commands in the lines."""

    def __init__(self, state: str) -> None:
        self._state = os.path.abspath(state)
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._with_problems: set[str] = set()
        self._omitted = 0

    def add(self, events: Sequence[Event]) -> None:
        """Record the lines of a batch of events."""
        for event in events:
            if event.task is not None and isinstance(event.payload, TaskMoved) and event.new in _PROBLEMS:
                self._with_problems.add(event.task)
            if event.task is None or event.task in self._with_problems:
                for text in lines_of_event(event, has_date=True, target=self._state):
                    self._omitted += len(self._lines) == LINES_MAX
                    self._lines.append(text)

    def lines(self) -> Iterator[str]:
        """The recorded lines; first, how many earlier ones were left out."""
        if self._omitted:
            yield f"... {self._omitted:,} earlier lines; redrive events shows them"
        yield from self._lines
