"""Times as people write them, in commands and at keys."""

from __future__ import annotations

from datetime import datetime, time, timedelta, tzinfo


def parse_time(text: str, zone: tzinfo | None = None, since: datetime | None = None, *, more_days: int = 0) -> datetime:
    """Read a date, a date and time, or with ``since`` a time of day: the first one from then on.

    ``zone``: of what names none; None: that of this machine. ``more_days``: added to a date. Raises ValueError or
    OverflowError.
    """
    text = text.strip()
    if since is not None and ":" in text and "-" not in text:
        clock = time.fromisoformat(text.zfill(5))  # 6:00 is 06:00
        # Wall clocks, not hours: between today's 06:00 and tomorrow's there may be 23 or 25.
        days = (since.date() + timedelta(days=days) for days in (0, 1))
        return next(at for day in days if (at := _in_zone(datetime.combine(day, clock), zone)) >= since)
    return _in_zone(datetime.fromisoformat(text) + timedelta(days=more_days), zone)


def _in_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    if moment.tzinfo is not None:
        return moment
    return moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
