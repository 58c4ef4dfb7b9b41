"""SQL that many share: columns of one row, states and rules as lists, marks for values, and values in chunks.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import sqlite3
from typing import Any, Iterable, Iterator, List, Sized, TypeVar

VALUES_MAX = 500  # in one statement: SQLite on old servers accepts 999

Value = TypeVar("Value")


#: SQL: whether the spec of ``{0}``, a row of table task, says that it is a map task, or an approval. Most specs are not
#: parsed, for ``instr`` is quick; it alone would also find what a variable of a command is called.
IS_MAP = "(instr({0}.spec, '\"map\":') > 0 AND json_type({0}.spec, '$.map') IS 'object')"
IS_APPROVAL = "(instr(task.spec, '\"kind\":\"approval\"') > 0 AND json_extract(task.spec, '$.kind') IS 'approval')"


def task_columns(connection: sqlite3.Connection, run_id: str, name: str, columns: str) -> Any:
    """The values of ``columns`` of a task; None if there is no such task."""
    return connection.execute(f"SELECT {columns} FROM task WHERE run_id = ? AND name = ?", (run_id, name)).fetchone()


def run_columns(connection: sqlite3.Connection, run_id: object, columns: str) -> Any:
    """The values of ``columns`` of a run; None if there is no such run."""
    return connection.execute(f"SELECT {columns} FROM run WHERE run_id = ?", (run_id,)).fetchone()


def in_list(words: Iterable[str]) -> str:
    """The operand of IN: ``('FAILED', 'READY')``. Sorted, so that a statement has the same text in every process."""
    return "({})".format(", ".join(f"'{word}'" for word in sorted(map(str, words))))


def marks(values: Sized) -> str:
    """Return a question mark for each value."""
    return ",".join("?" * len(values))


def chunks(values: Iterable[Value]) -> Iterator[List[Value]]:
    """The values in lists of at most VALUES_MAX."""
    rest = list(values)
    return (rest[start : start + VALUES_MAX] for start in range(0, len(rest), VALUES_MAX))
