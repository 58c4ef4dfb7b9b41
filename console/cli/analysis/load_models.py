"""``redrive simulate``: the load of retry policies in herds and under contention, as a table and a plot."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from ....engine.analysis.load_models import (
    CONTENTION_POLICIES,
    SCENARIOS,
    ContentionResult,
    Scenario,
    simulate_contention,
    simulate_defended,
    simulate_outage,
    with_jitter,
)
from ....engine.core.policy import RetryPolicy, fixed_policy
from ....engine.errors import FlowError
from ...text.durations import number
from ...text.glyphs import glyphs_for
from ...text.plots import column_chart, downsample, table_lines
from ...text.printing import echo, echo_json, echo_lines
from ..output.json_schemas import with_schema
from .policy_lab import policy_of

PLOT_CELLS = 72
PLOT_ROWS = 8
CHART_SPAN = 4  # times the ideal duration; later load is in the table only
CLIENTS = (10, 20, 50, 100, 150, 190)

#: Base, cap and the fixed delay of each scenario, in seconds (SPEC 000 to 004).
_POLICIES: dict[str, tuple[float, float, float]] = {
    "herd-100": (4, 60, 4),
    "herd-500": (1, 60, 1),
    "herd-1000": (1, 60, 1),
    "herd-5000": (2, 600, 30),
    "herd-12000": (2, 600, 30),
}

#: What the engine does by default for a task that names its downstream: full jitter, behind the breaker and the budget.
DEFENDED = "redrive"

#: Further policies beside the five of the AWS post, with the index of their first wait (SPEC 002).
_MORE_CONTENTION: dict[str, tuple[RetryPolicy, int]] = {
    "full-from-0": (CONTENTION_POLICIES["full"], 0),
    "add50": (RetryPolicy(base=0.005, cap=2.0, jitter="add50"), 0),
    "fixed": (fixed_policy(0.03), 1),
}


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Means over the simulations of one policy, and the load of the first simulation."""

    calls: float
    last_done_seconds: float
    peak_per_second: float  # after the server is back
    attempts_mean: float
    attempts_max: float
    lost: float  # share of tasks that fail with a limited number of attempts
    others_refused: float  # calls of others, whom the herd pushes aside
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
    """Compare policies in one scenario. Raises FlowError for unknown names."""
    if scenario not in SCENARIOS:
        raise FlowError(f"there is no scenario {scenario!r}; there are {', '.join(sorted(SCENARIOS))}")
    model = SCENARIOS[scenario]
    wanted = select_policies(herd_policies(scenario, base, cap), policies)
    outcomes = {name: try_policy(name, model, policy, attempts, runs, seed) for name, policy in wanted.items()}
    if as_json:
        for name, outcome in outcomes.items():
            facts = {field: getattr(outcome, field) for field in PolicyResult.__slots__ if field != "load"}
            echo_json(with_schema("herd", {"policy": name, "scenario": scenario, **facts}))
        return 0
    _print_herd(scenario, model, outcomes, attempts)
    _plot(model, outcomes)
    return 0


def herd_policies(scenario: str, base: float | None = None, cap: float | None = None) -> dict[str, RetryPolicy]:
    """The fixed delay of the scenario, every jitter, and full jitter behind the breaker and the budget of the engine.

    ``base`` and ``cap`` replace those of the scenario.
    """
    default_base, default_cap, delay = _POLICIES.get(scenario, (2.0, 600.0, 30.0))
    policy = policy_of(base=default_base if base is None else base, cap=default_cap if cap is None else cap)
    return {"fixed": fixed_policy(delay), **with_jitter(policy), DEFENDED: policy}


def select_policies(known: Mapping[str, RetryPolicy], names: Sequence[str]) -> dict[str, RetryPolicy]:
    """The policies with these names, or all. Raises FlowError for unknown names."""
    for name in names:
        if name not in known:
            raise FlowError(f"there is no policy {name!r} here; there are {', '.join(known)}")
    return {name: policy for name, policy in known.items() if not names or name in names}


def try_policy(name: str, model: Scenario, policy: RetryPolicy, attempts: int, runs: int, seed: int) -> PolicyResult:
    """Simulate ``runs`` times with unlimited attempts, and once with at most ``attempts``."""
    simulate = simulate_defended if name == DEFENDED else simulate_outage
    herds = [simulate(model, policy, random.Random(seed + run)) for run in range(runs)]
    budgeted = simulate(model, replace(policy, max_attempts=attempts), random.Random(seed), spend_attempts=True)
    return PolicyResult(
        calls=mean(herd.calls for herd in herds),
        last_done_seconds=mean(herd.last_done_seconds for herd in herds),
        peak_per_second=mean(herd.peak_per_second for herd in herds),
        attempts_mean=mean(herd.attempts_mean for herd in herds),
        attempts_max=mean(herd.attempts_max for herd in herds),
        lost=budgeted.failed / model.clients,
        others_refused=mean(herd.usual_refused for herd in herds),
        load=herds[0].calls_per_second,
    )


def _recovered_at(model: Scenario) -> int:
    """The first second after the outage; at least 1, because second 0 has the first attempts, before any wait."""
    return max(1, int(model.outage_seconds))


def _print_herd(scenario: str, model: Scenario, outcomes: Mapping[str, PolicyResult], attempts: int) -> None:
    down = f", down for {model.outage_seconds:g} s" if model.outage_seconds else ""
    spread = f" within {model.arrival_seconds:g} s" if model.arrival_seconds else ""
    others = f", {model.usual_per_second:g}/s of others" if model.usual_per_second else ""
    echo(f"{scenario}: {number(model.clients)} tasks{spread}, a server of {model.per_second:g}/s{others}{down}")
    echo(f"at best all are done after {model.ideal_seconds:.0f} s")
    lost = f"lost with {attempts}"
    rows: list[Sequence[str]] = [("policy", "calls", "done", "peak", "starts", "most", lost, "others lost")]
    for name, outcome in outcomes.items():
        cells = (
            number(round(outcome.calls)),
            f"{outcome.last_done_seconds:,.0f} s",
            f"{outcome.peak_per_second:,.0f}/s",
            f"{outcome.attempts_mean:.1f}",
            f"{outcome.attempts_max:.0f}",
            f"{outcome.lost:.0%}",
            number(round(outcome.others_refused)) if model.usual_per_second else "-",
        )
        rows.append((name, *cells))
    echo_lines(table_lines(rows))
    if DEFENDED in outcomes:
        echo(f"{DEFENDED}: full jitter, held by the breaker and the retry budget of a declared downstream")


def _plot(model: Scenario, outcomes: Mapping[str, PolicyResult]) -> None:
    """Plot the load after the outage: one line for each policy, or a larger plot of a single policy."""
    glyphs = glyphs_for(sys.stdout.encoding)
    start, end = _recovered_at(model), int(model.ideal_seconds * CHART_SPAN)
    rows = PLOT_ROWS if len(outcomes) == 1 else 1
    echo(f"\ncalls a second from {start} s to {end} s, each policy against its own peak:")
    for name, outcome in outcomes.items():
        load = [*outcome.load[start:end], *[0] * (end - max(start, len(outcome.load)))]
        drawn = downsample(load, PLOT_CELLS)
        label = f"{name:12} {number(int(max(load, default=0))):>7}/s "
        for place, line in enumerate(column_chart(drawn, max(drawn, default=0), rows, glyphs)):
            echo(f"{label if place == 0 else ' ' * len(label)}{line}".rstrip())


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
                echo_json(with_schema("contention", value))
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
    echo_lines(table_lines(rows))
