"""Timers by key, armed on the monotonic clock, so that a step of the wall clock neither delays nor fires a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """One timer per key; arming a key again replaces its timer. ``fire(key)`` is called in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_us: Callable[[], int], fire: Callable[[str], None]) -> None:
        self._loop = loop
        self._now_us = now_us
        self._fire = fire
        self._handles: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def arm(self, key: str, due_at: int) -> None:
        """Fire ``key`` at ``due_at`` (microseconds UTC), at once if ``due_at`` is past."""
        armed = self._handles.get(key)
        if armed is not None:
            if armed[0] == due_at:
                return
            armed[1].cancel()
        wait_seconds = max(0.0, (due_at - self._now_us()) / 1e6)
        self._handles[key] = (due_at, self._loop.call_at(self._loop.time() + wait_seconds, self._on_timer, key))

    def disarm(self, key: str) -> bool:
        """Cancel the timer of ``key``. False: it was not armed."""
        armed = self._handles.pop(key, None)
        if armed is not None:
            armed[1].cancel()
        return armed is not None

    def clear(self) -> None:
        """Cancel all timers."""
        for key in list(self._handles):
            self.disarm(key)

    def _on_timer(self, key: str) -> None:
        self._handles.pop(key, None)
        self._fire(key)
