"""Reads what the processes of an attempt use: CPU time and memory, from /proc. Linux only.

One reading serves the autopsy, the limit of memory and the consoles that show running tasks. Its cost is two small
files for each process; the exact memory is read only where the cheap number is above a limit.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from ..domain.liveness import TaskUsage
from ..statefile.processes import read_file, stat_fields
from . import process

PROCESSES_MAX = 1000  # of one attempt

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PARENT, _USER, _SYSTEM, _THREADS, _START, _RESIDENT, _STACK = 1, 11, 12, 17, 19, 21, 25  # in ``stat_fields``


class UsageSubject(msgspec.Struct, frozen=True):
    """The processes to read: one with all its descendants, or a thread of one with the children of that thread."""

    pid: int
    thread: int | None = None
    line: str | None = None  # shown instead of its command line
    start_ticks: int | None = None  # another start: its pid is another process by now
    worker: int | None = None  # the parent of a program, which adopts what the program orphans

    @property
    def stat_path(self) -> str:
        """The folder in /proc with its counters."""
        return f"/proc/{self.pid}/task/{self.thread}" if self.thread is not None else f"/proc/{self.pid}"


class Sample(msgspec.Struct, frozen=True):
    """CPU seconds used until ``at`` (monotonic): by each process, and in all, ended children included.

    ``memory``: bytes that they hold; a page that several of them share counts for each.
    """

    at: float
    own: Mapping[int, float] = {}
    total: float = 0.0
    memory: int = 0


def sample(subject: UsageSubject, now: float | None = None) -> Sample:
    """Read what all processes use. ``now``: monotonic, if it is not that of now."""
    own: dict[int, float] = {}
    total = memory = 0.0
    for pid, _, fields in tree(subject, PROCESSES_MAX):
        user, system, *ended = (int(ticks) / _TICKS_PER_SECOND for ticks in fields[_USER : _SYSTEM + 3])
        own[pid] = user + system
        total += own[pid] + (sum(ended) if subject.thread is None or pid != subject.pid else 0.0)
        memory += int(fields[_RESIDENT]) * _PAGE_BYTES
    return Sample(time.monotonic() if now is None else now, own, total, int(memory))


def cpu_share(before: Sample, now: Sample) -> float:
    """Return the share of one CPU that all processes used between two samples."""
    return max(now.total - before.total, 0.0) / max(now.at - before.at, 0.001)


def tree(subject: UsageSubject, most: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield the pid, the parent and the fields of ``stat`` of each process that lives, nearest first."""
    queue = deque([(subject.pid, 0)])
    count = 0
    while queue and count < most:
        pid, parent = queue.popleft()
        try:
            fields = _stat(subject.stat_path) if pid == subject.pid else stat_fields(pid)
        except OSError:
            continue
        if pid == subject.pid and subject.start_ticks not in (None, int(fields[_START])):
            return
        count += 1
        yield pid, parent, fields
        queue.extend((child, pid) for child in _children(subject, pid, fields))
        if pid == subject.pid and subject.worker is not None:
            queue.extend((child, pid) for child in process.children(subject.worker) if child != pid)


def _stat(folder: str) -> list[bytes]:
    return read_file(f"{folder}/stat").rpartition(b")")[2].split()


def _children(subject: UsageSubject, pid: int, fields: list[bytes]) -> list[int]:
    thread = subject.thread if pid == subject.pid else None
    if thread is None and fields[_THREADS] == b"1":
        thread = pid
    found = None if thread is None else process.children_of_thread(pid, thread)
    return process.children(pid) if found is None else found


# --- The memory of an attempt with a limit ----------------------------------------------------------------------------
#
# A fork also holds the pages of its zygote that nobody has written to since: the modules of the flow, which are there
# once. The resident memory counts them for each attempt. Where that is above the limit, what a process holds alone is
# read, and its part of what several hold, without what the zygote has of the same pages.


RECHECK_SECONDS = 10.0  # what is shared gets less, as an attempt writes to the pages of its zygote


class MemoryGauge:
    """Samples an attempt with a limit (bytes)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shared = 0  # bytes of the last exact reading that are not the attempt's own
        self._read_of: Mapping[int, float] = {}
        self._due = 0.0

    def __call__(self, subject: UsageSubject) -> Sample:
        """Return a sample whose memory is that of the attempt alone."""
        seen = sample(subject)
        is_stale = self._shared and (seen.at >= self._due or seen.own.keys() != self._read_of.keys())
        if seen.memory - self._shared > self._limit or is_stale:
            self._shared = max(seen.memory - own_memory(seen.own, int(stat_fields(subject.pid)[_PARENT])), 0)
            self._read_of, self._due = seen.own, seen.at + RECHECK_SECONDS
        return msgspec.structs.replace(seen, memory=seen.memory - self._shared)


def own_memory(pids: Iterable[int], zygote: int) -> int:
    """Return the bytes that processes hold, without what those that are forks of the zygote share with it."""
    _, common, its_stack = _held(zygote)
    held = map(_held, pids)
    return sum(alone + max(shared - common * (stack == its_stack), 0) for alone, shared, stack in held)


def _held(pid: int) -> tuple[int, int, bytes]:
    """Return bytes: those of a process alone, its part of what others hold too; and its stack, equal in a fork."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0, 0, b""
    try:
        lines = [line.split() for line in read_file(f"/proc/{pid}/smaps_rollup").splitlines()[1:]]
    except OSError:  # of another user
        return int(fields[_RESIDENT]) * _PAGE_BYTES, 0, b""
    kilobytes = {line[0]: int(line[1]) for line in lines}
    alone = kilobytes.get(b"Private_Clean:", 0) + kilobytes.get(b"Private_Dirty:", 0)
    return alone * 1024, (kilobytes.get(b"Pss:", 0) - alone) * 1024, fields[_STACK]


# --- What running tasks use, for consoles: with their child processes and the last line that they wrote --------------
#
# Nothing is read unless a console asks, and at most once in INTERVAL_SECONDS for all consoles together.


INTERVAL_SECONDS = 1.0
TASKS_MAX = 50
LINE_CHARACTERS_MAX = 200


class RunningTask(Protocol):
    """A running attempt, as its supervisor knows it."""

    pid: int | None
    start_ticks: int | None
    latest_output: str

    @property
    def task(self) -> str:
        """Its name."""


class UsageReader:
    """Reads for one executor. ``monotonic``: seconds on the clock of the loop."""

    def __init__(self, running: Mapping[str, RunningTask], monotonic: Callable[[], float]) -> None:
        self._running = running
        self._monotonic = monotonic
        self._read_at = float("-inf")
        self._usage: list[TaskUsage] = []
        self._samples: dict[int, Sample] = {}

    def read(self) -> list[TaskUsage]:
        """Return what the running tasks use, as of INTERVAL_SECONDS ago at most."""
        now = self._monotonic()
        if now - self._read_at >= INTERVAL_SECONDS:
            self._read_at = now
            running = list(self._running.values())[:TASKS_MAX]
            shared = Counter(one.pid for one in running)
            before, self._samples = self._samples, {}
            self._usage = [self._usage_of(one, now, before if shared[one.pid] == 1 else None) for one in running]
        return self._usage

    def _usage_of(self, running: RunningTask, now: float, before: Mapping[int, Sample] | None) -> TaskUsage:
        """Return what a task uses. ``before``: the samples of the last reading; None: threads share its process."""
        line = last_line(running.latest_output)
        if running.pid is None or before is None:
            return TaskUsage(running.task, None, None, 0, line)
        seen = self._samples[running.pid] = sample(UsageSubject(running.pid, start_ticks=running.start_ticks), now)
        percent = round(100 * cpu_share(before[running.pid], seen)) if running.pid in before else None
        return TaskUsage(running.task, percent, seen.memory or None, max(len(seen.own) - 1, 0), line)


def last_line(text: str) -> str:
    """Return the last line that is not empty; of a progress bar what it shows now."""
    return text.rstrip().rpartition("\n")[2].rpartition("\r")[2].strip()[-LINE_CHARACTERS_MAX:]
