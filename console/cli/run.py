"""``redrive run``, ``resume``, ``demo`` and ``attach``: start an executor here or in its own process, and show it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...engine.agent.command_client import send_blocking
from ...engine.core.projection import RunProjection, RunRow
from ...engine.domain.acts import Answer, Target
from ...engine.domain.event_payloads import RunChange, RunChanged, TaskMoved
from ...engine.domain.events import Event
from ...engine.domain.states import ENDED_BADLY, TIMED, RunState
from ...engine.errors import (
    AddressError,
    FlowChangesError,
    FlowError,
    NotFoundError,
    RedriveError,
    RefusedError,
    UntrustedFlowError,
)
from ...engine.executor.executor import Executor
from ...engine.executor.run_end import RunResult
from ...engine.executor.run_options import RunOptions
from ...engine.statefile.lists import ATTENTION_RUNS, QUARANTINE, query
from ...engine.store import database
from ...engine.store.flow_path import path_of_flow
from ..feed.live_run import load_memories
from ..feed.reads import OutputStream
from ..keys.actions import shell_line
from ..model.inbox import Inbox, InboxCause
from ..present.runs import deadline_note
from ..sessions.address import Endpoint
from ..sessions.open import with_session
from ..sessions.session import Session, SessionStatus, new_command
from ..sessions.target import is_remote, state_for_flow
from ..text.text import echo, echo_lines, one_line
from .event_lines import EventPrinter, lines_of_event
from .listings import cause_lines, load_board
from .main import ExitCode, code_of_answers, code_of_run
from .operate import ActPlace, ActRequest, place_of, postpone_options_of, print_answer, send_action

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan
    from ..app.app import ConsoleEnd
    from .options import NamedFile


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The options of a command that starts an executor: of the run, and where and how its events are shown."""

    run: RunOptions
    state: str | None = None
    plain: bool = False
    output: bool = False
    quiet: bool = False
    detach: bool = False

    def options(self, *, stay: bool = False, resume: bool = False) -> RunOptions:
        """The options of the executor. Who names a flow file trusts it; a resumed run names none."""
        run = self.run
        return replace(run, stay=stay or run.stay, resume=resume, trust=run.trust or not resume)


def run_arguments(params: Mapping[str, object], **options: Any) -> RunArguments:
    """Sort the options of a command: those of RunArguments, and those of RunOptions."""
    names = {one.name for one in fields(RunArguments)}
    own = {name: options.pop(name) for name in names & options.keys()}
    return RunArguments(RunOptions(params=params, **options), **own)


def run_flow(flow: str, run_id: str | None, arguments: RunArguments) -> int:
    """Run a flow file: in the console, as plain lines, or detached."""
    state = state_for_flow(flow, arguments.run.params, arguments.state)
    return start_executor(flow, state, run_id, arguments)


def remote_resume_hint(target: str) -> str:
    """Return where and how a run behind ssh is resumed."""
    from ..sessions.address import parse

    address = parse(target)
    there = shlex.join(["redrive", "resume", *([address.path] if address.path else [])])
    return f"an executor runs on the machine of its state file; resume it there: {address.login} {shlex.quote(there)}"


def run_demo(arguments: RunArguments) -> int:
    """Run the built-in flow; without a terminal with a scripted operator, whose success is the exit code.

    With ``--detach`` or ``--stay`` only the user acts.
    """
    from ...engine import examples

    flow = str(Path(examples.__file__).with_name("demo.py"))
    state = arguments.state or path_of_flow("demo")
    if (arguments.plain or not _has_terminal()) and not (arguments.detach or arguments.run.stay):
        return run_scripted(flow, state, arguments.options(stay=True))
    return start_executor(flow, state, None, arguments)


def start_executor(
    flow: str | None, state: str, run_id: str | None, arguments: RunArguments, *, resume: bool = False
) -> int:
    """Start an executor: detached, with plain lines, or with the console."""
    if arguments.detach:
        return _detach(flow, state, run_id, arguments.options(resume=resume))
    if arguments.quiet:
        return run_quietly(flow, state, run_id, arguments.options(resume=resume))
    if arguments.plain or arguments.output or not _has_terminal():
        return run_plain(flow, state, run_id, arguments.options(resume=resume), output=arguments.output)
    from ..app.startup import show_run, splash_screen

    with splash_screen(f"{Path(state).name} - starting ...") as hold:
        options = arguments.options(resume=resume, stay=True)
        if hold is None:
            return run_plain(flow, state, run_id, options)
        return code_of_console(show_run(hold, flow, state, run_id, options))


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _detach(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> int:
    from ...engine.executor import host

    settings = asdict(options)
    params = settings.pop("params")
    pid = host.spawn(flow=flow, state=state, run_id=run_id, params=params, options=settings)
    echo(f"executor {pid} runs; redrive attach {state}")
    return 0


def run_plain(flow: str | None, state: str, run_id: str | None, options: RunOptions, *, output: bool = False) -> int:
    """Run the executor in this process, and print one line per event; with ``output``, what the tasks print as well."""
    printer = EventPrinter(sys.stdout, state)
    executor = Executor(
        run_id=run_id,
        flow=flow,
        state=state,
        options=options,
        on_events=printer.print_events,
        on_output=printer.print_output if output else None,
        handle_signals=True,
    )
    result = executor.run_result()
    if not printer.has_printed_end:
        printer.write(f"{end_sentence(result, state)}\n")
    printer.write("".join(f"{line}\n" for line in other_runs_lines(state, result.run_id)))
    return exit_code(result)


def other_runs_lines(state: str, run_id: str) -> list[str]:
    """The last line of a run in a file where other runs need a human; empty if none does, or if it cannot be read."""
    from ..model.runs import waiting_runs
    from ..present.runs import waiting_sentence

    async def read(session: Session) -> list[str]:
        waiting = waiting_runs(await session.query(ATTENTION_RUNS), session.status, time.time_ns() // 1000, run_id)
        command = shlex.join(["redrive", "inbox", session.address])
        return [f"{waiting_sentence(waiting)}: {command}"] if waiting else []

    try:
        return with_session(Endpoint(state), read)
    except RedriveError:
        return []  # the run has ended as it has; the next command reports the file


def end_sentence(result: RunResult, state: str) -> str:
    """The last line for a run that was interrupted, or that had ended or was blocked before."""
    if result.interrupted:
        return f"run {result.run_id} interrupted; go on with: {_command('resume', state, result.run_id)}"
    if result.blocked:
        return f"run {result.run_id} is BLOCKED and waits for a human: {_command('inbox', state, result.run_id)}"
    if result.late:
        go_on = shlex.join(("redrive", "resume", state, "--run", result.run_id, "--deadline", "1h"))
        return f"run {result.run_id} was ended by its deadline: {result.state}; go on with: {go_on}"
    return f"run {result.run_id} has ended already: {result.state}; requeue a task to go on with it"


def _command(name: str, state: str, run_id: str) -> str:
    return shlex.join(("redrive", name, state, "--run", run_id))


def exit_code(result: RunResult) -> int:
    """The exit code of a run whose executor was this process."""
    return code_of_run(result.run_state, interrupted=result.interrupted, blocked=result.blocked)


# --- ``redrive attach``: shows a run of another process --------------------------------------------------------------
#
# The first frame waits for what this module imports: the rest is imported where it is used.


def attach_console(file: NamedFile, run_id: str | None, *, read_only: bool) -> int:
    """Open the console on a state file of another process; without a terminal print its tasks.

    If no file is named, of a machine with several files the console shows the list.
    """
    from ..app.startup import show_fleet, show_target
    from ..sessions.target import is_one_file
    from ..terminal.capabilities import detect_capabilities

    terminal = detect_capabilities()
    reason = terminal.unsupported_reason
    fleet = None
    if reason is None and run_id is None and not is_one_file(file.name):
        from .state_files import fleet_of  # imports asyncio, and would delay the first frame

        fleet = fleet_of(file.name, file.ssh)
    if fleet is not None:
        return code_of_console(show_fleet(terminal, fleet, file.ssh, read_only=read_only))
    endpoint = file.to_read()
    if is_remote(endpoint.target):
        from .state_files import choose_file

        endpoint = endpoint._replace(target=choose_file(endpoint))
    if reason is not None:
        return _attach_plain(endpoint, run_id, reason)
    return code_of_console(show_target(terminal, endpoint, run_id, read_only=read_only))


def _attach_plain(endpoint: Endpoint, run_id: str | None, because: str) -> int:
    from .listings import print_tasks

    code = print_tasks(endpoint, run_id, False)
    echo(f"redrive: {because}: the tasks as they are now; `redrive events --follow` goes on", err=True)
    return code


def code_of_console(end: ConsoleEnd) -> int:
    """The exit code of a console: that of the run that it started; 0 if it started none."""
    run = end.started_run
    if end.return_code or run is None:
        return end.return_code
    goes_on = run.state is RunState.RUNNING
    blocked = goes_on and run.blocked_since is not None
    return code_of_run(run.state, interrupted=goes_on and end.is_stopping, blocked=blocked)


# --- ``redrive demo`` without a terminal: runs the flow with a scripted operator, and checks the result --------------
#
# The script sends commands to the executor, as a person would: it requeues the poisoned task and the quarantined rows,
# whose data is fixed by then, and skips the task without access.


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


# --- ``redrive run --quiet`` -----------------------------------------------------------------------------------------
#
# ``redrive run --quiet``, for cron: silent if the run succeeds, else everything that the mail should say.
#
# The report: the lines of the tasks with problems, with dates; each cause, with the end of the output of its first
# task; the commands to type.


LINES_MAX = 2000  # the latest ones, of tasks with problems and of the run itself
CAUSES_MAX = 10  # the others are counted
CAUSE_LINES_MAX = 12
OUTPUT_LINES = 20  # at the end of a task's output

_PROBLEMS = ENDED_BADLY | TIMED


def run_quietly(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> int:
    """Run the executor in this process; print a report unless the exit code is 0."""
    record = FailureRecord(state)
    printer = EventPrinter(sys.stdout, state)
    executor = Executor(
        run_id=run_id, flow=flow, state=state, options=options, on_events=record.add, handle_signals=True
    )
    try:
        result = executor.run_result()
    except RedriveError:
        _print_record(printer, record.lines())  # the command prints the error itself
        raise
    code = code_of_run(result.run_state, interrupted=result.interrupted, blocked=result.blocked)
    if code != ExitCode.SUCCESS:
        _print_record(printer, record.lines())
        path = os.path.abspath(state)  # the reader of the mail is in another folder
        _print_record(printer, with_session(Endpoint(path), lambda session: _report(session, path, result)))
    return code


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


async def _report(session: Session, state: str, result: RunResult) -> list[str]:
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
        about = list(cause_lines(cause, projection, known.get(cause.key)))
        hidden = len(about) - CAUSE_LINES_MAX
        lines += ["", *about[:CAUSE_LINES_MAX], *([f"  ... {hidden} more lines"] if hidden > 0 else [])]
        lines += [f"  {cause.tasks[0]} | {text}" for text in await _output_end(session, projection, cause.tasks[0])]
        lines += [f"  {line}" for line in _commands(cause, state, result.run_id)]
    if len(causes) > CAUSES_MAX:
        lines += ["", f"{len(causes) - CAUSES_MAX} more causes: {_command('inbox', state, result.run_id)}"]
    return [*lines, "", _command("attach", state, result.run_id)]


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


def _commands(cause: InboxCause, state: str, run_id: str) -> Iterator[str]:
    yield shlex.join(("redrive", "logs", "--state", state, "--run", run_id, "--", cause.tasks[0]))
    for act, reason in (("requeue", "after a fix"), ("skip", "accepted")):
        line = shell_line(act, state, run_id, cause.tasks, reason)
        if line is not None:
            yield line


# --- ``redrive resume``, ``rerun``, ``stop`` and ``reload``: the executor of a state file ----------------------------
#
# ``resume`` says which code it runs and how the flow differs from the run, then starts the executor.


def resume_run(state: str, run_id: str | None, arguments: RunArguments, deadline: str | None = None) -> int:
    """Resume an unfinished run, with the flow file that the state file names.

    ``deadline``: the new one, as ``postpone`` takes it; None: the deadline stays.
    """
    if is_remote(state):
        raise AddressError(remote_resume_hint(state))
    if not arguments.run.wait:
        from ...engine.store.lock import require_free

        require_free(state)
    if deadline is not None:
        postponed = ActRequest("postpone", run_id=run_id, options=postpone_options_of(deadline))
        code = send_action(Endpoint(state), postponed, as_json=False, hints=False)
        if code != ExitCode.SUCCESS:
            return code
    plan = _plan(state, run_id, arguments.run)
    _print_plan([f"resumes {plan.run_id}", *plan.code_lines(), *plan.difference_lines()])
    if plan.doubts:
        from ...engine.executor.resume_plan import refusal

        why = refusal(plan.flow_path, plan.doubts)
        if not _is_accepted("; ".join(plan.doubts), "Run this code?"):
            raise UntrustedFlowError(why)
        arguments = _with_options(arguments, trust=True)
        plan = _plan(state, plan.run_id, arguments.run)
        _print_plan(plan.difference_lines())
    if plan.difference is not None and plan.needs_acceptance and not arguments.run.accept_changes:
        from ...engine.core.flow_difference import refusal as refusal_of_changes

        why = refusal_of_changes(plan.run_id, plan.difference)
        if not _is_accepted(why, "Resume with these changes?"):
            raise FlowChangesError(why, plan.run_id)
        arguments = _with_options(arguments, accept_changes=True)
    return start_executor(None, state, plan.run_id, arguments, resume=True)


def rerun_run(state: str, run_id: str, arguments: RunArguments) -> int:
    """Start a new run with the flow file, the parameters and the logical time of an ended run."""
    from ...engine.executor.resume_plan import check_trust
    from ...engine.store import runs

    if is_remote(state):
        raise AddressError("an executor runs on the machine of its state file; log in there to run it again")
    with database.reading(state) as connection:
        source = runs.find_source(connection, run_id)
    if source is None:
        raise NotFoundError(f"there is no run {run_id!r} in {state}; see redrive runs")
    if not source.has_ended:
        raise RefusedError(f"run {run_id!r} has not ended: resume it, or abandon it first")
    if source.flow_path is None:
        raise FlowError(f"run {run_id!r} was started by a program, not from a flow file; start that program again")
    if not arguments.run.trust:
        check_trust(source, state)
    if source.logical_time is not None:
        arguments = _with_options(arguments, logical_time=source.logical_time, replaced_run=run_id)
    new_id = None if source.logical_time is None else run_id  # gets a number
    arguments = _with_options(arguments, params={**source.params, **arguments.run.params})
    return start_executor(source.flow_path, state, new_id, arguments)


def _with_options(arguments: RunArguments, **changes: Any) -> RunArguments:
    return replace(arguments, run=replace(arguments.run, **changes))


def _plan(state: str, run_id: str | None, options: RunOptions) -> ResumePlan:
    from ...engine.executor.resume_plan import plan_resume

    return asyncio.run(plan_resume(state, run_id, options.params, trusted=options.trust))


def _print_plan(lines: Iterable[str]) -> None:
    echo_lines(map(one_line, lines), err=True)


def _is_accepted(why: str, question: str) -> bool:
    """Ask on a terminal. Without a terminal the changes are not accepted."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    echo(one_line(why), err=True)
    return click.confirm(question, err=True)


# --- The living executor --------------------------------------------------------------------------------------------


def stop_executor(endpoint: Endpoint, *, drain: bool, wait: bool, reason: str, as_json: bool) -> int:
    """Stop the executor; with ``wait`` return when it is gone. Exit code 1 if none is alive."""

    async def use(session: Session) -> tuple[Answer, ActPlace, SessionStatus]:
        answer, place = await _send(session, "stop", {"how": "drain" if drain else "now"}, reason)
        status = session.status
        if answer.ok and wait:
            await _wait_until_gone(session, status.executor_pid)
            answer = answer._replace(message="stopped: no executor runs this file; its runs can be resumed")
        return answer, place, status

    answer, place, before = with_session(endpoint, use)
    print_answer(answer, as_json, place)
    if before.service_pid is not None:
        sentence = (
            f"redrive serve (pid {before.service_pid}) goes on with its schedule; kill {before.service_pid} ends it"
        )
        echo(sentence, err=True)
    return code_of_answers(answer)


def reload_code(endpoint: Endpoint, *, reason: str, as_json: bool) -> int:
    """Have the executor load changed source files. Exit code 1 if it cannot."""

    async def use(session: Session) -> tuple[Answer, ActPlace]:
        return await _send(session, "reload", {}, reason)

    answer, place = with_session(endpoint, use)
    print_answer(answer, as_json, place)
    return ExitCode.SUCCESS if answer.ok else ExitCode.FAILED


async def _send(session: Session, act: str, options: dict[str, str], reason: str) -> tuple[Answer, ActPlace]:
    """Send an act about the run that the executor runs."""
    run = (await session.snapshot(session.status.executor_run_id)).run
    command = new_command(act, run.run_id, (), reason, options)
    return await session.send(command), place_of(session, run)


async def _wait_until_gone(session: Session, pid: int | None) -> None:
    """Wait until this executor is gone; a service may start another one."""
    since = (await session.snapshot()).seq
    async for _ in session.events(since):
        if not session.status.executor_alive or session.status.executor_pid != pid:
            return
