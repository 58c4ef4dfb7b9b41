"""The heartbeat: once a second the executor shows that it is alive and runs its periodic checks.

It touches the lock file, which costs no commit and is visible to other processes, and writes its row every ten
seconds. One of the checks wakes the loop, so that a missed wake-up delays the run by one second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..store import executors
from .attempts import AttemptManager
from .opening import OpenRun

HEARTBEATS_PER_ROW = 10  # 003.40


class HeartbeatTimer:
    """Beats from ``start`` to ``stop`` and runs ``checks`` at each beat, in this order."""

    def __init__(
        self, opened: OpenRun, attempts: AttemptManager, checks: Sequence[Callable[[], None]], period_seconds: float
    ) -> None:
        self._opened = opened
        self._attempts = attempts
        self._checks = checks
        self._period_seconds = period_seconds
        self._beats = 0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat now and every ``period_seconds``."""
        # Schedule the next beat first: the rest may raise if the disk fails.
        self._next = asyncio.get_running_loop().call_later(self._period_seconds, self.start)
        self._opened.lease.lock.touch()
        self._beats += 1
        if self._beats % HEARTBEATS_PER_ROW == 0:
            executor_id = self._opened.identity.executor_id
            self._attempts.write(lambda transaction: executors.write_heartbeat(transaction, executor_id))
        for check in self._checks:
            check()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
