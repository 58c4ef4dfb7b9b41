"""Everything since N, then live: the asynchronous read side of a state file that another process writes.

``reader.Follower`` says what to ask. ``aiosqlite`` gives each follower of the file a thread of its own, so that no disk
ever holds up a loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator

import aiosqlite

from ..domain.events import Event
from ..statefile import open_readonly
from ..statefile.reader import Follower, Result, Steps, forgiving_text
from .database import translate
from .runs import event_of

POLL_SECONDS = 0.05
BATCH_EVENTS = 500


async def follow(
    path: str | os.PathLike[str], since: int, run_id: str | None = None, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[list[Event]]:
    """Yield batches of the events after ``since``, in order, none twice, for ever; with ``run_id`` of that run alone.

    Raises SnapshotNeeded when another file has taken the place of the one that was followed, or it was cut back: what
    is known must be read anew. Raises StateFileError or one of its kinds when there is nothing to read any more.
    """
    reader = _AsyncReader(os.fspath(path))
    try:
        while True:
            if await reader.changed():
                while batch := await reader.events(since, run_id):
                    since = batch[-1].seq
                    yield batch
                    if len(batch) < BATCH_EVENTS:
                        break
            await asyncio.sleep(poll_seconds)
    except sqlite3.Error as error:
        raise translate(error, os.fspath(path)) from error
    finally:
        await reader.close()


class _AsyncReader:
    """``reader.Reader`` for an event loop."""

    def __init__(self, path: str) -> None:
        self._follower = Follower(path)
        self._path = path
        self._database: aiosqlite.Connection | None = None

    async def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            await database.close()

    async def changed(self) -> bool:
        database = self._database
        if database is None or self._follower.is_opening_due():
            database = await self._open()
        return await _ask(database, self._follower.changed())

    async def events(self, since: int, run_id: str | None) -> list[Event]:
        assert self._database is not None
        rows = await _ask(self._database, self._follower.events(since, BATCH_EVENTS, run_id))
        return [event_of(row) for row in rows]

    async def _open(self) -> aiosqlite.Connection:
        await self.close()
        self._follower.before_opening()
        # Not by aiosqlite itself: its thread outlives a refusal.
        connection, still = await asyncio.to_thread(open_readonly.look, self._path)
        connection.text_factory = forgiving_text
        database = aiosqlite.Connection(lambda: connection, iter_chunk_size=BATCH_EVENTS)
        await database
        self._database = database
        await _ask(database, self._follower.opened(still))
        return database


async def _ask(database: aiosqlite.Connection, steps: Steps[Result]) -> Result:
    try:
        sql, values = next(steps)
        while True:
            rows = await database.execute_fetchall(sql, values)
            sql, values = steps.send([tuple(row) for row in rows])
    except StopIteration as end:
        result: Result = end.value
        return result
