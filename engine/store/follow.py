"""Follows a state file that another process writes: all events since N, then new ones, asynchronously.

Each follower has a thread of its own, which calls ``reader.Reader``, so that a slow disk never blocks the event loop.
``AsyncWriteNotices`` says when to ask it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from ..domain.event_codec import event_of
from ..domain.events import Event
from ..statefile.reader import IDLE_SECONDS, Reader, WriteNotices
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
    reader, notices = Reader(os.fspath(path)), AsyncWriteNotices(os.fspath(path))
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "redrive-follow")
    call = partial(loop.run_in_executor, thread)
    busy_until = loop.time() + BUSY_SECONDS
    try:
        while True:
            if await call(reader.changed):
                busy_until = loop.time() + BUSY_SECONDS
                while batch := await call(_read_events, reader, since):
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
        await call(reader.close)  # after what the thread still does
        thread.shutdown(wait=False)


def _read_events(reader: Reader, since: int) -> list[Event]:
    return [event_of(row, _parse) for row in reader.events(since, BATCH_EVENTS)]


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
