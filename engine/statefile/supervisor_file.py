"""The file of ``redrive serve``: the schedules of one user on this machine, and what operators decided about them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A state file decides which logical times have run; this file says what is planned, why a start failed, and that a
supervisor lives. Supervisors and the commands of operators write it in short transactions. Instants are microseconds
UTC.
"""

import contextlib
import json
import os
import sqlite3
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote

from ..errors import StateFileError
from .paths import default_folder
from .processes import identity

HEARTBEAT_SECONDS = 5.0
DEAD_AFTER_US = 20 * 1000000  # a supervisor without a heartbeat for so long counts as dead
FOREVER = 253402300799000000  # paused until somebody ends the pause: the last second of the year 9999
BUSY_SECONDS = 5.0

VERSION = 1
SCHEMA = """
BEGIN IMMEDIATE;
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
    target          TEXT PRIMARY KEY,     -- FILE:OBJECT, as `redrive run` takes it; FILE if it was never readable
    file            TEXT NOT NULL,
    object          TEXT,
    flow            TEXT NOT NULL,
    supervisor_id   TEXT NOT NULL,        -- empty: its file is away; what was decided waits for it
    spec            TEXT NOT NULL,        -- JSON of the flow without tasks: what holds while its file is broken
    state_path      TEXT,
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
    paused_until    INTEGER NOT NULL DEFAULT 0,
    skip_logical    INTEGER,              -- this logical time will not run
    start_error     TEXT,                 -- why the latest start failed; NULL after one that succeeded
    failed_since    INTEGER,              -- the first of the starts that failed since the last good one
    failed_at       INTEGER,
    acknowledged_at INTEGER,              -- an operator has seen the failed start
    missed_until    INTEGER NOT NULL DEFAULT 0  -- runs that were given up until then are listed, or dismissed
);
CREATE TABLE IF NOT EXISTS missed (
    target       TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    PRIMARY KEY (target, logical_time)
);
CREATE TABLE IF NOT EXISTS request (      -- starts that operators asked for; a supervisor deletes what it has started
    target       TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    params       TEXT NOT NULL,           -- JSON
    PRIMARY KEY (target, logical_time)
);
PRAGMA user_version = 1;
COMMIT;
"""


class MissedRun(NamedTuple):
    """A logical time that was given up: an operator can start or dismiss it."""

    logical_time: int
    due_at: int


class ServedSchedule(NamedTuple):
    """The schedule of one flow.

    Attributes:
        target: ``FILE:OBJECT``; the file alone if it could never be read.
        flow: its name; the name of the file if it could never be read.
        state_path: of its runs; None if it could never be read.
        next_at: when the next run is due, its splay included; None: never, or unknown.
        next_logical: the logical time of that run.
        usual_us: the usual duration; None before the first success.
        running_since: an executor has owned the state file since then.
        late_since: when the oldest run was due that has not started; None: no run is late. A run that waits for an
            earlier run of its flow counts.
        paused_until: no run starts before; 0: not paused; FOREVER: until somebody ends the pause.
        skip_logical: the logical time that an operator skips.
        start_error: why the latest start failed; None after a start that succeeded.
        failed_since: when the first start failed since the last one that succeeded.
        acknowledged_at: when an operator acknowledged the failed start.
        missed: the latest ones, the oldest first.
        pid: of the supervisor.
        heartbeat_at: of the supervisor.
        stopped_at: when the supervisor was stopped in order; None: it lives, or it died.
    """

    target: str
    file: str
    object: Optional[str]
    flow: str
    state_path: Optional[str]
    expression: Optional[str]
    timezone: Optional[str]
    next_at: Optional[int]
    next_logical: Optional[int]
    last_run_id: Optional[str]
    last_state: Optional[str]
    last_started_at: Optional[int]
    usual_us: Optional[int]
    running_since: Optional[int]
    late_since: Optional[int]
    paused_until: int
    skip_logical: Optional[int]
    start_error: Optional[str]
    failed_since: Optional[int]
    failed_at: Optional[int]
    acknowledged_at: Optional[int]
    pid: Optional[int]
    host: Optional[str]
    heartbeat_at: int
    stopped_at: Optional[int]
    missed: Tuple[MissedRun, ...] = ()

    def is_paused(self, now_us: int) -> bool:
        return now_us < self.paused_until

    def has_failed_start(self) -> bool:
        """Whether the latest start failed, and nobody has acknowledged that."""
        return self.start_error is not None and self.acknowledged_at is None


class SupervisorView(NamedTuple):
    """The schedules of a user on this machine, by name of the flow.

    Attributes:
        heartbeat_at: the latest heartbeat of a supervisor; None: there never was one.
    """

    path: str
    heartbeat_at: Optional[int]
    schedules: Tuple[ServedSchedule, ...]


def supervisor_path() -> str:
    """The path of the file, in the default folder for state files."""
    return os.path.join(default_folder(), "schedules.supervisor")  # no state file: its suffix differs from theirs


def heartbeat_age_us(schedule: ServedSchedule, now_us: int) -> Optional[int]:
    """The age of the last heartbeat of a supervisor that should live; None: it lives, or was stopped in order.

    Not None is an alarm: nobody starts the runs of this schedule.
    """
    age_us = now_us - schedule.heartbeat_at
    return age_us if schedule.stopped_at is None and age_us > DEAD_AFTER_US else None


def is_served(schedule: ServedSchedule, now_us: int) -> bool:
    """Whether a living supervisor starts the runs of this schedule."""
    return schedule.stopped_at is None and heartbeat_age_us(schedule, now_us) is None


# --- Read ----------------------------------------------------------------------------------------------------------

_COLUMNS = tuple(name for name in ServedSchedule._fields if name != "missed")
_SCHEDULES = (
    "SELECT target, {} FROM schedule LEFT JOIN supervisor ON supervisor.id = schedule.supervisor_id"
    " WHERE supervisor_id <> '' ORDER BY flow, target"
).format(", ".join("coalesce(heartbeat_at, 0)" if name == "heartbeat_at" else name for name in _COLUMNS[1:]))


def read_schedules() -> SupervisorView:
    """Read all schedules; without a file there are none. Raises StateFileError if the file cannot be read."""
    path = supervisor_path()
    if not os.path.exists(path):
        return SupervisorView(path, None, ())
    with _translated_errors(path), contextlib.closing(_connect(path, "ro")) as connection:
        connection.execute("BEGIN")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:  # a supervisor is about to make its tables
            return SupervisorView(path, None, ())
        if version > VERSION:
            raise StateFileError("{} was written by a later version of redrive; upgrade redrive".format(path))
        missed = _read_missed(connection)
        rows = connection.execute(_SCHEDULES).fetchall()
        schedules = tuple(ServedSchedule._make(row + (tuple(missed.get(row[0], ())),)) for row in rows)
        (heartbeat_at,) = connection.execute("SELECT max(heartbeat_at) FROM supervisor").fetchone()
    return SupervisorView(path, heartbeat_at, schedules)


def read_spec(target: str) -> str:
    """The flow of a schedule as JSON, without tasks; empty if its file could never be read. Raises StateFileError."""
    path = supervisor_path()
    with _translated_errors(path), contextlib.closing(_connect(path, "ro")) as connection:
        row = connection.execute("SELECT spec FROM schedule WHERE target = ?", (target,)).fetchone()
    return str(row[0]) if row else ""


def _read_missed(connection: sqlite3.Connection) -> Dict[str, List[MissedRun]]:
    found: Dict[str, List[MissedRun]] = {}
    rows = connection.execute("SELECT target, logical_time, due_at FROM missed ORDER BY target, logical_time")
    for target, logical, due_at in rows:
        found.setdefault(target, []).append(MissedRun(logical, due_at))
    return found


@contextlib.contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StateFileError("{} cannot be used: {}".format(path, error)) from error


def _connect(path: str, mode: str) -> sqlite3.Connection:
    uri = "file:{}?mode={}".format(quote(path), mode)
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


# --- Decisions of operators ----------------------------------------------------------------------------------------


def pause(targets: Sequence[str], until: int) -> None:
    """Start no runs of these schedules before ``until``; 0 ends the pause."""
    _change([("UPDATE schedule SET paused_until = ? WHERE target = ?", (until, target)) for target in targets])


def skip(target: str, logical: Optional[int]) -> None:
    """Do not run this logical time; None takes the skip back."""
    _change([("UPDATE schedule SET skip_logical = ? WHERE target = ?", (logical, target))])


def acknowledge(target: str, now_us: int) -> None:
    """Record that an operator has seen why the latest start failed."""
    sql = "UPDATE schedule SET acknowledged_at = ? WHERE target = ? AND start_error IS NOT NULL"
    _change([(sql, (now_us, target))])


def request_start(target: str, logical: int, params: Mapping[str, str]) -> None:
    """Ask the supervisor to start the run of a logical time."""
    row = (target, logical, json.dumps(params))
    _change([("INSERT OR REPLACE INTO request VALUES (?,?,?)", row)])


def dismiss(target: str, logical: Sequence[int]) -> None:
    """Remove missed runs from the list."""
    sql = "DELETE FROM missed WHERE target = ? AND logical_time = ?"
    _change([(sql, (target, at)) for at in logical])


def _change(statements: Sequence[Tuple[str, Tuple[object, ...]]]) -> None:
    path = supervisor_path()
    with _translated_errors(path), contextlib.closing(_connect(path, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            connection.execute(sql, values)
        connection.execute("COMMIT")


# --- The supervisor's side -----------------------------------------------------------------------------------------


class Control(NamedTuple):
    """What operators decided about a schedule. ``requests``: logical times to start, with parameters as JSON."""

    paused_until: int = 0
    skip_logical: Optional[int] = None
    requests: Tuple[Tuple[int, str], ...] = ()


class StoredSchedule(NamedTuple):
    """What an earlier supervisor knew of a flow."""

    target: str
    file: str
    flow: str
    spec: str
    state_path: Optional[str]
    start_error: Optional[str]
    failed_since: Optional[int]
    failed_at: Optional[int]
    missed_until: int


class ScheduleRecord(NamedTuple):
    """What a supervisor writes about a flow: columns of table ``schedule``."""

    file: str
    object: Optional[str]
    flow: str
    supervisor_id: str
    spec: str = ""
    state_path: Optional[str] = None
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
    start_error: Optional[str] = None
    failed_since: Optional[int] = None
    failed_at: Optional[int] = None
    missed_until: int = 0


_SAVE = "UPDATE schedule SET {}, acknowledged_at = CASE WHEN start_error IS ? THEN acknowledged_at END WHERE target = ?"
_SAVE_ALL = _SAVE.format(", ".join("{} = ?".format(name) for name in ScheduleRecord._fields))


def _make(path: str) -> None:
    """Make the file whole beside its name, so that nobody reads a half of it, whatever is killed. Raises OSError."""
    made = "{}.{}.new".format(path, os.urandom(8).hex())
    try:
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_connect(made, "rw")) as connection:
            connection.executescript("PRAGMA journal_mode = WAL;" + SCHEMA)
        try:
            os.link(made, path)
        except OSError:  # another supervisor was faster, or the file system has no links
            if not os.path.exists(path):
                os.rename(made, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)


_OF_FLOW = "SELECT target FROM schedule WHERE flow = ? AND state_path = ? AND target <> ? AND supervisor_id IN ('', ?)"


def _key_away(flow: str, state_path: str) -> str:
    """In place of a target, while the flow is in no file."""
    return "away: {} in {}".format(flow, state_path)


class SupervisorFile(object):
    """The file, open for the supervisor ``id``. Raises StateFileError, as every method."""

    def __init__(self, path: str, id: str) -> None:
        self.path = path
        self._id = id
        with _translated_errors(path):
            if not os.path.exists(path):
                _make(path)
            self._connection = _connect(path, "rw")
            self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + SCHEMA)
        self._version = -1

    def close(self) -> None:
        self._connection.close()

    def register(self, pid: int, host: str, sources: str, now_us: int) -> None:
        """Take the place of earlier supervisors of the same folders and files."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO supervisor VALUES (?,?,?,?,?,?,NULL)", (self._id, pid, host, sources, now_us, now_us)
            )
            rows = connection.execute(
                "SELECT id, pid FROM supervisor WHERE sources = ? AND id <> ?", (sources, self._id)
            )
            earlier = [(self._id, other) for other, pid in rows.fetchall() if identity(pid)[0] is None]
            connection.executemany("UPDATE schedule SET supervisor_id = ? WHERE supervisor_id = ?", earlier)
            idle = "DELETE FROM supervisor WHERE id <> ? AND id NOT IN (SELECT supervisor_id FROM schedule)"
            connection.execute(idle, (self._id,))

    def beat(self, now_us: int) -> None:
        """Record that the supervisor lives."""
        with _translated_errors(self.path):
            self._connection.execute("UPDATE supervisor SET heartbeat_at = ? WHERE id = ?", (now_us, self._id))

    def stop(self, now_us: int) -> None:
        """Record that the supervisor was stopped in order."""
        with _translated_errors(self.path):
            self._connection.execute("UPDATE supervisor SET stopped_at = ? WHERE id = ?", (now_us, self._id))

    def stored(self) -> List[StoredSchedule]:
        """What this and earlier supervisors wrote."""
        with _translated_errors(self.path):
            rows = self._connection.execute("SELECT {} FROM schedule".format(", ".join(StoredSchedule._fields)))
            return [StoredSchedule(*row) for row in rows]

    def new_controls(self) -> Optional[Dict[str, Control]]:
        """What operators decided, by target; None: nobody else has written since the last call."""
        with _translated_errors(self.path):
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            return None if version == self._version else self._read_controls(version)

    def _read_controls(self, version: int) -> Dict[str, Control]:
        requests: Dict[str, List[Tuple[int, str]]] = {}
        for target, logical, params in self._connection.execute("SELECT * FROM request ORDER BY logical_time"):
            requests.setdefault(target, []).append((logical, params))
        rows = self._connection.execute("SELECT target, paused_until, skip_logical FROM schedule")
        controls = {target: Control(until, skip, tuple(requests.get(target, ()))) for target, until, skip in rows}
        self._version = version
        return controls

    def save(self, target: str, record: ScheduleRecord, given_up: Sequence[int], new: Sequence[MissedRun]) -> None:
        """Write what is known of a flow.

        ``given_up``: all logical times without a run that were given up; a listed one that is not among them has run.
        ``new``: those that are to be listed.
        """
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO schedule (target, file, flow, supervisor_id, spec) VALUES (?,?,?,?,'')",
                (target, record.file, record.flow, self._id),
            )
            connection.execute(_SAVE_ALL, record + (record.start_error, target))
            listed = {at for (at,) in connection.execute("SELECT logical_time FROM missed WHERE target = ?", (target,))}
            connection.executemany(
                "DELETE FROM missed WHERE target = ? AND logical_time = ?",
                [(target, at) for at in listed.difference(given_up)],
            )
            connection.executemany("INSERT OR IGNORE INTO missed VALUES (?,?,?)", [(target,) + run for run in new])

    def finish_request(self, target: str, logical: int) -> None:
        """Remove a request whose run has started, or cannot start."""
        with _translated_errors(self.path):
            self._connection.execute("DELETE FROM request WHERE target = ? AND logical_time = ?", (target, logical))

    def remove(self, target: str) -> None:
        """Remove a schedule that is no longer in its file. What was decided about its flow waits for ``claim``."""
        with self._transaction() as connection:
            row = connection.execute("SELECT flow, state_path FROM schedule WHERE target = ?", (target,)).fetchone()
            if row is not None and row[1] is not None:
                self._rename(target, _key_away(*row))
                connection.execute("UPDATE schedule SET supervisor_id = '' WHERE target = ?", (_key_away(*row),))
            else:
                self._delete(target)

    def claim(self, target: str, flow: str, state_path: str) -> Tuple[Optional[StoredSchedule], Control]:
        """What is known of a flow, and what operators decided about it: it is its own, whichever file it is in.

        The caller serves no other flow with this state file.
        """
        with self._transaction() as connection:
            row = connection.execute("SELECT flow, state_path FROM schedule WHERE target = ?", (target,)).fetchone()
            if row is not None and row[1] is not None and row[0] != flow:
                self._rename(target, _key_away(*row))  # another flow was in this file
                connection.execute("UPDATE schedule SET supervisor_id = '' WHERE target = ?", (_key_away(*row),))
                row = None
            earlier = connection.execute(_OF_FLOW, (flow, state_path, target, self._id)).fetchone()
            if row is None and earlier is not None:
                self._rename(earlier[0], target)
            controls = self._read_controls(-1)
        stored = {one.target: one for one in self.stored()}
        return stored.get(target), controls.get(target, Control())

    def _rename(self, target: str, new: str) -> None:
        self._delete(new)
        for table in ("schedule", "missed", "request"):
            self._connection.execute("UPDATE {} SET target = ? WHERE target = ?".format(table), (new, target))

    def _delete(self, target: str) -> None:
        for table in ("schedule", "missed", "request"):
            self._connection.execute("DELETE FROM {} WHERE target = ?".format(table), (target,))

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
