"""The lists that can be read from a state file: the row of each list, its SQL and its options.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, Dict, Generic, Mapping, NamedTuple, Optional, Sequence, Type, TypeVar, Union

from ..json_types import Json, JsonObject

ROWS_MAX = 1000
TEXT_CHARACTERS = 300  # of a payload or an error, in lists of many

Option = Union[None, int, str]
Row = TypeVar("Row", bound=NamedTuple)


# --- The rows ------------------------------------------------------------------------------------------------------
# Columns as ``schema.sql`` explains them, in their order; instants in microseconds UTC.


class RunLine(NamedTuple):
    """A run with all columns of its row; ``counts``: state -> tasks in it."""

    run: JsonObject
    counts: Dict[str, int]


class ExecutorState(NamedTuple):
    """The state of the executor of a file. ``age_us``: since its last heartbeat; ``gone_at``: when it was last alive.

    ``run_id``: its current or last run; ``stopped``: it ended regularly.
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
    """One row of table ``breaker``, with parsed JSON."""

    downstream: str
    state: str
    reopens_at: Optional[int]
    window: Sequence[Sequence[int]]
    tokens: Optional[float]
    detail: JsonObject
    changed_at: int


class PageRow(NamedTuple):
    """One row of table ``page``, with parsed JSON; ``counted`` is the column ``count``."""

    id: int
    cause: str
    episode: int
    run_id: Optional[str]
    task: Optional[str]
    severity: str
    title: str
    body: JsonObject
    counted: int
    sent_count: int
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
    sent_count: int
    state: str
    created_at: int
    updated_at: int
    sent_at: Optional[int]
    send_error: Optional[str]
    snoozed_until: Optional[int]
    acked_by: Optional[str]


class QuarantineRow(NamedTuple):
    """One row of table ``quarantine``; long lists have only the start of its texts."""

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
    """The number of ``rows`` of one task, fingerprint and state; ``last_id`` is the latest."""

    name: str
    fingerprint: Optional[str]
    state: str
    rows: int
    first_at: int
    last_at: int
    last_id: int
    error: Optional[str]


class EventRow(NamedTuple):
    """One row of table ``event``, with parsed JSON."""

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
    data: JsonObject


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


class RunTaskRow(NamedTuple):
    """How a task of a run stands, and how long its latest attempt took; ``attempt``: how many were started."""

    name: str
    state: str
    attempt: int
    duration_us: Optional[int]


class DurationStats(NamedTuple):
    """How long successful attempts of a task took in earlier runs: microseconds, rounded to two digits.

    Half of them took at most ``p50_us``, 95 of 100 at most ``p95_us``.
    """

    p50_us: int
    p95_us: int
    attempts: int


class OutputSize(NamedTuple):
    """How much an attempt has printed, and how much of the output was dropped."""

    output_bytes: int
    output_dropped_bytes: int


# --- The lists -----------------------------------------------------------------------------------------------------


class Listing(Generic[Row]):
    """A list that can be queried by name. ``defaults``: the options of ``sql`` and their default values."""

    def __init__(self, name: str, row: Type[Row], sql: str, defaults: Optional[Mapping[str, Option]] = None) -> None:
        self.name = name
        self.row = row
        self.sql = sql.replace("{columns}", ", ".join(_SOURCES.get(field, field) for field in row._fields))
        self.defaults = dict(defaults or {})


#: Field -> its column, where the names differ: a tuple has a method ``count``.
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
#: Unresolved pages first.
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
#: A window of the rows of one group. NOT INDEXED, because rows found by an index would have to be sorted.
QUARANTINE_ROWS = Listing(
    "quarantine_rows",
    QuarantineRow,
    "SELECT id, run_id, name, attempt, generation, row_key, substr(payload, 1, :characters),"
    " substr(error, 1, :characters), fingerprint, state, at FROM quarantine NOT INDEXED"
    " WHERE run_id = :run_id AND name = :task AND fingerprint IS :fingerprint"
    " ORDER BY id LIMIT :limit OFFSET :skip",
    {"run_id": None, "task": None, "fingerprint": None, "characters": TEXT_CHARACTERS, "skip": 0, "limit": 100},
)
_LATEST = (
    "SELECT * FROM (SELECT * FROM event WHERE run_id %s AND (:task IS NULL OR task = :task)"
    " AND (:acts = 0 OR actor IS NOT NULL) AND (:before IS NULL OR seq < :before) ORDER BY seq DESC LIMIT :limit)"
)
#: The latest events of a run and of the file itself. Two ranges of an index: an OR would read the events of all runs.
JOURNAL = Listing(
    "journal",
    EventRow,
    "SELECT {columns} FROM ("
    + " UNION ALL ".join(_LATEST % run for run in ("= :run_id", "IS NULL"))
    + " ORDER BY seq DESC LIMIT :limit) ORDER BY seq",
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
RUN_TASKS = Listing(
    "run_tasks",
    RunTaskRow,
    "SELECT {columns} FROM task LEFT JOIN attempt USING (run_id, name, attempt) WHERE run_id = :run_id"
    " ORDER BY position, name LIMIT :limit",
    {"run_id": None, "limit": ROWS_MAX},
)
OUTPUT = Listing(
    "output",
    OutputSize,
    "SELECT {columns} FROM attempt WHERE run_id = :run_id AND name = :task AND attempt = :attempt",
    {"run_id": None, "task": None, "attempt": None},
)

LISTINGS: Dict[str, "Listing[Any]"] = {
    listing.name: listing
    for listing in (
        *(EXECUTORS, BREAKERS, PAGES, PAGE_HEADS, QUARANTINE, QUARANTINE_GROUPS, QUARANTINE_ROWS),
        *(JOURNAL, SCHEDULES, SLOTS, SLA, HISTORY, RUN_TASKS, OUTPUT),
    )
}
#: Fields that are JSON texts in the file -> the value of a damaged text.
JSON_FIELDS: Dict[str, Json] = {"data": {}, "body": {}, "window": [], "detail": {}}
