"""Packs a run as columns, in parts: first the board, which is needed at once, then the history of finished tasks.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``console/sessions/session.py`` makes the RunProjection that ``store/runs.py`` reads from a local file.
Of a finished task the board has only the state, because its instants would take more bytes than all other data. The
history follows window by window, with the edges if there are very many.
"""

import json
import sqlite3
from contextlib import contextmanager
from typing import Any, Container, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ..domain.events import KILL_STEPS, kill_step_value
from ..domain.rows import RunRow
from ..errors import NotFoundError
from .reader import latest_seq

# --- Packs rows as columns, so that a snapshot of 10,000 tasks crosses a slow line in seconds ------------------------
#
# A column is one value for all rows, the differences between its numbers, or the plain values. All forms are JSON.


PackedTable = Dict[str, Any]


def pack_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> PackedTable:
    """Pack rows, each with one value per name."""
    columns = list(zip(*rows)) if rows else [()] * len(names)
    return {"rows": len(rows), "columns": {name: pack(column) for name, column in zip(names, columns)}}


def unpack_table(table: PackedTable) -> Dict[str, List[Any]]:
    """Unpack a table by column name."""
    rows = table["rows"]
    return {name: unpack(column, rows) for name, column in table["columns"].items()}


def pack(values: Sequence[Any]) -> Any:
    """Pack one column of JSON values."""
    first = values[0] if values else None
    kinds = {type(value) for value in values}
    if len(kinds) <= 1 and all(value == first for value in values):
        return {"all": first}
    return {"step": _differences(values)} if kinds <= {int, type(None)} else list(values)


def unpack(packed: Any, rows: int) -> List[Any]:
    """Unpack one column of ``rows`` values."""
    if isinstance(packed, list):
        return packed
    return _sums(packed["step"]) if "step" in packed else [packed["all"]] * rows


def _differences(values: Iterable[Optional[int]]) -> List[Optional[int]]:
    steps: List[Optional[int]] = []
    last = 0
    for value in values:
        steps.append(None if value is None else value - last)
        last = last if value is None else value
    return steps


def _sums(steps: Iterable[Optional[int]]) -> List[Optional[int]]:
    values: List[Optional[int]] = []
    last = 0
    for step in steps:
        last += step or 0
        values.append(None if step is None else last)
    return values


# --- The parts of a snapshot -----------------------------------------------------------------------------------------


RUN_COLUMNS = ", ".join(RunRow._fields)

EDGES_AT_ONCE = 12000  # with more edges, they follow with the history
WHOLE_TASKS_MAX, WHOLE_EDGES_MAX = 20000, 500000  # in one answer: a console takes 16 MB

#: Columns that are not sent: long texts are read on demand, tokens are private.
_EXCLUDED = frozenset(
    [
        "run_id",
        "token",
        "claim_token",
        "executor_id",
        "pid_start_ticks",
        "traceback",
        "stack",
        "fingerprint_detail",
        "checkpoint",
        "element",
        "aside",
        "element_keys",
    ]
)
_DONE = "SUCCESS"
#: The columns of a finished task on the board.
_BOARD_COLUMNS = frozenset(
    ["name", "state", "attempt", "max_attempts", "generation", "position", "skip_cause", "stale"]
)

#: Only events record how attempts were killed. In the order of the partial index of ``schema.sql``, which SQLite
#: compares as text.
KILL_EVENTS = ("SELECT task, attempt, kind, at, data FROM event WHERE run_id = ? AND kind IN ({}) ORDER BY seq").format(
    ", ".join(f"'{kind}'" for kind in KILL_STEPS)
)
_CHANGED = (
    "SELECT task, max(seq), at FROM event WHERE run_id = ? AND task IS NOT NULL AND task BETWEEN ? AND ? GROUP BY task"
)

TaskFields = Dict[str, Any]


@contextmanager
def read_snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Let several SELECTs see the same commit."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def board(connection: sqlite3.Connection, run_id: Optional[str], is_whole: bool = False) -> Dict[str, Any]:
    """A run (default: the latest) as of ``seq``. ``is_whole``: with the history of finished tasks, unless they are too
    many for one answer. Raises NotFoundError when the file has no such run."""
    with read_snapshot(connection):
        return pack_run(connection, read_run(connection, run_id), None, is_whole)


def pack_run(
    connection: sqlite3.Connection, run: RunRow, names: Optional[Sequence[str]], is_whole: bool
) -> Dict[str, Any]:
    """Pack a run, or of its tasks ``names`` alone, without the instants of their latest events.

    ``done`` tasks have finished and follow with the history.
    """
    some = "" if names is None else " AND name IN (SELECT value FROM json_each(:names))"
    values = {"names": json.dumps(names)}
    tasks = _rows(connection, "task", run.run_id, some + " ORDER BY position, name", values)
    is_whole = is_whole and len(tasks) <= WHOLE_TASKS_MAX
    if not is_whole:
        some += " AND name IN (SELECT name FROM task WHERE run_id = :run_id AND state <> '" + _DONE + "')"
    attempts = _rows(connection, "attempt", run.run_id, some + " ORDER BY name, attempt", values)
    places = {row["name"]: place for place, row in enumerate(tasks)}
    parents = [[name for name in found if name in places] for found in _parents(connection, run.run_id, list(places))]
    whole = {row["name"]: places[row["name"]] for row in tasks if is_whole or row["state"] != _DONE}
    if names is None:
        _add_changed(connection, run.run_id, tasks)
    specs = [json.loads(row.pop("spec")) for row in tasks]
    edges_max = WHOLE_EDGES_MAX if is_whole else EDGES_AT_ONCE
    return {
        "seq": latest_seq(connection),
        "run": run,
        "parents": _pack_parents(parents, specs, places) if sum(map(len, parents)) <= edges_max else None,
        "specs": _pack_specs(specs),
        "attempts": _pack_attempts(attempts, places),
        "tasks": _pack_rows([row if row["name"] in whole else _board_row(row) for row in tasks]),
        "ladder": _kill_steps(connection, run.run_id, whole),
        "done": len(tasks) - len(whole),
    }


def history(
    connection: sqlite3.Connection, run_id: str, start: int, count: int, has_parents: bool = False
) -> Dict[str, Any]:
    """The columns that the board leaves out, of the finished ones among ``count`` tasks from the ``start``-th, by name.

    ``places`` are indexes of the sorted names; ``next`` is the start of the next window, None at the end.
    ``has_parents``: with the parents of all tasks of the window, which the board has left out.
    """
    with read_snapshot(connection):
        names = _names(connection, run_id)
        window = names[start : start + count]
        bounds = {"first": window[0], "last": window[-1]}
        within = "AND name BETWEEN :first AND :last "
        tasks = _rows(connection, "task", run_id, within + "AND state = '" + _DONE + "' ORDER BY name", bounds)
        attempts = _rows(connection, "attempt", run_id, within + "ORDER BY name, attempt", bounds)
        done = {row["name"] for row in tasks}
        places = {name: place for place, name in enumerate(window, start) if name in done}
        kill_steps = _kill_steps(connection, run_id, places)
        _add_changed(connection, run_id, tasks)
        parents = _window_parents(connection, run_id, names, window) if has_parents else None
    return {
        "names": len(names),
        "parents": parents,
        "next": start + count if start + count < len(names) else None,
        "places": pack([places[row["name"]] for row in tasks]),
        "attempts": _pack_attempts([row for row in attempts if row["name"] in done], places),
        "tasks": _pack_rows([_without(row, "name", "spec") for row in tasks]),
        "ladder": kill_steps,
    }


_RUN = "SELECT " + RUN_COLUMNS + " FROM run WHERE run_id = coalesce(?, run_id) ORDER BY rowid DESC LIMIT 1"


def read_run(connection: sqlite3.Connection, run_id: Optional[str]) -> RunRow:
    """The row of a run (default: the latest). Raises NotFoundError when the file has no such run."""
    row = connection.execute(_RUN, (run_id,)).fetchone()
    if row is not None:
        return RunRow(*row)
    if run_id is None:
        raise NotFoundError("no run has been recorded in this state file yet")
    raise unknown_run(run_id)


def unknown_run(run_id: str) -> NotFoundError:
    """The error of a request for a run that the file does not have."""
    return NotFoundError(f"there is no run {run_id!r} in this state file")


def _rows(
    connection: sqlite3.Connection, table: str, run_id: str, rest: str, values: Optional[Dict[str, Any]] = None
) -> List[TaskFields]:
    names = [row[1] for row in connection.execute("PRAGMA table_info(" + table + ")") if row[1] not in _EXCLUDED]
    sql = "SELECT {} FROM {} WHERE run_id = :run_id {}".format(", ".join(names), table, rest)
    return [dict(zip(names, row)) for row in connection.execute(sql, dict(values or {}, run_id=run_id))]


def _names(connection: sqlite3.Connection, run_id: str) -> List[str]:
    return [name for (name,) in connection.execute("SELECT name FROM task WHERE run_id = ? ORDER BY name", (run_id,))]


def _window_parents(
    connection: sqlite3.Connection, run_id: str, names: Sequence[str], window: Sequence[str]
) -> Dict[str, Any]:
    sql = "SELECT spec FROM task WHERE run_id = ? AND name BETWEEN ? AND ? ORDER BY name"
    specs = [json.loads(spec) for (spec,) in connection.execute(sql, (run_id, window[0], window[-1]))]
    places = {name: place for place, name in enumerate(names)}
    return _pack_parents(_parents(connection, run_id, window), specs, places)


def _parents(connection: sqlite3.Connection, run_id: str, names: Sequence[str]) -> List[List[str]]:
    """The parents of each of ``names``, unordered."""
    parents: Dict[str, List[str]] = {name: [] for name in names}
    sql = "SELECT child, parent FROM edge WHERE run_id = ? AND child BETWEEN ? AND ?"
    for child, parent in connection.execute(sql, (run_id, min(names, default=""), max(names, default=""))):
        if child in parents:
            parents[child].append(parent)
    return list(parents.values())


def _add_changed(connection: sqlite3.Connection, run_id: str, tasks: List[TaskFields]) -> None:
    """Add the seq and instant of the latest event of each task."""
    if not tasks:
        return
    named = sorted(row["name"] for row in tasks)
    found = {name: (seq, at) for name, seq, at in connection.execute(_CHANGED, (run_id, named[0], named[-1]))}
    for row in tasks:
        row["changed_seq"], row["changed_at"] = found.get(row["name"], (0, 0))


def _board_row(row: TaskFields) -> TaskFields:
    return {key: value if key in _BOARD_COLUMNS else None for key, value in row.items()}


def _without(row: TaskFields, *names: str) -> TaskFields:
    return {name: value for name, value in row.items() if name not in names}


def _kill_steps(connection: sqlite3.Connection, run_id: str, places: Dict[str, int]) -> List[List[Any]]:
    """The steps of kills: [place of the task, attempt, kind, instant or place of the hang]."""
    steps = kill_steps(connection, run_id, places)
    return [[places[task], attempt, kind, value] for task, attempt, kind, value in steps]


def kill_steps(
    connection: sqlite3.Connection, run_id: str, tasks: Container[str]
) -> Iterator[Tuple[str, int, str, Union[int, str, None]]]:
    """The steps of the kills of ``tasks``: task, attempt, kind of the event, its instant or the place of the hang."""
    for task, attempt, kind, at, data in connection.execute(KILL_EVENTS, (run_id,)):
        if task in tasks:
            yield task, attempt, kind, kill_step_value(kind, at, data)


# --- Packed --------------------------------------------------------------------------------------------------------


def _pack_rows(rows: Sequence[TaskFields]) -> PackedTable:
    names = tuple(rows[0]) if rows else ()
    return pack_table(names, [tuple(row[name] for name in names) for row in rows])


def _pack_attempts(attempts: Sequence[TaskFields], places: Dict[str, int]) -> PackedTable:
    return _pack_rows([dict(_without(row, "name"), place=places[row["name"]]) for row in attempts])


def _pack_parents(parents: Sequence[List[str]], specs: Sequence[TaskFields], places: Dict[str, int]) -> TaskFields:
    """Pack parents as indexes of tasks, in the order of the flow if it names them."""
    for found, spec in zip(parents, specs):
        named = spec.get("parents", ())
        if len(found) > 1 and set(found) <= set(named):
            found.sort(key=named.index)
    return {
        "edges": sum(len(found) for found in parents),
        "counts": pack([len(found) for found in parents]),
        "places": pack([places[parent] for found in parents for parent in found]),
    }


def _pack_specs(specs: Sequence[TaskFields]) -> TaskFields:
    """Pack the specs as the texts of those that differ by more than the name and the parents, which are sent apart."""
    encode = json.JSONEncoder(separators=(",", ":")).encode  # one for all: ``dumps`` would make one for each
    texts = [encode(dict(spec, name="", parents=[])) for spec in specs]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {"distinct": list(places), "places": pack([places[text] for text in texts])}
