"""The group of all commands, by purpose; what they have in common: their help, and their exit codes.

The group imports the module of a command when the command is asked for: ``--help`` imports none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, NamedTuple

import click
from click.shell_completion import CompletionItem

from ... import __version__
from ...engine import errors
from ...engine.domain.text import place_words, shell_command

if TYPE_CHECKING:
    from ...engine.domain.acts import Answer
    from ...engine.executor.run_end import RunResult


class Listed(NamedTuple):
    """A command as ``redrive --help`` lists it, and the module of its function, which is imported for that command."""

    name: str
    module: str
    summary: str


#: What a person wants -> the commands for it, the most used first. The help of a command begins with its summary.
SECTIONS: dict[str, tuple[Listed, ...]] = {
    "Start a run, go on with one": (
        Listed("demo", "run", "A built-in flow with every failure mode"),
        Listed("run", "run", "Run PROGRAM: a Python file or a module, with :NAME if it makes several flows"),
        Listed("exec", "run", "Run a command as a flow of one task, with history, retries, timeout and inbox"),
        Listed("resume", "executor", "Start an executor for an unfinished run"),
        Listed(
            "rerun",
            "executor",
            "Start a new run with the parameters and the scheduled time of a run of FLOW, which has ended",
        ),
        Listed("stop", "executor", "Stop the executor in order; its run stays unfinished, and resume goes on with it"),
        Listed(
            "reload",
            "executor",
            "Load changed source files of the flow in a living executor; running attempts keep the old code",
        ),
    ),
    "See what needs you, and why": (
        Listed(
            "inbox",
            "needs",
            "What needs a human: in all state files of this machine, in those of ssh://host, or in FLOW",
        ),
        Listed("attach", "attach", "Open the console on a state file, here or over ssh"),
        Listed("tasks", "listings", "The tasks of a run"),
        Listed(
            "why", "listings", "Why a task does not run: what it waits for, down to the task that holds it in the end"
        ),
        Listed("logs", "logs", "The output of tasks"),
        Listed("systems", "systems", "What stands around a run: breakers, pages, rows in quarantine, pools"),
        Listed(
            "fleet",
            "listings",
            "All state files of this machine or of hosts: their latest runs, and what needs a human",
        ),
    ),
    "See what happened, and show it": (
        Listed("runs", "listings", "Every run of a state file; every task in the last 40 runs of a flow"),
        Listed("events", "past", "All events, in order"),
        Listed("replay", "past", "A run as it was at some time"),
        Listed(
            "report",
            "report",
            "A run as one HTML file to post: the graph, the timeline, causes, acts, slow tasks; or in a few lines",
        ),
    ),
    "Decide about tasks": (
        Listed("requeue", "acts", "Run tasks again, with a fresh budget"),
        Listed("skip", "acts", "Accept failures: the children run without these tasks"),
        Listed("approve", "acts", "Approve what waits for an approval: what depends on it runs"),
        Listed("reject", "acts", "Reject what waits for an approval: it fails, and is not tried again"),
        Listed("cancel", "acts", "Stop tasks: a running attempt is ended by SIGTERM, grace, SIGKILL"),
        Listed("extend", "acts", "Give attempts that run more time before their timeout: redrive extend load 10m"),
    ),
    "Decide about a run": (
        Listed("pause", "acts", "Start no more tasks; running tasks continue"),
        Listed("unpause", "acts", "Start tasks again"),
        Listed("postpone", "acts", "Give a run another deadline: in 1h, at 06:00, or never"),
        Listed(
            "abandon",
            "acts",
            "End unfinished runs for good: the run is ABANDONED, and what has not ended is cancelled, except clean-ups:"
            " redrive resume or serve runs them, and a second abandon ends them",
        ),
        Listed("ack", "acts", "Acknowledge runs that ended badly or late: `redrive inbox` no longer lists them"),
        Listed("undo", "acts", "Take back the last act that can be taken back, of one run or of any"),
        Listed(
            "note", "acts", "Write a note on a cause for the next operator who is paged, in this run and later ones"
        ),
    ),
    "Let a schedule start runs": (
        Listed(
            "serve",
            "schedule",
            "Start the runs of all flows in FOLDERS and files when their schedules say so, until SIGTERM",
        ),
        Listed(
            "schedule",
            "schedule",
            "All schedules of this machine: next, last and usual run, and what holds them up; or the next runs of one"
            " FLOW",
        ),
        Listed("backfill", "schedule", "Run PROGRAM for scheduled times that have no run, the oldest first"),
        Listed(
            "import",
            "importing",
            "Flow files from a crontab or timers of systemd, with the proof that they start when those do; from dagu",
        ),
    ),
    "Write a flow": (
        Listed("new", "check", "Write a first flow that runs, to a new file"),
        Listed("check", "check", "Validate flows without running them: PROGRAM, or all in the files below a folder"),
        Listed("rehearse", "rehearse", "Play PROGRAM in virtual time with faults: no task runs, hours take seconds"),
        Listed("backoff", "lab", "Every wait of a retry policy, their sums, the worst case, and their spread"),
        Listed(
            "simulate",
            "lab",
            "Simulate the load of a retry policy: many tasks on one server, or clients that contend for a row",
        ),
    ),
    "Care for the machine": (
        Listed("doctor", "maintenance", "Check versions, locks, integrity, and the isolation of this machine"),
        Listed("prune", "maintenance", "Delete ended runs with their output, and give the space back"),
        Listed("metrics", "metrics", "The state of this machine for Prometheus: printed, in a file, or over HTTP"),
    ),
    "Learn": (
        Listed("help", "help", "Print a page of the manual, or its topics"),
        Listed(
            "completion",
            "completion",
            'Print the script that completes commands, flows, runs and tasks: eval "$(redrive completion bash)"',
        ),
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

#: Options that there were, by command -> what does their work now.
GONE_OPTIONS: dict[tuple[str, str], str] = {
    ("abandon", "--older-than"): "redrive abandon FLOW@RUN...",
    ("rehearse", "--nights"): "rehearse --seed N --json, in a loop of the shell,",
    ("rehearse", "--slow"): "slow() of redrive.engine.testing",
    ("rehearse", "--takes"): "play(durations=...) of redrive.engine.testing",
    ("rehearse", "--until"): "play(until=...) of redrive.engine.testing",
    ("help", "--man"): "redrive help TOPIC",
    ("requeue", "--at"): "redrive requeue --not-before TIME",
    ("report", "--markdown"): "redrive report --short",
    ("report", "--otlp"): "redrive tasks --json",
    ("serve", "--metrics"): "redrive metrics --listen, in a unit of its own",
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


class CommandGroup(click.Group):
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
            from difflib import get_close_matches  # here: most lines name a command

            close = WORDS_OF_OTHER_TOOLS.get(args[0]) or get_close_matches(args[0], self.list_commands(ctx), n=2)
            if not close:
                raise
            raise click.UsageError(f"{error.message} (Did you mean {' or '.join(map(repr, close))}?)", ctx) from None

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


# --- The group that all commands belong to ---------------------------------------------------------------------------


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is not None:
        return
    attach = cli.get_command(context, "attach")
    if attach is None or not _has_state_to_show():
        click.echo(context.get_help())
    else:
        sys.exit(context.invoke(attach))


def _has_state_to_show() -> bool:
    """Whether this machine has a state file or schedules, and a person at a terminal."""
    from ..sessions.target import has_state

    return sys.stdin.isatty() and sys.stdout.isatty() and has_state()


def summary_of(name: str) -> str:
    """The sentence with which the help of a command begins."""
    return f"{_LISTED[name].summary}."


def command(name: str) -> Callable[[Callable[..., object]], click.Command]:
    """Declare a function as a command of ``redrive``. Its docstring is the rest of the help, below the summary."""

    def declare(function: Callable[..., object]) -> click.Command:
        text = cleandoc(function.__doc__ or "")
        return cli.command(name, help=f"{summary_of(name)}\n\n{text}".rstrip())(function)

    return declare


# --- Exit codes of all commands, by error and by the end of a run ----------------------------------------------------


class ExitCode(IntEnum):
    """The exit codes of ``redrive``."""

    SUCCESS = 0
    FAILED = 1
    BAD_USAGE = 2  # also a flow or a state file that cannot be used
    PARTIAL_OR_BLOCKED = 3
    TIMED_OUT = 124  # of `exec`, as the three behind it are those of GNU timeout and env
    NOT_RUN = 125
    NOT_STARTED = 126
    NO_ANSWER = 4  # an act was sent, and may have been done
    NOT_REACHED = 69  # a host could not be asked; EX_UNAVAILABLE
    BUSY = 75  # another executor owns the state file; EX_TEMPFAIL: try again later
    INTERRUPTED = 130


#: The first class that an error is an instance of decides.
EXIT_CODES: tuple[tuple[type[errors.RedriveError], ExitCode], ...] = (
    (errors.ExecutorBusyError, ExitCode.BUSY),
    (errors.StartInterrupted, ExitCode.INTERRUPTED),
    (errors.NotRunError, ExitCode.NOT_RUN),
    (errors.FlowError, ExitCode.BAD_USAGE),
    (errors.StateFileError, ExitCode.BAD_USAGE),
    (errors.NotFoundError, ExitCode.BAD_USAGE),
    (errors.RefusedError, ExitCode.FAILED),
    (errors.NoAnswerError, ExitCode.NO_ANSWER),
    (errors.LinkError, ExitCode.NOT_REACHED),
    (errors.RedriveError, ExitCode.BAD_USAGE),
)

_OF_ENDED_RUN = {
    "SUCCESS": ExitCode.SUCCESS,
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


def command_line(name: str, state: str, run_id: str) -> str:
    """Return a command on a run, as a user types it."""
    return shell_command(("redrive", name, *place_words(state, run_id)))


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
