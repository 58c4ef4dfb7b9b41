"""The executor's ends of the pipes of an attempt, read without blocking."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
DRAIN_BYTES = 1024 * 1024  # the default largest pipe of Linux: bounds the last read of a dead attempt


class Pipe:
    """Calls ``on_data`` with the data that arrives, and ``on_end`` once when the last writer is gone."""

    def __init__(self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None] | None = None) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Read once. Returns False if nothing is there, or at the end."""
        if self._ended:
            return False
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._on_data(data)
            return True
        self._ended = True
        self._loop.remove_reader(self._fd)
        if self._on_end is not None:
            self._on_end()
        return False

    def drain(self) -> None:
        """Read all that is in the pipe. After the death of the writer nothing is missing."""
        for _ in range(DRAIN_BYTES // READ_BYTES):
            if not self._read():
                return

    def pause(self) -> None:
        """Stop reading: the writer blocks once the pipe is full."""
        if not self._ended:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Start reading again."""
        if not self._ended:
            self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        if self._fd < 0:
            return
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1


class StackPipe:
    """Collects stack dumps. A dump has no end mark: it is complete once the pipe is quiet for ``QUIET_SECONDS``."""

    BYTES_MAX = 256 * 1024
    WAIT_SECONDS = 0.1  # the longest that a kill waits for a stack
    QUIET_SECONDS = 0.01

    def __init__(self, fd: int) -> None:
        self._text = bytearray()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self.pipe = Pipe(fd, self._append, self._changed.set)

    def _append(self, data: bytes) -> None:
        self._text += data[: self.BYTES_MAX - len(self._text)]
        self._changed.set()

    async def collect(self, request: Callable[[], bool]) -> str:
        """Call ``request``, which sends the signal, and return the dump; empty if none came in time."""
        async with self._lock:
            self._text.clear()
            if request():
                await self._wait_until_quiet()
            return self.text()

    async def _wait_until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self.WAIT_SECONDS
        while (remaining := limit - loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(
                    self._changed.wait(), min(remaining, self.QUIET_SECONDS) if self._text else remaining
                )
            except TimeoutError:
                return

    def text(self) -> str:
        """Return the dump that was collected last."""
        return self._text.decode("utf-8", "replace")


class DrainedPipe:
    """Stands for a pipe of a dead process whose data was read elsewhere."""

    def drain(self) -> None:
        """Nothing is left."""

    pause = resume = close = drain
