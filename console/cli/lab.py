"""``redrive backoff`` and ``simulate``: retry policies, computed and played."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from statistics import mean
from typing import Any

import click
import msgspec

from ...engine.analysis import load_models as analysis
from ...engine.core import policy as policies
from ...engine.core.policy import RetryPolicy
from ...engine.domain.task_options import GRACE_SECONDS
from ...engine.errors import FlowError
from ..text.figures import bar, number, number_table
from ..text.glyphs import glyphs_for
from ..text.text import echo, echo_json, echo_lines
from .group import command, command_with_commands
from .options import Number, json_option, seconds_of
from .output import with_schema

# --- ``redrive backoff``: the waits of a retry policy, their worst case and their spread (SPEC 000 and 004) ----------


BUCKETS_MAX = 20
BAR_CELLS = 40


@command("backoff")
@click.option("--base", default="2s", show_default=True, metavar="DURATION", help="The ceiling of the first wait.")
@click.option("--cap", default="10m", show_default=True, metavar="DURATION", help="The highest ceiling.")
@click.option("--factor", default=2.0, show_default=True, help="Multiplies each ceiling.")
@click.option(
    "--attempts", "max_attempts", default=10, show_default=True, type=Number(1, 1000), help="Attempts in all."
)
@click.option("--jitter", default="full", show_default=True, help="none, full, equal, decorrelated or add50.")
@click.option("--timeout", metavar="DURATION", help="Timeout of one attempt, for the worst case.")
@click.option(
    "--grace",
    default=f"{GRACE_SECONDS:g}s",
    show_default=True,
    metavar="DURATION",
    help="Between SIGTERM and SIGKILL of each attempt; 0s: of a call, which nothing kills.",
)
@click.option("--deadline", metavar="DURATION", help="Compared with the worst case.")
@click.option("--clients", default=0, type=Number(0, 1_000_000), metavar="N", help="Plot the retries of N clients.")
@click.option("--seed", type=int, help="Of the random numbers.")
@json_option
def backoff(
    base: str,
    cap: str,
    timeout: str | None,
    grace: str,
    deadline: str | None,
    clients: int,
    seed: int | None,
    as_json: bool,
    **given: Any,
) -> int:
    try:
        policy = RetryPolicy(base=seconds_of(base, "--base"), cap=seconds_of(cap, "--cap"), **given)
    except ValueError as error:
        raise FlowError(str(error)) from None
    limit = None if timeout is None else seconds_of(timeout, "--timeout")
    due = None if deadline is None else seconds_of(deadline, "--deadline")
    grace_seconds = seconds_of(grace, "--grace")
    if as_json:
        echo_json(with_schema("backoff", _facts(policy, limit, grace_seconds)))
        return 0
    dice = random.Random(seed)
    _print_waits(policy, dice)
    echo_lines(_sentences(policy, limit, grace_seconds, due))
    if clients:
        _print_spread(policy, clients, dice)
    return 0


# --- One policy -----------------------------------------------------------------------------------------------------


def _print_waits(policy: RetryPolicy, dice: random.Random) -> None:
    rows: list[Sequence[str]] = [("retry", "ceiling", "shortest", "longest", "sample", "longest so far", "")]
    waits = policies.planned_waits(policy)
    rows += [_wait_row(policy, wait, sample) for wait, sample in zip(waits, _draws(policy, dice), strict=False)]
    echo_lines(number_table(rows))


def _draws(policy: RetryPolicy, dice: random.Random) -> Iterator[float]:
    """Draw the waits of one task in order, at least one: a wait may depend on the one before."""
    previous: float | None = None
    for index in range(policy.max_attempts):
        previous, _ = policies.draw_delay(policy, index, previous, dice.uniform)
        yield previous


def _wait_row(policy: RetryPolicy, wait: policies.PlannedWait, sample: float) -> tuple[str, ...]:
    capped = "capped" if wait.ceiling >= policy.cap else ""
    spans = (wait.ceiling, wait.shortest, wait.longest, sample, wait.longest_total)
    return (str(wait.retry_index), *(f"{span:.2f} s" for span in spans), capped)


def _sentences(policy: RetryPolicy, timeout: float | None, grace: float, deadline: float | None) -> Iterator[str]:
    """The sum of the waits, the worst case beside the deadline, and what is unwise. Durations in seconds."""
    longest, mean = policies.worst_case_wait_seconds(policy), policies.mean_wait_seconds(policy)
    yield f"{policy.max_attempts} starts wait {longest:g} s at the most, {mean:g} s on average"
    if timeout is not None:
        worst = policies.worst_case_elapsed_seconds(policy, timeout, grace)
        kill = f"{timeout:g} s" + (f" + {grace:g} s" if grace else "")
        yield f"at the worst {policy.max_attempts} x ({kill}) + {longest:g} s of waiting = {worst:g} s"
        if deadline is not None:
            left = deadline - worst
            verdict = f"{left:g} s to spare" if left >= 0 else f"{-left:g} s too long"
            yield f"the deadline is {deadline:g} s: {verdict}"
    yield from (f"warning: {concern}" for concern in policies.policy_warnings(policy))


def _facts(policy: RetryPolicy, timeout: float | None, grace: float) -> dict[str, object]:
    return {
        "waits": [msgspec.to_builtins(wait) for wait in policies.planned_waits(policy)],
        "longest_seconds": policies.worst_case_wait_seconds(policy),
        "mean_seconds": policies.mean_wait_seconds(policy),
        "worst_case_seconds": None if timeout is None else policies.worst_case_elapsed_seconds(policy, timeout, grace),
        "warnings": list(policies.policy_warnings(policy)),
    }


# --- The spread -----------------------------------------------------------------------------------------------------


def spread(policy: RetryPolicy, clients: int, dice: random.Random) -> tuple[int, list[int]]:
    """Simulate the last wait of ``clients`` that failed together: seconds of a slice, and retries in each slice.

    A slice is at least one second, and long enough for at most ``BUCKETS_MAX`` slices.
    """
    last = max(policy.max_attempts - 2, 0)
    delays = [next(islice(_draws(policy, dice), last, None)) for _ in range(clients)]
    slice_seconds = max(1, math.ceil(max(delays) / BUCKETS_MAX))
    counts = [0] * (int(max(delays) / slice_seconds) + 1)
    for delay in delays:
        counts[int(delay / slice_seconds)] += 1
    return slice_seconds, counts


def _print_spread(policy: RetryPolicy, clients: int, dice: random.Random) -> None:
    glyphs = glyphs_for(sys.stdout.encoding)
    slice_seconds, counts = spread(policy, clients, dice)
    echo(f"\n{clients} clients that failed together come back for retry {max(0, policy.max_attempts - 2)} after:")
    for place, count in enumerate(counts):
        echo(f"{place * slice_seconds:6} s {count:6} {bar(count, max(counts), BAR_CELLS, glyphs)}".rstrip())


# --- ``redrive simulate``: the load of retry policies in herds and under contention, as tables ------------------------


CLIENTS = (10, 20, 50, 100, 150, 190)
_ATTEMPTS = 3  # of the policy in the column "lost"
_HERDS = 5  # simulations of which the table has the means
_CONTENTIONS = 20

#: Base, cap and the fixed delay of each scenario, in seconds (SPEC 000 to 004).
_POLICIES: dict[str, tuple[float, float, float]] = {
    "herd-100": (4, 60, 4),
    "herd-500": (1, 60, 1),
    "herd-1000": (1, 60, 1),
    "herd-5000": (2, 600, 30),
    "herd-12000": (2, 600, 30),
}


@command_with_commands("simulate")
def simulate() -> None:
    """Each policy is a line: what it costs the server, and how long the last client takes."""


@simulate.command("herd")
@click.option(
    "--scenario", default="herd-5000", show_default=True, metavar="NAME", help="Or herd-100, -500, -1000, -12000."
)
def print_herd(scenario: str) -> int:
    """Tasks that all call the same server when it comes back: PEAK is the load after that."""
    if scenario not in analysis.SCENARIOS:
        raise FlowError(f"there is no scenario {scenario!r}; there are {', '.join(sorted(analysis.SCENARIOS))}")
    model = analysis.SCENARIOS[scenario]
    base, cap, delay = _POLICIES[scenario]
    tried = {"fixed": policies.fixed_policy(delay), **analysis.with_jitter(RetryPolicy(base=base, cap=cap))}
    rows: list[Sequence[str]] = [("POLICY", "CALLS", "DONE", "PEAK", "STARTS", "MOST", "LOST", "OTHERS LOST")]
    rows += [_herd_row(name, model, policy) for name, policy in tried.items()]
    echo_lines([*_describe_herd(scenario, model), *number_table(rows)])
    return 0


def _herd_row(name: str, model: analysis.Scenario, policy: RetryPolicy) -> tuple[str, ...]:
    """Means over herds with unlimited attempts, and the share of tasks that a limit of attempts fails."""
    herds = [analysis.simulate_outage(model, policy, random.Random(seed)) for seed in range(_HERDS)]
    limited = replace(policy, max_attempts=_ATTEMPTS)
    budgeted = analysis.simulate_outage(model, limited, random.Random(0), spend_attempts=True)
    return (
        name,
        number(round(mean(herd.calls for herd in herds))),
        f"{mean(herd.last_done_seconds for herd in herds):,.0f} s",
        f"{mean(herd.peak_per_second for herd in herds):,.0f}/s",
        f"{mean(herd.attempts_mean for herd in herds):.1f}",
        f"{mean(herd.attempts_max for herd in herds):.0f}",
        f"{budgeted.failed / model.clients:.0%}",
        number(round(mean(herd.usual_refused for herd in herds))),
    )


def _describe_herd(scenario: str, model: analysis.Scenario) -> Iterator[str]:
    down = f", down for {model.outage_seconds:g} s" if model.outage_seconds else ""
    spread = f" within {model.arrival_seconds:g} s" if model.arrival_seconds else ""
    others = f", {model.usual_per_second:g}/s of others" if model.usual_per_second else ""
    yield f"{scenario}: {number(model.clients)} tasks{spread}, a server of {model.per_second:g}/s{others}{down}"
    yield f"at best all are done after {model.ideal_seconds:.0f} s; lost: with {_ATTEMPTS} attempts each"


@simulate.command("contention")
def print_contention() -> int:
    """Clients that write one row, each until it succeeds once: the model of Brooker's post (AWS, 2015)."""
    found = {
        name: [
            analysis.simulate_contention(count, policy, random.Random(0), _CONTENTIONS, first_index=1)
            for count in CLIENTS
        ]
        for name, policy in analysis.CONTENTION_POLICIES.items()
    }
    for title, scale, figure in (("calls", 1, attrgetter("calls")), ("ms", 1000, attrgetter("seconds"))):
        rows: list[Sequence[str]] = [(title, *found)]
        for place, count in enumerate(CLIENTS):
            rows.append((number(count), *(f"{scale * figure(results[place]):,.0f}" for results in found.values())))
        echo_lines(number_table(rows))
    return 0
