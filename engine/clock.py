"""The clock as an argument, so that code which decides never reads the time of the machine."""

from __future__ import annotations

import random
import time
from typing import Protocol

CLOCK_JUMP_SECONDS = 2.0  # a larger difference between two clocks is a step


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

    def __init__(self) -> None:
        self._random = random.Random()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
