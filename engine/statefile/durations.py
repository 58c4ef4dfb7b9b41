"""The usual durations of tasks, from their successful attempts in the latest runs of a flow.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Each run is read in a statement of its own, so that no checkpoint waits longer than for one run. At most ATTEMPTS_MAX
attempts are read, however large the file is.
"""

import sqlite3
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, TypeVar

from ..domain.task_options import child_prefix
from .lists import dag_name_of
from .sql import IS_MAP

Value = TypeVar("Value")

RUNS_MAX = 30
ATTEMPTS_MAX = 100000
ELEMENT_MIN = 3  # from so many nights on, a child of a map task has a history of its own; else that of all children
_DIGITS = 2  # significant digits: the durations are estimates, and 10,000 tasks cross slow lines

_RUNS = "SELECT run_id FROM run WHERE +dag_name = :dag{} ORDER BY rowid DESC LIMIT :most"
_BEFORE = " AND run_id <> :run AND rowid < (SELECT rowid FROM run WHERE run_id = :run)"
_IS_MAP = "SELECT 1 FROM task WHERE run_id = ? AND name = ? AND " + IS_MAP.format("task")
_ATTEMPTS = (
    "SELECT name, duration_us FROM attempt WHERE run_id = ? AND outcome = 'success' AND duration_us IS NOT NULL LIMIT ?"
)


class DurationStats(NamedTuple):
    """Durations of successful attempts of a task in earlier runs: microseconds, sent with two digits.

    Half of them took at most ``p50_us``, 95 of 100 at most ``p95_us``.
    """

    p50_us: int
    p95_us: int
    attempts: int


def durations_us(connection: sqlite3.Connection, dag_name: str, before: Optional[str] = None) -> Dict[str, List[int]]:
    """The durations of each task in ascending order, of the runs before the run ``before``.

    A child of a map task has its own from ELEMENT_MIN on. Those of all children together are under the beginning of
    their names, where ``of_child`` finds them for a child that has none.
    """
    found: Dict[str, List[int]] = {}
    maps: Dict[str, bool] = {}  # by what may be the name of one
    room = ATTEMPTS_MAX
    sql = _RUNS.format("" if before is None else _BEFORE)
    for (run_id,) in connection.execute(sql, {"dag": dag_name, "run": before, "most": RUNS_MAX}).fetchall():
        rows = connection.execute(_ATTEMPTS, (run_id, room)).fetchall()
        for name, duration_us in rows:
            for possible in () if name in found else _possible_maps(name):
                if possible not in maps:
                    maps[possible] = connection.execute(_IS_MAP, (run_id, possible)).fetchone() is not None
            found.setdefault(name, []).append(duration_us)
        room -= len(rows)
        if room <= 0:
            break
    together: Dict[str, List[int]] = {}
    for name, values in list(found.items()):
        task = next(filter(maps.__getitem__, _possible_maps(name)), None)
        if task is not None:
            together.setdefault(child_prefix(task), []).extend(values)
            if len(values) < ELEMENT_MIN:
                del found[name]
    found.update(together)
    for values in found.values():
        values.sort()
    return found


def _possible_maps(name: str) -> Iterator[str]:
    """The names of which ``child_prefix`` makes a beginning of this name."""
    place = name.find("[")
    while place >= 0:
        yield name[:place]
        place = name.find("[", place + 1)


def of_child(values: Mapping[str, Value], name: str, otherwise: Value) -> Value:
    """The value of a task; of a child of a map task that has none of its own, that of all its children.

    ``values``: by the names of ``durations_us``.
    """
    if name in values:
        return values[name]
    prefixes = map(child_prefix, _possible_maps(name))
    return next((values[prefix] for prefix in prefixes if prefix in values), otherwise)


def quantile(values: Sequence[int], share: float) -> int:
    """The quantile ``share`` (0 to 1) of sorted values."""
    return values[int(round(share * (len(values) - 1)))]


def duration_stats(
    connection: sqlite3.Connection, dag_name: str, before: Optional[str] = None
) -> Dict[str, DurationStats]:
    """The durations of the tasks of a flow in its latest runs, by the names of ``durations_us``."""
    found = durations_us(connection, dag_name, before)
    return {
        name: DurationStats(quantile(values, 0.5), quantile(values, 0.95), len(values))
        for name, values in found.items()
    }


def read_durations(connection: sqlite3.Connection, run_id: str) -> Dict[str, DurationStats]:
    """The duration statistics of the tasks of a run that have any, by name.

    Raises NotFoundError for a run that the file does not have.
    """
    found = duration_stats(connection, dag_name_of(connection, run_id), before=run_id)
    names = connection.execute("SELECT name FROM task WHERE run_id = ? ORDER BY name", (run_id,)).fetchall()
    known = [(name, of_child(found, name, None)) for (name,) in names]
    return {
        name: one._replace(p50_us=_rounded(one.p50_us), p95_us=_rounded(one.p95_us))
        for name, one in known
        if one is not None
    }


def _rounded(duration_us: int) -> int:
    """Whole milliseconds, at least 1, rounded to ``_DIGITS`` significant digits."""
    milliseconds = max(round(duration_us / 1000), 1)
    unit = int("1" + "0" * max(len(str(milliseconds)) - _DIGITS, 0))
    return int(round(milliseconds / unit)) * unit * 1000
