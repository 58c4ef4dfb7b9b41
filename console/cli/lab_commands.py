"""Commands of the shell that are about retry policies, before anyone relies on one."""

from __future__ import annotations

from typing import Any

import click

from .options import json_option, seconds_of, simulating_options


@click.command()
@click.option("--base", default="2s", show_default=True, metavar="DURATION", help="The ceiling of the first wait.")
@click.option("--cap", default="10m", show_default=True, metavar="DURATION", help="No ceiling is higher.")
@click.option("--factor", default=2.0, show_default=True, help="What each ceiling is multiplied by.")
@click.option("--attempts", default=10, show_default=True, type=click.IntRange(1, 1000), help="Starts in all.")
@click.option("--jitter", default="full", show_default=True, help="none, full, equal, decorrelated, add50, or all.")
@click.option("--timeout", metavar="DURATION", help="Of one start: for the worst case.")
@click.option("--grace", default="0s", metavar="DURATION", help="Between SIGTERM and SIGKILL.")
@click.option("--deadline", metavar="DURATION", help="That the worst case is held against.")
@click.option("--clients", default=0, type=click.IntRange(0, 1_000_000), metavar="N", help="Draw when N come back.")
@click.option("--seed", type=int, help="For dice that fall the same way again.")
@json_option
def backoff(base: str, cap: str, factor: float, attempts: int, jitter: str, **options: Any) -> int:
    """Every wait of a retry policy, their sums, the worst case, and their spread."""
    from . import policy_lab

    timeout, grace, deadline = (options.pop(name) for name in ("timeout", "grace", "deadline"))
    experiment = policy_lab.Experiment(
        timeout=seconds_of(timeout) if timeout else None,
        grace_seconds=seconds_of(grace),
        deadline=seconds_of(deadline) if deadline else None,
        **options,
    )
    policy = policy_lab.policy_of(max_attempts=attempts, base=seconds_of(base), cap=seconds_of(cap), factor=factor)
    return policy_lab.show_backoff(policy, jitter, experiment)


@click.group()
def simulate() -> None:
    """What a retry policy does to others: a herd before a server, or clients that contend for a row."""


@simulate.command()
@click.option("--scenario", default="herd-5000", show_default=True, metavar="NAME", help="Or herd-500, -1000, -12000.")
@click.option("--attempts", default=3, show_default=True, type=click.IntRange(1, 1000), help="For the column 'lost'.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1, 1000), help="To take the mean of.")
@click.option("--base", metavar="DURATION", help="Instead of the scenario's.")
@click.option("--cap", metavar="DURATION", help="Instead of the scenario's.")
@simulating_options
def herd(base: str | None, cap: str | None, **options: Any) -> int:
    """Tasks that all want the same server the moment it comes back."""
    from . import load_models

    return load_models.show_herd(seconds_of(base) if base else None, seconds_of(cap) if cap else None, **options)


@simulate.command()
@click.option("--clients", multiple=True, type=click.IntRange(1, 10_000), metavar="N", help="How many; several times.")
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1, 1000), help="To take the mean of.")
@simulating_options
def contention(**options: Any) -> int:
    """Clients that write one row, each until it has succeeded once: the model of Brooker's post (AWS, 2015)."""
    from . import load_models

    return load_models.show_contention(**options)
