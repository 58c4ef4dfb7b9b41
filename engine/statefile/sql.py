"""Parts of SQL statements: states and rules as lists, marks for values, and values in chunks.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Iterable, Iterator, List, Sized, TypeVar

VALUES_MAX = 500  # in one statement: SQLite on old servers accepts 999

Value = TypeVar("Value")


def in_list(words: Iterable[str]) -> str:
    """The operand of IN: ``('FAILED', 'READY')``. Sorted, so that a statement has the same text in every process."""
    return "({})".format(", ".join(f"'{word}'" for word in sorted(map(str, words))))


def marks(values: Sized) -> str:
    """One question mark for each value."""
    return ",".join("?" * len(values))


def chunks(values: Iterable[Value]) -> Iterator[List[Value]]:
    """The values in lists of at most VALUES_MAX."""
    rest = list(values)
    return (rest[start : start + VALUES_MAX] for start in range(0, len(rest), VALUES_MAX))
