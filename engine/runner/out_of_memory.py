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
        groups = list(_groups(Path(root)))
        self._counts = [group / name for group in groups[:1] for name in _COUNTS] + [Path(root, "proc/vmstat")]
        self._limit_kb = min((kb for group in groups if (kb := _limit_kb(group)) is not None), default=None)
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


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and its parents that limit memory, innermost first."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        ours = mount / path.lstrip("/")
        for folder in (ours, *ours.parents):
            if any((folder / name).exists() for name in _LIMITS):
                yield folder
            if folder == mount:  # in a container it may be the only one that is visible
                break


def _limit_kb(group: Path) -> int | None:
    for name in _LIMITS:
        text = read_text(group / name).strip()
        if text.isdigit() and int(text) < UNLIMITED_BYTES:
            return int(text) // 1024
    return None


def _bound(limit_kb: int | None) -> str:
    if limit_kb is not None:
        return f"{limit_kb / 1024:.0f} MiB that its cgroup may hold"
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{machine_bytes / 1024**2:.0f} MiB that this machine has"


def count_kills(path: Path) -> int | None:
    """Return the kernel's count of out-of-memory kills in a file of a cgroup; None: it has none."""
    words = (line.split() for line in read_text(path).splitlines())
    return next((int(line[1]) for line in words if line[:1] == ["oom_kill"] and len(line) == 2), None)


def read_text(path: Path) -> str:
    """Return what the kernel says in a file; empty if it says nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""
