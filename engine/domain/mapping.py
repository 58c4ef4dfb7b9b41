"""The names and positions of the children that a map task gets at run time.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Iterable, Iterator, Optional


def child_prefix(task: str) -> str:
    """The beginning of the names of the children of a map task. No other task of a flow has such a name."""
    return task + "["


def child_name(task: str, index: int) -> str:
    """The name of the child for the element ``index`` of the list."""
    return "{}{}]".format(child_prefix(task), index)


def child_position(position: int, index: int) -> int:
    """The position of a child of the map task at ``position``, for the order of the flow."""
    return position + 1 + index


def positions(max_sizes: Iterable[Optional[int]]) -> Iterator[int]:
    """The positions of tasks in the order of the flow. ``max_sizes``: of the map tasks; None for other tasks."""
    position = 0
    for size in max_sizes:
        yield position
        position = child_position(position, size or 0)
