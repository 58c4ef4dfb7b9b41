"""Tells whether a SIGKILL that nobody of us sent came from the kernel for want of memory."""

from __future__ import annotations

import time

from . import process

MARK_SECONDS = 1.0  # a mark that young serves the next attempt too: reading the counter costs more than it is worth
NEAR_LIMIT = 0.95


class OutOfMemoryWatch:
    """Compares the kernel's count of its kills before an attempt with the count after."""

    def __init__(self) -> None:
        self._mark = process.oom_kills()
        self._marked_at = time.monotonic()
        self._limit_kb = process.memory_limit_kb()

    def mark(self) -> int:
        """The count now, or a moment ago."""
        now = time.monotonic()
        if now - self._marked_at > MARK_SECONDS:
            self._mark, self._marked_at = process.oom_kills(), now
        return self._mark

    def explains(self, mark: int, max_rss_kb: int) -> bool:
        """True if the kernel has killed since ``mark``, or the process came close to the bound of our cgroup."""
        if process.oom_kills() > mark:
            return True
        return self._limit_kb is not None and max_rss_kb >= NEAR_LIMIT * self._limit_kb
