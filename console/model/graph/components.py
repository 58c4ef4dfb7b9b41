"""Parts of a graph: the part of a large graph that is drawn, and the ancestors of given tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ....engine.core.dag import Dag

WHOLE_TASKS_MAX, WHOLE_EDGES_MAX = 3_000, 12_000  # drawn completely: the layout takes 0.15 s
PART_MAX = 400  # of a larger graph, drawn around the selected task: 0.01 s for each new selection


def fits_whole(dag: Dag) -> bool:
    """Whether the whole graph can be drawn."""
    return len(dag) <= WHOLE_TASKS_MAX and sum(map(len, dag.parent_numbers)) <= WHOLE_EDGES_MAX


def around(dag: Dag, name: str | None, limit: int) -> Dag:
    """Return the graph, or of a larger one the ``limit`` tasks nearest to ``name`` along edges.

    If fewer tasks are connected to ``name``, other complete components are added.
    """
    if len(dag) <= limit:
        return dag
    kept: set[int] = set()
    queue = deque([dag.number[name]] if name is not None else dag.roots)
    while queue and len(kept) < limit:
        number = queue.popleft()
        if number not in kept:
            kept.add(number)
            queue.extend(dag.parent_numbers[number])
            queue.extend(dag.child_numbers[number])
    for part in dag.components if len(kept) < limit else ():
        numbers = {dag.number[other] for other in part}
        if len(kept) + len(numbers) <= limit and not numbers & kept:
            kept |= numbers
    return _induced(dag, kept)


def neighbourhood(dag: Dag, name: str, depth: int, limit: int) -> Dag:
    """Return a task with its ancestors and descendants up to ``depth`` edges away, the nearest ``limit`` of them."""
    kept = {dag.number[name]}
    above = below = [dag.number[name]]
    for _ in range(depth):
        above = _new_neighbours(above, dag.parent_numbers, kept, limit)
        below = _new_neighbours(below, dag.child_numbers, kept, limit)
    return _induced(dag, kept)


def with_siblings(dag: Dag, part: Dag, limit: int) -> Dag:
    """Return a part of a graph with the other parents and children of its tasks, the first ``limit`` tasks of all."""
    kept = {dag.number[name] for name in part.names}
    inner = [number for number in kept if part.parents(dag.names[number]) or part.children(dag.names[number])]
    for number in sorted(inner):
        name = dag.names[number]
        if part.parents(name):
            _new_neighbours([number], dag.parent_numbers, kept, limit)
        if part.children(name):
            _new_neighbours([number], dag.child_numbers, kept, limit)
    return _induced(dag, kept)


def _new_neighbours(
    numbers: Iterable[int], neighbours: Sequence[Sequence[int]], kept: set[int], limit: int
) -> list[int]:
    """Add the neighbours of ``numbers`` to ``kept`` and return the added ones."""
    found = [other for number in numbers for other in neighbours[number] if other not in kept]
    added = list(dict.fromkeys(found))[: max(limit - len(kept), 0)]
    kept.update(added)
    return added


def is_chain(dag: Dag) -> bool:
    """Whether the tasks follow each other one by one."""
    return len(dag) == dag.depth


def _induced(dag: Dag, kept: Iterable[int]) -> Dag:
    inside = set(kept)
    numbers: Sequence[int] = sorted(inside)
    return Dag(
        (dag.names[number], [dag.names[parent] for parent in dag.parent_numbers[number] if parent in inside])
        for number in numbers
    )


def leading_to(dag: Dag, names: Iterable[str]) -> list[int]:
    """Return for each task 0 if it is one of ``names`` or an ancestor, else 1: a rank that keeps parents first."""
    rank = [1] * len(dag)
    stack = [dag.number[name] for name in names]
    while stack:
        number = stack.pop()
        if rank[number]:
            rank[number] = 0
            stack.extend(dag.parent_numbers[number])
    return rank
