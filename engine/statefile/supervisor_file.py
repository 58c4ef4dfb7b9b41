"""The file of ``redrive serve``: the schedules of one user on this machine, and what operators decided about them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A state file decides which logical times have run, in the transaction that makes the run. This file says what is
planned, why a start failed, that a supervisor lives; and in its ledger what became of each logical time that was due:
why, and by whom. A schedule is its flow's name and state file, whatever file the flow is in. Supervisors and the
commands of operators write in short transactions. Instants are microseconds UTC.
"""

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote

from ..domain.states import RunState
from ..errors import CorruptFileError, StateFileError
from .lock_file import current_holder, last_holder, lock_path, served_by
from .paths import supervisor_path
from .processes import describe_hang, identity
from .reader import inode_of, stamp_of
from .start_requests import StartRequest, read_requests, write_request

HEARTBEAT_SECONDS = 5.0
DEAD_AFTER_US = 20 * 1000000  # a supervisor without a heartbeat for so long counts as dead
FOREVER = 253402300799000000  # paused until somebody ends the pause: the last second of the year 9999
BUSY_SECONDS = 5.0

SINGLE_MAX = 100  # logical times without a run that the ledger of a schedule has one by one, the latest
USUAL_RUNS = 20  # of whose durations the median is usual
ROWS_MAX = 200  # more of them are folded into ranges

VERSION = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS supervisor (
    id           TEXT PRIMARY KEY,
    pid          INTEGER NOT NULL,
    host         TEXT NOT NULL,
    sources      TEXT NOT NULL,           -- JSON: the folders and files that it serves
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    stopped_at   INTEGER                  -- it was stopped in order
);
CREATE TABLE IF NOT EXISTS schedule (
    id              INTEGER PRIMARY KEY,
    flow            TEXT NOT NULL,
    state_path      TEXT,                 -- NULL: its file was never readable
    target          TEXT NOT NULL,        -- FILE:OBJECT, as `redrive run` takes it; FILE if it was never readable
    file            TEXT NOT NULL,
    object          TEXT,
    supervisor_id   TEXT NOT NULL,
    spec            TEXT NOT NULL,        -- JSON of the flow without tasks: what holds while its file is broken
    expression      TEXT,
    timezone        TEXT,
    next_at         INTEGER,              -- when the next run is due
    next_logical    INTEGER,
    last_run_id     TEXT,
    last_state      TEXT,                 -- as lists print it: RUNNING, BLOCKED, SUCCESS, ...
    last_started_at INTEGER,
    usual_us        INTEGER,              -- median duration of its latest successful runs
    running_since   INTEGER,              -- an executor owns its state file
    late_since      INTEGER,              -- a run was due then and has not started
    edits           TEXT NOT NULL DEFAULT '',  -- JSON: schedules that its file had since an instant, and that come yet
    gone_since      INTEGER,              -- it is in no file that is served
    paused_until    INTEGER NOT NULL DEFAULT 0,
    pause_reason    TEXT NOT NULL DEFAULT '',
    paused_by       TEXT NOT NULL DEFAULT '',
    skip_logical    INTEGER,              -- this logical time will not run
    skipped_by      TEXT NOT NULL DEFAULT '',
    start_error     TEXT,                 -- why the latest start failed; NULL after one that succeeded
    failed_since    INTEGER,              -- the first of the starts that failed since the last good one
    failed_at       INTEGER,
    acknowledged_at INTEGER,              -- an operator has seen the failed start
    stuck_run_id    TEXT,                 -- a run that cannot be resumed, since when, and why
    stuck_since     INTEGER,
    stuck_error     TEXT,
    warning         TEXT,                 -- what an operator has to know; NULL: acknowledged, or nothing
    warned_at       INTEGER,
    ledger_until    INTEGER NOT NULL DEFAULT 0,  -- the ledger has all logical times up to here; 0: none yet
    seen_run        INTEGER NOT NULL DEFAULT 0,  -- the ledger knows the runs up to this row of the state file
    UNIQUE (flow, state_path)
);
CREATE TABLE IF NOT EXISTS ledger (       -- what became of logical times, the latest one by one, older ones in ranges
    schedule   INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    times      INTEGER NOT NULL,          -- how many between first and last; ranges of other fates may lie among them
    fate       TEXT NOT NULL CHECK (fate IN ('run', 'missed', 'skipped', 'dropped')),
    why        TEXT NOT NULL,
    who        TEXT NOT NULL,             -- user@host; empty: the supervisor
    decided_at INTEGER NOT NULL,
    listed     INTEGER NOT NULL           -- how many of them an operator can start or dismiss
);
CREATE INDEX IF NOT EXISTS ledger_times ON ledger (schedule, last);
CREATE INDEX IF NOT EXISTS ledger_listed ON ledger (schedule, first) WHERE listed > 0;
CREATE TABLE IF NOT EXISTS past_run (     -- how runs ended and how long they took, also of those that are pruned
    schedule     INTEGER NOT NULL,
    run_id       TEXT NOT NULL,
    logical_time INTEGER,
    started_at   INTEGER NOT NULL,
    state        TEXT NOT NULL,
    lasts_us     INTEGER NOT NULL,
    PRIMARY KEY (schedule, run_id)
);
CREATE TABLE IF NOT EXISTS predecessor (  -- the flows that a flow comes after
    schedule    INTEGER NOT NULL,
    flow        TEXT NOT NULL,
    waits       TEXT NOT NULL,            -- why the next run waits for it; empty: it does not
    stuck_since INTEGER,                  -- since when that needs a human; NULL: it does not
    newer       TEXT NOT NULL,            -- days of which it has run again, after the run of the schedule
    PRIMARY KEY (schedule, flow)
);
CREATE TABLE IF NOT EXISTS left_out (     -- files that mention flows, and are not served
    file          TEXT NOT NULL,
    supervisor_id TEXT NOT NULL,
    why           TEXT NOT NULL,
    PRIMARY KEY (file, supervisor_id)
);
PRAGMA user_version = 2;
"""


class Fate(object):
    """What became of a logical time."""

    RUN = "run"
    MISSED = "missed"  # nothing could start it in time
    SKIPPED = "skipped"  # an operator decided so before it was due
    DROPPED = "dropped"  # an operator decided so after it was due


class LedgerRow(NamedTuple):
    """What became of ``times`` logical times from ``first`` to ``last``; ``listed``: how many can be started.

    ``state``, ``lasts_us``: how its run ended, and how long it took, if that is known.
    """

    first: int
    last: int
    times: int
    fate: str
    why: str
    who: str
    decided_at: int
    listed: int
    state: str = ""
    lasts_us: Optional[int] = None


_LEDGER = LedgerRow._fields[:8]  # the others are in ``past_run``


class PastRun(NamedTuple):
    """A run that has ended, as long as it is known; ``lasts_us``: without its waits for a human."""

    run_id: str
    logical_time: Optional[int]
    started_at: int
    state: str
    lasts_us: int


class NightSummary(NamedTuple):
    """A day with runs of a flow. ``state``: the worst end; ``lasts_us``: the longest success, None without one.

    ``day``: by the clock of this host, as 2026-11-28.
    """

    state: str
    lasts_us: Optional[int] = None
    day: str = ""


class FlowBefore(NamedTuple):
    """A flow that another one comes after.

    Attributes:
        flow: its name.
        waits: why the next run waits for it, as "goes on (2026-11-28T02:00)"; empty: it does not.
        stuck_since: since when that needs a human; None: it does not.
        newer: days of which it has run again after the run of the other one, as "2026-11-28, 2026-11-29".
    """

    flow: str
    waits: str
    stuck_since: Optional[int]
    newer: str


class MissedRun(NamedTuple):
    """A logical time that was given up, and why: an operator can start or dismiss it."""

    logical_time: int
    due_at: int
    why: str = ""


class ServedSchedule(NamedTuple):
    """The schedule of one flow: what its supervisor wrote, what operators decided, and what belongs to it elsewhere.

    Attributes:
        id: of its row; 0: of a file that could never be read, and is not stored yet.
        target: ``FILE:OBJECT``; the file alone if it could never be read.
        flow: its name; the name of the file if it could never be read.
        state_path: of its runs; None if it could never be read.
        spec: JSON of the flow without tasks; ``edits``: schedules that its file had since. Lists do not read them.
        next_at: when the next run is due, its splay included; None: never, or unknown.
        next_logical: the logical time of that run.
        usual_us: the usual duration; None before the first success.
        running_since: an executor has owned the state file since then.
        late_since: when the oldest run was due that has not started; None: no run is late. A run that waits for an
            earlier run of its flow counts.
        gone_since: its flow is in no file that is served since then.
        start_error: why the latest start failed; None after a start that succeeded.
        failed_since: when the first start failed since the last one that succeeded.
        stuck_run_id: a run that its flow cannot resume any more; ``stuck_since``, ``stuck_error``.
        ledger_until: the ledger has all logical times up to here; ``seen_run``: and the runs up to this row.
        paused_until: no run starts before; 0: not paused; FOREVER: until somebody ends the pause.
        skip_logical: the logical time that an operator skips.
        acknowledged_at: when an operator acknowledged the failed start.
        warning: what an operator has to know and can acknowledge; ``warned_at``: since when.
        pid: of the supervisor.
        heartbeat_at: of the supervisor.
        stopped_at: when the supervisor was stopped in order; None: it lives, or it died.
        missed: the latest ones, the oldest first; ``missed_times``: how many there are in all.
        missed_since: when the first of all of them was due.
        requests: starts that were asked for and that no supervisor has taken.
        hang: what ails a supervisor that lives without a heartbeat, and what ends that; else empty.
        after: the flows that it comes after; then ``next_at`` is when the last of their runs is due.
        nights: the last days with runs, also of those that are pruned.
        left_out: why a file that mentions flows is not served: then it has no other fact.
    """

    id: int
    target: str
    file: str
    object: Optional[str]
    flow: str
    state_path: Optional[str] = None
    supervisor_id: str = ""
    spec: str = ""
    expression: Optional[str] = None
    timezone: Optional[str] = None
    next_at: Optional[int] = None
    next_logical: Optional[int] = None
    last_run_id: Optional[str] = None
    last_state: Optional[str] = None
    last_started_at: Optional[int] = None
    usual_us: Optional[int] = None
    running_since: Optional[int] = None
    late_since: Optional[int] = None
    edits: str = ""
    gone_since: Optional[int] = None
    start_error: Optional[str] = None
    failed_since: Optional[int] = None
    failed_at: Optional[int] = None
    stuck_run_id: Optional[str] = None
    stuck_since: Optional[int] = None
    stuck_error: Optional[str] = None
    ledger_until: int = 0
    seen_run: int = 0
    paused_until: int = 0
    pause_reason: str = ""
    paused_by: str = ""
    skip_logical: Optional[int] = None
    skipped_by: str = ""
    acknowledged_at: Optional[int] = None
    warning: Optional[str] = None
    warned_at: Optional[int] = None
    pid: Optional[int] = None
    host: Optional[str] = None
    heartbeat_at: int = 0
    stopped_at: Optional[int] = None
    missed: Tuple[MissedRun, ...] = ()
    missed_times: int = 0
    missed_since: int = 0
    requests: Tuple[StartRequest, ...] = ()
    hang: str = ""
    after: Tuple[FlowBefore, ...] = ()
    nights: Tuple[NightSummary, ...] = ()
    left_out: str = ""

    def is_paused(self, now_us: int) -> bool:
        return now_us < self.paused_until

    def due_at(self, now_us: int) -> Optional[int]:
        """When the first start that has not begun was due, or will be; None: no start comes."""
        coming = [at for at in (self.late_since, self.next_at) if at is not None and not self.is_paused(now_us)]
        return min(coming) if coming else None

    def late_from(self, now_us: int) -> Optional[int]:
        """Since when a start is late; None also while the schedule is paused."""
        return None if self.is_paused(now_us) else self.late_since

    def has_failed_start(self) -> bool:
        """Whether the latest start failed, and nobody has acknowledged that."""
        return self.start_error is not None and self.acknowledged_at is None


class SupervisorView(NamedTuple):
    """The schedules of a user on this machine, by name of the flow.

    Attributes:
        heartbeat_at: the latest heartbeat of a supervisor; None: there never was one.
        left_out: files that mention flows and are not served, with the reason.
    """

    path: str
    heartbeat_at: Optional[int]
    schedules: Tuple[ServedSchedule, ...]
    left_out: Tuple[Tuple[str, str], ...] = ()

    @property
    def rows(self) -> Tuple[ServedSchedule, ...]:
        """The schedules, and a row for each file that is left out: nothing is absent."""
        left_out = (
            ServedSchedule(0, file, file, None, os.path.basename(file), left_out=why) for file, why in self.left_out
        )
        return self.schedules + tuple(left_out)


def heartbeat_age_us(schedule: ServedSchedule, now_us: int) -> Optional[int]:
    """The age of the last heartbeat of a supervisor that should live; None: it lives, or was stopped in order.

    Not None is an alarm: nobody starts the runs of this schedule.
    """
    age_us = now_us - schedule.heartbeat_at
    return age_us if schedule.stopped_at is None and age_us > DEAD_AFTER_US else None


def is_served(schedule: ServedSchedule, now_us: int) -> bool:
    """Whether a living supervisor starts the runs of this schedule."""
    return schedule.stopped_at is None and heartbeat_age_us(schedule, now_us) is None


def steady(row: ServedSchedule, now_us: int) -> ServedSchedule:
    """The row without the heartbeats of a supervisor that lives: equal while nothing happens."""
    return row if heartbeat_age_us(row, now_us) is not None else row._replace(heartbeat_at=FOREVER)


def skips_next(row: ServedSchedule) -> bool:
    """Whether an operator skips a run that is still to come."""
    first = row.next_logical or (row.ledger_until or 0) + 1  # a flow after others knows no next one on most of a day
    return row.skip_logical is not None and row.skip_logical >= first


# --- Read ----------------------------------------------------------------------------------------------------------

#: What operators decide; what they read and acknowledge; what is not in table ``schedule``.
DECIDED = ("paused_until", "pause_reason", "paused_by", "skip_logical", "skipped_by")
_NOTICES = ("acknowledged_at", "warning", "warned_at")
_JOINED = ServedSchedule._fields[ServedSchedule._fields.index("pid") :]
_COLUMNS = tuple(name for name in ServedSchedule._fields if name not in _JOINED)
_STORED = "SELECT {} FROM schedule".format(", ".join(_COLUMNS))
_UNLISTED = {"spec": "''", "edits": "''", "heartbeat_at": "coalesce(heartbeat_at, 0)"}
_LISTED_COLUMNS = ", ".join(_UNLISTED.get(name, name) for name in _COLUMNS + _JOINED[:4])
_LISTS = (
    "SELECT schedule.{} FROM schedule LEFT JOIN supervisor ON supervisor.id = schedule.supervisor_id"
    " WHERE spec <> '' OR start_error IS NOT NULL ORDER BY flow, target"  # else it is about to be saved
).format(_LISTED_COLUMNS)
_LISTED = "SELECT schedule, {} FROM ledger WHERE listed > 0 ORDER BY schedule, first".format(", ".join(_LEDGER))
_OF_SCHEDULE = "SELECT {} FROM ledger WHERE schedule = ? ORDER BY first, last".format(", ".join(_LEDGER))


def read_schedules() -> SupervisorView:
    """Read all schedules; without a file there are none. Raises StateFileError if the file cannot be read."""
    path = supervisor_path()
    if not os.path.exists(path):
        return SupervisorView(path, None, ())
    with _reading(path) as connection:
        if connection is None:
            return SupervisorView(path, None, ())
        listed: Dict[int, List[LedgerRow]] = {}
        for row in connection.execute(_LISTED):
            listed.setdefault(row[0], []).append(LedgerRow(*row[1:]))
        rows = connection.execute(_LISTS).fetchall()
        requests = read_requests()
        before, nights = _read_before(connection), _read_nights(connection)
        schedules = tuple(
            _served(row, listed.get(row[0], ()), requests, before.get(row[0], ()))._replace(
                nights=tuple(nights.get(row[0], ()))
            )
            for row in rows
        )
        (heartbeat_at,) = connection.execute("SELECT max(heartbeat_at) FROM supervisor").fetchone()
        left_out = tuple(connection.execute("SELECT DISTINCT file, why FROM left_out ORDER BY file"))
    return SupervisorView(path, heartbeat_at, schedules, left_out)


#: The ends of runs, the worst last.
_WORST = tuple(map(str, (RunState.SUCCESS, RunState.RUNNING, RunState.ABANDONED, RunState.PARTIAL, RunState.FAILED)))
_DAY = "date(started_at / 1000000, 'unixepoch', 'localtime')"
#: Worst end, longest success and day, of a table of runs with their durations.
NIGHTS_SQL = (
    _DAY
    + " AS day, max(CASE state "
    + " ".join("WHEN '{}' THEN {}".format(state, rank) for rank, state in enumerate(_WORST))
    + " ELSE 0 END), max(CASE state WHEN 'SUCCESS' THEN {} END) FROM {} WHERE {} ORDER BY day"
)


def night_of(day: str, rank: int, lasts_us: Optional[int]) -> NightSummary:
    """A row of NIGHTS_SQL."""
    return NightSummary(_WORST[rank], lasts_us, day)


def with_known(found: Sequence[NightSummary], known: Sequence[NightSummary]) -> List[NightSummary]:
    """The nights of a state file, and those that it has no longer; of its oldest one some runs may be pruned."""
    if not found or not known:
        return list(found or known)
    first = found[0]
    same = [night for night in known if night.day == first.day]
    lasts = [night.lasts_us for night in [first] + same if night.lasts_us is not None]
    worst = max((night.state for night in [first] + same), key=_WORST.index)
    earlier = [night for night in known if night.day < first.day]
    return earlier + [NightSummary(worst, max(lasts) if lasts else None, first.day)] + list(found[1:])


def _read_nights(connection: sqlite3.Connection) -> Dict[int, List[NightSummary]]:
    found: Dict[int, List[NightSummary]] = {}
    sql = "SELECT schedule, " + NIGHTS_SQL.format("lasts_us", "past_run", "1 GROUP BY schedule, day")
    for row in connection.execute(sql):
        found.setdefault(row[0], []).append(night_of(*row[1:]))
    return found


def _read_before(connection: sqlite3.Connection) -> Dict[int, List[FlowBefore]]:
    """The flows that come before others, by schedule."""
    found: Dict[int, List[FlowBefore]] = {}
    for row in connection.execute("SELECT schedule, flow, waits, stuck_since, newer FROM predecessor ORDER BY rowid"):
        found.setdefault(row[0], []).append(FlowBefore(*row[1:]))
    return found


def _served(
    columns: Sequence[Any],
    listed: Sequence[LedgerRow],
    requests: Sequence[StartRequest],
    before: Sequence[FlowBefore],
) -> ServedSchedule:
    row = ServedSchedule(*columns)
    own = tuple(one for one in requests if (one.flow, one.state_path) == (row.flow, row.state_path))
    splay = 0 if row.next_at is None or row.next_logical is None else row.next_at - row.next_logical
    missed = tuple(MissedRun(one.first, one.first + splay, one.why) for one in listed if one.times == 1)
    since = min(one.first for one in listed) + splay if listed else 0
    times = sum(one.listed for one in listed)
    row = row._replace(missed=missed, missed_times=times, missed_since=since, requests=own, after=tuple(before))
    return _without_supervisor(row._replace(hang=_hang(row)))


def _without_supervisor(row: ServedSchedule) -> ServedSchedule:
    """What has become of the run that went on when the supervisor ended, which has not seen that."""
    if row.state_path is None or row.running_since is None or is_served(row, int(time.time() * 1000000)):
        return row
    if current_holder(row.state_path) is not None:
        return row
    return row._replace(running_since=None, last_state=_latest_state(row.state_path, row.flow))


def _hang(row: ServedSchedule) -> str:
    """A supervisor holds the lock of each state file that it serves for as long as it lives."""
    if row.state_path is None or is_served(row, int(time.time() * 1000000)):
        return ""
    holder = served_by(row.state_path)
    return "" if holder is None or holder.pid != row.pid else describe_hang(holder.pid)


_LATEST = "SELECT state, ended_at, blocked_since FROM run WHERE +dag_name = ? ORDER BY rowid DESC LIMIT 1"


def _latest_state(path: str, flow: str) -> str:
    """The state of the latest run of a flow that no executor runs, as lists print it; empty if it cannot be read."""
    try:
        with contextlib.closing(_connect(path, "ro")) as connection:
            state, ended_at, blocked_since = connection.execute(_LATEST, (flow,)).fetchone() or ("", 0, None)
    except sqlite3.Error:
        return ""
    if ended_at is not None or blocked_since is not None:
        return "BLOCKED" if ended_at is None else str(state)
    holder = last_holder(path)
    if holder is None and not os.access(lock_path(path), os.R_OK):
        return "NOT SEEN"
    return "CUT OFF" if holder is None or holder.released_at is None else "IDLE"


def read_ledger(id: int) -> List[LedgerRow]:
    """What became of the logical times of a schedule, the oldest first. Raises StateFileError."""
    with _reading(supervisor_path()) as connection:
        if connection is None:
            return []
        rows = [LedgerRow(*row) for row in connection.execute(_OF_SCHEDULE, (id,))]
        past = _past_runs(connection, id)
        return _with_ends(rows, {run.logical_time: run for run in past if run.logical_time is not None})


def _past_runs(connection: sqlite3.Connection, id: int) -> List[PastRun]:
    """The latest first."""
    sql = "SELECT {} FROM past_run WHERE schedule = ? ORDER BY started_at DESC".format(", ".join(PastRun._fields))
    return [PastRun(*row) for row in connection.execute(sql, (id,))]


def _with_ends(rows: Sequence[LedgerRow], ends: Dict[int, PastRun]) -> List[LedgerRow]:
    """The ledger with the runs whose end is known one by one, each taken out of its range."""
    found: List[LedgerRow] = []
    for row in rows:
        ended = [at for at in ends if row.fate == Fate.RUN and row.first <= at <= row.last]
        ended = sorted(ended)[-row.times :]
        singles = [(at, ends.pop(at)) for at in ended]
        found += [
            row._replace(first=at, last=at, times=1, state=run.state, lasts_us=run.lasts_us) for at, run in singles
        ]
        if row.times > len(singles):
            found.append(row._replace(times=row.times - len(singles)))
    return sorted(found, key=lambda row: (row.first, row.last))


def read_spec(id: int) -> str:
    """The flow of a schedule as JSON, without tasks; empty if its file could never be read. Raises StateFileError."""
    with _reading(supervisor_path()) as connection:
        row = (
            None
            if connection is None
            else connection.execute("SELECT spec FROM schedule WHERE id = ?", (id,)).fetchone()
        )
        return str(row[0]) if row else ""


def read_known() -> List[ServedSchedule]:
    """All schedules as they are stored, with their flows; without a file there are none. Raises StateFileError."""
    path = supervisor_path()
    if not os.path.exists(path):
        return []
    with _reading(path) as connection:
        return [] if connection is None else _stored(connection)


def _stored(
    connection: sqlite3.Connection, condition: str = "1", values: Tuple[object, ...] = ()
) -> List[ServedSchedule]:
    return [ServedSchedule(*row) for row in connection.execute("{} WHERE {}".format(_STORED, condition), values)]


@contextlib.contextmanager
def _reading(path: str) -> "Iterator[Optional[sqlite3.Connection]]":
    """One snapshot of the file; None: a supervisor is about to make its tables."""
    with _translated_errors(path), contextlib.closing(_connect(path, "ro")) as connection:
        connection.execute("BEGIN")
        version = _version(connection, path)
        if 0 < version < VERSION:
            raise StateFileError("{} is of an earlier redrive: start redrive serve again".format(path))
        yield connection if version else None


def _version(connection: sqlite3.Connection, path: str) -> int:
    """The version of the file; 0: it has no tables. Raises StateFileError for a later one."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise StateFileError("{} was written by a later version of redrive; upgrade redrive".format(path))
    return version


@contextlib.contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        is_damaged = type(error) is sqlite3.DatabaseError  # the others are of its subclasses
        kind = CorruptFileError if is_damaged else StateFileError
        what = "is damaged ({}): restore a copy or remove it" if is_damaged else "cannot be used: {}"
        raise kind("{} {}".format(path, what.format(error)), path=path) from error


def _connect(path: str, mode: str) -> sqlite3.Connection:
    uri = "file:{}?mode={}".format(quote(path), mode)
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


# --- Decisions of operators ----------------------------------------------------------------------------------------


def pause(ids: Sequence[int], until: int, reason: str = "", who: str = "") -> None:
    """Start no runs of these schedules before ``until``."""
    sql = "UPDATE schedule SET paused_until = ?, pause_reason = ?, paused_by = ? WHERE id = ?"
    _change([(sql, (until, reason, who, id)) for id in ids])


def unpause(ids: Sequence[int], now_us: int) -> None:
    """End a pause now."""
    _change([("UPDATE schedule SET paused_until = ? WHERE id = ?", (now_us, id)) for id in ids])


def skip(id: int, logical: Optional[int], who: str = "") -> None:
    """Do not run this logical time; None takes the skip back."""
    _change([("UPDATE schedule SET skip_logical = ?, skipped_by = ? WHERE id = ?", (logical, who, id))])


def acknowledge(id: int, now_us: int) -> None:
    """Record that an operator has seen why the latest start failed, and the warning."""
    _change(
        [
            ("UPDATE schedule SET acknowledged_at = ? WHERE id = ? AND start_error IS NOT NULL", (now_us, id)),
            ("UPDATE schedule SET warning = NULL, warned_at = NULL WHERE id = ?", (id,)),
        ]
    )


def dismiss(id: int, logical: Optional[Sequence[int]], now_us: int, who: str = "") -> None:
    """Drop missed runs; ``logical`` None: all that are listed."""
    sql = "UPDATE ledger SET fate = 'dropped', who = ?, decided_at = ?, listed = 0 WHERE schedule = ? AND listed > 0"
    values: Tuple[object, ...] = (who, now_us, id)
    if logical is None:
        _change([(sql, values)])
    else:
        _change([(sql + " AND first = ? AND times = 1", values + (at,)) for at in logical])


def remove(id: int) -> None:
    """Remove a schedule with its ledger; ``flow_times.forget`` also ends it in its state file."""
    of_one = [("DELETE FROM {} WHERE schedule = ?".format(table), (id,)) for table in _OF_ONE]
    _change(of_one + [("DELETE FROM schedule WHERE id = ?", (id,))])


def _change(statements: Sequence[Tuple[str, Tuple[object, ...]]]) -> None:
    path = supervisor_path()
    with _translated_errors(path), contextlib.closing(_connect(path, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            connection.execute(sql, values)
        connection.execute("COMMIT")


# --- The supervisor's side -----------------------------------------------------------------------------------------


_OF_ONE = ("ledger", "past_run", "predecessor")  # tables with rows of one schedule
_WRITTEN = tuple(name for name in _COLUMNS[1:] if name not in DECIDED + _NOTICES)
_SAVE = (
    "UPDATE schedule SET {}, acknowledged_at = CASE WHEN start_error IS ? THEN acknowledged_at END"
    " WHERE id = ? AND flow = ? AND state_path IS ?"
).format(", ".join("{} = ?".format(name) for name in _WRITTEN))


def _save(connection: sqlite3.Connection, row: ServedSchedule, id: int) -> bool:
    """Write a row, unless its flow has another name meanwhile, as another supervisor has read; say whether it was."""
    values = tuple(getattr(row, name) for name in _WRITTEN)
    own = (row.start_error, id, row.flow, row.state_path)
    return connection.execute(_SAVE, values + own).rowcount > 0


def _make(path: str) -> None:
    """Make the file whole beside its name, so that nobody reads a half of it, whatever is killed. Raises OSError."""
    made = "{}.{}.new".format(path, os.urandom(8).hex())
    try:
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_connect(made, "rw")) as connection:
            connection.executescript("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE;" + SCHEMA + "COMMIT;")
        with _alone_in(os.path.dirname(path)):
            if not os.path.exists(path):  # else another supervisor was faster
                for log in _logs_of(path):  # else SQLite would bring the changes of a removed file into this one
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(log)
                os.rename(made, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)


def _logs_of(path: str) -> Tuple[str, str]:
    return path + "-wal", path + "-shm"


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Exclude other supervisors that put a file into the folder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


#: The schedule that a place has for this supervisor, or for another one of the same folders and files.
_OF_PLACE = (
    "target = ? AND (state_path IS NULL OR supervisor_id = ? OR supervisor_id IN"
    " (SELECT id FROM supervisor WHERE sources = (SELECT sources FROM supervisor WHERE id = ?)))"
)


class SupervisorFile(object):
    """The file, open for the supervisor ``id``. Raises StateFileError, as every method."""

    def __init__(self, path: str, id: str) -> None:
        self.path = path
        self._id = id
        with _translated_errors(path):
            if not os.path.exists(path):
                _make(path)
            opened = inode_of(path)
            self._connection = _connect(path, "rw")
            self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        self._data_version = -1
        with self._transaction() as connection:
            convert(connection, path)
        with _translated_errors(path):
            self._inodes, self._bytes = (opened, *map(inode_of, _logs_of(path))), os.path.getsize(path)

    def close(self) -> None:
        self._connection.close()

    def explain_loss(self) -> str:
        """Why nobody else finds the file that is open here, as after the removal of its folder; empty: it is there.

        Raises CorruptFileError if it was cut short.
        """
        found, before = stamp_of(self.path), self._bytes
        if not found:
            return "{} was removed".format(self.path)
        if found[:2] != self._inodes[0]:
            return "another file is in the place of {}".format(self.path)
        if tuple(map(inode_of, _logs_of(self.path))) != self._inodes[1:]:
            return "a log of {} was removed".format(self.path)
        self._bytes = found[2]
        if self._bytes < before:
            raise CorruptFileError("{} was cut short: restore a copy or remove it".format(self.path), path=self.path)
        return ""

    def register(self, pid: int, host: str, sources: str, now_us: int) -> None:
        """Take the place of earlier supervisors of the same folders and files."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO supervisor VALUES (?,?,?,?,?,?,NULL)",
                (self._id, pid, host, sources, now_us, now_us),
            )
            rows = connection.execute("SELECT id, pid, sources FROM supervisor WHERE id <> ?", (self._id,))
            gone = [(other, own) for other, pid, own in rows.fetchall() if identity(pid)[0] is None]
            earlier = [(self._id, other) for other, own in gone if own == sources]
            connection.executemany("UPDATE schedule SET supervisor_id = ? WHERE supervisor_id = ?", earlier)
            idle = "DELETE FROM supervisor WHERE id = ? AND id NOT IN (SELECT supervisor_id FROM schedule)"
            connection.executemany(idle, [(other,) for other, _ in gone])
            connection.execute("DELETE FROM left_out WHERE supervisor_id NOT IN (SELECT id FROM supervisor)")
            connection.executemany("DELETE FROM left_out WHERE supervisor_id = ?", [(id,) for _, id in earlier])

    def beat(self, now_us: int) -> None:
        """Record that the supervisor lives."""
        self._write("UPDATE supervisor SET heartbeat_at = ? WHERE id = ?", now_us, self._id)

    def stop(self, now_us: int) -> None:
        """Record that the supervisor was stopped in order."""
        self._write("UPDATE supervisor SET stopped_at = ? WHERE id = ?", now_us, self._id)

    def stored(self) -> List[ServedSchedule]:
        """What this and earlier supervisors wrote, and operators decided."""
        with _translated_errors(self.path):
            return _stored(self._connection)

    def changed(self) -> Optional[Dict[int, ServedSchedule]]:
        """All schedules; None: nobody else has written since the last call."""
        with _translated_errors(self.path):
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            if version == self._data_version:
                return None
            self._data_version = version
            return {row.id: row for row in _stored(self._connection)}

    def claim(self, target: str, flow: str, state_path: str) -> ServedSchedule:
        """What is known of a flow: the schedule is its own, whichever file it is in.

        One that is new inherits that of the flow which this place had under another name.
        """
        own = "flow = ? AND state_path = ?", (flow, state_path)
        with self._transaction() as connection:
            if not _stored(connection, *own):
                known = _stored(connection, _OF_PLACE, (target, self._id, self._id))
                if known:
                    sql = "UPDATE schedule SET flow = ?, state_path = ?, ledger_until = 0, seen_run = 0 WHERE id = ?"
                    connection.execute(sql, (flow, state_path, known[0].id))
                else:
                    sql = "INSERT INTO schedule (flow, state_path, target, file, supervisor_id, spec)"
                    values = (flow, state_path, target, target, self._id)
                    connection.execute(sql + " VALUES (?,?,?,?,?,'')", values)
            return _stored(connection, *own)[0]

    def save(self, row: ServedSchedule, decided: Sequence[LedgerRow] = (), caught_up: Sequence[int] = ()) -> None:
        """Write what is known of a flow, but for what operators decide, unless it was forgotten or renamed.

        ``decided``: what became of logical times since the last call. ``caught_up``: earlier ones that have run now.
        """
        with self._transaction() as connection:
            if not _save(connection, row, row.id):
                return
            _add_to_ledger(connection, row.id, decided)
            _catch_up(connection, row.id, caught_up)
            connection.execute("DELETE FROM predecessor WHERE schedule = ?", (row.id,))
            rows = [(row.id,) + tuple(one) for one in row.after]
            connection.executemany("INSERT INTO predecessor VALUES (?,?,?,?,?)", rows)

    def note_runs(self, id: int, ended: Sequence[PastRun]) -> List[int]:
        """Remember how runs ended, unless the schedule was forgotten; return the durations of the latest successes."""
        with self._transaction() as connection:
            if not _stored(connection, "id = ?", (id,)):
                return [run.lasts_us for run in ended if run.state == RunState.SUCCESS][:USUAL_RUNS]
            values = [(id,) + tuple(run) for run in ended]
            connection.executemany("INSERT OR REPLACE INTO past_run VALUES (?,?,?,?,?,?)", values)
            connection.execute(_FORGET_RUNS, {"id": id, "singles": SINGLE_MAX})
            known = _past_runs(connection, id)
        return [run.lasts_us for run in known if run.state == RunState.SUCCESS][:USUAL_RUNS]

    def past_runs(self, id: int) -> List[PastRun]:
        """The runs that have ended, as far as they are known; the latest first."""
        with _translated_errors(self.path):
            return _past_runs(self._connection, id)

    def warn(self, id: int, warning: str, now_us: int) -> None:
        """Record what an operator has to know."""
        self._write("UPDATE schedule SET warning = ?, warned_at = ? WHERE id = ?", warning, now_us, id)

    def revert_after(self, id: int, after: int, runs: int, given_up: int, last: int) -> None:
        """Make what was decided of the times after ``after`` undecided again.

        ``runs``: so many of them have run, and are counted when their time has come; ``given_up``: so many have not,
        also of ranges that begin before. ``last``: the latest logical time that stays decided.
        """
        beyond = "FROM ledger WHERE schedule = ? AND fate <> 'run' AND last > ? AND first"
        with self._transaction() as connection:
            connection.execute("UPDATE schedule SET ledger_until = ? WHERE id = ?", (after, id))  # not a second time
            (alone,) = connection.execute("SELECT total(times) {} > ?".format(beyond), (id, after, after)).fetchone()
            connection.execute("DELETE {} > ?".format(beyond), (id, after, after))
            ranges = "SELECT rowid, times {} <= ? ORDER BY decided_at DESC".format(beyond)
            left = given_up - int(alone)
            for rowid, times in connection.execute(ranges, (id, after, after)).fetchall():
                gone = max(0, min(times, left))
                left -= gone
                cut = "times = times - ?, listed = max(0, listed - ?), last = max(first, ?) WHERE rowid = ?"
                connection.execute("UPDATE ledger SET " + cut, (gone, gone, last, rowid))
            latest = connection.execute(_LATEST_RUN, (id,)).fetchone()
            if runs and latest is not None:
                earlier = "UPDATE ledger SET times = times - ?, last = max(first, min(last, ?)) WHERE rowid = ?"
                connection.execute(earlier, (runs, last) + latest)
            connection.execute("DELETE FROM ledger WHERE schedule = ? AND times <= 0", (id,))

    def note_edits(self, id: int, edits: str) -> None:
        """Record at once that the file of a flow has another schedule."""
        self._write("UPDATE schedule SET edits = ? WHERE id = ?", edits, id)

    def save_broken(self, row: ServedSchedule) -> None:
        """Write what is known of a file that could never be read."""
        with self._transaction() as connection:
            known = connection.execute(
                "SELECT id FROM schedule WHERE target = ? AND state_path IS NULL", (row.target,)
            ).fetchone()
            sql = "INSERT INTO schedule (flow, target, file, supervisor_id, spec) VALUES (?,?,?,?,'')"
            values = row.flow, row.target, row.file, self._id
            _save(connection, row, known[0] if known else connection.execute(sql, values).lastrowid or 0)

    def remove_broken(self, target: str) -> None:
        """Remove a file that could never be read, and is gone or read now."""
        self._write("DELETE FROM schedule WHERE target = ? AND state_path IS NULL", target)

    def leave_out(self, files: Mapping[str, str]) -> None:
        """Record which files are not served, each with the reason."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM left_out WHERE supervisor_id = ?", (self._id,))
            rows = [(file, self._id, why) for file, why in files.items()]
            connection.executemany("INSERT OR REPLACE INTO left_out VALUES (?,?,?)", rows)

    def _write(self, sql: str, *values: object) -> None:
        """Write alone, at once."""
        with _translated_errors(self.path):
            self._connection.execute(sql, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _translated_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


# --- The ledger ----------------------------------------------------------------------------------------------------


_INSERT = "INSERT INTO ledger (schedule, {}) VALUES (?,?,?,?,?,?,?,?,?)".format(", ".join(_LEDGER))
#: Of older runs the longest of each end on each day stays, for fourteen days with runs.
_FORGET_RUNS = (
    "DELETE FROM past_run WHERE schedule = :id AND rowid NOT IN"
    " (SELECT rowid FROM past_run WHERE schedule = :id ORDER BY started_at DESC LIMIT :singles)"
    " AND (rowid NOT IN (SELECT longest FROM (SELECT rowid AS longest, max(lasts_us) FROM past_run"
    " WHERE schedule = :id GROUP BY {0}, state)) OR {0} NOT IN"
    " (SELECT DISTINCT {0} FROM past_run WHERE schedule = :id ORDER BY 1 DESC LIMIT 14))"
).format(_DAY)
_LATEST_RUN = "SELECT rowid FROM ledger WHERE schedule = ? AND fate = 'run' ORDER BY last DESC LIMIT 1"
_EXTEND = "UPDATE ledger SET last = max(last, ?), times = times + ?, decided_at = ? WHERE rowid = ?"
_SINGLES = "SELECT rowid FROM ledger WHERE schedule = ? AND times = 1 AND fate <> 'run' ORDER BY first DESC"
_FOLDED = (
    "SELECT schedule, min(first), max(last), sum(times), fate, why, who, max(decided_at), sum(listed) FROM ledger"
    " WHERE schedule = ? AND fate <> 'run' AND last < ? GROUP BY fate, why, who, listed > 0"
)


def _add_to_ledger(connection: sqlite3.Connection, id: int, decided: Sequence[LedgerRow]) -> None:
    for row in decided:
        latest = connection.execute(_LATEST_RUN, (id,)).fetchone() if row.fate == Fate.RUN else None
        if latest is None:
            connection.execute(_INSERT, (id,) + row[: len(_LEDGER)])
        else:
            connection.execute(_EXTEND, (row.last, row.times, row.decided_at) + latest)
    singles = connection.execute(_SINGLES, (id,)).fetchall() if decided else []
    if len(singles) > ROWS_MAX:
        _fold(connection, id, singles[SINGLE_MAX - 1][0])


def _fold(connection: sqlite3.Connection, id: int, rowid: int) -> None:
    """Fold what is older than the single row ``rowid`` into one range for each fate, reason and person."""
    (first,) = connection.execute("SELECT first FROM ledger WHERE rowid = ?", (rowid,)).fetchone()
    folded = connection.execute(_FOLDED, (id, first)).fetchall()
    connection.execute("DELETE FROM ledger WHERE schedule = ? AND fate <> 'run' AND last < ?", (id, first))
    connection.executemany(_INSERT, folded)


def _catch_up(connection: sqlite3.Connection, id: int, logical: Sequence[int]) -> None:
    """Logical times that were given up have run after all."""
    single = "UPDATE ledger SET fate = 'run', listed = 0 WHERE schedule = ? AND first = ? AND times = 1"
    ranged = (
        "UPDATE ledger SET times = times - 1, listed = max(0, listed - 1) WHERE rowid ="
        " (SELECT rowid FROM ledger WHERE schedule = ? AND fate <> 'run' AND ? BETWEEN first AND last AND times > 1"
        " ORDER BY listed DESC LIMIT 1)"
    )
    for at in logical:
        is_single = connection.execute(single, (id, at)).rowcount > 0
        if not is_single and connection.execute(ranged, (id, at)).rowcount > 0:
            _add_to_ledger(connection, id, [LedgerRow(at, at, 1, Fate.RUN, "", "", at, 0)])


# --- A file of version 1 --------------------------------------------------------------------------------------------


def convert(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in a transaction of the caller, also from those of version 1. Raises StateFileError."""
    version = _version(connection, path)
    if version == 1:
        _require_no_supervisor(connection, path)
        for table in ("schedule", "supervisor"):
            connection.execute("ALTER TABLE {0} RENAME TO {0}_1".format(table))
    for statement in SCHEMA.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    if version == 1:
        _ask_again(connection)
        for statement in _CONVERT:
            connection.execute(statement)


def _ask_again(connection: sqlite3.Connection) -> None:
    """Write a file for each start that was asked for in a row."""
    rows = connection.execute(
        "SELECT flow, state_path, logical_time, params FROM request JOIN schedule_1 AS old"
        " ON old.target = request.target WHERE state_path IS NOT NULL"
    )
    for flow, state_path, logical, params in rows.fetchall():
        write_request(flow, state_path, None, json.loads(params), "", logical)


def _require_no_supervisor(connection: sqlite3.Connection, path: str) -> None:
    beating = "SELECT pid, host FROM supervisor WHERE stopped_at IS NULL AND heartbeat_at > ?"
    rows = connection.execute(beating, (int(time.time() * 1000000) - DEAD_AFTER_US,)).fetchall()
    alive = [pid for pid, host in rows if host == os.uname().nodename and identity(pid)[0] is not None]
    if alive:
        sentence = "{} is used by a redrive serve of an earlier version (pid {}): stop it first"
        raise StateFileError(sentence.format(path, alive[0]))


_KEPT = (
    "flow, state_path, file, object, supervisor_id, spec, expression, timezone, next_at, next_logical, last_run_id,"
    " last_state, last_started_at, usual_us, running_since, late_since, skip_logical, start_error,"
    " failed_since, failed_at, acknowledged_at"
)
_CONVERT = (
    "INSERT INTO supervisor SELECT * FROM supervisor_1",
    # A flow has one row for each file that it was in; the latest says what holds, and a pause of any holds.
    "INSERT OR IGNORE INTO schedule (target, ledger_until, {0})"
    " SELECT file || coalesce(':' || object, ''), missed_until, {0} FROM schedule_1"
    " ORDER BY supervisor_id = '', coalesce(last_started_at, 0) DESC".format(_KEPT),
    "UPDATE schedule SET paused_until = coalesce((SELECT max(paused_until) FROM schedule_1 AS old"
    " WHERE old.flow = schedule.flow AND old.state_path IS schedule.state_path), 0)",
    "INSERT INTO ledger SELECT DISTINCT schedule.id, logical_time, logical_time, 1, 'missed', '', '', due_at, 1"
    " FROM missed JOIN schedule_1 AS old ON old.target = missed.target"
    " JOIN schedule ON schedule.flow = old.flow AND schedule.state_path IS old.state_path",
    "DROP TABLE missed",
    "DROP TABLE request",
    "DROP TABLE schedule_1",
    "DROP TABLE supervisor_1",
)
