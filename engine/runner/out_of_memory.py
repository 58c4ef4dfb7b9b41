"""Detects whether a SIGKILL that redrive did not send came from the kernel's out-of-memory killer.

The kernel counts such kills per cgroup. If the own cgroup has no count, that of the whole machine is used; it also
counts kills of unrelated processes at the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

MARK_SECONDS = 1.0  # a younger mark is reused for the next attempt: reading the counter is slow
NEAR_LIMIT = 0.95
UNLIMITED_BYTES = 1 << 60  # cgroup version 1 reports a larger number where there is no limit

_LIMITS = ("memory.max", "memory.limit_in_bytes")  # cgroups of version 2 and 1
_COUNTS = ("memory.events", "memory.oom_control")


class OutOfMemoryWatch:
    """Compares the kernel's count of out-of-memory kills before and after an attempt.

    ``bound``: how much memory there is, in words. ``root``: the folder of /proc and /sys.
    """

    def __init__(self, root: str = "/") -> None:
        limits = dict(_limits(root))
        own = next(iter(limits), None)
        counts = [] if own is None else [os.path.join(own, name) for name in _COUNTS]
        self._counts = [*counts, os.path.join(root, "proc/vmstat")]
        self._limit_kb = min((kb for kb in limits.values() if kb is not None), default=None)
        self.bound = _bound(self._limit_kb)
        self._mark = self._kills()
        self._marked_at = time.monotonic()

    def mark(self) -> int:
        """Return the count, at most ``MARK_SECONDS`` old."""
        now = time.monotonic()
        if now - self._marked_at > MARK_SECONDS:
            self._mark, self._marked_at = self._kills(), now
        return self._mark

    def explains(self, mark: int, max_rss_kb: int) -> bool:
        """Return whether the kernel killed since ``mark``, or the process came close to the limit of the cgroup."""
        if self._kills() > mark:
            return True
        return self._limit_kb is not None and max_rss_kb >= NEAR_LIMIT * self._limit_kb

    def _kills(self) -> int:
        """Return the first count that is available."""
        found = (count for path in self._counts if (count := count_kills(path)) is not None)
        return next(found, 0)


def _limits(root: str) -> Iterator[tuple[str, int | None]]:
    """Yield the folders of this process's cgroup and its parents, innermost first, with their limits of memory in kB.

    In a container the mount may be the only one that is visible.
    """
    for line in read_text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = os.path.join(root, "sys/fs/cgroup", controllers).rstrip("/")
        folder = os.path.join(mount, path.strip("/")).rstrip("/")
        while len(folder) >= len(mount):
            if text := next(filter(None, (read_text(os.path.join(folder, name)) for name in _LIMITS)), ""):
                is_limit = text.strip().isdigit() and int(text) < UNLIMITED_BYTES
                yield folder, int(text) // 1024 if is_limit else None
            folder = os.path.dirname(folder)


def _bound(limit_kb: int | None) -> str:
    if limit_kb is not None:
        return f"{limit_kb / 1024:.0f} MiB that its cgroup may hold"
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{machine_bytes / 1024**2:.0f} MiB that this machine has"


def count_kills(path: str | Path) -> int | None:
    """Return the kernel's count of out-of-memory kills in a file of a cgroup; None: it has none."""
    words = (line.split() for line in read_text(path).splitlines())
    return next((int(line[1]) for line in words if line[:1] == ["oom_kill"] and len(line) == 2), None)


def read_text(path: str | Path) -> str:
    """Return what the kernel says in a file; empty if it says nothing."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
