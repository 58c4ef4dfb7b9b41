"""Computes what the attempts of a run cost in slot seconds, and what its retries achieved (000.04, 000.06).

Slot seconds are split by failure mode; the seconds of a failure that repeats an earlier one count as wasted. The costs
of a policy (SPEC part 4, 7) compare the price of each retry with its successes, and find retries that could go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core.outcome import FailureMode
from ..core.policy import RetryPolicy
from ..core.projection import AttemptRow, RunProjection, TaskRow
from ..core.ready_queue import spec_of
from ..domain.states import FAILED_OUTCOMES, MOVING

SUCCESS = "success"
NO_DOWNSTREAM = ""

#: From this share of successes after a retry on, a downstream is degraded although every task completes (004.17).
DEGRADED_SHARE = 0.5
DEGRADED_SUCCESSES_MIN = 5  # with fewer successes the share means nothing

#: Retries could go where at most this share of each succeeded, and together they took this share of the slots.
CUT_YIELD_MAX = 0.05
CUT_COST_MIN = 0.1
CUT_STARTS_MIN = 10  # with fewer starts the shares mean nothing


@dataclass(slots=True)
class Cost:
    """``wasted_seconds``: of attempts that repeated an earlier failure of the same generation."""

    attempts: int = 0
    seconds: float = 0.0
    wasted_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryYield:
    """Successes on one downstream. ``by_failures``: failures before the success -> number of tasks."""

    downstream: str
    by_failures: dict[int, int]

    @property
    def recovered_share(self) -> float:
        """Share of the successes that needed a retry."""
        successes = sum(self.by_failures.values())
        return (successes - self.by_failures.get(0, 0)) / successes if successes else 0.0

    @property
    def is_degraded(self) -> bool:
        enough = sum(self.by_failures.values()) >= DEGRADED_SUCCESSES_MIN
        return enough and self.recovered_share >= DEGRADED_SHARE


@dataclass(slots=True)
class RetryStats:
    """The starts of one policy after the same number of failures. ``seconds``: slot seconds."""

    starts: int = 0
    healed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryTail:
    """The retries ``first`` to ``last`` of a policy, with their successes and costs.

    ``healed_share``: of all tasks; ``cost_share``: of all slot seconds under this policy.
    """

    first: int
    last: int
    starts: int
    healed: int
    healed_share: float
    seconds: float
    cost_share: float


@dataclass(frozen=True, slots=True)
class PolicyCosts:
    """The results of one policy on one downstream. ``tries[n]``: the starts after n failures.

    ``tasks``: started tasks, each generation counted; ``undecided``: those of them that may still be retried.
    """

    downstream: str
    policy: RetryPolicy
    tasks: int
    undecided: int
    tries: tuple[RetryStats, ...]

    def retries_from(self, first: int) -> RetryTail:
        """Sum up the retries from number ``first`` (1: the first retry) on."""
        part = self.tries[first:]
        healed, seconds = sum(one.healed for one in part), sum(one.seconds for one in part)
        all_seconds = sum(one.seconds for one in self.tries)
        return RetryTail(
            first=first,
            last=len(self.tries) - 1,
            starts=sum(one.starts for one in part),
            healed=healed,
            healed_share=healed / self.tasks if self.tasks else 0.0,
            seconds=seconds,
            cost_share=seconds / all_seconds if all_seconds else 0.0,
        )

    def removable_retries(self) -> RetryTail | None:
        """Return the last retries that rarely succeed and cost much; None if there are none."""
        first = len(self.tries)
        while first > 1 and self.tries[first - 1].healed <= CUT_YIELD_MAX * self.tries[first - 1].starts:
            first -= 1
        tail = self.retries_from(first)
        return tail if tail.starts >= CUT_STARTS_MIN and tail.cost_share >= CUT_COST_MIN else None


def costs_by_outcome(projection: RunProjection) -> dict[str, Cost]:
    """Costs by "success" or failure mode; running attempts are left out."""
    costs: dict[str, Cost] = {}
    for row in projection.tasks.values():
        for attempt, seen_before in _ended_attempts(row):
            cost = costs.setdefault(_outcome_key(attempt), Cost())
            cost.attempts += 1
            seconds = _seconds(attempt)
            cost.seconds += seconds
            cost.wasted_seconds += seconds if seen_before else 0.0
    return costs


def retry_yields(projection: RunProjection) -> list[RetryYield]:
    """Successes by number of failures, per downstream; "" stands for tasks without one."""
    by_downstream: dict[str, Counter[int]] = {}
    for row in projection.tasks.values():
        failures: Counter[int] = Counter()
        for attempt, _ in _ended_attempts(row):
            if attempt.outcome == SUCCESS:
                downstream = spec_of(row).downstream or NO_DOWNSTREAM
                by_downstream.setdefault(downstream, Counter())[failures[attempt.generation]] += 1
            elif attempt.outcome in FAILED_OUTCOMES:
                failures[attempt.generation] += 1
    return [
        RetryYield(downstream, dict(sorted(counts.items()))) for downstream, counts in sorted(by_downstream.items())
    ]


def policy_costs(projection: RunProjection) -> list[PolicyCosts]:
    """Costs and successes of the retries by downstream and policy, the most expensive first."""
    groups: dict[tuple[str, RetryPolicy], list[TaskRow]] = {}
    for row in projection.tasks.values():
        if row.attempts:
            spec = spec_of(row)
            groups.setdefault((spec.downstream or NO_DOWNSTREAM, spec.retry), []).append(row)
    results = [_costs_of_policy(downstream, policy, rows) for (downstream, policy), rows in groups.items()]
    return sorted(results, key=lambda one: -one.retries_from(1).seconds)


def _costs_of_policy(downstream: str, policy: RetryPolicy, rows: list[TaskRow]) -> PolicyCosts:
    tries: dict[int, RetryStats] = {0: RetryStats()}
    started: set[tuple[str, int]] = set()
    for row in rows:
        failures: Counter[int] = Counter()
        for attempt, _ in _ended_attempts(row):
            started.add((row.name, attempt.generation))
            stats = tries.setdefault(failures[attempt.generation], RetryStats())
            stats.starts += 1
            stats.seconds += _seconds(attempt)
            stats.healed += attempt.outcome == SUCCESS
            failures[attempt.generation] += attempt.outcome in FAILED_OUTCOMES
    by_failures = tuple(tries.get(number, RetryStats()) for number in range(max(tries) + 1))
    undecided = sum(1 for row in rows if row.state in MOVING)
    return PolicyCosts(downstream, policy, len(started), undecided, by_failures)


def _ended_attempts(row: TaskRow) -> Iterator[tuple[AttemptRow, bool]]:
    """Ended attempts in order, each with whether the generation had the same failure before."""
    seen: set[tuple[int, str]] = set()
    for number in sorted(row.attempts):
        attempt = row.attempts[number]
        if attempt.ended_at is None:
            continue
        mark = (attempt.generation, attempt.fingerprint or "")
        yield attempt, bool(attempt.fingerprint) and mark in seen
        seen.add(mark)


def _outcome_key(attempt: AttemptRow) -> str:
    return SUCCESS if attempt.outcome == SUCCESS else attempt.failure_mode or str(FailureMode.OTHER)


def _seconds(attempt: AttemptRow) -> float:
    if attempt.duration_us is not None:
        return attempt.duration_us / 1e6
    return max(0, (attempt.ended_at or attempt.started_at) - attempt.started_at) / 1e6


def total(costs: Iterable[Cost]) -> Cost:
    found = list(costs)
    return Cost(
        sum(cost.attempts for cost in found),
        sum(cost.seconds for cost in found),
        sum(cost.wasted_seconds for cost in found),
    )
