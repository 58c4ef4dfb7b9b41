"""Debounced, rate-limited refresh of lists after events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from textual.dom import DOMNode
from textual.timer import Timer
from textual.widget import Widget

SOON_SECONDS = 0.2  # events within this time share one read
_RESTING_SECONDS = 0.15  # the cursor may be moving on
_REST_FACTOR = 4.0  # pause after a read, as a multiple of its duration


class RestTimer:
    """Calls ``on_rest`` once the cursor rests; a start while it waits changes nothing."""

    def __init__(self, widget: Widget, on_rest: Callable[[], None]) -> None:
        self._widget = widget
        self._on_rest = on_rest
        self.is_waiting = False

    def start(self) -> None:
        """Wait from now on, unless the timer waits already."""
        if not self.is_waiting and self._widget.is_mounted:
            self.is_waiting = True
            self._widget.set_timer(_RESTING_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self.is_waiting = False
        self._on_rest()


class Refresher:
    """Calls ``read`` in the background; a request during a read starts one more read afterwards.

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
        """Whether no read is pending or running."""
        return self._timer is None and not self._reading

    def request(self, seconds: float = SOON_SECONDS) -> None:
        """Read within ``seconds``, or after the pause that follows a slow read."""
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
