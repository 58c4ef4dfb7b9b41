"""The group that all commands belong to, and the state file that a command means."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from ....engine.version import VERSION
from ..exit_codes import ExitCode
from ..help import CommandGroup


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def target_of(target: str | None, state: str | None) -> str:
    """The state file of a command that only reads. Raises UsageError, RedriveError."""
    from ...sessions.target import existing_target

    return existing_target(named_once(target, state))


def acting_target_of(target: str | None, state: str | None, remote: Mapping[str, Any] | None = None) -> str:
    """The state file of a command that changes a run. Of several candidates it prints the command for each.

    ``remote``: the options ``python`` and ``ssh_option``, to ask a host for its state files; None: do not ask.
    """
    from ...sessions.target import AmbiguousTargetError, acting_target, is_remote

    try:
        found = acting_target(named_once(target, state))
    except AmbiguousTargetError as error:
        from ...text.printing import echo

        echo(f"redrive: {error}", err=True)
        for line in error.commands(sys.argv[1:]):
            echo(line, err=True)
        raise click.exceptions.Exit(ExitCode.BAD_USAGE) from None
    if remote is None or not is_remote(found):
        return found
    from ..state_files import choose_file

    return choose_file(found, remote["python"], remote["ssh_option"], to_act=True)


def named_once(target: str | None, state: str | None) -> str | None:
    """The state file that is named as the argument or with ``--state``. Raises UsageError for two different ones."""
    if target and state and target != state:
        raise click.UsageError("name the state file once: as the argument or with --state")
    return state if target is None else target
