"""Commands of the shell that are about a cause and not about tasks: notes on it, and the class of its failures."""

from __future__ import annotations

from typing import Any

import click

from .options import json_option, run_option, ssh_options, state_option

fingerprint_option = click.option(
    "--fingerprint", required=True, metavar="FP", help="Of the cause, as `redrive inbox` shows it."
)


@click.command()
@click.argument("text")
@fingerprint_option
@click.option("--downstream", metavar="NAME", help="Only where tasks call this one; without it, wherever it fails so.")
@state_option
@run_option
@json_option
@ssh_options
def note(text: str, state: str | None, **options: Any) -> int:
    """Write on a cause what the next one who is called for it should know, in this run and in later ones."""
    from ..sessions.target import existing_target
    from . import notes

    return notes.note(existing_target(state), text, **options)


@click.command()
@fingerprint_option
@click.option(
    "--as",
    "failure_class",
    required=True,
    type=click.Choice(["transient", "permanent", "ambiguous", "validation", "auth"]),
    help="What such a failure is.",
)
@click.option("--downstream", metavar="NAME", help="Whose rule it is; left out: that of the tasks that failed so.")
@click.option(
    "--when", "conditions", multiple=True, metavar="NAME=VALUE", help="Instead of the proposed rule: status=409."
)
@state_option
@run_option
@json_option
@ssh_options
def classify(state: str | None, **options: Any) -> int:
    """Make a rule of a failure, and say what it would have done; it goes into the flow, nothing is changed here."""
    from ..sessions.target import existing_target
    from . import classify as classify_module

    return classify_module.classify(existing_target(state), **options)
