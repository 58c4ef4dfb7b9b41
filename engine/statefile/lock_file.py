"""The lock file of a state file, ``<state>.lock``: its current holder and its last one.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``ownership.py`` acquires it.
"""

import fcntl
import json
import os
import socket
import time
from typing import NamedTuple, Optional, Tuple

from ..domain.rows import ExecutorState
from .processes import boot_id, identity, is_stopped

SERVICE = ".serve"  # suffix to the state file: the lock of ``redrive serve``, which starts runs by a schedule
HOLDER_BYTES_MAX = 65536
SILENT_US = 5000000  # an executor touches its lock every second


class LockHolder(NamedTuple):
    """The owner of a state file, as written in the lock file. Instants in microseconds UTC."""

    executor_id: str
    pid: int
    start_ticks: Optional[int]
    boot_id: Optional[str]
    host: str
    started_at: int
    run_id: Optional[str] = None
    released_at: Optional[int] = None

    @property
    def who(self) -> str:
        """``pid 7 on etl``, and what lets one go on that a signal or a debugger has stopped."""
        is_here = (self.host, self.boot_id) == (socket.gethostname(), boot_id())
        stop = f" (stopped: kill -CONT {self.pid})" if is_here and is_stopped(self.pid) else ""
        return f"pid {self.pid} on {self.host}{stop}"

    def is_alive(self) -> bool:
        """False only if the holder has certainly ended; one of another boot or host counts as alive."""
        if self.released_at is not None:
            return False
        if self.host != socket.gethostname() or self.boot_id != boot_id():
            return True
        return self.start_ticks is not None and identity(self.pid)[0] == self.start_ticks


def lock_path(state_path: str) -> str:
    """Path of the lock file, which remains after the lock is released."""
    return state_path + ".lock"


def last_holder(state_path: str) -> Optional[LockHolder]:
    """Return the last owner of a state file, alive or not; None if it is unknown."""
    return _read_lock(state_path)[0]


def current_holder(state_path: str) -> Optional[LockHolder]:
    """Return the owner of a state file; None if there is none, or if this user may not read the lock."""
    holder, is_held = _read_lock(state_path)
    return holder if is_held else None


def _read_lock(state_path: str) -> Tuple[Optional[LockHolder], bool]:
    """Return the holder in the lock file, and whether the lock is held."""
    try:
        descriptor = os.open(lock_path(state_path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None, False
    try:
        holder = read_holder(descriptor)
        try:
            return holder, not try_lock(descriptor, fcntl.LOCK_SH)
        except OSError:
            return holder, holder is not None and _seems_held(state_path, holder)
    finally:
        os.close(descriptor)


def _seems_held(state_path: str, holder: LockHolder) -> bool:
    """Whether the holder lives, where the file system refuses locks: by its process, or its sign of life."""
    if holder.released_at is not None or holder.host == socket.gethostname():
        return holder.is_alive()
    seen_at = heartbeat_at(state_path)
    return seen_at is not None and time.time() * 1000000 - seen_at < SILENT_US


def executor_of(
    state_path: str, is_attached: bool, now_us: int, original: "Optional[Tuple[str, Optional[int]]]"
) -> ExecutorState:
    """The state of the executor of a state file, by its lock: a process that is silent may hold it and live.

    ``is_attached``: its socket is open. ``original``: ``copies.living_original``, of a copy.
    """
    (last, is_held), seen_at = _read_lock(state_path), heartbeat_at(state_path)
    if original is not None and not is_attached:
        return ExecutorState(pid=original[1], run_id=last and last.run_id, original=original[0])
    is_hidden = last is None and not os.access(lock_path(state_path), os.R_OK)  # from this user
    if seen_at is None or (last is None and not is_hidden):
        return ExecutorState(is_attached)
    age_us = max(0, now_us - seen_at)
    is_silent = age_us >= SILENT_US
    if last is None:
        is_alive = is_attached or not is_silent
        return ExecutorState(is_alive, age_us, None if is_alive else seen_at, is_unseen=not is_alive)
    is_alive, has_stopped = is_attached or (is_held and last.is_alive()), last.released_at is not None
    is_unseen = not is_alive and not has_stopped and last.host != socket.gethostname()
    gone_at, silent_since = None if is_alive else seen_at, seen_at if is_alive and is_silent else None
    own = (last.pid, last.run_id, has_stopped, is_unseen, last.host if is_unseen else None)
    return ExecutorState(is_alive, age_us, gone_at, *own, silent_since=silent_since)


def served_by(state_path: str) -> Optional[LockHolder]:
    """Return the ``redrive serve`` that starts the runs of a state file by a schedule; None if there is none."""
    return current_holder(state_path + SERVICE)


def heartbeat_at(state_path: str) -> Optional[int]:
    """The last touch of the lock by an executor, in microseconds UTC of its host; None if there never was one."""
    try:
        return os.stat(lock_path(state_path)).st_mtime_ns // 1000
    except OSError:
        return None


def service_pid(state_path: str) -> Optional[int]:
    """The pid of the ``redrive serve`` that starts the runs of a state file; None without one that is not stopped."""
    holder = served_by(state_path)
    return None if holder is None or is_stopped(holder.pid) else holder.pid


def read_holder(descriptor: int) -> Optional[LockHolder]:
    """Read the holder; None if the file was just created, or was written by another program."""
    try:
        fields = json.loads(os.pread(descriptor, HOLDER_BYTES_MAX, 0).decode())
        return LockHolder(**{name: fields[name] for name in LockHolder._fields if name in fields})
    except (ValueError, TypeError, OSError, RecursionError):
        return None


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock without waiting; False if it is held. ``kind``: fcntl.LOCK_EX to own, LOCK_SH to probe. Raises OSError."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        why = "its file system refuses locks ({}), without which two could write: use a local disk"
        raise OSError(error.errno, why.format(error.strerror)) from error
    return True
