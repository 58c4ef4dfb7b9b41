"""While a run of a served flow goes on: has the next one not started in time, has this one not ended in time?

One state file has one run at a time, so a run that takes too long makes the next one late, and only its own executor
can tell: also one that somebody started by hand while a service waits for the file. What no executor sees, because none
is alive, ``serve.py`` tells by the same function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..clock import Clock
from ..errors import StorageError
from ..statefile import lock_file
from ..store import schedules
from .opening import OpenRun

LOOK_SECONDS = 10.0  # until somebody may have begun to serve the file


class Promises:
    """Told of every beat; looks into the file only when a promise may be about to break."""

    def __init__(self, opened: OpenRun, clock: Clock, on_trouble: Callable[[BaseException], None]) -> None:
        self._served = schedules.served_of(opened.flow)
        self._is_of_service = opened.place.request.options.served
        self._state_path = opened.state_path
        self._submit = opened.writer.submit
        self._clock = clock
        self._on_trouble = on_trouble
        self._breaks_at: int | None = 0  # at first nobody knows; None: not before the next run

    def beat(self) -> None:
        """One second has passed."""
        served = self._served
        if served is None or self._breaks_at is None or self._clock.now_us() < self._breaks_at:
            return
        if not self._is_of_service and lock_file.served_by(self._state_path) is None:
            self._breaks_at = self._clock.now_us() + round(LOOK_SECONDS * 1e6)  # nobody has promised anything
            return
        self._breaks_at = None  # until this look is written
        self._submit(lambda journal: schedules.keep_promises(journal, served)).add_done_callback(self._looked)

    def _looked(self, written: asyncio.Future[int | None]) -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is None:
            self._breaks_at = written.result()
        elif isinstance(error, StorageError):  # told by the storage itself
            self._breaks_at = 0
        else:
            self._on_trouble(error)
