"""The logical times of a schedule without a run, for a backfill, and the wait for runs of the live schedule."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from itertools import islice, takewhile

import msgspec

from ..clock import Clock
from ..domain.states import RunState
from ..errors import RefusedError
from ..statefile import lock_file
from ..statefile.opening import holds_nothing
from . import database, runs
from .schedules import ServedFlow, load_progress, schedules_in

BACKFILL_MAX = 10_000  # in one backfill
RUN_POLL_SECONDS = 0.5  # between polls: a service that starts its run sends no event


class BackfillSlot(msgspec.Struct, frozen=True):
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
    def has_ended(self) -> bool:
        return self.state not in (None, RunState.RUNNING)


def backfill_slots(state_path: str, served: ServedFlow, since: int, until: int) -> list[BackfillSlot]:
    """Return the logical times from ``since`` to ``until`` inclusive, each with its run.

    Raises RefusedError for more than BACKFILL_MAX, StateFileError if the file cannot be read.
    """
    times = list(islice(takewhile(lambda at: at <= until, served.schedule.after(since - 1)), BACKFILL_MAX + 1))
    if len(times) > BACKFILL_MAX:
        raise RefusedError(f"that is more than {BACKFILL_MAX:,} runs: backfill a shorter range at a time")
    if not times or holds_nothing(state_path):
        return [BackfillSlot(at) for at in times]
    with database.reading(state_path) as connection:
        started = runs_of(connection, served.name, times[0], times[-1])
        slots = {at: _slot(connection, at, run_id, end) for at, (run_id, end) in started.items()}
    return [slots.get(at, BackfillSlot(at)) for at in times]


def _slot(connection: sqlite3.Connection, logical: int, run_id: str, end: RunState | None) -> BackfillSlot:
    if end is not None:
        return BackfillSlot(logical, run_id, end, is_deleted=True)
    state, is_blocked = runs.run_state(connection, run_id)
    return BackfillSlot(logical, run_id, state, is_blocked)


def wait_for_schedule(state_path: str, served: ServedFlow, clock: Clock, report: Callable[[str], None]) -> None:
    """Wait while a service of the same file has a due run to start, which takes precedence over the backfill.

    Not for one that its service does not start now: the schedule is paused, or its latest start failed.
    """
    is_reported = False
    while lock_file.served_by(state_path) is not None and _is_due(state_path, served, clock.now_us()):
        if any(row.is_paused(clock.now_us()) or row.start_error is not None for row in schedules_in(state_path)):
            return
        if not is_reported:
            report("waiting for the run that is due by the schedule")
            is_reported = True
        time.sleep(RUN_POLL_SECONDS)  # the service does not announce that it has started the run


def _is_due(state_path: str, served: ServedFlow, now: int) -> bool:
    if holds_nothing(state_path):
        return False
    with database.reading(state_path) as connection:
        progress = load_progress(connection, served.name)
    return progress is not None and progress.next_at is not None and progress.next_at <= now


def runs_of(
    connection: sqlite3.Connection, flow: str, since: int, until: int
) -> Mapping[int, tuple[str, RunState | None]]:
    """Return the run by logical time, from ``since`` to ``until`` inclusive, with its end if the run is deleted."""
    sql = (
        "SELECT logical_time, run_id, run_state FROM slot"
        " WHERE dag_name = ? AND logical_time BETWEEN ? AND ? AND state = 'run'"
    )
    rows = connection.execute(sql, (flow, since, until))
    return {int(at): (str(run_id), RunState(end) if end else None) for at, run_id, end in rows}
