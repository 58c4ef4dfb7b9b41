"""Reads what running tasks use: CPU, memory, child processes and the last line that they wrote.

Nothing is read unless a console asks, and at most once in INTERVAL_SECONDS for all consoles together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ..domain.usage import TaskUsage
from ..statefile.processes import stat_fields
from .process import descendants

INTERVAL_SECONDS = 1.0
TASKS_MAX = 50
PROCESSES_MAX = 100  # of one task
LINE_CHARACTERS_MAX = 200

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _RESIDENT_PAGES = 11, 12, 19, 21  # in ``stat_fields``


class RunningTask(Protocol):
    """A running attempt, as its supervisor knows it."""

    pid: int | None
    start_ticks: int | None
    latest_output: str

    @property
    def task(self) -> str:
        """Its name."""


class _Reading(NamedTuple):
    at: float
    cpu_ticks: Mapping[int, int]  # pid -> ticks since its start
    memory_bytes: int


class UsageReader:
    """Reads for one executor. ``monotonic``: seconds on the clock of the loop."""

    def __init__(self, running: Mapping[str, RunningTask], monotonic: Callable[[], float]) -> None:
        self._running = running
        self._monotonic = monotonic
        self._read_at = float("-inf")
        self._usage: list[TaskUsage] = []
        self._readings: dict[int, _Reading] = {}

    def read(self) -> list[TaskUsage]:
        """What the running tasks use, as of INTERVAL_SECONDS ago at most."""
        now = self._monotonic()
        if now - self._read_at >= INTERVAL_SECONDS:
            self._read_at = now
            running = list(self._running.values())[:TASKS_MAX]
            shared = Counter(one.pid for one in running)
            self._usage = [self._usage_of(one, now, is_alone=shared[one.pid] == 1) for one in running]
            pids = {one.pid for one in running}
            self._readings = {pid: found for pid, found in self._readings.items() if pid in pids}
        return self._usage

    def _usage_of(self, supervisor: RunningTask, now: float, is_alone: bool) -> TaskUsage:
        line = last_line(supervisor.latest_output)
        if supervisor.pid is None or not is_alone:  # threads share a process
            return TaskUsage(supervisor.task, None, None, 0, line)
        reading = _read_processes(supervisor.pid, supervisor.start_ticks, now)
        before = self._readings.get(supervisor.pid)
        self._readings[supervisor.pid] = reading
        percent = None if before is None else _percent(before, reading)
        return TaskUsage(
            supervisor.task, percent, reading.memory_bytes or None, max(len(reading.cpu_ticks) - 1, 0), line
        )


def _percent(before: _Reading, reading: _Reading) -> int:
    """CPU time between two readings; that of processes which ended between them is not known."""
    ticks = sum(ticks - before.cpu_ticks.get(pid, 0) for pid, ticks in reading.cpu_ticks.items())
    return max(round(100 * ticks / _TICKS_PER_SECOND / max(reading.at - before.at, 0.001)), 0)


def _read_processes(pid: int, start_ticks: int | None, now: float) -> _Reading:
    """The process and all below it; nothing if it has ended and its pid is another process by now."""
    ticks: dict[int, int] = {}
    memory_bytes = 0
    for process in [pid, *descendants(pid)][:PROCESSES_MAX]:
        try:
            fields = stat_fields(process)
        except OSError:
            continue
        if process == pid and start_ticks is not None and int(fields[_START_TICKS]) != start_ticks:
            break
        ticks[process] = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        memory_bytes += int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES
    return _Reading(now, ticks, memory_bytes)


def last_line(text: str) -> str:
    """The last line that is not empty; of a progress bar what it shows now."""
    return text.rstrip().rpartition("\n")[2].rpartition("\r")[2].strip()[-LINE_CHARACTERS_MAX:]
