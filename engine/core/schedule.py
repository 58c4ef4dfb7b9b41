"""The logical times of a schedule: when the run of each is due, and when it is late.

A *logical time* is an instant that the expression matches. Its run is *due* later by the offset of the flow within the
splay, so that hourly flows do not all start at the full hour (004.43). What is decided about them stands in
``supervision.py``. The time and earlier decisions are arguments. Instants are microseconds UTC.

Cron is Debian's, by cronsim: a job at a fixed time runs once in the hour that comes twice, and at the first instant
after a gap. An expression whose minute or hour begins with a star keeps its real intervals, as does ``every 15m``
(SPEC 4.10).
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import count, takewhile

import msgspec
from cronsim import CronSim, CronSimError

from ..domain.text import sha256_hex
from .option_types import parse_duration
from .spec import ExpectedBy, Misfire, ScheduleSpec

#: The names of schedules, as ``crontab(5)`` has them. ``@reboot`` is no time.
NAMED_SCHEDULES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

SHORTEST_SECONDS = 1.0
LISTED_MAX = 100  # missed logical times that a decision lists one by one, the latest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_OFFSET_STEP_US = 7 * 86_400_000_000  # no zone changes its offset twice within this
_FIRST_WINDOW_US = 3600 * 1_000_000


class Every(msgspec.Struct, frozen=True):
    """``every 15m``: multiples of the interval since 1970, so that they do not depend on a start time."""

    step_us: int

    @property
    def meaning(self) -> tuple[object, ...]:
        """The times that the expression selects: ``every 60m`` and ``every 1h`` are equal."""
        return (self.step_us,)

    def after(self, instant: int) -> Iterator[int]:
        """Yield the logical times after an instant, in order, without an end."""
        return (number * self.step_us for number in count(instant // self.step_us + 1))


class Cron(msgspec.Struct, frozen=True):
    """Five fields: minute, hour, day of the month, month, day of the week."""

    expression: str
    zone: tzinfo

    @property
    def description(self) -> str:
        """The expression in words: ``At 02:00 every day``."""
        return CronSim(self.expression, _EPOCH).explain()

    @property
    def _has_real_intervals(self) -> bool:
        minute, hour, *_ = self.expression.split()
        return minute.startswith("*") or hour.startswith("*")

    def after(self, instant: int) -> Iterator[int]:
        """Yield the logical times after an instant, in order."""
        if self._has_real_intervals:
            yield from self._at_every_match(instant)
            return
        latest = instant
        for time in CronSim(self.expression, local_time(instant, self.zone)):
            at = to_microseconds(time)
            if at > latest:  # in the second of two equal hours cronsim starts with the first
                latest = at
                yield at

    def _at_every_match(self, instant: int) -> Iterator[int]:
        """Yield the instants at which the local clock shows a match, in their real intervals.

        With a zone, cronsim's own search does not end where an offset changes within an hour. Without one it gives up
        after 50 years: so each turn searches under one offset, until that changes.
        """
        latest, start = instant, instant
        while True:
            offset, searched, changed_at = _offset_us(start, self.zone), start, None
            wall = _EPOCH.replace(tzinfo=None) + (start + offset) * _MICROSECOND - _SECOND
            for match in CronSim(self.expression, wall):
                at = to_microseconds(match.replace(tzinfo=UTC)) - offset
                changed_at = _offset_change(searched, at, self.zone)
                if changed_at is not None:
                    break
                searched = at
                if at > latest:
                    latest = at
                    yield at
            if changed_at is None:
                return
            start = changed_at

    @property
    def meaning(self) -> tuple[object, ...]:
        """The times that the expression selects, however it is written: ``0 2`` and ``00 2`` are equal."""
        fields = CronSim(self.expression, _EPOCH)
        weekdays = {0 if day == 7 else day for day in fields.weekdays}
        sets = fields.minutes, fields.hours, fields.days, fields.months, weekdays
        return self._has_real_intervals, fields.day_and, *(frozenset(map(str, one)) for one in sets)

    def matches(self, wall: datetime) -> bool:
        """True if the expression matches this hour and minute; False for a time that a gap of the clock moved."""
        fields = CronSim(self.expression, wall)
        return wall.hour in fields.hours and wall.minute in fields.minutes


class FollowingDay(msgspec.Struct, frozen=True):
    """A day of a flow that follows others. ``ready_at``: when the last of their runs ended; None: it waits for one.

    ``by_at``: when it is late; ``why``: for what it waits.
    """

    logical: int
    ready_at: int | None = None
    by_at: int | None = None
    why: str = ""

    def late_at(self, within_us: int | None) -> int | None:
        """Return when it is late: so long after it was ready, or by its time."""
        ready = None if self.ready_at is None or within_us is None else self.ready_at + within_us
        return min((at for at in (ready, self.by_at) if at is not None), default=None)


class After(msgspec.Struct, frozen=True):
    """``after load, prices; ended; by 06:00``: once a day, after the runs of other flows for that day.

    The logical time is the first instant of the day. ``ended``: the runs may have failed; ``by``: the time of day from
    which on a day without a run is late. ``days``: those on which one of the flows has a run, as
    ``core/predecessors.py`` knows them as of now; None: any day.
    """

    flows: tuple[str, ...]
    zone: tzinfo
    ended: bool = False
    by: str | None = None
    days: tuple[FollowingDay, ...] | None = None
    meaning: tuple[object, ...] = ("after",)  # an edit holds from the day on that has no run yet

    def after(self, instant: int) -> Iterator[int]:
        """Yield the days after an instant, up to the last one that is ready; those before it may wait for ever."""
        if self.days is None:
            return Cron("0 0 * * *", self.zone).after(instant)
        ready = max((day.logical for day in self.days if day.ready_at is not None), default=0)
        return (day.logical for day in self.days if instant < day.logical <= ready)


class Excused(msgspec.Struct, frozen=True):
    """Starts that are not late. ``until``: none is before, as the flow was paused; ``skipped``: times that are none."""

    until: int = 0
    skipped: frozenset[int] = frozenset()


NONE_EXCUSED = Excused()


class Schedule(msgspec.Struct, frozen=True):
    """A parsed schedule. ``splay_us``: the delay of each run after its logical time.

    ``holidays``: dates in the time zone whose instants are no logical times.
    """

    recurrence: Cron | Every | After
    zone: tzinfo
    misfire: Misfire = "one"
    splay_us: int = 0
    start_within_us: int | None = None
    holidays: frozenset[date] = frozenset()

    @property
    def follows(self) -> tuple[str, ...]:
        """The flows that come before it; none of a schedule of times."""
        return self.recurrence.flows if isinstance(self.recurrence, After) else ()

    def with_days(self, days: Sequence[FollowingDay] = ()) -> Schedule:
        """Return what ``After`` means as of now; the schedule itself if it is one of times."""
        if not isinstance(self.recurrence, After):
            return self
        return msgspec.structs.replace(self, recurrence=msgspec.structs.replace(self.recurrence, days=tuple(days)))

    @property
    def days(self) -> Mapping[int, FollowingDay]:
        """The days of a flow that follows others, as they are known."""
        days = self.recurrence.days if isinstance(self.recurrence, After) else None
        return {day.logical: day for day in days or ()}

    def after(self, instant: int) -> Iterator[int]:
        """Yield the logical times after an instant, in order."""
        times = self.recurrence.after(instant)
        if not self.holidays:
            return times
        return (at for at in times if local_time(at, self.zone).date() not in self.holidays)

    def names(self, instant: int) -> bool:
        """Whether an instant is one of the logical times."""
        return next(self.after(instant - 1), None) == instant

    def due_at(self, logical: int) -> int:
        """Return when the run of a logical time is due."""
        day = self.days.get(logical)
        return logical + self.splay_us if day is None else day.ready_at or day.by_at or logical

    def late_at(self, logical: int) -> int | None:
        """Return when the run of a logical time counts as late; None without ``start_within`` and ``by``."""
        if self.follows:
            return self.days[logical].late_at(self.start_within_us) if logical in self.days else None
        return None if self.start_within_us is None else self.due_at(logical) + self.start_within_us

    def begin_at(self, since: int) -> int:
        """Return up to where all is decided when the schedule begins: a day that waits then is its own."""
        return min((at - 1 for at in self.days if not self.is_ready(at)), default=since)

    def is_ready(self, logical: int) -> bool:
        """Whether nothing has to happen before the run of a logical time."""
        return logical not in self.days or self.days[logical].ready_at is not None

    def first_undecided(
        self, decided_until: int, started: Collection[int], replaced_at: int | None = None
    ) -> int | None:
        """Return the first logical time without a run, unless another schedule holds when it is due.

        None of a flow that follows others: its days wait for them, and for no instant.
        """
        times = iter(()) if self.follows else self.after(decided_until)
        upcoming = next((at for at in times if at not in started), None)
        is_other = upcoming is not None and replaced_at is not None and self.due_at(upcoming) > replaced_at
        return None if is_other else upcoming

    def excused(self, paused_until: int, skipped: Iterable[int | None]) -> Excused:
        """Return what a pause and skips excuse: after a pause a start has the time that it has after it was due."""
        return Excused(paused_until + (self.start_within_us or 0), frozenset(at for at in skipped if at is not None))

    def late_times(
        self, decided_until: int, started: Collection[int], excused: Excused, replaced_at: int | None = None
    ) -> list[tuple[int, int]]:
        """Return when logical times without a run count as late, each with the time: the first, or each day.

        ``replaced_at``: as for ``first_undecided``.
        """
        known = excused.skipped.union(started)
        first = self.first_undecided(decided_until, known, replaced_at)
        days = [at for at in self.days if at > decided_until and at not in known]
        times = days if first is None else [first]
        return [(max(late_at, excused.until), at) for at in times if (late_at := self.late_at(at)) is not None]

    def count(self, after: int, until: int) -> int:
        """Return how many logical times there are in ``(after, until]``."""
        if isinstance(self.recurrence, Every) and not self.holidays:
            return max(0, until // self.recurrence.step_us - after // self.recurrence.step_us)
        return sum(1 for _ in takewhile(lambda at: at <= until, self.after(after)))

    def latest(self, after: int, until: int) -> tuple[list[int], bool]:
        """Return the latest logical times in ``(after, until]``, and whether these are all of them.

        At least LISTED_MAX of them, if there are so many. The search looks back in steps of growing width: a schedule
        of every minute has half a million logical times a year.
        """
        window = _FIRST_WINDOW_US
        while True:
            start = max(after, until - window)
            found = list(takewhile(lambda at: at <= until, self.after(start)))
            if start == after or len(found) >= LISTED_MAX:
                return found, start == after
            window *= 4

    def last_of_days(self, after: int, until: int) -> list[int]:
        """Return the last logical time of each day in ``(after, until]``: of the latest LISTED_MAX days with one."""
        found: list[int] = []
        while len(found) < LISTED_MAX and (times := self.latest(after, until)[0]):
            found.append(times[-1])
            until = self.bounds_of_day(local_time(times[-1], self.zone).date())[0] - 1
        return found

    def bounds_of_day(self, day: date) -> tuple[int, int]:
        """Return the first and the last instant of a day."""
        begins = [datetime(one.year, one.month, one.day, tzinfo=self.zone) for one in (day, day + timedelta(days=1))]
        return to_microseconds(begins[0]), to_microseconds(begins[1]) - 1


def expected_at(expected: ExpectedBy, start: int, zone: tzinfo) -> int:
    """Return when a task is expected to have succeeded, in a run that started at ``start``.

    A time of day means the next one after the start, at a change of the clocks as a schedule of that time.
    """
    if expected.clock is None:
        return start + round((expected.seconds or 0.0) * 1e6)
    hour, minute = expected.clock.split(":")
    return next(Cron(f"{int(minute)} {int(hour)} * * *", zone).after(start))


def build_schedule(spec: ScheduleSpec, flow: str, zone: tzinfo) -> Schedule:
    """Return the schedule of a flow. Raises ValueError for an invalid expression."""
    return Schedule(
        recurrence=parse_recurrence(spec.expression, zone),
        zone=zone,
        misfire=spec.misfire,
        splay_us=0 if spec.follows else _splay_offset(flow, round(spec.splay_seconds * 1e6)),
        start_within_us=None if spec.start_within_seconds is None else round(spec.start_within_seconds * 1e6),
        holidays=frozenset(map(date.fromisoformat, spec.holidays)),
    )


def parse_recurrence(expression: str, zone: tzinfo) -> Cron | Every | After:
    """Parse ``0 2 * * *``, ``@daily``, ``every 15m`` or ``after load``. Raises ValueError with one sentence."""
    words = expression.split()
    if flows := ScheduleSpec(expression).follows:
        return _parse_after(expression, flows, zone)
    if len(words) == 1:
        words = NAMED_SCHEDULES.get(words[0].lower(), expression).split()
    if words[:1] == ["every"]:
        seconds = parse_duration("".join(words[1:]))
        if seconds < SHORTEST_SECONDS:
            raise ValueError(f"{expression!r} is too often: every second is the most")
        return Every(round(seconds * 1e6))
    if len(words) != 5:
        fields = "the five fields of cron (minute hour day month weekday)"
        raise ValueError(f"{expression!r} is not a schedule: give {fields}, a name as '@daily', or 'every 15m'")
    rhythm = Cron(" ".join(words), zone)
    try:
        first = next(rhythm.after(0), None)
    except CronSimError as error:
        raise ValueError(f"{expression!r} is not a schedule: {str(error).lower()}") from None
    if first is None:
        raise ValueError(f"{expression!r} never comes")
    return rhythm


def _parse_after(expression: str, flows: tuple[str, ...], zone: tzinfo) -> After:
    _, *options = (part.strip() for part in expression.split(";"))
    by = next((option[len("by ") :] for option in options if option.startswith("by ")), None)
    is_clock = by is None or re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", by)
    if not all(flows) or not set(options) <= {"ended", f"by {by}"} or not is_clock:
        raise ValueError(f"{expression!r} is not a schedule: write after('load', 'prices', by='06:00')")
    return After(flows, zone, "ended" in options, by)


def _splay_offset(flow: str, splay_us: int) -> int:
    """Return the offset of a flow within its splay: a hash of its name, the same for every run."""
    if not splay_us:
        return 0
    return int(sha256_hex(flow.encode("utf-8", "surrogateescape"))[:16], 16) % splay_us


# --- Formatting ----------------------------------------------------------------------------------------------------


def local_time(instant: int, zone: tzinfo) -> datetime:
    return (_EPOCH + instant * _MICROSECOND).astimezone(zone)


def _offset_us(instant: int, zone: tzinfo) -> int:
    return (local_time(instant, zone).utcoffset() or timedelta()) // _MICROSECOND


def _offset_change(after: int, until: int, zone: tzinfo) -> int | None:
    """Return the first second in ``(after, until]`` with another offset than ``after``; None without one."""
    offset = _offset_us(after, zone)
    while after < until:
        step = min(after + _OFFSET_STEP_US, until)
        if _offset_us(step, zone) != offset:
            instants = range(after // 1_000_000 * 1_000_000, step + 1, 1_000_000)
            return instants[bisect(instants, False, key=lambda instant: _offset_us(instant, zone) != offset)]
        after = step
    return None


def to_microseconds(time: datetime) -> int:
    """Return a time with a zone as microseconds UTC. ``fold`` selects one of two equal hours."""
    return (time.astimezone(UTC) - _EPOCH) // _MICROSECOND


def logical_name(logical: int, zone: tzinfo) -> str:
    """Return the name of a run: ``2026-11-21T02:00+0530``. Two equal hours differ by their offset."""
    wall = local_time(logical, zone)
    seconds = f":{wall:%S}" if wall.second else ""
    return f"{wall:%Y-%m-%dT%H:%M}{seconds}{wall:%z}"


def iso_time(logical: int, zone: tzinfo) -> str:
    """Return a logical time in ISO 8601: ``2026-11-21T02:00:00+05:30``."""
    return local_time(logical, zone).isoformat()


def daylight_note(schedule: Schedule, logical: int) -> str:
    """Describe the effect of daylight saving on a logical time; empty on an ordinary day."""
    wall = local_time(logical, schedule.zone)
    if isinstance(schedule.recurrence, Cron) and not schedule.recurrence.matches(wall):
        return "the clocks go forward over the time that it names: the first instant after the gap"
    if wall.utcoffset() != wall.replace(fold=1 - wall.fold).utcoffset():
        return f"the clocks go back and show {wall:%H:%M} twice: the {'second' if wall.fold else 'first'} time"
    moved = wall - local_time(logical - 86_400_000_000, schedule.zone)  # of wall clock times, not of instants
    if moved != timedelta(days=1):
        return f"the clocks have gone {'forward' if moved > timedelta(days=1) else 'back'} within the day before"
    return ""
