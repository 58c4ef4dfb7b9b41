"""Decide what the supervisor does for a flow: which logical times run or are given up, its next step, and when to ask.

Safe at any crash: a step is decided from what the state file holds and from whether a process owns that file. The
executor inserts the logical time with its run, in one transaction: of two executors for one logical time the second
one is refused. A crash before that leaves the logical time undecided, so that the next supervisor starts it.

Instants are microseconds UTC, and arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from itertools import islice, takewhile

import msgspec

from .schedule import LISTED_MAX, NONE_EXCUSED, Schedule, iso_time

LATE_SECONDS = 60.0  # misfire="skip": a run is skipped if it would start later than this and than start_within
CLOCK_STEP_US = 3_600_000_000  # decisions that lie further ahead of the clock are taken back
_FAR_US = 7 * 86_400_000_000

# --- Logical times ----------------------------------------------------------------------------------------------------


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


# --- The next step ----------------------------------------------------------------------------------------------------


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
    next_at = _next_undecided(schedule, facts)
    waiting = ScheduleStep(StepKind.WAIT, wake_at=_wake_at(facts, now, next_at, late), late_since=late_since)
    if facts.is_owned:
        return waiting
    decision = decide_schedule(schedule, facts.decided_until, facts.started, now, facts.replaced_at)
    if _has_to_record(facts, decision, next_at, now):
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


def _has_to_record(facts: ScheduleFacts, decision: ScheduleDecision, next_at: int | None, now: int) -> bool:
    """Whether the state file lacks what is decided by now."""
    if decision.missed or (facts.record_at is not None and facts.record_at <= now):
        return True
    if decision.run is None and (decision.decided_until != facts.decided_until or facts.replaced_at is not None):
        return True
    if is_ahead(facts.decided_until or 0, now):
        return True
    # other holidays, or another splay
    return facts.replaced_at is None and facts.next_at not in (None, next_at)


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


def _wake_at(facts: ScheduleFacts, now: int, next_at: int | None, late: list[tuple[int, int]]) -> int | None:
    instants = [facts.paused_until, facts.retry_at, facts.record_at, next_at]
    instants += [late_at + 1 for late_at, _ in late]
    return min((at for at in instants if at is not None and at > now), default=None)


def spread_starts(count: int) -> list[float]:
    """Return after how many seconds each of ``count`` runs starts that are due together; the first one at once."""
    return [SPREAD_SECONDS * position / count for position in range(count)]
