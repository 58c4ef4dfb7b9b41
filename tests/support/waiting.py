"""Wait for a condition that has no event: a file, a row or a process of somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")

LIMIT_SECONDS = 90.0  # for what never comes; a wait ends as soon as its condition holds
INTERVAL_SECONDS = 0.02
#: Between the questions of a wait that has lasted a second: they cost more than what the answer comes later.
LONG_INTERVAL_SECONDS = 0.1


def wait_until(
    condition: Callable[[], Value],
    timeout_seconds: float = LIMIT_SECONDS,
    *,
    interval_seconds: float = INTERVAL_SECONDS,
    describe: Callable[[], object] | None = None,
) -> Value:
    """Ask until the answer is true; that answer.

    Raises:
        AssertionError: it did not become true in time; ``describe`` says what there was instead.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited_seconds = time.monotonic() - began
        if waited_seconds > timeout_seconds:
            raise AssertionError(_message(condition, timeout_seconds, describe))
        time.sleep(_pause_seconds(waited_seconds, interval_seconds))
    return value


async def wait_until_async(
    condition: Callable[[], Value | Awaitable[Value]],
    timeout_seconds: float = LIMIT_SECONDS,
    *,
    interval_seconds: float = INTERVAL_SECONDS,
    describe: Callable[[], object] | None = None,
) -> Value:
    """The same without blocking the loop; ``condition`` may be a coroutine function."""
    began = time.monotonic()
    while True:
        answer = condition()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        waited_seconds = time.monotonic() - began
        if waited_seconds > timeout_seconds:
            raise AssertionError(_message(condition, timeout_seconds, describe))
        await asyncio.sleep(_pause_seconds(waited_seconds, interval_seconds))


def _pause_seconds(waited_seconds: float, interval_seconds: float) -> float:
    """A tenth of what has been waited, within limits."""
    return max(interval_seconds, min(waited_seconds / 10, LONG_INTERVAL_SECONDS))


def _message(condition: Callable[[], object], timeout_seconds: float, describe: Callable[[], object] | None) -> str:
    found = f": {describe()}" if describe is not None else ""
    return f"{condition} did not become true within {timeout_seconds:g} s{found}"
