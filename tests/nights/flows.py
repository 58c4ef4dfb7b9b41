"""What the nights share: flows of alike tasks, and the marks of the faults that are still to be mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from redrive.engine import Flow
from redrive.engine.testing import Night

poison = pytest.mark.xfail(strict=True, reason="two failures alike are poison, whatever the error and the time between")
breaker = pytest.mark.xfail(strict=True, reason="the breaker and the retry budget hold back a healthy run")
slowness = pytest.mark.xfail(strict=True, reason="slow work is called hung")


def siblings(count: int, work: Callable[..., object] = int, name: str = "orders", **options: object) -> Flow:
    """A flow of ``count`` instant tasks without an order: t0, t1, ..."""
    flow = Flow(name)
    for number in range(count):
        flow.task(name=f"t{number}", **options)(work)  # type: ignore[arg-type]
    return flow


def done(night: Night) -> int:
    """How many tasks have succeeded."""
    return Counter(night.states.values())["SUCCESS"]
