"""The next step of a flow, and a supervisor that is killed between any two steps: nothing runs twice, nothing never."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from datetime import UTC

import pytest
from redrive.engine.core.schedule import Every, Schedule
from redrive.engine.core.spec import Misfire
from redrive.engine.core.supervision import (
    ScheduleFacts,
    ScheduleStep,
    StepKind,
    decide_schedule,
    decide_step,
    spread_starts,
)
from support.marks import for_each

MINUTE = 60_000_000
HOURLY = Schedule(Every(60 * MINUTE), UTC, start_within_us=10 * MINUTE)
HOUR = 60 * MINUTE
DUE = ScheduleFacts(decided_until=0)


@for_each(
    "facts, now, expected",
    [
        (ScheduleFacts(), HOUR, ScheduleStep(StepKind.RECORD)),
        (DUE, HOUR - 1, ScheduleStep(StepKind.WAIT, wake_at=HOUR)),
        (DUE, HOUR, ScheduleStep(StepKind.START, HOUR)),
        (
            ScheduleFacts(decided_until=0, is_owned=True),
            HOUR,
            ScheduleStep(StepKind.WAIT, wake_at=HOUR + 10 * MINUTE + 1),
        ),
        (ScheduleFacts(decided_until=0, started={HOUR}), HOUR, ScheduleStep(StepKind.RECORD)),
        (DUE, 2 * HOUR, ScheduleStep(StepKind.RECORD, late_since=HOUR)),
        (ScheduleFacts(decided_until=0, resumable="r"), HOUR, ScheduleStep(StepKind.RESUME, run_id="r")),
        (ScheduleFacts(decided_until=0, skip_logical=HOUR), HOUR, ScheduleStep(StepKind.SKIP, HOUR)),
        (ScheduleFacts(decided_until=0, skip_logical=HOUR), HOUR - 1, ScheduleStep(StepKind.WAIT, wake_at=HOUR)),
        (ScheduleFacts(decided_until=0, record_at=5), 5, ScheduleStep(StepKind.RECORD)),
        (ScheduleFacts(decided_until=0, has_request=True), 9, ScheduleStep(StepKind.START, is_requested=True)),
        # edited at 2:30, seen at 5:00: the latest run of the old schedule starts, then the new one holds
        (
            ScheduleFacts(decided_until=HOUR, replaced_at=2 * HOUR + 30 * MINUTE),
            5 * HOUR,
            ScheduleStep(StepKind.START, 2 * HOUR),
        ),
        (
            ScheduleFacts(decided_until=2 * HOUR, replaced_at=2 * HOUR + 30 * MINUTE),
            5 * HOUR,
            ScheduleStep(StepKind.RECORD),
        ),
        # decided a year ahead of the clock, as on a host that has booted with a wrong one
        (ScheduleFacts(decided_until=9000 * HOUR), HOUR, ScheduleStep(StepKind.RECORD)),
        (ScheduleFacts(decided_until=2 * HOUR), HOUR, ScheduleStep(StepKind.WAIT, wake_at=3 * HOUR)),
    ],
)
def test_the_next_step(facts, now, expected):
    assert decide_step(HOURLY, facts, now) == expected


def test_a_pause_holds_starts_but_no_run_that_goes_on_and_no_requested_one():
    paused = ScheduleFacts(decided_until=0, paused_until=HOUR + MINUTE)
    assert decide_step(HOURLY, paused, HOUR) == ScheduleStep(StepKind.WAIT, wake_at=HOUR + MINUTE)
    assert decide_step(HOURLY, paused, HOUR + MINUTE) == ScheduleStep(StepKind.START, HOUR)
    interrupted = ScheduleFacts(decided_until=0, resumable="r", paused_until=HOUR + MINUTE)
    assert decide_step(HOURLY, interrupted, HOUR) == ScheduleStep(StepKind.RESUME, run_id="r")
    requested = ScheduleFacts(decided_until=0, paused_until=HOUR + MINUTE, has_request=True)
    assert decide_step(HOURLY, requested, HOUR).kind is StepKind.START


def test_no_run_is_late_that_a_pause_holds_up_or_a_skip_leaves_out():
    skipped = ScheduleFacts(decided_until=0, skip_logical=HOUR, is_owned=True)
    assert decide_step(HOURLY, skipped, HOUR + 41 * MINUTE).late_since is None
    paused = ScheduleFacts(decided_until=0, paused_until=HOUR + 30 * MINUTE)
    assert decide_step(HOURLY, paused, HOUR + 29 * MINUTE).late_since is None
    held = ScheduleFacts(decided_until=0, paused_until=HOUR + 30 * MINUTE, is_owned=True)
    assert decide_step(HOURLY, held, HOUR + 41 * MINUTE).late_since == HOUR


def test_a_failed_start_is_tried_again_later_and_is_late_in_time_all_the_same():
    failed = ScheduleFacts(decided_until=0, retry_at=HOUR + MINUTE, record_at=HOUR + MINUTE // 2)
    assert decide_step(HOURLY, failed, HOUR) == ScheduleStep(StepKind.WAIT, wake_at=HOUR + MINUTE // 2)
    assert decide_step(HOURLY, failed, HOUR + MINUTE // 2).kind is StepKind.RECORD
    tried = ScheduleFacts(decided_until=0, retry_at=HOUR + MINUTE)
    assert decide_step(HOURLY, tried, HOUR + MINUTE) == ScheduleStep(StepKind.START, HOUR)


def test_runs_that_are_due_together_start_within_a_second_and_one_alone_starts_at_once():
    assert spread_starts(1) == [0.0] and spread_starts(4) == pytest.approx([0.0, 0.2, 0.4, 0.6])


# --- A supervisor that is killed between any two steps ---------------------------------------------------------------


@dataclass
class PlayedExecutor:
    """An executor that was started: it imports, takes the lock, claims its logical time, runs and ends."""

    logical: int | None  # None: it resumes
    stage: str = "import"


@dataclass
class PlayedMachine:
    """The state file, its lock and the executors. The supervisor remembers nothing from step to step."""

    schedule: Schedule
    decided_until: int = 0
    runs: dict[int, int] = field(default_factory=dict)  # logical time -> how many executors began a run of it
    missed: set[int] = field(default_factory=set)
    unfinished: int | None = None
    owner: PlayedExecutor | None = None
    executors: list[PlayedExecutor] = field(default_factory=list)

    def decide(self, now: int) -> ScheduleStep:
        """What a supervisor decides that has just begun."""
        started = {at for at in self.runs if at > self.decided_until}
        resumable = None if self.unfinished is None else str(self.unfinished)
        facts = ScheduleFacts(self.owner is not None, self.decided_until, started, resumable)
        return decide_step(self.schedule, facts, now)

    def do(self, step: ScheduleStep, now: int) -> None:
        """What it does then; a start is a process that goes on by itself."""
        if step.kind is StepKind.RECORD and self.owner is None:
            started = {at for at in self.runs if at > self.decided_until}
            decision = decide_schedule(self.schedule, self.decided_until, started, now)
            self.missed |= set(decision.missed)
            self.decided_until = decision.decided_until
        elif step.kind in (StepKind.START, StepKind.RESUME):
            self.executors.append(PlayedExecutor(step.logical))

    def advance(self, executor: PlayedExecutor) -> None:
        """One step of an executor: a second owner is refused, and so is a second run of a logical time."""
        if executor.stage == "import":
            if self.owner is not None:
                self.executors.remove(executor)
                return
            self.owner, executor.stage = executor, "claim"
        elif executor.stage == "claim":
            if executor.logical is not None and (executor.logical in self.runs or executor.logical in self.missed):
                self.end(executor)
                return
            if executor.logical is None and self.unfinished is None:
                self.end(executor)
                return
            if executor.logical is not None:
                self.runs[executor.logical] = self.runs.get(executor.logical, 0) + 1
                self.decided_until = max(self.decided_until, executor.logical)
                self.unfinished = executor.logical
            executor.stage = "run"
        else:
            self.unfinished = None
            self.end(executor)

    def end(self, executor: PlayedExecutor) -> None:
        """It ends, in order or not."""
        self.executors.remove(executor)
        self.owner = None if self.owner is executor else self.owner


@for_each("misfire", ["one", "all", "skip"])
@for_each("seed", range(15))
def test_a_supervisor_killed_between_any_two_steps_starts_nothing_twice_and_forgets_nothing(
    misfire: Misfire, seed: int
):
    dice, now = random.Random(seed), 0
    machine = PlayedMachine(Schedule(Every(MINUTE), UTC, misfire=misfire))
    for _ in range(400):
        now += dice.choice([0, 0, 0, MINUTE // 4, MINUTE, *([3 * MINUTE] if misfire == "one" else [])])
        step = machine.decide(now)
        if dice.random() < 0.7:  # else it is killed between its decision and its act
            machine.do(step, now)
        for executor in list(machine.executors):
            if executor in machine.executors and dice.random() < 0.5:
                machine.end(executor) if dice.random() < 0.05 else machine.advance(executor)
    while machine.executors or machine.decide(now).kind is not StepKind.WAIT:
        machine.do(machine.decide(now), now)
        for executor in list(machine.executors):
            if executor in machine.executors:
                machine.advance(executor)
    decided = set(machine.runs) | machine.missed
    assert decided == set(itertools.takewhile(lambda at: at <= now, Every(MINUTE).after(0)))
    assert not set(machine.runs) & machine.missed and len(machine.runs) > 5
    assert machine.unfinished is None and set(machine.runs.values()) == {1}
    if misfire == "all":
        assert not machine.missed
