"""Three layers of retries around one call, and one budget over all of them (document 002).

Each layer catches what the one inside did not: A in the channel, B around one query, C around a batch (``buffer.py``).
They are independent, and that is their danger: 5 x 3 x 4 tries are 60 calls, and a batch alone can take two minutes
when every call runs into its deadline. So they share a ``Budget``: seconds and calls for all layers together.
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

from .core.foreign import facts_of
from .core.policy import RetryPolicy, Uniform, draw
from .retrying import report_retry

T = TypeVar("T")
Call = Callable[[], Awaitable[T]]

#: Layer A: 5 attempts, 0.1 s up to 10 s.
CHANNEL_POLICY = RetryPolicy(max_attempts=5, base=0.1, cap=10.0, jitter="full")
CHANNEL_CODES = frozenset(["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"])

#: Layer B: 2 retries, after 50 ms and 100 ms.
QUERY_POLICY = RetryPolicy(max_attempts=3, base=0.05, cap=1.0, jitter="none")
QUERY_CODES = frozenset(["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"])

#: Layer C: 3 retries, after 100, 200 and 400 ms, each with up to half of it on top. ``buffer.SendSettings`` tunes it.
BATCH_POLICY = RetryPolicy(max_attempts=4, base=0.1, cap=60.0, jitter="add50")
BATCH_CODES = frozenset(["DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL"])


def code_of(error: BaseException) -> str | None:
    """Return the gRPC status code of an exception by name. A deadline of our own is DEADLINE_EXCEEDED as well."""
    return facts_of(error).grpc or ("DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else None)


# --- the budget ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """What one call may cost, counted over all layers. None means no bound."""

    elapsed_seconds: float | None = None
    calls: int | None = None
    now: Callable[[], float] = time.monotonic
    calls_made: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def allows(self, delay: float) -> bool:
        """Tell whether another call may be made after ``delay`` seconds."""
        if self.calls is not None and self.calls_made >= self.calls:
            return False
        remaining = self.remaining_seconds()
        return remaining is None or delay < remaining

    def remaining_seconds(self) -> float | None:
        """Return what is left of the time, None without a bound."""
        return None if self.elapsed_seconds is None else self.started + self.elapsed_seconds - self.now()


_current: ContextVar[Budget | None] = ContextVar("redrive_retry_budget", default=None)


@contextmanager
def budgeted(budget: Budget) -> Iterator[Budget]:
    """Let all layers inside share a budget. Inside another one that one stays in force: the outermost promised most."""
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
    """Tell whether the budget in force, if any, allows another call after ``delay`` seconds."""
    budget = _current.get()
    return budget is None or budget.allows(delay)


# --- one layer ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: which codes it retries, how, and how long all of its tries may take together.

    ``deadline_seconds`` is gRPC's own: it covers every attempt inside the channel. Hence layer A cannot retry a
    DEADLINE_EXCEEDED that its own deadline caused, whatever its list of codes says; only the layers around it can.
    """

    name: str
    policy: RetryPolicy
    codes: frozenset[str]
    deadline_seconds: float | None = None
    uniform: Uniform = random.uniform

    async def call(self, function: Call[T]) -> T:
        """Call until it succeeds, the error is none of this layer's, the tries are spent, or the budget is."""
        async with asyncio.timeout(self.deadline_seconds):
            return await self._call(function)

    async def _call(self, function: Call[T]) -> T:
        clock, previous = asyncio.get_running_loop().time, None
        started = clock()
        for index in range(self.policy.max_attempts):
            try:
                return await function()
            except Exception as error:
                previous, _ = draw(self.policy, index, previous, self.uniform)
                last = index + 1 == self.policy.max_attempts
                if last or code_of(error) not in self.codes or not budget_allows(previous):
                    raise
                elapsed = clock() - started
                report_retry(self.name, index + 1, self.policy.max_attempts, error, previous, elapsed)
            await asyncio.sleep(previous)
        raise AssertionError("the last try either returns or raises")


def channel_layer(deadline_seconds: float | None = 30.0) -> Layer:
    """Return layer A, for a client that has no retries in its channel."""
    return Layer("channel", CHANNEL_POLICY, CHANNEL_CODES, deadline_seconds)


def query_layer() -> Layer:
    """Return layer B."""
    return Layer("query", QUERY_POLICY, QUERY_CODES)


def batch_layer() -> Layer:
    """Return layer C, for calls that are sent in batches without a ``SendBuffer``."""
    return Layer("batch", BATCH_POLICY, BATCH_CODES)


async def exec_query(function: Call[T], layer: Layer | None = None) -> T:
    """Make one call under layer B: two retries for UNAVAILABLE, INTERNAL and DEADLINE_EXCEEDED."""
    return await (layer or query_layer()).call(function)


async def call_through(layers: Sequence[Layer], function: Call[T], budget: Budget | None = None) -> T:
    """Make one call through several layers, the innermost first, under one budget.

    Raises what the outermost layer let through, or TimeoutError when ``budget.elapsed_seconds`` ended a call.
    """
    budget = budget or Budget()

    async def counted() -> T:
        current = _current.get()
        assert current is not None
        current.calls_made += 1
        return await function()

    wrapped: Call[T] = counted
    for layer in layers:
        wrapped = _around(layer, wrapped)
    with budgeted(budget):
        async with asyncio.timeout(budget.elapsed_seconds):
            return await wrapped()


def _around(layer: Layer, function: Call[T]) -> Call[T]:
    async def call() -> T:
        return await layer.call(function)

    return call


# --- the channel of a real gRPC client ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a gRPC client is to be made so that its channel is layer A. Holds no connection."""

    timeout_seconds: float = 30.0  # per RPC, all attempts of the channel included; 60 under burst load
    policy: RetryPolicy = CHANNEL_POLICY
    codes: frozenset[str] = CHANNEL_CODES

    def service_config(self) -> str:
        """Return the JSON that gRPC reads. Its client caps ``maxAttempts`` at 5 and jitters by itself."""
        retry_policy = {
            "maxAttempts": self.policy.max_attempts,
            "initialBackoff": f"{self.policy.base:g}s",
            "maxBackoff": f"{self.policy.cap:g}s",
            "backoffMultiplier": self.policy.factor,
            "retryableStatusCodes": sorted(self.codes),
        }
        return json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": retry_policy}]})

    def channel_options(self) -> list[tuple[str, object]]:
        """Return the options for ``grpc.aio.insecure_channel`` and its kin."""
        return [("grpc.enable_retries", 1), ("grpc.service_config", self.service_config())]
