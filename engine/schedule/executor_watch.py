"""Watches the process that owns the state file of a flow: an executor that any supervisor has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable

from ..statefile import lock_file

ASK_AGAIN_SECONDS = 1.0  # about an owner that cannot be watched


class ExecutorWatch:
    """``on_end()`` is called when the owner of the state file has ended. ``run_id``: of the latest owner."""

    def __init__(self, state_path: str, on_end: Callable[[], None]) -> None:
        self.run_id: str | None = None
        self.process: _WatchedProcess | None = None
        self._state_path = state_path
        self._on_end = on_end

    def living_holder(self) -> lock_file.LockHolder | None:
        """Return the owner of the state file, which is watched from now on."""
        holder = lock_file.current_holder(self._state_path)
        if holder is None or not holder.is_alive():
            return None
        if self.process is None or self.process.pid != holder.pid:
            self._watch(holder)
        self.run_id = holder.run_id or self.run_id
        return holder

    def _watch(self, holder: lock_file.LockHolder) -> None:
        self.close()
        try:
            if holder.host != socket.gethostname():
                raise ProcessLookupError
            self.process = _WatchedProcess(holder.pid, self._end)
        except OSError:  # it has ended meanwhile, or runs elsewhere: ask again soon
            asyncio.get_running_loop().call_later(ASK_AGAIN_SECONDS, self._end)

    def _end(self) -> None:
        self.process = None
        self._on_end()

    async def stop_run(self) -> None:
        """Stop the run in order, if one goes on, and wait for the end of its executor."""
        holder = lock_file.current_holder(self._state_path)
        if holder is None or not holder.is_alive() or holder.host != socket.gethostname():
            return
        ended = asyncio.Event()
        with contextlib.suppress(ProcessLookupError):
            process = _WatchedProcess(holder.pid, ended.set)
            os.kill(process.pid, signal.SIGTERM)
            await ended.wait()

    def close(self) -> None:
        """Watch no longer; a run goes on."""
        if self.process is not None:
            self.process.close()
            self.process = None


class _WatchedProcess:
    """A process, of this supervisor or of an earlier one. ``on_end()`` is called once when it has ended."""

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        """Raises OSError if there is no such process."""
        self.pid = pid
        self._on_end = on_end
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        self.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self._on_end()

    def close(self) -> None:
        """Watch it no longer."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
