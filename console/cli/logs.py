"""``redrive logs``: the output of tasks; with ``--follow`` until the tasks have ended."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import click

from ...engine.core.projection import AttemptRow, RunProjection, TaskRow
from ...engine.core.views import OUTCOME_STYLES
from ...engine.domain.events import Event
from ...engine.domain.states import FAILED_OUTCOMES, RESTING, TaskState
from ...engine.domain.text import format_bytes
from ...engine.errors import RedriveError, SnapshotNeeded
from ..model.board import Board
from ..model.log import LineAssembler, Unchanged
from ..model.session_status import runner_of
from ..present.executors import executor_advice
from ..present.log import failure_text
from ..present.runs import place_line
from ..sessions.once import read_once, with_session
from ..sessions.output_reader import OutputLine, OutputReader
from ..sessions.session import LiveSession, Session, board_query, part_query
from ..text.text import added_message, echo, echo_json, one_line, pad
from .group import command
from .options import NamedFile, Number, json_option, of_tasks, rows_like
from .output import with_schema, write_unchanged

_NAME_CELLS_MAX = 30
_NAMED_MAX = 3
_AHEAD_TASKS = 100  # whose output is asked for at once


@command("logs")
@of_tasks
@json_option
@click.option("--attempt", type=Number(min=1), metavar="N", help="Default: the latest attempt of each task.")
@click.option("--lines", type=Number(min=0), metavar="N", help="Only the last N lines of each task.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new output until the tasks have ended.")
@click.option("--raw", "is_raw", is_flag=True, help="Unchanged, without names of tasks: for a file or pipe.")
def print_logs(
    file: NamedFile, as_json: bool, attempt: int | None, lines: int | None, follow: bool, is_raw: bool
) -> int:
    """TASK may be a glob, as 'load_*'; left out: every task that has started."""
    patterns = file.tasks
    if is_raw and (as_json or lines is not None):
        raise click.UsageError("--raw is all of the output, unchanged: leave --json and --lines out")
    if is_raw and sys.stdout.isatty():
        raise click.UsageError("--raw may hold what acts on a terminal: send it to a file or pipe")

    async def show(session: Session) -> tuple[RunProjection, list[_TaskOutput]]:
        run_id = session.run_id
        projection = await session.part(run_id, patterns) if patterns and not follow else None
        if projection is None or not projection.tasks.keys() >= set(patterns):
            projection = await session.snapshot(run_id)
        names = [row.name for row in rows_like(projection, patterns)]
        started = [name for name in names if _has_attempt(projection.tasks[name], attempt)]
        if not follow:
            names = started
        if not names or (attempt is not None and not started):
            raise RedriveError(_nothing_sentence(await session.snapshot(run_id), patterns, attempt, session))
        printer = OutputPrinter(names, as_json, is_raw)
        tasks = [_TaskOutput(session, projection.run.run_id, name, attempt, printer, lines) for name in names]
        for task in tasks[:_AHEAD_TASKS]:
            task.prefetch(projection)
        for task in tasks:
            await task.print_new(projection, lines)
        if not (follow or as_json or printer.has_printed):
            which = ", ".join(map(one_line, names)) if len(names) <= _NAMED_MAX else f"{len(names)} tasks"
            echo(f"redrive: no output of {which} in {place_line(projection.run, session.address)}", err=True)
        return projection, tasks

    async def show_and_follow(session: LiveSession) -> None:
        projection, tasks = await show(session)
        if advice := executor_advice(projection.run, session.status, session.address, session.now_us()):
            echo(f"redrive: {one_line(advice)}", err=True)
        await _follow(session, projection, tasks)

    queries = [part_query(names=patterns) if patterns and not follow else board_query()]
    if follow:
        with_session(file.to_read(), show_and_follow, queries)
    else:
        read_once(file.to_read(), show, queries)
    return 0


def _has_attempt(row: TaskRow, attempt: int | None) -> bool:
    return attempt in row.attempts if attempt is not None else bool(row.attempts)


def _nothing_sentence(projection: RunProjection, patterns: Sequence[str], attempt: int | None, session: Session) -> str:
    which = f"attempt {attempt}" if attempt is not None else "attempt"
    if len(patterns) == 1 and patterns[0] in projection.tasks:
        row = projection.tasks[patterns[0]]
        if row.attempts:
            return f"{row.name} has no {which} in run {projection.run.run_id}; it had {len(row.attempts)}"
        why = Board(projection).explain(row.name, session.now_us(), runner_of(projection.run, session.status))
        return f"{row.name} has not started in run {projection.run.run_id}: {why}"
    return f"no such task of run {projection.run.run_id} has an {which}"


async def _follow(session: LiveSession, projection: RunProjection, tasks: Sequence[_TaskOutput]) -> None:
    """Print new output after each batch of events; the session sends an empty batch each second."""
    while not all(task.is_over(projection) for task in tasks):
        try:
            batches = cast("AsyncGenerator[Sequence[Event]]", session.events(projection.seq))
            async with aclosing(batches):
                async for batch in batches:
                    for event in batch:
                        projection.apply(event)
                    for task in tasks:
                        await task.print_new(projection)
                    if all(task.is_over(projection) for task in tasks):
                        return
        except SnapshotNeeded:
            projection = await session.snapshot(projection.run.run_id)


@dataclass(eq=False)
class _TaskOutput:
    """The output of one task: of one attempt, or of the latest attempt and those that follow."""

    session: Session
    run_id: str
    task: str
    attempt: int | None
    printer: OutputPrinter
    tail: int | None  # the lines of the first stream that are wanted, from its end
    stream: OutputReader | None = None
    is_read: bool = False  # the stream was read after its attempt had ended

    def prefetch(self, projection: RunProjection) -> None:
        """Ask for what is printed first."""
        if (stream := self._next_stream(projection.tasks[self.task])) is not None:
            stream.prefetch()

    async def print_new(self, projection: RunProjection, lines_max: int | None = None) -> None:
        """Print output since the last call. ``lines_max``: only so many lines at the end of it."""
        row = projection.tasks[self.task]
        while (stream := self._next_stream(row)) is not None:
            attempt = row.attempts[stream.attempt]
            is_ended = attempt.outcome != "running"
            if attempt.output_bytes or not is_ended:  # nothing is read of what wrote nothing
                await self._print_stream(stream, is_ended, lines_max)
            self.is_read = is_ended
            if not is_ended:
                return
            self.printer.print_failure(row.name, row.attempts[stream.attempt])

    async def _print_stream(self, stream: OutputReader, is_ended: bool, lines_max: int | None) -> None:
        last: deque[OutputLine] = deque(maxlen=lines_max)
        async for line in stream.read_new(is_ended):
            last.append(line)
            if lines_max is None:
                self.printer.print(stream, [last.pop()])
        self.printer.print(stream, last)

    def _next_stream(self, row: TaskRow) -> OutputReader | None:
        """The stream to read now; None: there is nothing more to read."""
        if self.stream is None:
            wanted = self.attempt or max(row.attempts, default=None)
        elif not self.is_read:
            return self.stream
        else:
            wanted = min((number for number in row.attempts if number > self.stream.attempt), default=None)
            if self.attempt is not None:
                return None
        if wanted not in row.attempts:
            return None
        if self.stream is not None:
            echo(f"redrive: {one_line(self.task)}: attempt {wanted}", err=True)
        where = self.run_id, self.task, wanted
        assembler = Unchanged() if self.printer.is_raw else LineAssembler(longest=None)
        self.stream, self.is_read = OutputReader(self.session, *where, assembler, tail=self.tail), False
        self.tail = None
        return self.stream

    def is_over(self, projection: RunProjection) -> bool:
        """Whether the task writes nothing any more, unless an operator acts."""
        row = projection.tasks[self.task]
        if self.attempt is not None:
            return self.is_read
        is_stopped = projection.run.ended_at is not None or projection.run.blocked_since is not None
        return row.state in RESTING or (is_stopped and row.state is not TaskState.RUNNING)


class OutputPrinter:
    """Prints lines of output, of several tasks with the name of the task before each; failures go to stderr.

    ``is_raw``: prints the pieces of output as they were written.
    """

    def __init__(self, names: Sequence[str], as_json: bool, is_raw: bool = False) -> None:
        self.has_printed = False
        self._as_json = as_json
        self.is_raw = is_raw
        self._has_names = len(names) > 1
        self._cells = min(max((len(one_line(name)) for name in names), default=0), _NAME_CELLS_MAX)

    def print_failure(self, task: str, attempt: AttemptRow) -> None:
        """Print why an attempt failed, if it did: its output may be empty."""
        if attempt.outcome in FAILED_OUTCOMES and not self._as_json:  # a line of ``tasks --json`` has it
            word = OUTCOME_STYLES[attempt.outcome].word
            failure, error = failure_text(attempt), one_line((attempt.error or "").partition("\n")[0])
            said = (error,) if failure in error else (failure, added_message(failure, error))
            self.has_printed = True
            text = ": ".join(filter(None, (f"{task}: attempt {attempt.attempt} {word}", *said)))
            echo(f"redrive: {one_line(text)}", err=True)

    def print(self, stream: OutputReader, lines: Iterable[OutputLine]) -> None:
        for line in lines:
            self.has_printed = True
            if self._as_json:
                content = {"dropped_bytes": line.dropped_bytes} if line.dropped_bytes else {"text": line.text}
                place = {"run_id": stream.run_id, "task": stream.task, "attempt": stream.attempt, "at": line.at}
                echo_json(with_schema("logs", {**place, **content}))
            elif self.is_raw and not line.dropped_bytes:
                write_unchanged(line.text)
            else:
                prefix = f"{pad(one_line(stream.task), self._cells)} | " if self._has_names else ""
                gap = f"... {format_bytes(line.dropped_bytes)} dropped here ..."
                echo(prefix + (gap if line.dropped_bytes else line.text), err=self.is_raw)
