"""The lines between two neighbouring levels: shared buses, and the order of their vertical parts.

Tasks with exactly the same parents share one *bus*: lines from all sources enter it, lines to all targets leave it, and
each source is a parent of each target. So a fan-out is one bus, a join is one bus, and one line at most enters a task.

On each row, the line of the source must end before the line to the target starts, or the two would touch:
``order_of_tracks`` finds that order, and ``assign_columns`` fills as few columns as possible.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Bus:
    """Sources (rows of the left level) and targets (rows of the right one), all connected."""

    number: int
    source_rows: frozenset[int]  # rows of the sources
    target_rows: frozenset[int]  # rows of the targets
    top: int
    bottom: int
    column: int = -1  # of its vertical part within the channel

    @property
    def is_straight(self) -> bool:
        """Whether it has no vertical part: one source and one target in one row."""
        return self.top == self.bottom

    @property
    def is_single(self) -> bool:
        """Whether it has one source."""
        return len(self.source_rows) == 1


@dataclass(frozen=True, slots=True)
class TrackOrder:
    """``before``: by bus, the buses left of it. ``rows_in_rings``: rows with contradicting constraints."""

    before: Mapping[int, Sequence[int]]
    rows_in_rings: frozenset[int]


Family = tuple[Sequence[int], Sequence[int]]  # parents, and tasks with exactly these parents
Rows = tuple[list[int], list[int]]  # the same, as rows


def families(rank: Sequence[int], above: Sequence[tuple[int, ...]]) -> list[Family]:
    """Group the vertices of one level by their parents."""
    targets: dict[tuple[int, ...], list[int]] = {}
    for vertex in rank:
        if above[vertex]:
            targets.setdefault(above[vertex], []).append(vertex)
    return list(targets.items())


def rows_of(found: Sequence[Family], row: Sequence[int]) -> list[Rows]:
    """Return the rows of the members of each family."""
    return [([row[source] for source in sources], [row[target] for target in targets]) for sources, targets in found]


def buses_of(wired: Sequence[Rows]) -> list[Bus]:
    """Return one bus per family."""
    buses: list[Bus] = []
    for source_rows, target_rows in wired:
        top, bottom = min(min(source_rows), min(target_rows)), max(max(source_rows), max(target_rows))
        buses.append(Bus(len(buses), frozenset(source_rows), frozenset(target_rows), top, bottom))
    return buses


def order_of_tracks(wired: Sequence[Rows]) -> TrackOrder:
    """Return which buses must be left of which, and the rows where that is impossible. Straight lines do not count."""
    entering: dict[int, int] = {}
    for number, (source_rows, target_rows) in enumerate(wired):
        if len(source_rows) > 1 or len(target_rows) > 1 or source_rows[0] != target_rows[0]:
            entering.update(dict.fromkeys(target_rows, number))
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    rows: dict[tuple[int, int], int] = {}
    for number, (source_rows, _) in enumerate(wired):
        for row in source_rows:
            other = entering.get(row, number)
            if other != number:
                before.setdefault(other, []).append(number)
                after.setdefault(number, []).append(other)
                rows[number, other] = row
    in_cycles = _in_cycles(before, after)
    return TrackOrder(
        before, frozenset(row for (left, right), row in rows.items() if left in in_cycles and right in in_cycles)
    )


def _in_cycles(before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the buses in a cycle or behind one: those that a topological sort cannot remove."""
    waiting = {number: len(others) for number, others in before.items()}
    unblocked = [number for number in after if number not in waiting]
    while unblocked:
        for other in after.get(unblocked.pop(), ()):
            waiting[other] -= 1
            if not waiting[other]:
                unblocked.append(other)
    return {number for number, count in waiting.items() if count}


def assign_columns(buses: Sequence[Bus], order: TrackOrder) -> int:
    """Assign each bus that turns a column that respects ``order``. Returns the number of columns.

    Columns are filled from the left, each from top to bottom with buses that do not overlap.
    """
    turning = [bus for bus in buses if not bus.is_straight]
    waiting = {bus.number: len(order.before.get(bus.number, ())) for bus in turning}
    after: dict[int, list[int]] = {}
    for number, others in order.before.items():
        for other in others:
            after.setdefault(other, []).append(number)
    ready = sorted((bus.top, bus.bottom, bus.number) for bus in turning if not waiting[bus.number])
    columns = 0
    while ready:
        for number in _fill_column(ready, buses, columns):
            for other in after.get(number, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    insort(ready, (buses[other].top, buses[other].bottom, other))
        columns += 1
    return columns


def _fill_column(ready: list[tuple[int, int, int]], buses: Sequence[Bus], column: int) -> list[int]:
    """Move from ``ready`` the buses that fit into one column, from top to bottom."""
    placed: list[int] = []
    index = 0
    while index < len(ready):
        _, bottom, number = ready.pop(index)
        buses[number].column = column
        placed.append(number)
        index = bisect_left(ready, (bottom + 1,), lo=index)
    return placed
