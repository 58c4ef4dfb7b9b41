"""The shape of a flow: who waits for whom, in which order, at which level, and what hangs below whom.

A ``Dag`` is a value: built once from names and parents, checked while it is built, never changed. Inside, tasks are
numbers (their place in the flow as written) and sets of tasks are the bits of one int, so that 9,000 tasks with
45,000 edges answer "how many wait below each?" in tens of milliseconds. Nothing here recurses: a chain may be as
long as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush

from ..errors import CycleError, FlowError

Adjacency = tuple[tuple[int, ...], ...]


class Dag:
    """An immutable directed acyclic graph of task names.

    ``names`` is the order as written. The numbered forms (``parent_numbers``, ``child_numbers``, ``topological``)
    are for those who walk the whole graph: a task's number is its place in ``names``.
    """

    def __init__(self, tasks: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Take (name, parents) pairs in the order as written; a parent may come later than its child.

        Raises FlowError for a name used twice or a parent that does not exist, CycleError for a ring.
        """
        pairs = [(name, tuple(dict.fromkeys(parents))) for name, parents in tasks]
        self.names: tuple[str, ...] = tuple(name for name, _ in pairs)
        self.number: dict[str, int] = _numbered(self.names)
        self.parent_numbers: Adjacency = tuple(_parents_of(name, parents, self.number) for name, parents in pairs)
        self.child_numbers: Adjacency = _reversed(self.parent_numbers)
        self.topological: tuple[int, ...] = _ordered(self.names, self.parent_numbers, self.child_numbers)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.number

    def __repr__(self) -> str:
        return f"<Dag of {len(self)} tasks and {sum(map(len, self.parent_numbers))} edges>"

    @property
    def order(self) -> tuple[str, ...]:
        """Every task after all of its parents; among those free to come next, the one written first."""
        return self.names_of(self.topological)

    def names_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The names of these numbers."""
        return tuple(self.names[number] for number in numbers)

    def parents(self, name: str) -> tuple[str, ...]:
        """Whom a task waits for, in the order as written in the flow."""
        return self.names_of(self.parent_numbers[self.number[name]])

    def children(self, name: str) -> tuple[str, ...]:
        """Who waits for a task directly, in the order of the flow."""
        return self.names_of(self.child_numbers[self.number[name]])

    @cached_property
    def topological_index(self) -> tuple[int, ...]:
        """By number: the place in the topological order."""
        places = [0] * len(self)
        for place, number in enumerate(self.topological):
            places[number] = place
        return tuple(places)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """By number: how many edges the longest way from a root has. Roots are on level 0."""
        level = [0] * len(self)
        for number in self.topological:
            above = self.parent_numbers[number]
            if above:
                level[number] = 1 + max(level[parent] for parent in above)
        return tuple(level)

    def level(self, name: str) -> int:
        """How many edges the longest way from a root to this task has."""
        return self.levels[self.number[name]]

    @property
    def depth(self) -> int:
        """Tasks on the longest chain; 0 for an empty flow."""
        return max(self.levels, default=-1) + 1

    def ancestors(self, *names: str) -> tuple[str, ...]:
        """All tasks above any of these, in the order as written; the tasks themselves only if above another."""
        return self.names_of(sorted(_reach(self.parent_numbers, [self.number[name] for name in names])))

    def descendants(self, *names: str) -> tuple[str, ...]:
        """All tasks below any of these, in the order as written; the tasks themselves only if below another."""
        return self.names_of(sorted(_reach(self.child_numbers, [self.number[name] for name in names])))

    @cached_property
    def descendant_bits(self) -> tuple[int, ...]:
        """By number: the descendants as a set of bits (bit n is task n)."""
        bits = [0] * len(self)
        for number in reversed(self.topological):
            mine = 0
            for child in self.child_numbers[number]:
                mine |= bits[child] | 1 << child
            bits[number] = mine
        return tuple(bits)

    def remaining_path(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Per task: the heaviest way from its start to the end of a leaf, its own weight included.

        A task without a weight weighs nothing. The unit is that of the weights.
        """
        return dict(zip(self.names, self._remaining(weights), strict=True))

    def _remaining(self, weights: Mapping[str, float]) -> list[float]:
        remaining = [weights.get(name, 0.0) for name in self.names]
        for number in reversed(self.topological):
            below = self.child_numbers[number]
            if below:
                remaining[number] += max(remaining[child] for child in below)
        return remaining

    def critical_path(self, weights: Mapping[str, float]) -> tuple[str, ...]:
        """The heaviest chain from a root to a leaf; among equals the one written first."""
        remaining = self._remaining(weights)
        path: list[int] = []
        choices: Sequence[int] = self.roots
        while choices:
            path.append(max(choices, key=lambda number: (remaining[number], -number)))
            choices = self.child_numbers[path[-1]]
        return self.names_of(path)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Numbers of the tasks without parents."""
        return tuple(number for number, above in enumerate(self.parent_numbers) if not above)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Numbers of the tasks without children."""
        return tuple(number for number, below in enumerate(self.child_numbers) if not below)

    @cached_property
    def components(self) -> tuple[tuple[str, ...], ...]:
        """The parts that no edge connects, each in the order as written; the part of the first task first."""
        return tuple(self.names_of(sorted(part)) for part in self._parts())

    def _parts(self) -> Iterator[set[int]]:
        both = tuple(above + below for above, below in zip(self.parent_numbers, self.child_numbers, strict=True))
        seen: set[int] = set()
        for number in range(len(self)):
            if number not in seen:
                part = _reach(both, [number]) | {number}
                seen |= part
                yield part

    @property
    def orphans(self) -> tuple[str, ...]:
        """Tasks with neither parents nor children in a flow that has edges: perhaps an edge was forgotten."""
        alone = set(self.roots) & set(self.leaves)
        return self.names_of(sorted(alone)) if len(alone) < len(self) else ()


def _numbered(names: Sequence[str]) -> dict[str, int]:
    number: dict[str, int] = {}
    for name in names:
        if name in number:
            raise FlowError(f"two tasks are named {name!r}: give one of them another name")
        number[name] = len(number)
    return number


def _parents_of(name: str, parents: Sequence[str], number: Mapping[str, int]) -> tuple[int, ...]:
    for parent in parents:
        if parent not in number:
            raise FlowError(
                f"task {name!r} waits for {parent!r}, which is not a task of this flow{_near(parent, number)}",
                task=name,
            )
    return tuple(number[parent] for parent in parents)


def _near(wrong: str, names: Iterable[str]) -> str:
    """A hint at what was meant: same letters but for case, dashes and underscores."""
    plain = _plain(wrong)
    meant = next((name for name in names if _plain(name) == plain), None)
    return f"; did you mean {meant!r}?" if meant else ""


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")


def _reversed(parents: Adjacency) -> Adjacency:
    children: list[list[int]] = [[] for _ in parents]
    for child, above in enumerate(parents):
        for parent in above:
            children[parent].append(child)
    return tuple(tuple(below) for below in children)


def _ordered(names: Sequence[str], parents: Adjacency, children: Adjacency) -> tuple[int, ...]:
    waiting = [len(above) for above in parents]
    free = [number for number, count in enumerate(waiting) if not count]
    heapify(free)
    order: list[int] = []
    while free:
        number = heappop(free)
        order.append(number)
        for child in children[number]:
            waiting[child] -= 1
            if not waiting[child]:
                heappush(free, child)
    if len(order) < len(names):
        raise CycleError([names[number] for number in _ring(parents, {n for n, left in enumerate(waiting) if left})])
    return tuple(order)


def _ring(parents: Adjacency, stuck: set[int]) -> list[int]:
    """One ring among the tasks that never came free: each of them has a parent that never did either."""
    at = min(stuck)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while at not in seen:
        seen[at] = len(walk)
        walk.append(at)
        at = next(parent for parent in parents[at] if parent in stuck)
    ring = walk[seen[at] :][::-1]
    first = ring.index(min(ring))
    ring = ring[first:] + ring[:first]
    return [*ring, ring[0]]


def _reach(edges: Adjacency, starts: Sequence[int]) -> set[int]:
    """Everything that can be reached along ``edges``, the starts only if the walk comes back to them."""
    seen: set[int] = set()
    stack = [number for start in starts for number in edges[start]]
    while stack:
        number = stack.pop()
        if number not in seen:
            seen.add(number)
            stack.extend(edges[number])
    return seen
