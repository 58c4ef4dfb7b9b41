"""Detects steps of the wall clock, which must not change how long tasks wait (SPEC 4.10).

If wall and monotonic time advance differently, the wall clock was set. Armed timers are monotonic; the due times in the
state file are wall time, so they are shifted by the step and the remaining waits stay the same.
"""

from __future__ import annotations

from ..clock import CLOCK_JUMP_SECONDS, Clock


class ClockWatch:
    """Compares both clocks since this object was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now_us()
        self._monotonic = clock.monotonic()

    def jump_us(self) -> int:
        """Return by how many microseconds the wall clock was stepped since the last call; 0: it was not."""
        wall, monotonic = self._clock.now_us(), self._clock.monotonic()
        jump = (wall - self._wall) / 1e6 - (monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        return round(jump * 1e6) if abs(jump) > CLOCK_JUMP_SECONDS else 0
