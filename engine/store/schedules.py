"""What a state file remembers of schedules: how far each has come, which logical times have run, which promises broke.

``core/schedule.py`` decides; here it is written down, in the transaction of what follows from it. A logical time has
one row in ``slot``, and the row of a run is written with it: so it cannot run twice, whoever tries (SPEC 4.10).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ..core.durations import spoken
from ..core.paging import deadline_cause, schedule_cause
from ..core.schedule import KEPT, Decision, Schedule, at_wall, decide, iso_of, late_starts
from ..core.spec import FlowSpec, ScheduleSpec
from ..domain.event_payloads import ScheduleChange, ScheduleChanged
from ..domain.states import ENDED_BADLY, FINISHED, OPEN, DeadLetterKind
from ..errors import RefusedError
from ..flow.time_zones import open_schedule
from ..statefile.changes.page_lifecycle import resolve_cause
from ..statefile.changes.transitions import Journal
from ..statefile.state_lists import in_list
from .pages import Trouble, page


@dataclass(frozen=True, slots=True)
class Served:
    """A flow with its schedule, as it is served from a state file."""

    flow: FlowSpec
    spec: ScheduleSpec
    schedule: Schedule

    @property
    def name(self) -> str:
        """Of the flow."""
        return self.flow.name


def served_of(flow: FlowSpec) -> Served | None:
    """A flow ready to be served; None for one without a schedule. Raises FlowError where its zone is unknown here."""
    return None if flow.schedule is None else Served(flow, flow.schedule, open_schedule(flow.schedule, flow.name))


@dataclass(frozen=True, slots=True)
class Kept:
    """How far a schedule has come by its row. Instants are microseconds UTC."""

    expression: str
    timezone: str
    decided_until: int
    next_at: int | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """A schedule and its runs as of one moment. ``unfinished``: runs that can move and that nobody moves, oldest first.

    ``fired``: logical times after ``kept.decided_until`` that have run already. ``breaks_at``: when the next promise
    will not have been kept. ``unsent``: a page waits for a sender.
    """

    kept: Kept | None
    fired: frozenset[int] = frozenset()
    unfinished: tuple[str, ...] = ()
    breaks_at: int | None = None
    unsent: bool = False

    def decision(self, served: Served, now: int) -> Decision | None:
        """What is to be done now; None while the schedule has not begun here, or has become another."""
        if self.kept is None or _is_another(self.kept, served.spec):
            return None
        return decide(served.schedule, self.kept.decided_until, self.fired, now)


# --- Read ----------------------------------------------------------------------------------------------------------

# The first condition is that of the index.
_UNFINISHED = (
    "SELECT run_id FROM run WHERE dag_name = ? AND (ended_at IS NULL OR ended_at > deadline_at) AND ended_at IS NULL"
    " AND blocked_since IS NULL AND paused_since IS NULL ORDER BY started_at, rowid"
)
_UNSENT = "SELECT 1 FROM page WHERE state = 'open' AND sent_at IS NULL AND updated_at > ? LIMIT 1"
_UNSENT_US = 24 * 3600 * 1_000_000  # as for the outbox of a run: what is older is history


def outlook(connection: sqlite3.Connection, served: Served, now: int) -> Outlook:
    """How the flow stands in a file that has the tables of today."""
    kept = _kept(connection, served.name)
    return Outlook(
        kept,
        frozenset() if kept is None else _fired(connection, served.name, kept.decided_until),
        tuple(str(run_id) for (run_id,) in connection.execute(_UNFINISHED, (served.name,))),
        _breaks_at(connection, served, kept),
        connection.execute(_UNSENT, (now - _UNSENT_US,)).fetchone() is not None,
    )


def runs_of(connection: sqlite3.Connection, flow: str, since: int, until: int) -> Mapping[int, str]:
    """The runs of the logical times from ``since`` to ``until``, both included."""
    sql = "SELECT logical_time, run_id FROM slot WHERE dag_name = ? AND logical_time BETWEEN ? AND ? AND state = 'run'"
    return {int(at): str(run_id) for at, run_id in connection.execute(sql, (flow, since, until))}


def next_at(connection: sqlite3.Connection, flow: str) -> int | None:
    """When the next run of a flow is due; None where it is not served from this file."""
    kept = _kept(connection, flow)
    return None if kept is None else kept.next_at


def _kept(connection: sqlite3.Connection, flow: str) -> Kept | None:
    sql = "SELECT expression, timezone, decided_until, next_at FROM schedule WHERE dag_name = ?"
    row = connection.execute(sql, (flow,)).fetchone()
    return None if row is None else Kept(*row)


def _fired(connection: sqlite3.Connection, flow: str, after: int) -> frozenset[int]:
    sql = "SELECT logical_time FROM slot WHERE dag_name = ? AND logical_time > ? AND state = 'run'"
    return frozenset(at for (at,) in connection.execute(sql, (flow, after)))


def _is_another(kept: Kept, spec: ScheduleSpec) -> bool:
    return (kept.expression, kept.timezone) != (spec.expression, spec.timezone)


# --- Decided -------------------------------------------------------------------------------------------------------


def settle(journal: Journal, served: Served) -> None:
    """Bring the file up to now: a schedule that begins or changes, promises that broke, what is given up.

    What is to run is not started by this: ``fire`` belongs into the transaction of its run.
    """
    kept = _kept(journal.connection, served.name)
    if kept is None or _is_another(kept, served.spec):
        _begin(journal, served, kept)
    keep_promises(journal, served)
    kept = _kept(journal.connection, served.name)
    assert kept is not None
    fired = _fired(journal.connection, served.name, kept.decided_until)
    decision = decide(served.schedule, kept.decided_until, fired, journal.at)
    if decision.missed:
        _give_up(journal, served, decision)
    _move_on(journal, served, decision.decided_until)


def fire(journal: Journal, served: Served, logical: int, run_id: str, *, again: bool = False) -> None:
    """Let a run stand for a logical time; the caller writes the run in the same transaction.

    ``again``: also for one that was given up, as a backfill does. Raises RefusedError for one that has run, or that
    somebody else has decided about meanwhile.
    """
    if not _take(journal, served, logical, run_id) and not (again and _take_given_up(journal, served, logical, run_id)):
        when = iso_of(logical, served.schedule.zone)
        raise RefusedError(f"the run of {served.name!r} for {when} has been decided about already")
    kept = _kept(journal.connection, served.name)
    if kept is not None:
        _move_on(journal, served, kept.decided_until if again else max(kept.decided_until, logical))
    late_at = served.schedule.late_at(logical)
    if not again and (late_at is None or journal.at <= late_at):
        resolve_cause(journal, schedule_cause(served.name))


def _take(journal: Journal, served: Served, logical: int, run_id: str) -> bool:
    sql = "INSERT OR IGNORE INTO slot (dag_name, logical_time, state, run_id, decided_at) VALUES (?,?,'run',?,?)"
    return journal.connection.execute(sql, (served.name, logical, run_id, journal.at)).rowcount == 1


def _take_given_up(journal: Journal, served: Served, logical: int, run_id: str) -> bool:
    sql = (
        "UPDATE slot SET state = 'run', run_id = ?, decided_at = ?"
        " WHERE dag_name = ? AND logical_time = ? AND state = 'missed'"
    )
    return journal.connection.execute(sql, (run_id, journal.at, served.name, logical)).rowcount == 1


def _begin(journal: Journal, served: Served, kept: Kept | None) -> None:
    """From now on. What another expression still owed is not run by this one."""
    sql = (
        "INSERT OR REPLACE INTO schedule (dag_name, expression, timezone, misfire, flow_path, since, decided_until)"
        " VALUES (?,?,?,?,?,?,?)"
    )
    spec, now = served.spec, journal.at
    values = (served.name, spec.expression, spec.timezone, spec.misfire, served.flow.path, now, now)
    journal.connection.execute(sql, values)
    what = ScheduleChange.BEGUN if kept is None else ScheduleChange.CHANGED
    journal.emit(ScheduleChanged(what, served.name, spec.expression, spec.timezone))


def _give_up(journal: Journal, served: Served, decision: Decision) -> None:
    journal.connection.executemany(
        "INSERT OR IGNORE INTO slot (dag_name, logical_time, state, decided_at) VALUES (?,?,'missed',?)",
        [(served.name, at, journal.at) for at in decision.missed],
    )
    zone = served.schedule.zone
    missed = ScheduleChanged(
        ScheduleChange.MISSED,
        served.name,
        runs=len(decision.missed),
        is_all=decision.is_all,
        first=iso_of(decision.missed[0], zone),
        last=iso_of(decision.missed[-1], zone),
        misfire=served.spec.misfire,
    )
    journal.emit(missed)


def _move_on(journal: Journal, served: Served, decided_until: int) -> None:
    """How far it has come, and what comes next, for those who only look."""
    fired = _fired(journal.connection, served.name, decided_until)
    upcoming = _first(served.schedule, decided_until, fired)
    columns = {
        "decided_until": decided_until,
        "misfire": served.spec.misfire,
        "flow_path": served.flow.path,
        "next_at": None if upcoming is None else served.schedule.due_at(upcoming),
        "next_local": None if upcoming is None else iso_of(upcoming, served.schedule.zone),
    }
    sql = f"UPDATE schedule SET {', '.join(f'{column} = ?' for column in columns)} WHERE dag_name = ?"
    journal.connection.execute(sql, (*columns.values(), served.name))


def _first(schedule: Schedule, after: int, fired: Iterable[int]) -> int | None:
    """The first logical time after an instant that has not run."""
    return next((at for at in schedule.rhythm.after(after) if at not in fired), None)


# --- Promised ------------------------------------------------------------------------------------------------------

_LATE = (
    "SELECT run_id, logical_time, deadline_at FROM run"
    " WHERE dag_name = ? AND (ended_at IS NULL OR ended_at > deadline_at)"
    " AND logical_time IS NOT NULL AND deadline_at <= ?"
    " AND NOT EXISTS (SELECT 1 FROM sla WHERE sla.dag_name = run.dag_name AND sla.logical_time = run.logical_time"
    " AND promise = 'end') ORDER BY deadline_at"
)
_NEXT_DEADLINE = (
    "SELECT min(deadline_at) FROM run WHERE dag_name = ? AND (ended_at IS NULL OR ended_at > deadline_at)"
    " AND logical_time IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM sla WHERE sla.dag_name = run.dag_name AND sla.logical_time = run.logical_time"
    " AND promise = 'end')"
)
_LAST_LATE_START = "SELECT max(logical_time) FROM sla WHERE dag_name = ? AND promise = 'start'"


def keep_promises(journal: Journal, served: Served) -> int | None:
    """Write down what was not kept by now, and page once for it. Answers with when the next one will not have been."""
    kept = _kept(journal.connection, served.name)
    if kept is not None and _is_another(kept, served.spec):
        kept = None  # what the flow says by now has promised nothing yet
    if kept is not None:
        _look_at_starts(journal, served, kept)
    for run_id, logical, due_at in journal.connection.execute(_LATE, (served.name, journal.at)).fetchall():
        _break(journal, served, logical, "end", due_at, run_id)
        journal.emit(ScheduleChanged(ScheduleChange.LATE_END, served.name, due_at=due_at), run_id)
        _page_late_end(journal, served, run_id, due_at)
    return _breaks_at(journal.connection, served, kept)


def _breaks_at(connection: sqlite3.Connection, served: Served, kept: Kept | None) -> int | None:
    (deadline,) = connection.execute(_NEXT_DEADLINE, (served.name,)).fetchone()
    instants = [] if deadline is None else [int(deadline)]
    if kept is not None and served.schedule.start_within_us is not None:
        (told,) = connection.execute(_LAST_LATE_START, (served.name,)).fetchone()
        fired = _fired(connection, served.name, kept.decided_until)
        upcoming = _first(served.schedule, max(kept.decided_until, told or 0), fired)
        late_at = None if upcoming is None else served.schedule.late_at(upcoming)
        instants += [] if late_at is None else [late_at + 1]
    return min(instants, default=None)


def _break(journal: Journal, served: Served, logical: int, promise: str, at: int, run_id: str | None) -> bool:
    """False: it is written down already."""
    sql = "INSERT OR IGNORE INTO sla (dag_name, logical_time, promise, promised_at, run_id, at) VALUES (?,?,?,?,?,?)"
    values = (served.name, logical, promise, at, run_id, journal.at)
    return journal.connection.execute(sql, values).rowcount == 1


def _look_at_starts(journal: Journal, served: Served, kept: Kept) -> None:
    schedule = served.schedule
    fired = _fired(journal.connection, served.name, kept.decided_until)
    late = late_starts(schedule, kept.decided_until, fired, journal.at)
    new = [at for at in late if _break(journal, served, at, "start", schedule.late_at(at) or at, None)]
    if not new:
        return
    when = iso_of(new[-1], schedule.zone)
    journal.emit(ScheduleChanged(ScheduleChange.LATE_START, served.name, runs=len(new), last=when))
    page(journal, _not_started(journal, served, new))


def _not_started(journal: Journal, served: Served, late: list[int]) -> Trouble:
    wall = at_wall(late[-1], served.schedule.zone)
    more = f", nor have {len(late) - 1}{' or more' if len(late) >= KEPT else ''} before it" if len(late) > 1 else ""
    since = spoken(journal.at - served.schedule.due_at(late[-1]))
    return Trouble(
        run_id=None,
        task=None,
        title=f"{served.name} has not started",
        why=f"its run of {wall:%d %b %H:%M} {served.spec.timezone} was due {since} ago and has not started{more}",
        kind=DeadLetterKind.DEADLINE,
        cause=schedule_cause(served.name),
    )


def _page_late_end(journal: Journal, served: Served, run_id: str, due_at: int) -> None:
    """Only where nobody was called before: an executor that lived has seen it come (``executor/watchdog.py``)."""
    connection = journal.connection
    if connection.execute("SELECT 1 FROM page WHERE cause = ?", (deadline_cause(run_id),)).fetchone():
        return
    row = connection.execute(_FIRST_OPEN, (run_id,)).fetchone()
    if row is not None:
        due = datetime.fromtimestamp(due_at / 1e6).astimezone()
        why = f"the run was due at {due:%H:%M:%S} and has not ended"
        page(journal, Trouble(run_id, row[0], "deadline missed", why, kind=DeadLetterKind.DEADLINE))


_FIRST_OPEN = (
    "SELECT name FROM task WHERE run_id = ? AND state NOT IN " + in_list(FINISHED | (ENDED_BADLY - OPEN)) + ""
    " ORDER BY state <> 'DEAD_LETTER', position LIMIT 1"
)
