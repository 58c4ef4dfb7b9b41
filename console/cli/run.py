"""``redrive run``, ``exec`` and ``demo``: start an executor here or in its own process, and show its run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...engine.domain.text import advised, shell_command, shell_word
from ...engine.errors import AddressError, FlowError, NotRunError, RedriveError
from ...engine.executor.run_options import RunOptions
from ...engine.store.flow_path import follow_link, path_for_run, path_of_flow
from ..sessions.address import Endpoint, SshOptions, parse
from ..sessions.target import MACHINE, state_for_flow
from ..text.text import echo, is_remote
from .group import ExitCode, code_of_error, code_of_result, command
from .options import Number, param_option, params_of, running_options, seconds_of, written_option

if TYPE_CHECKING:  # importing the executor would delay the first frame
    from typing import TextIO

    from ...engine.executor.run_end import RunResult
    from .event_lines import EventPrinter
    from .passthrough import Passthrough


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The options of a command that starts an executor: of the run, and where and how its events are shown."""

    run: RunOptions
    state: str | None = None
    plain: bool = False
    output: bool = False
    quiet: bool = False
    detach: bool = False
    has_tour: bool = False  # in the console, the line of the demo's tour

    def options(self, *, resume: bool = False) -> RunOptions:
        """The options of the executor. Who names a flow file trusts it; a resumed run names none."""
        return replace(self.run, resume=resume, trust=self.run.trust or not resume)


def run_arguments(params: Mapping[str, object], **options: Any) -> RunArguments:
    """Sort the options of a command: those of RunArguments, and those of RunOptions."""
    own = {one.name: options.pop(one.name) for one in fields(RunArguments) if one.name in options}
    return RunArguments(RunOptions(params=params, **options), **own)


@command("run")
@click.argument("flow", metavar="PROGRAM")
@written_option
@click.option("--run-id", metavar="ID", help="Name of the run; an existing run is resumed.")
@param_option("A parameter of the flow; @FILE or - reads it.")
@click.option("--at", metavar="TIME", help="The day or time of the schedule that the run is for, as 2026-11-21.")
@click.option("--accept-changes", is_flag=True, help="As for resume, if the run exists.")
@running_options
def run_flow(flow: str, run_id: str | None, at: str | None, param: tuple[str, ...], **options: Any) -> int:
    """Of a file that makes several flows: PROGRAM:NAME."""
    if MACHINE.is_file(flow) and not os.path.exists(flow):
        again = advised("rerun", flow)
        raise FlowError(f"{flow!r} is a flow, and run takes a program, a Python file; to run the flow again: {again}")
    params = params_of(param)
    if at is not None:
        from .days import params_at

        params.update(params_at(flow, params, at))
    arguments = run_arguments(params, **options)
    state = state_for_flow(flow, arguments.run.params, arguments.state)
    return start_executor(flow, state, run_id, arguments)


def require_here(name: str, target: str) -> None:
    """Raise AddressError for a state file behind ssh, with where and how this command is typed."""
    if is_remote(target):
        address = parse(target)
        how = f"{SshOptions().login(address)} {shell_word(advised(name, address.path))}"
        raise AddressError(f"an executor runs on the machine of its state file; {name} it there: {how}")


@command("demo")
@written_option
@running_options
def run_demo(**options: Any) -> int:
    from ...engine import examples

    arguments = run_arguments({}, has_tour=True, **options)
    flow = str(Path(examples.__file__).with_name("demo.py"))
    state = arguments.state or path_of_flow("demo")
    return start_executor(flow, state, None, arguments)


class ExecutorStart(NamedTuple):
    """The start of an executor. ``flow`` None: that of the run; ``run_id`` None: a new one; ``on_lock``: called here
    behind the lock of the state file."""

    flow: str | None
    state: str
    run_id: str | None
    options: RunOptions
    on_lock: Callable[[], None] | None = None

    def run(self, **listeners: Any) -> RunResult:
        """Run the executor in this process."""
        from ...engine.executor.executor import Executor

        return Executor(**self._asdict(), handle_signals=True, **listeners).run_result()


def start_executor(
    flow: str | None, state: str, run_id: str | None, arguments: RunArguments, *, resume: bool = False
) -> int:
    """Start an executor: detached, with plain lines, or with the console."""
    start = ExecutorStart(flow, state, run_id, arguments.options(resume=resume))
    if arguments.detach:
        return detach(start)
    if arguments.quiet:
        return code_of_result(run_quietly(start))
    if arguments.plain or arguments.output or not has_terminal():
        return code_of_result(run_plain(start, output=arguments.output))
    from .attach import code_of_console, splash_screen

    with splash_screen(f"{Path(state).name} - starting ...") as tty:
        start = start._replace(options=replace(start.options, stay=True))
        if tty is None:
            return code_of_result(run_plain(start))
        from ..app import launch  # behind the first frame: it imports the engine

        end = launch.start(tty, flow, state, run_id, start.options, has_tour=arguments.has_tour)
        return code_of_console(end)


def has_terminal() -> bool:
    """Whether a person at a terminal sees what is shown."""
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def detach(start: ExecutorStart) -> int:
    from ...engine.executor import host

    pid = host.spawn(flow=start.flow, state=start.state, run_id=start.run_id, options=asdict(start.options))
    echo(f"executor {pid} runs; {advised('attach', start.state)}")
    return 0


def run_plain(start: ExecutorStart, *, output: bool = False) -> RunResult:
    """Run the executor in this process, and print one line per event; with ``output``, what the tasks print as well."""
    from .event_lines import EventPrinter

    printer = EventPrinter(sys.stdout, start.state)
    result = run_with_lines(printer, start, output=output)
    printer.write(other_runs_lines(start.state, result.run_id))
    return result


def run_with_lines(printer: EventPrinter, start: ExecutorStart, *, output: bool = False) -> RunResult:
    """Run the executor in this process with the lines of its events, the last one about the end."""
    result = start.run(on_events=printer.print_events, on_output=printer.print_output if output else None)
    if not printer.has_printed_end:
        printer.write([end_sentence(result, start.state)])
    return result


def run_quietly(start: ExecutorStart, *, report: TextIO | None = None, streams: Passthrough | None = None) -> RunResult:
    """Run the executor in this process; print a report unless the run has succeeded.

    ``report``: where to, if not on stdout; ``streams``: they have the output of the tasks, which the report leaves out.

    Raises:
        NotRunError: a stream did not take all of the output.
    """
    from .unattended import FailureRecord

    def write(lines: Iterable[str]) -> None:
        from .event_lines import EventPrinter  # here: most runs succeed, and have nothing to print

        EventPrinter(report or sys.stdout, start.state).write(lines)

    record = FailureRecord(start.state)
    try:
        try:
            result = start.run(on_events=record.add, streams=streams)
        finally:
            if streams is not None:
                streams.finish()
    except RedriveError:
        write(record.lines())  # the command prints the error itself
        raise
    if code_of_result(result) != ExitCode.SUCCESS:
        write(record.lines())
        from .failure_report import report_lines

        write(report_lines(os.path.abspath(start.state), result, has_output=streams is None))
    if streams is not None and streams.lacks_input:
        write(["redrive: the last attempt had no input, which the first one has read"])
    if streams is not None and streams.failure:
        raise NotRunError(streams.failure)
    return result


def other_runs_lines(state: str, run_id: str) -> list[str]:
    """The last line of a run in a file where other runs need a human; empty if none does, or if it cannot be read."""
    from ...engine.statefile.lists import ATTENTION_RUNS, query
    from ...engine.store import database

    with suppress(RedriveError):  # the run has ended as it has; the next command reports the file
        with database.reading(state) as connection:
            if all(row.run_id == run_id for row in query(connection, ATTENTION_RUNS, {})):
                return []
        from ..model.runs import waiting_runs  # here, because they take as long as a task
        from ..present.runs import waiting_sentence
        from ..sessions.once import with_session
        from ..sessions.session import Session

        async def read(session: Session) -> list[str]:
            waiting = waiting_runs(await session.rows(ATTENTION_RUNS), session.status, session.now_us(), run_id)
            return [f"{waiting_sentence(waiting)}: {advised('inbox', session.address)}"] if waiting else []

        return with_session(Endpoint(state), read)
    return []


def end_sentence(result: RunResult, state: str) -> str:
    """The last line for a run that was interrupted, or that had ended or was blocked before."""
    if result.interrupted:
        return f"run {result.run_id} interrupted; go on with: {advised('resume', state, result.run_id)}"
    if result.blocked:
        from ..text.event_text import line_of_blocked_run  # imports the engine, and would delay the first frame

        return line_of_blocked_run(result.run_id, result.why, result.asked, os.path.abspath(state))
    if result.late:
        go_on = advised("resume", state, result.run_id, ["--deadline", "1h"])
        return f"run {result.run_id} was ended by its deadline: {result.state}; go on with: {go_on}"
    return f"run {result.run_id} has ended already: {result.state}; requeue a task to go on with it"


# --- ``redrive exec``: a command as a flow of one task, for a line of cron -------------------------------------------
#
# The flow is a file beside the state file, so that ``resume``, ``requeue`` and the console handle its runs as any
# others.


@command("exec")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND [ARGUMENT]...", type=click.UNPROCESSED)
@click.option("--name", metavar="NAME", help="Of the flow. Default: the name of the script or program.")
@click.option("--timeout", metavar="DURATION", help="Kill the command after this time, as 1h: SIGTERM, then SIGKILL.")
@click.option(
    "--retry",
    "retries",
    type=Number(0, 100),
    default=0,
    metavar="N",
    help="Start it again at most N times, then without its input. Default: 0, because a command may not bear it.",
)
@click.option("--downstream", metavar="NAME", help="The system that it calls: its breaker and retry budget apply.")
@click.option("--page", "page_line", metavar="LINE", help="Gets the message, if a human is needed.")
@click.option("--ping", "ping_url", metavar="URL", help="Is requested at the start and at the end.")
@click.option("--state", metavar="FILE", help="The state file. Default: that of the flow.")
@click.option("--output", is_flag=True, help="Print the events and the output as lines, as on a terminal.")
@click.option("--log-only", is_flag=True, help="Leave the output of the command in the log, and nowhere else.")
@click.option("--wait", is_flag=True, help="Wait while another executor owns the state file, instead of exit code 75.")
def run_command(
    words: tuple[str, ...],
    name: str | None,
    timeout: str | None,
    retries: int,
    downstream: str | None,
    page_line: str | None,
    ping_url: str | None,
    state: str | None,
    output: bool,
    log_only: bool,
    wait: bool,
) -> int:
    """One COMMAND alone is a line of the shell; with arguments it is a program, and no shell reads them.

    It runs in this folder with these variables. Where stdout is no terminal, the input and the output of the command
    are those of this line, and the log has the output as well; with --retry, stdout gets that of the last attempt.
    Reports are on stderr. The exit code is that of the command: 124 after a timeout, 128 and the signal if one killed
    it, 126 if it cannot be started; 125 if it did not run, 75 if the last one runs still, 130 if it was interrupted.
    """
    from ...engine.core.spec import EXEC_SUFFIX  # it needs the engine

    here = os.getcwd()
    job = _job_line(words, here)
    try:
        is_named, name = name is not None, name or _name_of(words)
        options = {
            "cwd": here,
            "max_attempts": retries + 1,
            "timeout": None if timeout is None else seconds_of(timeout, "--timeout"),
            "downstream": downstream,
        }
        folder = os.path.dirname(path_for_run(state, lambda: name))
        file = Path(folder, os.path.basename(path_of_flow(name))).with_suffix(EXEC_SUFFIX)
        flow = follow_link(str(file))
        path = path_for_run(state, lambda: name, flow)
        is_other = not is_named and _is_of_other_job(file, job)
        text = _flow_text(name, job, words, options, page_line, ping_url)
        write = partial(_write_flow, file, text)  # behind the lock: the run that has it imports this file
        start = ExecutorStart(flow, path, None, RunOptions(trust=True, wait=wait, few_tasks=True), write)
        if output or (has_terminal() and sys.stdout.isatty() and not log_only):
            result = run_plain(start, output=True)
        else:
            from .passthrough import Passthrough

            streams = None if log_only else Passthrough(spools=retries > 0)
            result = run_quietly(start, report=sys.stderr, streams=streams)
    except RedriveError as error:
        if code_of_error(error) is ExitCode.BAD_USAGE:
            raise NotRunError(str(error)) from error
        raise
    if is_other:
        before = "another command, or in another folder, before"
        echo(f"redrive: {name!r} ran {before}; if these are two jobs, name each by --name", err=True)
    return _code_of_command(result, name, path)


def _code_of_command(result: RunResult, name: str, state: str) -> int:
    """The exit code of the command, as GNU timeout and env give it."""
    from ...engine.core.outcome import COMMAND_START_ERROR, OutcomeKind
    from ...engine.statefile.lists import HISTORY, query
    from ...engine.store import database

    code = code_of_result(result)
    if code in (ExitCode.SUCCESS, ExitCode.INTERRUPTED):
        return code
    with database.reading(state) as connection:
        attempts = query(connection, HISTORY, {"task": name, "limit": 1})
    if not attempts or attempts[0].run_id != result.run_id:
        return ExitCode.NOT_RUN
    attempt = attempts[0]
    if attempt.outcome == OutcomeKind.TIMED_OUT:
        return ExitCode.TIMED_OUT
    if attempt.error_type == COMMAND_START_ERROR:
        return ExitCode.NOT_STARTED
    return 128 + attempt.signal if attempt.signal else attempt.exit_code or ExitCode.NOT_RUN


def _name_of(words: tuple[str, ...]) -> str:
    """Return the name of the script, else that of the program. Raises FlowError if the line names none."""
    from .shell_line import name_of_line

    first = words[0].split()[:1] if len(words) == 1 else words[:1]
    name = name_of_line(_line_of(words)) or os.path.basename("".join(first))
    if not name:
        raise FlowError("the command names no program; give the run a name with --name")
    return name


def _line_of(words: tuple[str, ...]) -> str:
    from .shell_line import parse_shell_line

    return parse_shell_line(words[0] if len(words) == 1 else shell_command(words)).text


#: What differs from day to day in the words of one job: dates, times, seconds since 1970, names of days and months.
_DATE = (
    r"(?:19|20)\d\d[-_./]?(?:0[1-9]|1[0-2]|W[0-5]\d)(?:[-_./]?[0-3]?\d)?"
    r"|[0-3]?\d[-./][0-3]?\d[-./](?:19|20)\d\d"
)
_TIME = r"[0-2]\d[:.]?[0-5]\d(?:[:.]?[0-5]\d)?"
_DAYS = "mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:tember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
_DATED = re.compile(
    rf"(?<!\d)(?:(?:{_DATE})(?:[T _-]?{_TIME}Z?)?|[0-2]?\d:[0-5]\d(?::[0-5]\d)?|1\d{{9}}(?:\d{{3}})?)(?!\d)"
    rf"|(?<![a-z])(?:{_DAYS}|{_MONTHS})(?![a-z])",
    re.IGNORECASE,
)


_JOB = "# Runs "


def _job_line(words: tuple[str, ...], folder: str) -> str:
    """The comment of a flow file that says what it runs, and where: the same each day of a job with a date."""
    return _DATED.sub("<date>", f"{_JOB}{list(words)!r} in {folder!r}")


def _is_of_other_job(file: Path, job: str) -> bool:
    """Whether a flow file is that of another job, which a requeue would run no more."""
    from .flow_text import text_of

    found = [line for line in (text_of(file) or "").splitlines() if line.startswith(_JOB)]
    return found not in ([], [job])


def _flow_text(
    name: str, job: str, words: Sequence[str], options: Mapping[str, object], page: str | None, ping: str | None
) -> str:
    from .flow_text import call_text, file_text

    calls = [call_text("flow = Flow", [name], {})]
    calls += [call_text("flow.page", ["command"], {"line": page})] if page else []
    calls += [call_text("flow.ping", [ping], {})] if ping else []
    calls.append(call_text("flow.command", [name, words[0] if len(words) == 1 else [*words]], options))
    return file_text([_HEAD, job], calls)


def _write_flow(path: Path, text: str) -> None:
    """Write the flow file of a command, all of it at once. Raises RedriveError."""
    from .flow_text import text_of

    draft = path.with_suffix(f".{os.getpid()}")
    try:
        if text_of(path) != text:
            draft.touch(0o600)  # it is code that this user runs again
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RedriveError(f"{path} cannot be written: {error.strerror}; choose another place with --state") from None


_HEAD = "# Written by `redrive exec`, which writes it anew when its command changes."
