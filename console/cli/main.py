"""The entry point of ``redrive``: the commands by purpose; errors become sentences and exit codes.

The group imports the module of a command when the command runs, and a command imports what does its work in its body,
so that only commands that draw import Textual. An error for people is one sentence on stderr; a traceback is a bug.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from ...engine.errors import (
    ExecutorBusyError,
    FlowError,
    FlowImportError,
    NotFoundError,
    RedriveError,
    RefusedError,
    StartInterrupted,
    StateFileError,
)
from ...engine.version import VERSION

if TYPE_CHECKING:
    from ...engine.domain.acts import Answer
    from ...engine.domain.states import RunState

__all__ = ["cli", "main"]


def main() -> None:
    """The ``redrive`` command."""
    _open_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cron's locale may not encode names of tasks
    try:
        sys.exit(_run())
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.Abort:  # Ctrl-C; click has ended the line of the ^C
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.BAD_USAGE)
    except KeyboardInterrupt:
        click.echo("redrive: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        sys.exit(ExitCode.SUCCESS)
    except RedriveError as error:
        _explain(error)
        sys.exit(code_of_error(error))
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # of getcwd: every other call names its file
            click.echo("redrive: the current folder was removed: change to another one", err=True)
            sys.exit(ExitCode.BAD_USAGE)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            click.echo("redrive: no more files can be opened: raise the limit of open files (ulimit -n)", err=True)
            sys.exit(ExitCode.BAD_USAGE)
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing the rest of the buffer would fail again
        click.echo(f"redrive: the output cannot be written: {error.strerror}", err=True)
        sys.exit(ExitCode.FAILED)
    finally:
        gc.freeze()  # else the collections at the end of the interpreter take a sixth of a short command


def _run() -> int | None:
    """Run the command, or complete one. Raises CorruptFileError for a failure that a malformed state file explains."""
    if "_REDRIVE_COMPLETE" in os.environ:
        import_module(".options", __package__)  # registers how each shell completes
    try:
        code: int | None = cli.main(standalone_mode=False)
        return code
    except (click.ClickException, click.exceptions.Exit, click.Abort, RedriveError, OSError):
        raise
    except Exception:
        from ..sessions.open import require_known_values

        require_known_values()
        raise


def _open_standard_descriptors() -> None:
    """Open a closed stdin, stdout or stderr on /dev/null; otherwise the next opened file would get its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


def _explain(error: RedriveError) -> None:
    from ..text.text import echo

    if isinstance(error, FlowImportError) and error.traceback:
        for line in error.traceback.rstrip().splitlines():
            echo(line.replace("\t", "    "), err=True)
    echo(f"redrive: {str(error).replace(chr(10), ' ')}", err=True)


# --- Commands by purpose ---------------------------------------------------------------------------------------------
#
# ``redrive --help``: the commands by purpose, and the exit codes.


class CommandSection(NamedTuple):
    """Commands of one purpose, the most used first, and the module that adds them to the group."""

    module: str
    commands: tuple[str, ...]


#: Heading -> its commands. A test checks that every command has a heading.
SECTIONS: dict[str, CommandSection] = {
    "Run": CommandSection("running", ("demo", "run", "resume", "rerun", "attach")),
    "By a schedule": CommandSection("running", ("serve", "schedule", "backfill")),
    "Read": CommandSection(
        "reading",
        (
            "inbox",
            "fleet",
            "tasks",
            "logs",
            "runs",
            "history",
            "summary",
            "report",
            "events",
            "pages",
            "breakers",
            "pools",
            "quarantine",
            "costs",
            "replay",
            "doctor",
        ),
    ),
    "Act": CommandSection(
        "acting",
        (
            "requeue",
            "skip",
            "cancel",
            "extend",
            "pause",
            "unpause",
            "postpone",
            "stop",
            "reload",
            "abandon",
            "note",
            "prune",
        ),
    ),
    "Before a run": CommandSection("planning", ("new", "check", "rehearse", "classify", "backoff", "simulate")),
    "Learn": CommandSection("planning", ("help", "completion")),
}

TARGETS = (
    "TARGET is a state file or ssh://[user@]host[:port]/path; left out: $REDRIVE_STATE, else the state file of this"
    " machine with something to do and the latest run. A command that changes a run then wants --state if several"
    " state files have something to do."
)
EXIT_CODES_HELP = (
    "run, resume and backfill exit with 0 success, 1 failed, 2 bad usage or flow, 3 partial or waiting for a human,"
    " 75 another executor owns the state file, 130 interrupted; serve with 0 after a stop, 130 if the stop"
    " interrupted a run, 1 if one of several flows was down then."
)

_MODULE_OF = {name: section.module for section in SECTIONS.values() for name in section.commands}


class CommandGroup(click.Group):
    """The command group with a help in sections; it imports the module of a command when the command is asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a line. A word that is none is refused with those that are meant, as an option is."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # here: most lines name a command

            close = get_close_matches(args[0], self.list_commands(ctx), n=2)
            if not close:
                raise
            raise click.UsageError(f"{error.message} (Did you mean {' or '.join(map(repr, close))}?)", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if cmd_name in _MODULE_OF and cmd_name not in self.commands:
            import_module(f".{_MODULE_OF[cmd_name]}", __package__)
        return self.commands.get(cmd_name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose."""
        for heading, section in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._summary(context, name)) for name in section.commands])

    def _summary(self, context: click.Context, name: str) -> str:
        """The complete first paragraph; click would shorten it."""
        command = self.get_command(context, name)
        text = "" if command is None else command.short_help or command.help or ""
        return " ".join(text.split("\n\n")[0].split()).rstrip(".")

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what all commands have in common."""
        for text in (TARGETS, EXIT_CODES_HELP):
            formatter.write_paragraph()
            formatter.write_text(text)


def print_topic(group: click.Group, context: click.Context, name: str | None) -> None:
    """Print a page of the manual, the help of a command, or the list of topics. Raises UnknownTopic."""
    from .. import manual
    from ..present.manual import page_lines
    from ..text.pieces import plain
    from ..text.text import echo

    command = None if name is None else group.get_command(context, name)
    if name is None:
        echo(topic_list())
    elif name in manual.TOPICS or command is None:
        for line in page_lines(manual.load_topic(name).text):
            echo(plain(line).rstrip())
    else:
        echo(command.get_help(click.Context(command, info_name=name, parent=context.parent)))


def topic_list() -> str:
    """The topics of the manual, one line each."""
    from .. import manual

    topics = manual.load_topics()
    width = max(len(topic.name) for topic in topics)
    lines = [f"  {topic.name:{width}}  {topic.summary}" for topic in topics]
    return "\n".join(
        ["redrive help TOPIC prints a page of the manual:", "", *lines, "", "redrive COMMAND --help: options."]
    )


# --- The group that all commands belong to ---------------------------------------------------------------------------


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, "-V", "--version", prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


# --- Exit codes of all commands, by error and by the end of a run ----------------------------------------------------


class ExitCode(IntEnum):
    """The exit codes of ``redrive``."""

    SUCCESS = 0
    FAILED = 1
    BAD_USAGE = 2  # also a flow or a state file that cannot be used
    PARTIAL_OR_BLOCKED = 3
    BUSY = 75  # another executor owns the state file; EX_TEMPFAIL: try again later
    INTERRUPTED = 130


#: The first class that an error is an instance of decides.
EXIT_CODES: tuple[tuple[type[RedriveError], ExitCode], ...] = (
    (ExecutorBusyError, ExitCode.BUSY),
    (StartInterrupted, ExitCode.INTERRUPTED),
    (FlowError, ExitCode.BAD_USAGE),
    (StateFileError, ExitCode.BAD_USAGE),
    (NotFoundError, ExitCode.BAD_USAGE),
    (RefusedError, ExitCode.FAILED),
    (RedriveError, ExitCode.BAD_USAGE),
)

_OF_ENDED_RUN = {
    "SUCCESS": ExitCode.SUCCESS,
    "FAILED": ExitCode.FAILED,
    "PARTIAL": ExitCode.PARTIAL_OR_BLOCKED,
    "ABANDONED": ExitCode.FAILED,
}


def code_of_error(error: RedriveError) -> ExitCode:
    """The exit code of a command that ended with ``error``."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def code_of_answers(*answers: Answer) -> ExitCode:
    """The exit code of acts: 1 if one changed nothing, 3 if one was refused for some of its targets."""
    from ...engine.domain.acts import REFUSED

    if not all(answer.ok for answer in answers):
        return ExitCode.FAILED
    refused = any(result.outcome == REFUSED for answer in answers for result in answer.results)
    return ExitCode.PARTIAL_OR_BLOCKED if refused else ExitCode.SUCCESS


def code_of_run(state: RunState, *, interrupted: bool, blocked: bool) -> ExitCode:
    """The exit code of ``run``, ``resume`` and ``demo``. A run that goes on in another process counts as SUCCESS."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if blocked:
        return ExitCode.PARTIAL_OR_BLOCKED
    return _OF_ENDED_RUN.get(state, ExitCode.SUCCESS)
