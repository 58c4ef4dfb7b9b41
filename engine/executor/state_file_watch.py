"""Whether the state file can be written, and whether it is where it was opened.

While writes fail, no more tasks start; running attempts continue and their results wait in memory. Listeners get a
DEGRADED event at once, which cannot be stored; the RECOVERED event is stored once writes succeed again.

SQLite silently continues to write to a deleted file. So once a second the inodes of both paths are compared with the
open files. If the state file is missing, it is copied by SQLite's backup, which includes the write-ahead log
(``cp /proc/PID/fd/N`` would lose all that is not checkpointed), and no more tasks start. What was moved can be moved
back within ``MOVED_SECONDS``, and the run continues; with its folder its log has moved as well, and no copy is
needed. A deleted file cannot be relinked: the executor ends once no attempt runs, and copies the file at its end.

A removed or replaced ``-wal`` or ``-shm`` makes the file look older to readers, and SQLite cannot make it again: the
executor ends likewise, after a checkpoint that brings all of it into the state file. A state file or a ``-wal`` that
was cut short ends it at once, and before an end as a success the file is read back: see
``../store/write_ahead_log.py``.

A deleted lock file is created again, unless another process has created it meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..clock import Clock
from ..domain.event_payloads import StorageChange, StorageChanged
from ..domain.events import Event, EventKind
from ..domain.text import shell_command
from ..errors import ExecutorBusyError, StorageError
from ..statefile.lock_file import lock_path
from ..statefile.processes import open_files
from ..statefile.reader import Stamp, inode_of
from ..store.database import checkpoint, restoring_steps
from ..store.lock import StateLock
from ..store.write_ahead_log import copy, free_copy_path
from ..store.writer import Writer
from .active_run import WriteInTransaction

_LOGS = ("-wal", "-shm")
MOVED_SECONDS = 300.0  # for a human to move the files of an idle executor back


class StorageHealth:
    """Knows why the state file cannot be written, and since when. ``notify`` passes events to the listeners."""

    def __init__(self, clock: Clock, write: WriteInTransaction, notify: Callable[[Sequence[Event]], None]) -> None:
        self._write_problem: str | None = None
        self._file_problem: str | None = None
        self.since: int | None = None  # microseconds UTC: when the problem began
        self._clock = clock
        self._write = write
        self._notify = notify

    @property
    def problem(self) -> str | None:
        """Why the state file cannot be written, in one sentence; None: it can be. A missing file comes first."""
        return self._file_problem or self._write_problem

    def on_writer_change(self, what: str, sentence: str) -> None:
        """Handle DEGRADED or RECOVERED of StorageChange, as reported by the writer."""
        is_degraded = what == StorageChange.DEGRADED
        self._write_problem = sentence if is_degraded else None
        self._date()
        if is_degraded:
            payload = StorageChanged(what, sentence)
            self._notify([Event._make((0, self._clock.now_us(), EventKind.STORAGE, *[None] * 9, payload))])
        else:
            with suppress(StorageError):  # the writer is closing, and its last try has succeeded
                self.emit(what, sentence)

    def on_file_change(self, sentence: str | None) -> None:
        """Handle a missing state file (``sentence``: what to do), or a restored one (None)."""
        self._file_problem = sentence
        self._date()
        self.emit(
            StorageChange.DEGRADED if sentence else StorageChange.RECOVERED,
            sentence or "the state file is back in its place",
        )

    def _date(self) -> None:
        self.since = None if self.problem is None else self.since or self._clock.now_us()

    def shift_clock(self, jump_us: int) -> None:
        """Let a problem have lasted as long as before a step of the clock."""
        if self.since is not None:
            self.since += jump_us

    def emit(self, what: str, sentence: str) -> None:
        """Write an event; a missing file can still be written through its open descriptor."""
        payload = StorageChanged(what, sentence)
        self._write(lambda transaction: transaction.emit(payload))


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
        self._moves: tuple[tuple[str, str], ...] = ()  # paths from and to, which put moved files back
        self._idle_since: float | None = None  # of an executor that waits for a moved file, on the clock of the loop
        self._path = os.path.abspath(state_path)
        self._is_link = os.path.islink(self._path)
        self._opened = inode_of(self._path)
        self._logs = {path: inode_of(path) for path in (f"{os.path.realpath(self._path)}{suffix}" for suffix in _LOGS)}
        self._removed_log: str | None = None
        self._rescued: str | None = None  # the path of the copy
        self._copy_error: BaseException | None = None
        self._lock = lock
        self._storage = storage
        self._writer = writer
        self._on_lock_taken = on_lock_taken

    def check(self) -> None:
        """Compare both paths with the open files, and report a change."""
        self._check_lock()
        if self._removed_log is not None:
            return
        # A link in the place of the file: SQLite names the log after the end of the link.
        is_linked_away = not self._is_link and os.path.islink(self._path)
        is_away = bool(self._opened) and (inode_of(self._path) != self._opened or is_linked_away)
        moves = self._find_moves() if is_away else ()
        if is_away and (not self.is_missing or moves != self._moves):
            self._on_missing(moves)
        elif self.is_missing and not is_away:
            self.is_deleted, self._idle_since = False, None
            self._storage.on_file_change(None)
        self.is_missing = is_away
        if not is_away:
            self._check_logs()
            self._writer.check_files()

    def is_given_up(self, now: float) -> bool:
        """Whether an executor of which nothing runs waits no longer, at ``now`` of the loop's clock, for the file."""
        if self._idle_since is None:
            self._idle_since = now
        return self.is_deleted or now >= self._idle_since + MOVED_SECONDS

    def missing_error(self) -> StorageError:
        """Return the error that ends the executor once no attempt runs."""
        return StorageError(str(self._storage.problem))

    async def save(self) -> None:
        """Save a file that is missing after the last write of the executor.

        Raises StorageError, with what to do, if what was written is not at the path of the state file then.
        """
        self.check()
        if self._removed_log is not None:
            await self._writer.run_between(checkpoint)
        elif self.is_missing:
            if self._is_copied():
                self._copy_error = (await asyncio.gather(self._copy(), return_exceptions=True))[0]
            if not self._moves and self._copy_error is None:
                self._remove_logs()
            raise StorageError(self._explain(is_ended=True))

    def _check_logs(self) -> None:
        removed = [path for path, inode in self._logs.items() if inode and inode_of(path) != inode]
        if not removed:
            return
        self._removed_log = removed[0]
        self.is_missing = self.is_deleted = True
        resume = shell_command(["redrive", "resume", self._path])
        self._storage.on_file_change(
            f"a process has removed {self._removed_log}, which holds the latest changes: this executor brings them into"
            f" {self._path} and ends; then {resume}"
        )
        self._writer.run_between(checkpoint).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _remove_logs(self) -> None:
        """Remove the log that SQLite would join with another file in this place; the copy has all of it."""
        for path, inode in self._logs.items():
            if inode and inode_of(path) == inode:
                with suppress(OSError):
                    os.unlink(path)

    # --- The state file --------------------------------------------------------------------------------------------

    def _on_missing(self, moves: tuple[tuple[str, str], ...]) -> None:
        self._moves, self.is_deleted, self._copy_error = moves, not moves, None
        if self._is_copied():
            self._copy().add_done_callback(self._on_copied)
        self._storage.on_file_change(self._explain(is_ended=False))

    def _find_moves(self) -> tuple[tuple[str, str], ...]:
        """Return what puts a moved file back, with its logs, or their folder; the file is the last. Empty: deleted."""
        places = open_paths()
        now_at = places.get(self._opened)
        if now_at is None:
            return ()
        folder = os.path.dirname(self._path)
        if not os.path.exists(folder) and os.path.basename(now_at) == os.path.basename(self._path):
            return (_highest_move(now_at, self._path),)
        logs = [(places.get(inode), path) for path, inode in self._logs.items() if inode_of(path) != inode]
        return (*((found, path) for found, path in logs if found is not None), (now_at, self._path))

    def _is_copied(self) -> bool:
        """Whether a copy is made: one in a folder that was moved would be in the way of its return."""
        return not self._moves or os.path.exists(os.path.dirname(self._path))

    def _copy(self) -> asyncio.Future[None]:
        if self._rescued is None:
            self._rescued = free_copy_path(self._path)
        target = self._rescued
        return self._writer.run_between(lambda connection: copy(connection, target))

    def _on_copied(self, copied: asyncio.Future[None]) -> None:
        self._copy_error = None if copied.cancelled() else copied.exception()
        if self._copy_error is not None and self.is_missing:
            self._storage.on_file_change(self._explain(is_ended=False))

    def _explain(self, *, is_ended: bool) -> str:
        """Say what happened to the file and what to do. ``is_ended``: this executor leaves now."""
        if self._moves:
            return self._explain_move(is_ended=is_ended)
        is_replaced = os.path.lexists(self._path)
        what = f"another file is in the place of {self._path}" if is_replaced else f"a process has removed {self._path}"
        if self._copy_error is not None:
            lost = "what this executor wrote is lost" if is_ended else f"its data is lost when pid {os.getpid()} ends"
            return f"{what}, and {self._copy_error}: {lost}"
        assert self._rescued is not None
        steps = restoring_steps(self._path, self._rescued, is_replaced=is_replaced)
        when = "" if is_ended else "when this executor has ended, "
        return f"{what}; all of it is kept in {self._rescued}: {when}{steps}"

    def _explain_move(self, *, is_ended: bool) -> str:
        commands = [["mv", *move] for move in self._moves]
        is_folder_moved = self._moves[-1][1] != self._path
        if not is_folder_moved and not self._is_copied():
            commands = [["mkdir", "-p", os.path.dirname(self._path)], *commands]
        if is_ended:
            commands = [*commands, ["redrive", "resume", self._path]]
        what = f"the folder of {self._path} was moved" if is_folder_moved else f"{self._path} was moved"
        back = " && ".join(map(shell_command, commands)) + ("" if is_ended else " and the run goes on")
        is_saved = self._is_copied() and self._copy_error is None
        return f"{what}: {back}; " + (f"a full copy is {self._rescued}" if is_saved else "nothing is lost")

    # --- The lock --------------------------------------------------------------------------------------------------

    def _check_lock(self) -> None:
        status = os.fstat(self._lock.fileno())
        if inode_of(lock_path(self._path)) == (status.st_dev, status.st_ino):
            return
        try:
            is_created = self._lock.reacquire()
        except ExecutorBusyError as error:
            self._on_lock_taken(error)
            return
        except StorageError:
            return  # the folder is gone as well: the missing state file is reported
        if is_created:
            sentence = f"the lock file of {self._path} had been removed and was made again"
            self._storage.emit(StorageChange.LOCK, sentence)


def _highest_move(now_at: str, path: str) -> tuple[str, str]:
    """Return the move of the highest folder above ``path`` that was moved."""
    while not os.path.exists(os.path.dirname(path)) and os.path.basename(path) == os.path.basename(now_at):
        path, now_at = os.path.dirname(path), os.path.dirname(now_at)
    return now_at, path


def open_paths() -> dict[Stamp, str]:
    """Return the current paths of the files that this process has open; a deleted one has none."""
    found = {inode_of(path): path for path in open_files().values() if path.startswith("/")}
    return {inode: path for inode, path in found.items() if inode}
