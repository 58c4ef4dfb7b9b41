"""Schedules in the state file: the progress of each schedule, the logical times that have run, and late runs.

``core/supervision.py`` decides; this module writes the decision in the transaction of its consequences. A logical time
has one row in ``slot``, which is inserted with the row of its run, so that it cannot run twice (SPEC 4.10).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ..core.causes import PageRequest, schedule_cause
from ..core.schedule import LISTED_MAX, NONE_EXCUSED, Excused, Schedule, iso_time, local_time, to_microseconds
from ..core.spec import FlowSpec, Misfire, ScheduleSpec, decode_flow_spec
from ..core.supervision import decide_schedule, is_ahead, late_starts
from ..domain.event_payloads import ScheduleChange, ScheduleChanged
from ..domain.rows import RunRow
from ..domain.states import (
    ENDED_BADLY,
    FINISHED,
    OPEN,
    DeadLetterKind,
    TaskState,
    cut_off_cause,
    deadline_cause,
)
from ..domain.text import counted, format_clock, format_duration, place_words, shell_command
from ..errors import FlowError, RefusedError, StateFileError
from ..flow.source import open_schedule
from ..statefile.lists import Listing, ScheduleRow, query
from ..statefile.sql import in_list
from ..statefile.supervisor_file import PastRun, ServedSchedule, read_known
from ..statefile.transitions import Transaction, resolve_cause
from . import endings
from .pages import STALE_AFTER_US, is_paged, next_reminder, trigger_page


class ServedFlow(msgspec.Struct, frozen=True):
    """A flow with its parsed schedule."""

    flow: FlowSpec
    spec: ScheduleSpec
    schedule: Schedule

    @property
    def name(self) -> str:
        return self.flow.name

    def means(self, other: ServedFlow) -> bool:
        """Whether both name the same logical times, however they are written."""
        own, others = self.schedule.recurrence.meaning, other.schedule.recurrence.meaning
        return (own, self.spec.timezone) == (others, other.spec.timezone)


def served_flow(flow: FlowSpec) -> ServedFlow | None:
    """Return a flow with its parsed schedule; None: no schedule. Raises FlowError if its time zone is unknown here."""
    return None if flow.schedule is None else ServedFlow(flow, flow.schedule, open_schedule(flow.schedule, flow.name))


def with_schedule(served: ServedFlow, spec: ScheduleSpec) -> ServedFlow:
    """Return a flow with another schedule; with its own if that cannot be read, as of another version or zone."""
    try:
        return msgspec.structs.replace(served, spec=spec, schedule=open_schedule(spec, served.name))
    except FlowError:
        return served


def encode_spec(flow: FlowSpec) -> str:
    """Return a flow without tasks as JSON."""
    return msgspec.json.encode(flow).decode()


def decode_spec(text: str) -> ServedFlow | None:
    """Return the flow of a JSON text; None if there is none, or if another version wrote it."""
    try:
        return served_flow(decode_flow_spec(text))
    except (msgspec.DecodeError, FlowError):
        return None


class LedgerMark(msgspec.Struct, frozen=True):
    """The point up to which the ledger knows a state file: ``until`` a logical time, and a row of table ``run``.

    ``schedule``: the schedule by which the times until now were decided; None: that of the flow.
    """

    until: int = 0
    run_row: int = 0
    schedule: Schedule | None = None


NO_MARK = LedgerMark()


class DecidedTimes(msgspec.Struct, frozen=True):
    """``times`` logical times from ``first`` to ``last`` that have run, or have not."""

    first: int
    last: int
    times: int
    has_run: bool


class ScheduleStatus(msgspec.Struct, frozen=True):
    """A snapshot of a schedule and its runs. ``unfinished``: runs that can be resumed, oldest first.

    ``progress`` None: the schedule has not started in this file. ``replaced``: the schedule that holds in this file, if
    the flow has another one now. ``fired``: logical times after
    ``progress.decided_until`` that have a run. ``next_late_at``: when the next run becomes late, in microseconds UTC.
    ``next_page_at``: when a page or a reminder is due; 0 for an unsent page.
    ``next_expiry``: when an approval or a dead letter of a blocked run fails without a decision. ``ended``: the
    latest runs that have ended, the latest first. ``decided``: the logical times that the ledger lacks; ``caught_up``:
    those among the earlier ones that have got a run since.
    """

    progress: ScheduleRow | None
    replaced: Schedule | None = None
    fired: frozenset[int] = frozenset()
    unfinished: tuple[str, ...] = ()
    next_late_at: int | None = None
    next_page_at: int | None = None
    latest: RunRow | None = None
    ended: tuple[PastRun, ...] = ()
    decided: tuple[DecidedTimes, ...] = ()
    caught_up: tuple[int, ...] = ()
    last_run_row: int = 0  # the latest row of table ``run``
    next_expiry: int | None = None  # microseconds UTC


# --- Read ----------------------------------------------------------------------------------------------------------

# The redundant first condition matches the partial index.
_UNFINISHED = (
    "SELECT run_id FROM run WHERE dag_name = ? AND (ended_at IS NULL OR ended_at > deadline_at) AND ended_at IS NULL"
    " AND blocked_since IS NULL AND paused_since IS NULL ORDER BY rowid"
)
#: Blocked runs with a task that fails without a decision (an approval, a dead letter with a TTL), and when: an
#: executor is there then.
_UNDECIDED = (
    "SELECT run.run_id, min(task.expires_at) FROM run CROSS JOIN task ON task.run_id = run.run_id"
    f" AND task.state IN {in_list([TaskState.READY, TaskState.DEAD_LETTER])}"
    " WHERE dag_name = ? AND (run.ended_at IS NULL OR run.ended_at > deadline_at)"
    " AND run.ended_at IS NULL AND blocked_since IS NOT NULL AND task.expires_at IS NOT NULL AND task.canary IS NULL"
    " GROUP BY run.run_id ORDER BY run.rowid"
)
_UNSENT = "SELECT 1 FROM page WHERE state = 'open' AND sent_at IS NULL AND updated_at > ? LIMIT 1"


_LATEST = (
    "SELECT run_id, dag_name, started_at, ended_at, state, blocked_since, paused_since FROM run"
    " WHERE +dag_name = ? ORDER BY rowid DESC LIMIT 1"
)
_ENDED = (
    "SELECT run_id, logical_time, started_at, state, max(ended_at - started_at - waited_us, 0) FROM run"
    " WHERE +dag_name = ? AND ended_at IS NOT NULL ORDER BY rowid DESC LIMIT 40"
)
_NEW_RUNS = "SELECT logical_time FROM run WHERE dag_name = ? AND rowid > ? AND logical_time <= ? ORDER BY logical_time"


def load_status(
    connection: sqlite3.Connection,
    served: ServedFlow,
    now: int,
    excused: Excused = NONE_EXCUSED,
    replaced_at: int | None = None,
    mark: LedgerMark = NO_MARK,
) -> ScheduleStatus:
    """Return the status of a flow's schedule; the file must have the current schema.

    ``replaced_at``: as for ``update_schedule``; ``mark``: what the ledger knows already.
    """
    progress, name = load_progress(connection, served.name), served.name
    held = _held(served, progress)
    latest = connection.execute(_LATEST, (name,)).fetchone()
    has_ledger = progress is not None and mark.until
    new_runs = connection.execute(_NEW_RUNS, (name, mark.run_row, mark.until)).fetchall() if has_ledger else []
    undecided = dict(connection.execute(_UNDECIDED, (name,)).fetchall())
    expired = [run_id for run_id, expires_at in undecided.items() if expires_at <= now]
    return ScheduleStatus(
        progress,
        None if held is served else held.schedule,
        frozenset() if progress is None else _fired_after(connection, name, progress.decided_until),
        (*(str(run_id) for (run_id,) in connection.execute(_UNFINISHED, (name,))), *expired),
        _next_late_at(connection, held, progress, excused, None if held is served else replaced_at or now),
        _next_page_at(connection, now),
        latest=None if latest is None else RunRow(*latest),
        ended=tuple(PastRun(*row) for row in connection.execute(_ENDED, (name,))),
        decided=_decided_since(connection, held, progress, mark),
        caught_up=tuple(at for (at,) in new_runs),
        last_run_row=connection.execute("SELECT coalesce(max(rowid), 0) FROM run").fetchone()[0],
        next_expiry=min((expires_at for expires_at in undecided.values() if expires_at > now), default=None),
    )


def _next_page_at(connection: sqlite3.Connection, now: int) -> int | None:
    if connection.execute(_UNSENT, (now - STALE_AFTER_US,)).fetchone() is not None:
        return 0
    reminder = next_reminder(connection, now)
    return None if reminder is None else reminder.due_at


def _decided_since(
    connection: sqlite3.Connection, held: ServedFlow, progress: ScheduleRow | None, mark: LedgerMark
) -> tuple[DecidedTimes, ...]:
    """Return what became of the logical times that the ledger lacks."""
    if progress is None or not 0 < mark.until < progress.decided_until:
        return ()
    return decided_times(connection, held.name, mark.schedule or held.schedule, mark.until, progress.decided_until)


def decided_times(
    connection: sqlite3.Connection, flow: str, schedule: Schedule, after: int, until: int
) -> tuple[DecidedTimes, ...]:
    """Return what became of the logical times in ``(after, until]``: the latest one by one, those before in a range."""
    fired = _fired_after(connection, flow, after)
    if schedule.follows:  # a day of which nothing is written was none
        sql = "SELECT logical_time FROM slot WHERE dag_name = ? AND logical_time > ? AND logical_time <= ?"
        days = connection.execute(sql, (flow, after, until)).fetchall()
        return tuple(DecidedTimes(at, at, 1, at in fired) for (at,) in days)
    passed, is_all = schedule.latest(after, until)
    times = sorted({*passed, *(at for at in fired if at <= until)})  # a run of another schedule is one, too
    singles = times[-LISTED_MAX:]
    found = []
    if singles and (len(singles) < len(times) or not is_all):
        before = singles[0] - 1
        earlier = [at for at in fired if at <= before]
        missed = schedule.count(after, before) - sum(schedule.names(at) for at in earlier)
        last = next(iter(schedule.latest(after, before)[0][-1:]), before)
        if earlier:
            found.append(DecidedTimes(min(earlier), max(earlier), len(earlier), True))
        if missed > 0:
            found.append(DecidedTimes(next(schedule.after(after)), last, missed, False))
    return (*found, *(DecidedTimes(at, at, 1, at in fired) for at in singles))


_OF_FLOW = Listing(
    "schedule_of_flow", ScheduleRow, "SELECT {columns} FROM schedule WHERE dag_name = :flow", {"flow": ""}
)


def load_progress(connection: sqlite3.Connection, flow: str) -> ScheduleRow | None:
    """Return how far a schedule is decided; None: it has not started in this file."""
    return next(iter(query(connection, _OF_FLOW, {"flow": flow})), None)


def _held(served: ServedFlow, progress: ScheduleRow | None) -> ServedFlow:
    """Return the flow with the schedule that holds in this file: another one, until what was due by it is decided."""
    if progress is None or (progress.expression, progress.timezone) == (served.spec.expression, served.spec.timezone):
        return served
    spec = msgspec.structs.replace(
        served.spec, expression=progress.expression, timezone=progress.timezone, misfire=progress.misfire
    )
    held = with_schedule(served, spec)
    if held.means(served):
        return served
    return msgspec.structs.replace(held, schedule=held.schedule.with_days())  # no day is begun by what held before


def load_days(connection: sqlite3.Connection | None, served: ServedFlow, now: int) -> tuple[int, frozenset[int], int]:
    """Return up to where the days of a flow that follows others are decided, those after it with a run, and since when.

    It begins with the day on which it is first served; after another schedule, with the day after the edit.
    """
    progress = None if connection is None else load_progress(connection, served.name)
    if connection is not None and progress is not None:
        is_held = _held(served, progress) is served
        until = progress.decided_until if is_held else now
        return until, _fired_after(connection, served.name, until), progress.since if is_held else now
    midnight = local_time(now, served.schedule.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return to_microseconds(midnight) - 1, frozenset(), now


def day_starts(connection: sqlite3.Connection, flow: str, since: int) -> dict[int, int]:
    """Return when the runs of logical times from ``since`` on started."""
    sql = "SELECT logical_time, started_at FROM run WHERE dag_name = ? AND logical_time >= ? ORDER BY rowid"
    return dict(connection.execute(sql, (flow, since)).fetchall())


def _fired_after(connection: sqlite3.Connection, flow: str, after: int) -> frozenset[int]:
    sql = "SELECT logical_time FROM slot WHERE dag_name = ? AND logical_time > ? AND state = 'run'"
    return frozenset(at for (at,) in connection.execute(sql, (flow, after)))


# --- Update --------------------------------------------------------------------------------------------------------


def update_schedule(
    transaction: Transaction,
    served: ServedFlow,
    *,
    replaced_at: int | None = None,
    excused: Excused = NONE_EXCUSED,
    start_error: str | None = None,
    new_since: int | None = None,
) -> None:
    """Record a new or changed schedule, late runs, and missed logical times as of now.

    Starts no run: ``claim_slot`` belongs to the transaction of its run. ``replaced_at``: when the schedule of this file
    was replaced by that of ``served``, which holds once what was due until then is decided; ``start_error``: why the
    latest start failed, for the page; ``new_since``: a new one was first served.
    """
    if load_progress(transaction.connection, served.name) is None:
        _start_schedule(transaction, served, new_since or transaction.at, ScheduleChange.BEGUN)
    _revert_times_ahead(transaction, served)
    progress = _progress(transaction, served)
    held = _held(served, progress)
    replaced_at = max(progress.decided_until, transaction.at if replaced_at is None else replaced_at)
    record_late_runs(transaction, served, start_error=start_error, excused=excused, replaced_at=replaced_at)
    if held is served:
        _give_up(transaction, served, start_error=start_error)
        return
    if not _give_up(transaction, held, replaced_at, start_error):
        _start_schedule(transaction, served, replaced_at, ScheduleChange.CHANGED)
        _advance(transaction, served, _progress(transaction, served).decided_until)


def _give_up(
    transaction: Transaction, served: ServedFlow, replaced_at: int | None = None, start_error: str | None = None
) -> bool:
    """Decide as of now, write down what is given up, and return whether a run is to start.

    What is given up because the flow cannot start pages: its promise to start in time is broken, before it is late.
    """
    until = _progress(transaction, served).decided_until
    fired = _fired_after(transaction.connection, served.name, until)
    decision = decide_schedule(served.schedule, until, fired, transaction.at, replaced_at)
    if decision.missed:
        _record_missed(transaction, served, decision.missed, is_all=decision.is_all, misfire=served.spec.misfire)
        if start_error is not None and served.schedule.start_within_us is not None:
            _page_late_starts(transaction, served, decision.missed, start_error)
    _advance(transaction, served, decision.decided_until)
    return decision.run is not None


def _progress(transaction: Transaction, served: ServedFlow) -> ScheduleRow:
    progress = load_progress(transaction.connection, served.name)
    assert progress is not None
    return progress


def _revert_times_ahead(transaction: Transaction, served: ServedFlow) -> None:
    """Take back what was decided of times that lie ahead of the clock; those that have run stay so. Page.

    Times before the schedule began are not its own, unless its beginning lies ahead of the clock, too.
    """
    progress, now = _progress(transaction, served), transaction.at
    if not is_ahead(progress.decided_until, now):
        return
    until = now if is_ahead(progress.since, now) else max(now, progress.since)
    values = served.name, until
    ahead = "DELETE FROM slot WHERE dag_name = ? AND logical_time > ? AND state = 'missed'"
    transaction.connection.execute(ahead, values)
    (runs_ahead,) = transaction.connection.execute(
        "SELECT count(*) FROM slot WHERE dag_name = ? AND logical_time > ?", values
    ).fetchone()
    last = iso_time(progress.decided_until, served.schedule.zone)
    transaction.emit(ScheduleChanged(ScheduleChange.TAKEN_BACK, served.name, runs=runs_ahead, last=last))
    _advance(transaction, _held(served, progress), until)
    why = (
        f"runs until {last[:16].replace('T', ' ')} were decided about, which is ahead of the clock of this machine:"
        f" it was wrong then, or is now. They are undecided again, except {counted(runs_ahead, 'run')} that started"
    )
    page_schedule(transaction, served, f"the clock of {served.name} is not that of its runs", why)


def started_and_never_ended(connection: sqlite3.Connection, run_id: str) -> int | None:
    """Return when a run started that has not ended since, not even for a while; None: it is another one."""
    sql = (
        "SELECT started_at FROM run WHERE run_id = ? AND NOT EXISTS (SELECT 1 FROM event"
        " WHERE event.run_id = run.run_id AND kind = 'run' AND old = 'RUNNING' AND new <> 'RUNNING')"
    )
    found = connection.execute(sql, (run_id,)).fetchone()
    return None if found is None else int(found[0])


def adopt(transaction: Transaction, served: ServedFlow, until: int, ran: Sequence[PastRun]) -> str:
    """Start no run up to ``until``, of which an older copy of this file knows nothing; return a sentence about them.

    They have run, or were given up, in the file that this one replaces. One page. ``served``: with the schedule by
    which they were decided, which goes on. ``ran``: runs that have ended there, which may be of later times.
    """
    held = _held(served, progress := _progress(transaction, served))
    until = max(until, progress.decided_until)
    times = held.schedule.count(progress.decided_until, until)
    latest, why = held.schedule.latest(progress.decided_until, until)[0][-LISTED_MAX:], ""
    if latest:
        _record_missed(transaction, held, latest, is_all=times == len(latest), misfire=served.spec.misfire)
        why = (
            f"its state file is older than its runs: {counted(times, 'logical time')} until"
            f" {iso_time(latest[-1], held.schedule.zone)[:16].replace('T', ' ')} of which it knows nothing will not"
            " start again; redrive backfill starts them"
        )
        page_schedule(transaction, held, f"{served.name} goes on from an older state file", why)
    if held is not served:
        _start_schedule(transaction, served, until, ScheduleChange.CHANGED)
    sql = (
        "INSERT OR IGNORE INTO slot (dag_name, logical_time, state, run_id, run_state, decided_at)"
        " VALUES (?,?,'run',?,?,?)"
    )
    later = [one for one in ran if one.logical_time is not None and one.logical_time > until]
    rows = [(served.name, one.logical_time, one.run_id, one.state, one.started_at) for one in later]
    transaction.connection.executemany(sql, rows)
    _advance(transaction, served, until)
    return why


def page_schedule(transaction: Transaction, served: ServedFlow, title: str, why: str) -> None:
    """Page about the starts of a flow; the page ends with the next one that is in time."""
    cause = schedule_cause(served.name)
    trigger_page(transaction, PageRequest(None, None, title, why, kind=DeadLetterKind.DEADLINE, cause=cause))


def page_stuck_run(transaction: Transaction, run_id: str, error: str) -> None:
    """Page that the code of a flow cannot resume a run; the page ends when it is resumed, or abandoned."""
    command = shell_command(["redrive", "resume", *place_words("", run_id), "--accept-changes"])
    why = f"{error}; {command} resumes it all the same"
    trigger_page(transaction, PageRequest(run_id, None, "cannot be resumed", why, cause=cut_off_cause(run_id)))


def skip_slot(transaction: Transaction, served: ServedFlow, logical: int) -> None:
    """Give up a logical time that an operator skips."""
    held = _held(served, load_progress(transaction.connection, served.name))
    _record_missed(transaction, held, (logical,))
    _advance(transaction, held, logical)


def claim_slot(
    transaction: Transaction,
    served: ServedFlow,
    logical: int,
    run_id: str,
    *,
    again: bool = False,
    replaced: str | None = None,
    is_over: bool = False,
) -> None:
    """Assign a logical time to a run, which the caller inserts in the same transaction.

    ``again``: also a missed logical time, for a backfill; ``replaced``: the ended run that it has now; ``is_over``: its
    deadline has passed. Raises RefusedError if the logical time has another run, or has been decided since.
    """
    if not _insert_slot(transaction, served, logical, run_id) and not (
        again and _reassign_slot(transaction, served, logical, run_id, replaced)
    ):
        when = iso_time(logical, served.schedule.zone)
        raise RefusedError(f"the run of {served.name!r} for {when} has been decided about already")
    progress = load_progress(transaction.connection, served.name)
    if progress is not None:
        until = progress.decided_until if again else max(progress.decided_until, logical)
        _advance(transaction, _held(served, progress), until)
    late_at = served.schedule.late_at(logical)
    if not again and not is_over and (late_at is None or transaction.at <= late_at):
        resolve_cause(transaction, schedule_cause(served.name))


def _insert_slot(transaction: Transaction, served: ServedFlow, logical: int, run_id: str) -> bool:
    sql = "INSERT OR IGNORE INTO slot (dag_name, logical_time, state, run_id, decided_at) VALUES (?,?,'run',?,?)"
    return transaction.connection.execute(sql, (served.name, logical, run_id, transaction.at)).rowcount == 1


def _reassign_slot(
    transaction: Transaction, served: ServedFlow, logical: int, run_id: str, replaced: str | None
) -> bool:
    """Assign a logical time that was missed, or that the ended run ``replaced`` has."""
    sql = (
        "UPDATE slot SET state = 'run', run_id = ?, run_state = NULL, decided_at = ?"
        " WHERE dag_name = ? AND logical_time = ? AND (state = 'missed' OR (state = 'run' AND run_id = ?"
        " AND NOT EXISTS (SELECT 1 FROM run WHERE run.run_id = slot.run_id AND run.ended_at IS NULL)))"
    )
    values = (run_id, transaction.at, served.name, logical, replaced)
    return transaction.connection.execute(sql, values).rowcount == 1


def _start_schedule(transaction: Transaction, served: ServedFlow, since: int, what: str) -> None:
    """Start a schedule: logical times after ``since`` are its own. ``what``: one of ScheduleChange."""
    last = "SELECT coalesce(max(logical_time), 0) FROM slot WHERE dag_name = ? AND logical_time <= ?"
    (decided,) = transaction.connection.execute(last, (served.name, since)).fetchone()
    begin = max(served.schedule.begin_at(since) if what is ScheduleChange.BEGUN else since, decided)
    sql = (
        "INSERT OR REPLACE INTO schedule (dag_name, expression, timezone, misfire, flow_path, since, decided_until)"
        " VALUES (?,?,?,?,?,?,?)"
    )
    spec = served.spec
    values = (served.name, spec.expression, spec.timezone, spec.misfire, served.flow.path, since, begin)
    transaction.connection.execute(sql, values)
    transaction.emit(ScheduleChanged(what, served.name, spec.expression, spec.timezone))


def _record_missed(
    transaction: Transaction,
    served: ServedFlow,
    missed: Sequence[int],
    *,
    is_all: bool = True,
    misfire: Misfire | None = None,
) -> None:
    """Write down what is given up: the latest times, and of more the last one of each day, for the flows after it."""
    begin, _ = served.schedule.bounds_of_day(local_time(missed[0], served.schedule.zone).date())
    until = _progress(transaction, served).decided_until
    listed = missed if is_all else [*served.schedule.last_of_days(until, begin - 1), *missed]
    sql = "INSERT OR IGNORE INTO slot (dag_name, logical_time, state, decided_at) VALUES (?,?,'missed',?)"
    transaction.connection.executemany(sql, [(served.name, at, transaction.at) for at in listed])
    first, last = (iso_time(at, served.schedule.zone) for at in (missed[0], missed[-1]))
    change = ScheduleChange.MISSED
    transaction.emit(
        ScheduleChanged(change, served.name, runs=len(missed), is_all=is_all, first=first, last=last, misfire=misfire)
    )


def _advance(transaction: Transaction, served: ServedFlow, decided_until: int) -> None:
    """Update the progress and the next run of a schedule."""
    fired = _fired_after(transaction.connection, served.name, decided_until)
    upcoming = served.schedule.first_undecided(decided_until, fired)
    columns = {
        "expression": served.spec.expression,  # equal ones may be written in another way
        "timezone": served.spec.timezone,
        "decided_until": decided_until,
        "misfire": served.spec.misfire,
        "flow_path": served.flow.path,
        "next_at": None if upcoming is None else served.schedule.due_at(upcoming),
        "next_local": None if upcoming is None else iso_time(upcoming, served.schedule.zone),
    }
    sql = f"UPDATE schedule SET {', '.join(f'{column} = ?' for column in columns)} WHERE dag_name = ?"
    transaction.connection.execute(sql, (*columns.values(), served.name))


# --- Late runs -----------------------------------------------------------------------------------------------------

_NOT_YET_LATE = (
    " FROM run WHERE dag_name = ? AND (ended_at IS NULL OR ended_at > deadline_at) AND logical_time IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM sla WHERE sla.dag_name = run.dag_name AND sla.logical_time = run.logical_time"
    " AND promise = 'end')"
)
_LATE = f"SELECT run_id, logical_time, deadline_at{_NOT_YET_LATE} AND deadline_at <= ? ORDER BY deadline_at"
_NEXT_DEADLINE = f"SELECT min(deadline_at){_NOT_YET_LATE}"
_LATE_STARTS = "SELECT logical_time FROM sla WHERE dag_name = ? AND promise = 'start' AND logical_time > ?"


def record_late_runs(
    transaction: Transaction,
    served: ServedFlow,
    running: str | None = None,
    *,
    excused: Excused = NONE_EXCUSED,
    replaced_at: int | None = None,
    start_error: str | None = None,
) -> int | None:
    """Record late starts and ends as of now, page once for each, and return when the next run becomes late.

    A late run is ended unless its deadline pages alone. ``running``: the run whose executor calls this, and ends it.
    ``replaced_at``, ``start_error``: as for ``update_schedule``.
    """
    progress = load_progress(transaction.connection, served.name)
    held = _held(served, progress)
    until = None if held is served else transaction.at if replaced_at is None else replaced_at
    if progress is not None and transaction.at > excused.until:
        fired = _fired_after(transaction.connection, served.name, progress.decided_until)
        late = late_starts(held.schedule, progress.decided_until, fired | excused.skipped, transaction.at, until)
        _page_late_starts(transaction, held, late, start_error)
    for run_id, logical, due_at in transaction.connection.execute(_LATE, (served.name, transaction.at)).fetchall():
        _record_late(transaction, served, logical, "end", due_at, run_id)
        transaction.emit(ScheduleChanged(ScheduleChange.LATE_END, served.name, due_at=due_at), run_id)
        if not endings.pass_deadline(transaction, run_id):
            _page_late_end(transaction, run_id, due_at)
        elif run_id != running:
            endings.end_at_deadline(transaction, run_id)
    return _next_late_at(transaction.connection, held, progress, excused, until)


def _next_late_at(
    connection: sqlite3.Connection,
    served: ServedFlow,
    progress: ScheduleRow | None,
    excused: Excused,
    until: int | None,
) -> int | None:
    """Return when the next run becomes late. ``until``: starts that are due later are not the schedule's."""
    (deadline,) = connection.execute(_NEXT_DEADLINE, (served.name,)).fetchone()
    instants = [] if deadline is None else [int(deadline)]
    if progress is not None and (served.schedule.follows or served.schedule.start_within_us is not None):
        since = progress.decided_until
        told = frozenset(at for (at,) in connection.execute(_LATE_STARTS, (served.name, since)))
        if not served.schedule.follows:  # of many the latest were told, and the others with them
            since = max(since, *told, 0)
        known = _fired_after(connection, served.name, since) | told
        instants += [late_at + 1 for late_at, _ in served.schedule.late_times(since, known, excused, until)]
    return min(instants, default=None)


def _record_late(
    transaction: Transaction, served: ServedFlow, logical: int, promise: str, at: int, run_id: str | None
) -> bool:
    """Insert a row of table ``sla``. False: it exists already."""
    sql = "INSERT OR IGNORE INTO sla (dag_name, logical_time, promise, promised_at, run_id, at) VALUES (?,?,?,?,?,?)"
    values = (served.name, logical, promise, at, run_id, transaction.at)
    return transaction.connection.execute(sql, values).rowcount == 1


def _page_late_starts(
    transaction: Transaction, served: ServedFlow, late: Sequence[int], start_error: str | None
) -> None:
    schedule = served.schedule
    new = [at for at in late if _record_late(transaction, served, at, "start", schedule.late_at(at) or at, None)]
    if not new:
        return
    when = iso_time(new[-1], schedule.zone)
    transaction.emit(ScheduleChanged(ScheduleChange.LATE_START, served.name, runs=len(new), last=when))
    why = _late_start(transaction, served, new, start_error)
    page_schedule(transaction, served, f"{served.name} has not started", why)


def _late_start(transaction: Transaction, served: ServedFlow, late: list[int], start_error: str | None) -> str:
    wall = f"{local_time(late[-1], served.schedule.zone):{'%d %b' if served.schedule.follows else '%d %b %H:%M'}}"
    more = (
        f", nor have {len(late) - 1}{' or more' if len(late) >= LISTED_MAX else ''} before it" if len(late) > 1 else ""
    )
    since = format_duration(transaction.at - served.schedule.due_at(late[-1]))
    because = "" if start_error is None else f": {start_error}"
    return f"its run of {wall} {served.spec.timezone} was due {since} ago and has not started{more}{because}"


def record_start_after_deadline(
    transaction: Transaction, served: ServedFlow, logical: int, run_id: str, due_at: int
) -> None:
    """Record and page that a run starts after its deadline, as after two days without power: it runs without one."""
    _record_late(transaction, served, logical, "end", due_at, run_id)
    transaction.emit(ScheduleChanged(ScheduleChange.LATE_END, served.name, due_at=due_at), run_id)
    due = local_time(due_at, served.schedule.zone)
    why = f"it was due to end on {due:%d %b at %H:%M} and starts only now: it runs without a deadline"
    cause = schedule_cause(served.name)  # one page for all nights that were missed, with that of the late start
    trigger_page(transaction, PageRequest(run_id, None, "deadline missed", why, DeadLetterKind.DEADLINE, cause=cause))


def _page_late_end(transaction: Transaction, run_id: str, due_at: int) -> None:
    """Page for a missed deadline, unless a living executor paged before it (``executor/watchdog.py``)."""
    if is_paged(transaction.connection, deadline_cause(run_id)):
        return
    row = transaction.connection.execute(_FIRST_OPEN, (run_id,)).fetchone()
    if row is not None:
        why = f"the run was due at {format_clock(due_at)} and has not ended"
        trigger_page(transaction, PageRequest(run_id, row[0], "deadline missed", why, kind=DeadLetterKind.DEADLINE))


_FIRST_OPEN = (
    "SELECT name FROM task WHERE run_id = ? AND state NOT IN " + in_list(FINISHED | (ENDED_BADLY - OPEN)) + ""
    " ORDER BY state <> 'DEAD_LETTER', position LIMIT 1"
)


# --- What operators decided about starts ---------------------------------------------------------------------------


def schedules_in(state_path: str) -> list[ServedSchedule]:
    """The schedules whose runs are in a state file, as the file of the supervisors has them."""
    return [row for row in read_known() if row.state_path == os.path.abspath(state_path)]


def excused_starts(served: ServedFlow, row: ServedSchedule | None = None, state_path: str = "") -> Excused:
    """Return the decisions of operators about starts to come; without ``row``: as the file of the supervisors says."""
    schedule = served.schedule
    if schedule.start_within_us is None and not schedule.follows:
        return NONE_EXCUSED
    rows = [] if row is None else [row]
    if row is None:
        with suppress(StateFileError):  # of what is damaged, or of a later redrive
            rows = [one for one in schedules_in(state_path) if one.flow == served.name]
    return schedule.excused(max((one.paused_until for one in rows), default=0), (one.skip_logical for one in rows))
