"""The schedules of a machine in one row each, their acts, and what came and comes of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from functools import lru_cache
from itertools import groupby, zip_longest
from typing import NamedTuple

from ...engine.domain.states import RunState
from ...engine.domain.text import advised, counted, format_duration, shell_command
from ...engine.errors import RefusedError
from ...engine.statefile.start_requests import StartRequest
from ...engine.statefile.supervisor_file import (
    FOREVER,
    Fate,
    FlowBefore,
    LedgerRow,
    ServedSchedule,
    heartbeat_age_us,
    is_served,
    skips_next,
)
from ..model.runs import zone_of
from ..text.columns import (
    FILL,
    Column,
    Columns,
    ColumnText,
    Width,
    field,
    measured,
    row_line,
    screen_row,
    screen_titles,
    with_fields,
)
from ..text.figures import DAY, instant, local_day, number, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from .next_start import NOT_SERVED, StartKind, after_text, awaited_text, start_of_schedule, start_words
from .states import named_rule

NAMED_MAX = 3  # missed runs in a note, and in the list of acts
_MORNING = time_of_day(6)
_FAR_DAYS = 300  # from where on an instant has its year


#: What an operator decided -> what holds from then on, after the name of the flow.
_DECISIONS = {
    "pause": "paused {until}; a run that goes on is not touched",
    "unpause": "not paused any more",
    "skip": "skips its run of {time}",
    "unskip": "skips no run",
    "start": "its run of {time} is asked for; redrive schedule says if it cannot start",
    "start-now": "a run is asked for; redrive schedule says if it cannot start",
    "dismiss": "{count} of {known} missed runs dismissed",
    "forget": "forgotten",
    "acknowledge": "acknowledged; it is tried again until it succeeds",
}


def decision_sentence(row: ServedSchedule, act: str, at_us: int = 0, count: int = 0) -> str:
    """The decision of an operator about a schedule. ``at_us``: the end of a pause, or a logical time."""
    if act == "pause":
        time = "" if at_us >= FOREVER else f"{datetime.fromtimestamp(at_us / 1e6, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
    else:
        time = logical_text(row, at_us)
    until = f"until {time}" if time else f"until {shell_command(('redrive', 'schedule', 'unpause', row.flow))}"
    words = _DECISIONS[act].format(until=until, time=time, count=count, known=row.missed_times)
    return one_line(f"{row.flow}: {words}")


class ScheduleAct(NamedTuple):
    """A possible decision of an operator. ``action``: of the key; ``logical``: of a run; ``help``: what will happen."""

    action: str
    name: str
    label: str
    help: str
    logical: int | None = None


def require_acts(row: ServedSchedule, action: str, now_us: int) -> list[ScheduleAct]:
    """The acts of an action on a schedule now. Raises RefusedError if there is none."""
    found = [one for one in schedule_acts(row, now_us) if one.action == action]
    if not found:
        hangs = action == "start_run" and row.hang
        raise RefusedError(f"{row.flow}: {f'its supervisor {row.hang}' if hangs else NO_ACT[action]}")
    return found


def schedule_acts(row: ServedSchedule, now_us: int) -> Iterator[ScheduleAct]:
    """The acts that mean something now, with what each will do."""
    if row.left_out:
        return
    if row.is_paused(now_us):
        due = "runs that were due are started as misfire= of the flow says"
        yield ScheduleAct("pause_schedule", "unpause", "unpause", due)
    else:
        yield ScheduleAct("pause_schedule", "pause", "pause", "no run starts; a run that goes on is not touched")
    if row.skip_logical is not None and skips_next(row):
        what = f"the run of {_time(row.skip_logical, now_us)} starts after all"
        yield ScheduleAct("skip_next", "unskip", "do not skip", what)
    elif row.next_logical is not None:
        what = f"the run of {_time(row.next_logical, now_us)} does not start; the one after it does"
        yield ScheduleAct("skip_next", "skip", "skip", what, row.next_logical)
    if is_served(row, now_us):
        what = "a run of this instant, also while the schedule is paused"
        yield ScheduleAct("start_run", "start", "start now", what)
        for run in row.missed[-NAMED_MAX:]:
            what = f"the run of {_time(run.first, now_us)}"
            yield ScheduleAct("start_run", "start", "start missed", what, run.first)
    if row.missed_times:
        what = f"{counted(row.missed_times, 'missed run')}: none of them will start"
        yield ScheduleAct("dismiss_missed", "dismiss", "dismiss", what)
    if row.has_failed_start() or row.warning is not None:
        yield ScheduleAct("acknowledge_start", "acknowledge", "acknowledge", f"{row.start_error or row.warning}")
    if row.gone_since is not None or not is_served(row, now_us):
        unserved = "nobody serves it now: its pause, its skips and its missed runs are forgotten"
        why = unserved if row.gone_since is None else "its flow is in no file, and will not come back"
        yield ScheduleAct("forget_flow", "forget", "forget", why)


#: Action -> why it can do nothing to a schedule.
NO_ACT: Mapping[str, str] = {
    "pause_schedule": "it is not served, and has no schedule",
    "skip_next": "it has no next run; a flow after others has one from the begin of its day",
    "start_run": "nobody serves it: redrive serve FOLDER starts its runs, and redrive run PROGRAM one",
    "dismiss_missed": "no run of it was missed",
    "acknowledge_start": "no failed start and no warning is to be acknowledged",
    "forget_flow": "it is served: remove it from its file first, or pause it",
}


def pause_ends(now_us: int) -> Mapping[str, int]:
    """The ends of a pause that the console offers, by their words; "until 06:00" is of this machine's clock."""
    now = datetime.fromtimestamp(now_us / 1e6, UTC).astimezone()
    days = (now.date() + timedelta(days=days) for days in (0, 1))
    morning = next(at for day in days if (at := datetime.combine(day, _MORNING).astimezone()) > now)
    return {
        "until unpaused": FOREVER,
        "for an hour": now_us + 3600 * 1_000_000,
        "until 06:00": round(morning.timestamp() * 1e6),
        "for a day": now_us + DAY,
    }


def _role_of(row: ServedSchedule, now_us: int) -> Role:
    """The role of the worst that ``schedule_state`` says."""
    if row.start_error is not None:
        return Role.FAILED
    if _served_text(row, now_us) or row.left_out or row.missed_times or row.late_from(now_us) or row.warning:
        return Role.WARNING
    if row.running_since is not None and not _hindrances(row, now_us):
        return Role.RUNNING
    return Role.WAITING


def schedule_state(row: ServedSchedule, now_us: int) -> str:
    """Return what holds up a schedule, the worst first, and for how long its run goes on."""
    if row.left_out:
        return f"left out: {row.left_out}"
    running = [] if row.running_since is None else [f"running for {format_duration(now_us - row.running_since)}"]
    return ", ".join([*_hindrances(row, now_us), *running])


def _hindrances(row: ServedSchedule, now_us: int) -> list[str]:
    """Return what holds up a schedule that its supervisor serves, the worst first."""
    words = [
        _served_text(row, now_us),
        "gone" if row.gone_since is not None else "cannot start" if row.start_error is not None else "",
        f"late since {_time(late, now_us)}" if (late := row.late_from(now_us)) is not None else "",
        paused_text(row, now_us),
        f"skips {_time(row.skip_logical, now_us)}" if row.skip_logical is not None and skips_next(row) else "",
        "older data" if any(one.newer for one in row.after) else "",
    ]
    return [word for word in words if word]


def _state(row: ServedSchedule, now_us: int) -> Piece:
    return Piece(schedule_state(row, now_us), _role_of(row, now_us))


def _state_screen(row: ServedSchedule, now_us: int) -> Piece:
    """The state, with the reason of a failed start; if nothing else holds it up, the flows that it waits for."""
    why = f": {row.start_error}" if row.start_error is not None else ""
    state = schedule_state(row, now_us) or awaited_text(row.after)
    return Piece(one_line(f"{state}{why}"), _role_of(row, now_us))


def next_times(rows: Iterable[ServedSchedule], now_us: int) -> str:
    """Describe schedules that another machine decides about: what comes next, and what holds it up."""
    found = [(row.flow, filter(None, (_next_text(row, now_us), schedule_state(row, now_us)))) for row in rows]
    known = "; ".join(f"{flow}: {', '.join(words) or 'no next time is known'}" for flow, words in found)
    return one_line(f"{known or 'no schedule of it is known'} (decided about on its own machine: redrive schedule)")


def paused_text(row: ServedSchedule, now_us: int) -> str:
    """Until when a schedule is paused, by whom and why; empty if it is not."""
    if not row.is_paused(now_us):
        return ""
    until = "" if row.paused_until >= FOREVER else f" until {_time(row.paused_until, now_us)}"
    who, why = one_line(row.paused_by), one_line(row.pause_reason)
    return f"paused{until}{f' by {who}' if who else ''}{f': {why}' if why else ''}"


def schedule_notes(rows: tuple[ServedSchedule, ...], now_us: int) -> Iterator[str]:
    """One line for each failed start, with what to do, and one for each supervisor that is gone."""
    for row in rows:
        yield from row_notes(row, now_us)
        if row.missed_times:
            yield _missed_note(row)
    silent = {row.pid: (age, row.hang) for row in rows if (age := heartbeat_age_us(row, now_us)) is not None}
    for pid, (age_us, hang) in silent.items():
        who = f"the supervisor {hang or f'(pid {pid}) is gone: start redrive serve again'}"
        yield f"{who}; its last heartbeat was {format_duration(age_us)} ago"
    living = {row.pid: row.heartbeat_at for row in rows if is_served(row, now_us)}
    for pid, heartbeat_at in living.items():
        yield f"served by pid {pid}, heartbeat {format_duration(max(0, now_us - heartbeat_at))} ago"


def row_notes(row: ServedSchedule, now_us: int) -> Iterator[str]:
    """Facts of a schedule that somebody has to know beside its row, with what to do."""
    if row.start_error is not None and row.failed_since is not None:
        known = " (acknowledged)" if row.acknowledged_at is not None else ""
        since = _time(row.failed_since, now_us)
        yield f"{row.flow} cannot start since {since}{known}: {row.start_error}"
    if row.warning is not None:
        yield f"{row.flow}: {row.warning}: {shell_command(['redrive', 'schedule', 'acknowledge', row.flow])}"
    if row.stuck_run_id is not None:
        resume = advised("resume", row.state_path or "", row.stuck_run_id, ["--accept-changes"])
        yield f"{row.flow} cannot resume run {row.stuck_run_id}: {row.stuck_error}: {resume}"
    yield from (_asked_note(row, request, now_us) for request in row.requests)
    yield from (f"{row.flow} waits for {one.flow}, which {one.waits}" for one in row.after if one.waits)
    yield from (_newer_note(row, one) for one in row.after if one.newer)


def _served_text(row: ServedSchedule, now_us: int) -> str:
    if heartbeat_age_us(row, now_us) is not None:
        return "not served: the supervisor is silent" if row.hang else "not served: the supervisor is dead"
    return NOT_SERVED if row.stopped_at is not None else ""


def needs_attention(row: ServedSchedule, now_us: int) -> bool:
    """Whether somebody has to look: it does not start, or something was not run."""
    return _role_of(row, now_us) in (Role.FAILED, Role.WARNING)


@lru_cache(maxsize=512)
def describe_recurrence(expression: str | None) -> str:
    """A schedule in words: ``At 02:00 every day``; an interval, or flows before it, as they are written."""
    from ...engine.core.schedule import Cron, parse_recurrence  # here: the first frame needs none

    try:
        rhythm = parse_recurrence(expression or "", UTC)
    except ValueError:  # of another version
        return expression or ""
    return rhythm.description if isinstance(rhythm, Cron) else expression or ""


def _next_text(row: ServedSchedule, now_us: int) -> str:
    """The next start, unless the column of the state says why there is none."""
    start = start_of_schedule(row, now_us)
    is_stated = start.kind in (StartKind.PAUSED, StartKind.NONE) or start.hindrance == NOT_SERVED
    return start_words(start, now_us) if not is_stated or start.kind is StartKind.DUE else ""


def _next_screen(row: ServedSchedule, now_us: int) -> str:
    """The next start without the flows that are waited for, which stand under the list."""
    is_after = start_of_schedule(row, now_us).kind is StartKind.AFTER
    return after_text(row.after) if is_after else _next_text(row, now_us)


def _last_screen(row: ServedSchedule, now_us: int) -> Piece:
    """The start of the latest run, and its end unless that was a success."""
    if row.last_started_at is None:
        return Piece("")
    is_well = row.last_state in (RunState.SUCCESS, RunState.RUNNING)
    words = _time(row.last_started_at, now_us)[:-3]  # without its seconds
    return Piece(words if is_well else f"{words} {row.last_state}", Role.DIM if is_well else Role.FAILED)


def _last_text(row: ServedSchedule, now_us: int) -> str:
    return "" if row.last_started_at is None else f"{_time(row.last_started_at, now_us)} {row.last_state}"


def _duration(duration_us: int | None) -> str:
    return "" if duration_us is None else format_duration(duration_us)


def _missed_count(row: ServedSchedule, now_us: int) -> Piece:
    return Piece(number(row.missed_times) if row.missed_times else "", Role.WARNING)


_UNSHOWN = ("supervisor_id", "spec", "edits", "ledger_until", "seen_run", "nights")  # the supervisor's own
SCHEDULE_COLUMNS: Columns[ServedSchedule, int] = with_fields(
    (
        field("flow", "FLOW", width=Width(12, 24, is_name=True)),
        field("expression", "SCHEDULE", lambda row, now_us: describe_recurrence(row.expression), Width(16, 48, 3, 2)),
        field("next_at", "NEXT", _next_text, Width(21, 30, 0, 2), _next_screen),
        field("last_started_at", "LAST", _last_text, Width(11, 20, 2, 2), _last_screen),
        field("usual_us", "USUAL", lambda row, now_us: _duration(row.usual_us), Width(5, 7, 1, 2, is_right=True)),
        field("missed_times", "MISSED", _missed_count, Width(6, 6, rank=1, gap=2, is_right=True)),
        Column("state", "STATE", None, _state, Width(24, FILL, 0, 2), _state_screen),
        Column("missed", value=lambda row, now_us: [run.first for run in row.missed]),
        Column("requests", value=lambda row, now_us: [request._asdict() for request in row.requests]),
        Column("after", value=lambda row, now_us: [one._asdict() for one in row.after]),
        Column("is_served", value=is_served),
        Column("is_paused", value=lambda row, now_us: row.is_paused(now_us)),
    ),
    [name for name in ServedSchedule._fields if name not in _UNSHOWN],
)


def schedule_columns(
    rows: Sequence[ServedSchedule], now_us: int, nights: Column[ServedSchedule, int]
) -> Columns[ServedSchedule, int]:
    """The columns that these schedules need, as wide as they need them, ``nights`` before the state."""
    place = [one.name for one in SCHEDULE_COLUMNS].index("state")
    return measured([*SCHEDULE_COLUMNS[:place], nights, *SCHEDULE_COLUMNS[place:]], rows, now_us)


def search_text(row: ServedSchedule, now_us: int) -> str:
    """The text that filters search, in lower case."""
    return f"{row.flow} {row.file} {describe_recurrence(row.expression)} {schedule_state(row, now_us)}".casefold()


# --- The schedule under the cursor: what comes, and what became of what was due ---------------------------------------

TIMES_MAX = 10
_COMING_CELLS = 34  # of a time that comes, with how far it is


def coming_line(row: ServedSchedule, at: int, note: str, now_us: int) -> Line:
    """A time that comes by the clock of the flow, and whether it starts. ``note``: of daylight saving."""
    wall_text = _day_and_time(row, at)
    if words := left_out_words(row, at):
        return [Piece(f" {wall_text}  ", Role.DIM), Piece(words, Role.WAITING)]
    return [
        Piece(f" {wall_text}  in {format_duration(max(at - now_us, 0))}"),
        Piece(f"  {note}" if note else "", Role.DIM),
    ]


def left_out_words(row: ServedSchedule, at: int) -> str:
    """Why no run starts for a time that comes; empty if one does."""
    if at == row.skip_logical:
        return f"skipped by {one_line(row.skipped_by)}"
    return "paused" if at < row.paused_until else ""


def times_lines(
    coming: Sequence[Line], row: ServedSchedule, decided: Sequence[LedgerRow], columns: int, more: str
) -> list[Line]:
    """The next times, its own or of the flow before it, and beside them the last that were decided, latest first."""
    size = min(_COMING_CELLS, columns // 2)
    unknown = " when they have run" if row.after else " no next time is known"
    whose = f" OF {one_line(row.after[0].flow)}" if row.after else ""
    left: list[ColumnText] = [Piece(f" NEXT TIMES{whose}" if coming else unknown, Role.DIM), *coming]
    right: list[ColumnText] = [Piece("no run of it has been due", Role.DIM)]
    if decided:
        last = as_ranges(decided)[: -TIMES_MAX - 1 : -1]
        listed = measured(TIMES_COLUMNS, last, row)
        lines = (screen_row(listed, entry, row, columns - size, more) for entry in last)
        right = [screen_titles(listed, columns - size), *lines]
    widths = Width(size, gap=0), Width(0, FILL, gap=0)
    return [
        row_line(columns, *zip(widths, cells, strict=True), more=more)
        for cells in zip_longest(left, right, fillvalue="")
    ]


def as_ranges(decided: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Fold what has not run: more than ten neighbours of one fate, reason and person are a range."""
    found: list[LedgerRow] = []
    for (fate, *_), same in groupby(decided, key=lambda one: (one.fate, one.why, one.who, one.listed > 0)):
        rows = list(same)
        if fate == Fate.RUN or len(rows) <= TIMES_MAX:
            found += rows
        else:
            counts = sum(one.times for one in rows), sum(one.listed for one in rows)
            found.append(rows[-1]._replace(first=rows[0].first, times=counts[0], listed=counts[1]))
    return found


def rule_line(row: ServedSchedule | None, glyphs: Glyphs, columns: int) -> Line:
    """The rule above the schedule under the cursor: its flow, its expression and zone, and its file."""
    if row is None:
        return named_rule("", "", glyphs, columns)
    words = describe_recurrence(row.expression)
    expression = " ".join(filter(None, (row.expression, None if row.after else row.timezone)))
    expression = f"{words} ({expression})" if words != row.expression else expression
    return named_rule(
        f"{one_line(row.flow)}{f'  {one_line(expression)}' if expression else ''}", row.file, glyphs, columns
    )


def _time(at: int, now_us: int) -> str:
    """``02:00:00`` of this machine until a day ahead, else with its date; with its year if that is far."""
    if abs(at - now_us) >= _FAR_DAYS * DAY:
        return f"{local_day(at):%Y}-{wall_day(at)}"
    return instant(at, now_us) if at < now_us + DAY else wall_day(at)


def _missed_note(row: ServedSchedule) -> str:
    times = list(missed_times(row))[-NAMED_MAX:]
    more = f" and {row.missed_times - len(times):,} earlier" if row.missed_times > len(times) else ""
    why = f" ({row.missed[-1].why})" if row.missed and row.missed[-1].why else ""
    start = shell_command(["redrive", "schedule", "start", row.flow, "--at", "TIME"])
    how = f"{start}, or {shell_command(['redrive', 'schedule', 'dismiss', row.flow])}"
    return f"{row.flow} missed {', '.join(times)}{more}{why}: {how}"


def _newer_note(row: ServedSchedule, before: FlowBefore) -> str:
    first, last = before.newer[:10], before.newer[-10:]
    again = shell_command(["redrive", "backfill", row.target, "--from", first, "--to", last, "--again"])
    return f"{row.flow} has older data of {before.newer} than {before.flow}, which has run since: {again}"


def in_graph(rows: Iterable[ServedSchedule]) -> Iterator[ServedSchedule]:
    """The flows that follow others, and these: each below the last one of those before it, and named so."""
    known = {row.flow: row for row in rows}
    below: dict[str, list[str]] = {}
    for name, row in sorted(known.items()):
        before = [one.flow for one in row.after if one.flow in known]
        below.setdefault(max(before, key=lambda one: _depth(one, known), default=""), []).append(name)

    def named(name: str, depth: int) -> Iterator[ServedSchedule]:
        yield known[name]._replace(flow=f"{'--' * depth} {name}" if depth else name)
        for other in below.get(name, ()):
            yield from named(other, depth + 1)

    followed = {one.flow for row in known.values() for one in row.after}
    for root in sorted(below.get("", ()), key=lambda name: name in below):
        if root in followed or known[root].after:
            yield from named(root, 0)


def _depth(flow: str, schedules: Mapping[str, ServedSchedule], above: frozenset[str] = frozenset()) -> int:
    """The number of flows before one, in the longest line; a flow that comes after itself ends the line."""
    if flow in above or flow not in schedules:
        return 0
    return max((1 + _depth(one.flow, schedules, above | {flow}) for one in schedules[flow].after), default=0)


def _span(entry: LedgerRow, row: ServedSchedule) -> str:
    """A logical time, or a range of them."""
    last = f" - {logical_text(row, entry.last)}" if entry.last != entry.first else ""
    return f"{logical_text(row, entry.first)}{last}"


def _span_screen(entry: LedgerRow, row: ServedSchedule) -> str:
    """A logical time, or a range of them, in fewer cells."""
    first, last = (_day_and_time(row, at)[len("Sun ") :] for at in (entry.first, entry.last))
    return first if entry.first == entry.last else f"{first} - {last}"


def _fate(entry: LedgerRow, row: ServedSchedule) -> Piece:
    """The fate of a logical time; one that an operator can still start has the role of a warning."""
    return Piece(f"{entry.fate}, listed" if entry.listed else _end(entry), _fate_role(entry))


def _end(entry: LedgerRow) -> str:
    """The word for it; of a run that did not end well its end."""
    return entry.fate if entry.state in ("", RunState.SUCCESS) else f"{entry.fate} {entry.state}"


def _fate_role(entry: LedgerRow) -> Role:
    if entry.state not in ("", RunState.SUCCESS):
        return Role.FAILED
    return Role.WARNING if entry.listed else Role.TEXT


def _several(entry: LedgerRow, row: ServedSchedule) -> str:
    return f"{entry.times:,}" if entry.times > 1 else ""


#: Of the ledger of a schedule, which is the context.
TIMES_COLUMNS: Columns[LedgerRow, ServedSchedule] = with_fields(
    (
        field("first", "LOGICAL TIME", _span, Width(12, 33), _span_screen),
        field("times", "TIMES", lambda entry, row: f"{entry.times:,}", Width(5, 7, 3, is_right=True), _several),
        field("fate", "WHAT", _fate, Width(10, 13, gap=2), lambda entry, row: Piece(_end(entry), _fate_role(entry))),
        field("lasts_us", "TOOK", lambda entry, row: _duration(entry.lasts_us), Width(5, 7, 2, 2, is_right=True)),
        field("why", "WHY", None, Width(8, 60, 2, 2)),
        field("who", "WHO", None, Width(8, 20, 1, 2)),
    ),
    LedgerRow._fields,
)


def _asked_note(row: ServedSchedule, request: StartRequest, now_us: int) -> str:
    """A start that waits for its supervisor, which takes it within a second unless a run goes on."""
    asked = f"{row.flow}: a start that {request.who or 'somebody'} asked for at {_time(request.asked_at, now_us)}"
    if not request.needs_human(now_us):
        return f"{asked} is about to begin"
    dismiss = shell_command(["redrive", "schedule", "dismiss", row.flow])
    params = [word for name, value in request.params.items() for word in ("--param", f"{name}={value}")]
    again = shell_command(["redrive", "schedule", "start", row.flow, *params])
    return f"{asked} {'is not taken any more' if request.is_stale(now_us) else 'waits'}: {again}, or {dismiss}"


def missed_times(row: ServedSchedule) -> Iterator[str]:
    """The logical times of missed runs by the clock of the flow, as the commands take them."""
    for run in row.missed:
        yield logical_text(row, run.first)


def logical_text(row: ServedSchedule, at: int) -> str:
    """A logical time by the clock of the flow, with its offset: ``2026-11-22T02:30+0100``."""
    moment = _of_flow(row, at)
    return f"{moment:%Y-%m-%dT%H:%M:%S%z}" if moment.second else f"{moment:%Y-%m-%dT%H:%M%z}"


def _of_flow(row: ServedSchedule, at: int) -> datetime:
    return datetime.fromtimestamp(at // 1_000_000, UTC).astimezone(zone_of(row))


def _day_and_time(row: ServedSchedule, at: int) -> str:
    """``Sun 29 Nov 02:00`` by the clock of the flow; with its seconds, if it has some."""
    moment = _of_flow(row, at)
    return format(moment, "%a %d %b %H:%M:%S" if moment.second else "%a %d %b %H:%M")
