"""Decide when a flow starts that follows other flows: ``Flow("build", schedule=after("load", "prices"))``.

What became of the runs of the other flows, and now, are arguments. A day is the calendar day of a logical time, of each
flow in its own time zone. The flow starts once for a day: when the last logical time of each other flow on it has a
run, and all their runs have succeeded; a time that was given up counts with a later run of its day. A flow without a
time on the day is not waited for, and a day on which none has one is no day of the flow.

Instants are microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date

import msgspec

from ..domain.states import RunState
from .schedule import LISTED_MAX, After, FollowingDay, Schedule, expected_at, local_time, logical_name
from .spec import ExpectedBy


class DayRun(msgspec.Struct, frozen=True):
    """The fate of a logical time. ``state`` None: it was given up; ``ended_at`` None: its run goes on.

    ``is_decided``: of a PARTIAL run, an operator has decided about all that makes it so; ``is_blocked``: the run waits
    for a human; ``why``: it was given up.
    """

    state: RunState | None
    ended_at: int | None = None
    is_decided: bool = False
    is_blocked: bool = False
    why: str = ""

    def problem(self, *, ended: bool) -> str:
        """Return why a flow after it cannot start; empty: it can. ``ended``: the run may have failed."""
        if self.state is None:
            return f"was {self.why or 'missed'}"
        if self.ended_at is None:
            return "waits for a human" if self.is_blocked else "goes on"
        is_good = ended or self.state is RunState.SUCCESS or (self.state is RunState.PARTIAL and self.is_decided)
        return "" if is_good else f"ended {self.state}"


class Predecessor(msgspec.Struct, frozen=True):
    """A flow that comes before another.

    Attributes:
        schedule: None: no such flow is served, or none has been read.
        decided_until: its logical times up to here are decided; None: it has not been served yet.
        since: its logical times before are not of its schedule.
        runs: what became of its latest logical times.
        problem: why it starts nothing: it is gone, or unknown; empty: it does.
        paused: by whom, and until when: "paused by eva"; empty: it is not.
        edited: the schedules that it had before, of which times may be undecided: each after an instant, until another.
    """

    schedule: Schedule | None = None
    decided_until: int | None = None
    since: int = 0
    runs: Mapping[int, DayRun] = {}
    problem: str = ""
    paused: str = ""
    edited: tuple[tuple[Schedule, int, int], ...] = ()


NOT_SERVED = Predecessor(problem="is in no file that is served")


class Wait(msgspec.Struct, frozen=True):
    """For what a day waits. ``is_stuck``: it needs a human, for it does not come by itself."""

    flow: str
    why: str
    is_stuck: bool = False


class Following(msgspec.Struct, frozen=True):
    """The days of a flow as of now. ``waits``: of the latest day, if it waits, with misfire="all" of the first one that
    does; ``expected_at``: when the last of the runs that it waits for is due; None: no day waits."""

    days: tuple[FollowingDay, ...] = ()
    waits: tuple[Wait, ...] = ()
    expected_at: int | None = None


def follow(
    schedule: Schedule,
    decided_until: int,
    started: Iterable[int],
    known: Mapping[str, Predecessor],
    now: int,
    since: int = 0,
) -> Following:
    """Return what is known of the days after ``decided_until``, the latest ones, that have begun by now.

    ``since``: when the schedule began; no day is late before.
    """
    assert isinstance(schedule.recurrence, After)
    found, done = Following(), frozenset(started)
    for logical in schedule.latest(decided_until, now)[0][-LISTED_MAX:]:
        one = _day(schedule, schedule.recurrence, logical, known, now)
        if logical in done or one is None:
            continue
        day, waits, expected = one
        if day.by_at is not None and day.by_at <= since:
            day = msgspec.structs.replace(day, by_at=None)
        if schedule.misfire == "all" and found.waits:  # in order: it waits for the day that waits
            waits, expected = found.waits, found.expected_at or expected
        found = Following((*found.days, day), waits, expected if waits else None)
    return found


def _day(
    schedule: Schedule, after: After, logical: int, known: Mapping[str, Predecessor], now: int
) -> tuple[FollowingDay, tuple[Wait, ...], int] | None:
    """Return a day, for what it waits, and when that is due; None: no flow before has a time on it."""
    day = local_time(logical, schedule.zone).date()
    waits, last, ended = [], [logical], [logical]
    is_ours, is_known = False, True
    for flow in after.flows:
        one = known.get(flow, NOT_SERVED)
        at = None if one.schedule is None else last_time(flow, day, known)
        if at is None and one.schedule is not None and not one.problem:
            continue
        is_known &= one.schedule is not None
        is_ours = True
        wait = _wait(one, at, day, ended=after.ended, now=now)
        waits += [Wait(flow, *wait)] if wait else []
        last += [] if at is None or one.schedule is None else [one.schedule.due_at(at)]
        ended += [run.ended_at for _, run in runs_of_day(one, day) if run.ended_at is not None]
    if not is_ours:
        return None
    by_at = (
        None if after.by is None or not is_known else expected_at(ExpectedBy(clock=after.by), max(last), schedule.zone)
    )
    why = "; ".join(f"{one.flow} {one.why}" for one in waits)
    return FollowingDay(logical, None if waits else max(ended), by_at, why), tuple(waits), max(last)


def last_time(flow: str, day: date, known: Mapping[str, Predecessor]) -> int | None:
    """Return the last logical time of a flow on a day, in its own zone; None: it has none.

    One that has run, or was given up, by a schedule that has been edited since counts, unless one of the schedule that
    it has now is to come.
    """
    one, scheduled = known[flow], _scheduled_time(flow, day, known)
    if scheduled is not None and scheduled > (one.decided_until or 0) and scheduled not in one.runs:
        return scheduled
    return max([*([] if scheduled is None else [scheduled]), *(at for at, _ in runs_of_day(one, day))], default=None)


def _scheduled_time(flow: str, day: date, known: Mapping[str, Predecessor]) -> int | None:
    """Return the last logical time of a day by the schedule that the flow had then, or has now."""
    one = known[flow]
    assert one.schedule is not None
    first, last = one.schedule.bounds_of_day(day)
    if one.schedule.follows:  # a day that is decided, and has neither run nor been given up, was none
        is_open = (one.decided_until or 0) < first
        has_time = is_open and any(
            (before := known.get(name)) is None or before.schedule is None or last_time(name, day, known) is not None
            for name in one.schedule.follows
        )
        return first if has_time else None
    spans = (*one.edited, (one.schedule, one.since, last))
    times = (schedule.latest(max(first - 1, after), min(last, until))[0] for schedule, after, until in spans)
    return max((at for found in times for at in found[-1:]), default=None)


def runs_of_day(one: Predecessor, day: date) -> Iterator[tuple[int, DayRun]]:
    """Yield what became of the logical times of a day, in order."""
    if one.schedule is not None:
        first, last = one.schedule.bounds_of_day(day)
        yield from sorted((at, run) for at, run in one.runs.items() if first <= at <= last)


def _wait(one: Predecessor, last: int | None, day: date, *, ended: bool, now: int) -> tuple[str, bool] | None:
    """Return why a flow holds up the day, and whether that needs a human; None: it does not."""
    if one.problem:
        return one.problem, True
    if one.schedule is None or last is None:
        return "has not been read", False
    for at, run in runs_of_day(one, day):
        given_up_for_a_later = run.state is None and at != last
        if not given_up_for_a_later and (problem := run.problem(ended=ended)):
            return f"{problem} ({_name(one.schedule, at)})", run.state is None
    if last in one.runs:
        return None
    if one.decided_until is not None and last <= one.decided_until:
        return f"was missed ({_name(one.schedule, last)})", True
    if one.paused and one.schedule.due_at(last) <= now:
        return f"is {one.paused}", True
    return f"has not started ({_name(one.schedule, last)})", False


def _name(schedule: Schedule, logical: int) -> str:
    name = logical_name(logical, schedule.zone)
    return name[:10] if schedule.follows else name[:16]


def day_problem(flow: str, day: date, known: Mapping[str, Predecessor], *, ended: bool, now: int) -> str:
    """Return why the runs of a flow for a day are not done; empty: they are, or it has none on that day."""
    one = known.get(flow, NOT_SERVED)
    last = None if one.schedule is None else last_time(flow, day, known)
    if last is None and one.schedule is not None and not one.problem:
        return ""
    return (_wait(one, last, day, ended=ended, now=now) or ("", False))[0]


def older_days(started: Mapping[date, int], one: Predecessor) -> list[date]:
    """Return the days of which a flow before has run again. ``started``: when the run of each day started."""
    return [day for day, at in started.items() if any((run.ended_at or 0) > at for _, run in runs_of_day(one, day))]


def cycle_sentence(flow: str, follows: Mapping[str, Sequence[str]]) -> str:
    """Return why a flow can never start: it comes after itself; empty: it does not."""
    paths = [[flow]]
    seen = set()
    while paths:
        path = paths.pop()
        for name in follows.get(path[-1], ()):
            if name == flow:
                return f"flow {flow!r} comes after itself: {' after '.join([*path, name])}"
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return ""
