"""What the attempts of a run cost and what the retries were worth: slot seconds by how they ended (000.04, 000.06).

"Every retry is a free copy of the original work" is how a retry budget gets spent on what cannot heal. So the seconds
are split by failure mode, and those of a failure that had been seen before are counted as wasted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .fold import AttemptRow, RunFold, TaskRow
from .ledger import spec_of
from .outcome import FailureMode

SUCCESS = "success"
NO_DOWNSTREAM = ""

#: From this share of successes that needed a retry on, a downstream is degraded although everything completes (004.17).
DEGRADED_SHARE = 0.5
DEGRADED_SUCCESSES_MIN = 5  # a share of fewer means nothing


@dataclass(slots=True)
class Cost:
    """``wasted_seconds``: of attempts that failed just as an earlier one of the same generation had."""

    attempts: int = 0
    seconds: float = 0.0
    wasted_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Yield:
    """How many tasks of one downstream succeeded after so many failures. ``by_failures``: 0 is the first try."""

    downstream: str
    by_failures: dict[int, int]

    @property
    def recovered_share(self) -> float:
        """Of all successes, those that needed a retry."""
        successes = sum(self.by_failures.values())
        return (successes - self.by_failures.get(0, 0)) / successes if successes else 0.0

    @property
    def is_degraded(self) -> bool:
        """The warning before the outage."""
        enough = sum(self.by_failures.values()) >= DEGRADED_SUCCESSES_MIN
        return enough and self.recovered_share >= DEGRADED_SHARE


def costs_of(fold: RunFold) -> dict[str, Cost]:
    """By how the attempt ended: "success", or the failure mode; attempts that run still are left out."""
    costs: dict[str, Cost] = {}
    for row in fold.tasks.values():
        for attempt, seen_before in _ended(row):
            cost = costs.setdefault(_how(attempt), Cost())
            cost.attempts += 1
            seconds = _seconds(attempt)
            cost.seconds += seconds
            cost.wasted_seconds += seconds if seen_before else 0.0
    return costs


def yields_of(fold: RunFold) -> list[Yield]:
    """What retries healed, downstream by downstream; tasks without one are under the empty name."""
    found: dict[str, Counter[int]] = {}
    for row in fold.tasks.values():
        failures: Counter[int] = Counter()
        for attempt, _ in _ended(row):
            if attempt.outcome == SUCCESS:
                downstream = spec_of(row).downstream or NO_DOWNSTREAM
                found.setdefault(downstream, Counter())[failures[attempt.generation]] += 1
            elif attempt.outcome in ("error", "timed_out"):
                failures[attempt.generation] += 1
    return [Yield(downstream, dict(sorted(counts.items()))) for downstream, counts in sorted(found.items())]


def _ended(row: TaskRow) -> Iterator[tuple[AttemptRow, bool]]:
    """Attempts that are over, in order, and whether this very failure had been seen in the generation."""
    seen: set[tuple[int, str]] = set()
    for number in sorted(row.attempts):
        attempt = row.attempts[number]
        if attempt.ended_at is None:
            continue
        mark = (attempt.generation, attempt.fingerprint or "")
        yield attempt, bool(attempt.fingerprint) and mark in seen
        seen.add(mark)


def _how(attempt: AttemptRow) -> str:
    return SUCCESS if attempt.outcome == SUCCESS else attempt.failure_mode or str(FailureMode.OTHER)


def _seconds(attempt: AttemptRow) -> float:
    if attempt.duration_us is not None:
        return attempt.duration_us / 1e6
    return max(0, (attempt.ended_at or attempt.started_at) - attempt.started_at) / 1e6


def total(costs: Iterable[Cost]) -> Cost:
    """The sum."""
    found = list(costs)
    return Cost(
        sum(cost.attempts for cost in found),
        sum(cost.seconds for cost in found),
        sum(cost.wasted_seconds for cost in found),
    )
