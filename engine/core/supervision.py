"""Decide the next step of the supervisor for one flow: what is due, and when to decide again.

Safe at any crash: a step is decided from what the state file holds and from whether a process owns that file. The
executor inserts the logical time with its run, in one transaction: of two executors for one logical time the second
one is refused. A crash before that leaves the logical time undecided, so that the next supervisor starts it.

Instants are microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .schedule import LATE_SECONDS, Schedule, decide_schedule

SPREAD_SECONDS = 0.8  # from the first to the last run that are due together: each then starts within a second


class StepKind(StrEnum):
    """What the supervisor does for a flow."""

    WAIT = "wait"  # until an instant, or until a file changes
    RECORD = "record"  # write a new schedule, missed runs and late runs into the state file, and send pages
    SKIP = "skip"  # give up a logical time, as an operator wished
    START = "start"  # the run of a logical time
    RESUME = "resume"  # a run that can go on


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """What is known about a flow.

    Attributes:
        is_owned: a process owns the state file: a run goes on, or an operator acts.
        decided_until: logical times up to here are decided; None: the schedule is new, or was changed.
        started: the logical times after ``decided_until`` that have a run.
        resumable: the run that can go on; None: no run can.
        requested: logical times that operators want to start now, the oldest first.
        paused_until: no run starts or goes on before, except a requested one.
        retry_at: no run starts or goes on before, because a start has failed.
        skip_logical: the logical time that an operator skips.
        record_at: when the next run becomes late, or an unsent page is sent again.
    """

    is_owned: bool = False
    decided_until: int | None = None
    started: Collection[int] = frozenset()
    resumable: str | None = None
    requested: Sequence[int] = ()
    paused_until: int = 0
    retry_at: int = 0
    skip_logical: int | None = None
    record_at: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The decision. ``logical``: of SKIP and START; ``run_id``: of RESUME; ``wake_at``: of WAIT, None: no instant."""

    kind: StepKind
    logical: int | None = None
    run_id: str | None = None
    is_requested: bool = False
    wake_at: int | None = None
    late_since: int | None = None  # when the oldest run was due that is late now


def decide_step(schedule: Schedule, facts: FlowFacts, now: int) -> Step:
    """Decide the next step of a flow."""
    late_since = _late_since(schedule, facts, now)
    if facts.decided_until is None:
        return Step(StepKind.WAIT) if facts.is_owned else Step(StepKind.RECORD)
    wake_at = _wake_at(schedule, facts, now)
    if facts.is_owned:
        return Step(StepKind.WAIT, wake_at=wake_at, late_since=late_since)
    decision = decide_schedule(schedule, facts.decided_until, facts.started, now)
    if (
        decision.missed
        or (facts.record_at is not None and facts.record_at <= now)
        or (decision.run is None and decision.decided_until != facts.decided_until)
    ):
        return Step(StepKind.RECORD, late_since=late_since)
    if facts.requested and now >= facts.retry_at:
        return Step(StepKind.START, facts.requested[0], is_requested=True)
    if decision.run is not None and decision.run == facts.skip_logical:
        return Step(StepKind.SKIP, decision.run)
    if now < max(facts.paused_until, facts.retry_at):
        return Step(StepKind.WAIT, wake_at=wake_at, late_since=late_since)
    if facts.resumable is not None:
        return Step(StepKind.RESUME, run_id=facts.resumable)
    if decision.run is not None:
        return Step(StepKind.START, decision.run)
    return Step(StepKind.WAIT, wake_at=wake_at)


def _next_undecided(schedule: Schedule, facts: FlowFacts) -> int | None:
    """Return when the first run is due that has not started."""
    if facts.decided_until is None:
        return None
    upcoming = (at for at in schedule.recurrence.after(facts.decided_until) if at not in facts.started)
    return None if (logical := next(upcoming, None)) is None else schedule.due_at(logical)


def _late_at(schedule: Schedule, facts: FlowFacts, due_at: int) -> int:
    """Return when a run counts as late: so long after it was due, and after a pause."""
    tolerance_us = round(LATE_SECONDS * 1e6) if schedule.start_within_us is None else schedule.start_within_us
    return max(due_at, facts.paused_until) + tolerance_us


def _late_since(schedule: Schedule, facts: FlowFacts, now: int) -> int | None:
    due_at = _next_undecided(schedule, facts)
    return due_at if due_at is not None and _late_at(schedule, facts, due_at) < now else None


def _wake_at(schedule: Schedule, facts: FlowFacts, now: int) -> int | None:
    due_at = _next_undecided(schedule, facts)
    instants = [facts.paused_until, facts.retry_at, facts.record_at]
    if due_at is not None:
        instants += [due_at, _late_at(schedule, facts, due_at) + 1]
    return min((at for at in instants if at is not None and at > now), default=None)


def spread_starts(count: int) -> list[float]:
    """Return after how many seconds each of ``count`` runs starts that are due together; the first one at once."""
    return [SPREAD_SECONDS * position / count for position in range(count)]
