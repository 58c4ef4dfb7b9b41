"""How long tasks usually take: what their successful attempts say in the latest runs of a flow.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Read run by run, each in a statement of its own: no reader holds the writer's log back for longer than one run takes,
and a file with a year of large runs is looked at as far as ATTEMPTS_MAX and no further.
"""

import sqlite3
from typing import Dict, List, NamedTuple, Optional, Sequence

from ..errors import NotFoundError
from .column_codec import Table, pack_table, unpack_table

RUNS_LOOKED_AT = 30
ATTEMPTS_MAX = 100000
_DIGITS = 2  # of what is told of a run: it is an estimate, and 10,000 tasks cross slow lines

_RUNS = "SELECT run_id FROM run WHERE dag_name = :dag{} ORDER BY started_at DESC, rowid DESC LIMIT :most"
_BEFORE = " AND run_id <> :run AND started_at <= (SELECT started_at FROM run WHERE run_id = :run)"
_ATTEMPTS = (
    "SELECT name, duration_us FROM attempt WHERE run_id = ? AND outcome = 'success' AND duration_us IS NOT NULL LIMIT ?"
)


class Usual(NamedTuple):
    """What is usual for one task: half of its attempts took no longer than ``p50_us``, 95 of 100 than ``p95_us``.

    Microseconds, to two digits.
    """

    p50_us: int
    p95_us: int
    attempts: int


def durations_us(connection: sqlite3.Connection, dag_name: str, before: Optional[str] = None) -> Dict[str, List[int]]:
    """The durations of each task in ascending order; ``before``: a run that counts as little as those after it."""
    found: Dict[str, List[int]] = {}
    room = ATTEMPTS_MAX
    sql = _RUNS.format("" if before is None else _BEFORE)
    for (run_id,) in connection.execute(sql, {"dag": dag_name, "run": before, "most": RUNS_LOOKED_AT}).fetchall():
        rows = connection.execute(_ATTEMPTS, (run_id, room)).fetchall()
        for name, duration_us in rows:
            found.setdefault(name, []).append(duration_us)
        room -= len(rows)
        if room <= 0:
            break
    for values in found.values():
        values.sort()
    return found


def quantile(values: Sequence[int], share: float) -> int:
    """The one of ``values``, in ascending order, that a ``share`` of them does not exceed."""
    return values[int(round(share * (len(values) - 1)))]


def of_run(connection: sqlite3.Connection, run_id: str) -> Table:
    """What the runs before say of the tasks of a run: ``read`` makes it a mapping.

    Raises NotFoundError for a run that the file does not have.
    """
    row = connection.execute("SELECT dag_name FROM run WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        raise NotFoundError("there is no run {!r} in this state file; `redrive runs` lists them".format(run_id))
    known = durations_us(connection, row[0], before=run_id)
    names = connection.execute("SELECT name FROM task WHERE run_id = ? ORDER BY name", (run_id,)).fetchall()
    rows = [
        (name, _rounded(quantile(known[name], 0.5)), _rounded(quantile(known[name], 0.95)), len(known[name]))
        for (name,) in names
        if name in known
    ]
    return pack_table(("name", "p50_ms", "p95_ms", "attempts"), rows)


def read(table: Table) -> Dict[str, Usual]:
    """By the name of the task, what ``of_run`` told."""
    columns = unpack_table(table)
    rows = zip(columns["name"], columns["p50_ms"], columns["p95_ms"], columns["attempts"])
    return {name: Usual(p50_ms * 1000, p95_ms * 1000, attempts) for name, p50_ms, p95_ms, attempts in rows}


def _rounded(duration_us: int) -> int:
    """Milliseconds, to so many digits; never nothing at all."""
    milliseconds = max(round(duration_us / 1000), 1)
    unit = int("1" + "0" * max(len(str(milliseconds)) - _DIGITS, 0))
    return int(round(milliseconds / unit)) * unit
