"""Lists beside a run, read again when events say so: soon, together, and never most of the time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from textual.dom import DOMNode
from textual.timer import Timer

SOON_SECONDS = 0.2  # what happens together is read together
_REST_FACTOR = 4.0  # after a reading that took long, so much longer is nothing asked


class Refresher:
    """Calls ``read`` beside the screen; what is wanted while it reads is read once more afterwards.

    ``read`` must handle RedriveError; any other error ends the console.
    """

    def __init__(self, node: DOMNode, read: Callable[[], Awaitable[None]]) -> None:
        self._node = node
        self._read = read
        self._timer: Timer | None = None
        self._due_at = float("inf")
        self._reading = False
        self._not_before = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Nothing is wanted and nothing is being read."""
        return self._timer is None and not self._reading

    def request(self, seconds: float = SOON_SECONDS) -> None:
        """Read so long from now at the latest, but for the rest that is due to a slow line."""
        now = asyncio.get_running_loop().time()
        due_at = max(now + seconds, self._not_before)
        if due_at >= self._due_at:
            return
        self._due_at = due_at
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._node.set_timer(max(due_at - now, 0.001), self._start_read)

    def _start_read(self) -> None:
        self._timer = None
        self._due_at = float("inf")
        if self._reading:
            self.request()
        else:
            self._reading = True
            self._node.run_worker(cast(Any, self._run))  # the stubs know only work that returns something

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._read()
        finally:
            self._reading = False
            self._not_before = loop.time() + _REST_FACTOR * (loop.time() - began)
