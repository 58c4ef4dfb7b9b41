"""Builds a schedule with its time zone. Zone data is on the disk, which engine/core does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.spec import ScheduleSpec
from ..errors import FlowError

if TYPE_CHECKING:
    from ..core.schedule import Schedule


def open_schedule(spec: ScheduleSpec, flow: str) -> Schedule:
    """Build the ``Schedule`` of a flow. Raises FlowError."""
    from zoneinfo import ZoneInfo  # here: without a schedule, a fork of this process would copy it for nothing

    from ..core.schedule import build_schedule

    try:
        zone = ZoneInfo(spec.timezone)
    except (KeyError, ValueError, OSError, TypeError):  # unknown zone, invalid name, a folder, not a text
        why = "name one like 'Asia/Kolkata'; where no zone is found at all, install the package tzdata"
        raise FlowError(f"flow {flow!r}: there is no time zone {spec.timezone!r}: {why}") from None
    try:
        return build_schedule(spec, flow, zone)
    except ValueError as error:
        raise FlowError(f"flow {flow!r}: schedule: {error}") from None
