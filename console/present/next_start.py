"""The next start of a schedule, or what prevents it: one rule, as a sentence and as a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from ...engine.core.spec import ScheduleSpec
from ...engine.domain.text import format_duration
from ...engine.statefile.lists import ScheduleRow
from ...engine.statefile.supervisor_file import FlowBefore, ServedSchedule, is_served, skips_next
from ..model.runs import FleetEntry, schedule_row
from ..text.figures import DAY, HOUR, SECOND, age
from ..text.pieces import Piece, Role
from ..text.text import one_line

NOT_SERVED, CANNOT_START = "not served", "cannot start"  # why no process will start it
_STARTS_US = 5 * SECOND  # the time that a due run takes to start
_WEEK, _YEAR = 6 * DAY, 300 * DAY  # from where on an instant has its day, its year


class StartKind(Enum):
    """The kind of a start; the first that holds."""

    PAUSED = "an operator has paused the schedule"
    AFTER = "the flow starts after others"
    NONE = "none comes"
    DUE = "it was due, and has not begun"
    UNSERVED = "no process will start it"
    SKIPPED = "an operator has skipped it"
    COMING = "it comes at its time"


class NextStart(NamedTuple):
    """The next start of a schedule.

    Attributes:
        at: when it is due, in microseconds UTC; None: no time is known.
        local: the time by the clock of the flow, ``02:00 Asia/Kolkata``, where that differs from this machine's.
        before: the flows that it comes after.
        hindrance: why no process will start it.
    """

    kind: StartKind
    at: int = 0
    local: str = ""
    before: Sequence[FlowBefore] = ()
    hindrance: str = ""


def next_start(row: ScheduleRow, served: ServedSchedule | None, now_us: int, hindrance: str = "") -> NextStart:
    """The next start of a schedule. ``served``: what its supervisor and operators say of it, as far as that is known.

    ``hindrance``: why no process will start it.
    """
    if served is not None and served.is_paused(now_us):
        return NextStart(StartKind.PAUSED)
    if served is not None and served.after:
        return NextStart(StartKind.AFTER, before=served.after)
    if flows := ScheduleSpec(row.expression).follows:
        return NextStart(StartKind.AFTER, before=[FlowBefore(flow, "", None, "") for flow in flows])
    if row.next_at is None:
        return NextStart(StartKind.NONE)
    kind = StartKind.COMING
    if row.next_at < now_us - _STARTS_US:
        kind = StartKind.DUE
    elif hindrance:
        kind = StartKind.UNSERVED
    elif served is not None and skips_next(served):
        kind = StartKind.SKIPPED
    return NextStart(kind, row.next_at, _local(row, row.next_at, now_us), hindrance=hindrance)


def start_of_schedule(row: ServedSchedule, now_us: int) -> NextStart:
    """The next start of a schedule that a supervisor knows."""
    if row.gone_since is not None or row.left_out:
        return NextStart(StartKind.NONE)
    hindrance = CANNOT_START if row.has_failed_start() else "" if is_served(row, now_us) else NOT_SERVED
    return next_start(schedule_row(row), row, now_us, hindrance)


def start_of_entry(entry: FleetEntry, now_us: int) -> NextStart:
    """The nearest start of the schedules of a state file; paused only if all of them are."""
    if entry.is_paused:
        return NextStart(StartKind.PAUSED)
    return nearest(starts_of_file(entry.coming, entry.file_row.supervised, entry.file_row.service_pid, now_us))


def starts_of_file(
    rows: Sequence[ScheduleRow], supervised: Sequence[ServedSchedule], service_pid: int | None, now_us: int
) -> list[NextStart]:
    """The next start of each schedule of a state file. ``service_pid``: of what starts its runs."""
    served = {row.flow: row for row in supervised}
    hindrance = NOT_SERVED if service_pid is None else ""
    hindrance = CANNOT_START if any(row.has_failed_start() for row in supervised) else hindrance
    return [next_start(row, served.get(row.dag_name), now_us, hindrance) for row in rows]


def nearest(starts: Iterable[NextStart]) -> NextStart:
    """The start that comes first; one after other flows, of which no time is known, before all others."""
    return min(starts, key=lambda one: (one.kind is StartKind.NONE, one.at), default=NextStart(StartKind.NONE))


def _local(row: ScheduleRow, at: int, now_us: int) -> str:
    """A time by the clock of the flow; empty where the clock of this machine shows the same."""
    wall = datetime.fromisoformat(row.next_local) if row.next_local else None
    if wall is None or wall.utcoffset() == _wall(at).utcoffset():
        return ""
    return f"{_clock(datetime.fromtimestamp(at / SECOND, wall.tzinfo), at - now_us)} {one_line(row.timezone)}"


def _wall(at: int) -> datetime:
    return datetime.fromtimestamp(at / SECOND).astimezone()


def _clock(wall: datetime, left_us: int) -> str:
    """A time of day; with its seconds, if it has some and is near."""
    return f"{wall:%H:%M:%S}" if wall.second and left_us < HOUR else f"{wall:%H:%M}"


# --- As a sentence, and as a word ------------------------------------------------------------------------------------


def start_sentence(start: NextStart, now_us: int) -> str:
    """``next 02:00, in 3h12``; also by the clock of the flow; or what keeps it from starting."""
    words = start_words(start, now_us)
    return f"next {words}" if start.kind in (StartKind.UNSERVED, StartKind.SKIPPED, StartKind.COMING) else words


def start_words(start: NextStart, now_us: int) -> str:
    """The next start below the title NEXT. No countdown goes to a start that nobody makes."""
    left_us, wall = start.at - now_us, _wall(start.at)
    day = "" if left_us < DAY else f"{wall:%d %b} " if left_us < _YEAR else f"{wall:%d %b %Y} "
    time = f"{day}{_clock(wall, left_us)}{f' ({start.local})' if start.local else ''}"
    return {
        StartKind.PAUSED: "paused",
        StartKind.AFTER: ": ".join(filter(None, (after_text(start.before), awaited_text(start.before)))),
        StartKind.NONE: "nothing comes any more",
        StartKind.DUE: f"due {format_duration(max(-left_us, 0))} ago and not started",
        StartKind.UNSERVED: time,
        StartKind.SKIPPED: f"{time}, skipped",
        StartKind.COMING: f"{time}, in {format_duration(max(left_us, 0))}",
    }[start.kind]


def start_word(start: NextStart, now_us: int) -> Piece:
    """The next start in a few cells."""
    left_us, wall = start.at - now_us, _wall(start.at)
    time = format(wall, "%H:%M" if left_us < DAY else "%a %H:%M" if left_us < _WEEK else "%d %b")
    return {
        StartKind.PAUSED: Piece("paused", Role.WAITING),
        StartKind.AFTER: Piece(after_text(start.before), Role.DIM),
        StartKind.NONE: Piece(""),
        StartKind.DUE: Piece(f"due {age(max(-left_us, 0))}", Role.WARNING),
        StartKind.UNSERVED: Piece(start.hindrance, Role.WARNING),
        StartKind.SKIPPED: Piece("skipped", Role.WAITING),
        StartKind.COMING: Piece(time, Role.DIM),
    }[start.kind]


def after_text(before: Sequence[FlowBefore]) -> str:
    """After which flows a flow starts: ``after load, prices``."""
    return one_line(f"after {', '.join(one.flow for one in before)}")


def awaited_text(before: Sequence[FlowBefore]) -> str:
    """For which of these flows a flow waits: ``waits for prices``; empty if for none."""
    waits = ", ".join(one.flow for one in before if one.waits)
    return one_line(f"waits for {waits}") if waits else ""
