"""Formats durations, instants and sizes. Clocks keep their width while they tick, and never go below zero.

All durations are microseconds, as in the state file.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from ...engine.core.durations import (
    format_duration as format_duration,  # one wording for pages, engine and console
)

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def clock(duration_us: int) -> str:
    """Five cells: ``00:41``, `` 1h04``, ``12h04``, ``4d03h``, `` 123d``; ``00:00`` below zero."""
    seconds = max(duration_us, 0) // SECOND
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 60:
        return f"{minutes:02}:{seconds % 60:02}"
    if hours < 100:
        return f"{hours:2}h{minutes % 60:02}"
    days = hours // 24
    return f"{days}d{hours % 24:02}h" if days < 10 else f"{min(days, 9999):4}d"


def brief(duration_us: int) -> str:
    """The shortest form: ``0.4s``, ``16s``, ``5m``, ``2m30``, ``1h04``, ``3d``. Its width varies: not for clocks."""
    seconds = max(duration_us, 0) / SECOND
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for size, unit, smaller in ((86400, "d", 3600), (3600, "h", 60), (60, "m", 1)):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest:02}" if rest else f"{whole // size}{unit}"
    return "0s"


def countdown(due_at: int, now: int) -> str:
    """``in 00:07`` before the instant ``due_at``, ``due 4 s ago`` after it."""
    left = due_at - now
    return f"in {clock(left + SECOND - 1)}" if left > 0 else f"due {format_duration(-left)} ago"


def offset(duration_us: int) -> str:
    """A duration with its sign, as in ``+00:03``."""
    return ("-" if duration_us < 0 else "+") + clock(abs(duration_us)).strip()


def wall(at: int, zone: tzinfo | None = UTC) -> str:
    """An instant as ``03:11:20``; ``zone`` None is that of this machine."""
    return _instant(at, zone).strftime("%H:%M:%S")


def wall_day(at: int, zone: tzinfo | None = UTC) -> str:
    """An instant with its day: ``04-25 03:11:20``."""
    return _instant(at, zone).strftime("%m-%d %H:%M:%S")


def weekday(at: int, zone: tzinfo | None = UTC) -> int:
    """The day of the week of an instant; 0 is Monday."""
    return _instant(at, zone).weekday()


def _instant(at: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at / SECOND, UTC).astimezone(zone)


def format_bytes(count: int) -> str:
    """Bytes in at most six cells: ``0 B``, ``999 B``, ``1.5 kB``, ``12 MB``."""
    amount = float(max(count, 0))
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            small = unit != "B" and amount < 9.95
            return f"{amount:.1f} {unit}" if small else f"{amount:.0f} {unit}"
        amount /= 1000
    raise AssertionError("unreachable")


def number(count: int) -> str:
    """A count with thousands separators: ``1,247``."""
    return f"{count:,}"
