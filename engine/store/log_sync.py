"""Syncs the write-ahead log behind the writer, and holds back what must not happen before its commit is on the disk.

SQLite with ``synchronous=NORMAL`` syncs the log before and the database after a checkpoint, and the header of a log
that starts again (https://sqlite.org/wal.html, sqlite3WalFrames in wal.c): a power cut leaves a whole file with the
first commits, but any number of the last ones is lost. Here one more thread syncs the log all the time, so that these
are the commits of the last milliseconds, and what was reported to anybody waits for its sync ("external synchrony",
Nightingale et al., OSDI 2006):

    waits for the disk                              where
    answers to operators                            executor/loop.py, ``RunLoop.submit``
    the start of an effect, or on another machine   executor/dispatch.py
    the run exists; it has ended or is blocked      executor/opening.py, executor/run_end.py
    pages, the bell                                 notifications/notifier.py, ``Submit``
    pings, lines printed by ``redrive run``         executor/loop.py, ``_on_events_durable``
    the end of the process                          ``Writer.close``
    lists printed by other commands                 ``database.reading``

A screen that follows the run, and lists read over ssh, may show a commit some milliseconds before that.

A sync that fails is never tried again: the kernel reports it once, and drops what it could not write
(https://wiki.postgresql.org/wiki/Fsync_Errors). The descriptor is our own, because SQLite ignores a failed sync of a
checkpoint, and each descriptor gets the error once.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from functools import partial

from .database import path_of
from .one_thread import OneThread, WorkThread, call_in_loop

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
            os.close(self._descriptor)
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
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
