"""Reads lists from a state file, the same for local and remote sessions.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import socket
import sqlite3
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..errors import NotFoundError, RedriveError
from ..json_types import Json
from .list_rows import EXECUTORS, JSON_FIELDS, LISTINGS, ExecutorState, Listing, Option, Row, RunLine
from .processes import is_gone
from .reader import EVENT_COLUMNS

HOST = socket.gethostname()

ALIVE_US = 5000000  # an executor touches its lock every second; after so long without it counts as dead

# --- Reading -------------------------------------------------------------------------------------------------------


def query(connection: sqlite3.Connection, listing: Listing[Row], options: Mapping[str, Option]) -> List[Row]:
    """Read the rows of a list. Raises RedriveError for an unknown option."""
    unknown = set(options) - set(listing.defaults)
    if unknown:
        raise RedriveError("the list {!r} takes no {}".format(listing.name, ", ".join(sorted(unknown))))
    fields = listing.row._fields
    rows = connection.execute(listing.sql, dict(listing.defaults, **options))
    return [
        listing.row._make(
            _read(value, JSON_FIELDS[field]) if field in JSON_FIELDS else value for field, value in zip(fields, values)
        )
        for values in rows
    ]


def query_by_name(connection: sqlite3.Connection, what: str, options: Mapping[str, Option]) -> Sequence[Sequence[Json]]:
    """Read the rows of a list by its name. Raises RedriveError for an unknown name or option."""
    if what not in LISTINGS:
        raise RedriveError("there is no list {!r}; there are {}".format(what, ", ".join(sorted(LISTINGS))))
    return query(connection, LISTINGS[what], options)


def _read(text: str, otherwise: Json) -> Json:
    """Parse a JSON text; ``otherwise`` if it is damaged or of another type."""
    try:
        value: Json = json.loads(text)
    except (TypeError, ValueError):
        return otherwise
    return value if isinstance(value, type(otherwise)) else otherwise


def runs(connection: sqlite3.Connection) -> List[RunLine]:
    """All runs, latest first."""
    counts: Dict[str, Dict[str, int]] = {}
    connection.execute("BEGIN")
    try:
        for run_id, state, count in connection.execute(
            "SELECT run_id, state, count(*) FROM task GROUP BY run_id, state"
        ):
            counts.setdefault(run_id, {})[state] = count
        cursor = connection.execute("SELECT * FROM run ORDER BY started_at DESC, rowid DESC")
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, values)) for values in cursor]
    finally:
        connection.execute("COMMIT")
    return [RunLine(run, counts.get(run["run_id"], {})) for run in found]


def dag_name_of(connection: sqlite3.Connection, run_id: str) -> str:
    """The flow of a run. Raises NotFoundError for a run that the file does not have."""
    row = connection.execute("SELECT dag_name FROM run WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        raise NotFoundError("there is no run {!r} in this state file; `redrive runs` lists them".format(run_id))
    return str(row[0])


def executor(connection: sqlite3.Connection, seen_at: Optional[int], is_attached: bool, now_us: int) -> ExecutorState:
    """The state of the executor of a file, by the clock of its host.

    ``seen_at``: its last heartbeat (``executor_socket.heartbeat_at``); ``is_attached``: its socket is open.
    """
    latest = query(connection, EXECUTORS, {"limit": 1})
    if not latest or seen_at is None:
        return ExecutorState(is_attached)
    last = latest[0]
    stopped = last.stopped_at is not None
    ended = stopped or (last.host == HOST and is_gone(last.pid, last.start_ticks, last.boot_id))
    alive = is_attached or (not ended and now_us - seen_at < ALIVE_US)
    gone_at = None if alive else last.stopped_at or max(seen_at, last.heartbeat_at)
    return ExecutorState(alive, max(0, now_us - seen_at), gone_at, last.pid, last.run_id, stopped)


_PAST = "SELECT " + EVENT_COLUMNS + " FROM event WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"


def read_events(connection: sqlite3.Connection, run_id: str, after: int, limit: int) -> List[Tuple[object, ...]]:
    """The first ``limit`` events of a run after ``after``, in order; ``data`` as JSON text."""
    return connection.execute(_PAST, (run_id, after, limit)).fetchall()
