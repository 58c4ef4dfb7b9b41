"""Lists the state files in the default folder of a host, for a user who named none.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The order depends on runs and never on the time of a write, because an idle executor writes, too.
"""

import select
import sqlite3
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..domain.events import JsonObject
from ..domain.states import RunState
from ..errors import RedriveError, StateFileError
from .lists import SCHEDULES, ExecutorState, ScheduleRow, executor, query
from .lock_file import heartbeat_at, service_pid
from .opening import open_readonly
from .paths import default_folder, default_paths, named_path
from .reader import FileStamps, stamps_of

POLL_SECONDS = 1.0


class UnfinishedRun(NamedTuple):
    """A run that has not ended, or that its deadline has ended with dead letters. Instants in microseconds UTC.

    ``working``: how many tasks run or are about to; ``waiting``: how many wait for an instant.
    """

    run_id: str
    dag_name: str
    started_at: int
    blocked_since: Optional[int]
    paused_since: Optional[int]
    dead_letters: int
    ended_at: Optional[int] = None
    working: int = 0
    waiting: int = 0


class Offer(NamedTuple):
    """A state file with its latest run. Instants in microseconds UTC.

    Attributes:
        path: here; of another host its address.
        started_at: of the latest run; 0 without a run.
        has_work: whether a run of the file is unfinished, or the latest run has failed.
        problem: why the file cannot be read.
        ended_at: of the latest run.
        unfinished: the latest first.
        executor: its latest one.
        service_pid: of the ``redrive serve`` that starts its runs.
    """

    path: str
    dag_name: Optional[str] = None
    run_id: Optional[str] = None
    state: Optional[str] = None
    started_at: int = 0
    has_work: bool = False
    problem: Optional[str] = None
    ended_at: Optional[int] = None
    unfinished: Sequence[UnfinishedRun] = ()
    executor: Optional[ExecutorState] = None
    service_pid: Optional[int] = None
    schedules: Sequence[ScheduleRow] = ()


class OfferReader(object):
    """Reads the offers again and again; a file is opened only if it may have changed."""

    def __init__(self) -> None:
        self._known: Dict[str, Tuple[FileStamps, Offer]] = {}

    def read(self) -> List[Offer]:
        """Every state file of the default folder: those with something to do first, then by the start of their runs.

        If REDRIVE_STATE is set, only its file.
        """
        named = named_path("")
        paths = default_paths() if named is None else [named]
        self._known = {path: self._entry(path) for path in paths}
        found = (offer._replace(service_pid=service_pid(path)) for path, (_, offer) in self._known.items())
        return sorted(found, key=_rank)

    def _entry(self, path: str) -> Tuple[FileStamps, Offer]:
        stamps = stamps_of(path)
        known = self._known.get(path)
        if known is not None and known[0] == stamps and not (known[1].executor and known[1].executor.alive):
            return known  # an executor that dies writes nothing
        return stamps, _offer(path)


def offers() -> List[Offer]:
    """The offers as of now, in the order of ``OfferReader.read``."""
    return OfferReader().read()


def default_path() -> str:
    """The first of ``offers``. Raises StateFileError when there is none."""
    found = offers()
    if not found:
        sentence = "there is no state file in {}; start a run, or name one with --state"
        raise StateFileError(sentence.format(default_folder()))
    return found[0].path


def watch(send: Callable[[JsonObject], Any], descriptor: int) -> None:
    """Send the offers in JSON values, and again whenever they have changed, until the descriptor becomes readable."""
    reader = OfferReader()
    sent: Optional[List[Offer]] = None
    while True:
        found = reader.read()
        files: JsonObject = {"files": found}
        if sent is None:
            send({"hello": files})
        elif found != sent:
            send(files)
        sent = found
        if select.select([descriptor], [], [], POLL_SECONDS)[0]:
            return


def _rank(offer: Offer) -> Tuple[bool, bool, int, str]:
    return offer.problem is not None, not offer.has_work, -offer.started_at, offer.path


_LATEST = "SELECT dag_name, run_id, state, started_at, ended_at FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1"
# The redundant first condition matches the partial index.
_UNFINISHED = (
    "SELECT run_id, dag_name, started_at, blocked_since, paused_since, (SELECT count(*) FROM task"
    " WHERE task.run_id = run.run_id AND task.state = 'DEAD_LETTER') AS dead, ended_at,"
    " (SELECT count(*) FROM task WHERE task.run_id = run.run_id AND task.state IN ('READY', 'RUNNING')),"
    " (SELECT count(*) FROM task WHERE task.run_id = run.run_id AND task.state IN ('RETRYING', 'SENSING')) FROM run"
    " WHERE (ended_at IS NULL OR ended_at > deadline_at) AND (ended_at IS NULL OR dead > 0)"
    " ORDER BY started_at DESC, rowid DESC"
)


def _offer(path: str) -> Offer:
    try:
        connection = open_readonly(path).connection
        try:
            return _read(connection, path)
        finally:
            connection.close()
    except (RedriveError, sqlite3.Error) as error:
        return Offer(path, problem=str(error))


def _read(connection: sqlite3.Connection, path: str) -> Offer:
    schedules = query(connection, SCHEDULES, {})
    row = connection.execute(_LATEST).fetchone()
    if row is None:
        return Offer(path, schedules=schedules)
    dag_name, run_id, state, started_at, ended_at = row
    unfinished = [UnfinishedRun(*values) for values in connection.execute(_UNFINISHED)]
    return Offer(
        path,
        dag_name,
        run_id,
        state,
        started_at,
        bool(unfinished) or state == RunState.FAILED,
        ended_at=ended_at,
        unfinished=unfinished,
        executor=_executor(connection, path),
        schedules=schedules,
    )


def _executor(connection: sqlite3.Connection, path: str) -> ExecutorState:
    """Without its age, which would make each reading differ from the one before."""
    return executor(connection, heartbeat_at(path), False, int(time.time() * 1000000))._replace(age_us=None)
