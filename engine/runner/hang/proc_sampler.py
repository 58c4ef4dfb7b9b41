"""Inspects processes one after the other in a thread, which exists only while there is work.

A read from /proc can block as long as the process is stuck in the kernel. The thread is a daemon, and callers stop
waiting at their deadline: so it never delays a kill.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ...core.failures.hang import Autopsy
from ...statefile.processes import open_files
from .autopsy import CpuSample, Subject, examine, sample_cpu
from .sockets import Tables

T = TypeVar("T")

_UNREADABLE = (OSError, ValueError, LookupError, struct.error)


class ProcSampler:
    """Samples /proc for all attempts of a runner. Its methods are called in the event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._is_busy = False
        self._tables = Tables()  # used by the thread only

    async def examine(self, subject: Subject, before: CpuSample, until: float) -> Autopsy:
        """Inspect a process by ``until`` (monotonic). Empty if time runs out or it cannot be read."""
        if not subject.pid or time.monotonic() >= until:
            return Autopsy()
        future = self._submit(lambda: self._examine(subject, before, until), Autopsy())
        try:
            return await asyncio.wait_for(future, until - time.monotonic())
        except TimeoutError:
            return Autopsy()

    def _examine(self, subject: Subject, before: CpuSample, until: float) -> Autopsy:
        if time.monotonic() >= until:
            return Autopsy()
        found = examine(subject, before, until, self._tables)
        inherited = set(open_files().values())  # attempts have them from this process
        return replace(found, descriptors=tuple(end for end in found.descriptors if end.name not in inherited))

    async def sample(self, subject: Subject) -> CpuSample:
        """Return the CPU time used so far."""
        return await self._submit(lambda: sample_cpu(subject), CpuSample(time.monotonic()))

    def _submit(self, read: Callable[[], T], default: T) -> asyncio.Future[T]:
        """Run ``read`` in the thread. ``default``: the result if the kernel's files have an unknown format."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                found = read()
            except _UNREADABLE:
                found = default
            try:
                loop.call_soon_threadsafe(_resolve, future, found)
            except RuntimeError:
                return  # the loop is closed

        with self._lock:
            self._work.append(work)
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._serve, name="redrive-sampler", daemon=True).start()
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
