"""Facts that the executors of a user share on a machine: pools of slots, and what is known of downstreams."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import asdict, replace

from ..clock import wall_time_us
from ..core.downstreams import DownstreamFinding
from ..statefile.lock_file import try_lock
from ..statefile.paths import default_folder, names_in
from ..statefile.reader import Stamp, stamp_of

# --- Pools of the machine: slots that the flows of one user share, whichever executor runs them ----------------------
#
# Each slot is a file in ``<default place>/pools/<pool>/``, which the executor of the task holds by an exclusive flock:
# the kernel frees it when that executor ends, however it ends. A full pool is checked again every ``RECHECK_SECONDS``.
#
# Fair: an executor that finds the pool full holds a file ``wait-*`` with the instant since which it waits, and nobody
# takes a slot before those who wait longer. One that stopped asking (a pause, an open breaker, SIGSTOP) is passed over
# after ``STALE_SECONDS``. All of this happens under a lock of the pool that nobody waits for.


RECHECK_SECONDS = 0.5
STALE_SECONDS = 5.0
_SLOT, _WAIT = "slot-", "wait-"


class PoolEntry(msgspec.Struct, frozen=True):
    """The holder of a slot of a pool, or, with ``slot`` None, who waits for one. ``since``: microseconds UTC."""

    flow: str
    run_id: str
    task: str
    state_file: str
    pid: int
    since: int
    pool: str = ""
    slot: int | None = None


def pools_folder() -> str:
    """The folder of the pools of this user."""
    return os.path.join(default_folder(), "pools")


class MachinePools:
    """The slots that one executor holds. ``sizes``: the pools that its flow declares, and how many slots each has."""

    def __init__(self, sizes: Mapping[str, int], flow: str, run_id: str, state_path: str) -> None:
        self._sizes = sizes
        self._folder = pools_folder()
        self._origin = flow, run_id, os.path.abspath(state_path)
        self._held: dict[str, list[int]] = {}  # by task: locked descriptors
        self._waits: dict[str, tuple[int, str]] = {}  # by pool: the locked file that says since when, and its path

    def __contains__(self, pool: str | None) -> bool:
        return pool in self._sizes

    def acquire(self, task: str, pool: str, slots: int) -> bool:
        """Acquire slots for a task; False: there are too few now, or others wait longer. Raises OSError."""
        folder = self._folder_of(pool)
        lock = _try_open_locked(os.path.join(folder, "lock"))
        if lock is None:
            return False  # another executor changes the pool now
        try:
            taken = [] if self._is_overtaking(pool, folder) else self._lock_slots(pool, folder, slots)
            if not taken:
                self._wait(task, pool, folder)
                return False
            for descriptor in taken:
                _write(descriptor, self._holder(task))
            self._held[task] = taken
            self.end_wait(pool)
            return True
        finally:
            os.close(lock)

    def release(self, task: str) -> None:
        """Free the slots of a task."""
        for descriptor in self._held.pop(task, ()):
            os.close(descriptor)

    def release_unless(self, is_active: Callable[[str], bool]) -> None:
        """Free the slots of all tasks that have ended, or were not started after all."""
        for task in [task for task in self._held if not is_active(task)]:
            self.release(task)

    def end_wait(self, pool: str) -> None:
        """Let others go first who wait for the pool: no task of this run asks any more."""
        if pool in self._waits:
            descriptor, path = self._waits.pop(pool)
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(descriptor)

    def holders(self, pool: str) -> list[PoolEntry]:
        """Return the holders of the pool, this executor included."""
        return [entry for entry in read_pools(self._folder) if entry.pool == pool and entry.slot is not None]

    def close(self) -> None:
        """Free everything."""
        self.release_unless(lambda task: False)
        for pool in list(self._waits):
            self.end_wait(pool)

    def _folder_of(self, pool: str) -> str:
        folder = os.path.join(self._folder, quote(pool, safe=""))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    def _holder(self, task: str) -> PoolEntry:
        flow, run_id, state_path = self._origin
        return PoolEntry(flow, run_id, task, state_path, os.getpid(), wall_time_us())

    def _lock_slots(self, pool: str, folder: str, slots: int) -> list[int]:
        """Lock so many free slots; none if there are fewer."""
        taken: list[int] = []
        for number in range(self._sizes[pool]):
            descriptor = _try_open_locked(os.path.join(folder, f"{_SLOT}{number}"))
            if descriptor is not None:
                taken.append(descriptor)
            if len(taken) == slots:
                return taken
        for descriptor in taken:
            os.close(descriptor)
        return []

    def _is_overtaking(self, pool: str, folder: str) -> bool:
        """Whether an executor that came before this one waits for the pool."""
        own = self._waits.get(pool)
        own_since = None if own is None else os.path.basename(own[1])
        return any(own_since is None or name < own_since for name in _waiters(folder) if name != own_since)

    def _wait(self, task: str, pool: str, folder: str) -> None:
        if pool in self._waits:
            os.utime(self._waits[pool][0])
            return
        path = os.path.join(folder, f"{_WAIT}{time.time_ns():020d}-{os.getpid()}-{id(self)}")
        descriptor = _try_open_locked(path)
        if descriptor is not None:
            _write(descriptor, self._holder(task))
            self._waits[pool] = descriptor, path


def read_pools(folder: str | None = None) -> list[PoolEntry]:
    """Return who holds slots and who waits, by pool; slots first."""
    folder = pools_folder() if folder is None else folder
    found: list[PoolEntry] = []
    for quoted in names_in(folder):
        inside = os.path.join(folder, quoted)
        waiters = _waiters(inside)
        slots = [name for name in names_in(inside) if name.startswith(_SLOT) and _is_held(os.path.join(inside, name))]
        for name in [*sorted(slots, key=lambda name: (len(name), name)), *waiters]:
            entry = _read(os.path.join(inside, name))
            if entry is not None:
                slot = int(name.removeprefix(_SLOT)) if name.startswith(_SLOT) else None
                found.append(replace(entry, pool=unquote(quoted), slot=slot))
    return found


def _waiters(folder: str) -> list[str]:
    """Return the files of those who wait and still ask, the longest first. Files of the dead are removed."""
    return [name for name in names_in(folder) if name.startswith(_WAIT) and _is_asking(os.path.join(folder, name))]


def _is_asking(path: str) -> bool:
    if not _is_held(path):
        with contextlib.suppress(OSError):
            os.unlink(path)
        return False
    with contextlib.suppress(OSError):
        return time.time() - os.stat(path).st_mtime <= STALE_SECONDS
    return False


def _is_held(path: str) -> bool:
    """Whether a process holds a file. The check uses a shared lock, so that two checks do not disturb each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _try_open_locked(path: str) -> int | None:
    """Open a file and lock it; None: another process holds it. Raises OSError if it cannot be opened."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    is_locked = False
    try:
        is_locked = try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor if is_locked else None


def _write(descriptor: int, holder: PoolEntry) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def _read(path: str) -> PoolEntry | None:
    """Return who wrote a file; None: it is gone, or is being written."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())  # msgspec refuses the surrogates of a path that is no UTF-8
        return msgspec.convert(value, PoolEntry)
    except (OSError, ValueError):
        return None


# --- Breakers of the machine: what the executors of one user tell one another about a downstream that they all call ---
#
# Each downstream has a file in ``<default place>/breakers/`` with the latest finding of any executor: it is down until
# an instant, or it answered again. Another executor takes a finding as a hint, never as a fact (``core/downstreams.py:
# consider``): two flows may call different systems by one name, and a system that is down for one is not down for all.


_FLOWS = ".flows"  # the folder in which flows name themselves
NAMED_SECONDS = 30 * 86400.0  # a flow that has not run for so long is no neighbour


def flows_that_name(downstream: str, folder: str | None = None) -> list[str]:
    """Return the flows of this user that have run with a downstream of this name, and are told when it is down."""
    named = os.path.join(folder or os.path.join(default_folder(), "breakers"), _FLOWS, quote(downstream, safe=""))
    found: list[str] = []
    for name in names_in(named):
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(os.path.join(named, name)).st_mtime <= NAMED_SECONDS:
                found.append(unquote(name))
    return found


class MachineBreakers:
    """The findings in ``folder``, as one executor writes and reads them. ``flow``: the name that others show."""

    def __init__(self, folder: str, downstreams: Iterable[str], flow: str, executor_id: str) -> None:
        self._paths = {name: os.path.join(folder, quote(name, safe="")) for name in downstreams}
        self._folder = folder
        self._flow = flow
        self._executor_id = executor_id
        self._seen: dict[str, Stamp] = {}  # by downstream: the file that was read last

    def register(self, downstreams: Iterable[str]) -> None:
        """Name this flow beside downstreams, for ``flows_that_name``. A folder that cannot be written is left alone."""
        for downstream in downstreams:
            folder = os.path.join(self._folder, _FLOWS, quote(downstream, safe=""))
            with contextlib.suppress(OSError):
                os.makedirs(folder, mode=0o700, exist_ok=True)
                path = os.path.join(folder, quote(self._flow, safe=""))
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
                os.utime(path)

    def publish(self, downstream: str, finding: DownstreamFinding) -> None:
        """Replace the finding of a downstream. A folder that cannot be written is left alone: a hint is missing."""
        path = self._paths[downstream]
        value = {**finding._asdict(), "flow": self._flow, "executor_id": self._executor_id}
        draft = f"{path}.{self._executor_id}"
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
                json.dump(value, file)
            os.replace(draft, path)
            self._seen[downstream] = stamp_of(path)

    def read_new(self) -> dict[str, DownstreamFinding]:
        """Return the findings of other executors that were published since the last call, by downstream."""
        found = {}
        for downstream, path in self._paths.items():
            stamp = stamp_of(path)
            if stamp and stamp != self._seen.get(downstream):
                self._seen[downstream] = stamp
                finding = self._read(path)
                if finding is not None:
                    found[downstream] = finding
        return found

    def _read(self, path: str) -> DownstreamFinding | None:
        """Read a finding; a file of this executor, or one that holds something else, is none."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
                value = json.loads(file.read(10_000))
            if value["executor_id"] == self._executor_id:
                return None
            reopens_at = value["reopens_at"]
            flow, why = str(value["flow"])[:200], str(value["why"])[:500]
            return DownstreamFinding(
                int(value["at"]), None if reopens_at is None else int(reopens_at), f"{why} (flow {flow})"
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
