"""Which logical times of a schedule still want a run, and how a backfill keeps out of the way of the live schedule."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile

from ..clock import Clock
from ..domain.states import RunState
from ..errors import RefusedError
from ..statefile import lock_file
from ..store import database, runs, schedules
from ..store.schedules import ServedFlow

RUNS_MAX = 10_000  # at a time
LOOK_SECONDS = 0.5  # a service that starts its run tells nobody


@dataclass(frozen=True, slots=True)
class BackfillSlot:
    """One logical time. ``run_id`` None: nothing has run for it yet."""

    logical: int
    run_id: str | None = None
    state: RunState | None = None
    is_blocked: bool = False

    @property
    def is_pending(self) -> bool:
        """It has no run, or one that was interrupted."""
        return self.run_id is None or (self.state is RunState.RUNNING and not self.is_blocked)


def backfill_slots(state_path: str, served: ServedFlow, since: int, until: int) -> list[BackfillSlot]:
    """The logical times from ``since`` to ``until``, both included, and what has become of each.

    Raises RefusedError for more than RUNS_MAX, StateFileError where the file cannot be read.
    """
    times = list(islice(takewhile(lambda at: at <= until, served.schedule.recurrence.after(since - 1)), RUNS_MAX + 1))
    if len(times) > RUNS_MAX:
        raise RefusedError(f"that is more than {RUNS_MAX:,} runs: backfill a shorter stretch at a time")
    if not times or _is_missing_or_empty(state_path):
        return [BackfillSlot(at) for at in times]
    with database.reading(state_path) as connection:
        found = _found(connection, served, times)
    return [found.get(at, BackfillSlot(at)) for at in times]


def _found(connection: sqlite3.Connection, served: ServedFlow, times: list[int]) -> dict[int, BackfillSlot]:
    started = schedules.runs_of(connection, served.name, times[0], times[-1])
    return {at: _what_became(connection, at, run_id) for at, run_id in started.items()}


def _what_became(connection: sqlite3.Connection, logical: int, run_id: str) -> BackfillSlot:
    state, is_blocked = runs.run_state(connection, run_id)
    return BackfillSlot(logical, run_id, state, is_blocked)


def wait_for_schedule(state_path: str, served: ServedFlow, clock: Clock, say: Callable[[str], None]) -> None:
    """Wait as long as a service of the same file has a run to start that is due: tonight comes before last month."""
    is_told = False
    while lock_file.served_by(state_path) is not None and _is_due(state_path, served, clock.now_us()):
        if not is_told:
            say("waiting for the run that is due by the schedule")
            is_told = True
        time.sleep(LOOK_SECONDS)  # that it has begun its run tells nobody but the file


def _is_due(state_path: str, served: ServedFlow, now: int) -> bool:
    if _is_missing_or_empty(state_path):
        return False
    with database.reading(state_path) as connection:
        next_at = schedules.next_at(connection, served.name)
    return next_at is not None and next_at <= now


def _is_missing_or_empty(path: str) -> bool:
    return not os.path.exists(path) or not os.path.getsize(path)
