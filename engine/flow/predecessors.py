"""The runs of other flows of this machine, for a flow that starts after them, and for ``run_of``.

The file of ``redrive serve`` says which flows there are, and what operators decided; the state file of each says what
ran. Both are only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime

import msgspec

from ..core.predecessors import NOT_SERVED, DayRun, Predecessor, day_problem
from ..core.schedule import Schedule
from ..core.spec import FlowSpec, ScheduleSpec, decode_flow_spec
from ..domain.states import RunState
from ..errors import FlowError, StateFileError
from ..statefile.flow_times import read_times
from ..statefile.supervisor_file import Fate, ServedSchedule, read_known, read_ledger
from .source import open_schedule

_DAY_US = 86_400_000_000


def follows_of(flow: FlowSpec | None) -> tuple[str, ...]:
    """Return the flows that one comes after."""
    return () if flow is None or flow.schedule is None else open_schedule(flow.schedule, flow.name).follows


def known_follows(rows: Iterable[ServedSchedule]) -> dict[str, tuple[str, ...]]:
    """Return of all schedules the flows that each comes after."""
    return {row.flow: follows_of(_spec_of(row)) for row in rows if row.gone_since is None}


def read_predecessors(
    flows: Iterable[str], rows: Sequence[ServedSchedule], since: int, now: int
) -> dict[str, Predecessor]:
    """Return what is known of flows, and of those before them, from ``since`` on; none of an unknown flow."""
    own = {row.flow: row for row in sorted(rows, key=lambda row: row.gone_since is None)}
    known: dict[str, Predecessor] = {}
    left = list(flows)
    while left:
        name = left.pop()
        if name in own and name not in known:
            known[name] = _predecessor(own[name], since - 2 * _DAY_US, now)
            schedule = known[name].schedule
            left += [] if schedule is None else schedule.follows
    return known


def _spec_of(row: ServedSchedule) -> FlowSpec | None:
    try:
        return decode_flow_spec(row.spec) if row.spec else None
    except msgspec.DecodeError:  # of another version
        return None


def _predecessor(row: ServedSchedule, since: int, now: int) -> Predecessor:
    spec = _spec_of(row)
    if spec is None or spec.schedule is None or row.state_path is None:
        return Predecessor()
    problem = "" if row.gone_since is None else NOT_SERVED.problem
    paused = f"paused by {row.paused_by or 'an operator'}" if row.is_paused(now) else ""
    try:
        schedule = open_schedule(spec.schedule, row.flow)
        progress, times = read_times(row.state_path, row.flow, since)
        begun, decided_until = progress or (0, None)
        edited, begun = _edited(row, spec.schedule, begun)
    except (StateFileError, FlowError) as error:
        return Predecessor(problem=f"cannot be read: {error}")
    runs = _with_reasons(row.id, {at: _day_run(*one) for at, *one in times})
    return Predecessor(schedule, decided_until, begun, runs, problem, paused, edited)


def _edited(row: ServedSchedule, spec: ScheduleSpec, begun: int) -> tuple[tuple[tuple[Schedule, int, int], ...], int]:
    """Return the schedules by which is decided before the one of the flow file holds, and since when that is in it."""
    edits = decode_edits(row.edits)
    if not edits or row.expression is None or row.timezone is None:
        return (), begun
    held = msgspec.structs.replace(spec, expression=row.expression, timezone=row.timezone)
    specs, instants = [held, *(one for one, _ in edits)], [begun, *(at for _, at in edits)]
    schedules = (open_schedule(one, row.flow) for one in specs)
    spans = zip(schedules, instants, instants[1:], strict=False)
    return tuple(span for span in spans if not span[0].follows), instants[-1]


def decode_edits(text: str) -> list[tuple[ScheduleSpec, int]]:
    """Decode the edits of a schedule that a supervisor has noticed; none of another version."""
    try:
        return msgspec.json.decode(text, type=list[tuple[ScheduleSpec, int]]) if text else []
    except msgspec.DecodeError:
        return []


def _day_run(fate: str, state: str | None, ended_at: int | None, is_blocked: int, is_undecided: int | None) -> DayRun:
    if fate != Fate.RUN:
        return DayRun(None)
    return DayRun(RunState(state or RunState.RUNNING), ended_at, is_undecided == 0, bool(is_blocked))


def _with_reasons(id: int, runs: Mapping[int, DayRun]) -> dict[int, DayRun]:
    """Say which of the times that were given up an operator has given up."""
    given_up = [at for at, run in runs.items() if run.state is None]
    ledger = {row.first: row for row in (read_ledger(id) if given_up else ()) if row.times == 1 and row.who}
    reasons = {at: DayRun(None, why=f"{ledger[at].fate} by {ledger[at].who}") for at in given_up if at in ledger}
    return {**runs, **reasons}


def run_problem(flow: str, day: date, *, ended: bool, now: int) -> str:
    """Return why the runs of a flow for a day are not done; empty: they are, or it has none. Raises StateFileError."""
    since = round(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1e6)
    return day_problem(flow, day, read_predecessors([flow], read_known(), since, now), ended=ended, now=now)
