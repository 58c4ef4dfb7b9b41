"""Everything since N, then live: the asynchronous read side of a state file that another process writes.

Asks ``PRAGMA data_version`` at every poll (14 us), which changes with each commit of somebody else; watching the log by
inotify was quicker but missed the last commit of a run (measured). No transaction outlives a poll, or the writer's log
would grow without bound. ``aiosqlite`` gives each follower a thread of its own, so that no disk ever holds up a loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiosqlite

from ..core.events import Event
from ..errors import SnapshotNeeded
from . import ladder
from .database import translate
from .runs import event_of, events_query

POLL_SECONDS = 0.05
BATCH_EVENTS = 500
LOOK_AGAIN_SECONDS = 2.0  # at most so often is a live file opened anew, to see that it is the same one

_WHOLE = "SELECT (SELECT value FROM meta WHERE key = 'uuid'), (SELECT seq FROM sqlite_sequence WHERE name = 'event')"

Trace = tuple[int, ...]  # what ``stat`` says of a file; empty where there is none


async def follow(
    path: str | os.PathLike[str], since: int, run_id: str | None = None, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[list[Event]]:
    """Yield batches of the events after ``since``, in order, none twice, for ever; with ``run_id`` of that run alone.

    Raises SnapshotNeeded when another file has taken the place of the one that was followed, or it was cut back: what
    is known must be read anew. Raises StateFileError or one of its kinds when there is nothing to read any more.
    """
    view = _View(os.fspath(path))
    try:
        while True:
            if await view.has_changed(since):
                while batch := await view.events(since, run_id):
                    since = batch[-1].seq
                    yield batch
                    if len(batch) < BATCH_EVENTS:
                        break
            await asyncio.sleep(poll_seconds)
    except sqlite3.Error as error:
        raise translate(error, view.path) from error
    finally:
        await view.close()


@dataclass(frozen=True, slots=True)
class _Traces:
    """The file and what SQLite keeps beside it, from outside."""

    file: Trace
    log: Trace
    shared: Trace  # somebody has the file open, or crashed


class _View:
    """One way of looking at the file, replaced by another when the file says so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._database: aiosqlite.Connection | None = None
        self._still = False  # shows one moment: the file is at rest, or a copy is read
        self._uuid: str | None = None
        self._traces = _Traces((), (), ())
        self._looked_at = 0.0
        self._version: int | None = None

    async def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            await database.close()

    async def has_changed(self, since: int) -> bool:
        """True if something may have been committed since the last call."""
        database = self._database
        if database is None or self._is_another_look_due(_traces(self.path)):
            database = await self._look(since)
        if self._still:
            version = 0
        else:
            ((version,),) = await database.execute_fetchall("PRAGMA data_version")
        changed, self._version = version != self._version, version
        return changed

    async def events(self, since: int, run_id: str | None) -> list[Event]:
        assert self._database is not None
        sql, values = events_query(since, run_id, BATCH_EVENTS)
        return [event_of(tuple(row)) for row in await self._database.execute_fetchall(sql, values)]

    def _is_another_look_due(self, traces: _Traces) -> bool:
        old = self._traces
        if traces.file[:2] != old.file[:2]:
            return True
        if self._still and not old.shared:
            return traces != old  # at rest until now: any writer leaves a trace
        if self._still or traces.file != old.file:
            # Live but closed to us; or a checkpoint of its executor, unless somebody wrote over it in place.
            return time.monotonic() - self._looked_at > LOOK_AGAIN_SECONDS
        return False

    async def _look(self, since: int) -> aiosqlite.Connection:
        """Open the file, or open it again, and hold it against what was followed."""
        await self.close()
        self._traces, self._looked_at = _traces(self.path), time.monotonic()
        self._version = None
        # Not by aiosqlite itself: its thread outlives a refusal.
        look = await asyncio.to_thread(ladder.look, self.path)
        self._still = look.still
        database = aiosqlite.Connection(lambda: look.connection, iter_chunk_size=BATCH_EVENTS)
        await database
        self._database = database
        ((uuid, head),) = await database.execute_fetchall(_WHOLE)
        if self._uuid is not None and uuid != self._uuid:
            raise SnapshotNeeded(f"another state file is in the place of {self.path}")
        if (head or 0) < since:
            raise SnapshotNeeded(f"{self.path} holds less than was read from it before")
        self._uuid = uuid
        return database


def _traces(path: str) -> _Traces:
    return _Traces(_trace(path), _trace(path + "-wal"), _trace(path + "-shm"))


def _trace(path: str) -> Trace:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
