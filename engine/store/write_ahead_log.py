"""The write-ahead log of a state file: synced behind the writer, copied, and watched for cuts."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import msgspec

from ..errors import StorageError
from ..statefile.copies import RESCUED
from ..statefile.paths import file_uri
from .database import open_for_writing, path_of, restoring_steps
from .making import sync

# --- A thread that does one piece of work after another, and calls back ----------------------------------------------


T = TypeVar("T")
OnDone = Callable[[Any, BaseException | None], None]  # the result, or the exception


class WorkThread(Protocol):
    """The thread that runs the work of a writer, or in a played night the caller."""

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        """Do ``work`` after all that was started before, and call ``on_done`` in the same thread.

        ``is_batch``: the work is a transaction of the writer.
        """

    def close(self) -> None:
        """End after all that was started."""


class OneThread:
    """A ``WorkThread`` without futures, locks and conditions: with ``ThreadPoolExecutor`` a commit costs 5 % more.

    The thread runs already when the constructor returns: once tasks run, the machine may have no thread left. Raises
    StorageError if it has none now.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], object], OnDone] | None] = SimpleQueue()
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:
            raise StorageError(
                f"the state file cannot be written: {error}; raise the limit of memory or processes"
            ) from None

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        self._queue.put((work, on_done))

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            _do(*item)
            del item  # what it holds may be large


def _do(work: Callable[[], object], on_done: OnDone) -> None:
    try:
        result = work()
    except BaseException as error:
        on_done(None, error)
    else:
        on_done(result, None)


def call_in_loop(
    loop: asyncio.AbstractEventLoop, callback: OnDone, result: object, error: BaseException | None
) -> None:
    """Call ``callback(result, error)`` in the loop, from another thread; if it is closed, nobody waits for the call."""
    try:
        loop.call_soon_threadsafe(callback, result, error)
    except RuntimeError:
        if not loop.is_closed():
            raise


def run_in(thread: WorkThread, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """Do ``work`` in the thread; the future has its result."""
    future: asyncio.Future[T] = loop.create_future()
    thread.start(work, partial(call_in_loop, loop, partial(settle, future)))
    return future


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Give a future its result or its error, unless its caller has cancelled it."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:  # a future cannot hold StopIteration
        future.set_exception(RuntimeError(f"it raised {error!r}") if isinstance(error, StopIteration) else error)


# --- Copies a state file that is in use, including its write-ahead log, also one that has lost pages -----------------


def free_copy_path(path: str) -> str:
    """Return where the copy of a file that was lost under a living executor goes: never over an earlier copy."""
    first = path + RESCUED
    names = (f"{first}.{number}" if number > 1 else first for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def copy(connection: sqlite3.Connection, target: str) -> None:
    """Copy the database of a connection, which must be in no transaction, and replace ``target`` by the copy.

    Raises StorageError.
    """
    with _replacement_of(target) as partial, closing(sqlite3.connect(partial)) as copied:
        connection.backup(copied)


def rescue(connection: sqlite3.Connection, target: str) -> tuple[int, int] | None:
    """Copy the database of a connection whose file has lost pages; return the runs that were saved, and of how many.

    None: all of it was in memory and in the log.

    If it was not, each run that can still be read is copied row by row: the latest are the likeliest to be in memory.

    Raises StorageError if no run can be read.
    """
    with suppress(StorageError), _replacement_of(target) as partial, closing(sqlite3.connect(partial)) as copied:
        connection.backup(copied)
        found = str(copied.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if found != "ok":  # SQLite reads the pages behind the end of its file as zeros
            raise sqlite3.DatabaseError(found)
        return None
    with _replacement_of(target) as partial:
        os.unlink(partial)
        with closing(open_for_writing(partial)) as copied:
            copied.execute("BEGIN IMMEDIATE")
            saved = _copy_runs(connection, copied)
            copied.execute("COMMIT")
    return saved


def _copy_runs(connection: sqlite3.Connection, copied: sqlite3.Connection) -> tuple[int, int]:
    """Copy each run that can be read whole, and what of the other tables can be read. Raises sqlite3.Error."""
    tables = [name for (name,) in copied.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = [name for name in tables if not name.startswith("sqlite_")]
    of_runs = [name for name in tables if "run_id" in [row[1] for row in copied.execute(f"PRAGMA table_info({name})")]]
    runs = [run_id for (run_id,) in connection.execute("SELECT run_id FROM run ORDER BY rowid DESC")]
    kept = [run_id for run_id in runs if _copy_rows(connection, copied, of_runs, "WHERE run_id = ?", (run_id,))]
    if not kept:
        raise sqlite3.DatabaseError("no run of it can be read any more")
    for name in tables:
        _copy_rows(connection, copied, [name], "WHERE run_id IS NULL" if name in of_runs else "", ())
    return len(kept), len(runs)


def _copy_rows(
    connection: sqlite3.Connection, copied: sqlite3.Connection, tables: list[str], where: str, values: tuple[str, ...]
) -> bool:
    """Copy rows of some tables, all or none. False: some cannot be read."""
    copied.execute("SAVEPOINT rows")
    try:
        for table in tables:
            columns = [row[1] for row in copied.execute(f"PRAGMA table_info({table})")]  # upgraded files order them so
            rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table} {where}", values)
            into = f"{table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            copied.executemany(f"INSERT OR REPLACE INTO {into}", rows)
    except sqlite3.DatabaseError:
        copied.execute("ROLLBACK TO rows")
        return False
    copied.execute("RELEASE rows")
    return True


@contextmanager
def _replacement_of(target: str) -> Iterator[str]:
    """Yield the path of an empty file of mode 0600 that replaces ``target`` at the end. Raises StorageError."""
    partial = target + ".part"
    try:
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)  # removed with the file
        with suppress(FileNotFoundError):  # of an earlier try, or planted: never written through
            os.unlink(partial)
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield partial
        sync(partial)
        os.replace(partial, target)
        sync(os.path.dirname(target))
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the copy {target} could not be made: {error}") from error


# --- Detects a state file or its write-ahead log that was cut short in place (``> state.db``, ``> state.db-wal``) ----
#
# SQLite does not notice. Behind the end of a log that it knows, it writes the next commit, and a later checkpoint
# would copy the hole into the state file; of a state file, it reads the missing pages as zeros. While the writer has
# them open, neither shrinks but in a checkpoint of its own. So the lengths are compared before each batch, when
# nothing has been read or written yet, and at each heartbeat. Another program may empty the log by a checkpoint of
# SQLite, which the data version of the connection shows.


class FileCutError(StorageError):
    """The file or its log was cut short: what was committed may be lost, and nothing may be written any more."""


class _Length(msgspec.Struct):
    """The length of a file after the last commit. ``inode``: which file it was; another one is not compared."""

    path: str
    inode: int = -1
    bytes: int = 0

    def update(self) -> None:
        inode, size = self._read()
        if self.inode in (-1, inode):  # else another file was put in its place
            self.inode, self.bytes = inode, size

    def is_there(self) -> bool:
        return self.inode >= 0 and self._read()[0] == self.inode

    def is_cut(self) -> bool:
        inode, size = self._read()
        return inode == self.inode and size < self.bytes

    def _read(self) -> tuple[int, int]:
        """Return inode and length; (-1, 0): there is no such file, or none can be seen."""
        try:
            status = os.stat(self.path)
        except OSError:
            return -1, 0
        return status.st_ino, status.st_size


class FileLengths:
    """The lengths of the file of a write connection and of its log, in bytes."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._file, self._log, self._index = _Length(path), _Length(path + "-wal"), _Length(path + "-shm")
        self._file.update()
        self._version = self._read_version()

    def update(self) -> None:
        """Remember the lengths after a commit."""
        self._file.update()
        self._log.update()
        self._index.update()

    def is_cut(self) -> bool:
        """True if the file, the log or its index is shorter than after the last commit."""
        return self._file.is_cut() or self._log.is_cut() or self._index.is_cut()

    def require(self) -> None:
        """Raise FileCutError if one of them was cut, after a try to save what the connection and the log still hold."""
        self._lengthen_index()
        if not self.is_cut():
            return
        version = self._read_version()
        if version == self._version:
            raise FileCutError(self._explain_cut())
        self._version = version
        self.update()

    def _lengthen_index(self) -> None:
        """Make an index that was cut short as long as it was: reading its memory behind the end is a SIGBUS.

        By name, because closing a descriptor would drop the locks of SQLite. It finds zeros, which is no valid index,
        and builds one from the log. A read in the second before this is the end of the executor; resume goes on.
        """
        if self._index.is_cut():
            with suppress(OSError):  # another program may have removed it: then the watch of the file says so
                os.truncate(self._index.path, self._index.bytes)

    def read_back(self) -> None:
        """Raise FileCutError if another connection does not read the last commit in the file.

        A file that is not in its place was reported before. Pages below the last commit are not read: a scan of
        100,000 tasks takes a second.
        """
        if not self._file.is_there():
            return
        options = "immutable=1" if self._is_copied() else "mode=ro"  # the log is needed while its frames are not copied
        expected = _last_commit(self._connection)
        try:
            with closing(sqlite3.connect(file_uri(self._path, options), uri=True)) as fresh:
                found = _last_commit(fresh)
        except sqlite3.Error as error:
            raise FileCutError(self._explain(f"{self._path} cannot be read back ({error})", self._path)) from error
        if found != expected:
            raise FileCutError(self._explain(f"{self._path} does not hold the last changes", self._path))

    def _is_copied(self) -> bool:
        """Copy the log into the file; False if readers or the disk hold that back: the next opening does it."""
        try:
            _, frames, copied = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError:
            return False
        return bool(frames == copied)

    def _read_version(self) -> object:
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _explain_cut(self) -> str:
        cut = self._path if self._file.is_cut() else self._log.path
        which = "" if cut == self._path else ", which held the latest changes"
        return self._explain(f"somebody has cut {cut} short{which}", cut)

    def _explain(self, what: str, damaged: str) -> str:
        """Save what the connection holds, and say what to do. ``damaged``: the file, or its log."""
        path, rescued = self._path, free_copy_path(self._path)
        try:
            saved = rescue(self._connection, rescued)
        except StorageError as error:
            rest = (
                f"restore a copy of {path}"
                if damaged == path
                else f"restore a copy, or resume from what {path} still has"
            )
            return f"{what}; some of them are lost ({error}): {rest}"
        steps = restoring_steps(path, rescued)
        if saved is None:
            return f"{what}; all of it is kept in {rescued}: {steps}"
        kept, runs = saved
        return (
            f"{what}; {kept} of {runs} runs are kept in {rescued}, the others are lost unless there is a copy: {steps}"
        )


def _last_commit(connection: sqlite3.Connection) -> tuple[object, ...]:
    """Return what the last commits of an executor changed, of which each is the end of an index or of a table."""
    queries = (
        "SELECT max(seq) FROM event",
        "SELECT run_id, state, ended_at FROM run ORDER BY rowid DESC LIMIT 1",
        "SELECT executor_id, stopped_at FROM executor ORDER BY rowid DESC LIMIT 1",
        "PRAGMA page_count",
    )
    return tuple(connection.execute(query).fetchone() for query in queries)


# --- Syncs the log behind the writer, and holds back what must not happen before its commit is on the disk -----------
#
# SQLite with ``synchronous=NORMAL`` syncs the log before and the database after a checkpoint, and the header of a log
# that starts again (https://sqlite.org/wal.html, sqlite3WalFrames in wal.c): a power cut leaves a whole file with the
# first commits, but any number of the last ones is lost. Here one more thread syncs the log all the time, so that
# these are the commits of the last milliseconds, and what was reported to anybody waits for its sync ("external
# synchrony", Nightingale et al., OSDI 2006):
#
# waits for the disk where answers to operators executor/loop.py, ``RunLoop.submit`` the start of an effect, or on
#   another machine executor/dispatch.py the run exists; it has ended or is blocked executor/opening.py,
#   executor/run_end.py pages, the bell notifications/notifier.py, ``Submit`` pings, lines printed by ``redrive run``
#   executor/loop.py, ``_on_events_durable`` the end of the process ``Writer.close`` lists printed by other commands
#   ``database.reading``
#
# A screen that follows the run, and lists read over ssh, may show a commit some milliseconds before that.
#
# A sync that fails is never tried again: the kernel reports it once, and drops what it could not write
# (https://wiki.postgresql.org/wiki/Fsync_Errors). The descriptor is our own, because SQLite ignores a failed sync of a
# checkpoint, and each descriptor gets the error once.


#: Commits without a waiting caller share a sync for this long: one sync each would cost more CPU than the commit, and
#: one each 5 ms costs a run of short tasks 7 % more of the executor's.
SHARED_SYNC_SECONDS = 0.02
SYNCHRONOUS_NORMAL = 1  # value of ``PRAGMA synchronous``

Release = Callable[[OSError | None], None]


class LogSync:
    """The log of one write connection, used in the event loop; ``thread`` waits for the disk.

    ``on_failed`` is called once, before what is held is released with the error.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        thread: WorkThread | None,
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._thread = thread or OneThread("redrive-sync")
        self._on_failed = on_failed
        self._descriptor = _open_log(connection)
        if self._descriptor is not None:  # the executor of a played night may die, and its process lives on
            self._close_log = weakref.finalize(self, os.close, self._descriptor)
        self._error: OSError | None = None
        self._held: list[Release] = []  # until the next sync
        self._covered: list[Release] = []  # until the sync in flight
        self._is_urgent = False  # one of ``_held`` is waited for
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def hold(self, release: Release, *, is_urgent: bool) -> None:
        """Call ``release`` once every commit so far is on the disk, in order; at once if each commit syncs itself.

        The sync starts now if it ``is_urgent``, else within SHARED_SYNC_SECONDS.
        """
        if self._descriptor is None or self._error is not None:
            release(self._error)
            return
        self._idle.clear()
        self._held.append(release)
        self._is_urgent |= is_urgent
        self._plan()

    def hold_unchanged(self, release: Release) -> None:
        """Do what ``hold`` does for a commit that wrote nothing: there may be nothing to wait for."""
        if self._idle.is_set():
            release(self._error)
        else:
            self.hold(release, is_urgent=True)

    async def close(self) -> None:
        """Sync what is left. The writer commits no more."""
        self._is_urgent = True
        self._plan()
        await self._idle.wait()
        self._thread.close()
        if self._descriptor is not None:
            self._close_log()
            self._descriptor = None

    def _plan(self) -> None:
        if not self._held or self._covered:
            return
        if self._is_urgent:
            if self._timer is not None:
                self._timer.cancel()
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(SHARED_SYNC_SECONDS, self._start)

    def _start(self) -> None:
        assert self._descriptor is not None
        self._timer, self._is_urgent = None, False
        self._covered, self._held = self._held, []
        self._thread.start(partial(os.fdatasync, self._descriptor), partial(call_in_loop, self._loop, self._release))

    def _release(self, result: None, error: BaseException | None) -> None:
        released, self._covered = self._covered, []
        if isinstance(error, OSError):
            self._error = error
            released, self._held = released + self._held, []
            self._on_failed(error)
        elif error is not None:
            raise error
        self._plan()  # the next sync runs while the released go on
        if not self._covered and not self._held:
            self._idle.set()
        for release in released:
            release(self._error)


def _open_log(connection: sqlite3.Connection) -> int | None:
    """Open the log, and sync its name in the folder. None: each commit is on the disk when it returns, or never."""
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    path = path_of(connection) + "-wal"
    if level != SYNCHRONOUS_NORMAL or not os.path.exists(path):
        return None
    sync(os.path.dirname(path))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
