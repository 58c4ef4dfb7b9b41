"""Wait for a condition that has no event: a file, a row or a process of somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")

LIMIT_SECONDS = 90.0  # for what never comes; a wait ends as soon as its condition holds
INTERVAL_SECONDS = 0.02


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
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_message(condition, timeout_seconds, describe))
        time.sleep(interval_seconds)
    return value


async def wait_until_async(
    condition: Callable[[], Value | Awaitable[Value]],
    timeout_seconds: float = LIMIT_SECONDS,
    *,
    interval_seconds: float = INTERVAL_SECONDS,
    describe: Callable[[], object] | None = None,
) -> Value:
    """The same without blocking the loop; ``condition`` may be a coroutine function."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = condition()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_message(condition, timeout_seconds, describe))
        await asyncio.sleep(interval_seconds)


def _message(condition: Callable[[], object], timeout_seconds: float, describe: Callable[[], object] | None) -> str:
    found = f": {describe()}" if describe is not None else ""
    return f"{condition} did not become true within {timeout_seconds:g} s{found}"
