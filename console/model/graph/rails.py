"""The graph as rails beside a table: one row per task, parents above their children, like a history of commits.

Each task that has children opens a rail in its own column, which ends at its last child. A task stands in the column
of a parent whose rail ends there, or else in a free one; the row of a task has a line to each of its parents' rails.
The order keeps rails short: a task comes as soon as its last parent has come, and of several parents that a task still
misses the nearest are fetched first.

How rails are read, and what the tests trace: the line across a row belongs to the task of that row, so every rail that
it touches is a parent; a rail without an arm to either side is passed underneath. A task right below another one, or
below a rail that goes on, is its child.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ....engine.core.dag import Dag
from ...text.strokes import ACROSS, DOWN, LEFT, RIGHT, UP


@dataclass(frozen=True, slots=True)
class Rail:
    """The line of one task: from its row to that of its last child, in one column."""

    task: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LitRails:
    """Edges to be set off from the others: how far down each rail, and how far across each row."""

    until: dict[int, int] = field(default_factory=dict)  # task -> row of its last chosen child
    across: dict[int, tuple[int, int]] = field(default_factory=dict)  # row -> columns


_DARK = LitRails()


@dataclass(frozen=True, slots=True)
class RailRow:
    """What stands left of a task's facts. ``cells``: arms per cell, two cells per column, the task's own being 0.

    ``at``: the cell of the task's sign. ``lit``: cells on a chosen way. ``elided``: columns beyond the limit hold more.
    """

    task: int
    at: int
    cells: tuple[int, ...]
    lit: frozenset[int]
    elided: bool


class Rails:
    """Order, columns and rails of a graph. Nothing here changes when a task changes its state.

    ``rank``: of each task, what comes first among those that could come next; no task may rank before its parents.
    """

    def __init__(self, dag: Dag, rank: Sequence[int] | None = None) -> None:
        self.dag = dag
        self.order: tuple[int, ...] = tuple(_order(dag, rank))
        self.row: list[int] = [0] * len(dag)
        for row, task in enumerate(self.order):
            self.row[task] = row
        self.column: list[int] = [0] * len(dag)
        self._tracks: list[tuple[list[int], list[Rail]]] = []
        self._lay()

    @property
    def height(self) -> int:
        """Rows: one per task."""
        return len(self.order)

    @property
    def columns(self) -> int:
        """How many columns the widest row needs."""
        return len(self._tracks)

    def name_at(self, row: int) -> str:
        """The task of a row."""
        return self.dag.names[self.order[row]]

    def row_of(self, name: str) -> int:
        """The row of a task."""
        return self.row[self.dag.number[name]]

    def line(self, row: int, limit: int, lit: LitRails = _DARK) -> RailRow:
        """The rails of one row, ``limit`` columns at most."""
        task = self.order[row]
        own = self.column[task]
        parents = {self.column[parent] for parent in self.dag.parent_numbers[task]}
        low, high = min(parents | {own}), max(parents | {own})
        shown = min(self.columns, limit)
        rails = [self._rail(column, row) for column in range(shown)]
        cells: list[int] = []
        for column, rail in enumerate(rails):
            cells.append(0 if column == own else _arms(rail, row, column, low, high, column in parents))
            cells.append(ACROSS if low <= column < high else 0)
        at = min(own, shown) * 2
        while cells and not cells[-1] and len(cells) > at + 1:
            cells.pop()
        hidden = self._live[row] > sum(rail is not None for rail in rails)
        return RailRow(
            task, at, tuple(cells), _lit_cells(rails, row, lit), elided=hidden or own >= shown or high >= shown
        )

    def light(self, edges: Iterable[tuple[str, str]]) -> LitRails:
        """Set these edges (parent, child) off from the others."""
        until: dict[int, int] = {}
        across: dict[int, tuple[int, int]] = {}
        for parent_name, child_name in edges:
            parent, child = self.dag.number[parent_name], self.dag.number[child_name]
            row = self.row[child]
            until[parent] = max(until.get(parent, row), row)
            ends = self.column[parent], self.column[child]
            low, high = across.get(row, ends)
            across[row] = min(low, *ends), max(high, *ends)
        return LitRails(until, across)

    def _rail(self, column: int, row: int) -> Rail | None:
        """The rail that reaches into this row from above."""
        starts, rails = self._tracks[column]
        index = bisect_right(starts, row - 1) - 1
        return rails[index] if index >= 0 and rails[index].last >= row else None

    # --- Layout ----------------------------------------------------------------------------------------------------

    def _lay(self) -> None:
        """Row by row: end the rails of parents, choose the column, open the rail."""
        left = [len(children) for children in self.dag.child_numbers]
        free: list[bool] = []
        resting: list[int] = []  # columns given up in the row before: a task right below would look like a child
        for row, task in enumerate(self.order):
            ended = []
            for parent in self.dag.parent_numbers[task]:
                left[parent] -= 1
                if not left[parent]:
                    ended.append(self.column[parent])
            own = min(ended) if ended else _free_column(free)
            self.column[task] = own
            self._open(task, row, own, free)
            for column in resting:
                free[column] = True
            for column in ended:
                free[column] = column != own
            free[own] = False
            resting = [] if self.dag.child_numbers[task] else [own]
        self._live = self._count_live()

    def _count_live(self) -> list[int]:
        """By row: how many rails reach into it from above."""
        change = [0] * (self.height + 2)
        for _, rails in self._tracks:
            for rail in rails:
                change[rail.first + 1] += 1
                change[rail.last + 1] -= 1
        return list(accumulate(change))

    def _open(self, task: int, row: int, own: int, free: list[bool]) -> None:
        if own == len(free):
            free.append(False)
            self._tracks.append(([], []))
        children = self.dag.child_numbers[task]
        if children:
            starts, rails = self._tracks[own]
            starts.append(row)
            rails.append(Rail(task, row, max(self.row[child] for child in children)))


def _lit_cells(rails: Sequence[Rail | None], row: int, lit: LitRails) -> frozenset[int]:
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
    """Every task after its parents, its children soon after it, and what a begun join still misses before others."""
    waiting = [len(parents) for parents in dag.parent_numbers]
    done = bytearray(len(dag))
    begun: list[int] = []  # joins that some parent has come of, the latest last
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
            _release(children if rank is None else sorted(children, key=rank.__getitem__), waiting, stack, begun)
            if not stack:
                stack.extend(_missing(dag, begun, done, waiting))
    return order


def _release(children: Sequence[int], waiting: list[int], stack: list[int], begun: list[int]) -> None:
    for child in reversed(children):
        waiting[child] -= 1
        if waiting[child]:
            begun.append(child)
        else:
            stack.append(child)


def _missing(dag: Dag, begun: list[int], done: bytearray, waiting: list[int]) -> list[int]:
    """A task that can come now and leads to the join begun last."""
    while begun:
        task = begun[-1]
        if done[task]:
            begun.pop()
            continue
        while waiting[task]:
            task = next(parent for parent in dag.parent_numbers[task] if not done[parent])
        return [task]
    return []
