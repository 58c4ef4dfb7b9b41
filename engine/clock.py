"""Clocks as arguments, so that code which decides never reads the time of the machine; steps of the wall clock."""

from __future__ import annotations

import os
import time
from typing import Protocol

CLOCK_JUMP_SECONDS = 2.0  # a larger difference between two clocks is a step


def wall_time_us() -> int:
    """The wall time of the machine, in microseconds UTC."""
    return time.time_ns() // 1000


class Clock(Protocol):
    """Wall time for stored instants, monotonic time for durations, and random numbers."""

    def now_us(self) -> int:
        """Microseconds UTC."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between ``low`` and ``high``."""


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        return wall_time_us()

    def monotonic(self) -> float:
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        share = int.from_bytes(os.urandom(7), "big") / (1 << 56)  # each fork would pay for the module random
        return low + (high - low) * share


# --- Detects steps of the wall clock, which must not change how long tasks wait (SPEC 4.10) --------------------------
#
# If wall and monotonic time advance differently, the wall clock was set. Armed timers are monotonic; the due times in
# the state file are wall time, so they are shifted by the step and the remaining waits stay the same.


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
