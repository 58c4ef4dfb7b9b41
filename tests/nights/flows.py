"""What the nights share: flows of alike tasks, and the marks of the faults that are still to be mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from redrive.engine import Flow
from redrive.engine.testing import Night


def siblings(count: int, work: Callable[..., object] = int, name: str = "orders", **options: Any) -> Flow:
    """A flow of ``count`` instant tasks without an order: t0, t1, ..."""
    flow = Flow(name)
    for number in range(count):
        flow.task(name=f"t{number}", **options)(work)
    return flow


def done(night: Night) -> int:
    """How many tasks have succeeded."""
    return Counter(night.states.values())["SUCCESS"]
