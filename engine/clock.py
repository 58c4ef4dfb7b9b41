"""The clock, as an argument: what decides never asks the machine for the time."""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for instants that are stored, monotonic time for durations, and dice."""

    def now_us(self) -> int:
        """Microseconds UTC."""

    def monotonic(self) -> float:
        """Seconds that never jump."""

    def uniform(self, low: float, high: float) -> float:
        """One roll of the dice."""


class SystemClock:
    """The machine's own."""

    def __init__(self, seed: int | None = None) -> None:
        self._dice = random.Random(seed)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        return self._dice.uniform(low, high)
