"""The executor's ends of an attempt's pipes, read without waiting and never more than is wanted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
DRAIN_BYTES = 1024 * 1024  # what a pipe can hold at most on usual systems: bounds the last read of a dead attempt


class Pipe:
    """Calls ``on_data`` with what arrives, and ``on_end`` once when the last writer is gone."""

    def __init__(self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None] | None = None) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Read once. False when there is nothing more for now, or at all."""
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
        """Read what is there now. After the death of the writer this is all that it ever wrote."""
        for _ in range(DRAIN_BYTES // READ_BYTES):
            if not self._read():
                return

    def pause(self) -> None:
        """Stop reading: the writer waits once the pipe is full."""
        if not self._ended:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read again."""
        if not self._ended:
            self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Give the descriptor back. Safe to call twice."""
        if self._fd < 0:
            return
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1


class StackPipe:
    """Collects dumps of stacks. A dump has no end mark: it is complete when the pipe has been quiet for a moment."""

    BYTES_MAX = 256 * 1024
    WAIT_SECONDS = 0.1  # the longest that a kill waits for a stack
    QUIET_SECONDS = 0.01

    def __init__(self, fd: int) -> None:
        self._text = bytearray()
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self.pipe = Pipe(fd, self._take, self._news.set)

    def _take(self, data: bytes) -> None:
        self._text += data[: self.BYTES_MAX - len(self._text)]
        self._news.set()

    async def collect(self, ask: Callable[[], bool]) -> str:
        """Send the signal with ``ask`` and return the dump; empty when there was none in time."""
        async with self._turn:
            self._text.clear()
            if ask():
                await self._wait_until_quiet()
            return self.text()

    async def _wait_until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self.WAIT_SECONDS
        while (left := limit - loop.time()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), min(left, self.QUIET_SECONDS) if self._text else left)
            except TimeoutError:
                return

    def text(self) -> str:
        """What has been collected."""
        return self._text.decode("utf-8", "replace")
