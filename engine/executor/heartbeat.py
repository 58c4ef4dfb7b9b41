"""The heartbeat: once a second the executor shows that its loop turns, and looks after what no event tells it of.

The lock file's modification time costs no commit and is seen from outside; the row in the file is document 003's
heartbeat. Also the loop's safety net: should a wake-up ever be missed, the next beat makes up for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..store import executors
from .attempts import AttemptDesk
from .opening import OpenRun

HEARTBEAT_SECONDS = 1.0
HEARTBEATS_PER_ROW = 10  # 003.40: the row is written every ten seconds


class Heartbeat:
    """Beats from ``start`` to ``stop``; ``duties`` are done at each beat, in this order."""

    def __init__(self, opened: OpenRun, desk: AttemptDesk, duties: Sequence[Callable[[], None]]) -> None:
        self._opened = opened
        self._desk = desk
        self._duties = duties
        self._beats = 0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat now and once a second from now on."""
        # The next one first: the disk may refuse the rest.
        self._next = asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self.start)
        self._opened.touch()
        self._beats += 1
        if self._beats % HEARTBEATS_PER_ROW == 0:
            executor_id = self._opened.claimant.executor_id
            self._desk.write(lambda journal: executors.beat(journal, executor_id))
        for duty in self._duties:
            duty()

    def stop(self) -> None:
        """Beat no more."""
        if self._next is not None:
            self._next.cancel()
