"""Runs made by hand, for tests of what would have been: tries with their ends and waits, and when each began."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import AttemptRow, RunProjection, TaskRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import RunState, TaskState

SECOND = 1_000_000
START = 1_777_000_000 * SECOND
PLAIN = RetryPolicy(max_attempts=3, base=2.0, cap=600.0, jitter="full")


@dataclass(frozen=True)
class Tried:
    """``wait``: seconds until the next try; None: there was none. ``mark``: the fingerprint of the failure."""

    seconds: float = 1.0
    failure: str | None = None  # its class; None: it did well
    wait: float | None = None
    mark: str = "f"  # its fingerprint; "bug...": an error that repeats by its type
    at: float | None = None  # seconds after the start of the run; None: as soon as the one before and the wait are over
    generation: int = 0
    outcome: str = ""
    asked: float = 0.0  # Retry-After


def projection_of(
    tries: Mapping[str, Sequence[Tried]],
    parents: Mapping[str, Sequence[str]] | None = None,
    states: Mapping[str, TaskState] | None = None,
    starts: Mapping[str, float] | None = None,
    retry: RetryPolicy = PLAIN,
    specs: Mapping[str, Mapping[str, Any]] | None = None,
    **run: Any,
) -> RunProjection:
    """A run as it ended. ``starts``: of the first try of each task, seconds after its start."""
    edges = {name: tuple((parents or {}).get(name, ())) for name in tries}
    rows = {}
    for position, (name, found) in enumerate(tries.items()):
        options = {"retry": retry, **((specs or {}).get(name) or {})}
        row = TaskRow(name, position=position, spec=TaskSpec(name, edges[name], **options))
        row.state = (states or {}).get(name, TaskState.SUCCESS)
        row.attempts = attempts_of(found, (starts or {}).get(name, 0.0), options["retry"])
        row.attempt = len(found)
        row.generation = max((one.generation for one in found), default=0)
        rows[name] = row
    children: dict[str, list[str]] = {}
    for name, found_parents in edges.items():
        for parent in found_parents:
            children.setdefault(parent, []).append(name)
    options = {"max_parallel": len(tries), "state": RunState.SUCCESS, **run}
    found_run = RunRow("r", "f", started_at=START, **options)
    return RunProjection(found_run, rows, edges, {name: tuple(found) for name, found in children.items()})


def attempts_of(tries: Sequence[Tried], start: float, retry: RetryPolicy) -> dict[int, AttemptRow]:
    """The rows of the attempts of one task."""
    rows, at, failures = {}, start, 0
    for number, one in enumerate(tries, 1):
        at = one.at if one.at is not None else at
        row = AttemptRow(number, one.generation, started_at=START + round(at * SECOND))
        row.duration_us = round(one.seconds * SECOND)
        row.ended_at = row.started_at + row.duration_us
        row.outcome = one.outcome or ("success" if one.failure is None else "error")
        if one.failure is not None:
            row.failure_class, row.fingerprint, row.fingerprint_loose = one.failure, one.mark, f"loose-{one.mark}"
            row.error_type = "ZeroDivisionError" if one.mark.startswith("bug") else "Trouble"
        if one.wait is not None:
            row.delay_us = round((one.asked + one.wait) * SECOND)
            row.ceiling_us = round((one.asked + min(retry.cap, retry.base * retry.factor**failures)) * SECOND)
        failures += one.failure is not None
        at += one.seconds + one.asked + (one.wait or 0.0)
        rows[number] = row
    return rows


# --- Whole nights --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneratedRun:
    """A run with room for everybody, and what it came to, reckoned without the engine."""

    projection: RunProjection
    calls: int
    failed: int
    dead_letters: int
    not_run: int
    seconds: float


def generate_run(seed: int, tasks: int = 40) -> GeneratedRun:
    """Tasks that do well, blip, hang together with a bug, or fail for good; each waits for some that come before it."""
    dice = random.Random(seed)
    tries: dict[str, list[Tried]] = {}
    parents: dict[str, list[str]] = {}
    states: dict[str, TaskState] = {}
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for number in range(tasks):
        name = f"t{number}"
        parents[name] = dice.sample(list(states), min(len(states), dice.randrange(3)))
        state = _state_after({states[parent] for parent in parents[name]})
        starts[name] = max((ends.get(parent, 0.0) for parent in parents[name]), default=0.0)
        tries[name], states[name] = ([], state) if state is not TaskState.SUCCESS else _tries(dice, name)
        ends[name] = starts[name] + sum(one.seconds + (one.wait or 0.0) for one in tries[name])
    found = list(states.values())
    return GeneratedRun(
        projection_of(tries, parents, states, starts),
        calls=sum(map(len, tries.values())),
        failed=found.count(TaskState.FAILED),
        dead_letters=found.count(TaskState.DEAD_LETTER),
        not_run=found.count(TaskState.UPSTREAM_FAILED) + found.count(TaskState.PENDING),
        seconds=max(ends[name] for name in tries if tries[name]),
    )


def _state_after(parents: set[TaskState]) -> TaskState:
    if parents & {TaskState.FAILED, TaskState.UPSTREAM_FAILED}:
        return TaskState.UPSTREAM_FAILED
    if parents & {TaskState.DEAD_LETTER, TaskState.PENDING}:
        return TaskState.PENDING
    return TaskState.SUCCESS


def _tries(dice: random.Random, name: str) -> tuple[list[Tried], TaskState]:
    def seconds() -> float:
        return round(dice.uniform(0.1, 30.0), 3)

    blips = [
        Tried(seconds(), "transient", round(dice.uniform(0.0, 2.0 * 2**number), 3), f"blip{number}")
        for number in range(2)
    ]
    match dice.randrange(8):
        case 0:
            return [*blips, Tried(seconds(), "transient", mark="blip2")], TaskState.FAILED
        case 1:
            bug = Tried(seconds(), "unclassified", round(dice.uniform(0.0, 2.0), 3), f"bug in {name}")
            return [bug, Tried(seconds(), "unclassified", mark=bug.mark)], TaskState.DEAD_LETTER
        case 2:
            return [Tried(seconds(), "permanent", mark="wrong")], TaskState.DEAD_LETTER
        case 3 | 4:
            return [*blips[: dice.randrange(1, 3)], Tried(seconds())], TaskState.SUCCESS
        case _:
            return [Tried(seconds())], TaskState.SUCCESS
