"""What people ask about a state file beside the tasks of a run: lists as JSON values, the same through every door.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import socket
import sqlite3
from typing import Any, Dict, List, Optional, Tuple

from ..errors import RedriveError
from .processes import is_gone
from .reader import EVENT_COLUMNS

HOST = socket.gethostname()

ROWS_MAX = 1000
TEXT_CHARACTERS = 300  # of a payload or an error, in lists of many
FRESH_US = 5000000  # an executor touches its lock each second; so old, and it is not turning

Rows = List[Dict[str, Any]]


def runs(connection: sqlite3.Connection) -> Rows:
    """Every run with the columns of its row, latest first, and ``counts``: how many tasks are in which state."""
    counts: Dict[str, Dict[str, int]] = {}
    connection.execute("BEGIN")
    try:
        for run_id, state, count in connection.execute(
            "SELECT run_id, state, count(*) FROM task GROUP BY run_id, state"
        ):
            counts.setdefault(run_id, {})[state] = count
        rows = _rows(connection, "SELECT * FROM run ORDER BY started_at DESC, rowid DESC", ())
    finally:
        connection.execute("COMMIT")
    return [dict(row, counts=counts.get(row["run_id"], {})) for row in rows]


def executor(connection: sqlite3.Connection, seen_at: Optional[int], attended: bool, now_us: int) -> Dict[str, Any]:
    """How the executor of a file is, by the clock of its host.

    ``seen_at``: its last sign of life (``client.heartbeat_at``); ``attended``: its socket is known to be open. Answers
    with ``alive``, ``age_us`` of the last sign of life, and ``gone_at`` (microseconds UTC) when it once was alive;
    ``pid``, ``run_id``, the run that it had, and whether it has ``stopped`` in order.
    """
    rows = _rows(connection, "SELECT * FROM executor ORDER BY started_at DESC, rowid DESC LIMIT 1", ())
    last = rows[0] if rows else None
    if last is None or seen_at is None:
        return {"alive": attended, "age_us": None, "gone_at": None, "pid": None, "run_id": None, "stopped": False}
    stopped = last["stopped_at"] is not None
    ended = stopped or (last["host"] == HOST and is_gone(last["pid"], last["start_ticks"], last["boot_id"]))
    alive = attended or (not ended and now_us - seen_at < FRESH_US)
    gone_at = None if alive else last["stopped_at"] or max(seen_at, last["heartbeat_at"])
    known = {"pid": last["pid"], "run_id": last["run_id"], "stopped": stopped}
    return dict(known, alive=alive, age_us=max(0, now_us - seen_at), gone_at=gone_at)


#: What can be asked for -> the query, and the options that fill its marks, with their defaults.
_QUERIES: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "breakers": ("SELECT * FROM breaker ORDER BY downstream", {}),
    "pages": (
        "SELECT * FROM page WHERE (:id IS NULL OR id = :id) ORDER BY updated_at DESC LIMIT :limit",
        {"id": None, "limit": ROWS_MAX},
    ),
    # Without their bodies, those that still concern somebody first.
    "page_heads": (
        "SELECT id, cause, episode, run_id, task, severity, title, count, told_count, state, created_at, updated_at,"
        " sent_at, send_error, snoozed_until, acked_by FROM page"
        " ORDER BY state = 'resolved', updated_at DESC LIMIT :limit",
        {"limit": ROWS_MAX},
    ),
    "quarantine": (
        "SELECT * FROM quarantine WHERE (:run_id IS NULL OR run_id = :run_id) AND (:task IS NULL OR name = :task)"
        " AND id > :after ORDER BY id LIMIT :limit",
        {"run_id": None, "task": None, "after": 0, "limit": ROWS_MAX},
    ),
    # How many rows of each task failed alike, by what became of them; ``last_id`` is the latest of them.
    "quarantine_groups": (
        "SELECT name, fingerprint, state, count(*) AS count, min(at) AS first_at, max(at) AS last_at,"
        " max(id) AS last_id, substr(max(error), 1, :characters) AS error FROM quarantine WHERE run_id = :run_id"
        " GROUP BY name, fingerprint, state ORDER BY min(id) LIMIT :limit",
        {"run_id": None, "characters": TEXT_CHARACTERS, "limit": ROWS_MAX},
    ),
    # A window of the rows of one group, with the beginnings of their texts; an index would be sorted first.
    "quarantine_rows": (
        "SELECT id, name, attempt, generation, row_key, substr(payload, 1, :characters) AS payload,"
        " substr(error, 1, :characters) AS error, fingerprint, state, at FROM quarantine NOT INDEXED"
        " WHERE run_id = :run_id AND name = :task AND fingerprint IS :fingerprint"
        " ORDER BY id LIMIT :limit OFFSET :skip",
        {"run_id": None, "task": None, "fingerprint": None, "characters": TEXT_CHARACTERS, "skip": 0, "limit": 100},
    ),
    "journal": (
        "SELECT * FROM (SELECT * FROM event WHERE (:run_id IS NULL OR run_id = :run_id OR run_id IS NULL)"
        " AND (:task IS NULL OR task = :task) AND (:acts = 0 OR actor IS NOT NULL)"
        " AND (:before IS NULL OR seq < :before) ORDER BY seq DESC LIMIT :limit) ORDER BY seq",
        {"run_id": None, "task": None, "acts": 0, "before": None, "limit": ROWS_MAX},
    ),
    "schedules": ("SELECT * FROM schedule ORDER BY next_at", {}),
    "slots": (
        "SELECT * FROM slot WHERE (:flow IS NULL OR dag_name = :flow) AND logical_time > :after"
        " ORDER BY logical_time DESC LIMIT :limit",
        {"flow": None, "after": 0, "limit": ROWS_MAX},
    ),
    "sla": (
        "SELECT * FROM sla WHERE (:flow IS NULL OR dag_name = :flow) ORDER BY promised_at DESC LIMIT :limit",
        {"flow": None, "limit": ROWS_MAX},
    ),
    "executors": ("SELECT * FROM executor ORDER BY started_at DESC, rowid DESC LIMIT :limit", {"limit": ROWS_MAX}),
    "history": (
        "SELECT run_id, attempt, generation, started_at, ended_at, duration_us, outcome, error_type, error,"
        " fingerprint, fingerprint_loose FROM attempt WHERE name = :task ORDER BY started_at DESC LIMIT :limit",
        {"task": None, "limit": ROWS_MAX},
    ),
    "output": (
        "SELECT output_bytes, output_dropped_bytes FROM attempt"
        " WHERE run_id = :run_id AND name = :task AND attempt = :attempt",
        {"run_id": None, "task": None, "attempt": None},
    ),
}

_PAST = "SELECT " + EVENT_COLUMNS + " FROM event WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"


def past(connection: sqlite3.Connection, run_id: str, after: int, limit: int) -> List[Tuple[Any, ...]]:
    """The first ``limit`` events of a run after ``after``, in order; ``data`` as the text that it is."""
    return connection.execute(_PAST, (run_id, after, limit)).fetchall()


_JSON_COLUMNS = frozenset(["data", "body", "window", "detail"])


def query(connection: sqlite3.Connection, what: str, options: Dict[str, Any]) -> Rows:
    """A list by its name; rows as dicts of their columns. Raises RedriveError for a name or an option unknown."""
    if what not in _QUERIES:
        raise RedriveError("there is no list {!r}; there are {}".format(what, ", ".join(sorted(_QUERIES))))
    sql, defaults = _QUERIES[what]
    unknown = set(options) - set(defaults)
    if unknown:
        raise RedriveError("the list {!r} takes no {}".format(what, ", ".join(sorted(unknown))))
    found = _rows(connection, sql, dict(defaults, **options))
    return [{name: _value(name, value) for name, value in row.items()} for row in found]


def _value(name: str, value: Optional[Any]) -> Any:
    if name not in _JSON_COLUMNS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _rows(connection: sqlite3.Connection, sql: str, values: Any) -> Rows:
    cursor = connection.execute(sql, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor]
