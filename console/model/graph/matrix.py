"""The two densest views: one sign per task, and one bar per band of levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ....engine.core.dag import Dag
from ....engine.domain.states import TaskState


class MatrixRow(NamedTuple):
    """One row of signs, all of one level. ``first``: whether it is the first row of the level."""

    level: int
    tasks: tuple[int, ...]
    first: bool


class Matrix:
    """Levels from top to bottom, each in rows of ``width`` cells.

    ``rank``: of each task; lower ranks come first within a level.
    """

    def __init__(self, dag: Dag, width: int, rank: Sequence[int] | None = None) -> None:
        self.dag = dag
        self.width = max(width, 1)
        self.rows: list[MatrixRow] = []
        self._cell: list[tuple[int, int]] = [(0, 0)] * len(dag)
        for level, tasks in enumerate(_by_level(dag)):
            if rank is not None:
                tasks.sort(key=rank.__getitem__)
            for start in range(0, len(tasks), self.width):
                self._add(level, tuple(tasks[start : start + self.width]), start == 0)

    def _add(self, level: int, tasks: tuple[int, ...], first: bool) -> None:
        for x, task in enumerate(tasks):
            self._cell[task] = x, len(self.rows)
        self.rows.append(MatrixRow(level, tasks, first))

    def place(self, name: str) -> tuple[int, int]:
        """Return (x, row) of a task's sign."""
        return self._cell[self.dag.number[name]]

    def at(self, x: int, row: int) -> str | None:
        """Return the task at a cell, or None."""
        if 0 <= row < len(self.rows) and 0 <= x < len(self.rows[row].tasks):
            return self.dag.names[self.rows[row].tasks[x]]
        return None

    def step(self, name: str, dx: int, dy: int) -> str:
        """Return the task ``dx`` signs to the right and ``dy`` rows down, or the nearest one."""
        x, row = self.place(name)
        row = min(max(row + dy, 0), len(self.rows) - 1)
        tasks = self.rows[row].tasks
        return self.dag.names[tasks[min(max(x + dx, 0), len(tasks) - 1)]]


@dataclass(slots=True)
class Band:
    """Levels ``first`` to ``last`` as one bar."""

    index: int
    first: int
    last: int
    tasks: list[int]
    counts: Counter[TaskState] = field(default_factory=Counter)


class Bands:
    """Bands of levels, at most ``height`` of them."""

    def __init__(self, dag: Dag, height: int, states: Mapping[str, TaskState]) -> None:
        self.dag = dag
        levels = _by_level(dag)
        size = max(1, -(-len(levels) // max(height, 1)))
        self.bands: list[Band] = []
        self.band_of = [0] * len(dag)
        for first in range(0, len(levels), size):
            tasks = [task for level in levels[first : first + size] for task in level]
            self._add(Band(len(self.bands), first, min(first + size, len(levels)) - 1, tasks), states)

    def _add(self, band: Band, states: Mapping[str, TaskState]) -> None:
        for task in band.tasks:
            self.band_of[task] = band.index
            band.counts[states[self.dag.names[task]]] += 1
        self.bands.append(band)

    def apply_move(self, name: str, before: TaskState, after: TaskState) -> int:
        """Update the counts for a task that changed its state. Returns the index of its band."""
        index = self.band_of[self.dag.number[name]]
        counts = self.bands[index].counts
        counts[before] -= 1
        counts[after] += 1
        return index

    def row_of(self, name: str) -> int:
        """Return the row of the band of a task."""
        return self.band_of[self.dag.number[name]]

    @property
    def widest(self) -> int:
        """The number of tasks in the largest band, which has a full bar."""
        return max((len(band.tasks) for band in self.bands), default=0)

    def task_for(self, row: int, is_preferred: Callable[[str], bool]) -> str:
        """Return the first preferred task of a band, or else its first task."""
        names = [self.dag.names[task] for task in self.bands[row].tasks]
        return next((name for name in names if is_preferred(name)), names[0])


def _by_level(dag: Dag) -> list[list[int]]:
    levels: list[list[int]] = [[] for _ in range(dag.depth)]
    for number in dag.topological:
        levels[dag.levels[number]].append(number)
    return levels
