"""The instants at which the tasks of a group ran, waited and failed, sorted.

A cell of a time axis costs a few bisections, however many tasks there are, and a change of one task a few insertions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple

from ...engine.core.projection import TaskRow
from ...engine.domain.states import FAILED_OUTCOMES, NEEDS_HUMAN, TIMED, TaskState


class CellActivity(NamedTuple):
    """The content of a cell: attempts that run, waits between attempts, failures after which a task was tried again,
    failures that ended a task, and dead letters."""

    running: int
    waiting: int
    retried: int
    failures: int
    dead_letters: int


class _Instants(NamedTuple):
    """The instants of one task, microseconds UTC."""

    starts: Sequence[int]
    ends: Sequence[int]
    unended: Sequence[int]  # starts of attempts that run
    wait_starts: Sequence[int]
    wait_ends: Sequence[int]
    retried: Sequence[int]
    failures: Sequence[int]
    dead_letters: Sequence[int]
    due: Sequence[int]  # when the next attempt begins


class GroupActivity:
    """The instants of all tasks of a group."""

    def __init__(self, rows: Iterable[TaskRow]) -> None:
        self._of_task = {row.name: _instants_of(row) for row in rows}
        found = self._of_task.values()
        self._sorted: list[list[int]] = [
            sorted(chain.from_iterable(map(itemgetter(place), found))) for place in range(len(_Instants._fields))
        ]

    def update(self, row: TaskRow) -> None:
        """Replace the instants of a task that changed."""
        before, after = self._of_task.get(row.name, _NOTHING), _instants_of(row)
        self._of_task[row.name] = after
        for instants, old, new in zip(self._sorted, before, after, strict=True):
            if old != new:
                for at in old:
                    del instants[bisect_left(instants, at)]
                for at in new:
                    insort(instants, at)

    def cells(self, borders: Sequence[int]) -> list[CellActivity]:
        """The activity of the cells between these instants. What goes on reaches through all later cells."""
        nothing = [0] * len(borders)
        starts, ends, _, wait_starts, wait_ends, retried, failures, dead_letters, _ = (
            [bisect_left(instants, at) for at in borders] if instants else nothing for instants in self._sorted
        )
        return [
            CellActivity(
                starts[cell + 1] - ends[cell],
                wait_starts[cell + 1] - wait_ends[cell],
                retried[cell + 1] - retried[cell],
                failures[cell + 1] - failures[cell],
                dead_letters[cell + 1] - dead_letters[cell],
            )
            for cell in range(len(borders) - 1)
        ]

    @property
    def first_start(self) -> int | None:
        """The start of the first attempt."""
        return self._at(0)

    @property
    def last_end(self) -> int | None:
        """The end of the latest of the ended attempts."""
        return self._at(1, -1)

    @property
    def oldest_running(self) -> int | None:
        """The start of the oldest attempt that still runs; None if none runs."""
        return self._at(2)

    @property
    def is_active(self) -> bool:
        """Whether a task runs, or waits for its next attempt."""
        return self.oldest_running is not None or self.next_due is not None

    @property
    def next_due(self) -> int | None:
        """The instant at which the next waiting task continues."""
        return self._at(8)

    @property
    def work_us(self) -> int:
        """The time of all ended attempts together."""
        starts, ends, unended = self._sorted[:3]
        return sum(ends) - sum(starts) + sum(unended)

    def _at(self, place: int, index: int = 0) -> int | None:
        instants = self._sorted[place]
        return instants[index] if instants else None


_NOTHING = _Instants(*[()] * len(_Instants._fields))


def _instants_of(row: TaskRow) -> _Instants:
    if not row.attempts:
        return _NOTHING
    attempts = list(row.attempts.values())
    last = attempts[-1]
    is_plain = row.state is TaskState.SUCCESS and len(attempts) == 1 and last.outcome not in FAILED_OUTCOMES
    if is_plain and last.ended_at is not None:
        return _Instants((last.started_at,), (last.ended_at,), *_NOTHING[2:])  # fast: most tasks of a large run
    pairs = [(one.ended_at, two.started_at) for one, two in pairwise(attempts) if one.generation == two.generation]
    waits = [(end, start) for end, start in pairs if end is not None]
    is_timed = row.state in TIMED and last.generation == row.generation and last.ended_at is not None
    final = last.ended_at if row.state in NEEDS_HUMAN else None
    retried = attempts if final is None else attempts[:-1]
    return _Instants(
        [one.started_at for one in attempts],
        [one.ended_at for one in attempts if one.ended_at is not None],
        [one.started_at for one in attempts if one.ended_at is None],
        [end for end, _ in waits] + ([last.ended_at] if is_timed and last.ended_at is not None else []),
        [start for _, start in waits],
        [one.ended_at for one in retried if one.ended_at is not None and one.outcome in FAILED_OUTCOMES],
        [final] if final is not None and row.state is TaskState.FAILED else [],
        [final] if final is not None and row.state is TaskState.DEAD_LETTER else [],
        [row.next_retry_at] if row.state in TIMED and row.next_retry_at is not None else [],
    )
