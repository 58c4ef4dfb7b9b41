"""Waits in an event loop for writes to a state file: see ``statefile/write_notices.py``; without inotify by polling."""

from __future__ import annotations

import asyncio

from ..statefile.write_notices import IDLE_SECONDS, WriteNotices


class AsyncWriteNotices:
    """Notices of writes to a state file, for the running event loop. Close it."""

    def __init__(self, path: str) -> None:
        self._notices = WriteNotices(path)
        self._noticed = asyncio.Event()
        if self._notices.descriptor is not None:
            asyncio.get_running_loop().add_reader(self._notices.descriptor, self._on_readable)

    def close(self) -> None:
        """Close the descriptor."""
        if self._notices.descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._notices.descriptor)
            self._notices.close()

    async def wait(self, poll_seconds: float) -> bool:
        """Wait for a notice, at most IDLE_SECONDS; without inotify for ``poll_seconds``. Returns whether one came.

        A notice since the last call counts.
        """
        if not self._notices.watch():
            await asyncio.sleep(poll_seconds)
            return False
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._noticed.wait()
        except TimeoutError:
            return False
        self._noticed.clear()
        return True

    def _on_readable(self) -> None:
        self._notices.clear()
        self._noticed.set()
