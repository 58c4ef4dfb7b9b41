"""When a run did something, and the idle pauses between: a time axis shortens them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import NamedTuple

from ...engine.core.projection import TaskRow
from ...engine.domain.states import TIMED, TaskState

PAUSES_MAX = 20  # the longest of a run; more would leave no room for bars


class Pause(NamedTuple):
    """A time without activity, in microseconds UTC."""

    start: int
    end: int


class RunActivity(NamedTuple):
    """``pauses``: between two activities, in order. ``end``: of the latest activity; ``is_active``: it goes on."""

    pauses: tuple[Pause, ...]
    end: int
    is_active: bool


def activity_of(rows: Iterable[TaskRow], start: int) -> RunActivity:
    """The activity of a run that began at ``start``: attempts, and the waits between attempts of one generation."""
    pauses: list[Pause] = []
    end, is_active = start, False
    for begin, until in sorted((period for row in rows for period in _periods(row)), key=lambda period: period.start):
        if begin > end and not is_active:
            pauses.append(Pause(end, begin))
        is_active = is_active or until is None
        end = max(end, until or begin)
    longest = nlargest(PAUSES_MAX, pauses, key=lambda pause: pause.end - pause.start)
    return RunActivity(tuple(sorted(longest)), end, is_active)


class _Period(NamedTuple):
    start: int
    end: int | None  # None: goes on


def _periods(row: TaskRow) -> Iterator[_Period]:
    """One period per generation of a task; the last one is open while the task runs or has a time to go on."""
    start: int | None = None
    end: int | None = None
    generation = 0
    for attempt in row.attempts.values():
        if start is not None and attempt.generation != generation:
            yield _Period(start, end)
            start = None
        start = attempt.started_at if start is None else start
        end, generation = attempt.ended_at, attempt.generation
    if start is not None:
        moves = row.state is TaskState.RUNNING or (row.state in TIMED and generation == row.generation)
        yield _Period(start, None if moves else end)
