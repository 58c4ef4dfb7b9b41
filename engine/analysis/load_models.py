"""Two models of the load that a retry policy causes, with the random numbers as an argument.

``simulate_contention`` is the model behind the AWS post on backoff and jitter: n clients write one row under
optimistic concurrency, each until it has succeeded once. Waiting costs time there and saves calls. (000.45 retells
it as a server of fixed throughput.)

``simulate_outage`` is a server of fixed throughput that is down at first, and many tasks that call it. The server
has a queue of one second and refuses what does not fit. The model shows the herd, and how many attempts a task
needs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import Protocol

import msgspec

from ..core.policy import RetryPolicy, draw_delay


class RandomSource(Protocol):
    """The methods of ``random.Random`` that the models use."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between ``a`` and ``b``."""

    def normalvariate(self, mu: float, sigma: float, /) -> float:
        """Return a number from the normal distribution around ``mu``."""


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


class ContentionResult(msgspec.Struct, frozen=True):
    """Means over the runs: writes at the server, and seconds until the last client succeeded."""

    calls: float
    seconds: float


def simulate_contention(
    clients: int, policy: RetryPolicy, rng: RandomSource, runs: int = 1, first_index: int = 1
) -> ContentionResult:
    """Let ``clients`` write one row, each until it succeeds once.

    ``first_index``: the index of the first retry, which sets its ceiling; this engine starts at 0.
    """
    results = [_contend_once(clients, policy, rng, first_index) for _ in range(runs)]
    return ContentionResult(sum(calls for calls, _ in results) / runs, sum(seconds for _, seconds in results) / runs)


def _contend_once(clients: int, policy: RetryPolicy, rng: RandomSource, first_index: int) -> tuple[int, float]:
    """Simulate the events at the server: (seconds, client, version read, or None for a read)."""
    version = calls = 0
    done_at = 0.0
    retries = [0] * clients
    delays: list[float | None] = [None] * clients
    events: list[tuple[float, int, int | None]] = [(_network_delay(rng), client, None) for client in range(clients)]
    heapq.heapify(events)
    while events:
        now, client, seen = heapq.heappop(events)
        if seen is None:  # a read: the response travels back, the write follows
            heapq.heappush(events, (now + _network_delay(rng) + _network_delay(rng), client, version))
            continue
        calls += 1
        if seen == version:
            version += 1
            done_at = max(done_at, now + _network_delay(rng))
            continue
        delay, _ = draw_delay(policy, retries[client] + first_index, delays[client], rng.uniform)
        retries[client], delays[client] = retries[client] + 1, delay
        heapq.heappush(events, (now + _network_delay(rng) + _network_delay(rng) + delay, client, None))
    return calls, done_at


def _network_delay(rng: RandomSource) -> float:
    return abs(rng.normalvariate(NETWORK_MEAN_SECONDS, NETWORK_DEVIATION_SECONDS))


# --- a herd of clients and a server that recovers -----------------------------------------------------------------


class Scenario(msgspec.Struct, frozen=True):
    """Tasks that all call the same server."""

    clients: int
    per_second: float  # throughput of the server
    outage_seconds: float = 0.0  # from second 0 on the server refuses every call
    queue_seconds: float = 1.0  # the server accepts calls that it can begin within this time
    usual_per_second: float = 0.0  # calls of others, evenly, which are not tried again
    arrival_seconds: float = 0.0  # the first calls are spread evenly over this time; 0: all of them come at second 0

    @property
    def ideal_seconds(self) -> float:
        """The time to serve every client beside the usual calls if no call were refused."""
        return self.outage_seconds + self.clients / (self.per_second - self.usual_per_second)

    def arrival(self, client: int) -> float:
        """Return the second of the first call of a client."""
        return self.arrival_seconds * client / self.clients


#: The incidents of the source documents; throughputs that those do not give are chosen to match the incidents.
SCENARIOS: dict[str, Scenario] = {
    # 004.21: without jitter all of them come back in one second, with jitter over four
    "herd-100": Scenario(100, per_second=120, outage_seconds=0.5),
    # 004.19: 500 workers that call once a minute; a spike of 200 ms, and 8 calls a second become 508
    "herd-500": Scenario(500, per_second=13, outage_seconds=0.2, usual_per_second=8),
    "herd-1000": Scenario(1000, per_second=50),
    # 000.07: two minutes
    "herd-5000": Scenario(5000, per_second=100, outage_seconds=120),
    # 000.08: 12,000 tasks within 30 s beside 57/s are 8 times the usual load, for 18 minutes under a fixed wait
    "herd-12000": Scenario(12_000, per_second=63.2, usual_per_second=57, arrival_seconds=30),
}


class HerdResult(msgspec.Struct, frozen=True):
    """The result of a scenario.

    ``peak_per_second``: calls in the worst second since the recovery, without second 0, in which all clients call for
    the first time under any policy.
    """

    calls: int
    last_done_seconds: float
    peak_per_second: int
    attempts_max: int
    attempts_mean: float
    calls_per_second: tuple[int, ...]  # for a plot; those of others included
    failed: int  # tasks without success
    usual_refused: int = 0  # calls of others that the server refused


def simulate_outage(
    scenario: Scenario,
    policy: RetryPolicy,
    rng: RandomSource,
    *,
    spend_attempts: bool = False,
    seconds_max: int = 86_400,
) -> HerdResult:
    """Let all tasks of a scenario retry until they succeed.

    ``spend_attempts`` makes them give up after ``policy.max_attempts``.
    """
    server = Server(scenario)
    attempts = [0] * scenario.clients
    delays: list[float | None] = [None] * scenario.clients
    failed = 0
    events = [(scenario.arrival(client), client) for client in range(scenario.clients)]
    while events and events[0][0] < seconds_max:
        now, client = heapq.heappop(events)
        attempts[client] += 1
        if server.accept(now):
            continue
        if spend_attempts and attempts[client] >= policy.max_attempts:
            failed += 1
            continue
        delay, _ = draw_delay(policy, attempts[client] - 1, delays[client], rng.uniform)
        delays[client] = delay
        heapq.heappush(events, (now + delay, client))
    return server.result(attempts, failed + len(events))


class Server:
    """The server, with the number of calls per second."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.free_at = scenario.outage_seconds  # seconds: when its queue is empty
        self.served_at = scenario.outage_seconds  # when the last call of a client ends
        self.per_second: Counter[int] = Counter()
        self._usual_calls = 0
        self._usual_refused = 0

    def accept(self, now: float) -> bool:
        """Accept a call, or refuse it. Returns whether the server accepted it."""
        while self.scenario.usual_per_second and self._usual_calls / self.scenario.usual_per_second <= now:
            at = self._usual_calls / self.scenario.usual_per_second
            self._usual_calls += 1
            self._usual_refused += not self._accept(at)
        is_accepted = self._accept(now)
        self.served_at = self.free_at if is_accepted else self.served_at
        return is_accepted

    def _accept(self, now: float) -> bool:
        self.per_second[int(now)] += 1
        if now < self.scenario.outage_seconds:
            return False
        starts_at = max(now, self.free_at)
        if starts_at - now >= self.scenario.queue_seconds:
            return False
        self.free_at = starts_at + 1 / self.scenario.per_second
        return True

    def result(self, attempts: list[int], failed: int) -> HerdResult:
        calls = sum(attempts)
        recovered_at = max(1, int(self.scenario.outage_seconds))
        return HerdResult(
            calls=calls,
            last_done_seconds=self.served_at,
            peak_per_second=max((load for at, load in self.per_second.items() if at >= recovered_at), default=0),
            attempts_max=max(attempts, default=0),
            attempts_mean=calls / len(attempts) if attempts else 0.0,
            calls_per_second=tuple(self.per_second[second] for second in range(max(self.per_second, default=-1) + 1)),
            failed=failed,
            usual_refused=self._usual_refused,
        )


def with_jitter(policy: RetryPolicy) -> dict[str, RetryPolicy]:
    return {jitter: replace(policy, jitter=jitter) for jitter in ("none", "equal", "full", "decorrelated", "add50")}
