"""``redrive backoff``: the waits of a retry policy, their worst case and their spread (SPEC 000 and 004)."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from ....engine.core.policy import (
    Jitter,
    PlannedWait,
    RetryPolicy,
    draw_delay,
    mean_wait_seconds,
    planned_waits,
    policy_warnings,
    worst_case_elapsed_seconds,
    worst_case_wait_seconds,
)
from ....engine.errors import FlowError
from ...text.glyphs import glyphs_for
from ...text.plots import bar, table_lines
from ...text.printing import echo, echo_json, echo_lines
from ..output.json_schemas import echo_values, with_schema

ALL_JITTERS = "all"
BUCKETS_MAX = 20
BAR_CELLS = 40
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class BackoffExperiment:
    """The settings beside the policy; durations in seconds."""

    seed: int | None = None
    clients: int = 0  # that failed together; plot when they retry
    timeout: float | None = None
    grace_seconds: float = 0.0
    deadline: float | None = None
    as_json: bool = False


def print_backoff(policy: RetryPolicy, jitter: str, experiment: BackoffExperiment) -> int:
    """Print every wait with its bounds, the sums, the worst case, and the spread of clients."""
    dice = random.Random(experiment.seed)
    if jitter == ALL_JITTERS:
        _compare(policy, dice, experiment)
        return 0
    policy = policy_of(policy, jitter=jitter)
    if experiment.as_json:
        echo_json(with_schema("backoff", _facts(policy, experiment)))
        return 0
    _print_waits(policy, dice)
    echo_lines(_sentences(policy, experiment))
    if experiment.clients:
        _print_spread(policy, experiment.clients, dice)
    return 0


def policy_of(policy: RetryPolicy | None = None, **fields: Any) -> RetryPolicy:
    """A policy from the command line. Raises FlowError for invalid values."""
    try:
        return replace(policy or RetryPolicy(), **fields)
    except ValueError as error:
        raise FlowError(str(error)) from None


# --- One policy -----------------------------------------------------------------------------------------------------


def _print_waits(policy: RetryPolicy, dice: random.Random) -> None:
    rows: list[Sequence[str]] = [("retry", "ceiling", "shortest", "longest", "sample", "longest so far", "")]
    previous: float | None = None
    for wait in planned_waits(policy):
        previous, _ = draw_delay(policy, wait.retry_index, previous, dice.uniform)
        rows.append(_wait_row(policy, wait, previous))
    echo_lines(table_lines(rows))


def _wait_row(policy: RetryPolicy, wait: PlannedWait, sample: float) -> tuple[str, ...]:
    capped = "capped" if wait.ceiling >= policy.cap else ""
    spans = (wait.ceiling, wait.shortest, wait.longest, sample, wait.longest_total)
    return (str(wait.retry_index), *(f"{span:.2f} s" for span in spans), capped)


def _sentences(policy: RetryPolicy, experiment: BackoffExperiment) -> Iterator[str]:
    longest, mean = worst_case_wait_seconds(policy), mean_wait_seconds(policy)
    yield f"{policy.max_attempts} starts wait {longest:g} s at the most, {mean:g} s on average"
    if experiment.timeout is not None:
        worst = worst_case_elapsed_seconds(policy, experiment.timeout, experiment.grace_seconds)
        kill = f"{experiment.timeout:g} s" + (f" + {experiment.grace_seconds:g} s" if experiment.grace_seconds else "")
        yield f"at the worst {policy.max_attempts} x ({kill}) + {longest:g} s of waiting = {worst:g} s"
        if experiment.deadline is not None:
            left = experiment.deadline - worst
            verdict = f"{left:g} s to spare" if left >= 0 else f"{-left:g} s too long"
            yield f"the deadline is {experiment.deadline:g} s: {verdict}"
    yield from (f"warning: {concern}" for concern in policy_warnings(policy))


def _facts(policy: RetryPolicy, experiment: BackoffExperiment) -> dict[str, object]:
    worst = worst_case_elapsed_seconds(policy, experiment.timeout, experiment.grace_seconds)
    return {
        "waits": [asdict(wait) for wait in planned_waits(policy)],
        "longest_seconds": worst_case_wait_seconds(policy),
        "mean_seconds": mean_wait_seconds(policy),
        "worst_case_seconds": worst if math.isfinite(worst) else None,
        "warnings": list(policy_warnings(policy)),
    }


# --- The spread -----------------------------------------------------------------------------------------------------


def spread(policy: RetryPolicy, clients: int, dice: random.Random) -> tuple[int, list[int]]:
    """Simulate the last wait of ``clients`` that failed together: seconds of a slice, and retries in each slice.

    A slice is at least one second, and long enough for at most ``BUCKETS_MAX`` slices.
    """
    delays = [_last_delay(policy, dice) for _ in range(clients)]
    slice_seconds = max(1, math.ceil(max(delays) / BUCKETS_MAX))
    counts = [0] * (int(max(delays) / slice_seconds) + 1)
    for delay in delays:
        counts[int(delay / slice_seconds)] += 1
    return slice_seconds, counts


def _last_delay(policy: RetryPolicy, dice: random.Random) -> float:
    previous: float | None = None
    for index in range(max(1, policy.max_attempts - 1)):
        previous, _ = draw_delay(policy, index, previous, dice.uniform)
    assert previous is not None
    return previous


def _print_spread(policy: RetryPolicy, clients: int, dice: random.Random) -> None:
    glyphs = glyphs_for(sys.stdout.encoding)
    slice_seconds, counts = spread(policy, clients, dice)
    echo(f"\n{clients} clients that failed together come back for retry {max(0, policy.max_attempts - 2)} after:")
    for place, count in enumerate(counts):
        echo(f"{place * slice_seconds:6} s {count:6} {bar(count, max(counts), BAR_CELLS, glyphs)}".rstrip())


# --- Every jitter ---------------------------------------------------------------------------------------------------


def _compare(policy: RetryPolicy, dice: random.Random, experiment: BackoffExperiment) -> None:
    found = {jitter: _totals(policy_of(policy, jitter=jitter), dice) for jitter in get_args(Jitter)}
    if experiment.as_json:
        echo_values("jitters", ({"jitter": name, **totals} for name, totals in found.items()))
        return
    rows: list[Sequence[str]] = [("jitter", "least", "5 %", "median", "95 %", "most")]
    rows += [(jitter, *(f"{value:.1f} s" for value in totals.values())) for jitter, totals in found.items()]
    echo(f"what {policy.max_attempts} starts wait in all, of {DRAWS} draws:")
    echo_lines(table_lines(rows))


def _totals(policy: RetryPolicy, dice: random.Random) -> dict[str, float]:
    totals = sorted(_total(policy, dice) for _ in range(DRAWS))
    places = {"least": 0, "p5": DRAWS // 20, "median": DRAWS // 2, "p95": DRAWS - 1 - DRAWS // 20, "most": DRAWS - 1}
    return {name: totals[place] for name, place in places.items()}


def _total(policy: RetryPolicy, dice: random.Random) -> float:
    total, previous = 0.0, None
    for index in range(policy.max_attempts - 1):
        previous, _ = draw_delay(policy, index, previous, dice.uniform)
        total += previous
    return total
