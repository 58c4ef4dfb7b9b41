"""Opens the time zone that a flow names: the data of zones are on the disk, which the core does not read."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from ..core.schedule import Schedule, schedule_of
from ..core.spec import ScheduleSpec
from ..errors import FlowError


def open_schedule(spec: ScheduleSpec, flow: str) -> Schedule:
    """What a flow says of its schedule, ready to be decided by. Raises FlowError."""
    try:
        zone = ZoneInfo(spec.timezone)
    except (KeyError, ValueError, OSError, TypeError):  # not found, no name, a folder of the data, no text
        why = "name one like 'Asia/Kolkata'; where no zone is found at all, install the package tzdata"
        raise FlowError(f"flow {flow!r}: there is no time zone {spec.timezone!r}: {why}") from None
    try:
        return schedule_of(spec, flow, zone)
    except ValueError as error:
        raise FlowError(f"flow {flow!r}: schedule: {error}") from None
