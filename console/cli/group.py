"""The group of all commands, by purpose; what they have in common: their help, and their exit codes.

The group imports the module of a command when the command is asked for: ``--help`` imports none of them.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, NamedTuple

import click
from click.shell_completion import CompletionItem

from ... import __version__
from ...engine import errors
from ...engine.domain.text import shell_command

if TYPE_CHECKING:
    from ...engine.domain.acts import Answer
    from ...engine.executor.run_end import RunResult


STDOUT = 1


def discard_output(descriptor: int = STDOUT) -> None:
    """Send what is still written to a stream nowhere: flushing the rest of its buffer would fail again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


class ListedCommand(NamedTuple):
    """A command as ``redrive --help`` lists it, and the module of its function, which is imported for that command."""

    name: str
    module: str
    summary: str


#: What a person wants -> the commands for it, the most used first. The help of a command begins with its summary, which
#: has one line of 80 columns here.
SECTIONS: dict[str, tuple[ListedCommand, ...]] = {
    "Start a run, go on with one": (
        ListedCommand("demo", "run", "A built-in flow with every failure mode"),
        ListedCommand("run", "run", "Run PROGRAM: a Python file or a module"),
        ListedCommand("exec", "run", "Run one command with history, retries, timeout and inbox"),
        ListedCommand("resume", "executor", "Start an executor for an unfinished run"),
        ListedCommand("rerun", "executor", "Start a new run with the parameters of one that has ended"),
        ListedCommand("stop", "executor", "Stop the executor in order; resume goes on with its run"),
        ListedCommand("reload", "executor", "Load changed source files of the flow into a living executor"),
    ),
    "See what needs you, and why": (
        ListedCommand("inbox", "needs", "What needs a human: on this machine, on hosts, or in FLOW"),
        ListedCommand("attach", "attach", "Open the console on a state file, here or over ssh"),
        ListedCommand("tasks", "listings", "The tasks of a run"),
        ListedCommand("why", "listings", "Why a task does not run, down to what holds it in the end"),
        ListedCommand("logs", "logs", "The output of tasks"),
        ListedCommand("systems", "systems", "Breakers, pages, quarantined rows and pools around a run"),
        ListedCommand("fleet", "listings", "All state files of this machine or of hosts, one a line"),
    ),
    "See what happened, and show it": (
        ListedCommand("runs", "listings", "Every run of a state file; every task in the last 40 runs of a flow"),
        ListedCommand("events", "events", "All events, in order"),
        ListedCommand("replay", "events", "A run as it was at some time"),
        ListedCommand("report", "report", "A run as one HTML file to post, or in a few lines"),
    ),
    "Decide about tasks": (
        ListedCommand("requeue", "acts", "Run tasks again, with a fresh budget"),
        ListedCommand("skip", "acts", "Accept failures: the children run without these tasks"),
        ListedCommand("approve", "acts", "Approve what waits for an approval: what depends on it runs"),
        ListedCommand("reject", "acts", "Reject what waits for an approval: it fails, and is not tried again"),
        ListedCommand("cancel", "acts", "Stop tasks: a running attempt is ended by SIGTERM, grace, SIGKILL"),
        ListedCommand("extend", "acts", "Give running attempts more time before their timeout"),
    ),
    "Decide about a run": (
        ListedCommand("pause", "acts", "Start no more tasks; running tasks continue"),
        ListedCommand("unpause", "acts", "Start tasks again"),
        ListedCommand("postpone", "acts", "Give a run another deadline: in 1h, at 06:00, or never"),
        ListedCommand("abandon", "acts", "End unfinished runs for good: what has not ended is cancelled"),
        ListedCommand("ack", "acts", "Acknowledge runs that ended badly or late"),
        ListedCommand("undo", "acts", "Take back the last act that can be taken back"),
        ListedCommand("note", "acts", "Write a note on a cause for the next operator who is paged"),
    ),
    "Let a schedule start runs": (
        ListedCommand("serve", "serve", "Start the runs of flows when their schedules say so"),
        ListedCommand("schedule", "schedule", "The schedules of this machine: pause, skip, start, next runs"),
        ListedCommand("backfill", "serve", "Run PROGRAM for scheduled times that have no run, the oldest first"),
        ListedCommand("import", "importing", "Write flows for a crontab, timers of systemd, or a DAG of dagu"),
    ),
    "Write a flow": (
        ListedCommand("new", "check", "Write a first flow that runs, to a new file"),
        ListedCommand("check", "check", "Validate flows without running them"),
        ListedCommand("rehearse", "rehearse", "Play PROGRAM with faults in virtual time: no task runs"),
        ListedCommand("backoff", "lab", "Every wait of a retry policy, their sums and their spread"),
        ListedCommand("simulate", "lab", "The load of retry policies on one server, or on one row"),
    ),
    "Care for the machine": (
        ListedCommand("doctor", "maintenance", "Check versions, locks, integrity, and the isolation of this machine"),
        ListedCommand("prune", "maintenance", "Delete ended runs with their output, and give the space back"),
        ListedCommand("metrics", "metrics", "The state of this machine for Prometheus"),
    ),
    "Learn": (
        ListedCommand("help", "help", "Print a page of the manual, or its topics"),
        ListedCommand("completion", "completion", "Print the script that completes commands, flows, runs and tasks"),
    ),
}
_LISTED = {one.name: one for section in SECTIONS.values() for one in section}

#: Words that other tools have for these commands.
WORDS_OF_OTHER_TOOLS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("list", "ls", "status", "flows", "dags", "ps"), ("fleet", "tasks")),
    **dict.fromkeys(("ui", "show", "open", "top", "graph"), ("attach",)),
    **dict.fromkeys(("start", "trigger", "execute"), ("run", "schedule start")),
    **dict.fromkeys(("retry", "clear", "restart"), ("requeue",)),
    **dict.fromkeys(("kill", "terminate"), ("cancel", "stop")),
    **dict.fromkeys(("delete", "rm", "clean"), ("prune", "abandon")),
    **dict.fromkeys(("log", "tail"), ("logs",)),
    **dict.fromkeys(("test", "dry-run"), ("check", "rehearse")),
    **dict.fromkeys(("init", "create"), ("new",)),
    **dict.fromkeys(("scheduler", "daemon", "agent"), ("serve",)),
    **dict.fromkeys(("mark-success",), ("skip",)),
}

#: Commands that others have taken over -> the words that stand for them. They go on working, with a line on stderr.
MOVED: dict[str, tuple[str, ...]] = {
    "breakers": ("systems", "breakers"),
    "pages": ("systems", "pages"),
    "pools": ("systems", "pools"),
    "quarantine": ("systems", "rows"),
}

#: Commands that there were -> what does their work now.
GONE: dict[str, str] = {
    "costs": "redrive report",
    "classify": "redrive check",
    "history": "redrive runs --tasks",
    "summary": "redrive report --short",
    "trace": "redrive tasks --json",
}

GRAMMAR = (
    "Readings and acts take [FLOW[@RUN]] [TASK]...; run, check, rehearse and backfill a PROGRAM (a Python file).",
    "FLOW is the name of a flow, a state file or ssh://[user@]host[:port]/path; left out: $REDRIVE_STATE, else the"
    " state file with something to do and the latest run. An act then wants FLOW if several could be meant.",
    "@-1 is the run before the latest; @RUN also the beginning of its name or of its logical day: revenue@2026-04-25.",
)
EXIT_CODES_HELP = (
    "run, resume and backfill exit with 0 success, 1 failed, 2 bad usage or flow, 3 partial or waiting for a human,"
    " 75 another executor owns the state file, 130 interrupted; serve with 0 after a stop."
)


_SENTENCE_CHARACTERS = 1000  # of a help; a longer one is cut

#: The last options in the help of a command, in this order: those that reach a host, and the help itself.
_LAST_OPTIONS = ("--python", "--ssh-option", "--become", "--help")


class OrderedCommand(click.Command):
    """A command whose own options come first in its help."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters in the order of the help."""
        place = {name: number for number, name in enumerate(_LAST_OPTIONS)}
        return sorted(super().get_params(ctx), key=lambda one: place.get(one.opts[-1], -1))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a line. An option that does not exist is refused with those that are meant and that the help has."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hidden = {name for one in self.params if isinstance(one, click.Option) and one.hidden for name in one.opts}
            shown = [one for one in error.possibilities or () if one not in hidden]
            raise click.NoSuchOption(error.option_name, error.message, shown, error.ctx) from None


class CommandWithCommands(click.Group):
    """A command with commands of its own, which its help lists with their whole first sentences."""

    command_class = OrderedCommand

    def refuse_mistyped(self, ctx: click.Context, word: str, sentence: str, meant: Sequence[str] = ()) -> None:
        """Raise UsageError with the commands that a word means: ``meant``, else those that are like it, if there are
        any.
        """
        from difflib import get_close_matches  # here: most lines name a command

        if close := meant or get_close_matches(word, self.list_commands(ctx), n=2):
            raise click.UsageError(f"{sentence} (Did you mean {' or '.join(map(repr, close))}?)", ctx)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line, or more, for each command."""
        with formatter.section("Commands"):
            shown = (self.commands[name] for name in sorted(self.commands) if not self.commands[name].hidden)
            formatter.write_dl([(one.name or "", one.get_short_help_str(_SENTENCE_CHARACTERS)) for one in shown])


class CommandGroup(CommandWithCommands):
    """The command group with a help in sections; it imports the module of a command when the command is asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a line. A word that is none is refused with those that are meant, as an option is."""
        word = args[0]
        if word in GONE:
            raise click.UsageError(f"there is no command {word!r} any more: {GONE[word]} does its work", ctx)
        if word in MOVED:
            click.echo(f"redrive: {word!r} is now: {shell_command(['redrive', *MOVED[word]])}", err=True)
            args = [*MOVED[word], *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            self.refuse_mistyped(ctx, args[0], error.message, WORDS_OF_OTHER_TOOLS.get(args[0], ()))
            raise

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. Output whose reader has left, as ``| head`` does, is no failure; to click it is one."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            stdout = select.poll()
            stdout.register(STDOUT, 0)
            if not stdout.poll(0):  # another pipe is broken
                raise
            discard_output()
            return ExitCode.SUCCESS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_LISTED)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if cmd_name in _LISTED and cmd_name not in self.commands:
            import_module(f".{_LISTED[cmd_name].module}", __package__)
        return self.commands.get(cmd_name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose."""
        for heading, section in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(one.name, one.summary) for one in section])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command from the table, without the modules of the commands."""
        names = [
            CompletionItem(one.name, help=one.summary) for one in _LISTED.values() if one.name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what all commands have in common."""
        for text in (*GRAMMAR, EXIT_CODES_HELP):
            formatter.write_paragraph()
            formatter.write_text(text)


_FIRST_STEPS = """\
No flow has run on this machine yet. To begin:

  redrive demo             a built-in flow with every failure mode, and a tour
  redrive new revenue.py   write a first flow; redrive run revenue.py runs it
  redrive exec -- COMMAND  run one command with history, retries and timeout
  redrive import crontab   write flows for the lines of your crontab

redrive --help lists all commands, redrive help the pages of the manual."""


# --- The group that all commands belong to ---------------------------------------------------------------------------


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is not None:
        return
    from ..sessions.target import has_state

    attach = cli.get_command(context, "attach")
    if attach is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(context.get_help())
    elif has_state():
        sys.exit(context.invoke(attach))
    else:
        click.echo(_FIRST_STEPS)


def _help_of(name: str, text: str) -> str:
    return f"{_LISTED[name].summary}.\n\n{cleandoc(text)}".rstrip()


def command(name: str, text: str = "") -> Callable[[Callable[..., object]], click.Command]:
    """Declare a function as a command of ``redrive``.

    ``text``: the help below the summary; left out: the docstring of the function.
    """
    return lambda function: cli.command(name, help=_help_of(name, text or function.__doc__ or ""))(function)


def command_with_commands(
    name: str, cls: type[click.Group] = CommandWithCommands, *, runs_alone: bool = False
) -> Callable[[Callable[..., object]], click.Group]:
    """Declare a function as a command that has commands. ``runs_alone``: it also runs without one."""
    return lambda function: cli.group(
        name, cls=cls, help=_help_of(name, function.__doc__ or ""), invoke_without_command=runs_alone
    )(function)


# --- Exit codes of all commands, by error and by the end of a run ----------------------------------------------------


class ExitCode(IntEnum):
    """The exit codes of ``redrive``."""

    SUCCESS = 0
    FAILED = 1
    BAD_USAGE = 2  # also a flow or a state file that cannot be used
    PARTIAL_OR_BLOCKED = 3
    NO_ANSWER = 4  # an act was sent, and may have been done
    NOT_REACHED = 69  # a host could not be asked, or a file not be read; EX_UNAVAILABLE
    BUSY = 75  # another executor owns the state file; EX_TEMPFAIL: try again later
    TIMED_OUT = 124  # of `exec`, as the two below: those of GNU timeout and env
    NOT_RUN = 125
    NOT_STARTED = 126
    INTERRUPTED = 130


#: The first class that an error is an instance of decides.
EXIT_CODES: tuple[tuple[type[errors.RedriveError], ExitCode], ...] = (
    (errors.ExecutorBusyError, ExitCode.BUSY),
    (errors.StartInterrupted, ExitCode.INTERRUPTED),
    (errors.NotRunError, ExitCode.NOT_RUN),
    (errors.FlowError, ExitCode.BAD_USAGE),
    (errors.UnreadableFileError, ExitCode.NOT_REACHED),
    (errors.StateFileError, ExitCode.BAD_USAGE),
    (errors.NotFoundError, ExitCode.BAD_USAGE),
    (errors.RefusedError, ExitCode.FAILED),
    (errors.NoAnswerError, ExitCode.NO_ANSWER),
    (errors.LinkError, ExitCode.NOT_REACHED),
    (errors.RedriveError, ExitCode.BAD_USAGE),
)

_OF_ENDED_RUN = {
    "FAILED": ExitCode.FAILED,
    "PARTIAL": ExitCode.PARTIAL_OR_BLOCKED,
    "ABANDONED": ExitCode.FAILED,
}


def code_of_error(error: errors.RedriveError) -> ExitCode:
    """The exit code of a command that ended with ``error``."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def code_of_usage(error: click.ClickException) -> ExitCode:
    """The exit code of words that a command does not take; that of ``exec`` cannot be one of what it would run."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    is_exec = context is not None and context.command.name == "exec"
    return ExitCode.NOT_RUN if is_exec else ExitCode.BAD_USAGE


def code_of_answers(*answers: Answer) -> ExitCode:
    """The exit code of acts: 1 if one changed nothing, 3 if one was refused for some of its targets."""
    from ...engine.domain.acts import REFUSED

    if not all(answer.ok for answer in answers):
        return ExitCode.FAILED
    refused = any(result.outcome == REFUSED for answer in answers for result in answer.results)
    return ExitCode.PARTIAL_OR_BLOCKED if refused else ExitCode.SUCCESS


def code_of_result(result: RunResult) -> ExitCode:
    """The exit code of a run whose executor was this process."""
    return code_of_run(result.run_state, interrupted=result.interrupted, blocked=result.blocked)


def code_of_run(state: str, *, interrupted: bool, blocked: bool) -> ExitCode:
    """The exit code of ``run``, ``resume`` and ``demo``. A run that goes on in another process counts as SUCCESS."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if blocked:
        return ExitCode.PARTIAL_OR_BLOCKED
    return _OF_ENDED_RUN.get(state, ExitCode.SUCCESS)
