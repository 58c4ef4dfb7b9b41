"""Sends in the background what may be lost after a few tries: pings, and notices of success."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..core.policy import RetryPolicy, draw_delay
from .senders import SendError

TRIES = 3
RETRY_POLICY = RetryPolicy(base=1.0, cap=4.0, jitter="equal")


class BackgroundSends:
    """Sends with ``TRIES`` tries each. ``on_failed(sentence)`` reports one that was given up."""

    def __init__(self, uniform: Callable[[float, float], float], on_failed: Callable[[str], None]) -> None:
        self._uniform = uniform
        self._on_failed = on_failed
        self._latest: dict[str, asyncio.Task[None]] = {}  # by receiver

    def start(self, receiver: str, what: str, send: Callable[[], Awaitable[None]]) -> None:
        """Send to a receiver after what was sent to it before. ``what``: words for the report, without secrets."""
        work = self._send(what, send, self._latest.get(receiver))
        self._latest[receiver] = asyncio.get_running_loop().create_task(work)

    async def close(self, timeout_seconds: float) -> None:
        """Wait for the sends, at most for ``timeout_seconds``."""
        if self._latest:
            _, pending = await asyncio.wait(self._latest.values(), timeout=timeout_seconds)
            for task in pending:
                task.cancel()

    async def _send(self, what: str, send: Callable[[], Awaitable[None]], earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        why = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(draw_delay(RETRY_POLICY, number - 1, None, self._uniform)[0])
            try:
                await send()
                return
            except SendError as error:
                why = str(error)
            except Exception as error:  # its text may hold the URL
                why = type(error).__name__
        self._on_failed(f"{what} not accepted after {TRIES} tries: {why}")
