"""Breakers of a downstream, for boards and sentences."""

from __future__ import annotations

from msgspec.structs import replace
from redrive.engine.core.breaker import BreakerState, BreakerStatus, new_status
from redrive.engine.core.spec import DownstreamSpec


def status_of(state: str, reopens_at: int | None = None, downstream: str = "api") -> BreakerStatus:
    """A breaker in a state. ``reopens_at``: microseconds UTC."""
    status = new_status(DownstreamSpec(downstream))
    return replace(status, breaker=replace(status.breaker, state=BreakerState(state), reopens_at=reopens_at))
