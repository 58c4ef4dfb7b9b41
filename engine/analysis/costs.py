"""What the attempts of a run cost and what the retries were worth: slot seconds by how they ended (000.04, 000.06).

"Every retry is a free copy of the original work" is how a retry budget gets spent on what cannot heal. So the seconds
are split by failure mode, and those of a failure that had been seen before are counted as wasted. The retry ledger
(SPEC part 4, 7) holds the price of each retry of a policy against its yield, and finds the retries that nobody needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core.outcome import FailureMode
from ..core.policy import RetryPolicy
from ..core.projection import AttemptRow, RunFold, TaskRow
from ..core.ready_queue import spec_of
from ..domain.states import MOVING

SUCCESS = "success"
NO_DOWNSTREAM = ""

#: From this share of successes that needed a retry on, a downstream is degraded although everything completes (004.17).
DEGRADED_SHARE = 0.5
DEGRADED_SUCCESSES_MIN = 5  # a share of fewer means nothing

#: Retries are worth cutting where of each at most this share healed anything, and all cost so much of the slots.
CUT_YIELD_MAX = 0.05
CUT_COST_MIN = 0.1
CUT_STARTS_MIN = 10  # of fewer starts nothing is concluded

_COUNTED_FAILURES = frozenset(["error", "timed_out"])  # what spends the budget; losses and deferrals do not


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


@dataclass(slots=True)
class Tries:
    """The starts of one policy that came after equally many failures. ``seconds`` of slots."""

    starts: int = 0
    healed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tail:
    """The retries ``first`` to ``last`` of a policy, and what would be saved and lost without them.

    ``healed_share`` of all tasks; ``cost_share`` of all slot seconds under this policy.
    """

    first: int
    last: int
    starts: int
    healed: int
    healed_share: float
    seconds: float
    cost_share: float


@dataclass(frozen=True, slots=True)
class PolicyLedger:
    """What one policy against one downstream came to. ``tries``: by the failures before; 0 is the first try.

    ``tasks``: that were started, each generation counted; ``undecided``: those of them that may still be retried.
    """

    downstream: str
    policy: RetryPolicy
    tasks: int
    undecided: int
    tries: tuple[Tries, ...]

    def tail(self, first: int) -> Tail:
        """The retries from ``first`` (1: the first retry) on."""
        part = self.tries[first:]
        healed, seconds = sum(one.healed for one in part), sum(one.seconds for one in part)
        everything = sum(one.seconds for one in self.tries)
        return Tail(
            first=first,
            last=len(self.tries) - 1,
            starts=sum(one.starts for one in part),
            healed=healed,
            healed_share=healed / self.tasks if self.tasks else 0.0,
            seconds=seconds,
            cost_share=seconds / everything if everything else 0.0,
        )

    def cut(self) -> Tail | None:
        """The last retries, as many as heal next to nothing each, if they are dear; else None."""
        first = len(self.tries)
        while first > 1 and self.tries[first - 1].healed <= CUT_YIELD_MAX * self.tries[first - 1].starts:
            first -= 1
        tail = self.tail(first)
        return tail if tail.starts >= CUT_STARTS_MIN and tail.cost_share >= CUT_COST_MIN else None


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
            elif attempt.outcome in _COUNTED_FAILURES:
                failures[attempt.generation] += 1
    return [Yield(downstream, dict(sorted(counts.items()))) for downstream, counts in sorted(found.items())]


def retry_ledger(fold: RunFold) -> list[PolicyLedger]:
    """Price and yield of the retries, by downstream and policy: those that cost most first."""
    groups: dict[tuple[str, RetryPolicy], list[TaskRow]] = {}
    for row in fold.tasks.values():
        if row.attempts:
            spec = spec_of(row)
            groups.setdefault((spec.downstream or NO_DOWNSTREAM, spec.retry), []).append(row)
    ledgers = [_ledger_of(downstream, policy, rows) for (downstream, policy), rows in groups.items()]
    return sorted(ledgers, key=lambda one: -one.tail(1).seconds)


def _ledger_of(downstream: str, policy: RetryPolicy, rows: list[TaskRow]) -> PolicyLedger:
    tries: dict[int, Tries] = {0: Tries()}
    started: set[tuple[str, int]] = set()
    for row in rows:
        failures: Counter[int] = Counter()
        for attempt, _ in _ended(row):
            started.add((row.name, attempt.generation))
            some = tries.setdefault(failures[attempt.generation], Tries())
            some.starts += 1
            some.seconds += _seconds(attempt)
            some.healed += attempt.outcome == SUCCESS
            failures[attempt.generation] += attempt.outcome in _COUNTED_FAILURES
    in_order = tuple(tries.get(number, Tries()) for number in range(max(tries) + 1))
    undecided = sum(1 for row in rows if row.state in MOVING)
    return PolicyLedger(downstream, policy, len(started), undecided, in_order)


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
