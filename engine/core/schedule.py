"""When a flow runs by itself: the logical times of its schedule, and what to do about those that have passed.

A *logical time* is an instant that the expression names; its run is *due* a little later, by the share of the splay
that belongs to this flow, so that what is scheduled on the hour does not start on the hour everywhere (004.43). Now and
what was decided before come in, a decision goes out. Instants are microseconds UTC.

Cron is Debian's, by cronsim: a job at a fixed time runs once in the hour that comes twice and at the first instant
after a gap; one whose minute or hour begins with a star keeps its real intervals, as does ``every 15m`` (SPEC 4.10).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, takewhile

from cronsim import CronSim, CronSimError

from .durations import parse_duration
from .spec import Misfire, ScheduleSpec

SHORTEST_SECONDS = 1.0
LATE_SECONDS = 60.0  # misfire="skip": what starts later than this, and than a start_within, is skipped
LISTED_MAX = 100  # of logical times that were missed in one stretch, the latest are written down one by one

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_WINDOW_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Every:
    """``every 15m``: multiples of the interval since 1970, so that nobody need remember when it began."""

    step_us: int

    def after(self, instant: int) -> Iterator[int]:
        """The logical times after an instant, in order, for ever."""
        return (number * self.step_us for number in count(instant // self.step_us + 1))


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields: minute, hour, day of the month, month, day of the week."""

    expression: str
    zone: tzinfo

    @property
    def description(self) -> str:
        """For people: ``At 02:00 every day``."""
        return CronSim(self.expression, _EPOCH).explain()

    def after(self, instant: int) -> Iterator[int]:
        """The logical times after an instant, in order."""
        latest = instant
        for moment in CronSim(self.expression, local_time(instant, self.zone)):
            at = to_microseconds(moment)
            if at > latest:  # asked in the second of two equal hours, it begins with those of the first
                latest = at
                yield at

    def matches(self, wall: datetime) -> bool:
        """Whether the expression says this hour and minute; not so for what a gap has moved."""
        fields = CronSim(self.expression, wall)
        return wall.hour in fields.hours and wall.minute in fields.minutes


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is decided by. ``splay_us``: how much later than its logical time each run of it is due."""

    recurrence: Cron | Every
    zone: tzinfo
    misfire: Misfire = "one"
    splay_us: int = 0
    start_within_us: int | None = None

    def due_at(self, logical: int) -> int:
        """When the run of a logical time is to start."""
        return logical + self.splay_us

    def late_at(self, logical: int) -> int | None:
        """From when on the run of a logical time has not started as promised; None where nothing is promised."""
        return None if self.start_within_us is None else self.due_at(logical) + self.start_within_us

    def latest(self, after: int, until: int) -> tuple[list[int], bool]:
        """The latest logical times after ``after`` and not after ``until``, and whether these are all of them.

        At least KEPT of them where there are so many. Looks back in ever wider steps: a minute's schedule that nobody
        served for a year has half a million, and nobody wants to read them.
        """
        window = _FIRST_WINDOW_US
        while True:
            start = max(after, until - window)
            found = list(takewhile(lambda at: at <= until, self.recurrence.after(start)))
            if start == after or len(found) >= LISTED_MAX:
                return found, start == after
            window *= 4


def build_schedule(spec: ScheduleSpec, flow: str, zone: tzinfo) -> Schedule:
    """The schedule of a flow. Raises ValueError with one sentence for an expression that cannot be."""
    return Schedule(
        recurrence=parse_recurrence(spec.expression, zone),
        zone=zone,
        misfire=spec.misfire,
        splay_us=_share(flow, round(spec.splay_seconds * 1e6)),
        start_within_us=None if spec.start_within_seconds is None else round(spec.start_within_seconds * 1e6),
    )


def parse_recurrence(expression: str, zone: tzinfo) -> Cron | Every:
    """``0 2 * * *`` or ``every 15m``. Raises ValueError with one sentence."""
    words = expression.split()
    if words[:1] == ["every"]:
        seconds = parse_duration("".join(words[1:]))
        if seconds < SHORTEST_SECONDS:
            raise ValueError(f"{expression!r} is too often: every second is the most")
        return Every(round(seconds * 1e6))
    if len(words) != 5:
        fields = "the five fields of cron (minute hour day month weekday)"
        raise ValueError(f"{expression!r} is no schedule: give {fields}, or 'every 15m'")
    rhythm = Cron(" ".join(words), zone)
    try:
        first = next(rhythm.after(0), None)
    except CronSimError as error:
        raise ValueError(f"{expression!r} is no schedule: {str(error).lower()}") from None
    if first is None:
        raise ValueError(f"{expression!r} never comes")
    return rhythm


def _share(flow: str, splay_us: int) -> int:
    """A flow's own part of its splay: always the same, and another for every flow. No dice."""
    if not splay_us:
        return 0
    return int.from_bytes(hashlib.sha256(flow.encode("utf-8", "surrogateescape")).digest()[:8]) % splay_us


# --- What is to be done --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """``run``: the logical time to start now. ``missed``: those that are given up, the latest of them.

    With these written down, every logical time up to ``decided_until`` has been decided about, but for ``run``.
    """

    decided_until: int
    run: int | None = None
    missed: tuple[int, ...] = ()
    is_all: bool = True  # False: even more than ``missed`` are given up


def decide_schedule(schedule: Schedule, decided_until: int, fired: Collection[int], now: int) -> ScheduleDecision:
    """What follows from those that have come due since ``decided_until``. ``fired``: those that have run already.

    Normally that is one, which runs. There are more when nobody served the schedule, or when a run took longer than
    its interval: then ``misfire`` says whether to run all of them, the latest one, or none that is late.
    """
    until = now - schedule.splay_us
    if schedule.misfire == "all":
        return _oldest(schedule, decided_until, fired, until)
    passed, is_all = schedule.latest(decided_until, until)
    if not passed:
        return ScheduleDecision(decided_until)
    last = passed[-1]
    if last in fired or (schedule.misfire == "skip" and now - schedule.due_at(last) > _tolerance_us(schedule)):
        run, given_up = None, passed
    else:
        run, given_up = last, passed[:-1]
    missed = [at for at in given_up if at not in fired]
    is_all = is_all and len(missed) <= LISTED_MAX
    return ScheduleDecision(given_up[-1] if given_up else decided_until, run, tuple(missed[-LISTED_MAX:]), is_all)


def _oldest(schedule: Schedule, decided_until: int, fired: Collection[int], until: int) -> ScheduleDecision:
    for at in takewhile(lambda at: at <= until, schedule.recurrence.after(decided_until)):
        if at not in fired:
            return ScheduleDecision(decided_until, run=at)
        decided_until = at
    return ScheduleDecision(decided_until)


def _tolerance_us(schedule: Schedule) -> int:
    return max(round(LATE_SECONDS * 1e6), schedule.start_within_us or 0)


def late_starts(schedule: Schedule, decided_until: int, fired: Collection[int], now: int) -> list[int]:
    """The logical times of which nothing has been decided although they should have started by now; the latest."""
    if schedule.start_within_us is None:
        return []
    found, _ = schedule.latest(decided_until, now - schedule.splay_us - schedule.start_within_us - 1)
    return [at for at in found[-LISTED_MAX:] if at not in fired]


# --- In words ------------------------------------------------------------------------------------------------------


def local_time(instant: int, zone: tzinfo) -> datetime:
    """An instant as the clocks of a zone show it."""
    return (_EPOCH + instant * _MICROSECOND).astimezone(zone)


def to_microseconds(moment: datetime) -> int:
    """A moment that knows its zone, as microseconds UTC. Of two equal hours, and in a gap, as ``fold`` says."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def logical_name(logical: int, zone: tzinfo) -> str:
    """What the run of a logical time is called: ``2026-11-21T02:00+0530``. Two equal hours differ by their offset."""
    wall = local_time(logical, zone)
    seconds = f":{wall:%S}" if wall.second else ""
    return f"{wall:%Y-%m-%dT%H:%M}{seconds}{wall:%z}"


def iso_time(logical: int, zone: tzinfo) -> str:
    """A logical time for programs: ``2026-11-21T02:00:00+05:30``."""
    return local_time(logical, zone).isoformat()


def daylight_note(schedule: Schedule, logical: int) -> str:
    """What the clocks do to a logical time, in words; empty on an ordinary day."""
    wall = local_time(logical, schedule.zone)
    if isinstance(schedule.recurrence, Cron) and not schedule.recurrence.matches(wall):
        return "the clocks go forward over the time that it names: the first instant after the gap"
    if wall.utcoffset() != wall.replace(fold=1 - wall.fold).utcoffset():
        return f"the clocks go back and show {wall:%H:%M} twice: the {'second' if wall.fold else 'first'} time"
    moved = wall - local_time(logical - 86_400_000_000, schedule.zone)  # of two wall clocks: by what they show
    if moved != timedelta(days=1):
        return f"the clocks have gone {'forward' if moved > timedelta(days=1) else 'back'} within the day before"
    return ""
