"""Inspects the processes of an attempt just before it is ended: what they do, hold and wait for. Linux, from /proc.

Number and time are bounded, and each read may be refused: less is visible in a container, or of a program of another
user. Reading the command line or memory of a process that is stuck in the kernel can block: they are skipped then, and
all of it is read in a thread (``ProcSampler``).
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from msgspec.structs import replace

from ..core.failures.hang import SYSTEM_CALLS, Activity, Autopsy, Descriptor, FileLock, Process, activity_of_channel
from ..statefile.processes import open_files, read_file
from . import process
from .sockets import Tables
from .usage import INTERVAL_SECONDS, Sample, UsageSubject, cpu_share, sample, tree

PROCESSES_MAX = 50
THREADS_MAX = 16
DESCRIPTORS_MAX = 512  # in all
POLL_ENTRIES_MAX = 64
LINE_CHARACTERS = 200

_CALLS = SYSTEM_CALLS.get(os.uname().machine, {})
_WAITID = {"x86_64": 247, "aarch64": 95}.get(os.uname().machine)
_FCNTL = {"x86_64": 72, "aarch64": 25}.get(os.uname().machine)
_F_SETLKW, _F_OFD_SETLKW = 7, 38
_P_PID = 1
_BY_FIRST_ARGUMENT = frozenset(
    [
        Activity.READ,
        Activity.RECEIVE,
        Activity.WRITE,
        Activity.SEND,
        Activity.CONNECT,
        Activity.ACCEPT,
        Activity.LOCK_FILE,
        Activity.SYNC,
    ]
)


def examine(subject: UsageSubject, before: Sample, until: float, tables: Tables) -> Autopsy:
    """Inspect all processes; return what was found by ``until`` (monotonic). Errors of /proc are not raised."""
    cpu = sample(subject)
    window = max(cpu.at - before.at, 0.001)
    parents = [(pid, parent) for pid, parent, _ in tree(subject, PROCESSES_MAX)]
    processes = [
        _process(pid, parent, subject, _share(pid, before, cpu, window))
        for pid, parent in parents
        if time.monotonic() < until
    ]
    found = tuple(one for one in processes if one is not None)
    threads = _threads(subject) if found and subject.thread is None else ()
    ends = _with_peers(_descriptors(found, until), tables, until)
    return Autopsy(
        processes=found,
        threads=threads,
        descriptors=tuple(ends),
        locks=tuple(_locks(found, threads, ends)),
        cpu=cpu_share(before, cpu),
        window_seconds=window,
        is_complete=time.monotonic() < until and len(parents) < PROCESSES_MAX and len(ends) < DESCRIPTORS_MAX,
    )


def _share(pid: int, before: Sample, now: Sample, window: float) -> float | None:
    return max(now.own[pid] - before.own.get(pid, 0.0), 0.0) / window if pid in now.own else None


# --- Processes ------------------------------------------------------------------------------------------------------


def _process(pid: int, parent: int, subject: UsageSubject, cpu: float | None) -> Process | None:
    folder = subject.stat_path if pid == subject.pid else f"/proc/{pid}"
    seen = _read_state(folder, pid)
    if seen is None:
        return None
    line = subject.line if pid == subject.pid else None
    if line is None:
        line = "" if seen.state == "D" else process.command_line(pid)
    return replace(seen, parent=parent, cpu=cpu, command_line=flat(line)[:LINE_CHARACTERS])


def flat(text: str) -> str:
    """Replace characters that break a line or cannot be stored: names and paths can hold any."""
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(letter if letter.isprintable() else " " for letter in plain)


def _threads(subject: UsageSubject) -> tuple[Process, ...]:
    """Return the other threads of the process itself."""
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{subject.pid}/task") if int(name) != subject.pid]
    except OSError:
        return ()
    seen = (_read_state(f"/proc/{subject.pid}/task/{number}", number) for number in numbers[:THREADS_MAX])
    return tuple(replace(one, owner=subject.pid) for one in seen if one is not None)


def _read_state(folder: str, pid: int) -> Process | None:
    """Return state, name and current system call; None if the process is gone."""
    try:
        head, _, rest = read_file(f"{folder}/stat").rpartition(b")")
    except OSError:
        return None
    state = rest.split()[0].decode("ascii")
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    channel = _text(f"{folder}/wchan")
    seen = Process(pid, state=state, name=flat(name), wait_channel="" if channel == "0" else channel)
    number, arguments = _call(folder)
    if number is None:
        return replace(seen, activity=activity_of_channel(seen.wait_channel))
    doing = _CALLS.get(number)
    if number == _FCNTL and arguments[1] not in (_F_SETLKW, _F_OFD_SETLKW):
        doing = None
    waits_on = () if doing is None else _waits_on(folder, number, doing, arguments)
    return replace(seen, activity=doing, waits_on=waits_on, is_exact=True)


def _text(path: str) -> str:
    try:
        return read_file(path).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _call(folder: str) -> tuple[int | None, list[int]]:
    """Return the system call in which it sleeps, and its arguments; None if it runs or access is refused."""
    words = _text(f"{folder}/syscall").split()
    if len(words) < 7 or words[0] == "-1":
        return None, []
    return int(words[0]), [int(word, 16) for word in words[1:7]]


def _waits_on(folder: str, number: int, doing: Activity, arguments: list[int]) -> tuple[int, ...]:
    if doing in _BY_FIRST_ARGUMENT:
        return (arguments[0],)
    if doing is Activity.WAIT_CHILD:
        is_by_pid = number != _WAITID or arguments[0] == _P_PID
        pid = _signed(arguments[1] if number == _WAITID else arguments[0])
        return (pid,) if is_by_pid and pid > 0 else ()
    try:
        return tuple(_POLLED[doing](folder, arguments)) if doing in _POLLED else ()
    except (OSError, ValueError, struct.error):
        return ()


def _signed(argument: int) -> int:
    return argument - (1 << 32) if argument & 0xFFFFFFFF == argument and argument >> 31 else argument


def _polled(folder: str, arguments: list[int]) -> Iterator[int]:
    count = min(arguments[1], POLL_ENTRIES_MAX)
    data = _memory(folder, arguments[0], count * 8)
    for descriptor, _, _ in struct.iter_unpack("=ihh", data):
        if descriptor >= 0:
            yield descriptor


def _selected(folder: str, arguments: list[int]) -> Iterator[int]:
    size = (min(arguments[0], 1024) + 7) // 8
    for address in arguments[1:3]:
        data = _memory(folder, address, size) if address else b""
        yield from (number for number in range(len(data) * 8) if data[number // 8] >> number % 8 & 1)


def _watched(folder: str, arguments: list[int]) -> Iterator[int]:
    """Yield the descriptors that an epoll descriptor watches."""
    for line in read_file(f"{folder}/fdinfo/{arguments[0]}").splitlines():
        if line.startswith(b"tfd:"):
            yield int(line.split()[1])


_POLLED = {Activity.POLL: _polled, Activity.SELECT: _selected, Activity.EPOLL: _watched}


def _memory(folder: str, address: int, size: int) -> bytes:
    fd = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    finally:
        os.close(fd)


# --- Descriptors ----------------------------------------------------------------------------------------------------


def _descriptors(processes: Iterable[Process], until: float) -> list[Descriptor]:
    """Return sockets (without peers), pipes and files; of each process those that it waits on first."""
    found: list[Descriptor] = []
    for one in processes:
        numbers = sorted(_numbers(one.pid), key=lambda number: (number not in one.waits_on, number))
        for number in numbers[: DESCRIPTORS_MAX - len(found)]:
            end = _descriptor(one.pid, number) if time.monotonic() < until else None
            if end is not None:
                found.append(end)
    return found


def _numbers(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []  # gone, or of another user


def _descriptor(pid: int, number: int) -> Descriptor | None:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None
    kind, _, rest = target.partition(":[")
    if kind in ("socket", "pipe") and rest:
        writes = kind == "pipe" and _is_writing(pid, number)
        return Descriptor(pid, number, kind, inode=int(rest[:-1]), is_write_end=writes)
    if target.startswith("/") and not target.startswith("/dev/null"):
        return Descriptor(pid, number, "file", flat(target))
    return None


def _is_writing(pid: int, number: int) -> bool:
    for line in _text(f"/proc/{pid}/fdinfo/{number}").splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE == os.O_WRONLY
    return False


def _with_peers(ends: list[Descriptor], tables: Tables, until: float) -> list[Descriptor]:
    """Add the other end of each socket and pipe."""
    known = tables.with_peers([end for end in ends if end.kind == "socket"], until)
    holders: dict[tuple[int, bool], int] = {
        (end.inode, end.is_write_end): end.pid for end in ends if end.kind == "pipe"
    }
    return [_with_peer(end, known.get(end.inode), holders) for end in ends]


def _with_peer(end: Descriptor, connected: Descriptor | None, holders: Mapping[tuple[int, bool], int]) -> Descriptor:
    if end.kind == "socket":
        return replace(end, kind="other") if connected is None else replace(connected, name=flat(connected.name))
    other = holders.get((end.inode, not end.is_write_end)) if end.kind == "pipe" else None
    return end if other is None else replace(end, name=f"{'to' if end.is_write_end else 'from'} pid {other}")


# --- Locks ----------------------------------------------------------------------------------------------------------


def _locks(processes: Iterable[Process], threads: Iterable[Process], ends: Iterable[Descriptor]) -> Iterator[FileLock]:
    """Yield the locks that processes wait for, with the holder of each."""
    waiting = [one for one in (*processes, *threads) if one.activity is Activity.LOCK_FILE]
    if not waiting:
        return
    holders = _holders(_text("/proc/locks"))
    paths = {(end.pid, end.number): end.name for end in ends}
    for one in waiting:
        path = next((paths[key] for number in one.waits_on if (key := (one.owner or one.pid, number)) in paths), "")
        holder = holders.get(one.owner or one.pid, 0)
        yield FileLock(one.pid, path or "a file", holder, flat(_text(f"/proc/{holder}/comm")) if holder else "")


def _holders(table: str) -> dict[int, int]:
    """Return waiting pid -> pid of the lock's holder; 0 for a holder outside of this container."""
    found: dict[int, int] = {}
    holding: dict[str, int] = {}
    for line in table.splitlines():
        words = line.split()
        if len(words) < 6:
            continue
        if words[1] == "->":
            found[int(words[5])] = holding.get(words[0], 0)
        else:
            holding[words[0]] = max(int(words[4]), 0)
    return found


# --- In a thread ------------------------------------------------------------------------------------------------------


T = TypeVar("T")

_UNREADABLE = (OSError, ValueError, LookupError, struct.error)


SHARE_MAX = 0.01  # of one CPU: if a round of samples takes longer, the next one comes later


class SampledAttempt(Protocol):
    """An attempt that is sampled."""

    def subject(self) -> UsageSubject:
        """Return its processes."""

    def on_sample(self, seen: Sample) -> None:
        """Handle a sample."""


_Round = tuple[float, Sequence[tuple[SampledAttempt, Sample]]]  # CPU seconds that the samples took; the samples


def _sample_all(asked: Sequence[tuple[SampledAttempt, UsageSubject, Callable[[UsageSubject], Sample]]]) -> _Round:
    begun, samples = time.thread_time(), []
    for attempt, subject, measure in asked:
        with suppress(*_UNREADABLE):
            samples.append((attempt, measure(subject)))
    return time.thread_time() - begun, samples


class ProcSampler:
    """Samples /proc for all attempts of a runner. Its methods are called in the event loop.

    It inspects one process after the other in a thread, which exists only while there is work. A read from /proc can
    block as long as the process is stuck in the kernel. The thread is a daemon, and callers stop waiting at their
    deadline: so it never delays a kill.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._is_busy = False
        self._tables = Tables()  # used by the thread only
        self._followed: dict[SampledAttempt, Callable[[UsageSubject], Sample]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def examine(self, subject: UsageSubject, before: Sample, until: float) -> Autopsy:
        """Inspect a process by ``until`` (monotonic). Empty if time runs out or it cannot be read."""
        if not subject.pid or time.monotonic() >= until:
            return Autopsy()
        future = self._submit(lambda: self._examine(subject, before, until), Autopsy())
        try:
            return await asyncio.wait_for(future, until - time.monotonic())
        except TimeoutError:
            return Autopsy()

    def _examine(self, subject: UsageSubject, before: Sample, until: float) -> Autopsy:
        if time.monotonic() >= until:
            return Autopsy()
        found = examine(subject, before, until, self._tables)
        inherited = set(open_files().values())  # attempts have them from this process
        return replace(found, descriptors=tuple(end for end in found.descriptors if end.name not in inherited))

    def follow(self, attempt: SampledAttempt, measure: Callable[[UsageSubject], Sample] = sample) -> None:
        """Sample an attempt each second by ``measure``, in the thread, until ``unfollow``."""
        self._followed.setdefault(attempt, measure)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._sample)

    def unfollow(self, attempt: SampledAttempt) -> None:
        """Sample it no more."""
        self._followed.pop(attempt, None)

    def _sample(self) -> None:
        self._timer = None
        if self._followed:
            asked = [(attempt, attempt.subject(), measure) for attempt, measure in self._followed.items()]
            nothing: _Round = (0.0, ())
            self._submit(lambda: _sample_all(asked), nothing).add_done_callback(self._on_round)

    def _on_round(self, done: asyncio.Future[_Round]) -> None:
        if done.cancelled():
            return
        cpu_seconds, samples = done.result()
        for attempt, seen in samples:
            if attempt in self._followed:
                attempt.on_sample(seen)
        if self._followed and self._timer is None:
            wait = max(INTERVAL_SECONDS, cpu_seconds / SHARE_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait, self._sample)

    def _submit(self, read: Callable[[], T], default: T) -> asyncio.Future[T]:
        """Run ``read`` in the thread. ``default``: the result if the kernel's files have an unknown format.

        An error of another kind is printed, and has the same result: what waits for it is a kill.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            found = default
            try:
                found = read()
            except _UNREADABLE:
                pass
            except Exception:
                traceback.print_exc()
            try:
                loop.call_soon_threadsafe(_resolve, future, found)
            except RuntimeError:
                return  # the loop is closed

        with self._lock:
            self._work.append(work)
            if not self._is_busy:
                try:
                    threading.Thread(target=self._serve, name="redrive-sampler", daemon=True).start()
                    self._is_busy = True
                except RuntimeError:  # no thread is left, and a kill waits: the next one may get a thread
                    self._work.clear()
                    future.set_result(default)
        return future

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._work:
                    self._tables.clear()
                    self._is_busy = False
                    return
                work = self._work.popleft()
            work()


def _resolve(future: asyncio.Future[T], found: T) -> None:
    if not future.done():
        future.set_result(found)
