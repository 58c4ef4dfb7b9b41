"""Backfill: the logical times of a schedule without a run, and waiting for runs of the live schedule."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile

from ..clock import Clock
from ..domain.states import RunState
from ..errors import RefusedError
from ..statefile import lock_file
from ..statefile.opening import has_content
from ..store import database, runs, schedules
from ..store.schedules import ServedFlow

RUNS_MAX = 10_000  # in one backfill
RUN_POLL_SECONDS = 0.5  # between polls: a service that starts its run sends no event


@dataclass(frozen=True, slots=True)
class BackfillSlot:
    """A logical time. ``run_id`` None: it has no run yet."""

    logical: int
    run_id: str | None = None
    state: RunState | None = None
    is_blocked: bool = False
    is_deleted: bool = False  # its run is

    @property
    def is_resumable(self) -> bool:
        """Whether it has a run that can continue: interrupted, or decided about after it was blocked."""
        return self.state is RunState.RUNNING and not self.is_blocked

    @property
    def is_pending(self) -> bool:
        """Whether it has no run, or one that can continue."""
        return self.run_id is None or self.is_resumable

    @property
    def has_ended(self) -> bool:
        return self.state not in (None, RunState.RUNNING)


def backfill_slots(state_path: str, served: ServedFlow, since: int, until: int) -> list[BackfillSlot]:
    """Return the logical times from ``since`` to ``until`` inclusive, each with its run.

    Raises RefusedError for more than RUNS_MAX, StateFileError if the file cannot be read.
    """
    times = list(islice(takewhile(lambda at: at <= until, served.schedule.after(since - 1)), RUNS_MAX + 1))
    if len(times) > RUNS_MAX:
        raise RefusedError(f"that is more than {RUNS_MAX:,} runs: backfill a shorter range at a time")
    if not times or not has_content(state_path):
        return [BackfillSlot(at) for at in times]
    with database.reading(state_path) as connection:
        slots = _slots_with_runs(connection, served, times)
    return [slots.get(at, BackfillSlot(at)) for at in times]


def _slots_with_runs(connection: sqlite3.Connection, served: ServedFlow, times: list[int]) -> dict[int, BackfillSlot]:
    started = schedules.runs_of(connection, served.name, times[0], times[-1])
    return {at: _slot(connection, at, run_id, end) for at, (run_id, end) in started.items()}


def _slot(connection: sqlite3.Connection, logical: int, run_id: str, end: RunState | None) -> BackfillSlot:
    if end is not None:
        return BackfillSlot(logical, run_id, end, is_deleted=True)
    state, is_blocked = runs.run_state(connection, run_id)
    return BackfillSlot(logical, run_id, state, is_blocked)


def wait_for_schedule(state_path: str, served: ServedFlow, clock: Clock, report: Callable[[str], None]) -> None:
    """Wait while a service of the same file has a due run to start, which takes precedence over the backfill."""
    is_reported = False
    while lock_file.served_by(state_path) is not None and _is_due(state_path, served, clock.now_us()):
        if not is_reported:
            report("waiting for the run that is due by the schedule")
            is_reported = True
        time.sleep(RUN_POLL_SECONDS)  # the service does not announce that it has started the run


def _is_due(state_path: str, served: ServedFlow, now: int) -> bool:
    if not has_content(state_path):
        return False
    with database.reading(state_path) as connection:
        next_at = schedules.next_at(connection, served.name)
    return next_at is not None and next_at <= now
