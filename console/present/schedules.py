"""Sentences about schedules in the list of runs: the next run, and runs that did not start in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ...engine.core.projection import RunRow
from ...engine.domain.durations import format_duration
from ...engine.statefile.list_rows import ScheduleRow, SlaRow
from ..text.durations import DAY, SECOND
from ..text.text import one_line

_STARTS_US = 5 * SECOND  # the time that a due run takes to start
_RECENT_US = DAY
_NAMED_MAX = 3


def describe_next_runs(rows: Sequence[ScheduleRow], now_us: int) -> list[str]:
    """One sentence per schedule: ``revenue: next 02:00 Asia/Kolkata, in 3 h 12 min``."""
    return [f"{one_line(row.dag_name)}: {_describe_next(row, now_us)}" for row in rows]


def describe_next_run(rows: Iterable[ScheduleRow], now_us: int) -> str:
    """The next run of all schedules; empty if there is none."""
    coming = [(row.next_at, place, row) for place, row in enumerate(rows) if row.next_at is not None]
    return _describe_next(min(coming)[2], now_us) if coming else ""


def _describe_next(row: ScheduleRow, now_us: int) -> str:
    if row.next_at is None or not row.next_local:
        return "nothing comes any more"
    wall, left_us = datetime.fromisoformat(row.next_local), row.next_at - now_us
    if left_us < -_STARTS_US:
        return f"due {format_duration(-left_us)} ago and not started"
    today = datetime.fromtimestamp(now_us / SECOND, wall.tzinfo).date()
    day = "" if wall.date() - today <= timedelta(days=1) and left_us < DAY else f"{wall:%d %b} "
    return f"next {day}{_clock(wall)} {one_line(row.timezone)}, in {format_duration(max(left_us, 0))}"


def _clock(wall: datetime) -> str:
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"


def describe_missed_starts(rows: Iterable[SlaRow], now_us: int) -> list[str]:
    """Runs of the last day that did not start in time, the latest first."""
    late = [row for row in rows if row.promise == "start" and now_us - row.promised_at < _RECENT_US]
    lines = [
        f"{one_line(row.dag_name)}: the run of {_local_time(row.logical_time)} did not start as promised"
        for row in late[:_NAMED_MAX]
    ]
    return lines if len(late) <= _NAMED_MAX else [*lines, f"and {len(late) - _NAMED_MAX} before it"]


def _local_time(at: int) -> str:
    return f"{datetime.fromtimestamp(at // SECOND).astimezone():%d %b %H:%M}"


def late_us(run: RunRow, now_us: int) -> int:
    """Microseconds since a run missed its deadline; 0 if it has not, or has none."""
    if run.deadline_at is None:
        return 0
    return max(0, (run.ended_at if run.ended_at is not None else now_us) - run.deadline_at)
