"""Reports late runs of a served flow while a run is active: a start or an end after its deadline.

A state file has one run at a time, so a long run delays the next one, and only the executor of the long run can report
that, also if it was started by hand while a service waits for the file. While no executor lives, ``schedule/serve.py``
reports late runs by the same function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..clock import Clock
from ..errors import StorageError
from ..statefile import lock_file
from ..store import schedules
from .opening import OpenRun

SERVICE_POLL_SECONDS = 10.0  # between checks whether a service has started


class LateRuns:
    """Checked at every heartbeat; queries the state file only when a run may have become late."""

    def __init__(self, opened: OpenRun, clock: Clock, on_error: Callable[[BaseException], None]) -> None:
        self._served = schedules.served_flow(opened.flow)
        self._is_of_service = opened.lease.request.options.served
        self._state_path = opened.state_path
        self._submit = opened.writer.submit
        self._run_id = opened.projection.run.run_id
        self._clock = clock
        self._on_error = on_error
        self._next_late_at: int | None = 0  # microseconds UTC; 0: unknown; None: never, or a query is in flight

    def check(self) -> None:
        """Record late runs if one may be late by now."""
        served = self._served
        if served is None or self._next_late_at is None or self._clock.now_us() < self._next_late_at:
            return
        if not self._is_of_service and lock_file.served_by(self._state_path) is None:
            # Deadlines apply to a served flow only.
            self._next_late_at = self._clock.now_us() + round(SERVICE_POLL_SECONDS * 1e6)
            return
        self._next_late_at = None
        recorded = self._submit(lambda transaction: schedules.record_late_runs(transaction, served, self._run_id))
        recorded.add_done_callback(self._on_recorded)

    def _on_recorded(self, written: asyncio.Future[int | None]) -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is None:
            self._next_late_at = written.result()
        elif isinstance(error, StorageError):  # reported by StorageHealth
            self._next_late_at = 0
        else:
            self._on_error(error)
