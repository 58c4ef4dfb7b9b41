"""The policy lab: what a retry policy means in numbers, before anyone relies on it."""

from __future__ import annotations

import random

import click

from ..engine.core.policy import RetryPolicy, ceiling, draw
from ..engine.errors import FlowError


def show_backoff(
    base_seconds: float, cap_seconds: float, factor: float, attempts: int, jitter: str, seed: int | None
) -> int:
    """Print the ceiling of each wait, one sample under the jitter, the sum and the mean."""
    try:
        policy = RetryPolicy(attempts, base_seconds, cap_seconds, factor, jitter)  # type: ignore[arg-type]
    except ValueError as error:
        raise FlowError(str(error)) from None
    dice = random.Random(seed)
    previous: float | None = None
    total = 0.0
    click.echo("retry  ceiling      sample")
    for index in range(attempts - 1):
        highest = ceiling(policy, index)
        previous, _ = draw(policy, index, previous, dice.uniform)
        total += highest
        capped = "  capped" if highest >= cap_seconds else ""
        click.echo(f"{index:5}  {highest:9.2f} s {previous:9.2f} s{capped}")
    click.echo(f"{attempts} starts wait {total:g} s at the most, {total / 2:g} s on average under full jitter")
    return 0
