"""Who owns a state file: an exclusive flock on ``<state>.lock``, inherited by every process that the owner starts.

So a free lock says that nobody of an old run is alive, except who closed what it inherited: those bear the token of
their executor in their environment, and are swept before anything of theirs is run again (SPEC 4.9, 4.11).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Collection

from ..errors import ExecutorBusyError, StorageError
from ..runner import kill
from ..statefile.changes.locking import has_its_name, open_lock, write_holder
from ..statefile.lock_file import LockHolder, lock_path, read_holder, try_lock
from ..statefile.processes import ancestors, bears_token, identity

PATIENCE_SECONDS = 2.0  # for a commander who holds the lock for one command, or a console that probes it
LOOK_AGAIN_SECONDS = 0.02  # a flock that is given back tells nobody
KILL_SECONDS = 5.0  # SIGKILL is not instant


class StateLock:
    """The lock, held. Children inherit it through ``fileno``; it is free when the last of them is gone."""

    def __init__(self, descriptor: int, holder: LockHolder, state_path: str, is_new: bool) -> None:
        self._descriptor = descriptor
        self._path = lock_path(state_path)
        self._is_new = is_new
        self.holder = holder

    def fileno(self) -> int:
        """The descriptor to be inherited."""
        return self._descriptor

    def touch(self) -> None:
        """Show from outside that the owner's loop turns: by the file's mtime, which costs no commit."""
        os.utime(self._descriptor)

    def tell_run(self, run_id: str) -> None:
        """Say which run it is, where that was not known from the start."""
        if run_id != self.holder.run_id:
            self.holder = self.holder._replace(run_id=run_id)
            write_holder(self._descriptor, self.holder)

    def take_again(self, state_path: str) -> bool:
        """Somebody has taken the name of the lock file away: lock what has it now. False: not at this moment.

        Raises ExecutorBusyError when another executor has it, StorageError when it cannot be made.
        """
        descriptor, _ = open_lock(lock_path(state_path))
        try:
            if not try_lock(descriptor, fcntl.LOCK_EX):
                holder = read_holder(descriptor)
                if holder is not None and holder.is_alive():
                    raise _busy(state_path, holder)
                return False
            os.dup2(descriptor, self._descriptor, inheritable=False)
            write_holder(self._descriptor, self.holder)
            return True
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Let go. No LOCK_UN: that would free the lock for children as well, who may still be dying."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # on a full disk; that its process is gone says the same
                write_holder(self._descriptor, self.holder._replace(released_at=_now_us()))
            os.close(self._descriptor)
            self._descriptor = -1

    def abandon(self) -> None:
        """Let go of what was refused before anything was written: a lock file made for it goes with it.

        Only while it is held, and everybody who takes a lock looks whether its file is still there (``has_its_name``):
        else two owners could hold two files of one name.
        """
        if self._is_new and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.release()


def acquire(state_path: str, executor_id: str, run_id: str | None = None, *, wait: bool = False) -> StateLock:
    """Become the owner of a state file. What a dead owner has left alive is killed first.

    ``wait``: until a living owner leaves. Raises ExecutorBusyError, which names it, or StorageError.
    """
    path, is_new = lock_path(state_path), False
    while True:
        descriptor, made = open_lock(path)
        is_new = is_new or made
        try:
            _take(descriptor, state_path, wait)
            if has_its_name(descriptor, path):
                holder = _sign(descriptor, executor_id, run_id)
                return StateLock(descriptor, holder, state_path, is_new)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the one before us was refused, and took the file with it


def _sign(descriptor: int, executor_id: str, run_id: str | None) -> LockHolder:
    start_ticks, boot_id = identity(os.getpid())
    holder = LockHolder(executor_id, os.getpid(), start_ticks, boot_id, socket.gethostname(), _now_us(), run_id)
    write_holder(descriptor, holder)
    return holder


# --- Taking --------------------------------------------------------------------------------------------------------


def _take(descriptor: int, state_path: str, wait: bool) -> None:
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
            raise ExecutorBusyError(f"{state_path} is locked by a process that does not say who it is; try again")
        time.sleep(LOOK_AGAIN_SECONDS)  # a flock that is given back tells nobody


def _busy(state_path: str, holder: LockHolder) -> ExecutorBusyError:
    return ExecutorBusyError(
        f"another executor owns {state_path}: {holder.describe()}; "
        f"`redrive attach` looks at it, `--wait` waits for it to leave",
        pid=holder.pid,
        host=holder.host,
    )


# --- Sweeping ------------------------------------------------------------------------------------------------------


def sweep_orphans(executor_ids: Collection[str], state_path: str) -> list[int]:
    """Kill what executors that are dead have left alive, wait until it is gone, and return the pids.

    Found by the token in their environment, or by the lock that they inherited. Never this process, nor what it
    descends from. Raises ExecutorBusyError if one cannot be killed.
    """
    heirs = _Heirs(set(executor_ids), state_path)
    killed, alive = kill.sweep(heirs.include, ancestors(), KILL_SECONDS)
    if alive:
        raise ExecutorBusyError(f"process {alive[0]} of a dead executor does not die; look at it before trying again")
    return sorted(killed)


class _Heirs:
    """Tells whether a process comes from one of the dead executors."""

    def __init__(self, executor_ids: set[str], state_path: str) -> None:
        self._executor_ids = executor_ids
        self._lock: tuple[int, int] | None = None
        self._taker = 0
        try:
            descriptor = os.open(lock_path(state_path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            holder, status = read_holder(descriptor), os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if holder is not None and holder.executor_id in executor_ids:
            self._lock, self._taker = (status.st_dev, status.st_ino), holder.pid

    def include(self, pid: int) -> bool:
        return bears_token(pid, self._executor_ids) or self._has_lock(pid)

    def _has_lock(self, pid: int) -> bool:
        """True if it inherited the very lock that the dead executor took; who probes or takes it anew has another."""
        if self._lock is None:
            return False
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if (status.st_dev, status.st_ino) == self._lock and self._is_inherited(pid, name):
                    return True
        except OSError:  # it has gone meanwhile, or belongs to somebody else
            pass
        return False

    def _is_inherited(self, pid: int, descriptor: str) -> bool:
        with open(f"/proc/{pid}/fdinfo/{descriptor}") as info:
            for line in info:  # lock:  1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF
                fields = line.split()
                if fields[:1] == ["lock:"] and "FLOCK" in fields and "WRITE" in fields:
                    return fields[fields.index("WRITE") + 1] == str(self._taker)
        return False


def _now_us() -> int:
    return time.time_ns() // 1000
