"""Detects a state file or lock file that was moved or deleted while the executor runs.

SQLite silently continues to write to a deleted file. So once a second the inodes of both paths are compared with the
open files. If the state file is missing, it is copied to ``COPY_SUFFIX`` by SQLite's backup, which includes the
write-ahead log (``cp /proc/PID/fd/N`` would lose all that is not checkpointed), and no more tasks start. A moved file
can be moved back, and the run continues; with its folder its log has moved as well, and no copy is needed. A deleted
file cannot be relinked: the executor ends once no attempt runs, and copies the file again at its end.

A removed or replaced ``-wal`` or ``-shm`` makes the file look older to readers, and SQLite cannot make it again: the
executor ends likewise, after a checkpoint that brings all of it into the state file. A state file or a ``-wal`` that
was cut short ends it at once: see ``../store/log_length.py``.

A deleted lock file is created again, unless another process has created it meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable

from ..domain.event_changes import StorageChange
from ..errors import ExecutorBusyError, StorageError
from ..statefile.file_changes import Stamp, inode_of
from ..statefile.lock_file import lock_path
from ..statefile.processes import open_files
from ..store.copying import COPY_SUFFIX, copy
from ..store.database import checkpoint
from ..store.lock import StateLock
from ..store.writer import Writer
from .storage_health import StorageHealth

_LOGS = ("-wal", "-shm")


class StateFileWatch:
    """Checked at each heartbeat. ``is_missing``: the path is not our file; ``is_deleted``: our file has no path at all.

    ``writer`` has the file open; ``on_lock_taken(error)`` is called if another executor holds the lock.
    """

    def __init__(
        self,
        state_path: str,
        lock: StateLock,
        storage: StorageHealth,
        writer: Writer,
        on_lock_taken: Callable[[BaseException], None],
    ) -> None:
        self.is_missing = False
        self.is_deleted = False
        self._now_at: str | None = None  # of a moved file
        self._path = os.path.abspath(state_path)
        self._opened = inode_of(self._path)
        self._logs = {path: inode_of(path) for path in (f"{os.path.realpath(self._path)}{suffix}" for suffix in _LOGS)}
        self._removed_log: str | None = None
        self._lock = lock
        self._storage = storage
        self._writer = writer
        self._on_lock_taken = on_lock_taken

    def check(self) -> None:
        """Compare both paths with the open files, and report a change."""
        self._check_lock()
        if self._removed_log is not None:
            return
        is_away = bool(self._opened) and inode_of(self._path) != self._opened
        now_at = _path_of(self._opened) if is_away else None
        if is_away and (not self.is_missing or now_at != self._now_at):
            self._on_missing(now_at)
        elif self.is_missing and not is_away:
            self.is_deleted = False
            self._storage.on_file_change(None)
        self.is_missing = is_away
        if not is_away:
            self._check_logs()
            self._writer.check_files()

    def missing_error(self) -> StorageError:
        """Return the error that ends the executor once no attempt runs."""
        return StorageError(str(self._storage.problem))

    async def copy_if_missing(self) -> None:
        """Copy a missing file again after the last write of the executor. Raises StorageError."""
        if self._removed_log is not None:
            await self._writer.run_between(checkpoint)
        elif self.is_missing and not self._is_folder_away():
            await self._copy()

    def _check_logs(self) -> None:
        removed = [path for path, inode in self._logs.items() if inode and inode_of(path) != inode]
        if not removed:
            return
        self._removed_log = removed[0]
        self.is_missing = self.is_deleted = True
        resume = shlex.join(["redrive", "resume", self._path])
        self._storage.on_file_change(
            f"a process has removed {self._removed_log}, which holds the latest changes: this executor brings them into"
            f" {self._path} and ends; then {resume}"
        )
        self._writer.run_between(checkpoint).add_done_callback(lambda done: done.cancelled() or done.exception())

    # --- The state file --------------------------------------------------------------------------------------------

    def _on_missing(self, now_at: str | None) -> None:
        self._now_at, self.is_deleted = now_at, now_at is None
        self._storage.on_file_change(self._sentence(now_at))
        if not self._is_folder_away():
            self._copy().add_done_callback(self._on_copied)

    def _is_folder_away(self) -> bool:
        """Whether the file is elsewhere together with its folder, and so with its log."""
        return self._now_at is not None and not os.path.exists(os.path.dirname(self._path))

    def _copy(self) -> asyncio.Future[None]:
        target = self._path + COPY_SUFFIX
        return self._writer.run_between(lambda connection: copy(connection, target))

    def _on_copied(self, copied: asyncio.Future[None]) -> None:
        error = None if copied.cancelled() else copied.exception()
        if error is not None and self.is_missing:
            rest = f"its data is lost when pid {os.getpid()} ends"
            what = f"{self._what()} {self._path}" if self._now_at is None else self._back(self._now_at)
            self._storage.on_file_change(f"{what}, and {error}: {rest}")

    def _what(self) -> str:
        return "another file is in the place of" if os.path.exists(self._path) else "a process has removed"

    def _sentence(self, now_at: str | None) -> str:
        copied, resume = self._path + COPY_SUFFIX, shlex.join(["redrive", "resume", self._path])
        if now_at is not None and self._is_folder_away():
            return f"the folder of {self._back(now_at)}; nothing is lost"
        if now_at is not None:
            return f"{self._back(now_at)}; a full copy is {copied}"
        back = shlex.join(["mv", copied, self._path])
        what = f"{self._what()} {self._path}; all of it is kept in {copied}"
        return f"{what}: when this executor has ended, {back} && {resume}"

    def _back(self, now_at: str) -> str:
        """Say how to move the file back, or the highest of its folders that was moved."""
        here = self._path
        while not os.path.exists(os.path.dirname(here)) and os.path.basename(here) == os.path.basename(now_at):
            here, now_at = os.path.dirname(here), os.path.dirname(now_at)
        return f"{self._path} was moved: {shlex.join(['mv', now_at, here])} and the run goes on"

    # --- The lock --------------------------------------------------------------------------------------------------

    def _check_lock(self) -> None:
        status = os.fstat(self._lock.fileno())
        if inode_of(lock_path(self._path)) == (status.st_dev, status.st_ino):
            return
        try:
            is_created = self._lock.reacquire(self._path)
        except ExecutorBusyError as error:
            self._on_lock_taken(error)
            return
        except StorageError:
            return  # the folder is gone as well: the missing state file is reported
        if is_created:
            sentence = f"the lock file of {self._path} had been removed and was made again"
            self._storage.emit(StorageChange.LOCK, sentence)


def _path_of(opened: Stamp) -> str | None:
    """Return the current path of a file that this process has open; None: it was deleted."""
    return next((path for path in open_files().values() if path.startswith("/") and inode_of(path) == opened), None)
