"""A run as columns, in helpings: the board that is needed at once, then the history of what is done.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``console/sessions/run_decoder.py`` makes a RunFold of it, equal to what ``store/runs.py`` reads from a local file. Of a
task that is done the board says no more than that; when and how long costs more bytes than all the rest together, so
it follows window by window, as fast as the line allows. So do the edges where there are very many.
"""

import json
import sqlite3
from typing import Any, Dict, List, Optional, Sequence

from ..domain.events import KILL_STEPS, kill_step_value
from ..errors import NotFoundError
from .column_codec import Table, pack, pack_table

EDGES_AT_ONCE = 12000  # more of them, as links, follow the board

#: Columns that stay where they are: long texts are read on demand, tokens are nobody's business.
_KEPT_BACK = frozenset(
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
    ]
)
_DONE = "SUCCESS"
#: Of a task that is done, the board tells these.
_AT_ONCE = frozenset(["name", "state", "attempt", "max_attempts", "generation", "position", "skip_cause", "stale"])
#: Instants of a task that are mostly equal to, or soon after, another one of its. Ends before starts.
_AFTER = (("changed_at", "ended_at"), ("ended_at", "started_at"), ("first_started_at", "started_at"))

#: How attempts were killed is told in events alone.
_LADDER = (
    "SELECT task, attempt, kind, at, data FROM event WHERE run_id = ? AND kind IN ("
    + ", ".join("'{}'".format(kind) for kind in KILL_STEPS)
    + ") ORDER BY seq"
)
_CHANGED = (
    "SELECT task, max(seq), at FROM event WHERE run_id = ? AND task IS NOT NULL AND task BETWEEN ? AND ? GROUP BY task"
)

Row = Dict[str, Any]


def board(connection: sqlite3.Connection, run_id: Optional[str]) -> Dict[str, Any]:
    """A run (default: the latest) as of ``seq``. Raises NotFoundError when the file has no such run."""
    connection.execute("BEGIN")  # one moment
    try:
        run = _run(connection, run_id)
        (seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
        tasks = _rows(connection, "task", run["run_id"], "ORDER BY position, name")
        unfinished = "AND name IN (SELECT name FROM task WHERE run_id = :run_id AND state <> '" + _DONE + "')"
        attempts = _rows(connection, "attempt", run["run_id"], unfinished + " ORDER BY name, attempt")
        places = {row["name"]: place for place, row in enumerate(tasks)}
        parents = _parents(connection, run["run_id"], list(places))
        unfinished_places = {row["name"]: places[row["name"]] for row in tasks if row["state"] != _DONE}
        ladder = _ladder(connection, run["run_id"], unfinished_places)
        _add_changed(connection, run["run_id"], tasks)
    finally:
        connection.execute("COMMIT")
    specs = [json.loads(row.pop("spec")) for row in tasks]
    return {
        "seq": seq,
        "run": run,
        "parents": _pack_parents(parents, specs, places) if sum(map(len, parents)) <= EDGES_AT_ONCE else None,
        "specs": _pack_specs(specs),
        "attempts": _pack_attempts(attempts, tasks, places),
        "tasks": _pack_tasks([_at_once(row) for row in tasks]),
        "ladder": ladder,
        "done": len(tasks) - len(unfinished_places),
    }


def links(connection: sqlite3.Connection, run_id: str, start: int, count: int) -> Dict[str, Any]:
    """The parents of ``count`` tasks from the ``start``-th, by name, where the board has left them out.

    ``next`` is where to go on, None at the end.
    """
    connection.execute("BEGIN")
    try:
        names = _names(connection, run_id)
        window = names[start : start + count]
        sql = "SELECT spec FROM task WHERE run_id = ? AND name BETWEEN ? AND ? ORDER BY name"
        specs = [json.loads(spec) for (spec,) in connection.execute(sql, (run_id, window[0], window[-1]))]
        parents = _parents(connection, run_id, window)
    finally:
        connection.execute("COMMIT")
    places = {name: place for place, name in enumerate(names)}
    return dict(_pack_parents(parents, specs, places), names=len(names), next=_next(start, count, names))


def history(connection: sqlite3.Connection, run_id: str, start: int, count: int) -> Dict[str, Any]:
    """What the board left out of those of ``count`` tasks from the ``start``-th, by name, that are done.

    ``places`` are among the names in order; ``next`` is where to go on, None at the end.
    """
    connection.execute("BEGIN")
    try:
        names = _names(connection, run_id)
        window = names[start : start + count]
        bounds = {"first": window[0], "last": window[-1]}
        within = "AND name BETWEEN :first AND :last "
        tasks = _rows(connection, "task", run_id, within + "AND state = '" + _DONE + "' ORDER BY name", bounds)
        attempts = _rows(connection, "attempt", run_id, within + "ORDER BY name, attempt", bounds)
        done = {row["name"] for row in tasks}
        places = {name: place for place, name in enumerate(window, start) if name in done}
        ladder = _ladder(connection, run_id, places)
        _add_changed(connection, run_id, tasks)
    finally:
        connection.execute("COMMIT")
    return {
        "names": len(names),
        "next": _next(start, count, names),
        "places": pack([places[row["name"]] for row in tasks]),
        "attempts": _pack_attempts([row for row in attempts if row["name"] in done], tasks, places),
        "tasks": _pack_tasks([_without(row, "name", "spec") for row in tasks]),
        "ladder": ladder,
    }


def _run(connection: sqlite3.Connection, run_id: Optional[str]) -> Row:
    cursor = connection.execute(
        "SELECT * FROM run WHERE run_id = coalesce(?, run_id) ORDER BY started_at DESC, rowid DESC LIMIT 1", (run_id,)
    )
    row = cursor.fetchone()
    if row is None:
        if run_id is None:
            raise NotFoundError("no run has been recorded in this state file yet")
        raise NotFoundError("there is no run {!r} in this state file; `redrive runs` lists them".format(run_id))
    return dict(zip([column[0] for column in cursor.description], row))


def _rows(
    connection: sqlite3.Connection, table: str, run_id: str, rest: str, values: Optional[Dict[str, Any]] = None
) -> List[Row]:
    names = [row[1] for row in connection.execute("PRAGMA table_info(" + table + ")") if row[1] not in _KEPT_BACK]
    sql = "SELECT {} FROM {} WHERE run_id = :run_id {}".format(", ".join(names), table, rest)
    return [dict(zip(names, row)) for row in connection.execute(sql, dict(values or {}, run_id=run_id))]


def _names(connection: sqlite3.Connection, run_id: str) -> List[str]:
    return [name for (name,) in connection.execute("SELECT name FROM task WHERE run_id = ? ORDER BY name", (run_id,))]


def _next(start: int, count: int, names: Sequence[str]) -> Optional[int]:
    return start + count if start + count < len(names) else None


def _parents(connection: sqlite3.Connection, run_id: str, names: Sequence[str]) -> List[List[str]]:
    """Of each of ``names``, in no order of meaning."""
    parents: Dict[str, List[str]] = {name: [] for name in names}
    sql = "SELECT child, parent FROM edge WHERE run_id = ? AND child BETWEEN ? AND ?"
    for child, parent in connection.execute(sql, (run_id, min(names, default=""), max(names, default=""))):
        parents[child].append(parent)
    return list(parents.values())


def _add_changed(connection: sqlite3.Connection, run_id: str, tasks: List[Row]) -> None:
    """The latest event that touched each of ``tasks``."""
    if not tasks:
        return
    named = sorted(row["name"] for row in tasks)
    found = {name: (seq, at) for name, seq, at in connection.execute(_CHANGED, (run_id, named[0], named[-1]))}
    for row in tasks:
        row["changed_seq"], row["changed_at"] = found.get(row["name"], (0, 0))


def _at_once(row: Row) -> Row:
    if row["state"] != _DONE:
        return row
    return {key: value if key in _AT_ONCE else None for key, value in row.items()}


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def _ladder(connection: sqlite3.Connection, run_id: str, places: Dict[str, int]) -> List[List[Any]]:
    """The steps of kills: place of the task, attempt, kind, and when, or where it hung."""
    return [
        [places[task], attempt, kind, kill_step_value(kind, at, data)]
        for task, attempt, kind, at, data in connection.execute(_LADDER, (run_id,))
        if task in places
    ]


# --- Packed --------------------------------------------------------------------------------------------------------


def to_offsets(task: Row) -> Row:
    """Say those instants of a task that follow another one as microseconds after it."""
    said = dict(task)
    for name, base in _AFTER:
        if task[name] is not None and task[base] is not None:
            said[name] = task[name] - task[base]
    return said


def to_instants(said: Row) -> Row:
    """Undo ``to_offsets``."""
    task = dict(said)
    for name, base in reversed(_AFTER):
        if task[name] is not None and task[base] is not None:
            task[name] += task[base]
    return task


def attempt_to_offsets(attempt: Row, task: Row) -> Row:
    """The latest attempt began and ended with its task, and its duration is about what lies between."""
    said = dict(attempt, started_at=attempt["started_at"] - (task["started_at"] or 0))
    if attempt["ended_at"] is not None:
        said["ended_at"] = attempt["ended_at"] - (task["ended_at"] or attempt["started_at"])
        if attempt["duration_us"] is not None:
            said["duration_us"] = attempt["duration_us"] - (attempt["ended_at"] - attempt["started_at"])
    return said


def attempt_to_instants(said: Row, task: Row) -> Row:
    """Undo ``attempt_to_offsets``."""
    attempt = dict(said, started_at=said["started_at"] + (task["started_at"] or 0))
    if said["ended_at"] is not None:
        attempt["ended_at"] = said["ended_at"] + (task["ended_at"] or attempt["started_at"])
        if said["duration_us"] is not None:
            attempt["duration_us"] = said["duration_us"] + (attempt["ended_at"] - attempt["started_at"])
    return attempt


def _pack_rows(rows: Sequence[Row]) -> Table:
    names = tuple(rows[0]) if rows else ()
    return pack_table(names, [tuple(row[name] for name in names) for row in rows])


def _pack_tasks(tasks: Sequence[Row]) -> Table:
    return _pack_rows([to_offsets(row) for row in tasks])


def _pack_attempts(attempts: Sequence[Row], tasks: Sequence[Row], places: Dict[str, int]) -> Table:
    by_name = {row["name"]: row for row in tasks}
    return _pack_rows(
        [
            dict(attempt_to_offsets(_without(row, "name"), by_name[row["name"]]), place=places[row["name"]])
            for row in attempts
        ]
    )


def _pack_parents(parents: Sequence[List[str]], specs: Sequence[Row], places: Dict[str, int]) -> Row:
    """As places; in the order in which the flow names them where it does."""
    for found, spec in zip(parents, specs):
        named = spec.get("parents", ())
        if len(found) > 1 and set(found) <= set(named):
            found.sort(key=named.index)
    return {
        "edges": sum(len(found) for found in parents),
        "counts": pack([len(found) for found in parents]),
        "places": pack([places[parent] for found in parents for parent in found]),
    }


def _pack_specs(specs: Sequence[Row]) -> Row:
    """What flows say about tasks, key by key as JSON texts, "" where a key is not said; name and parents are known."""
    keys = {key: None for spec in specs for key in spec if key not in ("name", "parents")}
    said = _Said()
    return {key: pack([said(spec[key]) if key in spec else "" for spec in specs]) for key in keys}


class _Said(object):
    """JSON texts of values, of which most come again and again."""

    def __init__(self) -> None:
        self._texts: Dict[Any, str] = {}

    def __call__(self, value: Any) -> str:
        if isinstance(value, (dict, list)):
            return json.dumps(value, separators=(",", ":"))
        key = (type(value), value)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = json.dumps(value)
        return text
