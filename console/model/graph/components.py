"""Parts of a graph: what is drawn of one that is too large to be drawn as a whole, and what leads to some tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ....engine.core.dag import Dag

WHOLE_TASKS_MAX, WHOLE_EDGES_MAX = 3_000, 12_000  # drawn as a whole: laid out in 0.15 s
PART_MAX = 1_200  # tasks of a larger graph that are drawn around the selected one: in 0.03 s, as the cursor goes on


def fits_whole(dag: Dag) -> bool:
    """Whether all of it can be drawn at once."""
    return len(dag) <= WHOLE_TASKS_MAX and sum(map(len, dag.parent_numbers)) <= WHOLE_EDGES_MAX


def around(dag: Dag, name: str | None, limit: int) -> Dag:
    """The whole graph, or of a larger one the ``limit`` tasks nearest to ``name`` along edges up and down.

    Where fewer hang together with ``name``, whole other parts fill the room.
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


def _induced(dag: Dag, kept: Iterable[int]) -> Dag:
    inside = set(kept)
    numbers: Sequence[int] = sorted(inside)
    return Dag(
        (dag.names[number], [dag.names[parent] for parent in dag.parent_numbers[number] if parent in inside])
        for number in numbers
    )


def leading_to(dag: Dag, names: Iterable[str]) -> list[int]:
    """Of each task 0 if it is one of these or above one, else 1: parents never come after their children."""
    rank = [1] * len(dag)
    stack = [dag.number[name] for name in names]
    while stack:
        number = stack.pop()
        if rank[number]:
            rank[number] = 0
            stack.extend(dag.parent_numbers[number])
    return rank
