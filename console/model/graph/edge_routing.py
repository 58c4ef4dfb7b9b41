"""The lines between two neighbouring levels: which share one, and in which order their vertical parts stand.

Tasks that wait for exactly the same ones hang on one *bus*: lines of all its sources lead into it, lines to all its
targets lead out of it, and each source is a parent of each target. So a fan-out is one bus, a join is one bus, and
every task has at most one line that enters it.

On a row, the lines of its source must end before the line to its target begins, or the two would be one:
that is the order which ``order_of_tracks`` finds, and ``tracks`` fills as few columns as it allows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Bus:
    """Sources (rows of the left level) and targets (rows of the right one) that are all connected."""

    number: int
    source_rows: frozenset[int]  # rows where a source leads in
    target_rows: frozenset[int]  # rows where a target is led to
    top: int
    bottom: int
    column: int = -1  # of its vertical part within the channel

    @property
    def is_straight(self) -> bool:
        """One source, one target, one row: no vertical part."""
        return self.top == self.bottom

    @property
    def is_single(self) -> bool:
        """Only one source's flow is in it."""
        return len(self.source_rows) == 1


@dataclass(frozen=True, slots=True)
class TrackOrder:
    """``before``: by bus, those that must stand left of it. ``rows_in_rings``: rows whose demands contradict."""

    before: Mapping[int, Sequence[int]]
    rows_in_rings: frozenset[int]


Family = tuple[Sequence[int], Sequence[int]]  # whom they wait for, and who waits
Rows = tuple[list[int], list[int]]  # the same, as rows


def families(rank: Sequence[int], above: Sequence[tuple[int, ...]]) -> list[Family]:
    """Group the vertices of one level by whom they wait for."""
    targets: dict[tuple[int, ...], list[int]] = {}
    for vertex in rank:
        if above[vertex]:
            targets.setdefault(above[vertex], []).append(vertex)
    return list(targets.items())


def rows_of(found: Sequence[Family], row: Sequence[int]) -> list[Rows]:
    """Where the members of families stand, if vertices stand in these rows."""
    return [([row[source] for source in sources], [row[target] for target in targets]) for sources, targets in found]


def buses_of(wired: Sequence[Rows]) -> list[Bus]:
    """One bus per family."""
    buses: list[Bus] = []
    for taps, feeds in wired:
        top, bottom = min(min(taps), min(feeds)), max(max(taps), max(feeds))
        buses.append(Bus(len(buses), frozenset(taps), frozenset(feeds), top, bottom))
    return buses


def order_of_tracks(wired: Sequence[Rows]) -> TrackOrder:
    """Who must stand left of whom, and on which rows this cannot be. A line that does not turn stands in no way."""
    entering: dict[int, int] = {}
    for number, (taps, feeds) in enumerate(wired):
        if len(taps) > 1 or len(feeds) > 1 or taps[0] != feeds[0]:
            entering.update(dict.fromkeys(feeds, number))
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    rows: dict[tuple[int, int], int] = {}
    for number, (taps, _) in enumerate(wired):
        for row in taps:
            other = entering.get(row, number)
            if other != number:
                before.setdefault(other, []).append(number)
                after.setdefault(number, []).append(other)
                rows[number, other] = row
    stuck = _stuck(before, after)
    return TrackOrder(before, frozenset(row for (left, right), row in rows.items() if left in stuck and right in stuck))


def _stuck(before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]) -> set[int]:
    """Those in a ring, or held by one: what remains when all that can go have gone."""
    waiting = {number: len(others) for number, others in before.items()}
    free = [number for number in after if number not in waiting]
    while free:
        for other in after.get(free.pop(), ()):
            waiting[other] -= 1
            if not waiting[other]:
                free.append(other)
    return {number for number, count in waiting.items() if count}


def assign_columns(buses: Sequence[Bus], order: TrackOrder) -> int:
    """Give each bus that turns a column, left of those that must stand right of it; answers with how many there are.

    Column by column from the left, each filled from top to bottom with what may stand there and does not overlap.
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
        for number in _fill(ready, buses, columns):
            for other in after.get(number, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    insort(ready, (buses[other].top, buses[other].bottom, other))
        columns += 1
    return columns


def _fill(ready: list[tuple[int, int, int]], buses: Sequence[Bus], column: int) -> list[int]:
    """Take from ``ready``, top to bottom, what fits into one column."""
    taken: list[int] = []
    index = 0
    while index < len(ready):
        _, bottom, number = ready.pop(index)
        buses[number].column = column
        taken.append(number)
        index = bisect_left(ready, (bottom + 1,), lo=index)
    return taken
