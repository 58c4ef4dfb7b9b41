"""Detects steps of the wall clock, which must not change how long tasks wait (SPEC 4.10).

If wall and monotonic time advance differently, the wall clock was set. Armed timers are monotonic; the due times in the
state file are wall time, so they are shifted by the step and the remaining waits stay the same.
"""

from __future__ import annotations

from collections.abc import Callable

from ..clock import CLOCK_JUMP_SECONDS, Clock


class ClockWatch:
    """Calls ``on_jump(microseconds)`` after the wall clock was stepped since this object was made."""

    def __init__(self, clock: Clock, on_jump: Callable[[int], None] = lambda jump_us: None) -> None:
        self.on_jump = on_jump
        self._clock = clock
        self._wall = clock.now_us()
        self._monotonic = clock.monotonic()

    def check(self) -> None:
        """Compare the progress of both clocks since the last check."""
        wall, monotonic = self._clock.now_us(), self._clock.monotonic()
        jump = (wall - self._wall) / 1e6 - (monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        if abs(jump) > CLOCK_JUMP_SECONDS:
            self.on_jump(round(jump * 1e6))
