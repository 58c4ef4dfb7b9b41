"""Steps of the wall clock: the instants that move with it, so that remaining and elapsed times stay the same.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Mapping, Optional, cast

from ...domain.event_changes import RunChange
from ...domain.event_codec import decode
from ...domain.event_columns import TaskColumns
from ...domain.event_payloads import ClockMoved, RunChanged
from ...domain.events import EventKind
from ...domain.states import MOVING, WITH_INSTANT, TaskState
from ...domain.trigger_rules import DERIVED
from .transitions import Transaction

#: Due times, and the start of max_elapsed -> the states in which they count now, or again once a task above allows it.
#: The deadline of a run is a time of day.
_INSTANTS = {
    "next_retry_at": WITH_INSTANT | DERIVED,
    "first_started_at": MOVING | DERIVED,
    "expires_at": frozenset([TaskState.DEAD_LETTER]),
}


def shift_times(transaction: Transaction, run_id: str, jump_us: int) -> None:
    """Shift the stored times of a run by a step of the wall clock."""
    deadline_at, paused_since = transaction.connection.execute(
        "SELECT deadline_at, paused_since FROM run WHERE run_id = ?", (run_id,)
    ).fetchone()
    rows = transaction.connection.execute(
        "SELECT name, state, next_retry_at, first_started_at, expires_at FROM task WHERE run_id = ? AND"
        " (next_retry_at IS NOT NULL OR first_started_at IS NOT NULL OR expires_at IS NOT NULL)",
        (run_id,),
    ).fetchall()
    count = 0
    for name, state, *instants in rows:
        shifted = _shifted(state, dict(zip(_INSTANTS, instants)), deadline_at, jump_us)
        if shifted:
            transaction.change(run_id, name, shifted)
            count += 1
    if paused_since is not None:  # how long the pause has lasted decides when it is paged
        transaction.change_run(run_id, RunChanged(RunChange.CLOCK, {"paused_since": paused_since + jump_us}))
    transaction.emit(ClockMoved(jump_us, count), run_id)


def steps_since(connection: sqlite3.Connection, run_id: str, seq: int) -> int:
    """The microseconds by which the wall clock was stepped after the event ``seq``."""
    sql = "SELECT data FROM event WHERE run_id = ? AND seq > ? AND kind = ?"
    rows = connection.execute(sql, (run_id, seq, EventKind.CLOCK))
    steps = [decode(EventKind.CLOCK, json.loads(data)) for (data,) in rows]
    return sum(step.moved_us for step in steps if isinstance(step, ClockMoved))


def shift_recorded(before: TaskColumns, deadline_at: Optional[int], jump_us: int) -> TaskColumns:
    """The columns that an act has recorded of a task, shifted by a step of the clock since then."""
    return cast(TaskColumns, dict(before, **_shifted(before["state"], before, deadline_at, jump_us)))


def _shifted(state: str, instants: Mapping[str, Any], deadline_at: Optional[int], jump_us: int) -> TaskColumns:
    found = {name: instants.get(name) for name, states in _INSTANTS.items() if state in states}
    if found.get("expires_at") == deadline_at:
        found["expires_at"] = None
    return cast(TaskColumns, {name: at + jump_us for name, at in found.items() if at is not None})
