"""Watches the wall clock: a step must not move what tasks wait for (SPEC 4.10).

Wall and monotonic time advance together, or the wall clock was set. Armed timers are safe either way; the instants in
the file are not, so they move with the clock, and the remaining wait stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Clock

CLOCK_JUMP_SECONDS = 2.0


class ClockWatch:
    """``on_jump(microseconds)``: the wall clock has moved by so much since the last look."""

    def __init__(self, clock: Clock, on_jump: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_jump = on_jump
        self._wall = clock.now_us()
        self._monotonic = clock.monotonic()

    def look(self) -> None:
        """Compare the two."""
        wall, monotonic = self._clock.now_us(), self._clock.monotonic()
        jump = (wall - self._wall) / 1e6 - (monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        if abs(jump) > CLOCK_JUMP_SECONDS:
            self._on_jump(round(jump * 1e6))
