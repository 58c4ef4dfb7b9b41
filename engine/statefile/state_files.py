"""Lists the state files in the default folder of a host, for a user who named none.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The order depends on runs and never on the time of a write, because an idle executor writes, too.
"""

import os
import select
import sqlite3
import time
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..domain.events import JsonObject
from ..domain.rows import BreakerRow, ExecutorState, Health, RunFacts
from ..domain.states import FINISHED, RunState
from ..errors import CorruptFileError, RedriveError, StateFileError
from . import lists, supervisor_file
from .copies import living_original
from .health_file import read_health
from .lock_file import SERVICE, executor_of, last_holder, served_by
from .opening import reading_error
from .paths import default_folder, default_paths, is_full, named_path, supervisor_path
from .reader import FileStamps, read_once, read_or, stamps_of

POLL_SECONDS = 1.0
BEAT_SECONDS = 10.0  # between two signs of life of a list
FIGURES_MAX = 500  # files whose figures are remembered
NIGHTS = 14  # days whose ends are shown
NIGHTS_US = 4 * NIGHTS * 86400 * 1000000  # how far back they are looked for: a flow may run on working days only


class FileRow(NamedTuple):
    """A state file with its latest run. Instants in microseconds UTC.

    Attributes:
        path: here; of another host its address. Of a flow that could never be read, that of the flow file.
        latest: its latest run.
        problem: why the file cannot be read.
        runs: those that may need a human, the latest first.
        listed: what else its rows say needs one.
        executor: its latest one.
        service_pid: of the ``redrive serve`` that starts its runs.
        has_lost_service: the latest ``redrive serve`` was killed.
        tasks: how many the latest run has; ``finished``: how many of them are done.
        nights: the last days with runs of its flow, the oldest first.
        supervised: the schedules whose runs it holds, as a supervisor knows them.
        health: what its living executor knows of itself.
        full_since: since when its file system has no room, at the latest; None: it has, or nothing is to be written.
        clock_offset_us: how far the clock of its host is ahead of the reader's, who sets it.
        has_file: False for a flow that could never be read, which has no state file, and for a host that could not be
            reached; ``problem`` says why. Without a problem it is being connected.
    """

    path: str
    dag_name: Optional[str] = None
    latest: Optional[RunFacts] = None
    problem: Optional[str] = None
    runs: Sequence[RunFacts] = ()
    executor: Optional[ExecutorState] = None
    service_pid: Optional[int] = None
    schedules: Sequence[lists.ScheduleRow] = ()
    has_lost_service: bool = False
    listed: Sequence[lists.NeedRow] = ()
    breakers: Sequence[BreakerRow] = ()
    tasks: int = 0
    finished: int = 0
    nights: Sequence[supervisor_file.NightSummary] = ()
    supervised: Sequence[supervisor_file.ServedSchedule] = ()
    health: Optional[Health] = None
    full_since: Optional[int] = None
    clock_offset_us: int = 0
    has_file: bool = True

    def rows_of(self, kind: lists.NeedKind) -> List[lists.NeedRow]:
        """The rows of ``listed`` that have this kind."""
        return [row for row in self.listed if row.kind == kind.value]

    @property
    def has_work(self) -> bool:
        """Whether a run of the file is unfinished, or the latest run has failed."""
        is_failed = self.latest is not None and self.latest.state == RunState.FAILED
        return is_failed or any(run.ended_at is None or run.dead_letters for run in self.runs)


class FileRowReader(object):
    """Reads the rows again and again; a file is opened only if it may have changed."""

    def __init__(self) -> None:
        self._known: Dict[str, Tuple[FileStamps, FileRow]] = {}

    def read(self) -> List[FileRow]:
        """Every state file of the default folder, and those elsewhere of served flows: those with something to do
        first, then by the start of their runs.

        If REDRIVE_STATE is set, only its file.
        """
        named, (served, problem) = named_path(""), _read_served()
        paths = [*default_paths(), *_elsewhere(served)] if named is None else [named]
        self._known = {path: self._entry(path) for path in paths}
        found = [_with_health(path, _with_service(path, file_row)) for path, (_, file_row) in self._known.items()]
        if named is None and problem:
            found.append(FileRow(supervisor_path(), problem=problem))
        joined = _with_supervisor(found, served, is_whole=named is None)
        return sorted(joined, key=partial(_rank, time.time() * 1000000))

    def _entry(self, path: str) -> Tuple[FileStamps, FileRow]:
        stamps = stamps_of(path)
        known = self._known.get(path)
        if known is not None and known[0] == stamps and not (known[1].executor and known[1].executor.alive):
            return known  # an executor that dies writes nothing
        return stamps, _file_row(path)


def _with_service(path: str, file_row: FileRow) -> FileRow:
    holder = served_by(path)
    if holder is not None or not file_row.schedules:
        return file_row._replace(service_pid=holder and holder.pid)
    last = last_holder(path + SERVICE)
    return file_row._replace(has_lost_service=last is not None and last.released_at is None)


def _with_health(path: str, file_row: FileRow) -> FileRow:
    """Join what needs no commit: a full disk lets none pass."""
    is_used = file_row.service_pid is not None or any(run.ended_at is None for run in file_row.runs)
    return file_row._replace(health=read_health(path), full_since=_full_since(path) if is_used else None)


def _full_since(state_path: str) -> Optional[int]:
    """Since when the file system of a state file has no room for a commit, in microseconds UTC: at the latest since
    the latest write. None: it has room, or does not say."""
    if not is_full(state_path):
        return None
    stamps = stamps_of(state_path)
    return max(stamp[-1] // 1000 if stamp else 0 for stamp in (stamps.file, stamps.log))


def _read_served() -> "Tuple[Sequence[supervisor_file.ServedSchedule], str]":
    """The schedules that a supervisor knows, and why its file cannot be read."""
    try:
        return supervisor_file.read_schedules().schedules, ""
    except StateFileError as error:
        return (), str(error)


def _elsewhere(served: Sequence[supervisor_file.ServedSchedule]) -> List[str]:
    """The state files of served flows that are not in the default folder."""
    folder = os.path.realpath(default_folder())
    found = {row.state_path for row in served if row.state_path is not None and os.path.exists(row.state_path)}
    return sorted(path for path in found if os.path.dirname(os.path.realpath(path)) != folder)


def _with_supervisor(
    found: Sequence[FileRow], served: Sequence[supervisor_file.ServedSchedule], is_whole: bool
) -> List[FileRow]:
    """Join what a supervisor knows of the schedules. ``is_whole``: also of those that have no state file."""
    known: Dict[Optional[str], List[supervisor_file.ServedSchedule]] = {}
    for row in served:
        known.setdefault(row.state_path, []).append(supervisor_file.steady(row, int(time.time() * 1000000)))
    joined = [_supervised(file_row, known.pop(file_row.path, ())) for file_row in found]
    without_file = [row for rows in known.values() for row in rows if row.has_failed_start()]
    return joined + [_without_file(row) for row in without_file] * is_whole


def _supervised(file_row: FileRow, rows: Sequence[supervisor_file.ServedSchedule]) -> FileRow:
    """A supervisor that hangs holds its lock, and serves nothing."""
    pid = None if any(row.hang for row in rows) else file_row.service_pid
    known = [night for row in rows if row.flow == file_row.dag_name for night in row.nights]
    return file_row._replace(
        supervised=rows, service_pid=pid, nights=supervisor_file.with_known(file_row.nights, known)[-NIGHTS:]
    )


def _without_file(row: supervisor_file.ServedSchedule) -> FileRow:
    why = f"cannot start: {row.start_error}"
    return FileRow(row.file, row.flow, problem=why, supervised=[row], has_file=False)


def file_row_of(path: str) -> FileRow:
    """The row of one state file as of now."""
    return _with_surroundings(path, _file_row(path))


def _with_surroundings(path: str, file_row: FileRow) -> FileRow:
    served, _ = _read_served()
    return _with_supervisor([_with_health(path, _with_service(path, file_row))], served, is_whole=False)[0]


def file_rows() -> List[FileRow]:
    """The rows as of now, in the order of ``FileRowReader.read``."""
    return FileRowReader().read()


class ActTargets(NamedTuple):
    """The targets of an act: runs, as ``lists.runs_named`` reads them; tasks of one run, the latest unless it is named,
    also as globs; or a cause of it, by the first digits of its fingerprint."""

    run_ids: Sequence[str] = ()
    tasks: Sequence[str] = ()
    fingerprint: Optional[str] = None

    def __str__(self) -> str:
        of_run = " in run {}".format(", ".join(self.run_ids)) if self.run_ids else " in its latest run"
        if self.tasks:
            return "task {}{}".format(", ".join(self.tasks), of_run)
        return "run {}".format(", ".join(self.run_ids)) if self.fingerprint is None else f"that cause{of_run}"


def has_targets(path: str, targets: ActTargets) -> bool:
    """Whether a state file has all that an act names; no for a file that cannot be read."""
    return read_or(path, lambda connection: _has_targets(connection, targets), False)


def _has_targets(connection: sqlite3.Connection, targets: ActTargets) -> bool:
    known = lists.query(connection, lists.RUN_NAMES, {})
    found = [lists.runs_named(word, known) for word in targets.run_ids or [lists.LATEST]]
    if not all(found):
        return False
    run_id = (found[0][0].run_id,)
    names = {name for (name,) in connection.execute("SELECT name FROM task WHERE run_id = ?", run_id)}
    if not all(task in names or any(fnmatchcase(name, task) for name in names) for task in targets.tasks):
        return False
    digits = targets.fingerprint
    sql = "SELECT DISTINCT fingerprint, fingerprint_loose FROM attempt WHERE run_id = ? AND fingerprint IS NOT NULL"
    marks = () if digits is None else connection.execute(sql, run_id)
    return digits is None or any((mark or "").startswith(digits) for row in marks for mark in row)


class AttemptCount(NamedTuple):
    """The number of attempts of a run with this outcome, and this class of failure; empty: none."""

    outcome: str
    failure_class: str
    attempts: int


_OF_FLOW = "(SELECT {} FROM run AS one WHERE +one.dag_name = flow.flow_name{} ORDER BY rowid DESC LIMIT 1)"
#: The latest run of each flow.
LATEST_RUNS = lists.Listing(
    "latest_runs",
    RunFacts,
    "SELECT "
    + lists.RUN_FACTS
    + ", "
    + _OF_FLOW.format("ended_at", " AND state = 'SUCCESS'")
    + " FROM (SELECT DISTINCT dag_name AS flow_name FROM run) AS flow JOIN run ON run.rowid = "
    + _OF_FLOW.format("rowid", "")
    + " ORDER BY dag_name LIMIT :limit",
    {"limit": lists.ROWS_MAX},
)
LATEST_RUN = lists.Listing(
    "latest_run", RunFacts, "SELECT " + lists.RUN_FACTS + ", NULL FROM run ORDER BY rowid DESC LIMIT 1"
)
ATTEMPT_COUNTS = lists.Listing(
    "attempt_counts",
    AttemptCount,
    "SELECT outcome, coalesce(failure_class, '') AS class, count(*) FROM attempt WHERE run_id = :run_id"
    " GROUP BY outcome, class",
    {"run_id": None},
)


class Figures(NamedTuple):
    """The facts of the latest run of each flow of a state file, for metrics.

    ``attempts``: of these runs, by run.
    """

    runs: Sequence[RunFacts] = ()
    attempts: Mapping[str, Sequence[AttemptCount]] = {}
    breakers: Sequence[BreakerRow] = ()


def read_figures(path: str) -> Figures:
    """The figures of a file, which is opened only if it may have changed; none of a file that cannot be read, which
    ``FileRow.problem`` explains."""
    return _figures_as_of(path, stamps_of(path))


@lru_cache(maxsize=FIGURES_MAX)
def _figures_as_of(path: str, stamps: FileStamps) -> Figures:
    return read_or(path, _figures, Figures())


def _figures(connection: sqlite3.Connection) -> Figures:
    latest = lists.query(connection, LATEST_RUNS, {})
    counts = {run.run_id: lists.query(connection, ATTEMPT_COUNTS, {"run_id": run.run_id}) for run in latest}
    return Figures(latest, counts, lists.query(connection, lists.BREAKERS, {}))


def default_path() -> str:
    """The first of ``file_rows``. Raises StateFileError when there is none."""
    found = [file_row for file_row in file_rows() if file_row.has_file]
    if not found:
        sentence = "there is no state file in {}; start a run, or name one"
        raise StateFileError(sentence.format(default_folder()))
    return found[0].path


def watch(send: Callable[[JsonObject], Any], descriptor: int) -> None:
    """Send the rows in JSON values, and again whenever they have changed, until the descriptor becomes readable.

    Where nothing changes, a sign of life is sent every BEAT_SECONDS.
    """
    reader = FileRowReader()
    sent: Optional[List[FileRow]] = None
    beat_at = 0.0  # on the monotonic clock
    while True:
        found = reader.read()
        message: JsonObject = {"files": found}
        if sent is None:
            message = {"hello": dict(message, now=int(time.time() * 1000000))}
        elif found == sent:
            message = {"beat": None}
        if found != sent or time.monotonic() >= beat_at:
            send(message)
            sent, beat_at = found, time.monotonic() + BEAT_SECONDS
        if select.select([descriptor], [], [], POLL_SECONDS)[0]:
            return


def _rank(now_us: float, file_row: FileRow) -> Tuple[bool, bool, bool, int, str]:
    started_at = 0 if file_row.latest is None else file_row.latest.started_at
    is_ahead = started_at > now_us  # a clock that was ahead has dated it
    return file_row.problem is not None, not file_row.has_work, is_ahead, -started_at, file_row.path


_COUNTS = "SELECT state, count(*) FROM task WHERE run_id = ? GROUP BY state"
_LASTS = "max(ended_at - started_at - waited_us, 0)"
_NIGHTS = "SELECT " + supervisor_file.NIGHTS_SQL.format(_LASTS, "run", "dag_name = ? AND started_at > ? GROUP BY day")


def _file_row(path: str) -> FileRow:
    try:
        return read_once(path, lambda connection: read_file_row(connection, path))
    except StateFileError as error:
        return FileRow(path, problem=error.problem)
    except RedriveError as error:
        return FileRow(path, problem=str(error))
    except sqlite3.Error as error:
        return FileRow(path, problem=str(reading_error(path, error)))


#: Field of a row -> the list that it holds.
_LISTS: Dict[str, "lists.Listing[Any]"] = {
    "runs": lists.ATTENTION_RUNS,
    "schedules": lists.SCHEDULES,
    "listed": lists.NEED_ROWS,
    "breakers": lists.OPEN_BREAKERS,
}


def read_file_row(connection: sqlite3.Connection, path: str) -> FileRow:
    """The row of a file, without what lies beside it. Raises CorruptFileError."""
    read: Dict[str, Any] = {name: lists.query(connection, listing, {}) for name, listing in _LISTS.items()}
    found = lists.query(connection, LATEST_RUN, {})
    for rows in (found,) + tuple(read.values()):
        _check_numbers(path, rows)
    file_row = FileRow(path, **read)
    if not found:
        return file_row
    latest = found[0]
    counts = dict(connection.execute(_COUNTS, (latest.run_id,)).fetchall())
    return file_row._replace(
        dag_name=latest.dag_name,
        latest=latest,
        executor=_executor(connection, path),
        tasks=sum(counts.values()),
        finished=sum(counts.get(str(state), 0) for state in FINISHED),
        nights=_nights(connection, latest.dag_name, latest.started_at),
    )


def file_row_of_connection(connection: sqlite3.Connection) -> FileRow:
    """The row of the file of a connection as of now, as one of ``READS``. Raises CorruptFileError."""
    (path,) = [path for _, name, path in connection.execute("PRAGMA database_list") if name == "main"]
    return _with_surroundings(path, read_file_row(connection, path))


def _nights(connection: sqlite3.Connection, dag_name: str, last_at: int) -> List[supervisor_file.NightSummary]:
    """The last NIGHTS days with runs of a flow, in the time zone of this host."""
    days = connection.execute(_NIGHTS, (dag_name, last_at - NIGHTS_US)).fetchall()
    return [supervisor_file.night_of(*row) for row in days[-NIGHTS:]]


def _check_numbers(path: str, rows: Iterable[Any]) -> None:
    """Raises CorruptFileError for a text where an instant or a count belongs, which no redrive has written."""
    for row in rows:
        for field, kind in type(row).__annotations__.items():
            value = getattr(row, field)
            if kind in (int, Optional[int]) and value is not None and not isinstance(value, int):
                raise CorruptFileError(f"{path} is damaged: {field} is {value!r}; restore a copy")


def _executor(connection: sqlite3.Connection, path: str) -> ExecutorState:
    """Without its age, which would make each reading differ from the one before."""
    original = living_original(connection, path)
    return executor_of(path, False, int(time.time() * 1000000), original)._replace(age_us=None)
