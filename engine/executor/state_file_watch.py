"""Whether the state file and its lock are still where they were: whoever removes or moves them stops no executor.

SQLite goes on writing to a file that has lost its name, and says nothing. So once a second the names are compared with
what was opened. A state file that is not there any more is kept: all that is known is copied beside it with SQLite's
own backup, which reads the write-ahead log as well; ``cp /proc/PID/fd/N`` copies the file without it, and leaves out
whatever is not checkpointed. Nothing more is started. What was only moved may be moved back, and the run goes on; what
was removed has no way back to its name, so the executor leaves when nothing runs any more, and the copy holds that too.

A lock file that was removed is made again, as long as nobody else has taken its name.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable

from ..domain.event_payloads import StorageChange
from ..errors import ExecutorBusyError, StorageError
from ..statefile.lock_file import lock_path
from ..store.copying import copy
from ..store.lock import StateLock
from ..store.writer import Writer
from .storage_health import StorageHealth

COPY_SUFFIX = ".rescued"

Inode = tuple[int, int]


def inode_of(path: str) -> Inode | None:
    """Which file has this name now."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Whereabouts:
    """Looks at each heartbeat. ``is_lost``: the state file has no name any more, and none can be given back to it.

    ``writer`` has the file open; ``on_usurped(error)``: another executor writes it.
    """

    def __init__(
        self,
        state_path: str,
        lock: StateLock,
        storage: StorageHealth,
        writer: Writer,
        on_usurped: Callable[[BaseException], None],
    ) -> None:
        self.is_away = False
        self.is_lost = False
        self._path = os.path.abspath(state_path)
        self._opened = inode_of(self._path)
        self._lock = lock
        self._storage = storage
        self._writer = writer
        self._on_usurped = on_usurped

    def look(self) -> None:
        """Compare names with what was opened, and say what has changed."""
        self._look_for_the_lock()
        is_away = self._opened is not None and inode_of(self._path) != self._opened
        if is_away and not self.is_away:
            self._copy_and_say()
        elif self.is_away and not is_away:
            self.is_lost = False
            self._storage.hear_of_the_file(None)
        self.is_away = is_away

    def error(self) -> StorageError:
        """What the executor ends with, once nothing runs any more."""
        return StorageError(str(self._storage.trouble))

    async def copy_again(self) -> None:
        """The last word of an executor whose file is lost belongs into the copy. Raises StorageError."""
        if self.is_away:
            await self._copy()

    # --- The state file --------------------------------------------------------------------------------------------

    def _copy_and_say(self) -> None:
        now_at = _name_of(self._opened)
        self.is_lost = now_at is None
        self._storage.hear_of_the_file(self._sentence(now_at))
        self._copy().add_done_callback(self._copied)

    def _copy(self) -> asyncio.Future[None]:
        target = self._path + COPY_SUFFIX
        return self._writer.aside(lambda connection: copy(connection, target))

    def _copied(self, copied: asyncio.Future[None]) -> None:
        error = None if copied.cancelled() else copied.exception()
        if error is not None and self.is_away:
            rest = f"the file is all there is, as long as pid {os.getpid()} lives"
            self._storage.hear_of_the_file(f"{self._what()} {self._path}, and {error}: {rest}")

    def _what(self) -> str:
        return "another file is in the place of" if os.path.exists(self._path) else "somebody has removed"

    def _sentence(self, now_at: str | None) -> str:
        copied, resume = self._path + COPY_SUFFIX, shlex.join(["redrive", "resume", self._path])
        if now_at is not None:
            back = shlex.join(["mv", now_at, self._path])
            return f"{self._path} was moved: {back} and the run goes on; a copy of it all is {copied}"
        back = shlex.join(["mv", copied, self._path])
        what = f"{self._what()} {self._path}; all of it is kept in {copied}"
        return f"{what}: when this executor has left, {back} && {resume}"

    # --- The lock --------------------------------------------------------------------------------------------------

    def _look_for_the_lock(self) -> None:
        status = os.fstat(self._lock.fileno())
        if inode_of(lock_path(self._path)) == (status.st_dev, status.st_ino):
            return
        try:
            again = self._lock.take_again(self._path)
        except ExecutorBusyError as error:
            self._on_usurped(error)
            return
        except StorageError:
            return  # its folder is gone as well: that of the state file is the news
        if again:
            said = f"the lock file of {self._path} had been removed and was made again"
            self._storage.tell(StorageChange.LOCK, said)


def _name_of(opened: Inode | None) -> str | None:
    """Which name a file has that this process has open; None where it has none any more."""
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if path.startswith("/") and inode_of(path) == opened:
            return path
    return None
