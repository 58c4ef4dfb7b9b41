"""``redrive costs``: slot seconds by the end of attempts, and the costs and successes of each retry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from ....engine.analysis.costs import (
    SUCCESS,
    Cost,
    PolicyCosts,
    RetryTail,
    RetryYield,
    costs_by_outcome,
    policy_costs,
    retry_yields,
    total,
)
from ....engine.core.outcome import FailureMode
from ....engine.core.policy import RetryPolicy
from ....engine.domain.counting import counted
from ...present.runs import place_line
from ...sessions.open import with_session
from ...sessions.session import Session
from ...sessions.ssh_options import Endpoint
from ...text.plots import table_lines
from ...text.printing import echo, echo_json, echo_lines
from ...text.text import one_line
from ..output.json_schemas import with_schema

_ORDER = (SUCCESS, *map(str, FailureMode))


def print_costs(endpoint: Endpoint, run_id: str | None, as_json: bool) -> int:
    """One line for each way to end, then one for each downstream, then the starts of each policy that retried."""

    async def use(session: Session) -> tuple[str, dict[str, Cost], list[RetryYield], list[PolicyCosts]]:
        projection = await session.snapshot(run_id)
        return (
            place_line(projection.run, session.address),
            costs_by_outcome(projection),
            retry_yields(projection),
            policy_costs(projection),
        )

    place, costs, yields, policies = with_session(endpoint, use)
    if as_json:
        by_mode = {how: asdict(cost) for how, cost in costs.items()}
        value = {"costs": by_mode, "yields": _plain(yields), "policies": [*map(_entry, policies)]}
        echo_json(with_schema("costs", value))
        return 0
    echo(place)
    _print_costs(costs)
    for healed in yields:
        echo(one_line(_sentence(healed)))
    for one in policies:
        if len(one.tries) > 1:
            echo_lines(policy_lines(one))
    return 0


def _plain(yields: Sequence[RetryYield]) -> list[dict[str, object]]:
    return [{**asdict(one), "recovered_share": one.recovered_share, "degraded": one.is_degraded} for one in yields]


def _print_costs(costs: Mapping[str, Cost]) -> None:
    rows: list[Sequence[str]] = [("ended in", "attempts", "slot seconds", "wasted")]
    for how in (how for how in _ORDER if how in costs):
        rows.append(_row(how, costs[how]))
    rows.append(_row("all", total(costs.values())))
    echo_lines(table_lines(rows))


def _row(how: str, cost: Cost) -> tuple[str, ...]:
    return (how, str(cost.attempts), f"{cost.seconds:.1f}", f"{cost.wasted_seconds:.1f}")


def _sentence(healed: RetryYield) -> str:
    name = healed.downstream or "tasks without a downstream"
    later = ((failures, count) for failures, count in healed.by_failures.items() if failures)
    parts = [f"{count} after {counted(failures, 'failure')}" for failures, count in later]
    first = f"{healed.by_failures.get(0, 0)} succeeded at the first try"
    degraded = " · DEGRADED: most needed a retry" if healed.is_degraded else ""
    return f"{name}: {', '.join([first, *parts])}{degraded}"


# --- The retry policy ----------------------------------------------------------------------------------------------


def policy_lines(costs: PolicyCosts) -> Iterator[str]:
    """The table of one policy: starts, successes and costs of each retry, and a suggestion for ``max_attempts``."""
    yield ""
    yield one_line(f"{costs.downstream or 'tasks without a downstream'} · {_policy(costs.policy)}")
    everything = sum(one.seconds for one in costs.tries) or 1.0
    rows: list[Sequence[str]] = [("", "starts", "healed", "slot seconds", "of all")]
    for number, one in enumerate(costs.tries):
        name = f"retry {number}" if number else "first try"
        rows.append((name, str(one.starts), str(one.healed), f"{one.seconds:.1f}", _percent(one.seconds / everything)))
    yield from table_lines(rows)
    cut = costs.removable_retries()
    yield _verdict(costs, cut or costs.retries_from(1))
    if cut is not None:
        yield _suggestion(cut)


def _policy(policy: RetryPolicy) -> str:
    return f"max_attempts {policy.max_attempts}, base {policy.base:g} s, cap {policy.cap:g} s, jitter {policy.jitter}"


def _verdict(costs: PolicyCosts, tail: RetryTail) -> str:
    numbers = f"retry {tail.first}" if tail.first == tail.last else f"retries {tail.first}-{tail.last}"
    healed = f"{tail.healed} of {counted(costs.tasks, 'task')} ({_percent(tail.healed_share)})"
    still = f"; {counted(costs.undecided, 'task')} not decided yet" if costs.undecided else ""
    return f"{numbers} healed {healed} and cost {_percent(tail.cost_share)} of the slot seconds{still}"


def _suggestion(cut: RetryTail) -> str:
    price = f"gives up {counted(cut.healed, 'task')} healed that late" if cut.healed else "gives up nothing"
    return f"max_attempts={cut.first} would have saved {cut.seconds:.1f} slot seconds and {cut.starts} calls; {price}"


def _percent(share: float) -> str:
    """A percentage, with one decimal near 0 and 100."""
    return f"{100 * share:.{0 if 0.1 <= share <= 0.99 or share in (0.0, 1.0) else 1}f} %"


def _entry(costs: PolicyCosts) -> dict[str, object]:
    cut = costs.removable_retries()
    return {**asdict(costs), "suggested_max_attempts": None if cut is None else cut.first}
