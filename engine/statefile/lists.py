"""The lists that can be read from a state file: the row of each list, its SQL, its options, its reading.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import re
import sqlite3
from enum import Enum
from typing import Any, Dict, Generic, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

from ..domain.events import EventRow, Json
from ..domain.rows import BreakerRow, PageRow, RunFacts, RunRow, RunSummary
from ..domain.states import CHANGED_AFTER_EFFECT, WITH_INSTANT
from ..errors import RedriveError
from .reader import EVENT_COLUMNS
from .snapshot import RUN_COLUMNS, read_snapshot, unknown_run
from .sql import IS_APPROVAL, in_list, run_columns

ROWS_MAX = 1000
TEXT_CHARACTERS = 300  # of a payload or an error, in lists of many

Option = Union[None, int, str]
Row = TypeVar("Row", bound=NamedTuple)


# --- The rows ------------------------------------------------------------------------------------------------------
# Columns as ``schema.sql`` explains them, in their order; instants in microseconds UTC.


class QuarantineRow(NamedTuple):
    """A row of table ``quarantine``; long lists have only the start of its texts."""

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


class GroupKey(NamedTuple):
    """Rows of one task that failed alike; ``fingerprint`` is the loose one, None where the task named no exception."""

    task: str
    fingerprint: Optional[str]


class QuarantineGroup(NamedTuple):
    """Rows of one task that failed alike: how many are in each state.

    ``last_id``: of the latest row that is held; without one, of all. ``error``: of one of these rows.
    """

    name: str
    fingerprint: Optional[str]
    first_at: int
    last_at: int
    last_id: int
    error: str
    held: int = 0
    provisional: int = 0
    requeued: int = 0
    dropped: int = 0
    discarded: int = 0
    resolved: int = 0

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.name, self.fingerprint)

    @property
    def counts(self) -> Dict[str, int]:
        """The number of rows by state."""
        return {state: getattr(self, state) for state in ROW_STATES}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def needs_human(self) -> bool:
        """Whether rows wait for a decision."""
        return self.held > 0

    @property
    def is_idle(self) -> bool:
        """Whether all rows were resolved, dropped or discarded."""
        return not (self.held or self.requeued or self.provisional)


ROW_STATES = ("held", "provisional", "requeued", "dropped", "discarded", "resolved")


class ScheduleRow(NamedTuple):
    """A row of table ``schedule``."""

    dag_name: str
    expression: str
    timezone: str
    misfire: str
    flow_path: Optional[str]
    since: int
    decided_until: int
    next_at: Optional[int]
    next_local: Optional[str]


class NeedKind(Enum):
    """The kinds of needs, the most urgent first."""

    UNREACHABLE = "unreachable host"
    UNREADABLE = "unreadable file"
    STORAGE = "unwritable file"
    SCHEDULER_DEAD = "dead scheduler"
    FAILED_START = "failed start"
    ASKED_START = "start asked for"
    STUCK = "run that cannot resume"
    WARNING = "schedule warning"
    AFTER = "flow before it"
    NOT_STARTED = "missed start"
    DEAD_LETTERS = "dead letters"
    APPROVAL = "approval"
    BLOCKED = "blocked run"
    LOST = "run without executor"
    LATE = "late run"
    FAILED_TASKS = "failed tasks"
    FAILED = "failed run"
    PARTIAL = "partial run"
    BREAKER = "open breaker"
    PAGER = "unsent pages"
    HELD_ROWS = "held rows"
    CHANGED_EFFECTS = "changed elements"


class NeedRow(NamedTuple):
    """A need of a human, as one of the lists has it: dead letters of one cause, an approval, rows, pages, starts.

    Attributes:
        kind: the value of a NeedKind.
        run_id: empty for pages and starts; ``flow``: for pages.
        since: when the oldest of them began, if that is known.
        counted: how many they are.
        task: the first one, with its ``error``; of pages the latest error.
        fingerprint: of the cause of dead letters.
    """

    kind: str
    run_id: str
    flow: str
    since: Optional[int]
    counted: int = 1
    task: str = ""
    error: str = ""
    fingerprint: Optional[str] = None


class PastAttemptRow(NamedTuple):
    """An attempt of a task in any run of the file."""

    run_id: str
    attempt: int
    started_at: int
    ended_at: Optional[int]
    duration_us: Optional[int]
    outcome: str
    error_type: Optional[str]
    fingerprint_loose: Optional[str]
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    max_rss_kb: Optional[int] = None


class RunTaskRow(NamedTuple):
    """The state of a task of a run, and the duration of its latest attempt, if that has ended.

    ``attempt``: how many were started.
    """

    name: str
    state: str
    attempt: int
    duration_us: Optional[int]

    @property
    def ok_us(self) -> Optional[int]:
        """The duration of the task, if it succeeded."""
        return self.duration_us if self.state == "SUCCESS" else None


class OutputSize(NamedTuple):
    """The bytes that an attempt has printed, those that were dropped, and the last piece of what is there."""

    output_bytes: int
    output_dropped_bytes: int
    last_id: Optional[int] = None


class RunName(NamedTuple):
    """The names of a run on a command line. ``day``: its logical day in the time zone of its schedule."""

    run_id: str
    dag_name: str
    state: str
    day: Optional[str]


# --- The lists -----------------------------------------------------------------------------------------------------


class Listing(Generic[Row]):
    """A list, which can be queried by name. ``defaults``: the options of ``sql`` and their default values."""

    def __init__(self, name: str, row: Type[Row], sql: str, defaults: Optional[Mapping[str, Option]] = None) -> None:
        self.name = name
        self.row = row
        self.sql = sql.replace("{columns}", _columns_of(row))
        self.defaults = dict(defaults or {})
        LISTINGS[name] = self


LISTINGS: Dict[str, "Listing[Any]"] = {}


def _columns_of(row: Type[Row], **sources: str) -> str:
    """SQL: the columns of a row. ``sources``: by field, what is read for it in place of the column of its name."""
    sources["counted"] = "count AS counted"  # a tuple has a method ``count``
    return ", ".join(sources.get(field, field) for field in row._fields)


BREAKERS = Listing("breakers", BreakerRow, "SELECT {columns} FROM breaker ORDER BY downstream")
PAGES = Listing(
    "pages",
    PageRow,
    "SELECT {columns} FROM page WHERE (:id IS NULL OR id = :id) ORDER BY updated_at DESC LIMIT :limit",
    {"id": None, "limit": ROWS_MAX},
)
_NO_BODY = "'{}'"
#: Unresolved pages first.
PAGE_HEADS = Listing(
    "page_heads",
    PageRow,
    f"SELECT {_columns_of(PageRow, body=_NO_BODY)} FROM page ORDER BY state = 'resolved', updated_at DESC LIMIT :limit",
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
    "SELECT name, fingerprint, min(at), max(at), coalesce(max(CASE state WHEN 'held' THEN id END), max(id)),"
    " substr(coalesce(max(CASE state WHEN 'held' THEN error END), max(error), ''), 1, :characters), "
    + ", ".join(f"sum(state = '{state}')" for state in ROW_STATES)
    + " FROM quarantine WHERE run_id = :run_id GROUP BY name, fingerprint ORDER BY min(id) LIMIT :limit",
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
#: The events of one kind of a run, the oldest first.
EVENTS_OF_KIND = Listing(
    "events_of_kind",
    EventRow,
    "SELECT {columns} FROM event WHERE run_id = :run_id AND kind = :kind ORDER BY seq LIMIT :limit",
    {"run_id": None, "kind": None, "limit": 100000},
)
#: The latest acts of operators in all runs, or the one with this id.
OPERATOR_ACTS = Listing(
    "operator_acts",
    EventRow,
    "SELECT * FROM (SELECT {columns} FROM event INDEXED BY idx_event_command WHERE command_id IS NOT NULL"
    " AND kind = 'operator' AND (:command_id IS NULL OR command_id = :command_id) ORDER BY seq DESC LIMIT :limit)"
    " ORDER BY seq",
    {"command_id": None, "limit": 100},
)
SCHEDULES = Listing("schedules", ScheduleRow, "SELECT {columns} FROM schedule ORDER BY next_at")
#: SQL: the run of a table is no backfill.
IS_NO_BACKFILL = "NOT (instr({0}.options, '\"backfill\":true') > 0 AND json_extract({0}.options, '$.backfill') IS 1)"
#: SQL: ``later`` is a run of the flow of ``run`` that says how the flow does since then. A backfill says it of
#: the run of its own logical time alone.
FOLLOWS_RUN = (
    "+later.dag_name = run.dag_name AND later.rowid > run.rowid"
    " AND coalesce(later.logical_time >= run.logical_time, 1) AND"
    " ({} OR coalesce(later.logical_time = run.logical_time, 0))"
).format(IS_NO_BACKFILL.format("later"))

SUCCESSES_MAX = 100  # that are counted after a failure
#: SQL: a run that has not ended, or whose bad end nobody has acknowledged.
UNACKNOWLEDGED = (
    "acknowledged_at IS NULL AND (ended_at IS NULL OR state IN ('FAILED','PARTIAL') OR ended_at > deadline_at)"
    " AND state <> 'ABANDONED'"
)
_OF_FAILED = "(SELECT {} FROM task WHERE task.run_id = run.run_id AND task.state = 'FAILED' ORDER BY name LIMIT 1)"
_COUNT = "(SELECT count(*) FROM task WHERE task.run_id = run.run_id AND {})"
_OPEN_COUNT = "CASE WHEN ended_at IS NULL THEN " + _COUNT + " ELSE 0 END"
#: A schedule writes the logical time into the parameter, in ISO 8601 with the offset of its time zone.
_DAY = (
    "CASE WHEN logical_time IS NOT NULL AND instr(params, {0}) > 0"
    " THEN substr(params, instr(params, {0}) + length({0}), 10) END"
).format('\'"logical_time": "\'')
RUN_NAMES = Listing(
    "run_names",
    RunName,
    "SELECT run_id, dag_name, state, " + _DAY + " FROM run ORDER BY rowid DESC LIMIT :limit",
    {"limit": -1},
)
#: SQL: 0 of a PARTIAL run if an operator has decided about all that makes it so.
IS_UNDECIDED = (
    "run.state <> 'PARTIAL' OR EXISTS (SELECT 1 FROM task WHERE task.run_id = run.run_id"
    " AND task.state <> 'SUCCESS' AND task.state <> 'SKIPPED')"
    " OR EXISTS (SELECT 1 FROM quarantine AS held WHERE held.run_id = run.run_id AND held.state = 'held')"
)
_ERROR = f"substr(error, 1, {TEXT_CHARACTERS})"
_IS_DEAD_LETTER = "task.state = 'DEAD_LETTER'"
_WORKS = "task.state IN ('READY', 'RUNNING')"
_WAITS = "task.state IN " + in_list(WITH_INSTANT)
_HAS_FAILED = "(task.state = 'FAILED' OR (task.state = 'CANCELLED' AND task.failure_mode = 'deadline'))"
_IS_ASKED = "task.state = 'READY' AND " + IS_APPROVAL
#: SQL: the columns of a RunFacts of ``run``, up to ``paused_by``.
RUN_FACTS = (
    "run_id, dag_name, started_at, ended_at, state, blocked_since, paused_since, deadline_at,"
    f" {_COUNT.format(_IS_DEAD_LETTER)}, {_OF_FAILED.format('name')}, {_OF_FAILED.format(_ERROR)},"
    " CASE WHEN ended_at IS NULL THEN 0 ELSE (SELECT count(*) FROM (SELECT 1 FROM run AS later"
    f" WHERE {FOLLOWS_RUN} AND later.state = 'SUCCESS' LIMIT {SUCCESSES_MAX})) END,"
    f" {_OPEN_COUNT.format(_WORKS)}, {_OPEN_COUNT.format(_WAITS)}, {_COUNT.format(_HAS_FAILED)},"
    f" {_OPEN_COUNT.format(_IS_ASKED)}, {IS_UNDECIDED},"
    f" waited_us, logical_time, substr(paused_by, 1, {TEXT_CHARACTERS})"
)
ATTENTION_RUNS = Listing(
    "attention_runs",
    RunFacts,
    f"SELECT {RUN_FACTS}, NULL FROM run INDEXED BY idx_run_attention WHERE {UNACKNOWLEDGED}"
    " ORDER BY rowid DESC LIMIT :limit",
    {"limit": ROWS_MAX},
)
#: SQL: ``cause_fingerprint`` in ``domain/states.py``, which is not sent with the first frame.
CAUSE = (
    "nullif(coalesce(nullif(fingerprint_loose, ''), nullif(fingerprint, ''), nullif(failure_fingerprint, '')), 'lost')"
)
DEAD_LETTER_GROUPS = Listing(
    "dead_letter_groups",
    NeedRow,
    f"SELECT '{NeedKind.DEAD_LETTERS.value}', run.run_id, dag_name, min(task.ended_at), count(*),"
    f" min(task.name), coalesce(substr(task.error, 1, :characters), ''), {CAUSE} AS cause"
    " FROM run INDEXED BY idx_run_attention CROSS JOIN task INDEXED BY idx_task_state"
    " ON task.run_id = run.run_id AND task.state = 'DEAD_LETTER' LEFT JOIN attempt"
    " ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = task.attempt"
    f" WHERE {UNACKNOWLEDGED.replace('state', 'run.state').replace('ended_at', 'run.ended_at')}"
    " GROUP BY run.run_id, cause ORDER BY run.rowid DESC, min(task.name) LIMIT :limit",
    {"characters": TEXT_CHARACTERS, "limit": ROWS_MAX},
)
CHANGED_EFFECTS = Listing(
    "changed_effects",
    NeedRow,
    f"SELECT '{NeedKind.CHANGED_EFFECTS.value}', run_id, dag_name, max(task.ended_at), count(*), min(name), '', NULL"
    " FROM task JOIN run USING (run_id)"
    f" WHERE stale = 1 AND notice IS NOT NULL AND notice = '{CHANGED_AFTER_EFFECT}' AND acknowledged_at IS NULL"
    " AND task.state = 'SUCCESS' GROUP BY run_id ORDER BY run_id LIMIT :limit",
    {"limit": ROWS_MAX},
)
#: When the latest run was over, or the latest logical time that had one: what was missed before is made up for.
_LATEST_RUN = (
    "max(coalesce((SELECT logical_time FROM slot AS ran WHERE ran.dag_name = schedule.dag_name AND ran.state = 'run'"
    f" ORDER BY logical_time DESC LIMIT 1), 0), coalesce((SELECT coalesce(ended_at, {2**62}) FROM run"
    " WHERE rowid = (SELECT max(rowid) FROM run WHERE run.dag_name = schedule.dag_name)), 0))"
)
_APPROVALS = (
    f"SELECT '{NeedKind.APPROVAL.value}', run.run_id, dag_name, task.started_at, 1, name, '', NULL"
    " FROM run INDEXED BY idx_run_attention CROSS JOIN task INDEXED BY idx_task_state ON task.run_id = run.run_id"
    f" AND {_IS_ASKED} WHERE run.ended_at IS NULL AND acknowledged_at IS NULL LIMIT :limit"
)
_HELD_ROWS = (
    f"SELECT '{NeedKind.HELD_ROWS.value}', run_id, dag_name, min(at), count(*), '', '', NULL"
    " FROM quarantine JOIN run USING (run_id) WHERE quarantine.state = 'held'"
    " GROUP BY run_id ORDER BY min(at) LIMIT :limit"
)
#: Whose sending is tried again, or was given up with its executor.
_UNSENT_PAGES = (
    f"SELECT '{NeedKind.PAGER.value}', '', '', min(created_at), count(*), '', coalesce((SELECT send_error FROM page"
    " WHERE state = 'open' AND send_error IS NOT NULL ORDER BY id DESC LIMIT 1), ''), NULL"
    " FROM page WHERE state = 'open' AND send_error IS NOT NULL GROUP BY state"
)
_MISSED_STARTS = (
    f"SELECT '{NeedKind.NOT_STARTED.value}', '', schedule.dag_name, min(logical_time), count(*), '', '', NULL"
    f" FROM schedule CROSS JOIN slot ON slot.dag_name = schedule.dag_name AND slot.logical_time > {_LATEST_RUN}"
    " AND slot.state = 'missed' GROUP BY schedule.dag_name"
)
_NEEDS = (DEAD_LETTER_GROUPS.sql, _APPROVALS, _HELD_ROWS, _UNSENT_PAGES, _MISSED_STARTS, CHANGED_EFFECTS.sql)
#: What the rows of a state file say needs a human, beside its runs and breakers.
NEED_ROWS = Listing(
    "need_rows",
    NeedRow,
    " UNION ALL ".join(f"SELECT * FROM ({sql})" for sql in _NEEDS),
    DEAD_LETTER_GROUPS.defaults,
)
#: Also a closed one that holds a task whose calls alone fail, since the first of them.
OPEN_BREAKERS = Listing(
    "open_breakers",
    BreakerRow,
    "SELECT {columns} FROM breaker WHERE state <> 'CLOSED' OR opened_at IS NOT NULL"
    " ORDER BY coalesce(opened_at, changed_at)",
)
#: SQL: how long an attempt ran, in microseconds; NULL: it has not ended. One that was lost has no duration of its own.
_LASTED = "coalesce(attempt.duration_us, max(attempt.ended_at - attempt.started_at, 0))"
HISTORY = Listing(
    "history",
    PastAttemptRow,
    f"SELECT {_columns_of(PastAttemptRow, duration_us=_LASTED)} FROM attempt WHERE name = :task"
    " ORDER BY started_at DESC LIMIT :limit",
    {"task": None, "limit": ROWS_MAX},
)
RUN_TASKS = Listing(
    "run_tasks",
    RunTaskRow,
    f"SELECT {_columns_of(RunTaskRow, duration_us=_LASTED)} FROM task LEFT JOIN attempt USING (run_id, name, attempt)"
    " WHERE run_id = :run_id ORDER BY position, name LIMIT :limit",
    {"run_id": None, "limit": ROWS_MAX},
)
OUTPUT = Listing(
    "output",
    OutputSize,
    "SELECT output_bytes, output_dropped_bytes,"
    " (SELECT max(id) FROM log WHERE run_id = :run_id AND name = :task AND attempt = :attempt)"
    " FROM attempt WHERE run_id = :run_id AND name = :task AND attempt = :attempt",
    {"run_id": None, "task": None, "attempt": None},
)

#: Fields that are JSON texts in the file -> the value of a damaged text.
JSON_FIELDS: Dict[str, Json] = {"body": {}, "window": [], "detail": {}}


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


_ASKED = (
    "SELECT run.run_id, count(*) FROM run CROSS JOIN task INDEXED BY idx_task_state"
    f" ON task.run_id = run.run_id AND {_IS_ASKED} WHERE run.ended_at IS NULL GROUP BY run.run_id"
)


def runs(connection: sqlite3.Connection, run_id: Optional[str] = None) -> List[RunSummary]:
    """All runs, latest first; or one."""
    only, values = ("", ()) if run_id is None else (" WHERE run_id = ?", (run_id,))
    counts: Dict[str, Dict[str, int]] = {}
    with read_snapshot(connection):
        sql = "SELECT run_id, state, count(*) FROM task" + only + " GROUP BY run_id, state"
        for one, state, count in connection.execute(sql, values):
            counts.setdefault(one, {})[state] = count
        asked: Dict[str, int] = dict(connection.execute(_ASKED).fetchall())
        sql = "SELECT " + RUN_COLUMNS + " FROM run" + only + " ORDER BY rowid DESC"
        found = [RunRow(*row) for row in connection.execute(sql, values)]
    return [RunSummary(run, counts.get(run.run_id, {}), asked.get(run.run_id, 0)) for run in found]


def dag_name_of(connection: sqlite3.Connection, run_id: str) -> str:
    """The flow of a run. Raises NotFoundError for a run that the file does not have."""
    row = run_columns(connection, run_id, "dag_name")
    if row is None:
        raise unknown_run(run_id)
    return str(row[0])


_PAST = "SELECT " + EVENT_COLUMNS + " FROM event WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"


def read_events(connection: sqlite3.Connection, run_id: str, after: int, limit: int) -> List[Tuple[object, ...]]:
    """The first ``limit`` events of a run after ``after``, in order; ``data`` as JSON text."""
    return connection.execute(_PAST, (run_id, after, limit)).fetchall()


# --- The run that a command line names -------------------------------------------------------------------------------

LATEST = "latest"
_BEFORE_LATEST = re.compile("-[0-9]+")


def runs_named(word: str, runs: Sequence[RunName]) -> Sequence[RunName]:
    """The ``runs``, the latest first, that ``word`` means: an id; -1, the run before the latest; or the beginning
    of an id or of a logical day."""
    for run in runs:
        if run.run_id == word:
            return [run]
    if word == LATEST:
        return runs[:1]
    if _BEFORE_LATEST.fullmatch(word):
        return runs[int(word[1:]) :][:1]
    return [run for run in runs if run.run_id.startswith(word) or (run.day or "").startswith(word)]
