"""``redrive --help``: the commands by purpose, and the exit codes."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click


class CommandSection(NamedTuple):
    """Commands of one purpose, the most used first, and the module of ``commands`` that adds them to the group."""

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
EXIT_CODES = (
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
            import_module(f".commands.{_MODULE_OF[cmd_name]}", __package__)
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
        for text in (TARGETS, EXIT_CODES):
            formatter.write_paragraph()
            formatter.write_text(text)


def print_topic(group: click.Group, context: click.Context, name: str | None) -> None:
    """Print a page of the manual, the help of a command, or the list of topics. Raises UnknownTopic."""
    from .. import manual
    from ..present.manual import page_lines
    from ..text.pieces import plain
    from ..text.printing import echo

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
