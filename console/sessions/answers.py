"""Answers of a session as typed rows: each value is checked, because a far host may send anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from types import GenericAlias
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from ...engine.core.projection import STATES, AttemptRow, RunProjection, TaskRow, children_of, set_columns
from ...engine.core.spec import TaskSpec, decode_task_spec
from ...engine.domain.event_codec import event_of
from ...engine.domain.events import KILL_STEPS, Event, EventRow
from ...engine.domain.rows import RunRow, RunSummary
from ...engine.domain.states import RunState, TaskState
from ...engine.errors import LinkError, RedriveError
from ...engine.statefile.snapshot import unpack, unpack_table

Value = TypeVar("Value")

#: What decoding raises for values of a wrong type, range or length.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Decode an answer in the block. Raises LinkError if the answer is malformed."""
    try:
        yield
    except RedriveError:
        raise
    except (*MALFORMED, msgspec.MsgspecError) as error:  # also texts that are not Unicode, and too deep values
        detail = f"{type(error).__name__}: {error}"[:200]
        raise LinkError(f"the remote host sent {what} that cannot be read: {detail}", final=True) from error


#: Several threads read local files, and msgspec (0.22) crashes the process if one of them converts a struct while
#: another prepares it, at its first use.
_one_at_a_time = Lock()


def row_of(kind: type[Value], sent: object) -> Value:
    """Convert ``sent`` to a ``kind``: a NamedTuple is sent as a list, a struct as an object.

    Raises LinkError if a value has another type.
    """
    with decoding(f"a {kind.__name__}"), _one_at_a_time:
        return msgspec.convert(sent, kind)


def rows_of(kind: type[Value], sent: object) -> list[Value]:
    """Convert ``sent`` to a list of ``kind``. Raises LinkError as ``row_of`` does."""
    with decoding(f"a list of {kind.__name__}"), _one_at_a_time:
        rows: list[Value] = msgspec.convert(sent, GenericAlias(list, kind))
    return rows


# --- The columns of a run, as a RunProjection -------------------------------------------------------------------------


_ATTEMPT_FIELDS = {*AttemptRow.__struct_fields__}

INSTANT_MAX_US = 253_370_764_800_000_000  # the year 9999, which has a local time in every zone
COLUMNS_MAX = 100  # of a table
CONSTANT_ROWS_MAX = 10_000  # of a table without a column that has one value per row

TableColumns = Mapping[str, Any]


def check_table(table: TableColumns) -> None:
    """Check that a table is not larger than the text that was sent for it: a few bytes can ask for gigabytes.

    Raises ValueError.
    """
    rows, columns = table["rows"], table["columns"]
    if len(columns) > COLUMNS_MAX:
        raise ValueError(f"a table with {len(columns):,} columns")
    if rows > max(CONSTANT_ROWS_MAX, *map(_sent_rows, columns.values()), 0):
        raise ValueError(f"a table that claims {rows:,} rows")


def _sent_rows(packed: Any) -> int:
    """The number of rows for which a column has a value of its own."""
    return len(packed) if isinstance(packed, list) else len(packed.get("step", ()))


def decode_events(rows: object) -> list[Event]:
    """Decode events from rows of their table. Raises LinkError."""
    with decoding("events"):
        found = rows_of(EventRow, rows)
        for row in found:
            check_instant(row.at)
        return [event_of(row, _parse) for row in found]


_parse = msgspec.json.Decoder().decode


def check_instant(instant_us: int) -> None:
    """Raises ValueError for a time that no calendar shows."""
    if not 0 <= instant_us <= INSTANT_MAX_US:
        raise ValueError(f"the time {instant_us} is out of range")


def decode_runs(sent: object) -> list[RunSummary]:
    """Decode the list of runs. Raises LinkError."""
    found = rows_of(RunSummary, sent)
    with decoding("a state of a run"):
        for one in found:
            RunState(one.run.state)
    return found


def decode_projection(board: TableColumns) -> RunProjection:
    """Decode a snapshot without the history of finished tasks, and without its edges where they are too many."""
    tasks = [_task_of(row) for row in _rows(board["tasks"])]
    names = [task.name for task in tasks]
    parents: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    if board["parents"] is not None:
        parents = _parents_of(board["parents"], names, names)
    for task, spec in zip(tasks, _specs_of(board["specs"], names, parents), strict=True):
        task.spec = spec
    _add_attempts(board, dict(enumerate(tasks)))
    run = row_of(RunRow, board["run"])
    RunState(run.state)
    return RunProjection(
        run=run,
        tasks={task.name: task for task in tasks},
        parents=parents,
        children=children_of(parents, parents),
        seq=board["seq"],
    )


def merge_history(projection: RunProjection, window: TableColumns, start: int = 0) -> bool:
    """Add the history of finished tasks, and parents that were left out. False: the tasks of the run have changed.

    ``start``: the place of the first task of the window.

    A task that has moved since keeps the columns from its events.
    """
    names = sorted(projection.tasks)
    if window["names"] != len(names):
        return False
    if window["parents"] is not None:
        _add_parents(projection, _parents_of(window["parents"], names[start : window["next"]], names))
    rows = list(_rows(window["tasks"]))
    places = unpack(window["places"], len(rows))
    tasks = {place: projection.tasks[names[place]] for place in places}
    for place, row in zip(places, rows, strict=True):
        task = tasks[place]
        if task.state is TaskState.SUCCESS and (task.attempt, task.generation) == (row["attempt"], row["generation"]):
            _set_sent(task, row)
    _add_attempts(window, tasks)
    return True


def _add_parents(projection: RunProjection, parents: dict[str, tuple[str, ...]]) -> None:
    projection.parents = projection.parents | parents
    projection.children = children_of(projection.parents, projection.parents)
    for name, found in parents.items():
        task = projection.tasks[name]
        if task.spec is not None:
            task.spec = structs.replace(task.spec, parents=found)


def _rows(table: TableColumns) -> Iterator[dict[str, Any]]:
    check_table(table)
    columns = unpack_table(dict(table))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _task_of(row: TableColumns) -> TaskRow:
    task = TaskRow(row["name"])
    _set_sent(task, row)
    return task


def _set_sent(task: TaskRow, row: TableColumns) -> None:
    """Set the columns that were sent; those of a finished task follow with its history."""
    set_columns(task, {name: value for name, value in row.items() if value is not None})
    task.state = STATES[task.state]


def _add_attempts(sent: TableColumns, tasks: Mapping[int, TaskRow]) -> None:
    """Add attempts; those in the projection already came from events, which are newer."""
    added = set()
    for row in _rows(sent["attempts"]):
        place = row["place"]
        attempts = tasks[place].attempts
        if row["attempt"] not in attempts:
            attempts[row["attempt"]] = AttemptRow(**{name: row[name] for name in row.keys() & _ATTEMPT_FIELDS})
            added.add((place, row["attempt"]))
    for place, number, kind, value in sent["ladder"]:
        if (place, number) in added:
            setattr(tasks[place].attempts[number], KILL_STEPS[kind], value)


def _parents_of(sent: TableColumns, some: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the parents of ``some`` tasks, which are sent as indices into all ``names``."""
    check_table({"rows": sent["edges"], "columns": {"places": sent["places"]}})
    places = iter(unpack(sent["places"], sent["edges"]))
    counts = unpack(sent["counts"], len(some))
    return {
        name: tuple(names[place] for place in islice(places, count)) for name, count in zip(some, counts, strict=True)
    }


def _specs_of(sent: TableColumns, names: Sequence[str], parents: Mapping[str, tuple[str, ...]]) -> Iterator[TaskSpec]:
    """Yield the spec of each task. Most specs differ only in the name: each distinct one is decoded once."""
    distinct = [decode_task_spec(text) for text in sent["distinct"]]
    for name, place in zip(names, unpack(sent["places"], len(names)), strict=True):
        yield structs.replace(distinct[place], name=name, parents=parents[name])
