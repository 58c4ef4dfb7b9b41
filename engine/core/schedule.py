"""Decide when a flow runs by its schedule: the logical times, and what to do about missed ones.

A *logical time* is an instant that the expression matches. Its run is *due* later by the offset of the flow within the
splay, so that hourly flows do not all start at the full hour (004.43). The time and earlier decisions are arguments.
Instants are microseconds UTC.

Cron is Debian's, by cronsim: a job at a fixed time runs once in the hour that comes twice, and at the first instant
after a gap. An expression whose minute or hour begins with a star keeps its real intervals, as does ``every 15m``
(SPEC 4.10).
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import count, islice, takewhile

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
LATE_SECONDS = 60.0  # misfire="skip": a run is skipped if it would start later than this and than start_within
CLOCK_STEP_US = 3_600_000_000  # decisions that lie further ahead of the clock are taken back
_FAR_US = 7 * 86_400_000_000
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
    if words[:1] == ["after"]:
        return _parse_after(expression, zone)
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


def _parse_after(expression: str, zone: tzinfo) -> After:
    names, *options = (part.strip() for part in expression.strip()[len("after") :].split(";"))
    flows = tuple(name.strip() for name in names.split(","))
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


# --- Decisions -----------------------------------------------------------------------------------------------------


class ScheduleDecision(msgspec.Struct, frozen=True):
    """``run``: the logical time to start now. ``missed``: the latest of the logical times that are given up.

    Once the decision is stored, every logical time up to ``decided_until`` is decided, except ``run``.
    """

    decided_until: int
    run: int | None = None
    missed: tuple[int, ...] = ()
    is_all: bool = True  # False: more than ``missed`` are given up


def decide_schedule(
    schedule: Schedule, decided_until: int, already_run: Collection[int], now: int, replaced_at: int | None = None
) -> ScheduleDecision:
    """Decide about the logical times that became due after ``decided_until``. ``already_run``: those that ran.

    Normally one is due, and it runs. Several are due if no process served the schedule, or if a run took longer than
    its interval: ``misfire`` selects all of them, the latest one, or none that is late. ``replaced_at``: another
    schedule holds from then on.
    """
    until = (now if replaced_at is None else min(now, replaced_at)) - schedule.splay_us
    if schedule.misfire == "all":
        return _oldest_first(schedule, decided_until, already_run, until)
    passed, is_all = schedule.latest(decided_until, until)
    if not passed:
        return ScheduleDecision(decided_until)
    last = passed[-1]
    tolerance_us = max(round(LATE_SECONDS * 1e6), schedule.start_within_us or 0)
    if last in already_run or (schedule.misfire == "skip" and now - schedule.due_at(last) > tolerance_us):
        run, given_up = None, passed
    else:
        run, given_up = last, passed[:-1]
    missed = [at for at in given_up if at not in already_run]
    is_all = is_all and len(missed) <= LISTED_MAX
    return ScheduleDecision(given_up[-1] if given_up else decided_until, run, tuple(missed[-LISTED_MAX:]), is_all)


def _oldest_first(schedule: Schedule, decided_until: int, already_run: Collection[int], until: int) -> ScheduleDecision:
    for at in takewhile(lambda at: at <= until, schedule.after(decided_until)):
        if at not in already_run:
            return ScheduleDecision(decided_until, run=at if schedule.is_ready(at) else None)
        decided_until = at
    return ScheduleDecision(decided_until)


def next_problem(schedule: Schedule, next_at: int | None, now: int) -> str:
    """Return that the next run is by more than a week, and two intervals, later than the rhythm of the schedule, or
    never comes: as after a holiday of a wrong year. Empty: it comes."""
    if schedule.follows:
        return ""
    if next_at is None:
        return "it has no next run"
    first, *more = islice(schedule.recurrence.after(now), 2)
    if next_at - schedule.due_at(first) <= max(_FAR_US, *(2 * (second - first) for second in more)):
        return ""
    coming, usual = (iso_time(at, schedule.zone)[:16].replace("T", " ") for at in (next_at, first))
    return f"its next run is that of {coming}, by its rhythm it is that of {usual}: look at its holidays"


def late_starts(
    schedule: Schedule, decided_until: int, already_run: Collection[int], now: int, replaced_at: int | None = None
) -> list[int]:
    """Return the latest logical times without a decision that are late by now, and were due until ``replaced_at``."""
    if schedule.follows:
        return [day for late_at, day in schedule.late_times(decided_until, already_run, NONE_EXCUSED) if late_at < now]
    if schedule.start_within_us is None:
        return []
    until = now - schedule.start_within_us - 1
    found, _ = schedule.latest(
        decided_until, (until if replaced_at is None else min(until, replaced_at)) - schedule.splay_us
    )
    return [at for at in found[-LISTED_MAX:] if at not in already_run]


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


# --- Decide the next step of the supervisor for one flow: what is due, and when to decide again ----------------------
#
# Safe at any crash: a step is decided from what the state file holds and from whether a process owns that file. The
# executor inserts the logical time with its run, in one transaction: of two executors for one logical time the second
# one is refused. A crash before that leaves the logical time undecided, so that the next supervisor starts it.
#
# Instants are microseconds UTC.


SPREAD_SECONDS = 0.8  # from the first to the last run that are due together: each then starts within a second


class StepKind(StrEnum):
    """An action of the supervisor for a flow."""

    WAIT = "wait"  # until an instant, or until a file changes
    RECORD = "record"  # write a new schedule, missed runs and late runs into the state file, and send pages
    SKIP = "skip"  # give up a logical time, as an operator wished
    START = "start"  # the run of a logical time
    RESUME = "resume"  # a run that can go on


class ScheduleFacts(msgspec.Struct, frozen=True):
    """The facts about a flow by which the supervisor decides.

    Attributes:
        is_owned: a process owns the state file: a run goes on, or an operator acts.
        decided_until: logical times up to here are decided; None: the schedule is new, or was changed.
        started: the logical times after ``decided_until`` that have a run.
        resumable: the run that can go on; None: no run can.
        has_request: an operator wants a run to start now.
        paused_until: no run starts or goes on before, except a requested one.
        retry_at: no run starts or goes on before, because a start has failed.
        skip_logical: the logical time that an operator skips.
        record_at: when the next run becomes late, or an unsent page is sent again.
        next_at: when the next run is due, as the state file says; None: it does not say.
        replaced_at: the flow file has another schedule since then; None: it has the one that is decided about.
    """

    is_owned: bool = False
    decided_until: int | None = None
    started: Collection[int] = frozenset()
    resumable: str | None = None
    has_request: bool = False
    paused_until: int = 0
    retry_at: int = 0
    skip_logical: int | None = None
    record_at: int | None = None
    next_at: int | None = None
    replaced_at: int | None = None


class ScheduleStep(msgspec.Struct, frozen=True):
    """The decision. ``logical``: of SKIP, and of a START that nobody has requested; ``run_id``: of RESUME; ``wake_at``:
    of WAIT, None: no instant."""

    kind: StepKind
    logical: int | None = None
    run_id: str | None = None
    is_requested: bool = False
    wake_at: int | None = None
    late_since: int | None = None  # when the oldest run was due that is late now


def decide_step(schedule: Schedule, facts: ScheduleFacts, now: int) -> ScheduleStep:
    """Decide the next step of a flow. What was due by a schedule before its edit is decided before the new one holds.

    A pause holds up starts, and no run that has begun.
    """
    if facts.decided_until is None:
        return ScheduleStep(StepKind.WAIT) if facts.is_owned else ScheduleStep(StepKind.RECORD)
    late = _late_times(schedule, facts)
    late_since = next((due_at for late_at, due_at in late if late_at < now), None)
    waiting = ScheduleStep(StepKind.WAIT, wake_at=_wake_at(schedule, facts, now, late), late_since=late_since)
    if facts.is_owned:
        return waiting
    decision = decide_schedule(schedule, facts.decided_until, facts.started, now, facts.replaced_at)
    if _has_to_record(schedule, facts, decision, now):
        return ScheduleStep(StepKind.RECORD, late_since=late_since)
    if facts.has_request and now >= facts.retry_at:
        return ScheduleStep(StepKind.START, is_requested=True)
    if decision.run is not None and decision.run == facts.skip_logical:
        return ScheduleStep(StepKind.SKIP, decision.run)
    if now < facts.retry_at:
        return waiting
    if facts.resumable is not None:
        return ScheduleStep(StepKind.RESUME, run_id=facts.resumable)
    if now < facts.paused_until:
        return waiting
    if decision.run is not None:
        return ScheduleStep(StepKind.START, decision.run)
    return waiting


def _has_to_record(schedule: Schedule, facts: ScheduleFacts, decision: ScheduleDecision, now: int) -> bool:
    """Whether the state file lacks what is decided by now."""
    if decision.missed or (facts.record_at is not None and facts.record_at <= now):
        return True
    if decision.run is None and (decision.decided_until != facts.decided_until or facts.replaced_at is not None):
        return True
    if is_ahead(facts.decided_until or 0, now):
        return True
    # other holidays, or another splay
    return facts.replaced_at is None and facts.next_at not in (None, _next_undecided(schedule, facts))


def is_ahead(decided_until: int, now: int) -> bool:
    """Whether more was decided than the clock has reached: it was set back, or ran ahead when that was decided."""
    return decided_until > now + CLOCK_STEP_US


def _next_undecided(schedule: Schedule, facts: ScheduleFacts) -> int | None:
    """Return when the first run is due that has not started, unless another schedule holds by then."""
    upcoming = schedule.first_undecided(facts.decided_until or 0, facts.started, facts.replaced_at)
    return None if upcoming is None else schedule.due_at(upcoming)


def _late_times(schedule: Schedule, facts: ScheduleFacts) -> list[tuple[int, int]]:
    """Return when runs that have not started are late, and were due."""
    within_us = round(LATE_SECONDS * 1e6) if schedule.start_within_us is None else schedule.start_within_us
    bounded = msgspec.structs.replace(schedule, start_within_us=within_us)
    excused = bounded.excused(facts.paused_until, [facts.skip_logical])
    late = bounded.late_times(facts.decided_until or 0, facts.started, excused, facts.replaced_at)
    return [(late_at, schedule.due_at(at)) for late_at, at in late]


def _wake_at(schedule: Schedule, facts: ScheduleFacts, now: int, late: list[tuple[int, int]]) -> int | None:
    instants = [facts.paused_until, facts.retry_at, facts.record_at, _next_undecided(schedule, facts)]
    instants += [late_at + 1 for late_at, _ in late]
    return min((at for at in instants if at is not None and at > now), default=None)


def spread_starts(count: int) -> list[float]:
    """Return after how many seconds each of ``count`` runs starts that are due together; the first one at once."""
    return [SPREAD_SECONDS * position / count for position in range(count)]
