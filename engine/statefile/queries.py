"""What people ask about a state file beside the tasks of a run: lists as JSON values, the same through every door.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import socket
import sqlite3
from typing import Any, Dict, Generic, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

from ..errors import RedriveError
from ..json_types import Json, JsonObject
from .processes import is_gone
from .reader import EVENT_COLUMNS

HOST = socket.gethostname()

ROWS_MAX = 1000
TEXT_CHARACTERS = 300  # of a payload or an error, in lists of many
FRESH_US = 5000000  # an executor touches its lock each second; so old, and it is not turning

Option = Union[None, int, str]
Row = TypeVar("Row", bound=NamedTuple)


# --- The rows ------------------------------------------------------------------------------------------------------
# Columns as ``schema.sql`` explains them, in their order; instants in microseconds UTC.


class RunLine(NamedTuple):
    """A run with all columns of its row; ``counts``: state -> tasks in it."""

    run: JsonObject
    counts: Dict[str, int]


class ExecutorState(NamedTuple):
    """How the executor of a file is. ``age_us``: since its last sign of life; ``gone_at``: when it was alive last.

    ``run_id``: the run that it has, or had; ``stopped``: it has left in order.
    """

    alive: bool
    age_us: Optional[int] = None
    gone_at: Optional[int] = None
    pid: Optional[int] = None
    run_id: Optional[str] = None
    stopped: bool = False


class ExecutorRow(NamedTuple):
    """One row of table ``executor``."""

    executor_id: str
    pid: int
    start_ticks: Optional[int]
    boot_id: Optional[str]
    host: str
    version: str
    started_at: int
    heartbeat_at: int
    stopped_at: Optional[int]
    run_id: Optional[str]


class BreakerRow(NamedTuple):
    """One row of table ``breaker``, its JSON read."""

    downstream: str
    state: str
    reopens_at: Optional[int]
    window: Sequence[Sequence[int]]
    tokens: Optional[float]
    detail: JsonObject
    changed_at: int


class PageRow(NamedTuple):
    """One row of table ``page``, its JSON read; ``counted`` is its column ``count``."""

    id: int
    cause: str
    episode: int
    run_id: Optional[str]
    task: Optional[str]
    severity: str
    title: str
    body: JsonObject
    counted: int
    told_count: int
    state: str
    rearmed: int
    created_at: int
    updated_at: int
    sent_at: Optional[int]
    send_error: Optional[str]
    snoozed_until: Optional[int]
    acked_by: Optional[str]


class PageHead(NamedTuple):
    """One row of table ``page`` without its body."""

    id: int
    cause: str
    episode: int
    run_id: Optional[str]
    task: Optional[str]
    severity: str
    title: str
    counted: int
    told_count: int
    state: str
    created_at: int
    updated_at: int
    sent_at: Optional[int]
    send_error: Optional[str]
    snoozed_until: Optional[int]
    acked_by: Optional[str]


class QuarantineRow(NamedTuple):
    """One row of table ``quarantine``; in lists of many with the beginnings of its texts."""

    id: int
    run_id: str
    name: str
    attempt: int
    generation: int
    row_key: str
    payload: Optional[str]
    error: Optional[str]
    fingerprint: Optional[str]
    state: str
    at: int


class QuarantineGroup(NamedTuple):
    """How many ``rows`` of one task failed alike and are in one state; ``last_id`` is the latest of them."""

    name: str
    fingerprint: Optional[str]
    state: str
    rows: int
    first_at: int
    last_at: int
    last_id: int
    error: Optional[str]


class EventRow(NamedTuple):
    """One row of table ``event``, its JSON read."""

    seq: int
    at: int
    kind: str
    run_id: Optional[str]
    task: Optional[str]
    old: Optional[str]
    new: Optional[str]
    attempt: Optional[int]
    generation: Optional[int]
    actor: Optional[str]
    reason: Optional[str]
    command_id: Optional[str]
    data: Dict[str, Any]


class ScheduleRow(NamedTuple):
    """One row of table ``schedule``."""

    dag_name: str
    expression: str
    timezone: str
    misfire: str
    flow_path: Optional[str]
    since: int
    decided_until: int
    next_at: Optional[int]
    next_local: Optional[str]


class SlotRow(NamedTuple):
    """One row of table ``slot``."""

    dag_name: str
    logical_time: int
    state: str
    run_id: Optional[str]
    decided_at: int


class SlaRow(NamedTuple):
    """One row of table ``sla``."""

    dag_name: str
    logical_time: int
    promise: str
    promised_at: int
    run_id: Optional[str]
    at: int


class PastAttemptRow(NamedTuple):
    """One attempt of a task in any run of the file."""

    run_id: str
    attempt: int
    generation: int
    started_at: int
    ended_at: Optional[int]
    duration_us: Optional[int]
    outcome: str
    error_type: Optional[str]
    error: Optional[str]
    fingerprint: Optional[str]
    fingerprint_loose: Optional[str]


class OutputSize(NamedTuple):
    """How much an attempt has printed, and how much of it was dropped."""

    output_bytes: int
    output_dropped_bytes: int


# --- The lists -----------------------------------------------------------------------------------------------------


class Listing(Generic[Row]):
    """What can be asked for by its name. ``defaults``: the options that fill the marks of ``sql``, and their values."""

    def __init__(self, name: str, row: Type[Row], sql: str, defaults: Optional[Mapping[str, Option]] = None) -> None:
        self.name = name
        self.row = row
        self.sql = sql.replace("{columns}", ", ".join(_SOURCES.get(field, field) for field in row._fields))
        self.defaults = dict(defaults or {})


#: Fields whose column is called otherwise: a tuple has a method ``count``.
_SOURCES = {"counted": "count AS counted"}

EXECUTORS = Listing(
    "executors",
    ExecutorRow,
    "SELECT {columns} FROM executor ORDER BY started_at DESC, rowid DESC LIMIT :limit",
    {"limit": ROWS_MAX},
)
BREAKERS = Listing("breakers", BreakerRow, "SELECT {columns} FROM breaker ORDER BY downstream")
PAGES = Listing(
    "pages",
    PageRow,
    "SELECT {columns} FROM page WHERE (:id IS NULL OR id = :id) ORDER BY updated_at DESC LIMIT :limit",
    {"id": None, "limit": ROWS_MAX},
)
#: Those that still concern somebody first.
PAGE_HEADS = Listing(
    "page_heads",
    PageHead,
    "SELECT {columns} FROM page ORDER BY state = 'resolved', updated_at DESC LIMIT :limit",
    {"limit": ROWS_MAX},
)
QUARANTINE = Listing(
    "quarantine",
    QuarantineRow,
    "SELECT {columns} FROM quarantine WHERE (:run_id IS NULL OR run_id = :run_id) AND (:task IS NULL OR name = :task)"
    " AND id > :after ORDER BY id LIMIT :limit",
    {"run_id": None, "task": None, "after": 0, "limit": ROWS_MAX},
)
QUARANTINE_GROUPS = Listing(
    "quarantine_groups",
    QuarantineGroup,
    "SELECT name, fingerprint, state, count(*), min(at), max(at), max(id), substr(max(error), 1, :characters)"
    " FROM quarantine WHERE run_id = :run_id GROUP BY name, fingerprint, state ORDER BY min(id) LIMIT :limit",
    {"run_id": None, "characters": TEXT_CHARACTERS, "limit": ROWS_MAX},
)
#: A window of the rows of one group; an index would be sorted first.
QUARANTINE_ROWS = Listing(
    "quarantine_rows",
    QuarantineRow,
    "SELECT id, run_id, name, attempt, generation, row_key, substr(payload, 1, :characters),"
    " substr(error, 1, :characters), fingerprint, state, at FROM quarantine NOT INDEXED"
    " WHERE run_id = :run_id AND name = :task AND fingerprint IS :fingerprint"
    " ORDER BY id LIMIT :limit OFFSET :skip",
    {"run_id": None, "task": None, "fingerprint": None, "characters": TEXT_CHARACTERS, "skip": 0, "limit": 100},
)
JOURNAL = Listing(
    "journal",
    EventRow,
    "SELECT {columns} FROM (SELECT * FROM event WHERE (:run_id IS NULL OR run_id = :run_id OR run_id IS NULL)"
    " AND (:task IS NULL OR task = :task) AND (:acts = 0 OR actor IS NOT NULL)"
    " AND (:before IS NULL OR seq < :before) ORDER BY seq DESC LIMIT :limit) ORDER BY seq",
    {"run_id": None, "task": None, "acts": 0, "before": None, "limit": ROWS_MAX},
)
SCHEDULES = Listing("schedules", ScheduleRow, "SELECT {columns} FROM schedule ORDER BY next_at")
SLOTS = Listing(
    "slots",
    SlotRow,
    "SELECT {columns} FROM slot WHERE (:flow IS NULL OR dag_name = :flow) AND logical_time > :after"
    " ORDER BY logical_time DESC LIMIT :limit",
    {"flow": None, "after": 0, "limit": ROWS_MAX},
)
SLA = Listing(
    "sla",
    SlaRow,
    "SELECT {columns} FROM sla WHERE (:flow IS NULL OR dag_name = :flow) ORDER BY promised_at DESC LIMIT :limit",
    {"flow": None, "limit": ROWS_MAX},
)
HISTORY = Listing(
    "history",
    PastAttemptRow,
    "SELECT {columns} FROM attempt WHERE name = :task ORDER BY started_at DESC LIMIT :limit",
    {"task": None, "limit": ROWS_MAX},
)
OUTPUT = Listing(
    "output",
    OutputSize,
    "SELECT {columns} FROM attempt WHERE run_id = :run_id AND name = :task AND attempt = :attempt",
    {"run_id": None, "task": None, "attempt": None},
)

_BY_NAME: Dict[str, "Listing[Any]"] = {
    listing.name: listing
    for listing in (
        *(EXECUTORS, BREAKERS, PAGES, PAGE_HEADS, QUARANTINE, QUARANTINE_GROUPS, QUARANTINE_ROWS),
        *(JOURNAL, SCHEDULES, SLOTS, SLA, HISTORY, OUTPUT),
    )
}
#: Fields that are JSON texts in the file -> what a text that is damaged counts as.
_JSON_FIELDS: Dict[str, Json] = {"data": {}, "body": {}, "window": [], "detail": {}}


# --- Reading -------------------------------------------------------------------------------------------------------


def query(connection: sqlite3.Connection, listing: Listing[Row], options: Mapping[str, Option]) -> List[Row]:
    """The rows of a list. Raises RedriveError for an option unknown."""
    unknown = set(options) - set(listing.defaults)
    if unknown:
        raise RedriveError("the list {!r} takes no {}".format(listing.name, ", ".join(sorted(unknown))))
    fields = listing.row._fields
    rows = connection.execute(listing.sql, dict(listing.defaults, **options))
    return [
        listing.row._make(
            _read(value, _JSON_FIELDS[field]) if field in _JSON_FIELDS else value
            for field, value in zip(fields, values)
        )
        for values in rows
    ]


def query_by_name(connection: sqlite3.Connection, what: str, options: Mapping[str, Option]) -> Sequence[Sequence[Json]]:
    """The rows of a list by its name. Raises RedriveError for a name or an option unknown."""
    if what not in _BY_NAME:
        raise RedriveError("there is no list {!r}; there are {}".format(what, ", ".join(sorted(_BY_NAME))))
    return query(connection, _BY_NAME[what], options)


def _read(text: str, otherwise: Json) -> Json:
    """The value of a JSON text, if it is of the same kind as ``otherwise``."""
    try:
        value: Json = json.loads(text)
    except (TypeError, ValueError):
        return otherwise
    return value if isinstance(value, type(otherwise)) else otherwise


def runs(connection: sqlite3.Connection) -> List[RunLine]:
    """Every run, latest first."""
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


def executor(connection: sqlite3.Connection, seen_at: Optional[int], attended: bool, now_us: int) -> ExecutorState:
    """How the executor of a file is, by the clock of its host.

    ``seen_at``: its last sign of life (``client.heartbeat_at``); ``attended``: its socket is known to be open.
    """
    latest = query(connection, EXECUTORS, {"limit": 1})
    if not latest or seen_at is None:
        return ExecutorState(attended)
    last = latest[0]
    stopped = last.stopped_at is not None
    ended = stopped or (last.host == HOST and is_gone(last.pid, last.start_ticks, last.boot_id))
    alive = attended or (not ended and now_us - seen_at < FRESH_US)
    gone_at = None if alive else last.stopped_at or max(seen_at, last.heartbeat_at)
    return ExecutorState(alive, max(0, now_us - seen_at), gone_at, last.pid, last.run_id, stopped)


_PAST = "SELECT " + EVENT_COLUMNS + " FROM event WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"


def past(connection: sqlite3.Connection, run_id: str, after: int, limit: int) -> List[Tuple[object, ...]]:
    """The first ``limit`` events of a run after ``after``, in order; ``data`` as the text that it is."""
    return connection.execute(_PAST, (run_id, after, limit)).fetchall()
