"""Looks at processes beside the loop, one after the other, in a thread that is there only while there is work.

A read from /proc can block for as long as the process is stuck in the kernel. The thread is a daemon and nobody waits
for it beyond the time that an answer is good for: a kill is never late because of it.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ...core.failures.hang import Autopsy
from .autopsy import CpuSample, Subject, examine, sample_cpu
from .sockets import Tables

T = TypeVar("T")

_UNREADABLE = (OSError, ValueError, LookupError, struct.error)


class ProcSampler:
    """Shared by all attempts of a runner; used from the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._is_busy = False
        self._tables = Tables()  # for the thread alone

    async def examine(self, subject: Subject, before: CpuSample, until: float) -> Autopsy:
        """What is seen of it by ``until`` (monotonic): nothing, where its turn does not come or it cannot be read."""
        if not subject.pid or time.monotonic() >= until:
            return Autopsy()
        answer = self._submit(lambda: self._examine(subject, before, until), Autopsy())
        try:
            return await asyncio.wait_for(answer, until - time.monotonic())
        except TimeoutError:
            return Autopsy()

    def _examine(self, subject: Subject, before: CpuSample, until: float) -> Autopsy:
        if time.monotonic() >= until:
            return Autopsy()
        seen, ours = examine(subject, before, until, self._tables), _own_files()
        return replace(seen, descriptors=tuple(end for end in seen.descriptors if end.name not in ours))

    async def sample(self, subject: Subject) -> CpuSample:
        """The CPU that it has used until now."""
        return await self._submit(lambda: sample_cpu(subject), CpuSample(time.monotonic()))

    def _submit(self, read: Callable[[], T], otherwise: T) -> asyncio.Future[T]:
        """``otherwise``: the answer where what the kernel says is not what is known of other kernels."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                found = read()
            except _UNREADABLE:
                found = otherwise
            try:
                loop.call_soon_threadsafe(_resolve, answer, found)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        with self._lock:
            self._work.append(work)
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._serve, name="redrive-sampler", daemon=True).start()
        return answer

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._work:
                    self._tables.clear()
                    self._is_busy = False
                    return
                work = self._work.popleft()
            work()


def _own_files() -> set[str]:
    """What attempts inherit says nothing about them: the lock of the state file."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


def _resolve(answer: asyncio.Future[T], found: T) -> None:
    if not answer.done():
        answer.set_result(found)
