"""Drawn cron lines around the changes of the clocks, against a walk over every minute, in 20 zones and until 2100.

The walk knows only the five fields and two rules of Debian's cron: a line whose minute or hour begins with a star
keeps its real intervals; any other comes once in the hour that is repeated, and at the first instant after a gap.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, product
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from redrive.engine.core.schedule import parse_recurrence, to_microseconds
from support.marks import parametrize_mostly_long, scaled

ZONES = (
    *("Europe/Berlin", "Europe/Dublin", "Europe/London", "Atlantic/Azores", "Africa/Casablanca", "Africa/Cairo"),
    *("Asia/Beirut", "Asia/Jerusalem", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "Australia/Sydney"),
    *("Pacific/Chatham", "Pacific/Auckland", "Antarctica/Troll", "America/New_York", "America/St_Johns"),
    *("America/Santiago", "America/Havana", "America/Nuuk"),
)
YEARS = (2026, 2027, 2037, 2038, 2039, 2099)
MINUTE = timedelta(minutes=1)
BEFORE, AFTER = (
    timedelta(hours=50),
    timedelta(hours=30),
)  # around a change


class Field(NamedTuple):
    """One field of a line: its text, and the values that it names."""

    text: str
    values: frozenset[int]


class Line(NamedTuple):
    """A line of cron."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field  # 0 is Sunday

    @property
    def text(self) -> str:
        return " ".join(field.text for field in self)

    @property
    def is_fixed(self) -> bool:
        return not self.minute.text.startswith("*") and not self.hour.text.startswith("*")

    def names(self, wall: datetime) -> bool:
        if wall.minute not in self.minute.values or wall.hour not in self.hour.values:
            return False
        if wall.month not in self.month.values:
            return False
        day, weekday = wall.day in self.day.values, wall.isoweekday() % 7 in self.weekday.values
        is_either = not self.day.text.startswith("*") and not self.weekday.text.startswith("*")
        return day or weekday if is_either else day and weekday


class Minute(NamedTuple):
    """One minute: its instant, and the times that the local clock shows in it or leaves out before it."""

    at: int
    wall: datetime
    left_out: tuple[datetime, ...]


class Walk(NamedTuple):
    """The minutes around a change of a zone, and, by hour and minute, those that show or leave out that time."""

    minutes: Sequence[Minute]
    shown: Mapping[tuple[int, int], Sequence[Minute]]


def draw_field(dice: random.Random, low: int, high: int, star: float) -> Field:
    every = range(low, high + 1)
    if dice.random() < star:
        step = dice.choice((1, 1, 1, 2, 3, 5, 7, 15))
        return Field("*" if step == 1 else f"*/{step}", frozenset(every[::step]))
    parts, values = [], set[int]()
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        first = dice.randint(low, high)
        last = dice.randint(first, high) if dice.random() < 0.3 else first
        step = dice.choice((1, 2, 4)) if last > first else 1
        parts.append(f"{first}" if last == first else f"{first}-{last}" + (f"/{step}" if step > 1 else ""))
        values |= set(range(first, last + 1, step))
    return Field(",".join(parts), frozenset(values))


def draw_line(seed: int) -> Line:
    dice = random.Random(seed)
    minute = draw_field(dice, 0, 59, 0.35)
    hour = draw_field(dice, 0, 4, 0) if dice.random() < 0.6 else draw_field(dice, 0, 23, 0.5)
    day, month, weekday = (draw_field(dice, *bounds, 0.8) for bounds in ((1, 31), (1, 12), (0, 6)))
    return Line(minute, hour, day, month, weekday)


def changes(zone: ZoneInfo) -> Iterator[datetime]:
    """The days in which the offset changes."""
    for year in YEARS:
        for day in range(366):
            time = datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=day)
            if time.astimezone(zone).utcoffset() != (time + timedelta(days=1)).astimezone(zone).utcoffset():
                yield time


@lru_cache(maxsize=1)  # a million minutes in all
def walks(name: str) -> Sequence[Walk]:
    """Every minute around each change of a zone; where nothing changes, around a leap day."""
    zone = ZoneInfo(name)
    days = list(changes(zone)) or [datetime(2028, 2, 29, tzinfo=UTC)]
    return [with_index(list(walk(zone, day))) for day in days]


def with_index(minutes: Sequence[Minute]) -> Walk:
    shown: dict[tuple[int, int], list[Minute]] = {}
    for minute in minutes:
        for hour_and_minute in {(wall.hour, wall.minute) for wall in (minute.wall, *minute.left_out)}:
            shown.setdefault(hour_and_minute, []).append(minute)
    return Walk(minutes, shown)


def walk(zone: ZoneInfo, change: datetime) -> Iterator[Minute]:
    time, before = change - BEFORE, None
    while time < change + AFTER:
        wall = time.astimezone(zone).replace(tzinfo=None)
        skipped = 0 if before is None else (wall - before) // MINUTE - 1
        left_out = tuple(before + number * MINUTE for number in range(1, skipped + 1)) if before else ()
        yield Minute(to_microseconds(time), wall, left_out)
        before = wall
        time += MINUTE


def expected(line: Line, walk: Walk) -> list[int]:
    times = product(line.hour.values, line.minute.values)
    candidates = sorted({minute for time in times for minute in walk.shown.get(time, ())})
    if not line.is_fixed:
        return [minute.at for minute in candidates if line.names(minute.wall)]
    found: dict[datetime, int] = {}
    for minute in candidates:
        if line.names(minute.wall) or any(map(line.names, minute.left_out)):
            found.setdefault(minute.wall, minute.at)
    return sorted(found.values())


def check(line: Line, name: str) -> None:
    recurrence = parse_recurrence(line.text, ZoneInfo(name))
    for walk in walks(name):
        start = walk.minutes[24 * 60].at  # after the first day, which is for what comes twice
        wanted = expected(line, walk)
        wanted = wanted[bisect_right(wanted, start) :]
        assert list(islice(recurrence.after(start), len(wanted))) == wanted, (line.text, name, start)


def never_comes(line: Line) -> bool:
    """A 30th of February."""
    longest = max({2: 29, 4: 30, 6: 30, 9: 30, 11: 30}.get(month, 31) for month in line.month.values)
    return min(line.day.values) > longest and line.weekday.text.startswith("*")


@parametrize_mostly_long(("zones", "count"), [(ZONES[::4], 5), *(((name,), scaled(100)) for name in ZONES)], daily=3)
def test_drawn_lines_come_when_the_clock_shows_them(zones: tuple[str, ...], count: int) -> None:
    lines = [draw_line(seed) for seed in range(count)]
    for line in filter(never_comes, lines):
        with pytest.raises(ValueError, match="never comes"):
            parse_recurrence(line.text, ZoneInfo("UTC"))
    for name, line in product(zones, lines):
        if not never_comes(line):
            check(line, name)


def test_the_walk_finds_a_line_that_comes_twice() -> None:
    """Of the same line with a star and without, the walk tells the difference that the rules make."""
    every_day = [minute for each in walks("Europe/Berlin") for minute in each.minutes]
    day = with_index([minute for minute in every_day if minute.wall.isoformat().startswith("2026-10-25")])
    star, fixed = Field("*", frozenset(range(24))), Field("2", frozenset([2]))
    half, every = Field("30", frozenset([30])), [Field("*", frozenset(range(60)))] * 3
    assert (len(expected(Line(half, star, *every), day)), len(expected(Line(half, fixed, *every), day))) == (25, 1)
