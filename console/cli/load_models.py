"""``redrive simulate``: the herds and the contention of the documents, as a table and as a plot of plain text."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import click

from ...engine.analysis.load_models import (
    CONTENTION_POLICIES,
    SCENARIOS,
    ContentionResult,
    Scenario,
    simulate_contention,
    simulate_outage,
    with_jitter,
)
from ...engine.core.policy import RetryPolicy, fixed_policy
from ...engine.errors import FlowError
from ..present.plots import column_chart, downsample, table_lines
from ..text.durations import number
from ..text.glyphs import glyphs_for
from .policy_lab import policy_of

PLOT_CELLS = 72
PLOT_ROWS = 8
CHART_SPAN = 4  # times as long as the best possible: what goes on longer is said and not drawn
CLIENTS = (10, 20, 50, 100, 150, 190)

#: Base and cap in seconds as the documents' stories have them, and the fixed delay that they had before.
_POLICIES: dict[str, tuple[float, float, float]] = {
    "herd-500": (1, 60, 1),
    "herd-1000": (1, 60, 1),
    "herd-5000": (2, 600, 30),
    "herd-12000": (2, 600, 30),
}

#: Beside the five of the AWS post, and the index of their first wait: as this engine counts, document 002's, fixed.
_MORE_CONTENTION: dict[str, tuple[RetryPolicy, int]] = {
    "full-from-0": (CONTENTION_POLICIES["full"], 0),
    "add50": (RetryPolicy(base=0.005, cap=2.0, jitter="add50"), 0),
    "fixed": (fixed_policy(0.03), 1),
}


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Means over the runs of one policy, and the load of the first of them."""

    calls: float
    last_done_seconds: float
    peak_per_second: float  # from the first whole second in which the server answers
    attempts_mean: float
    attempts_max: float
    lost: float  # share of the tasks that would have failed with a budget
    load: tuple[int, ...]


# --- A herd ---------------------------------------------------------------------------------------------------------


def print_herd(
    base: float | None,
    cap: float | None,
    *,
    scenario: str,
    attempts: int,
    runs: int,
    policies: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """Compare policies in one scenario. Raises FlowError for names that there are not."""
    if scenario not in SCENARIOS:
        raise FlowError(f"there is no scenario {scenario!r}; there are {', '.join(sorted(SCENARIOS))}")
    story = SCENARIOS[scenario]
    wanted = select_policies(herd_policies(scenario, base, cap), policies)
    outcomes = {name: try_policy(story, policy, attempts, runs, seed) for name, policy in wanted.items()}
    if as_json:
        for name, outcome in outcomes.items():
            facts = {field: getattr(outcome, field) for field in PolicyResult.__slots__ if field != "load"}
            click.echo(json.dumps({"policy": name, "scenario": scenario, **facts}))
        return 0
    _print_herd(scenario, story, outcomes, attempts)
    _plot(story, outcomes)
    return 0


def herd_policies(scenario: str, base: float | None = None, cap: float | None = None) -> dict[str, RetryPolicy]:
    """The fixed delay that the story had, and every jitter; ``base`` and ``cap`` instead of the story's."""
    usual_base, usual_cap, delay = _POLICIES.get(scenario, (2.0, 600.0, 30.0))
    policy = policy_of(base=usual_base if base is None else base, cap=usual_cap if cap is None else cap)
    return {"fixed": fixed_policy(delay), **with_jitter(policy)}


def select_policies(known: Mapping[str, RetryPolicy], names: Sequence[str]) -> dict[str, RetryPolicy]:
    """Those that were asked for, or all. Raises FlowError."""
    for name in names:
        if name not in known:
            raise FlowError(f"there is no policy {name!r} here; there are {', '.join(known)}")
    return {name: policy for name, policy in known.items() if not names or name in names}


def try_policy(story: Scenario, policy: RetryPolicy, attempts: int, runs: int, seed: int) -> PolicyResult:
    """Play the story ``runs`` times without a budget, and once with one of ``attempts`` starts."""
    herds = [simulate_outage(story, policy, random.Random(seed + run)) for run in range(runs)]
    budgeted = simulate_outage(story, replace(policy, max_attempts=attempts), random.Random(seed), spend_attempts=True)
    return PolicyResult(
        calls=mean(herd.calls for herd in herds),
        last_done_seconds=mean(herd.last_done_seconds for herd in herds),
        peak_per_second=mean(herd.peak_per_second for herd in herds),
        attempts_mean=mean(herd.attempts_mean for herd in herds),
        attempts_max=mean(herd.attempts_max for herd in herds),
        lost=budgeted.failed / story.clients,
        load=herds[0].calls_per_second,
    )


def _recovered_at(story: Scenario) -> int:
    """The second from which the load says something: the first of all holds the first tries, which no policy helps."""
    return max(1, int(story.outage_seconds))


def _print_herd(scenario: str, story: Scenario, outcomes: Mapping[str, PolicyResult], attempts: int) -> None:
    down = f", down for {story.outage_seconds:g} s" if story.outage_seconds else ""
    click.echo(f"{scenario}: {number(story.clients)} tasks, a server of {story.per_second:g}/s{down}")
    click.echo(f"at best all are done after {story.ideal_seconds:.0f} s")
    rows: list[Sequence[str]] = [("policy", "calls", "done", "peak", "starts", "most", f"lost with {attempts}")]
    for name, outcome in outcomes.items():
        cells = (
            number(round(outcome.calls)),
            f"{outcome.last_done_seconds:,.0f} s",
            f"{outcome.peak_per_second:,.0f}/s",
            f"{outcome.attempts_mean:.1f}",
            f"{outcome.attempts_max:.0f}",
            f"{outcome.lost:.0%}",
        )
        rows.append((name, *cells))
    for line in table_lines(rows):
        click.echo(line)


def _plot(story: Scenario, outcomes: Mapping[str, PolicyResult]) -> None:
    """The load once the server is back: one line for each policy, or a picture of the only one."""
    glyphs = glyphs_for(sys.stdout.encoding)
    start, end = _recovered_at(story), int(story.ideal_seconds * CHART_SPAN)
    rows = PLOT_ROWS if len(outcomes) == 1 else 1
    click.echo(f"\ncalls a second from {start} s to {end} s, each policy against its own peak:")
    for name, outcome in outcomes.items():
        load = [*outcome.load[start:end], *[0] * (end - max(start, len(outcome.load)))]
        drawn = downsample(load, PLOT_CELLS)
        label = f"{name:12} {number(int(max(load, default=0))):>7}/s "
        for place, line in enumerate(column_chart(drawn, max(drawn, default=0), rows, glyphs)):
            click.echo(f"{label if place == 0 else ' ' * len(label)}{line}".rstrip())


# --- Contention -----------------------------------------------------------------------------------------------------


def print_contention(*, clients: Sequence[int], runs: int, policies: Sequence[str], seed: int, as_json: bool) -> int:
    """Print calls at the server and milliseconds until the last client is done, by policy and number of clients."""
    counts = clients or CLIENTS
    known = {**{name: (policy, 1) for name, policy in CONTENTION_POLICIES.items()}, **_MORE_CONTENTION}
    names = list(
        select_policies({name: policy for name, (policy, _) in known.items()}, policies or tuple(CONTENTION_POLICIES))
    )
    found = {name: [_contend(known[name], count, runs, seed) for count in counts] for name in names}
    if as_json:
        for name, results in found.items():
            for count, result in zip(counts, results, strict=True):
                value = {"policy": name, "clients": count, "calls": result.calls, "seconds": result.seconds}
                click.echo(json.dumps(value))
        return 0
    _print_contention("calls", counts, {name: [one.calls for one in results] for name, results in found.items()})
    _print_contention("ms", counts, {name: [one.seconds * 1000 for one in results] for name, results in found.items()})
    return 0


def _contend(policy: tuple[RetryPolicy, int], clients: int, runs: int, seed: int) -> ContentionResult:
    return simulate_contention(clients, policy[0], random.Random(seed), runs, first_index=policy[1])


def _print_contention(title: str, counts: Sequence[int], values: Mapping[str, Sequence[float]]) -> None:
    rows: list[Sequence[str]] = [(title, *values)]
    for place, count in enumerate(counts):
        rows.append((number(count), *(f"{column[place]:,.0f}" for column in values.values())))
    for line in table_lines(rows):
        click.echo(line)
