"""Runs in this process that nobody watches: ``redrive run --quiet``, for cron, and ``redrive demo`` without a terminal.

A quiet run is silent if it succeeds; else it prints everything that the mail should say: the lines of the tasks with
problems, with dates; each cause, with the end of the output of its first task; the commands to type.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from ...engine.agent.command_client import send_blocking
from ...engine.core.projection import RunProjection, RunRow
from ...engine.core.waiting import waits_for_approval
from ...engine.domain.acts import Target
from ...engine.domain.event_payloads import RunChange, RunChanged, TaskMoved
from ...engine.domain.events import Event
from ...engine.domain.states import ENDED_BADLY, NEEDS_HUMAN, TIMED, RunState
from ...engine.domain.text import place_words, shell_command
from ...engine.errors import NotRunError, RedriveError
from ...engine.executor.executor import Executor
from ...engine.executor.run_end import RunResult
from ...engine.executor.run_options import RunOptions
from ...engine.statefile.lists import QUARANTINE, query
from ...engine.store import database
from ..keys.actions import shell_line
from ..model.inbox import Inbox, InboxCause
from ..present.runs import deadline_note
from ..sessions.address import Endpoint
from ..sessions.once import with_session
from ..sessions.reads import OutputStream, load_memories
from ..sessions.session import Session, new_command
from ..text.event_text import lines_of_event
from ..text.pieces import plain
from ..text.text import one_line
from .event_lines import EventPrinter
from .group import ExitCode, code_of_result, command_line
from .listings import cause_lines, load_board
from .passthrough import Passthrough

LINES_MAX = 2000  # the latest ones, of tasks with problems and of the run itself
CAUSES_MAX = 10  # the others are counted
CAUSE_LINES_MAX = 12
OUTPUT_LINES = 20  # at the end of a task's output

_PROBLEMS = ENDED_BADLY | TIMED


def run_quietly(
    flow: str | None,
    state: str,
    run_id: str | None,
    options: RunOptions,
    *,
    report: TextIO | None = None,
    streams: Passthrough | None = None,
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
        path = os.path.abspath(state)  # the reader of the mail is in another folder
        has_output = streams is None
        lines = with_session(Endpoint(path), lambda session: _report(session, path, result, has_output=has_output))
        _print_record(printer, lines)
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


async def _report(session: Session, state: str, result: RunResult, *, has_output: bool) -> list[str]:
    """The causes, and the commands that show the run and decide about it."""
    projection = await session.snapshot(result.run_id)
    causes = Inbox(await load_board(session, projection)).causes()
    known = await load_memories(session, result.run_id, causes[:CAUSES_MAX])
    lines = [
        "",
        f"run {one_line(result.run_id)} of {one_line(projection.run.dag_name)}: {_state_text(result, projection.run)},"
        f" in {state}",
    ]
    for cause in causes[:CAUSES_MAX]:
        about = [plain(line) for line in cause_lines(cause, projection, known.get(cause.key), session.now_us())]
        hidden = len(about) - CAUSE_LINES_MAX
        lines += ["", *about[:CAUSE_LINES_MAX], *([f"  ... {hidden} more lines"] if hidden > 0 else [])]
        if has_output:
            lines += [f"  {cause.tasks[0]} | {text}" for text in await _output_end(session, projection, cause.tasks[0])]
        lines += [f"  {line}" for line in _commands(cause, projection, state, result.run_id)]
    if len(causes) > CAUSES_MAX:
        lines += ["", f"{len(causes) - CAUSES_MAX} more causes: {command_line('inbox', state, result.run_id)}"]
    return [*lines, "", command_line("attach", state, result.run_id)]


def _state_text(result: RunResult, run: RunRow) -> str:
    return "interrupted" if result.interrupted else f"{result.state}{deadline_note(run)}"


async def _output_end(session: Session, projection: RunProjection, name: str) -> list[str]:
    """The last lines of the latest attempt of a task."""
    attempt = max(projection.tasks[name].attempts, default=None)
    if attempt is None:
        return []
    lines: deque[str] = deque(maxlen=OUTPUT_LINES)
    async for line in OutputStream(session, projection.run.run_id, name, attempt).read_new(is_ended=True):
        if not line.dropped_bytes:
            lines.append(line.text)
    return list(lines)


def _commands(cause: InboxCause, projection: RunProjection, state: str, run_id: str) -> Iterator[str]:
    """The commands that decide about a cause; of another wait, as of a pause, its message names the command."""
    row = projection.tasks[cause.tasks[0]]
    if row.attempts:
        yield shell_command(("redrive", "logs", *place_words(state, run_id), "--", row.name))
    decided = (("requeue", "after a fix"), ("skip", "accepted")) if row.state in NEEDS_HUMAN else ()
    answers = (("approve", "as it should be"), ("reject", "not as it should be")) if waits_for_approval(row) else ()
    for act, reason in (*decided, *answers):
        line = shell_line(act, state, run_id, cause.tasks, reason)
        if line is not None:
            yield line


# --- ``redrive demo`` without a terminal: a scripted operator, who acts as a person would ----------------------------
#
# The script sends commands to the executor: it requeues the poisoned task and the quarantined rows, whose data is fixed
# by then, and skips the task without access.


#: The acts when the run is blocked: act, task, expected state, reason.
SCRIPT = (
    ("requeue-rows", "import_customers", "SUCCESS", "the countries are filled in now"),
    ("requeue", "settle", "DEAD_LETTER", "the payments of today are loaded"),
    ("skip", "fetch_invoices", "DEAD_LETTER", "partner gives no access before Monday"),
)


def run_scripted(flow: str, state: str, options: RunOptions) -> int:
    """Run the demo with a scripted operator. Exit code 0 if the run ends as expected."""
    operator = ScriptedOperator(state)
    executor = Executor(flow=flow, state=state, options=options, on_events=operator.on_events, handle_signals=True)
    result = executor.run_result()
    return 0 if result.run_state is RunState.PARTIAL and not operator.refused else 1


class ScriptedOperator:
    """Prints like ``--plain``, and acts once the run is blocked."""

    def __init__(self, state: str) -> None:
        self.refused: list[str] = []
        self._state = state
        self._printer = EventPrinter(sys.stdout)
        self._acting: asyncio.Task[None] | None = None

    def on_events(self, events: Sequence[Event]) -> None:
        """Print events, and start to act when the run is blocked."""
        self._printer.print_events(events)
        for event in events:
            is_blocked = isinstance(event.payload, RunChanged) and event.payload.what == RunChange.BLOCKED
            if is_blocked and self._acting is None:
                self._acting = asyncio.get_running_loop().create_task(self._act(str(event.run_id)))

    async def _act(self, run_id: str) -> None:
        for act, task, state, reason in SCRIPT:
            options = {"rows": self._held_rows(run_id)} if act == "requeue-rows" else {}
            seen = (Target(task, state, 0),)
            command = new_command(act, run_id, seen, reason, options)
            answer = await asyncio.to_thread(send_blocking, self._state, command)
            if not answer.ok:
                self.refused.append(answer.message)

    def _held_rows(self, run_id: str) -> list[int]:
        """The ids of held rows, read from the state file."""
        with database.reading(self._state) as connection:
            rows = query(connection, QUARANTINE, {"run_id": run_id})
        return [row.id for row in rows if row.state == "held"]
