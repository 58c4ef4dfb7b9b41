"""Cron lines around every change of an offset, against a count of the minutes that the local clock shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import islice, product
from zoneinfo import ZoneInfo, available_timezones

import pytest
from redrive.engine.core.schedule import parse_recurrence, to_microseconds
from support.marks import for_each

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


@cache
def changes(name: str) -> tuple[datetime, ...]:
    """The minutes at which the offset changes."""
    return tuple(_changes(ZoneInfo(name)))


def _changes(zone: ZoneInfo) -> Iterator[datetime]:
    time = FIRST
    while time < LAST:
        if time.astimezone(zone).utcoffset() != (time + DAY).astimezone(zone).utcoffset():
            yield next(
                time + number * MINUTE
                for number in range(24 * 60 + 1)
                if (time + number * MINUTE).astimezone(zone).utcoffset() != time.astimezone(zone).utcoffset()
            )
        time += DAY


def zones_that_change() -> list[str]:
    """The first of the zones whose clocks show the same times around the same changes."""
    found: dict[object, str] = {}
    for name in sorted(filter(changes, available_timezones())):
        zone = ZoneInfo(name)
        around = [time for change in changes(name) for time in (change - MINUTE, change)]
        found.setdefault(tuple(time.astimezone(zone).isoformat() for time in around), name)
    return list(found.values())


def names(field: str, value: int) -> bool:
    start, _, step = field.partition("/")
    return value % int(step or 1) == 0 if start == "*" else value == int(start)


@lru_cache(maxsize=8)
def walk(name: str, first: datetime, last: datetime) -> list[tuple[datetime, list[datetime]]]:
    """Each minute up to ``last``, from two days before ``first``, with the local time, and with those left out."""
    zone = ZoneInfo(name)
    found = []
    time = first - 2 * DAY
    before = time.astimezone(zone)
    while time < last:
        time += MINUTE
        wall = time.astimezone(zone)
        skipped = (wall.replace(tzinfo=None) - before.replace(tzinfo=None)) // MINUTE - 1
        found.append((time, [wall, *(before + number * MINUTE for number in range(1, skipped + 1))]))
        before = wall
    return found


def expected(line: str, name: str, first: datetime, last: datetime) -> list[int]:
    """The instants in ``(first, last]``: each minute shown, or, at a fixed time, once a day and never in a gap."""
    minute, hour, *_ = line.split()
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    found: dict[object, int] = {}
    for time, shown in walk(name, first, last):
        if any(names(minute, each.minute) and names(hour, each.hour) for each in shown[: None if is_fixed else 1]):
            key = shown[0].replace(tzinfo=None, fold=0) if is_fixed else time
            found.setdefault(key, to_microseconds(time))
    return [at for at in found.values() if to_microseconds(first) < at <= to_microseconds(last)]


def check(name: str, line: str) -> None:
    zone = ZoneInfo(name)
    for change in changes(name):
        first, last = change - AROUND, change + AROUND
        wanted = expected(line, name, first, last)
        recurrence = parse_recurrence(line, zone)
        assert list(islice(recurrence.after(to_microseconds(first)), len(wanted))) == wanted, (name, line, change)
        for at in wanted[:-1:7]:
            assert next(recurrence.after(at)) == wanted[wanted.index(at) + 1], (name, line, change)


@for_each("name", SOME)
def test_the_times_around_a_change_are_those_that_the_clock_shows(name: str) -> None:
    for line in LINES:
        check(name, line)


@pytest.mark.long
@pytest.mark.weekly
def test_the_times_around_every_change_of_every_zone() -> None:
    for name, line in product(zones_that_change(), LINES):
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
