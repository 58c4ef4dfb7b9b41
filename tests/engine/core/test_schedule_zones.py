"""Cron lines around every change of an offset, against a count of the minutes that the local clock shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

import pytest
from redrive.engine.core.schedule import parse_recurrence, to_microseconds

LINES = ["*/7 3 * * *", "* 3 * * *", "0 3 * * *", "*/15 * * * *", "30 2 * * *"]
SOME = [
    "Pacific/Chatham",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "America/New_York",
    "Africa/Casablanca",
    "Asia/Kolkata",
]
FIRST, LAST = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
AROUND = timedelta(hours=30)


def changes(zone: ZoneInfo) -> Iterator[datetime]:
    """The minutes at which the offset changes."""
    time = FIRST
    while time < LAST:
        if time.astimezone(zone).utcoffset() != (time + HOUR).astimezone(zone).utcoffset():
            yield next(
                time + number * MINUTE
                for number in range(61)
                if (time + number * MINUTE).astimezone(zone).utcoffset() != time.astimezone(zone).utcoffset()
            )
        time += HOUR


def names(field: str, value: int) -> bool:
    start, _, step = field.partition("/")
    return value % int(step or 1) == 0 if start == "*" else value == int(start)


def expected(line: str, zone: ZoneInfo, first: datetime, last: datetime) -> list[int]:
    """The instants in ``(first, last]``: each minute shown, or, at a fixed time, once a day and never in a gap."""
    minute, hour, *_ = line.split()
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    found: dict[object, int] = {}
    time = first - 2 * DAY
    before = time.astimezone(zone)
    while time < last:
        time += MINUTE
        wall = time.astimezone(zone)
        skipped = (wall.replace(tzinfo=None) - before.replace(tzinfo=None)) // MINUTE - 1
        shown = [wall] + [before + number * MINUTE for number in range(1, skipped + 1)] * is_fixed
        before = wall
        if any(names(minute, each.minute) and names(hour, each.hour) for each in shown):
            key = wall.replace(tzinfo=None, fold=0) if is_fixed else time
            found.setdefault(key, to_microseconds(time))
    return [at for at in found.values() if to_microseconds(first) < at <= to_microseconds(last)]


def check(name: str, line: str) -> None:
    zone = ZoneInfo(name)
    for change in changes(zone):
        first, last = change - AROUND, change + AROUND
        wanted = expected(line, zone, first, last)
        recurrence = parse_recurrence(line, zone)
        assert list(islice(recurrence.after(to_microseconds(first)), len(wanted))) == wanted, (name, line, change)
        for at in wanted[:-1:7]:
            assert next(recurrence.after(at)) == wanted[wanted.index(at) + 1], (name, line, change)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", SOME)
def test_the_times_around_a_change_are_those_that_the_clock_shows(name: str, line: str) -> None:
    check(name, line)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(available_timezones()))
def test_the_times_around_every_change_of_every_zone(name: str) -> None:
    for line in LINES:
        check(name, line)


def test_a_search_ends_where_the_offset_changes_within_the_hour_that_is_named() -> None:
    zone = ZoneInfo("Pacific/Chatham")
    start = to_microseconds(datetime(2026, 4, 4, 12, tzinfo=UTC))
    for line in ("*/7 3 * * *", "* 3 * * *"):
        found = list(islice(parse_recurrence(line, zone).after(start), 400))
        assert found == sorted(set(found)) and len(found) == 400


def test_a_rare_match_in_an_hour_that_comes_twice_comes_twice() -> None:
    zone = ZoneInfo("Europe/Berlin")
    start = to_microseconds(datetime(2026, 1, 1, tzinfo=UTC))
    found = list(islice(parse_recurrence("*/30 2 25 10 *", zone).after(start), 5))
    local = [(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).isoformat() for at in found]
    assert [text[:16] for text in local] == [
        "2026-10-25T00:00",
        "2026-10-25T00:30",
        "2026-10-25T01:00",
        "2026-10-25T01:30",
        "2027-10-25T00:00",
    ]
