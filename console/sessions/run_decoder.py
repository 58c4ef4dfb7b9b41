"""From the columns that crossed the line to the RunFold that the console works with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any

import msgspec

from ...engine.core.projection import AttemptRow, RunFold, RunRow, TaskRow
from ...engine.core.spec import TaskSpec
from ...engine.domain.event_codec import decode
from ...engine.domain.events import KILL_STEPS, Event
from ...engine.domain.states import TaskState
from ...engine.json_types import JsonObject
from ...engine.statefile.column_codec import unpack, unpack_table
from ...engine.statefile.snapshot import attempt_to_instants, to_instants
from .wire import row_of

_TASK_FIELDS = {field.name for field in fields(TaskRow)}
_ATTEMPT_FIELDS = {field.name for field in fields(AttemptRow)}
_STATES = {str(state): state for state in TaskState}

Columns = Mapping[str, Any]


def event_of(row: Sequence[Any]) -> Event:
    """An event as the agent sends it: its columns in order, ``data`` as JSON text."""
    return Event._make([*row[:-1], decode(row[2], msgspec.json.decode(row[-1]))])


def run_of(row: JsonObject) -> RunRow:
    """A row of table ``run``. Raises LinkError for what is none."""
    return row_of(RunRow, row)


def fold_of(board: Columns) -> RunFold:
    """The picture without the history of what is done, and without the links where they are too many."""
    said = [to_instants(row) for row in _rows(board["tasks"])]
    tasks = [_task_of(row) for row in said]
    names = [task.name for task in tasks]
    parents: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    if board["parents"] is not None:
        parents = _parents_of(board["parents"], names, names)
    for task, spec in zip(tasks, _specs_of(board["specs"], names, parents), strict=True):
        task.spec = spec
    _add_attempts(board, dict(enumerate(tasks)), dict(enumerate(said)))
    return RunFold(
        run=run_of(board["run"]),
        tasks={task.name: task for task in tasks},
        parents=parents,
        children=_children_of(parents),
        seq=board["seq"],
    )


class Links:
    """Who waits for whom, as it comes in windows; shown when it is whole."""

    def __init__(self, fold: RunFold) -> None:
        self._fold = fold
        self._names = sorted(fold.tasks)
        self._parents: dict[str, tuple[str, ...]] = {}

    def merge(self, window: Columns) -> bool:
        """Take in the next window. False: the run has other tasks by now, and the picture must be read again."""
        if window["names"] != len(self._names):
            return False
        some = self._names[len(self._parents) : window["next"]]
        self._parents.update(_parents_of(window, some, self._names))
        if window["next"] is None:
            self._show()
        return True

    def _show(self) -> None:
        fold = self._fold
        fold.parents = {name: self._parents[name] for name in fold.tasks}
        fold.children = _children_of(fold.parents)
        for name, task in fold.tasks.items():
            if task.spec is not None:
                task.spec = replace(task.spec, parents=fold.parents[name])


def merge_history(fold: RunFold, window: Columns) -> bool:
    """Fill in what the board left out of what is done. False: the run has other tasks by now.

    A task that has moved since keeps what its events said.
    """
    names = sorted(fold.tasks)
    if window["names"] != len(names):
        return False
    said = [to_instants(row) for row in _rows(window["tasks"])]
    places = unpack(window["places"], len(said))
    tasks = {place: fold.tasks[names[place]] for place in places}
    for place, row in zip(places, said, strict=True):
        task = tasks[place]
        if task.state is TaskState.SUCCESS and (task.attempt, task.generation) == (row["attempt"], row["generation"]):
            _fill(task, row)
    _add_attempts(window, tasks, dict(zip(places, said, strict=True)))
    return True


def _rows(table: Columns) -> Iterator[dict[str, Any]]:
    columns = unpack_table(dict(table))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _task_of(row: Columns) -> TaskRow:
    task = TaskRow(row["name"])
    _fill(task, row)
    return task


def _fill(task: TaskRow, row: Columns) -> None:
    for name, value in row.items():
        if name in _TASK_FIELDS and value is not None:
            setattr(task, name, value)
    task.state = _STATES[task.state]


def _add_attempts(said: Columns, tasks: Mapping[int, TaskRow], rows: Mapping[int, dict[str, object]]) -> None:
    """Those that the picture has already were told by events, which know better."""
    added = set()
    for offsets in _rows(said["attempts"]):
        place = offsets["place"]
        row = attempt_to_instants(offsets, rows[place])
        attempts = tasks[place].attempts
        if row["attempt"] not in attempts:
            attempts[row["attempt"]] = AttemptRow(**{name: row[name] for name in row.keys() & _ATTEMPT_FIELDS})
            added.add((place, row["attempt"]))
    for place, number, kind, value in said["ladder"]:
        if (place, number) in added:
            setattr(tasks[place].attempts[number], KILL_STEPS[kind], value)


def _parents_of(said: Columns, some: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of ``some`` tasks; their parents are said as places among all ``names``."""
    places = iter(unpack(said["places"], said["edges"]))
    counts = unpack(said["counts"], len(some))
    return {
        name: tuple(names[place] for place in islice(places, count)) for name, count in zip(some, counts, strict=True)
    }


def _children_of(parents: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, found in parents.items():
        for parent in found:
            children[parent].append(name)
    return {name: tuple(found) for name, found in children.items()}


def _specs_of(said: Columns, names: Sequence[str], parents: Mapping[str, tuple[str, ...]]) -> Iterator[TaskSpec | None]:
    """Tasks mostly say the same but for their name: each different saying is read once."""
    keys = list(said)
    columns = [unpack(said[key], len(names)) for key in keys]
    read: dict[tuple[str, ...], TaskSpec | None] = {}
    for name, *texts in zip(names, *columns, strict=True):
        key = tuple(texts)
        if key not in read:
            read[key] = _read_spec(dict(zip(keys, texts, strict=True)))
        spec = read[key]
        yield None if spec is None else replace(spec, name=name, parents=parents[name])


def _read_spec(texts: Mapping[str, str]) -> TaskSpec | None:
    members = ",".join(f"{json.dumps(key)}:{text}" for key, text in texts.items() if text)
    return msgspec.json.decode(f'{{"name":"",{members}}}', type=TaskSpec) if members else None
