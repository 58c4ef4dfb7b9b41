"""``redrive --help``: the commands by what people want when they look for one, and what the exit codes mean."""

from __future__ import annotations

import click

#: Heading -> the commands under it, most wanted first. Every command stands under one; a test holds that.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Run": ("demo", "run", "resume", "attach"),
    "By a schedule": ("serve", "schedule", "backfill"),
    "Look": ("inbox", "tasks", "runs", "events", "pages", "breakers", "quarantine", "costs", "replay", "doctor"),
    "Act": ("requeue", "skip", "cancel", "extend", "pause", "unpause", "note"),
    "Before a run": ("check", "classify", "backoff", "simulate"),
}

TARGETS = (
    "TARGET is a state file or ssh://[user@]host[:port]/path; left out: $REDRIVE_STATE, else the latest state file of"
    " this machine."
)
EXIT_CODES = (
    "run, resume and backfill exit with 0 success, 1 failed, 2 bad usage or flow, 3 partial or waiting for a human,"
    " 75 another executor owns the state file, 130 interrupted; serve with 0 once it was told to stop, 130 where that"
    " interrupted a run."
)


class CommandGroup(click.Group):
    """The top of the command line."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each purpose."""
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._summary(context, name)) for name in names])

    def _summary(self, context: click.Context, name: str) -> str:
        """The first sentence, whole: click would cut it."""
        command = self.get_command(context, name)
        text = "" if command is None else " ".join((command.short_help or command.help or "").split())
        return text.rstrip(".")

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """What holds for all of them."""
        for text in (TARGETS, EXIT_CODES):
            formatter.write_paragraph()
            formatter.write_text(text)
