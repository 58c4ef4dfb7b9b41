"""Everything since N, then live: the asynchronous read side of a state file that another process writes.

Asks ``PRAGMA data_version`` at every poll (14 us), which changes with each commit of somebody else; watching the log by
inotify was quicker but missed the last commit of a run (measured). No transaction outlives a poll, or the writer's log
would grow without bound. ``aiosqlite`` gives each follower a thread of its own, so that no disk ever holds up a loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator

import aiosqlite

from ..core.events import Event
from ..errors import SnapshotNeeded
from . import ladder
from .database import translate
from .runs import event_of, events_query
from .traces import Watch

POLL_SECONDS = 0.05
BATCH_EVENTS = 500

_WHOLE = "SELECT (SELECT value FROM meta WHERE key = 'uuid'), (SELECT seq FROM sqlite_sequence WHERE name = 'event')"

_ENDS = "SELECT (SELECT min(seq) FROM event), (SELECT seq FROM sqlite_sequence WHERE name = 'event')"


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


class _View:
    """One way of looking at the file, replaced by another when the file says so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._database: aiosqlite.Connection | None = None
        self._still = False  # shows one moment: the file is at rest, or a copy is read
        self._uuid: str | None = None
        self._watch = Watch(path)
        self._version: int | None = None

    async def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            await database.close()

    async def has_changed(self, since: int) -> bool:
        """True if something may have been committed since the last call."""
        database = self._database
        if database is None or self._watch.is_another_look_due(self._still):
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
        found = [event_of(tuple(row)) for row in await self._database.execute_fetchall(sql, values)]
        if since and not (found and found[0].seq == since + 1):
            await self._demand_kept(since)
        return found

    async def _demand_kept(self, since: int) -> None:
        """Raises SnapshotNeeded where what followed ``since`` was pruned: the events would seem whole and are not."""
        assert self._database is not None
        ((oldest, head),) = await self._database.execute_fetchall(_ENDS)
        if (head or 0) > since and (oldest is None or oldest > since + 1):
            raise SnapshotNeeded(f"older events were removed from {self.path} meanwhile")

    async def _look(self, since: int) -> aiosqlite.Connection:
        """Open the file, or open it again, and hold it against what was followed."""
        await self.close()
        self._watch = Watch(self.path)
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
