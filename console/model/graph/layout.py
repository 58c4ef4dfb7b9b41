"""A layered layout: which column and which row each task of a drawing gets.

The steps are Sugiyama's, with what fits a grid of cells: levels by the longest path; a line that passes a level gets a
vertex there, one per source and level, however many children it leads to; four barycentre sweeps order each level
(measured: more buy less than one per cent); rows by isotonic regression, which keeps that order and brings each vertex
as near to its neighbours as can be. Parts without edges between them are laid out one below the other.

Rows obey one more rule, for ``drawing.py``: where a line leaves a row and another line enters the same row further
right, the first must end before the second begins. A ring of such demands has no solution, so the vertices in it are
moved to rows where nothing leaves.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ....engine.core.dag import Dag
from .edge_routing import families, order_of_tracks, rows_of

SWEEPS = 4
_APART = 1e7  # farther than any two places of one level: parts never mix
_STRAIGHT = 8.0  # how much more a line that passes a level wants to stay in its row than a task does


@dataclass(slots=True)
class Layers:
    """Vertices in columns (levels) and rows. Vertices below ``len(dag)`` are tasks, the others lines that pass."""

    dag: Dag
    level: list[int]
    source: list[int]  # whose line it is; of a task itself
    above: list[tuple[int, ...]]  # vertices of the level before
    below: list[list[int]]
    ranks: list[list[int]] = field(default_factory=list)  # vertices of each level, from top to bottom
    row: list[int] = field(default_factory=list)
    height: int = 0

    @property
    def depth(self) -> int:
        """How many levels."""
        return len(self.ranks)


def lay_out(dag: Dag) -> Layers:
    """Give every task a level and a row. Depends on the edges only, never on states."""
    layers = _with_passing_lines(dag, _levels(dag))
    part = _parts(layers)
    _order(layers, part)
    _assign_rows(layers, part)
    return layers


# --- Levels --------------------------------------------------------------------------------------------------------


def _levels(dag: Dag) -> list[int]:
    """The longest path; but a root stands just before the first task that needs it, which spares long lines."""
    level = list(dag.levels)
    for root in dag.roots:
        if dag.child_numbers[root]:
            level[root] = min(level[child] for child in dag.child_numbers[root]) - 1
    return level


def _with_passing_lines(dag: Dag, level: list[int]) -> Layers:
    """Put a vertex on each level that a line passes; one line serves all children of its source."""
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


def _parts(layers: Layers) -> list[int]:
    """By vertex: the number of the connected part that it belongs to."""
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
        _number(rank, position)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks[1:] if down else ranks[-2::-1]:
            _sort_by_neighbours(rank, layers.above if down else layers.below, position, part)


def _number(rank: Sequence[int], position: list[float]) -> None:
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
        keys[vertex] = part[vertex] * _APART + centre
    rank.sort(key=keys.__getitem__)
    _number(rank, position)


# --- Rows ----------------------------------------------------------------------------------------------------------


def _assign_rows(layers: Layers, part: Sequence[int]) -> None:
    """Part by part, one below the other."""
    layers.row = [0] * len(layers.source)
    top = 0
    for ranks in _ranks_by_part(layers.ranks, part):
        _align(layers, ranks)
        used = [layers.row[vertex] for rank in ranks for vertex in rank]
        shift = top - min(used)
        for rank in ranks:
            for vertex in rank:
                layers.row[vertex] += shift
        top += max(used) - min(used) + 1
    layers.height = top


def _ranks_by_part(ranks: Sequence[Sequence[int]], part: Sequence[int]) -> list[list[list[int]]]:
    parts: list[list[list[int]]] = [[] for _ in range(max(part, default=-1) + 1)]
    last = [-1] * len(parts)
    for level, rank in enumerate(ranks):
        for vertex in rank:
            mine = part[vertex]
            if last[mine] != level:
                parts[mine].append([])
                last[mine] = level
            parts[mine][-1].append(vertex)
    return parts


def _align(layers: Layers, ranks: Sequence[Sequence[int]]) -> None:
    """Rows for one part: once towards the parents, once towards the children, then for good."""
    row = layers.row
    for index, vertex in enumerate(ranks[0]):
        row[vertex] = index
    for rank in ranks[1:]:
        _place(rank, _wishes(rank, layers.above, row), _weights(layers, rank), row)
    for rank in ranks[-2::-1]:
        _place(rank, _wishes(rank, layers.below, row), _weights(layers, rank), row)
    for before, rank in pairwise(ranks):
        _place(rank, _wishes(rank, layers.above, row), _weights(layers, rank), row)
        _make_drawable(layers, before, rank)


def _wishes(rank: Sequence[int], neighbours: Sequence[Sequence[int]], row: Sequence[int]) -> list[float]:
    """Where each vertex would like to be: amid its neighbours, or where it is."""
    wishes = []
    for vertex in rank:
        others = neighbours[vertex]
        wishes.append(sum([row[other] for other in others]) / len(others) if others else float(row[vertex]))
    return wishes


def _weights(layers: Layers, rank: Sequence[int]) -> list[float]:
    tasks = len(layers.dag)
    return [1.0 if vertex < tasks else _STRAIGHT for vertex in rank]


def _place(rank: Sequence[int], wishes: Sequence[float], weights: Sequence[float], row: list[int]) -> None:
    """The rows nearest to the wishes (least squares) that keep the order: pool adjacent violators."""
    blocks: list[tuple[float, float, int]] = []  # centre, weight, vertices
    for index, (wish, weight) in enumerate(zip(wishes, weights, strict=True)):
        centre, heavy, count = wish - index, weight, 1
        while blocks and blocks[-1][0] >= centre:
            other, weight_before, count_before = blocks.pop()
            centre = (centre * heavy + other * weight_before) / (heavy + weight_before)
            heavy += weight_before
            count += count_before
        blocks.append((centre, heavy, count))
    index = 0
    for centre, _, count in blocks:
        first = round(centre)
        for vertex in rank[index : index + count]:
            row[vertex] = first + index
            index += 1


def _make_drawable(layers: Layers, before: Sequence[int], rank: Sequence[int]) -> None:
    """Move vertices off the rows in a ring of demands; if that makes another ring, off all rows where lines leave."""
    row = layers.row
    found = families(rank, layers.above)
    leaving = {row[vertex] for vertex in before if layers.below[vertex]}
    avoided = order_of_tracks(rows_of(found, row)).rows_in_rings
    if avoided:
        _avoid(rank, avoided, row)
        if order_of_tracks(rows_of(found, row)).rows_in_rings:
            _avoid(rank, leaving, row)


def _avoid(rank: Sequence[int], avoided: Container[int], row: list[int]) -> None:
    free = row[rank[0]]
    for vertex in rank:
        free = max(free, row[vertex])
        while free in avoided:
            free += 1
        row[vertex] = free
        free += 1
