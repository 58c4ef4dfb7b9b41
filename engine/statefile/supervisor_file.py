"""The file of ``redrive serve``: what is read of the schedules of one user, and what operators decide about them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A state file decides which logical times have run, in the transaction that makes the run. This file says what is
planned, why a start failed, that a supervisor lives; and in its ledger what became of each logical time that was due:
why, and by whom. A schedule is its flow's name and state file, whatever file the flow is in. Supervisors and the
commands of operators write in short transactions: ``store/supervisor_writer.py``, and ``pause`` to ``remove``
here. Instants are microseconds UTC.
"""

import contextlib
import os
import sqlite3
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from ..domain.states import RunState
from ..errors import CorruptFileError, StateFileError
from .lock_file import current_holder, last_holder, lock_path, served_by
from .opening import format_of
from .paths import file_uri, is_full, supervisor_path
from .processes import describe_hang, is_stopped
from .start_requests import StartRequest, read_requests

HEARTBEAT_SECONDS = 5.0
DEAD_AFTER_US = 20 * 1000000  # a supervisor without a heartbeat for so long counts as dead
FOREVER = 253402300799000000  # paused until somebody ends the pause: the last second of the year 9999
BUSY_SECONDS = 5.0

VERSION = 2  # of the tables in ``store/supervisor.sql``

Row = TypeVar("Row")


class Fate(object):
    """The fates of a logical time."""

    RUN = "run"
    MISSED = "missed"  # nothing could start it in time
    SKIPPED = "skipped"  # an operator decided so before it was due
    DROPPED = "dropped"  # an operator decided so after it was due


class LedgerRow(NamedTuple):
    """The fate of ``times`` logical times from ``first`` to ``last``; ``listed``: how many can be started.

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


LEDGER_COLUMNS = LedgerRow._fields[:8]  # the others are in ``past_run``


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
    missed: Tuple[LedgerRow, ...] = ()
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
        """The instant at which the first start that has not begun was due, or will be; None: no start comes."""
        coming = [at for at in (self.late_since, self.next_at) if at is not None and not self.is_paused(now_us)]
        return min(coming) if coming else None

    def late_from(self, now_us: int) -> Optional[int]:
        """The instant since which a start is late; None also while the schedule is paused."""
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
    first = row.next_logical or row.ledger_until + 1  # a flow after others knows no next one on most of a day
    return row.skip_logical is not None and row.skip_logical >= first


# --- Read ----------------------------------------------------------------------------------------------------------

#: What is not in table ``schedule``.
_JOINED = ServedSchedule._fields[ServedSchedule._fields.index("pid") :]
SCHEDULE_COLUMNS = tuple(name for name in ServedSchedule._fields if name not in _JOINED)
_UNLISTED = {"spec": "''", "edits": "''", "heartbeat_at": "coalesce(heartbeat_at, 0)"}
_SCHEDULES = (
    (
        "SELECT schedule.{} FROM schedule LEFT JOIN supervisor ON supervisor.id = schedule.supervisor_id"
        " WHERE spec <> '' OR start_error IS NOT NULL ORDER BY flow, target"  # else it is about to be saved
    ).format(", ".join(_UNLISTED.get(name, name) for name in SCHEDULE_COLUMNS + _JOINED[:4]))
)
_LISTED = "SELECT schedule, {} FROM ledger WHERE listed > 0 ORDER BY schedule, first".format(", ".join(LEDGER_COLUMNS))
_BEFORE = "SELECT schedule, {} FROM predecessor ORDER BY rowid".format(", ".join(FlowBefore._fields))


def read_schedules() -> SupervisorView:
    """Read all schedules; without a file there are none. Raises StateFileError if the file cannot be read."""
    with _reading() as connection:
        if connection is None:
            return SupervisorView(supervisor_path(), None, ())
        rows = [ServedSchedule(*row) for row in connection.execute(_SCHEDULES)]
        listed = _by_schedule(connection, _LISTED, LedgerRow)
        before = _by_schedule(connection, _BEFORE, FlowBefore)
        nights = _by_schedule(connection, _NIGHTS, night_of)
        (heartbeat_at,) = connection.execute("SELECT max(heartbeat_at) FROM supervisor").fetchone()
        left_out = tuple(connection.execute("SELECT DISTINCT file, why FROM left_out ORDER BY file"))
    requests, schedules = read_requests(), []
    for row in rows:
        own = [one for one in requests if (one.flow, one.state_path) == (row.flow, row.state_path)]
        row = _with_missed(row, listed.get(row.id, ()))
        after, of_nights = tuple(before.get(row.id, ())), tuple(nights.get(row.id, ()))
        schedules.append(_without_supervisor(row._replace(requests=tuple(own), after=after, nights=of_nights)))
    return SupervisorView(supervisor_path(), heartbeat_at, tuple(schedules), left_out)


def read_supervised(connection: sqlite3.Connection) -> List[ServedSchedule]:
    """The schedules whose runs the state file of a connection holds; none if the supervisor's file cannot be read."""
    _, _, path = connection.execute("PRAGMA database_list").fetchone()
    try:
        known = read_schedules().schedules
    except StateFileError:
        return []
    return [row for row in known if row.state_path is not None and os.path.realpath(row.state_path) == path]


def _by_schedule(connection: sqlite3.Connection, sql: str, make: Callable[..., Row]) -> Dict[int, List[Row]]:
    """Rows by the id of their schedule, which comes first in each."""
    found: Dict[int, List[Row]] = {}
    for id, *columns in connection.execute(sql):
        found.setdefault(id, []).append(make(*columns))
    return found


#: The ends of runs, the worst last.
_WORST = tuple(map(str, (RunState.SUCCESS, RunState.RUNNING, RunState.ABANDONED, RunState.PARTIAL, RunState.FAILED)))
DAY = "date(started_at / 1000000, 'unixepoch', 'localtime')"
#: Worst end, longest success and day, of a table of runs with their durations.
NIGHTS_SQL = (
    DAY
    + " AS day, max(CASE state "
    + " ".join(f"WHEN '{state}' THEN {rank}" for rank, state in enumerate(_WORST))
    + " ELSE 0 END), max(CASE state WHEN 'SUCCESS' THEN {} END) FROM {} WHERE {} ORDER BY day"
)


_NIGHTS = "SELECT schedule, " + NIGHTS_SQL.format("lasts_us", "past_run", "1 GROUP BY schedule, day")


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


def _with_missed(row: ServedSchedule, listed: Sequence[LedgerRow]) -> ServedSchedule:
    splay = 0 if row.next_at is None or row.next_logical is None else row.next_at - row.next_logical
    missed = tuple(one for one in listed if one.times == 1)
    since = min(one.first for one in listed) + splay if listed else 0
    times = sum(one.listed for one in listed)
    return row._replace(missed=missed, missed_times=times, missed_since=since)


def _without_supervisor(row: ServedSchedule) -> ServedSchedule:
    """Join what a supervisor that has died or hangs does not write: that it hangs, and what became of the run that went
    on when it ended."""
    path = row.state_path
    if path is None or is_served(row, int(time.time() * 1000000)):
        return row
    holder = served_by(path)  # it holds this lock for as long as it lives
    if holder is not None and holder.pid == row.pid:
        row = row._replace(hang=_describe_silence(holder.pid))
    if row.running_since is None or current_holder(path) is not None:
        return row
    return row._replace(running_since=None, last_state=_latest_state(path, row.flow))


def _describe_silence(pid: int) -> str:
    """Say why a living supervisor gives no sign of life, and what ends that."""
    path = supervisor_path()
    if is_full(path) and not is_stopped(pid):
        return "(pid {}) cannot write {}, whose disk is full: free some space".format(pid, path)
    return describe_hang(pid)


_LATEST = "SELECT state, ended_at, blocked_since FROM run WHERE +dag_name = ? ORDER BY rowid DESC LIMIT 1"


def _latest_state(path: str, flow: str) -> str:
    """The state of the latest run of a flow that no executor runs, as lists print it; empty if it cannot be read."""
    try:
        with contextlib.closing(connect(path, "ro")) as connection:
            state, ended_at, blocked_since = connection.execute(_LATEST, (flow,)).fetchone() or ("", 0, None)
    except sqlite3.Error:
        return ""
    if ended_at is not None or blocked_since is not None:
        return "BLOCKED" if ended_at is None else str(state)
    holder = last_holder(path)
    if holder is None and not os.access(lock_path(path), os.R_OK):
        return "NOT SEEN"
    return "CUT OFF" if holder is None or holder.released_at is None else "IDLE"


_LEDGER = "SELECT {} FROM ledger WHERE schedule = ? ORDER BY first, last".format(", ".join(LEDGER_COLUMNS))


def read_ledger(id: int) -> List[LedgerRow]:
    """Read the ledger of a schedule, the oldest logical times first. Raises StateFileError."""
    with _reading() as connection:
        if connection is None:
            return []
        rows = [LedgerRow(*row) for row in connection.execute(_LEDGER, (id,))]
        past = past_runs(connection, id)
        return _with_ends(rows, {run.logical_time: run for run in past if run.logical_time is not None})


def past_runs(connection: sqlite3.Connection, id: int) -> List[PastRun]:
    """The runs that have ended, as far as they are known, the latest first."""
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
    with _reading() as connection:
        rows = [] if connection is None else stored(connection, "id = ?", (id,))
        return rows[0].spec if rows else ""


def read_known() -> List[ServedSchedule]:
    """All schedules as they are stored, with their flows; without a file there are none. Raises StateFileError."""
    with _reading() as connection:
        return [] if connection is None else stored(connection)


def stored(
    connection: sqlite3.Connection, condition: str = "1", values: Tuple[object, ...] = ()
) -> List[ServedSchedule]:
    """The rows of table ``schedule``."""
    sql = "SELECT {} FROM schedule WHERE {}".format(", ".join(SCHEDULE_COLUMNS), condition)
    return [ServedSchedule(*row) for row in connection.execute(sql, values)]


@contextlib.contextmanager
def _reading() -> "Iterator[Optional[sqlite3.Connection]]":
    """One snapshot of the file; None: there is none, or a supervisor is about to make its tables."""
    path = supervisor_path()
    if not os.path.exists(path):
        yield None
        return
    with translated_errors(path), contextlib.closing(connect(path, "ro")) as connection:
        connection.execute("BEGIN")
        version = version_of(connection, path)
        if 0 < version < VERSION:
            raise StateFileError(f"{path} is of an earlier redrive: start redrive serve again")
        yield connection if version else None


def version_of(connection: sqlite3.Connection, path: str) -> int:
    """The version of the file; 0: it has no tables. Raises StateFileError for a later one."""
    version = format_of(connection)
    if version > VERSION:
        raise StateFileError(f"{path} was written by a later version of redrive; upgrade redrive")
    return version


@contextlib.contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Raise what goes wrong with the file as a StateFileError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        is_damaged = type(error) is sqlite3.DatabaseError  # the others are of its subclasses
        kind = CorruptFileError if is_damaged else StateFileError
        what = "is damaged ({}): restore a copy or remove it" if is_damaged else "cannot be used: {}"
        raise kind(f"{path} {what.format(error)}", path=path) from error


def connect(path: str, mode: str) -> sqlite3.Connection:
    """Open the file without beginning a transaction. ``mode``: of a URI of SQLite."""
    return sqlite3.connect(file_uri(path, f"mode={mode}"), uri=True, timeout=BUSY_SECONDS, isolation_level=None)


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
    tables = ("ledger", "past_run", "predecessor")
    of_one = [(f"DELETE FROM {table} WHERE schedule = ?", (id,)) for table in tables]
    _change(of_one + [("DELETE FROM schedule WHERE id = ?", (id,))])


def _change(statements: Sequence[Tuple[str, Tuple[object, ...]]]) -> None:
    path = supervisor_path()
    with translated_errors(path), contextlib.closing(connect(path, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            connection.execute(sql, values)
        connection.execute("COMMIT")
