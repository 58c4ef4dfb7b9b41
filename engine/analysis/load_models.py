"""What a retry policy does to others: two models, with the dice as an argument.

``contend`` is the model behind the AWS post on backoff and jitter, which document 000 retells as a fixed throughput: it
is n clients that write one row under optimistic concurrency, each until it has succeeded once. Waiting costs time there
and saves calls; contention itself is cheap.

``outage`` is what document 000 means: many tasks against a server of fixed throughput that is down at first. It has a
queue of one second and refuses what does not fit. Here one sees the herd, and how many starts a task needs to survive.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

from ..core.policy import RetryPolicy, draw


class Dice(Protocol):
    """``random.Random`` is one."""

    def uniform(self, a: float, b: float, /) -> float:
        """One number between both."""

    def normalvariate(self, mu: float, sigma: float, /) -> float:
        """One number about ``mu``."""


# --- contention on one row ----------------------------------------------------------------------------------------

NETWORK_MEAN_SECONDS = 0.010
NETWORK_DEVIATION_SECONDS = 0.002

#: The five policies of the post. Its retry counter starts at 1, so its first ceiling is twice the base.
CONTENTION_POLICIES: dict[str, RetryPolicy] = {
    "none": RetryPolicy(base=0.0, cap=0.0, jitter="none"),
    "exponential": RetryPolicy(base=0.005, cap=2.0, jitter="none"),
    "equal": RetryPolicy(base=0.005, cap=2.0, jitter="equal"),
    "full": RetryPolicy(base=0.005, cap=2.0, jitter="full"),
    "decorrelated": RetryPolicy(base=0.005, cap=2.0, jitter="decorrelated"),
}


@dataclass(frozen=True, slots=True)
class Contention:
    """Means over the runs: writes that reached the server, and seconds until the last client was done."""

    calls: float
    seconds: float


def contend(clients: int, policy: RetryPolicy, dice: Dice, runs: int = 1, first_index: int = 1) -> Contention:
    """Let ``clients`` write one row, each until it succeeds once. ``first_index`` 0 counts as this engine does."""
    results = [_contend_once(clients, policy, dice, first_index) for _ in range(runs)]
    return Contention(sum(calls for calls, _ in results) / runs, sum(seconds for _, seconds in results) / runs)


def _contend_once(clients: int, policy: RetryPolicy, dice: Dice, first_index: int) -> tuple[int, float]:
    """Events at the server alone: (time, client, version read or None for a read), in order of time."""
    version = calls = 0
    done_at = 0.0
    tries = [0] * clients
    delays: list[float | None] = [None] * clients
    events: list[tuple[float, int, int | None]] = [(_hop(dice), client, None) for client in range(clients)]
    heapq.heapify(events)
    while events:
        now, client, seen = heapq.heappop(events)
        if seen is None:  # a read: the answer goes back, the write comes
            heapq.heappush(events, (now + _hop(dice) + _hop(dice), client, version))
            continue
        calls += 1
        if seen == version:
            version += 1
            done_at = max(done_at, now + _hop(dice))
            continue
        delay, _ = draw(policy, tries[client] + first_index, delays[client], dice.uniform)
        tries[client], delays[client] = tries[client] + 1, delay
        heapq.heappush(events, (now + _hop(dice) + _hop(dice) + delay, client, None))
    return calls, done_at


def _hop(dice: Dice) -> float:
    return abs(dice.normalvariate(NETWORK_MEAN_SECONDS, NETWORK_DEVIATION_SECONDS))


# --- a herd before a server that comes back -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scenario:
    """Tasks that all want the same server at second 0."""

    clients: int
    per_second: float  # what the server can do
    outage_seconds: float = 0.0  # from second 0 on it refuses everybody
    queue_seconds: float = 1.0  # it takes what it can begin within this time

    @property
    def ideal_seconds(self) -> float:
        """When everybody could be done if nobody ever came in vain."""
        return self.outage_seconds + self.clients / self.per_second


#: The stories of the documents. Throughputs that they do not tell are chosen to match what they do.
SCENARIOS: dict[str, Scenario] = {
    "herd-1000": Scenario(1000, per_second=50),
    "herd-5000": Scenario(5000, per_second=100, outage_seconds=120),  # 000.07
    "herd-12000": Scenario(12_000, per_second=50, outage_seconds=90),  # 000.08: in 30 s it is 8 x the 50/s of a day
    "herd-500": Scenario(500, per_second=8.5),  # 004.19: 500 workers a minute
}


@dataclass(frozen=True, slots=True)
class Herd:
    """What came of it.

    ``peak_per_second`` is the worst second from the recovery on. The very first second is left out: there they all come
    for the first time, whatever their policy.
    """

    calls: int
    last_done_seconds: float
    peak_per_second: int
    attempts_max: int
    attempts_mean: float
    calls_per_second: tuple[int, ...]  # the load, second by second, for a plot
    failed: int  # tasks whose attempts were spent


def outage(
    scenario: Scenario, policy: RetryPolicy, dice: Dice, *, spend_attempts: bool = False, seconds_max: int = 86_400
) -> Herd:
    """Let all tasks of a scenario retry until they are through.

    ``spend_attempts`` makes them give up after ``policy.max_attempts``; otherwise they go on, to show what it takes.
    """
    herd = _Arrivals(scenario)
    attempts = [0] * scenario.clients
    delays: list[float | None] = [None] * scenario.clients
    failed = 0
    events = [(0.0, client) for client in range(scenario.clients)]
    while events and events[0][0] < seconds_max:
        now, client = heapq.heappop(events)
        attempts[client] += 1
        if herd.take(now):
            continue
        if spend_attempts and attempts[client] >= policy.max_attempts:
            failed += 1
            continue
        delay, _ = draw(policy, attempts[client] - 1, delays[client], dice.uniform)
        delays[client] = delay
        heapq.heappush(events, (now + delay, client))
    return herd.told(attempts, failed + len(events))


class _Arrivals:
    """The server, and who came when."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.free_at = scenario.outage_seconds  # when it has worked off what it took
        self.per_second: Counter[int] = Counter()

    def take(self, now: float) -> bool:
        """Take a task in, or refuse it at once."""
        self.per_second[int(now)] += 1
        if now < self.scenario.outage_seconds:
            return False
        begin_at = max(now, self.free_at)
        if begin_at - now >= self.scenario.queue_seconds:
            return False
        self.free_at = begin_at + 1 / self.scenario.per_second
        return True

    def told(self, attempts: list[int], failed: int) -> Herd:
        calls = sum(attempts)
        recovered_at = max(1, int(self.scenario.outage_seconds))
        return Herd(
            calls=calls,
            last_done_seconds=self.free_at,
            peak_per_second=max((load for at, load in self.per_second.items() if at >= recovered_at), default=0),
            attempts_max=max(attempts, default=0),
            attempts_mean=calls / len(attempts) if attempts else 0.0,
            calls_per_second=tuple(self.per_second[second] for second in range(max(self.per_second, default=-1) + 1)),
            failed=failed,
        )


def with_jitter(policy: RetryPolicy) -> dict[str, RetryPolicy]:
    """Return a policy under every jitter, by name, to be compared."""
    return {jitter: replace(policy, jitter=jitter) for jitter in ("none", "equal", "full", "decorrelated", "add50")}
