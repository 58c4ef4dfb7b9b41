"""The one writer of a state file: a buffer in front of one thread that commits in groups.

Items queue while a batch is being written; what has queued by then is the next batch. There is no timer: under load
batches grow by themselves, when idle an item is written at once, and waiting for company only ever added latency.
An item's future resolves after the COMMIT that made it durable, and after its events were handed on.

This is layer C of ``layers.py``: a batch that the storage refuses is held and tried again, for as long as it takes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..domain.event_payloads import StorageChange
from ..domain.events import Event
from ..errors import StorageError
from ..statefile.changes.transitions import Journal
from .database import primary_code, translate
from .write_retry import DAMAGE, FlushLimits, exec_query, is_storage_trouble

SYNCHRONOUS_FULL = 2  # as ``PRAGMA synchronous`` answers

T = TypeVar("T")
OnTrouble = Callable[[str, str], None]  # (DEGRADED or RECOVERED of StorageChange, one sentence)


@dataclass(slots=True)
class _Entry:
    item: Callable[[Journal], object]
    future: asyncio.Future[Any]
    actor: str | None
    reason: str | None
    command_id: str | None
    durable: bool


@dataclass(slots=True)
class _Written:
    """A committed batch: the result of each item, or the exception that it alone raised, and all events in order."""

    results: list[object]
    errors: dict[int, Exception]
    events: list[Event]


class Writer:
    """Owns the write connection from now on; ``close`` closes it.

    ``on_events`` is called in the loop with what each commit told, in order of seq, before the futures of that commit
    resolve. ``on_trouble(DEGRADED, sentence)`` says that the storage has been refusing for a while,
    ``on_trouble(RECOVERED, sentence)`` that it accepts again. ``thread`` runs the batches: by default one thread of
    the writer's own; a simulation passes one that runs them at once.

    ``reopen`` makes a new connection after a failed fsync, when the old one's idea of the file cannot be trusted.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        now_us: Callable[[], int],
        on_events: Callable[[list[Event]], None],
        on_trouble: OnTrouble | None = None,
        *,
        limits: FlushLimits | None = None,
        thread: concurrent.futures.Executor | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
        reopen: Callable[[], sqlite3.Connection] | None = None,
    ) -> None:
        self._connection = connection
        self._path = _path(connection)
        self._loop = loop
        self._now_us = now_us
        self._on_events = on_events
        self._on_trouble = on_trouble
        self._limits = limits or FlushLimits.from_environment()
        self._uniform = uniform
        self._reopen = reopen
        self._thread = thread or concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="redrive-writer")
        self._queue: deque[_Entry] = deque()
        self._batch: list[_Entry] = []  # in flight, or held for another try
        self._armed = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._delays: Iterator[float] | None = None  # of the flush that is in trouble
        self._tries = 0
        self._trouble_since = 0.0
        self._degraded = False
        self._closing = False
        self._closed = False
        self._doubtful: _Written | None = None  # its COMMIT met a failed fsync: it may be in the file, or not
        self._hurry = threading.Event()  # ends the pauses of layer B when the writer closes
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Items that are not committed yet."""
        return len(self._queue) + len(self._batch)

    @property
    def degraded(self) -> bool:
        """True while the storage refuses."""
        return self._degraded

    def submit(
        self,
        item: Callable[[Journal], T],
        *,
        actor: str | None = None,
        reason: str | None = None,
        command_id: str | None = None,
        durable: bool = False,
    ) -> asyncio.Future[T]:
        """Queue a piece of work for the next transaction; the future resolves to its result after the COMMIT.

        The item runs in the writer's thread, between BEGIN and COMMIT, and possibly more than once: it may only touch
        what its Journal gives it. What it raises reaches its own future alone, with all that it wrote rolled back.
        Cancelling the future does not unqueue the item. ``durable``: its COMMIT, and all before it, is on the disk when
        the future resolves, also with ``--durability normal``. Raises StorageError once the writer is closing.
        """
        if self._closing:
            raise StorageError("the state file is being closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(_Entry(item, future, actor, reason, command_id, durable))
        if not self._batch and not self._armed:
            self._armed = True
            self._idle.clear()
            self._loop.call_soon(self._begin_flush)  # the end of this pass of the loop: company for free
        return future

    def aside(self, use: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Use the connection between two transactions, for what cannot be done within one. Not once it is closed."""
        return asyncio.wrap_future(self._thread.submit(lambda: use(self._connection)), loop=self._loop)

    async def close(self) -> None:
        """Write what is queued, then close the connection. Only now may an item fail because the storage refuses."""
        if not self._closing:
            self._closing = True
            self._hurry.set()
            if self._retry_timer is not None:
                self._retry_timer.cancel()
                self._flush()
        await self._idle.wait()
        if self._closed:
            return
        self._closed = True
        await asyncio.wrap_future(self._thread.submit(self._connection.close), loop=self._loop)
        self._thread.shutdown(wait=False)

    # --- In the loop -----------------------------------------------------------------------------------------------

    def _begin_flush(self) -> None:
        self._armed = False
        self._take_batch()

    def _take_batch(self) -> None:
        count = min(len(self._queue), self._limits.batch)
        self._batch = [self._queue.popleft() for _ in range(count)]
        if self._batch:
            self._flush()
        else:
            self._idle.set()

    def _flush(self) -> None:
        self._retry_timer = None
        self._thread.submit(self._write, self._batch).add_done_callback(self._hand_over)

    def _hand_over(self, written: concurrent.futures.Future[_Written]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, written)
        except RuntimeError:  # the loop is gone, and everybody who waited with it
            if not self._loop.is_closed():
                raise

    def _settle(self, written: concurrent.futures.Future[_Written]) -> None:
        error = written.exception()
        if error is None:
            self._recover()
            batch = self._batch
            self._take_batch()  # the disk works while the callers are told
            self._tell(written.result().events)
            _resolve(batch, written.result())
        elif is_storage_trouble(error) and not self._closing:
            self._hold(error)
        else:
            self._give_up(error)

    def _tell(self, events: list[Event]) -> None:
        if not events:
            return
        try:
            self._on_events(events)
        except Exception as error:  # a listener's fault must not leave callers waiting for what is committed
            self._report("a listener of events raised", error)

    def _report(self, message: str, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})

    def _hold(self, error: BaseException) -> None:
        """Keep the batch and try it again later; after enough tries say so."""
        if self._delays is None:
            self._delays = self._limits.delays(self._uniform)
            self._tries = 0
            self._trouble_since = self._loop.time()
        self._tries += 1
        elapsed = self._loop.time() - self._trouble_since
        if not self._degraded and (self._tries > self._limits.retries or elapsed >= self._limits.elapsed_seconds):
            self._degraded = True
            self._say(
                StorageChange.DEGRADED,
                f"{self._explain(error)}; nothing is lost, {self.backlog} changes wait in memory",
            )
        self._retry_timer = self._loop.call_later(next(self._delays), self._flush)

    def _recover(self) -> None:
        self._delays = None
        if self._degraded:
            self._degraded = False
            seconds = self._loop.time() - self._trouble_since
            self._say(StorageChange.RECOVERED, f"the state file is written again after {seconds:.1f} s")

    def _say(self, what: str, sentence: str) -> None:
        if self._on_trouble is None:
            return
        try:
            self._on_trouble(what, sentence)
        except Exception as error:
            self._report("a listener of storage trouble raised", error)

    def _give_up(self, error: BaseException) -> None:
        """Fail the batch: the file is damaged, or the writer closes while the storage refuses."""
        failure = self._explain(error)
        batch = self._batch
        if self._closing:
            batch += self._queue
            self._queue.clear()
        self._take_batch()
        for entry in batch:
            if not entry.future.done():
                entry.future.set_exception(failure)

    def _explain(self, error: BaseException) -> BaseException:
        return translate(error, self._path) if isinstance(error, sqlite3.Error) else error

    # --- In the thread ---------------------------------------------------------------------------------------------

    def _write(self, batch: Sequence[_Entry]) -> _Written:
        return exec_query(lambda: self._write_batch(batch), self._limits.query, pause=self._hurry.wait)

    def _write_batch(self, batch: Sequence[_Entry]) -> _Written:
        if self._doubtful is not None and (written := self._look_again(self._doubtful)) is not None:
            return written
        try:
            return self._transaction(batch, self._run_all)
        except Exception as error:
            if is_storage_trouble(error) or primary_code(error) in DAMAGE:
                raise
        # One of them raised, and took its neighbours' work with it: again, each behind a savepoint of its own.
        return self._transaction(batch, self._run_each)

    def _transaction(self, batch: Sequence[_Entry], run: Callable[[Sequence[_Entry]], _Written]) -> _Written:
        connection = self._connection
        with _synced(connection, any(entry.durable for entry in batch)):
            connection.execute("BEGIN IMMEDIATE")
            written: _Written | None = None
            try:
                written = run(batch)
                connection.execute("COMMIT")
            except BaseException as error:
                _roll_back(connection)
                if _is_failed_sync(error) and self._reopen is not None:
                    self._doubtful = written or _Written([], {}, [])
                raise
        return written

    def _run_all(self, batch: Sequence[_Entry]) -> _Written:
        now = self._now_us()
        written = _Written([], {}, [])
        for entry in batch:
            journal = Journal(self._connection, now, entry.actor, entry.reason, entry.command_id)
            written.results.append(entry.item(journal))
            written.events += journal.events
        return written

    def _run_each(self, batch: Sequence[_Entry]) -> _Written:
        now = self._now_us()
        written = _Written([], {}, [])
        connection = self._connection
        for index, entry in enumerate(batch):
            journal = Journal(connection, now, entry.actor, entry.reason, entry.command_id)
            result = None
            connection.execute("SAVEPOINT item")
            try:
                result = entry.item(journal)
                written.events += journal.events
            except Exception as error:
                if is_storage_trouble(error) or primary_code(error) in DAMAGE:
                    raise
                connection.execute("ROLLBACK TO item")
                written.errors[index] = error
            connection.execute("RELEASE item")
            written.results.append(result)
        return written

    def _look_again(self, doubtful: _Written) -> _Written | None:
        """After a failed fsync: open the file anew, and return the batch if it is in there after all."""
        assert self._reopen is not None
        connection = self._reopen()
        self._connection.close()
        self._connection, self._doubtful = connection, None
        if not doubtful.events:
            return None
        last = doubtful.events[-1]
        row = connection.execute("SELECT at, kind, task FROM event WHERE seq = ?", (last.seq,)).fetchone()
        return doubtful if row is not None and tuple(row) == (last.at, last.kind, last.task) else None


def _resolve(batch: Sequence[_Entry], written: _Written) -> None:
    for index, entry in enumerate(batch):
        future = entry.future
        if future.done():  # its caller was cancelled
            continue
        error = written.errors.get(index)
        if error is None:
            future.set_result(written.results[index])
        elif isinstance(error, StopIteration):  # which a future cannot carry
            future.set_exception(RuntimeError(f"the item raised {error!r}"))
        else:
            future.set_exception(error)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Leave the transaction, if SQLite has not left it by itself already, as it does on a full disk."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            if connection.in_transaction:
                raise


@contextmanager
def _synced(connection: sqlite3.Connection, wanted: bool) -> Iterator[None]:
    """The commit in here waits for the disk if ``wanted``: ``PRAGMA synchronous`` is deaf within a transaction, so it
    is changed around one. In WAL mode the sync is of the whole log, and takes all commits before it along."""
    (level,) = connection.execute("PRAGMA synchronous").fetchone() if wanted else (SYNCHRONOUS_FULL,)
    if level >= SYNCHRONOUS_FULL:
        yield
        return
    connection.execute("PRAGMA synchronous=FULL")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA synchronous={level}")


def _is_failed_sync(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)


def _path(connection: sqlite3.Connection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2]) or "the state file"
