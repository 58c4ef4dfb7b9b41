"""Waits for writes to a state file or its log by inotify; without it (no Linux, no free instance) by polling.

A notice may come before the commit is visible: SQLite writes the log first, waits for the disk, then writes the index
of the log, which is mapped memory and sends none. So a notice only says when to look; ``PRAGMA data_version`` says
whether there is something new, and whoever waits looks several times after each notice, and every IDLE_SECONDS.
"""

from __future__ import annotations

import asyncio
import ctypes
import os

IDLE_SECONDS = 1.0  # between two looks without a notice

_MODIFY, _MOVED_TO, _CREATE = 0x002, 0x080, 0x100
_BUFFER_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class WriteNotices:
    """Notices of writes to a state file, for the running event loop. Close it."""

    def __init__(self, path: str) -> None:
        self._masks = {
            os.path.dirname(os.path.realpath(path)): _CREATE | _MOVED_TO,  # a new log, another file in the place
            path: _MODIFY,
            f"{path}-wal": _MODIFY,
        }
        self._noticed = asyncio.Event()
        self._descriptor = _open()
        if self._descriptor is not None:
            asyncio.get_running_loop().add_reader(self._descriptor, self._on_readable)

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    async def wait(self, poll_seconds: float) -> bool:
        """Wait for a notice, at most IDLE_SECONDS; without inotify for ``poll_seconds``. Returns whether one came.

        A notice since the last call counts.
        """
        if not self._watch():
            await asyncio.sleep(poll_seconds)
            return False
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._noticed.wait()
        except TimeoutError:
            return False
        self._noticed.clear()
        return True

    def _watch(self) -> bool:
        """Watch what is at the paths now; what is watched already stays so. False: not even the folder can be."""
        if self._descriptor is None:
            return False
        watches: list[int] = [
            _libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask) for path, mask in self._masks.items()
        ]
        return watches[0] >= 0

    def _on_readable(self) -> None:
        if self._descriptor is not None:
            os.read(self._descriptor, _BUFFER_BYTES)
            self._watch()  # a log that has just been created
            self._noticed.set()


def _open() -> int | None:
    """A new inotify instance; None if this system has none, or no free one."""
    try:
        descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:
        return None
    return descriptor if descriptor >= 0 else None
