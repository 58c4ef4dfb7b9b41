"""A herd behind the engine's breaker: the tasks of a scenario call their server as a declared downstream."""

from __future__ import annotations

import heapq
from collections import deque
from random import Random

from redrive.engine.analysis.load_models import HerdResult, Scenario, Server
from redrive.engine.core.breaker import DownstreamHealth
from redrive.engine.core.downstreams import DownstreamStates
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy, draw_delay
from redrive.engine.core.spec import DownstreamSpec, FlowSpec


def simulate_defended(
    scenario: Scenario,
    policy: RetryPolicy,
    rng: Random,
    *,
    spend_attempts: bool = False,
    seconds_max: int = 86_400,
) -> HerdResult:
    """Let all tasks of a scenario call through the engine's breaker and retry budget (``core/downstreams.py``).

    A task that is held makes no call. A failure that its downstream explains costs a task no attempt.
    """
    return _DefendedHerd(scenario, policy, rng, spend_attempts).run(seconds_max)


_SERVER = "server"
_REFUSED = Failure("Refused", "refused", FailureClass.TRANSIENT, Fingerprint("", "refused"))
_WAKE = -1


class _DefendedHerd:
    """The tasks in front of the breaker: first calls and retries wait apart, as in the queue of the engine."""

    def __init__(self, scenario: Scenario, policy: RetryPolicy, rng: Random, spend_attempts: bool) -> None:
        self._server = Server(scenario)
        self._policy = policy
        self._rng = rng
        self._now = 0.0
        flow = FlowSpec("herd", (), downstreams=(DownstreamSpec(_SERVER),))
        self._states = DownstreamStates(flow, lambda: round(self._now * 1e6), lambda name: None)
        self._spend_attempts = spend_attempts
        self._attempts = [0] * scenario.clients
        self._failures = [0] * scenario.clients
        self._delays: list[float | None] = [None] * scenario.clients
        self._failed = 0
        self._events = [(scenario.arrival(client), client) for client in range(scenario.clients)]
        self._lanes: tuple[deque[int], deque[int]] = (deque(), deque())
        self._wake_at: float | None = None

    def run(self, seconds_max: int) -> HerdResult:
        while self._events and self._events[0][0] < seconds_max:
            self._now, client = heapq.heappop(self._events)
            if client == _WAKE:
                self._wake_at = None
            else:
                self._lanes[self._failures[client] > 0].append(client)
            self._start_waiting()
        left = sum(map(len, self._lanes)) + sum(client != _WAKE for _, client in self._events)
        return self._server.result(self._attempts, self._failed + left)

    def _start_waiting(self) -> None:
        for lane in self._lanes:
            while lane:
                client = lane[0]
                admission = self._states.admit(str(client), _SERVER, self._failures[client] > 0)
                if admission.call is None:
                    self._wake(admission.retry_at)
                    break
                self._call(lane.popleft())

    def _wake(self, retry_at: int | None) -> None:
        if retry_at is not None and (self._wake_at is None or retry_at / 1e6 < self._wake_at):
            self._wake_at = max(retry_at / 1e6, self._now)
            heapq.heappush(self._events, (self._wake_at, _WAKE))

    def _call(self, client: int) -> None:
        self._attempts[client] += 1
        is_accepted = self._server.accept(self._now)
        outcome = Outcome(OutcomeKind.SUCCESS) if is_accepted else Outcome(OutcomeKind.ERROR, _REFUSED)
        health, _ = self._states.record(str(client), outcome, self._failures[client], self._policy.max_attempts)
        if is_accepted:
            return
        self._failures[client] += health is not DownstreamHealth.DOWN
        if self._spend_attempts and self._failures[client] >= self._policy.max_attempts:
            self._failed += 1
            return
        number = max(0, self._failures[client] - 1)
        self._delays[client], _ = draw_delay(self._policy, number, self._delays[client], self._rng.uniform)
        heapq.heappush(self._events, (self._now + (self._delays[client] or 0.0), client))
