"""The file of ``redrive serve`` as its supervisor writes it: its life, its schedules, and the ledger of each.

``statefile/supervisor_file.py`` has the rows of the file, and what others read and decide.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence

from ..domain.states import RunState
from ..errors import CorruptFileError, StateFileError
from ..statefile.processes import identity
from ..statefile.reader import inode_of, stamp_of
from ..statefile.start_requests import write_request
from ..statefile.supervisor_file import (
    DAY,
    DEAD_AFTER_US,
    LEDGER_COLUMNS,
    SCHEDULE_COLUMNS,
    Fate,
    LedgerRow,
    PastRun,
    ServedSchedule,
    connect,
    past_runs,
    stored,
    translated_errors,
    version_of,
)

SINGLE_MAX = 100  # logical times without a run that the ledger of a schedule has one by one, the latest
USUAL_RUNS = 20  # of whose durations the median is usual
ROWS_MAX = 200  # more of them are folded into ranges

#: What operators decide; what they read and acknowledge.
DECIDED = ("paused_until", "pause_reason", "paused_by", "skip_logical", "skipped_by")
_NOTICES = ("acknowledged_at", "warning", "warned_at")

_WRITTEN = tuple(name for name in SCHEDULE_COLUMNS[1:] if name not in DECIDED + _NOTICES)
_SAVE = (
    "UPDATE schedule SET {}, acknowledged_at = CASE WHEN start_error IS ? THEN acknowledged_at END"
    " WHERE id = ? AND flow = ? AND state_path IS ?"
).format(", ".join(f"{name} = ?" for name in _WRITTEN))


def _save(connection: sqlite3.Connection, row: ServedSchedule, id: int) -> bool:
    """Write a row, unless its flow has another name meanwhile, as another supervisor has read; say whether it was."""
    values = tuple(getattr(row, name) for name in _WRITTEN)
    own = (row.start_error, id, row.flow, row.state_path)
    return connection.execute(_SAVE, values + own).rowcount > 0


def _tables() -> str:
    with open(os.path.join(os.path.dirname(__file__), "supervisor.sql"), encoding="utf-8") as file:
        return file.read()


def _make(path: str) -> None:
    """Make the file whole beside its name, so that nobody reads a half of it, whatever is killed. Raises OSError."""
    made = f"{path}.{os.urandom(8).hex()}.new"
    try:
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(connect(made, "rw")) as connection:
            connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {_tables()} COMMIT;")
        with _alone_in(os.path.dirname(path)):
            if not os.path.exists(path):  # else another supervisor was faster
                for log in _logs_of(path):  # else SQLite would bring the changes of a removed file into this one
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(log)
                os.rename(made, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)


def _logs_of(path: str) -> tuple[str, str]:
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


class SupervisorFile:
    """The file, open for the supervisor ``id``. Raises StateFileError, as every method."""

    def __init__(self, path: str, id: str) -> None:
        self.path = path
        self._id = id
        with translated_errors(path):
            if not os.path.exists(path):
                _make(path)
            opened = inode_of(path)
            self._connection = connect(path, "rw")
            self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        self._data_version = -1
        with self._transaction() as connection:
            _convert(connection, path)
        with translated_errors(path):
            self._inodes, self._bytes = (opened, *map(inode_of, _logs_of(path))), os.path.getsize(path)

    def close(self) -> None:
        self._connection.close()

    def explain_loss(self) -> str:
        """Why nobody else finds the file that is open here, as after the removal of its folder; empty: it is there.

        Raises CorruptFileError if it was cut short.
        """
        found = stamp_of(self.path)
        if not found:
            return f"{self.path} was removed"
        if found[:2] != self._inodes[0]:
            return f"another file is in the place of {self.path}"
        if tuple(map(inode_of, _logs_of(self.path))) != self._inodes[1:]:
            return f"a log of {self.path} was removed"
        if found[2] < self._bytes:  # of each call: a step of a flow may be the first that notices
            raise CorruptFileError(f"{self.path} was cut short: restore a copy or remove it", path=self.path)
        self._bytes = found[2]
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

    def stored(self) -> list[ServedSchedule]:
        """Return what this and earlier supervisors wrote, and operators decided."""
        with translated_errors(self.path):
            return stored(self._connection)

    def changed(self) -> dict[int, ServedSchedule] | None:
        """All schedules; None: nobody else has written since the last call."""
        with translated_errors(self.path):
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            if version == self._data_version:
                return None
            self._data_version = version
            return {row.id: row for row in stored(self._connection)}

    def claim(self, target: str, flow: str, state_path: str) -> ServedSchedule:
        """Return what is known of a flow: the schedule is its own, whichever file it is in.

        One that is new inherits that of the flow which this place had under another name.
        """
        own = "flow = ? AND state_path = ?", (flow, state_path)
        with self._transaction() as connection:
            if not stored(connection, *own):
                known = stored(connection, _OF_PLACE, (target, self._id, self._id))
                if known:
                    sql = "UPDATE schedule SET flow = ?, state_path = ?, ledger_until = 0, seen_run = 0 WHERE id = ?"
                    connection.execute(sql, (flow, state_path, known[0].id))
                else:
                    sql = "INSERT INTO schedule (flow, state_path, target, file, supervisor_id, spec)"
                    values = (flow, state_path, target, target, self._id)
                    connection.execute(sql + " VALUES (?,?,?,?,?,'')", values)
            return stored(connection, *own)[0]

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
            rows = [(row.id, *tuple(one)) for one in row.after]
            connection.executemany("INSERT INTO predecessor VALUES (?,?,?,?,?)", rows)

    def note_runs(self, id: int, ended: Sequence[PastRun]) -> list[int]:
        """Remember how runs ended, unless the schedule was forgotten; return the durations of the latest successes."""
        known = ended
        with self._transaction() as connection:
            if stored(connection, "id = ?", (id,)):
                values = [(id, *run) for run in ended]
                connection.executemany("INSERT OR REPLACE INTO past_run VALUES (?,?,?,?,?,?)", values)
                connection.execute(_FORGET_RUNS, {"id": id, "singles": SINGLE_MAX})
                known = past_runs(connection, id)
        return [run.lasts_us for run in known if run.state == RunState.SUCCESS][:USUAL_RUNS]

    def past_runs(self, id: int) -> list[PastRun]:
        """The runs that have ended, as far as they are known; the latest first."""
        with translated_errors(self.path):
            return past_runs(self._connection, id)

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
            (alone,) = connection.execute(f"SELECT total(times) {beyond} > ?", (id, after, after)).fetchone()
            connection.execute(f"DELETE {beyond} > ?", (id, after, after))
            ranges = f"SELECT rowid, times {beyond} <= ? ORDER BY decided_at DESC"
            left = given_up - int(alone)
            for rowid, times in connection.execute(ranges, (id, after, after)).fetchall():
                gone = max(0, min(times, left))
                left -= gone
                cut = "times = times - ?, listed = max(0, listed - ?), last = max(first, ?) WHERE rowid = ?"
                connection.execute("UPDATE ledger SET " + cut, (gone, gone, last, rowid))
            latest = connection.execute(_LATEST_RUN, (id,)).fetchone()
            if runs and latest is not None:
                earlier = "UPDATE ledger SET times = times - ?, last = max(first, min(last, ?)) WHERE rowid = ?"
                connection.execute(earlier, (runs, last, *latest))
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
        with translated_errors(self.path):
            self._connection.execute(sql, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with translated_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


# --- The ledger ----------------------------------------------------------------------------------------------------


_INSERT = "INSERT INTO ledger (schedule, {}) VALUES (?,?,?,?,?,?,?,?,?)".format(", ".join(LEDGER_COLUMNS))
#: Of older runs the longest of each end on each day stays, for fourteen days with runs.
_FORGET_RUNS = (
    "DELETE FROM past_run WHERE schedule = :id AND rowid NOT IN"
    " (SELECT rowid FROM past_run WHERE schedule = :id ORDER BY started_at DESC LIMIT :singles)"
    " AND (rowid NOT IN (SELECT longest FROM (SELECT rowid AS longest, max(lasts_us) FROM past_run"
    f" WHERE schedule = :id GROUP BY {DAY}, state)) OR {DAY} NOT IN"
    f" (SELECT DISTINCT {DAY} FROM past_run WHERE schedule = :id ORDER BY 1 DESC LIMIT 14))"
)
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
            connection.execute(_INSERT, (id, *row[: len(LEDGER_COLUMNS)]))
        else:
            connection.execute(_EXTEND, (row.last, row.times, row.decided_at, *latest))
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


def _convert(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in a transaction of the caller, also from those of version 1. Raises StateFileError."""
    version = version_of(connection, path)
    if version == 1:
        _require_no_supervisor(connection, path)
        for table in ("schedule", "supervisor"):
            connection.execute(f"ALTER TABLE {table} RENAME TO {table}_1")
    for statement in _tables().split(";\n"):
        if statement.strip():
            connection.execute(statement)
    if version == 1:
        _write_start_requests(connection)
        for statement in _CONVERT:
            connection.execute(statement)


def _write_start_requests(connection: sqlite3.Connection) -> None:
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
    f"INSERT OR IGNORE INTO schedule (target, ledger_until, {_KEPT})"
    f" SELECT file || coalesce(':' || object, ''), missed_until, {_KEPT} FROM schedule_1"
    " ORDER BY supervisor_id = '', coalesce(last_started_at, 0) DESC",
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
