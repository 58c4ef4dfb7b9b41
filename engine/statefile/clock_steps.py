"""Steps of the wall clock: the instants that move with it, so that remaining and elapsed times stay the same.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Collection, Mapping, Optional

from ..domain.event_codec import decode
from ..domain.event_payloads import AttemptColumns, ClockMoved, RunChange, RunChanged, RunColumns, TaskColumns
from ..domain.events import EventKind
from ..domain.states import MOVING, OPEN, WITH_INSTANT, TaskState
from ..domain.trigger_rules import DERIVED
from .transitions import Transaction

#: Due times, the start of max_elapsed, and since when a task runs -> the states in which they count now, or again once
#: a task above allows it.
_INSTANTS = {
    "next_retry_at": WITH_INSTANT | DERIVED,
    "first_started_at": MOVING | DERIVED,
    "expires_at": OPEN,
    "started_at": frozenset([TaskState.RUNNING]),
}


def shift_times(transaction: Transaction, run_ids: Collection[str], jump_us: int) -> None:
    """Shift the stored times of runs, and the snoozes of all pages, by a step of the wall clock."""
    for run_id in run_ids:
        _shift_run_times(transaction, run_id, jump_us)
    if run_ids:
        sql = "UPDATE page SET snoozed_until = snoozed_until + ? WHERE state = 'snoozed'"
        transaction.connection.execute(sql, (jump_us,))


def _shift_run_times(transaction: Transaction, run_id: str, jump_us: int) -> None:
    values = transaction.connection.execute(_SELECT_RUN, (run_id,)).fetchone()
    run = dict(zip(_RUN_INSTANTS, values))
    deadline_at = run.get("deadline_at") if run.get("deadline_is_time") else None
    names = ", ".join(_INSTANTS)
    rows = transaction.connection.execute(
        "SELECT name, state, attempt, {} FROM task WHERE run_id = ? AND coalesce({}) IS NOT NULL".format(names, names),
        (run_id,),
    ).fetchall()
    count = 0
    for name, state, attempt, *instants in rows:
        shifted = _shifted(state, dict(zip(_INSTANTS, instants)), deadline_at, jump_us)
        if "started_at" in shifted:  # with its attempt, which runs
            running: AttemptColumns = {"started_at": shifted["started_at"]}
            transaction.change_attempt(run_id, name, attempt, running)
            transaction.change(run_id, name, shifted, attempt, attempt_set=running)
        elif shifted:
            transaction.change(run_id, name, shifted)
        count += bool(shifted)
    moved = shift_run(run, jump_us)
    if run.get("ended_at") is None:  # its start stays the time of day that it was
        moved["waited_us"] = run["waited_us"] + jump_us
    if run.get("blocked_since") is not None:
        moved["blocked_since"] = run["blocked_since"] + jump_us
    if moved:
        transaction.change_run(run_id, RunChanged(RunChange.CLOCK, moved))
    transaction.emit(ClockMoved(jump_us, count), run_id)


_RUN_INSTANTS = (
    "paused_since",
    "deadline_at",
    "deadline_is_time",
    "deadline_passed_at",
    "ended_at",
    "blocked_since",
    "waited_us",
)
_SELECT_RUN = "SELECT {} FROM run WHERE run_id = ?".format(", ".join(_RUN_INSTANTS))


def shift_run(run: RunColumns, jump_us: int) -> RunColumns:
    """The instants of a run that move with a step of the clock.

    How long a pause has lasted decides when it is paged. A deadline is a duration after the start, until it has passed;
    only an operator gives a time of day.
    """
    moved: RunColumns = {}
    paused_since, deadline_at = run.get("paused_since"), run.get("deadline_at")
    if paused_since is not None:
        moved["paused_since"] = paused_since + jump_us
    if deadline_at is not None and not run.get("deadline_is_time") and run.get("deadline_passed_at") is None:
        moved["deadline_at"] = deadline_at + jump_us
    return moved


def steps_since(connection: sqlite3.Connection, run_id: str, seq: int) -> int:
    """The microseconds by which the wall clock was stepped after the event ``seq``."""
    sql = "SELECT data FROM event WHERE run_id = ? AND seq > ? AND kind = ?"
    rows = connection.execute(sql, (run_id, seq, EventKind.CLOCK))
    steps = [decode(EventKind.CLOCK, json.loads(data)) for (data,) in rows]
    return sum(step.moved_us for step in steps if isinstance(step, ClockMoved))


def shift_recorded(before: TaskColumns, deadline_at: Optional[int], jump_us: int) -> TaskColumns:
    """The columns that an act has recorded of a task, shifted by a step of the clock since then."""
    return dict(before, **_shifted(before["state"], before, deadline_at, jump_us))


def _shifted(state: str, instants: Mapping[str, Any], deadline_at: Optional[int], jump_us: int) -> TaskColumns:
    found = {name: instants.get(name) for name, states in _INSTANTS.items() if state in states}
    if found.get("expires_at") == deadline_at:
        found["expires_at"] = None
    return {name: at + jump_us for name, at in found.items() if at is not None}
