"""Three layers of retries around one call, and one budget over all of them.

Each layer retries what the layer inside has given up: A in the channel, B around one query, C around a batch
(``send_buffer.py``). Independent layers multiply: 5 x 3 x 4 tries are 60 calls, and a batch alone can take two minutes
if every call reaches its deadline. So they share a ``Budget``: seconds and calls for all layers together.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from ..core.failures.library_errors import extract_facts
from ..core.policy import RetryPolicy, Uniform, draw_delay
from .retry import report_retry

T = TypeVar("T")
Call = Callable[[], Awaitable[T]]

#: Layer A: 5 attempts, 0.1 s up to 10 s.
CHANNEL_POLICY = RetryPolicy(max_attempts=5, base=0.1, cap=10.0, jitter="full")
CHANNEL_CODES = frozenset(["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"])

#: Layer B: 2 retries, after 50 ms and 100 ms.
QUERY_POLICY = RetryPolicy(max_attempts=3, base=0.05, cap=1.0, jitter="none")
QUERY_CODES = frozenset(["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"])

#: Layer C: 3 retries, after 100, 200 and 400 ms, each plus up to half of it (``SendSettings`` of send_buffer.py).
BATCH_POLICY = RetryPolicy(max_attempts=4, base=0.1, cap=60.0, jitter="add50")
BATCH_CODES = frozenset(["DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL"])


def code_of(error: BaseException) -> str | None:
    """Return the name of the gRPC status code of an exception, None where it has none.

    ``TimeoutError``, a deadline of our own, is DEADLINE_EXCEEDED as well.

    Example:
        >>> code_of(TimeoutError()), code_of(ValueError())
        ('DEADLINE_EXCEEDED', None)
    """
    return extract_facts(error).grpc or ("DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else None)


# --- The budget ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """What one call may cost, count_and_call over all layers.

    Parameters:
        elapsed_seconds: seconds from now; None: no bound.
        calls: calls in all, the first included; None: no bound.
        now: a clock in seconds.
        calls_made: calls so far.

    Example:
        >>> budget = Budget(elapsed_seconds=10, calls=3, now=lambda: 0.0)
        >>> budget.allows(4), budget.allows(10), budget.remaining_seconds()
        (True, False, 10.0)
    """

    elapsed_seconds: float | None = None
    calls: int | None = None
    now: Callable[[], float] = time.monotonic
    calls_made: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def allows(self, delay: float) -> bool:
        """Return whether another call may be made after ``delay`` seconds."""
        if self.calls is not None and self.calls_made >= self.calls:
            return False
        remaining = self.remaining_seconds()
        return remaining is None or delay < remaining

    def remaining_seconds(self) -> float | None:
        """Return the seconds that are left, None without a bound."""
        return None if self.elapsed_seconds is None else self.started + self.elapsed_seconds - self.now()


_current: ContextVar[Budget | None] = ContextVar("redrive_retry_budget", default=None)


@contextmanager
def budgeted(budget: Budget) -> Iterator[Budget]:
    """Let all layers inside the block share a budget. Inside another block the outer budget stays in force.

    Example:
        >>> with budgeted(Budget(calls=0)):
        ...     budget_allows(0)
        False
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def budget_allows(delay: float) -> bool:
    """Return whether the budget in force, if any, allows another call after ``delay`` seconds."""
    budget = _current.get()
    return budget is None or budget.allows(delay)


# --- One layer ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of retries around a call.

    Parameters:
        name: for the reports of retries.
        policy: how often, and after which waits.
        codes: the gRPC status codes after which it tries again.
        deadline_seconds: seconds for all of its tries together; None: no bound. In gRPC the deadline covers every
            attempt of the channel (proposal A6), so the channel cannot retry a DEADLINE_EXCEEDED that its own
            deadline caused, even if ``codes`` names it; only the layers around it can.
        uniform: the dice of the jitter.

    Example:
        >>> async def query() -> int:
        ...     return 42
        >>> asyncio.run(query_layer().call(query))
        42
    """

    name: str
    policy: RetryPolicy
    codes: frozenset[str]
    deadline_seconds: float | None = None
    uniform: Uniform = random.uniform

    async def call(self, function: Call[T]) -> T:
        """Call until it succeeds, or the tries or the budget are spent.

        Raises:
            Exception: the last error, or one whose code is none of this layer's.
            TimeoutError: ``deadline_seconds`` have passed.
        """
        async with asyncio.timeout(self.deadline_seconds):
            return await self._call(function)

    async def _call(self, function: Call[T]) -> T:
        clock, previous = asyncio.get_running_loop().time, None
        started = clock()
        for index in range(self.policy.max_attempts):
            try:
                return await function()
            except Exception as error:
                previous, _ = draw_delay(self.policy, index, previous, self.uniform)
                last = index + 1 == self.policy.max_attempts
                if last or code_of(error) not in self.codes or not budget_allows(previous):
                    raise
                elapsed = clock() - started
                report_retry(self.name, index + 1, self.policy.max_attempts, error, previous, elapsed)
            await asyncio.sleep(previous)
        raise AssertionError("the last try either returns or raises")


def channel_layer(deadline_seconds: float | None = 30.0) -> Layer:
    """Return layer A, for a client that has no retries in its channel: 5 tries, waits of 0.1 s up to 10 s.

    Example:
        >>> channel_layer().policy.max_attempts
        5
    """
    return Layer("channel", CHANNEL_POLICY, CHANNEL_CODES, deadline_seconds)


def query_layer() -> Layer:
    """Return layer B, around one query: 3 tries, waits of 50 and 100 ms.

    Example:
        >>> sorted(query_layer().codes)
        ['DEADLINE_EXCEEDED', 'INTERNAL', 'UNAVAILABLE']
    """
    return Layer("query", QUERY_POLICY, QUERY_CODES)


def batch_layer() -> Layer:
    """Return layer C, for calls that are sent in batches without a ``SendBuffer``: 4 tries, waits of 0.1 to 0.6 s.

    Example:
        >>> batch_layer().policy.jitter
        'add50'
    """
    return Layer("batch", BATCH_POLICY, BATCH_CODES)


async def exec_query(function: Call[T], layer: Layer | None = None) -> T:
    """Make one call under a layer, layer B unless given: two retries for UNAVAILABLE, INTERNAL, DEADLINE_EXCEEDED.

    Raises:
        Exception: the last error.
    """
    return await (layer or query_layer()).call(function)


async def call_through(layers: Sequence[Layer], function: Call[T], budget: Budget | None = None) -> T:
    """Make one call through several layers under one budget.

    Parameters:
        layers: the innermost first.
        function: makes the call.
        budget: for all layers together; no bound unless given.

    Raises:
        Exception: what the outermost layer let through.
        TimeoutError: the seconds of the budget have passed.

    Example:
        >>> async def query() -> int:
        ...     return 42
        >>> asyncio.run(call_through([channel_layer(), query_layer()], query, Budget(elapsed_seconds=60, calls=6)))
        42
    """
    budget = budget or Budget()

    async def count_and_call() -> T:
        current = _current.get()
        assert current is not None
        current.calls_made += 1
        return await function()

    wrapped: Call[T] = count_and_call
    for layer in layers:
        wrapped = _wrap(layer, wrapped)
    with budgeted(budget):
        async with asyncio.timeout(budget.elapsed_seconds):
            return await wrapped()


def _wrap(layer: Layer, function: Call[T]) -> Call[T]:
    async def call() -> T:
        return await layer.call(function)

    return call


# --- The channel of a real gRPC client ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a gRPC client is made whose channel is layer A. It holds no connection.

    Parameters:
        timeout_seconds: seconds for one call, all attempts of the channel included; 60 under burst load.
        policy: of the channel's retries.
        codes: the status codes after which the channel tries again.

    Example:
        >>> ClientConfig().channel_options()[0]
        ('grpc.enable_retries', 1)
    """

    timeout_seconds: float = 30.0  # per RPC, all attempts of the channel included; 60 under burst load
    policy: RetryPolicy = CHANNEL_POLICY
    codes: frozenset[str] = CHANNEL_CODES

    def service_config(self) -> str:
        """Return the service config as JSON, as gRPC's proposal A6 has it: ``maxAttempts`` counts up to 5 there."""
        retry_policy = {
            "maxAttempts": self.policy.max_attempts,
            "initialBackoff": f"{self.policy.base:g}s",
            "maxBackoff": f"{self.policy.cap:g}s",
            "backoffMultiplier": self.policy.factor,
            "retryableStatusCodes": sorted(self.codes),
        }
        return json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": retry_policy}]})

    def channel_options(self) -> list[tuple[str, object]]:
        """Return the ``options`` of ``grpc.aio.insecure_channel`` and ``grpc.aio.secure_channel``."""
        return [("grpc.enable_retries", 1), ("grpc.service_config", self.service_config())]
