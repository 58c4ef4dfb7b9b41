"""How often and how long after a failure a task is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Jitter = Literal["none", "full", "equal", "decorrelated", "add50"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Total starts, waits between them, and which failures deserve them. Seconds throughout."""

    max_attempts: int = 3
    base: float = 2.0
    cap: float = 600.0
    factor: float = 2.0
    jitter: Jitter = "full"
    max_elapsed: float | None = None
    retry_on: tuple[str, ...] = ()  # qualified exception names; empty: as classified
    never_retry: tuple[str, ...] = ()
    poison_after: int | None = 2
    ambiguous_attempts: int = 3
