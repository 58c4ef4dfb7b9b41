"""Follows a state file that another process writes: all events since N, then new ones, asynchronously.

A reader asks in a thread, so that a slow disk never blocks the event loop; ``AsyncWriteNotices`` says when.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from ..domain.event_codec import event_of
from ..domain.events import Event
from ..statefile.reader import IDLE_SECONDS, Reader, WriteNotices
from .database import translate

POLL_SECONDS = 0.05  # between two looks while events arrive, and always without inotify
BUSY_SECONDS = 0.25  # after a notice or an event: the commit may follow its notice
BATCH_EVENTS = 500

Result = TypeVar("Result")
_parse = msgspec.json.Decoder().decode


async def follow(
    path: str | os.PathLike[str], since: int, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[list[Event]]:
    """Yield batches of the events after ``since``, in order, each once, for ever.

    Raises SnapshotNeeded if the file was replaced or truncated, so that the caller must load it again, and
    StateFileError or a subclass if the file cannot be read any more.
    """
    reader, notices = Reader(os.fspath(path)), AsyncWriteNotices(os.fspath(path))
    loop = asyncio.get_running_loop()
    busy_until = loop.time() + BUSY_SECONDS
    try:
        while True:
            if await _in_thread(reader.changed):
                busy_until = loop.time() + BUSY_SECONDS
                while rows := await _in_thread(reader.events, since, BATCH_EVENTS):
                    batch = [event_of(row, _parse) for row in rows]
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
        await _in_thread(reader.close)


async def _in_thread(call: Callable[..., Result], *arguments: object) -> Result:
    """Call a method of a reader in a thread. Who is cancelled meanwhile waits for its end: one thread at a time."""
    calling = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    cancelled: asyncio.CancelledError | None = None
    while not calling.done():
        try:
            await asyncio.wait({calling})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        calling.exception()  # nobody asks for it any more
        raise cancelled
    return calling.result()


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
