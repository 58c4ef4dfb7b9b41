"""Builds a schedule with its time zone. Zone data is on the disk, which engine/core does not read."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from ..core.spec import ScheduleSpec
from ..errors import FlowError

if TYPE_CHECKING:
    from ..core.schedule import Schedule


def open_zone(name: str, flow: str) -> tzinfo:
    """Return a time zone of the IANA database. Raises FlowError if it is unknown here."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # here: without one, a fork of this process would copy it for nothing

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # unknown zone, invalid name, a folder, not a text
        why = "name one like 'Asia/Kolkata'; where no zone is found at all, install the package tzdata"
        raise FlowError(f"flow {flow!r}: there is no time zone {name!r}: {why}") from None


def open_schedule(spec: ScheduleSpec, flow: str) -> Schedule:
    """Build the ``Schedule`` of a flow. Raises FlowError."""
    from ..core.schedule import build_schedule

    try:
        return build_schedule(spec, flow, open_zone(spec.timezone, flow))
    except ValueError as error:
        raise FlowError(f"flow {flow!r}: schedule: {error}") from None
