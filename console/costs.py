"""``redrive costs``: the slot seconds of a run by how its attempts ended, and what its retries healed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from ..engine.core.costs import SUCCESS, Cost, Yield, costs_of, total, yields_of
from ..engine.core.outcome import FailureMode
from .doors import with_session
from .present.plots import grid
from .present.text import one_line
from .sessions.session import Session

_ORDER = (SUCCESS, *map(str, FailureMode))


def show_costs(target: str, run_id: str | None, as_json: bool, **door: Any) -> int:
    """One line for each way to end, then one for each downstream."""

    async def use(session: Session) -> tuple[dict[str, Cost], list[Yield]]:
        fold = await session.snapshot(run_id)
        return costs_of(fold), yields_of(fold)

    costs, yields = with_session(target, use, **door)
    if as_json:
        click.echo(json.dumps({"costs": {how: asdict(cost) for how, cost in costs.items()}, "yields": _plain(yields)}))
        return 0
    _print_costs(costs)
    for healed in yields:
        click.echo(one_line(_sentence(healed)))
    return 0


def _plain(yields: Sequence[Yield]) -> list[dict[str, Any]]:
    return [{**asdict(one), "recovered_share": one.recovered_share, "degraded": one.is_degraded} for one in yields]


def _print_costs(costs: Mapping[str, Cost]) -> None:
    rows: list[Sequence[str]] = [("ended in", "attempts", "slot seconds", "wasted")]
    for how in (how for how in _ORDER if how in costs):
        rows.append(_row(how, costs[how]))
    rows.append(_row("all", total(costs.values())))
    for line in grid(rows):
        click.echo(line)


def _row(how: str, cost: Cost) -> tuple[str, ...]:
    return (how, str(cost.attempts), f"{cost.seconds:.1f}", f"{cost.wasted_seconds:.1f}")


def _sentence(healed: Yield) -> str:
    name = healed.downstream or "tasks without a downstream"
    later = ((failures, count) for failures, count in healed.by_failures.items() if failures)
    parts = [f"{count} after {failures} failure{'' if failures == 1 else 's'}" for failures, count in later]
    first = f"{healed.by_failures.get(0, 0)} succeeded at the first try"
    degraded = " · DEGRADED: most needed a retry" if healed.is_degraded else ""
    return f"{name}: {', '.join([first, *parts])}{degraded}"
