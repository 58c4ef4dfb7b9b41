"""The graph as a list: one row per task, parents above children. And as a silhouette: its tasks by level.

The order keeps families together: a task follows as soon as all its parents are placed, and missing parents of a
started join come next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from ....engine.core.dag import Dag
from ....engine.core.views import CountedState


class TaskRows:
    """The order of the tasks of a graph, independent of their states."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.order: tuple[int, ...] = tuple(_order(dag))
        self._row: list[int] = [0] * len(dag)
        for row, task in enumerate(self.order):
            self._row[task] = row

    @property
    def height(self) -> int:
        """The number of rows, one per task."""
        return len(self.order)

    def name_at(self, row: int) -> str:
        """Return the task of a row."""
        return self.dag.names[self.order[row]]

    def row_of(self, name: str) -> int:
        """Return the row of a task."""
        return self._row[self.dag.number[name]]


def _order(dag: Dag) -> list[int]:
    """Order every task after its parents and close to its children; missing parents of a started join come first."""
    waiting = [len(parents) for parents in dag.parent_numbers]
    done = bytearray(len(dag))
    incomplete: list[int] = []  # joins with some placed parent, the latest last
    order: list[int] = []
    for first in dag.topological:
        stack = [] if done[first] else [first]
        while stack:
            task = stack.pop()
            if done[task]:
                continue
            done[task] = 1
            order.append(task)
            _release(dag.child_numbers[task], waiting, stack, incomplete)
            if not stack:
                stack.extend(_missing(dag, incomplete, done, waiting))
    return order


def _release(children: Sequence[int], waiting: list[int], stack: list[int], incomplete: list[int]) -> None:
    for child in reversed(children):
        waiting[child] -= 1
        if waiting[child]:
            incomplete.append(child)
        else:
            stack.append(child)


def _missing(dag: Dag, incomplete: list[int], done: bytearray, waiting: list[int]) -> list[int]:
    """Return a task that can be placed now and leads to the join started last."""
    while incomplete:
        task = incomplete[-1]
        if done[task]:
            incomplete.pop()
            continue
        while waiting[task]:
            task = next(parent for parent in dag.parent_numbers[task] if not done[parent])
        return [task]
    return []


# --- The silhouette of a large graph: its tasks by level -------------------------------------------------------------


COLUMN_CELLS_MAX = 24
_GAP_FROM = 4  # cells of the narrowest column


class SilhouetteColumn(msgspec.Struct):
    """The tasks of some neighbouring levels, in ``cells`` cells from ``x`` on."""

    x: int
    cells: int
    tasks: list[int] = []
    counts: Counter[CountedState] = msgspec.field(default_factory=Counter)


class Silhouette:
    """Levels from left to right over the whole width: one column each, or for several if there are too many.

    ``size``: cells of the width, at least 1.
    """

    def __init__(self, dag: Dag, size: int, states: Mapping[str, CountedState]) -> None:
        self.dag = dag
        self.size = max(size, 1)
        self.moves = 0  # of tasks so far
        count = max(min(dag.depth, self.size), 1)
        used = min(self.size, count * COLUMN_CELLS_MAX)
        starts = [place * used // count for place in range(count + 1)]
        self.columns = [SilhouetteColumn(x, end - x) for x, end in pairwise(starts)]
        self._column_of = [level * count // dag.depth for level in dag.levels]
        for task in dag.topological:
            column = self.columns[self._column_of[task]]
            column.tasks.append(task)
            column.counts[states[dag.names[task]]] += 1
        self.gap = 1 if min(column.cells for column in self.columns) >= _GAP_FROM else 0  # cells behind each column
        self.tallest = max(len(column.tasks) for column in self.columns)

    def apply_move(self, name: str, before: CountedState, after: CountedState) -> None:
        """Update the counts for a task that changed its state."""
        self.moves += 1
        counts = self.columns[self.index_of(name)].counts
        counts[before] -= 1
        counts[after] += 1

    def index_of(self, name: str) -> int:
        """Return the index of the column of a task."""
        return self._column_of[self.dag.number[name]]

    def task_at(self, x: int, is_preferred: Callable[[str], bool]) -> str | None:
        """Return the first preferred task of the column at a cell, or else its first task; None beside the columns."""
        for column in self.columns:
            if column.x <= x < column.x + column.cells and column.tasks:
                names = self.dag.names_of(column.tasks)
                return next(filter(is_preferred, names), names[0])
        return None
