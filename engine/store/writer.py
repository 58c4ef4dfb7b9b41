"""The only writer of a state file: a queue in front of one thread with group commit.

Items queue while a batch is written; the queued items are the next batch. There is no timer: under load batches grow
by themselves, when idle an item is written at once. The future of an item resolves after its COMMIT, and after its
events were passed on.

This is layer C of the retries below: a batch that the storage refuses is kept and retried without a limit.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from ..core.policy import RetryPolicy, draw_delay, send_setting
from ..domain.acts import BY_EXECUTOR, Author
from ..domain.event_payloads import StorageChange
from ..domain.events import Event
from ..domain.text import counted, format_duration
from ..errors import OptionError, StorageError
from ..runner.protocol import ignore
from ..statefile.paths import file_uri
from ..statefile.transitions import Transaction
from .database import path_of, primary_code, translate
from .write_ahead_log import FileCutError, FileLengths, LogSync, OneThread, WorkThread, call_in_loop, run_in, settle

T = TypeVar("T")
OnFailed = Callable[[BaseException], None]

_encode_json = msgspec.json.Encoder().encode


class _QueuedItem(msgspec.Struct):
    at: int  # when it was submitted: if the clock is set while the storage refuses it, its times are from before
    item: Callable[[Transaction], object]
    on_committed: Callable[[Any], None]
    on_failed: OnFailed
    durable: bool
    author: Author = BY_EXECUTOR


class _CommittedBatch(msgspec.Struct):
    """A committed batch: results of the items, exceptions by index of the item, and all events in order."""

    results: list[object] = []
    errors: dict[int, Exception] = {}
    events: list[Event] = []
    has_changes: bool = True


class WriterTransaction(Transaction):
    """A transaction that encodes events in a tenth of the time of ``json``."""

    @staticmethod
    def dump(data: Mapping[str, object]) -> str:
        """Return JSON; by ``json`` what msgspec refuses: integers of any size, half of a surrogate pair."""
        try:
            return _encode_json(data).decode()
        except (TypeError, ValueError, OverflowError):
            return Transaction.dump(data)


class WriterListener(msgspec.Struct, frozen=True):
    """Functions for the reports of a writer, called in the event loop.

    Attributes:
        events_committed: gets the events of each commit, in order of seq, before the futures of that commit resolve.
        events_durable: gets the same events once they are on the disk.
        storage_changed: gets DEGRADED of StorageChange and a sentence once the storage has refused writes for a while,
            RECOVERED and a sentence when it accepts them again.
        writing_failed: gets the error of a sync that has failed: every item fails from now on.
    """

    events_committed: Callable[[Sequence[Event]], object] = ignore
    events_durable: Callable[[Sequence[Event]], object] = ignore
    storage_changed: Callable[[str, str], object] = ignore
    writing_failed: Callable[[StorageError], object] = ignore


_SILENT = WriterListener()


class Writer:
    """Takes ownership of the write connection; ``close`` closes it.

    ``thread`` runs the batches and the syncs, by default threads of the writer.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        now_us: Callable[[], int],
        listener: WriterListener = _SILENT,
        *,
        limits: FlushLimits | None = None,
        thread: WorkThread | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._connection = connection
        self._path = path_of(connection) or "the state file"
        self._loop = loop
        self._now_us = now_us
        self._listener = listener
        self._limits = limits or FlushLimits.from_environment()
        self._uniform = uniform
        self._lengths = FileLengths(connection, self._path)
        self._log = LogSync(connection, loop, thread, self._on_sync_failed)
        self._thread = thread or OneThread("redrive-writer")
        self._queue: deque[_QueuedItem] = deque()
        self._batch: list[_QueuedItem] = []  # in flight, or waiting for a retry
        self._is_flush_scheduled = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tries = 0  # of a failing flush
        self._failing_since = 0.0
        self.is_degraded = False  # the storage refuses
        self._is_closing = False
        self._is_closed = False
        self._failure: StorageError | None = None  # a sync has failed: nothing is written any more
        self._closing_event = threading.Event()  # ends the delays of layer B when the writer closes
        self._idle = asyncio.Event()
        self._idle.set()

    def listen(self, listener: WriterListener) -> None:
        """Report to ``listener`` from now on, and no longer to the one before."""
        self._listener = listener

    @property
    def backlog(self) -> int:
        """The number of uncommitted items."""
        return len(self._queue) + len(self._batch)

    def submit(
        self, item: Callable[[Transaction], T], author: Author = BY_EXECUTOR, *, durable: bool = False
    ) -> asyncio.Future[T]:
        """Queue an item for the next transaction; the future resolves to its result after the COMMIT.

        The item runs in the writer's thread, between BEGIN and COMMIT, possibly more than once: it may only use its
        argument. If it raises, its writes are rolled back and its own future alone gets the exception. Cancelling the
        future does not unqueue the item. ``durable``: its COMMIT and all earlier ones are on the disk when the future
        resolves. Raises StorageError once the writer is closing.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        resolve, reject = partial(settle, future, error=None), partial(settle, future, None)
        self._enqueue(_QueuedItem(self._now_us(), item, resolve, reject, durable, author))
        return future

    def write(
        self,
        item: Callable[[Transaction], T],
        on_committed: Callable[[T], None],
        on_failed: OnFailed,
        *,
        durable: bool = False,
    ) -> None:
        """Do what ``submit`` does, and call one of two functions, at once after the COMMIT: half the cost of a future.

        Neither may raise.
        """
        self._enqueue(_QueuedItem(self._now_us(), item, on_committed, on_failed, durable))

    def _enqueue(self, entry: _QueuedItem) -> None:
        if self._is_closing:
            raise StorageError("the state file is being closed")
        self._queue.append(entry)
        if not self._batch and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._start_flush)  # at the end of this loop iteration, with all items that it queues

    def check_files(self) -> None:
        """Have the thread fail if the file or its log was cut short while nothing was written."""
        if self._lengths.is_cut() and not self._is_closing and self._failure is None:
            self.submit(lambda transaction: None).add_done_callback(
                lambda written: written.cancelled() or written.exception()
            )

    def run_between(self, use: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Use the connection between two transactions. Not after ``close``."""
        return run_in(self._thread, lambda: use(self._connection), self._loop)

    async def close(self) -> None:
        """Flush the queue to the disk, then close the connection. From now on items fail if the storage refuses.

        Raises StorageError if the last sync fails, or if the file does not hold what was committed.
        """
        if not self._is_closing:
            self._is_closing = True
            self._closing_event.set()
            if self._retry_timer is not None:
                self._retry_timer.cancel()
                self._flush()
        await self._idle.wait()
        if self._is_closed:
            return
        self._is_closed = True
        known = self._failure
        await self._log.close()
        await run_in(self._thread, self._close_connection, self._loop)
        self._thread.close()
        if self._failure is not None and self._failure is not known:
            raise self._failure

    # --- In the loop -----------------------------------------------------------------------------------------------

    def _start_flush(self) -> None:
        self._is_flush_scheduled = False
        self._next_batch()

    def _next_batch(self) -> None:
        count = min(len(self._queue), self._limits.batch)
        self._batch = [self._queue.popleft() for _ in range(count)]
        if self._batch:
            self._flush()
        else:
            self._idle.set()

    def _flush(self) -> None:
        self._retry_timer = None
        if self._failure is not None:
            self._give_up(self._failure)
            return
        settle = partial(call_in_loop, self._loop, self._settle)
        self._thread.start(partial(self._write, self._batch), settle, is_batch=True)

    def _settle(self, committed: _CommittedBatch, error: BaseException | None) -> None:
        error = self._failure or error
        if error is None:
            self._recover()
            batch = self._batch
            self._next_batch()  # writes the next batch while listeners run
            self._emit_events(self._listener.events_committed, committed.events)
            _resolve(batch, committed, durable=False)
            self._hold(batch, committed)
        elif isinstance(error, FileCutError):
            self._stop_writing(error)
            self._give_up(error)
        elif _is_failed_sync(error):
            self._on_sync_failed(error)
            self._give_up(error)
        elif is_transient(error) and not self._is_closing and self._failure is None:
            self._schedule_retry(error)
        else:
            self._give_up(error)

    def _hold(self, batch: Sequence[_QueuedItem], committed: _CommittedBatch) -> None:
        """Resolve the durable items of a committed batch once it is on the disk."""
        release = partial(self._release, batch, committed)
        if committed.has_changes:
            self._log.hold(release, is_urgent=any(entry.durable for entry in batch))
        else:
            self._log.hold_unchanged(release)

    def _release(self, batch: Sequence[_QueuedItem], committed: _CommittedBatch, error: OSError | None) -> None:
        if self._failure is None:
            assert error is None
            self._emit_events(self._listener.events_durable, committed.events)
            _resolve(batch, committed, durable=True)
        else:
            _fail_all(batch, self._failure)

    def _on_sync_failed(self, error: BaseException) -> None:
        """Write nothing any more: what a later sync says of earlier commits is worthless."""
        why = getattr(error, "strerror", None) or error
        sentence = (
            f"the disk failed while {self._path} was synced ({why}): its last changes may be lost,"
            " and none of them was reported; see the kernel log, then resume"
        )
        self._stop_writing(StorageError(sentence))

    def _stop_writing(self, failure: StorageError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._flush()
        self._listener.writing_failed(failure)

    def _emit_events(self, handle: Callable[[Sequence[Event]], object], events: list[Event]) -> None:
        if not events:
            return
        try:
            handle(events)
        except Exception as error:  # a failing listener must not block the futures
            self._report("a listener of events raised", error)

    def _report(self, message: str, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})

    def _schedule_retry(self, error: BaseException) -> None:
        """Keep the batch and retry it later; after enough tries report DEGRADED."""
        if not self._tries:
            self._failing_since = self._loop.time()
        self._tries += 1
        elapsed = self._loop.time() - self._failing_since
        if not self.is_degraded and (self._tries > self._limits.retries or elapsed >= self._limits.elapsed_seconds):
            self.is_degraded = True
            waiting = f"{counted(self.backlog, 'change')} {'waits' if self.backlog == 1 else 'wait'} in memory"
            self._report_storage(StorageChange.DEGRADED, f"{self._explain(error)}; nothing is lost, {waiting}")
        delay, _ = draw_delay(self._limits.policy, self._tries - 1, None, self._uniform)
        self._retry_timer = self._loop.call_later(delay, self._flush)

    def _recover(self) -> None:
        self._tries = 0
        if self.is_degraded:
            self.is_degraded = False
            lasted = format_duration(int((self._loop.time() - self._failing_since) * 1e6))
            self._report_storage(StorageChange.RECOVERED, f"the state file is written again after {lasted}")

    def _report_storage(self, what: str, sentence: str) -> None:
        try:
            self._listener.storage_changed(what, sentence)
        except Exception as error:
            self._report("the listener of storage problems raised an error", error)

    def _give_up(self, error: BaseException) -> None:
        """Fail the futures of the batch: the file is damaged, or the writer closes while the storage refuses."""
        failure = self._failure or self._explain(error)
        batch = self._batch
        if self._is_closing or self._failure is not None:
            batch += self._queue
            self._queue.clear()
        self._next_batch()
        _fail_all(batch, failure)

    def _explain(self, error: BaseException) -> BaseException:
        return translate(error, self._path) if isinstance(error, sqlite3.Error) else error

    # --- In the thread ---------------------------------------------------------------------------------------------

    def _write(self, batch: Sequence[_QueuedItem]) -> _CommittedBatch:
        self._lengths.require()
        written = run_with_retry(
            lambda: self._write_batch(batch), self._limits.query_delays_seconds, pause=self._closing_event.wait
        )
        self._lengths.update()
        return written

    def _write_batch(self, batch: Sequence[_QueuedItem]) -> _CommittedBatch:
        try:
            return self._transaction(batch, self._run_all)
        except Exception as error:
            if is_transient(error) or primary_code(error) in CORRUPTION_CODES:
                raise
        # One item raised and the whole batch was rolled back: run each item behind its own savepoint.
        return self._transaction(batch, self._run_each)

    def _transaction(
        self, batch: Sequence[_QueuedItem], run: Callable[[Sequence[_QueuedItem]], _CommittedBatch]
    ) -> _CommittedBatch:
        connection = self._connection
        changes = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        try:
            written = run(batch)
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise
        written.has_changes = connection.total_changes != changes
        return written

    def _run_all(self, batch: Sequence[_QueuedItem]) -> _CommittedBatch:
        written = _CommittedBatch()
        for entry in batch:
            transaction = WriterTransaction(self._connection, entry.at, entry.author)
            written.results.append(entry.item(transaction))
            written.events += transaction.events
        return written

    def _run_each(self, batch: Sequence[_QueuedItem]) -> _CommittedBatch:
        written = _CommittedBatch()
        connection = self._connection
        for index, entry in enumerate(batch):
            transaction = WriterTransaction(connection, entry.at, entry.author)
            result = None
            connection.execute("SAVEPOINT item")
            try:
                result = entry.item(transaction)
                written.events += transaction.events
            except Exception as error:
                if is_transient(error) or primary_code(error) in CORRUPTION_CODES:
                    raise
                connection.execute("ROLLBACK TO item")
                written.errors[index] = error
            connection.execute("RELEASE item")
            written.results.append(result)
        return written

    def _close_connection(self) -> None:
        """Close. After a failed sync, or of a file or log cut short, without a checkpoint, which would copy the log
        without checking its sums: a second connection, which may not write, is the last one then.

        Before that the file is read back, while the connection still holds what may be missing in it.
        """
        second = None
        if self._failure is None:
            try:
                self._lengths.require()
                self._lengths.read_back()
            except FileCutError as error:
                self._failure = error
        if self._failure is not None:
            with suppress(sqlite3.Error):
                second = sqlite3.connect(file_uri(self._path, "mode=ro"), uri=True)
                second.execute("SELECT 1 FROM meta").fetchone()
        self._connection.close()
        if second is not None:
            second.close()


def _resolve(batch: Sequence[_QueuedItem], written: _CommittedBatch, *, durable: bool) -> None:
    for index, entry in enumerate(batch):
        if entry.durable is not durable:
            continue
        error = written.errors.get(index)
        if error is None:
            entry.on_committed(written.results[index])
        else:
            entry.on_failed(error)


def _fail_all(batch: Sequence[_QueuedItem], failure: BaseException) -> None:
    for entry in batch:
        entry.on_failed(failure)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll back, unless SQLite has done so itself, as on a full disk."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            if connection.in_transaction:
                raise


def _is_failed_sync(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)


# --- Three layers of retries for writes, each for the errors that the layer below has not handled --------------------
#
# - A: SQLite's own busy handler (``open_writing.BUSY_SECONDS``), invisible to the caller.
# - B: ``run_with_retry`` repeats a statement or transaction if the file was locked for longer.
# - C: ``writer.Writer``: repeats the flush of a batch after transient errors: full disk, input/output error, locked
#   file.
#
# The tries multiply (5 x 3 x 4), so each layer also limits the time since its own first try.


#: Another process holds a lock.
LOCKED_CODES = frozenset([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED])

#: The storage refuses every write now and may accept it later.
TRANSIENT_CODES = LOCKED_CODES | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
}

#: The file is damaged: retries do not help.
CORRUPTION_CODES = frozenset([sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB])


def is_transient(error: BaseException) -> bool:
    """True if a storage error may pass, so that a retry may succeed."""
    return isinstance(error, StorageError) or primary_code(error) in TRANSIENT_CODES


#: Layer B: two retries after 50 and 100 ms, none later than so many seconds after the first try.
QUERY_DELAYS_SECONDS = (0.05, 0.1)
QUERY_ELAPSED_SECONDS = 10.0


class FlushLimits(msgspec.Struct, frozen=True):
    """Layer C. After ``retries`` retries, or ``elapsed_seconds``, the storage counts as degraded.

    A degraded writer keeps its batch and retries every ``cap_seconds``, so that tasks do not fail with the disk.
    """

    retries: int = 3
    backoff_seconds: float = 0.1
    cap_seconds: float = 5.0
    elapsed_seconds: float = 30.0
    batch: int = 2000  # limits memory and lock time; smaller batches were slower (measured)
    query_delays_seconds: Sequence[float] = QUERY_DELAYS_SECONDS  # of layer B

    @property
    def policy(self) -> RetryPolicy:
        """The waits before retries, which have no end: doubling, plus up to 50 % jitter."""
        return RetryPolicy(base=self.backoff_seconds, cap=self.cap_seconds, jitter="add50")

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, on_invalid: Callable[[OptionError], object] | None = None
    ) -> FlushLimits:
        """Read REDRIVE_SIGNAL_SEND_RETRIES and the other settings, or their names with DIGITALKIN_.

        A wrong value is reported to ``on_invalid``, and the default holds: the variable may be meant for the send
        buffer of another program. The flush interval is not read, because waiting for more items only added latency.
        """

        def given(name: str, default: float) -> Any:
            try:
                value = send_setting(environment, name)
            except OptionError as error:
                if on_invalid is not None:
                    on_invalid(error)
                return default
            return default if value is None else value

        default = cls()
        return cls(
            retries=given("retries", default.retries),
            backoff_seconds=given("backoff_ms", default.backoff_seconds * 1000) / 1000,
            elapsed_seconds=given("timeout_seconds", default.elapsed_seconds),
            batch=given("batch_size_max", default.batch),
        )


def run_with_retry(
    work: Callable[[], T],
    delays_seconds: Sequence[float] = QUERY_DELAYS_SECONDS,
    *,
    pause: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> T:
    """Layer B: repeat ``work`` while the file is locked by another process.

    ``work`` is one statement or one whole transaction, and rolls back before it raises. Raises the last error once the
    tries or the time are spent, and other errors at once.
    """
    started = monotonic()
    for delay in delays_seconds:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if primary_code(error) not in LOCKED_CODES or monotonic() - started + delay > QUERY_ELAPSED_SECONDS:
                raise
        pause(delay)
    return work()
