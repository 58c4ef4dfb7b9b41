"""Days and times of a schedule, as commands take them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo

import click

from ...engine.core.schedule import iso_time, to_microseconds
from ...engine.core.spec import LOGICAL_TIME
from ...engine.errors import FlowError
from ...engine.store.schedules import ServedFlow, served_flow
from ..model.times import parse_time

_DATE_CHARACTERS = len("2026-11-21")


def read_served(flow: str, params: Mapping[str, object]) -> ServedFlow:
    """Read a flow with its schedule. Raises FlowError, also for a flow without one."""
    from ...engine.asyncio_log import run_with_log  # here: both import the event loop
    from ...engine.executor.resume_plan import read_flow

    served = served_flow(run_with_log(read_flow(flow, params)))
    if served is None:
        raise FlowError(f"{flow} has no schedule: write Flow('name', schedule='0 2 * * *', timezone='Asia/Kolkata')")
    return served


def params_at(flow: str, params: Mapping[str, object], text: str) -> dict[str, str]:
    """Return the logical time of a run by hand: of a day the first one of the schedule, if there is one."""
    served = read_served(flow, params)
    zone = served.schedule.zone
    first, last = instant_of(text, zone, "--at"), instant_of(text, zone, "--at", whole_day=True)
    coming = next(served.schedule.after(first - 1), first)
    return {LOGICAL_TIME: iso_time(coming if coming <= last else first, zone)}


def instant_of(text: str, zone: tzinfo | None, option: str, *, whole_day: bool = False) -> int:
    """Parse a date or a time, in the time zone of the schedule unless it has its own."""
    is_last = whole_day and len(text) <= _DATE_CHARACTERS
    try:
        return to_microseconds(parse_time(text, zone, more_days=is_last)) - is_last
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text!r}: write 2026-11-21, or 2026-11-21T02:00") from None
