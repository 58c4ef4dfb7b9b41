"""How long tasks usually take, from their successful attempts in the latest runs of a flow.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Each run is read in a statement of its own, so that no checkpoint waits longer than for one run. At most ATTEMPTS_MAX
attempts are read, however large the file is.
"""

import sqlite3
from typing import Dict, List, Optional, Sequence

from .column_codec import Table, pack_table, unpack_table
from .list_rows import DurationStats
from .queries import dag_name_of

RUNS_MAX = 30
ATTEMPTS_MAX = 100000
_DIGITS = 2  # significant digits: the durations are estimates, and 10,000 tasks cross slow lines

_RUNS = "SELECT run_id FROM run WHERE dag_name = :dag{} ORDER BY started_at DESC, rowid DESC LIMIT :most"
_BEFORE = " AND run_id <> :run AND started_at <= (SELECT started_at FROM run WHERE run_id = :run)"
_ATTEMPTS = (
    "SELECT name, duration_us FROM attempt WHERE run_id = ? AND outcome = 'success' AND duration_us IS NOT NULL LIMIT ?"
)


def durations_us(connection: sqlite3.Connection, dag_name: str, before: Optional[str] = None) -> Dict[str, List[int]]:
    """The durations of each task in ascending order, of the runs before the run ``before``."""
    found: Dict[str, List[int]] = {}
    room = ATTEMPTS_MAX
    sql = _RUNS.format("" if before is None else _BEFORE)
    for (run_id,) in connection.execute(sql, {"dag": dag_name, "run": before, "most": RUNS_MAX}).fetchall():
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
    """The quantile ``share`` (0 to 1) of sorted values."""
    return values[int(round(share * (len(values) - 1)))]


def read_packed(connection: sqlite3.Connection, run_id: str) -> Table:
    """Duration statistics of the tasks of a run, packed for ``unpack``.

    Raises NotFoundError for a run that the file does not have.
    """
    known = durations_us(connection, dag_name_of(connection, run_id), before=run_id)
    names = connection.execute("SELECT name FROM task WHERE run_id = ? ORDER BY name", (run_id,)).fetchall()
    rows = [
        (name, _rounded(quantile(known[name], 0.5)), _rounded(quantile(known[name], 0.95)), len(known[name]))
        for (name,) in names
        if name in known
    ]
    return pack_table(("name", "p50_ms", "p95_ms", "attempts"), rows)


def unpack(table: Table) -> Dict[str, DurationStats]:
    """Task name -> its statistics, from ``read_packed``."""
    columns = unpack_table(table)
    rows = zip(columns["name"], columns["p50_ms"], columns["p95_ms"], columns["attempts"])
    return {name: DurationStats(p50_ms * 1000, p95_ms * 1000, attempts) for name, p50_ms, p95_ms, attempts in rows}


def _rounded(duration_us: int) -> int:
    """Milliseconds, at least 1, rounded to ``_DIGITS`` significant digits."""
    milliseconds = max(round(duration_us / 1000), 1)
    unit = int("1" + "0" * max(len(str(milliseconds)) - _DIGITS, 0))
    return int(round(milliseconds / unit)) * unit
