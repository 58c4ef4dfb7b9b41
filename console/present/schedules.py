"""The schedules of a machine in one row each, and what a human has to know about them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ...engine.domain.text import counted, format_duration, shell_command
from ...engine.statefile.supervisor_file import FOREVER, ServedSchedule, heartbeat_age_us, is_served
from ..text.figures import wall, wall_day

NAMED_MAX = 3  # missed runs in a note
SCHEDULE_COLUMNS = ("FLOW", "NEXT", "LAST", "USUAL", "STATE")


def schedule_cells(row: ServedSchedule, now_us: int) -> tuple[str, ...]:
    """One row of the table; times are of this machine."""
    last = "" if row.last_started_at is None else f"{_time(row.last_started_at, now_us)} {row.last_state}"
    usual = "" if row.usual_us is None else format_duration(row.usual_us)
    return row.flow, _next_text(row, now_us), last, usual, schedule_state(row, now_us)


def schedule_state(row: ServedSchedule, now_us: int) -> str:
    """What holds up a schedule, the worst first; "running" or empty if nothing does."""
    words = [
        _served_text(row, now_us),
        "cannot start" if row.start_error is not None else "",
        f"late since {_time(row.late_since, now_us)}" if row.late_since is not None else "",
        paused_text(row, now_us),
        f"skips {_time(row.skip_logical, now_us)}" if row.skip_logical is not None and skips_next(row) else "",
        f"{counted(len(row.missed), 'run')} missed" if row.missed else "",
        f"running for {format_duration(now_us - row.running_since)}" if row.running_since is not None else "",
    ]
    return ", ".join(word for word in words if word)


def paused_text(row: ServedSchedule, now_us: int) -> str:
    """Until when a schedule is paused; empty if it is not."""
    if not row.is_paused(now_us):
        return ""
    return "paused" if row.paused_until >= FOREVER else f"paused until {_time(row.paused_until, now_us)}"


def skips_next(row: ServedSchedule) -> bool:
    """Whether an operator skips a run that is still to come."""
    return row.skip_logical is not None and (row.next_logical is None or row.skip_logical >= row.next_logical)


def schedule_notes(rows: tuple[ServedSchedule, ...], now_us: int) -> Iterator[str]:
    """One line for each failed start, with what to do, and one for each supervisor that is gone."""
    for row in rows:
        if row.start_error is not None and row.failed_since is not None:
            known = " (acknowledged)" if row.acknowledged_at is not None else ""
            since = _time(row.failed_since, now_us)
            yield f"{row.flow} cannot start since {since}{known}: {row.start_error}"
        if row.missed:
            yield _missed_note(row)
    dead = {row.pid: age for row in rows if (age := heartbeat_age_us(row, now_us)) is not None}
    for pid, age_us in dead.items():
        yield f"the supervisor (pid {pid}) gave no heartbeat for {format_duration(age_us)}: start redrive serve again"
    living = {row.pid: row.heartbeat_at for row in rows if is_served(row, now_us)}
    for pid, heartbeat_at in living.items():
        yield f"served by pid {pid}, heartbeat {format_duration(max(0, now_us - heartbeat_at))} ago"


def _served_text(row: ServedSchedule, now_us: int) -> str:
    if heartbeat_age_us(row, now_us) is not None:
        return "not served: the supervisor is dead"
    return "not served" if row.stopped_at is not None else ""


def _next_text(row: ServedSchedule, now_us: int) -> str:
    """When the next run starts; empty if nobody would start it."""
    if row.next_at is None or not is_served(row, now_us):
        return ""
    return _time(row.next_at, now_us)


def _time(at: int, now_us: int) -> str:
    """``02:00:00`` of this machine within a day, else with its date."""
    return wall(at, None) if abs(at - now_us) < 86_400_000_000 else wall_day(at, None)


def _missed_note(row: ServedSchedule) -> str:
    times = list(missed_times(row))
    more = f" and {len(times) - NAMED_MAX} earlier" if len(times) > NAMED_MAX else ""
    start = shell_command(["redrive", "schedule", "start", row.flow, "--at", "TIME"])
    how = f"{start}, or {shell_command(['redrive', 'schedule', 'dismiss', row.flow])}"
    return f"{row.flow} missed {', '.join(times[-NAMED_MAX:])}{more}: {how}"


def missed_times(row: ServedSchedule) -> Iterator[str]:
    """The logical times of missed runs by the clock of this machine, as the commands take them."""
    for run in row.missed:
        yield f"{datetime.fromtimestamp(run.logical_time / 1e6, UTC).astimezone():%Y-%m-%dT%H:%M:%S}"
