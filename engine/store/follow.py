"""Follows a state file that another process writes: all events since N, then new ones, asynchronously.

``reader.Follower`` yields the queries, and ``AsyncWriteNotices`` says when to ask them. ``aiosqlite`` gives each
follower its own thread, so that a slow disk never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from queue import SimpleQueue

import aiosqlite
import msgspec

from ..domain.event_codec import event_of
from ..domain.events import Event
from ..statefile import opening
from ..statefile.reader import IDLE_SECONDS, Follower, Result, Steps, WriteNotices, lenient_text
from .database import translate

POLL_SECONDS = 0.05  # between two looks while events arrive, and always without inotify
BUSY_SECONDS = 0.25  # after a notice or an event: the commit may follow its notice
BATCH_EVENTS = 500

_parse = msgspec.json.Decoder().decode


async def follow(
    path: str | os.PathLike[str], since: int, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[list[Event]]:
    """Yield batches of the events after ``since``, in order, each once, for ever.

    Raises SnapshotNeeded if the file was replaced or truncated, so that the caller must load it again, and
    StateFileError or a subclass if the file cannot be read any more.
    """
    reader, notices = _AsyncReader(os.fspath(path)), AsyncWriteNotices(os.fspath(path))
    loop = asyncio.get_running_loop()
    busy_until = loop.time() + BUSY_SECONDS
    try:
        while True:
            if await reader.changed():
                busy_until = loop.time() + BUSY_SECONDS
                while batch := await reader.events(since):
                    since = batch[-1].seq
                    yield batch
                    if len(batch) < BATCH_EVENTS:
                        break
            if loop.time() < busy_until:
                await asyncio.sleep(poll_seconds)
            elif await notices.wait(poll_seconds):
                busy_until = loop.time() + BUSY_SECONDS
    except sqlite3.Error as error:
        raise translate(error, os.fspath(path)) from error
    finally:
        notices.close()
        await reader.close()


class _AsyncReader:
    """``reader.Reader`` for an event loop."""

    def __init__(self, path: str) -> None:
        self._follower = Follower(path)
        self._path = path
        self._database: aiosqlite.Connection | None = None
        self._thread = threading.current_thread()  # of the database

    async def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            try:
                await database.close()
            finally:  # also when it is cancelled: the thread reports to the loop, which may be closed next
                self._thread.join()

    async def changed(self) -> bool:
        database = self._database
        if database is None or self._follower.is_reopen_due():
            database = await self._open()
        return await _run_queries(database, self._follower.changed())

    async def events(self, since: int) -> list[Event]:
        assert self._database is not None
        rows = await _run_queries(self._database, self._follower.events(since, BATCH_EVENTS))
        return [event_of(row, _parse) for row in rows]

    async def _open(self) -> aiosqlite.Connection:
        await self.close()
        self._follower.prepare_open()
        # Not by aiosqlite, whose thread would outlive an error.
        connection, still = await asyncio.to_thread(opening.open_readonly, self._path)
        threads = SimpleQueue[threading.Thread]()

        def connect() -> sqlite3.Connection:
            threads.put(threading.current_thread())
            return connection

        database = aiosqlite.Connection(connect, iter_chunk_size=BATCH_EVENTS)
        try:
            await database
        except asyncio.CancelledError:
            threads.get().join()
            connection.close()
            raise
        self._database, self._thread = database, threads.get()
        await _run_queries(database, self._follower.verify_identity(still))
        return database


async def _run_queries(database: aiosqlite.Connection, steps: Steps[Result]) -> Result:
    try:
        sql, values = next(steps)
        while True:
            rows = await _fetch(database, sql, values)
            sql, values = steps.send([tuple(row) for row in rows])
    except StopIteration as end:
        result: Result = end.value
        return result


async def _fetch(database: aiosqlite.Connection, sql: str, values: Sequence[object]) -> Iterable[sqlite3.Row]:
    """Fetch rows; after an error again by ``lenient_text``, which is called for each text and costs time."""
    try:
        return await database.execute_fetchall(sql, values)
    except sqlite3.OperationalError:
        if database.text_factory is lenient_text:
            raise
        database.text_factory = lenient_text
        return await database.execute_fetchall(sql, values)


class AsyncWriteNotices:
    """Notices of writes to a state file (``statefile/reader.py``), for the running event loop. Close it."""

    def __init__(self, path: str) -> None:
        self._notices = WriteNotices(path)
        self._noticed = asyncio.Event()
        if self._notices.descriptor is not None:
            asyncio.get_running_loop().add_reader(self._notices.descriptor, self._on_readable)

    def close(self) -> None:
        if self._notices.descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._notices.descriptor)
            self._notices.close()

    async def wait(self, poll_seconds: float) -> bool:
        """Wait for a notice, at most IDLE_SECONDS; without inotify for ``poll_seconds``. Returns whether one came.

        A notice since the last call counts.
        """
        if not self._notices.watch():
            await asyncio.sleep(poll_seconds)
            return False
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._noticed.wait()
        except TimeoutError:
            return False
        self._noticed.clear()
        return True

    def _on_readable(self) -> None:
        self._notices.clear()
        self._noticed.set()
