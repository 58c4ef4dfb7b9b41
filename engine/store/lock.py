"""Ownership of a state file: an exclusive flock on ``<state>.lock``, inherited by every process of the owner.

A free lock means that no process of an old run lives, except those that closed the inherited descriptor: these carry
the token of their executor in their environment, and are killed before their tasks run again (SPEC 4.9, 4.11).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Collection

from ..clock import wall_time_us
from ..domain.text import format_duration, shell_command
from ..errors import ExecutorBusyError, StorageError
from ..runner import reaper
from ..statefile import ownership
from ..statefile.lock_file import LockHolder, current_holder, lock_path, read_holder, try_lock
from ..statefile.processes import ancestors, identity

PATIENCE_SECONDS = 10.0  # for a client that applies one command, as long as that waits for an executor
POLL_SECONDS = 0.02  # between polls: the release of a flock sends no event
KILL_SECONDS = 5.0  # until a process has gone after SIGKILL


class StateLock:
    """A held lock. Children inherit it through ``fileno``; it is free when the last of them has ended."""

    def __init__(self, descriptor: int, holder: LockHolder, state_path: str, is_new: bool) -> None:
        self._descriptor = descriptor
        self._files: list[int] = []  # of the state file, locked as well
        self._state_path = state_path
        self._path = lock_path(state_path)
        self._is_new = is_new
        self.holder = holder

    def fileno(self) -> int:
        return self._descriptor

    @property
    def is_in_place(self) -> bool:
        """Whether others find this lock: they acquire another one if its file was removed. Raises OSError."""
        return ownership.is_current_file(self._descriptor, self._path)

    def lock_file(self, *, wait: bool = False) -> None:
        """Lock the state file itself, once it is there: a bind mount gives it another name with another lock file.

        By an flock, which leaves SQLite's locks alone, but for one thing: whoever closes a descriptor of the file drops
        those of the process. So it stays open until the lock is released, after the end of SQLite.

        Raises ExecutorBusyError, StorageError.
        """
        if ownership.is_locked_file(self._files, self._state_path):
            return
        descriptor = ownership.open_state_file(self._state_path)
        if descriptor is None:
            return
        self._files.append(descriptor)
        if not ownership.lock_within_patience(descriptor):
            if not wait:
                raise ownership.owned_by_another_name(self._state_path, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)

    def touch(self) -> None:
        """Update the mtime of the lock file, which shows other processes that the owner is alive."""
        os.utime(self._descriptor)

    def set_run(self, run_id: str) -> None:
        """Write the name of the run, if it was unknown when the lock was acquired."""
        if run_id != self.holder.run_id:
            self.holder = self.holder._replace(run_id=run_id)
            ownership.write_holder(self._descriptor, self.holder)

    def reacquire(self) -> bool:
        """Create and lock the lock file again after its removal. False: another process holds it briefly.

        Raises ExecutorBusyError if another executor holds it, StorageError if it cannot be created.
        """
        descriptor, _ = ownership.open_lock(self._path)
        try:
            if not try_lock(descriptor, fcntl.LOCK_EX):
                holder = read_holder(descriptor)
                if holder is not None and holder.is_alive():
                    raise _busy(self._state_path, holder)
                return False
            os.dup2(descriptor, self._descriptor, inheritable=False)
            ownership.write_holder(self._descriptor, self.holder)
            return True
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Close the descriptor. LOCK_UN would release the lock of children that are still dying as well."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # full disk: the dead process shows the release as well
                ownership.write_holder(self._descriptor, self.holder._replace(released_at=wall_time_us()))
            self.drop()

    def drop(self) -> None:
        """Close the descriptor and write nothing, as the death of the owner does."""
        if self._descriptor >= 0:
            for descriptor in (*self._files, self._descriptor):
                os.close(descriptor)
            self._files, self._descriptor = [], -1

    def remove(self) -> None:
        """Release the lock, and delete the lock file if this process created it, because no run was written.

        The file is deleted while the lock is held, and ``acquire`` checks that its file still exists: otherwise two
        owners could hold two lock files of one state file.
        """
        if self._is_new and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.release()


def acquire(state_path: str, executor_id: str, run_id: str | None = None, *, wait: bool = False) -> StateLock:
    """Acquire the lock of a state file. Leftover processes of a dead owner are killed first.

    ``wait``: wait until a living owner releases it. Raises ExecutorBusyError, which names the owner, or StorageError.
    """
    ownership.require_single_name(state_path)
    path, is_new = lock_path(state_path), False
    while True:
        descriptor, was_created = ownership.open_lock(path)
        is_new = is_new or was_created
        try:
            _wait_for_lock(descriptor, state_path, wait)
            if ownership.is_current_file(descriptor, path):
                holder = _sign_lock(descriptor, executor_id, run_id)
                return StateLock(descriptor, holder, state_path, is_new)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous owner deleted the file


def _sign_lock(descriptor: int, executor_id: str, run_id: str | None) -> LockHolder:
    start_ticks, boot_id = identity(os.getpid())
    holder = LockHolder(executor_id, os.getpid(), start_ticks, boot_id, socket.gethostname(), wall_time_us(), run_id)
    ownership.write_holder(descriptor, holder)
    return holder


def require_free(state_path: str) -> None:
    """Raise ExecutorBusyError if a living executor holds the lock: before work that only its absence makes worth it."""
    holder = current_holder(state_path)
    if holder is not None and holder.is_alive():
        raise _busy(state_path, holder)


# --- Acquire -------------------------------------------------------------------------------------------------------


def _wait_for_lock(descriptor: int, state_path: str, wait: bool) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not try_lock(descriptor, fcntl.LOCK_EX):
        holder = read_holder(descriptor)
        if holder is not None and holder.is_alive():
            if not wait:
                raise _busy(state_path, holder)
            deadline = time.monotonic() + PATIENCE_SECONDS
        elif holder is not None and sweep_orphans([holder.executor_id], state_path):
            continue
        elif time.monotonic() > deadline:
            raise ExecutorBusyError(f"{state_path} is locked by an unknown process; try again")
        time.sleep(POLL_SECONDS)  # flock with a limit: the kernel only offers to wait without one


def _busy(state_path: str, holder: LockHolder) -> ExecutorBusyError:
    return ExecutorBusyError(
        f"another executor owns {state_path}: {describe_holder(holder)}; "
        f"`{shell_command(['redrive', 'attach', state_path])}` looks at it, "
        f"`{shell_command(['redrive', 'stop', state_path])}` ends it, `--wait` waits for it to leave",
        pid=holder.pid,
        host=holder.host,
    )


# --- Orphans -------------------------------------------------------------------------------------------------------


def sweep_orphans(executor_ids: Collection[str], state_path: str) -> list[int]:
    """Kill the leftover processes of dead executors, wait until they have ended, and return their pids.

    They are found by the token in their environment, or by the inherited lock. This process and its ancestors are
    spared. Raises ExecutorBusyError if a process cannot be killed.
    """
    matcher = _OrphanMatcher(set(executor_ids), state_path)
    killed, alive = reaper.sweep(matcher.matches, ancestors(), KILL_SECONDS)
    if alive:
        raise ExecutorBusyError(f"process {alive[0]} of a dead executor does not die; look at it before trying again")
    return sorted(killed)


class _OrphanMatcher:
    """Matches processes that were started by the dead executors."""

    def __init__(self, executor_ids: set[str], state_path: str) -> None:
        self._executor_ids = executor_ids
        self._lock: tuple[int, int] | None = None
        self._owner_pid = 0
        try:
            descriptor = os.open(lock_path(state_path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            holder, status = read_holder(descriptor), os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if holder is not None and holder.executor_id in executor_ids:
            self._lock, self._owner_pid = (status.st_dev, status.st_ino), holder.pid

    def matches(self, pid: int) -> bool:
        return ownership.has_token(pid, self._executor_ids) or self._has_lock(pid)

    def _has_lock(self, pid: int) -> bool:
        """True if the process inherited the lock of the dead executor; a later lock has another owner pid."""
        if self._lock is None:
            return False
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if (status.st_dev, status.st_ino) == self._lock and self._is_inherited(pid, name):
                    return True
        except OSError:  # the process has ended, or belongs to another user
            pass
        return False

    def _is_inherited(self, pid: int, descriptor: str) -> bool:
        with open(f"/proc/{pid}/fdinfo/{descriptor}") as info:
            for line in info:  # lock:  1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF
                fields = line.split()
                if fields[:1] == ["lock:"] and "FLOCK" in fields and "WRITE" in fields:
                    return fields[fields.index("WRITE") + 1] == str(self._owner_pid)
        return False


def describe_holder(holder: LockHolder) -> str:
    """Pid, host, run and age in words."""
    run = f", run {holder.run_id}" if holder.run_id else ""
    return f"{holder.who}{run}, for {format_duration(wall_time_us() - holder.started_at)}"
