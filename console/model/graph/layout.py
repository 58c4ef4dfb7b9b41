"""A layered layout: the column and the row of each task of a drawing.

Sugiyama's steps, adapted to a grid of cells: levels by the longest path, so that roots stand left; a vertex for each
line that passes a level, one per source and level; four barycentre sweeps to order each level (measured: more improve
less than one per cent); rows by isotonic regression, which keeps the order and minimizes the distance to neighbours.
Components are laid out one below the other.

One more rule, for ``drawing.py``: where a line leaves a row and another line enters the same row further right, the
first must end before the second starts. A cycle of such constraints has no solution, so its vertices are moved to rows
that no line leaves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise

import msgspec

from ....engine.core.dag import Dag

SWEEPS = 4
_COMPONENT_DISTANCE = 1e7  # larger than the distance of any two vertices of one level: components never mix
_PASSING_WEIGHT = 8.0  # weight of a passing line, relative to a task: lines stay straight


class Layers(msgspec.Struct):
    """Vertices in columns (levels) and rows. Vertices below ``len(dag)`` are tasks, the others passing lines."""

    dag: Dag
    level: list[int]
    source: list[int]  # the task whose line it is; a task is its own source
    above: list[tuple[int, ...]]  # neighbours on the previous level
    below: list[list[int]]
    ranks: list[list[int]] = []  # vertices of each level, from top to bottom
    row: list[int] = []
    height: int = 0

    @property
    def depth(self) -> int:
        """The number of levels."""
        return len(self.ranks)


def lay_out(dag: Dag) -> Layers:
    """Assign every task a level and a row, from the edges only."""
    layers = _add_passing_vertices(dag, list(dag.levels))
    part = _component_numbers(layers)
    _order(layers, part)
    _assign_rows(layers, part)
    return layers


# --- Levels --------------------------------------------------------------------------------------------------------


def _add_passing_vertices(dag: Dag, level: list[int]) -> Layers:
    """Add a vertex on each level that a line passes; one line serves all children of its source."""
    source = list(range(len(dag)))
    above: list[tuple[int, ...]] = [()] * len(dag)
    line: list[list[int]] = []  # by task: itself, and its vertices on the levels after
    for task, children in enumerate(dag.child_numbers):
        own = [task]
        for between in range(level[task] + 1, max((level[child] for child in children), default=0)):
            above.append((own[-1],))
            own.append(len(source))
            source.append(task)
            level.append(between)
        line.append(own)
    for task, parents in enumerate(dag.parent_numbers):
        above[task] = tuple(sorted(line[parent][level[task] - level[parent] - 1] for parent in parents))
    below: list[list[int]] = [[] for _ in source]
    for vertex, lines in enumerate(above):
        for other in lines:
            below[other].append(vertex)
    return Layers(dag, level, source, above, below)


def _component_numbers(layers: Layers) -> list[int]:
    """Return the component number of each vertex."""
    part = [0] * len(layers.dag)
    for number, names in enumerate(layers.dag.components):
        for name in names:
            part[layers.dag.number[name]] = number
    return [part[source] for source in layers.source]


# --- Order within a level ------------------------------------------------------------------------------------------


def _order(layers: Layers, part: Sequence[int]) -> None:
    place = layers.dag.topological_index
    ranks: list[list[int]] = [[] for _ in range(max(layers.level, default=-1) + 1)]
    for vertex in range(len(layers.source)):
        ranks[layers.level[vertex]].append(vertex)
    for rank in ranks:
        rank.sort(key=lambda vertex: (part[vertex], place[layers.source[vertex]]))
    layers.ranks = ranks
    position = [0.0] * len(layers.source)
    for rank in ranks:
        _set_positions(rank, position)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks[1:] if down else ranks[-2::-1]:
            _sort_by_neighbours(rank, layers.above if down else layers.below, position, part)


def _set_positions(rank: Sequence[int], position: list[float]) -> None:
    for index, vertex in enumerate(rank):
        position[vertex] = float(index)


def _sort_by_neighbours(
    rank: list[int], neighbours: Sequence[Sequence[int]], position: list[float], part: Sequence[int]
) -> None:
    keys = {}
    for vertex in rank:
        others = neighbours[vertex]
        if len(others) == 1:
            centre = position[others[0]]
        elif others:
            centre = sum([position[other] for other in others]) / len(others)
        else:
            centre = position[vertex]
        keys[vertex] = part[vertex] * _COMPONENT_DISTANCE + centre
    rank.sort(key=keys.__getitem__)
    _set_positions(rank, position)


# --- Rows ----------------------------------------------------------------------------------------------------------


def _assign_rows(layers: Layers, part: Sequence[int]) -> None:
    """Assign rows to one component below the other."""
    layers.row = [0] * len(layers.source)
    top = 0
    for ranks in _ranks_by_component(layers.ranks, part):
        _align(layers, ranks)
        used = [layers.row[vertex] for rank in ranks for vertex in rank]
        shift = top - min(used)
        for rank in ranks:
            for vertex in rank:
                layers.row[vertex] += shift
        top += max(used) - min(used) + 1
    layers.height = top


def _ranks_by_component(ranks: Sequence[Sequence[int]], part: Sequence[int]) -> list[list[list[int]]]:
    parts: list[list[list[int]]] = [[] for _ in range(max(part, default=-1) + 1)]
    last = [-1] * len(parts)
    for level, rank in enumerate(ranks):
        for vertex in rank:
            own = part[vertex]
            if last[own] != level:
                parts[own].append([])
                last[own] = level
            parts[own][-1].append(vertex)
    return parts


def _align(layers: Layers, ranks: Sequence[Sequence[int]]) -> None:
    """Assign rows in one component: towards the parents, towards the children, then finally."""
    row = layers.row
    for index, vertex in enumerate(ranks[0]):
        row[vertex] = index
    for rank in ranks[1:]:
        _place(rank, _desired_rows(rank, layers.above, row), _weights(layers, rank), row)
    for rank in ranks[-2::-1]:
        _place(rank, _desired_rows(rank, layers.below, row), _weights(layers, rank), row)
    for before, rank in pairwise(ranks):
        _place(rank, _desired_rows(rank, layers.above, row), _weights(layers, rank), row)
        _make_drawable(layers, before, rank)


def _desired_rows(rank: Sequence[int], neighbours: Sequence[Sequence[int]], row: Sequence[int]) -> list[float]:
    """Return the mean row of the neighbours of each vertex, or its own row."""
    desired_rows = []
    for vertex in rank:
        others = neighbours[vertex]
        desired_rows.append(sum([row[other] for other in others]) / len(others) if others else float(row[vertex]))
    return desired_rows


def _weights(layers: Layers, rank: Sequence[int]) -> list[float]:
    tasks = len(layers.dag)
    return [1.0 if vertex < tasks else _PASSING_WEIGHT for vertex in rank]


def _place(rank: Sequence[int], desired_rows: Sequence[float], weights: Sequence[float], row: list[int]) -> None:
    """Assign the rows nearest to the desired ones (least squares) that keep the order: pool adjacent violators."""
    blocks: list[tuple[float, float, int]] = []  # centre, weight, vertices
    for index, (desired, weight) in enumerate(zip(desired_rows, weights, strict=True)):
        centre, weight_sum, count = desired - index, weight, 1
        while blocks and blocks[-1][0] >= centre:
            other, weight_before, count_before = blocks.pop()
            centre = (centre * weight_sum + other * weight_before) / (weight_sum + weight_before)
            weight_sum += weight_before
            count += count_before
        blocks.append((centre, weight_sum, count))
    index = 0
    for centre, _, count in blocks:
        first = round(centre)
        for vertex in rank[index : index + count]:
            row[vertex] = first + index
            index += 1


def _make_drawable(layers: Layers, before: Sequence[int], rank: Sequence[int]) -> None:
    """Move vertices off the rows of a constraint cycle; if a cycle remains, off all rows that lines leave."""
    row = layers.row
    found = families(rank, layers.above)
    leaving = {row[vertex] for vertex in before if layers.below[vertex]}
    avoided = order_of_tracks(rows_of(found, row)).rows_in_rings
    if avoided:
        _avoid_rows(rank, avoided, row)
        if order_of_tracks(rows_of(found, row)).rows_in_rings:
            _avoid_rows(rank, leaving, row)


def _avoid_rows(rank: Sequence[int], avoided: Container[int], row: list[int]) -> None:
    free = row[rank[0]]
    for vertex in rank:
        free = max(free, row[vertex])
        while free in avoided:
            free += 1
        row[vertex] = free
        free += 1


# --- The lines between two neighbouring levels: shared buses, and the order of their vertical parts ------------------
#
# Tasks with exactly the same parents share one *bus*: lines from all sources enter it, lines to all targets leave it,
# and each source is a parent of each target. So a fan-out is one bus, a join is one bus, and one line at most enters a
# task.
#
# On each row, the line of the source must end before the line to the target starts, or the two would touch:
# ``order_of_tracks`` finds that order, and ``assign_columns`` fills as few columns as possible.


class Bus(msgspec.Struct):
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


class TrackOrder(msgspec.Struct, frozen=True):
    """``before``: by bus, the buses left of it. ``rows_in_rings``: rows with contradicting constraints."""

    before: Mapping[int, Sequence[int]]
    rows_in_rings: frozenset[int]


Family = tuple[Sequence[int], Sequence[int]]  # parents, and tasks with exactly these parents
RowBounds = tuple[list[int], list[int]]  # the same, as rows


def families(rank: Sequence[int], above: Sequence[tuple[int, ...]]) -> list[Family]:
    """Group the vertices of one level by their parents."""
    targets: dict[tuple[int, ...], list[int]] = {}
    for vertex in rank:
        if above[vertex]:
            targets.setdefault(above[vertex], []).append(vertex)
    return list(targets.items())


def rows_of(families: Sequence[Family], row: Sequence[int]) -> list[RowBounds]:
    """Return the rows of the members of each family."""
    return [([row[source] for source in sources], [row[target] for target in targets]) for sources, targets in families]


def buses_of(wired: Sequence[RowBounds]) -> list[Bus]:
    """Return one bus per family."""
    buses: list[Bus] = []
    for source_rows, target_rows in wired:
        top, bottom = min(min(source_rows), min(target_rows)), max(max(source_rows), max(target_rows))
        buses.append(Bus(len(buses), frozenset(source_rows), frozenset(target_rows), top, bottom))
    return buses


def order_of_tracks(wired: Sequence[RowBounds]) -> TrackOrder:
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
