"""The graph as rails beside a table: one row per task, parents above children, like the graph of a commit log.

Each task with children starts a rail in its column, which ends at its last child. A task takes the column of a parent
whose rail ends there, or else a free one; its row has a line to the rail of each parent. The order keeps rails short:
a task follows as soon as all its parents are placed, and missing parents of a started join come next.

How to read rails, as the tests do: the line across a row belongs to the task of that row, so every rail that it
touches is a parent; a rail without an arm to either side is crossed. A task directly below another one, or below a
rail, is its child.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from ....engine.core.dag import Dag
from ....engine.core.views import CountedState
from ...text.glyphs import ACROSS, DOWN, LEFT, RIGHT, UP


class Rail(msgspec.Struct, frozen=True):
    """The line of one task: from its row to that of its last child, in one column."""

    task: int
    last: int


class RailHighlight(msgspec.Struct, frozen=True):
    """Highlighted edges: how far down each rail, and how far across each row."""

    until: dict[int, int] = {}  # by task: the row of its last highlighted child
    across: dict[int, tuple[int, int]] = {}  # by row: first and last column


_NO_HIGHLIGHT = RailHighlight()


class RailRow(msgspec.Struct, frozen=True):
    """The rails of one row. ``cells``: line bits per cell, two cells per column, 0 at the task itself.

    ``at``: the cell of the task; ``arms``: its line bits. ``lit``: highlighted cells.
    """

    at: int
    cells: tuple[int, ...]
    arms: int
    lit: frozenset[int]


class Rails:
    """Order, columns and rails of a graph, independent of task states.

    ``rank``: of each task; lower ranks come first where the edges allow; no task may rank before its parents.
    """

    def __init__(self, dag: Dag, rank: Sequence[int] | None = None) -> None:
        self.dag = dag
        self.order: tuple[int, ...] = tuple(_order(dag, rank))
        self.row: list[int] = [0] * len(dag)
        for row, task in enumerate(self.order):
            self.row[task] = row
        self.column: list[int] = [0] * len(dag)
        self._tracks: list[tuple[list[int], list[Rail]]] = []
        self._assign_columns()

    @property
    def height(self) -> int:
        """The number of rows, one per task."""
        return len(self.order)

    @property
    def columns(self) -> int:
        """The number of columns of the widest row."""
        return len(self._tracks)

    def name_at(self, row: int) -> str:
        """Return the task of a row."""
        return self.dag.names[self.order[row]]

    def row_of(self, name: str) -> int:
        """Return the row of a task."""
        return self.row[self.dag.number[name]]

    def line(self, row: int, lit: RailHighlight = _NO_HIGHLIGHT) -> RailRow:
        """Return the rails of one row."""
        task = self.order[row]
        own = self.column[task]
        parents = {self.column[parent] for parent in self.dag.parent_numbers[task]}
        low, high = min(parents | {own}), max(parents | {own})
        rails = [self._rail(column, row) for column in range(self.columns)]
        cells: list[int] = []
        for column, rail in enumerate(rails):
            cells.append(0 if column == own else _arms(rail, row, column, low, high, column in parents))
            cells.append(ACROSS if low <= column < high else 0)
        at = own * 2
        while cells and not cells[-1] and len(cells) > at + 1:
            cells.pop()
        arms = (UP if rails[own] is not None else 0) | (DOWN if self.dag.child_numbers[task] else 0)
        arms |= (LEFT if low < own else 0) | (RIGHT if high > own else 0)
        return RailRow(at, tuple(cells), arms, _lit_cells(rails, row, lit))

    def highlight(self, edges: Iterable[tuple[str, str]]) -> RailHighlight:
        """Highlight edges (parent, child)."""
        until: dict[int, int] = {}
        across: dict[int, tuple[int, int]] = {}
        for parent_name, child_name in edges:
            parent, child = self.dag.number[parent_name], self.dag.number[child_name]
            row = self.row[child]
            until[parent] = max(until.get(parent, row), row)
            ends = self.column[parent], self.column[child]
            low, high = across.get(row, ends)
            across[row] = min(low, *ends), max(high, *ends)
        return RailHighlight(until, across)

    def _rail(self, column: int, row: int) -> Rail | None:
        """Return the rail that enters a row from above, or None."""
        starts, rails = self._tracks[column]
        index = bisect_right(starts, row - 1) - 1
        return rails[index] if index >= 0 and rails[index].last >= row else None

    # --- Layout ----------------------------------------------------------------------------------------------------

    def _assign_columns(self) -> None:
        """For each row: end the rails of parents, choose the column, start the rail."""
        left = [len(children) for children in self.dag.child_numbers]
        free: list[bool] = []
        just_freed: list[int] = []  # columns freed in the previous row: a task directly below would look like a child
        for row, task in enumerate(self.order):
            ended = []
            for parent in self.dag.parent_numbers[task]:
                left[parent] -= 1
                if not left[parent]:
                    ended.append(self.column[parent])
            own = min(ended) if ended else _free_column(free)
            self.column[task] = own
            self._open(task, row, own, free)
            for column in just_freed:
                free[column] = True
            for column in ended:
                free[column] = column != own
            free[own] = False
            just_freed = [] if self.dag.child_numbers[task] else [own]

    def _open(self, task: int, row: int, own: int, free: list[bool]) -> None:
        if own == len(free):
            free.append(False)
            self._tracks.append(([], []))
        children = self.dag.child_numbers[task]
        if children:
            starts, rails = self._tracks[own]
            starts.append(row)
            rails.append(Rail(task, max(self.row[child] for child in children)))


def _lit_cells(rails: Sequence[Rail | None], row: int, lit: RailHighlight) -> frozenset[int]:
    cells = {
        column * 2 for column, rail in enumerate(rails) if rail is not None and row <= lit.until.get(rail.task, -1)
    }
    if row in lit.across:
        low, high = lit.across[row]
        cells.update(range(low * 2, min(high, len(rails) - 1) * 2 + 1))
    return frozenset(cells)


def _free_column(free: list[bool]) -> int:
    return free.index(True) if True in free else len(free)


def _arms(rail: Rail | None, row: int, column: int, low: int, high: int, is_parent: bool) -> int:
    if rail is None:
        return ACROSS if low < column < high else 0
    arms = UP | (DOWN if row < rail.last else 0)
    if is_parent:
        arms |= (LEFT if column > low else 0) | (RIGHT if column < high else 0)
    return arms


def _order(dag: Dag, rank: Sequence[int] | None) -> list[int]:
    """Order every task after its parents and close to its children; missing parents of a started join come first."""
    waiting = [len(parents) for parents in dag.parent_numbers]
    done = bytearray(len(dag))
    incomplete: list[int] = []  # joins with some placed parent, the latest last
    order: list[int] = []
    firsts = dag.topological if rank is None else sorted(dag.topological, key=rank.__getitem__)
    for first in firsts:
        stack = [] if done[first] else [first]
        while stack:
            task = stack.pop()
            if done[task]:
                continue
            done[task] = 1
            order.append(task)
            children = dag.child_numbers[task]
            _release(children if rank is None else sorted(children, key=rank.__getitem__), waiting, stack, incomplete)
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


COLUMN_CELLS_MAX = 8
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
