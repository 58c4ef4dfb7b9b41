"""The group that all commands belong to."""

from __future__ import annotations

import click

from ....engine.version import VERSION
from ..help import CommandGroup


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="redrive")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs DAGs of tasks durably on one machine, and shows them in the terminal."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
