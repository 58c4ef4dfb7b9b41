"""``redrive --help``: the commands by purpose, and the exit codes."""

from __future__ import annotations

import click

from .. import manual
from ..present.manual import page_lines
from ..text.pieces import plain
from ..text.printing import echo

#: Heading -> its commands, the most used first. A test checks that every command has a heading.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Run": ("demo", "run", "resume", "rerun", "attach"),
    "By a schedule": ("serve", "schedule", "backfill"),
    "Look": (
        "inbox",
        "fleet",
        "tasks",
        "logs",
        "runs",
        "summary",
        "report",
        "events",
        "pages",
        "breakers",
        "quarantine",
        "costs",
        "replay",
        "doctor",
    ),
    "Act": ("requeue", "skip", "cancel", "extend", "pause", "unpause", "stop", "reload", "abandon", "note", "prune"),
    "Before a run": ("new", "check", "classify", "backoff", "simulate"),
    "Learn": ("help", "completion"),
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


class CommandGroup(click.Group):
    """The command group with a help in sections."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose."""
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._summary(context, name)) for name in names])

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
    topics = manual.load_topics()
    width = max(len(topic.name) for topic in topics)
    lines = [f"  {topic.name:{width}}  {topic.summary}" for topic in topics]
    return "\n".join(
        ["redrive help TOPIC prints a page of the manual:", "", *lines, "", "redrive COMMAND --help: options."]
    )
