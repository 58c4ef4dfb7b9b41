"""``redrive serve``, ``schedule``, ``backfill``: runs that nobody starts by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import islice

import click

from ...engine.clock import SystemClock
from ...engine.core.durations import spoken
from ...engine.core.schedule import Cron, at_wall, daylight_note, instant_of, iso_of, name_of
from ...engine.core.spec import LOGICAL_TIME
from ...engine.domain.states import RunState
from ...engine.errors import FlowError, RefusedError
from ...engine.executor.flow_file import read_flow
from ...engine.executor.loop import Executor, RunOptions
from ...engine.schedule.backfill import Owed, give_way, owed
from ...engine.schedule.serve import Service
from ...engine.store.schedules import Served, served_of
from ..sessions.target import state_for_flow
from ..text.text import one_line
from .event_printer import Printer
from .exit_codes import ExitCode
from .listings import table
from .run import Manner, standing

_DATE_CHARACTERS = len("2026-11-21")


def serve(flow: str, params: Mapping[str, str], manner: Manner) -> int:
    """Start the runs of a flow when they are due, until SIGTERM. Exit code 130 where that interrupted a run."""
    printer = Printer(sys.stdout)
    state = _state(flow, params, manner)
    service = Service(flow, state, manner.options(params), say=_sayer(printer), on_events=printer.take)
    return ExitCode.INTERRUPTED if service.run().interrupted else ExitCode.SUCCESS


def _state(flow: str, params: Mapping[str, str], manner: Manner) -> str:
    return state_for_flow(flow, params, manner.state)


def _sayer(printer: Printer) -> Callable[[str], None]:
    return lambda sentence: printer.write(f"[{datetime.now().astimezone():%H:%M:%S}] {one_line(sentence)}\n")


def _served(flow: str, params: Mapping[str, str]) -> Served:
    served = served_of(asyncio.run(read_flow(flow, params)))
    if served is None:
        raise FlowError(f"{flow} has no schedule: write Flow('name', schedule='0 2 * * *', timezone='Asia/Kolkata')")
    return served


# --- What comes ----------------------------------------------------------------------------------------------------


def show_schedule(flow: str, params: Mapping[str, str], count: int, as_json: bool) -> int:
    """The next logical times, by the clocks of the schedule's zone and by those here."""
    served = _served(flow, params)
    times = list(islice(served.schedule.rhythm.after(SystemClock().now_us()), count))
    if as_json:
        for at in times:
            click.echo(json.dumps(_value(served, at), ensure_ascii=False))
        return ExitCode.SUCCESS
    click.echo(one_line(_headline(served)))
    here, there = _other_zone(served, times)
    table([("LOGICAL TIME", here, "NOTE"), *(_row(served, at, there) for at in times)])
    return ExitCode.SUCCESS


def _value(served: Served, at: int) -> dict[str, object]:
    schedule = served.schedule
    return {
        "flow": served.name,
        "run_id": name_of(at, schedule.zone),
        "logical_time": iso_of(at, schedule.zone),
        "due_at": schedule.due_at(at),
        "note": daylight_note(schedule, at),
    }


def _headline(served: Served) -> str:
    spec, schedule = served.spec, served.schedule
    words = f" ({schedule.rhythm.words})" if isinstance(schedule.rhythm, Cron) else ""
    said = [f"{served.name}: {spec.expression}{words} {spec.timezone}", f"misfire {spec.misfire}"]
    if schedule.splay_us:
        said.append(f"each starts {spoken(schedule.splay_us)} later, its share of the splay")
    if schedule.start_within_us is not None:
        said.append(f"starts within {spoken(schedule.start_within_us)}")
    if served.flow.deadline_seconds is not None:
        said.append(f"ends within {spoken(round(served.flow.deadline_seconds * 1e6))}")
    return ", ".join(said)


def _other_zone(served: Served, times: Sequence[int]) -> tuple[str, tzinfo | None]:
    """The zone of this machine; UTC where that is the schedule's own."""
    same = all(at_wall(at, served.schedule.zone).utcoffset() == _here(at, None).utcoffset() for at in times)
    if not same:
        return f"HERE ({_here(times[0], None).tzname()})", None
    return "UTC", UTC


def _here(at: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at // 1_000_000, UTC).astimezone(zone)


def _row(served: Served, at: int, there: tzinfo | None) -> tuple[str, ...]:
    wall, other = at_wall(at, served.schedule.zone), _here(at, there)
    return f"{wall:%a %Y-%m-%d %H:%M:%S %z}", f"{other:%a %H:%M:%S %z}", daylight_note(served.schedule, at)


# --- What was left out ---------------------------------------------------------------------------------------------


def backfill(
    flow: str, since: str, until: str, params: Mapping[str, str], manner: Manner, *, dry_run: bool, as_json: bool
) -> int:
    """Run the logical times of a stretch that have no run yet, the oldest first; again after an interruption."""
    served, state, clock = _served(flow, params), _state(flow, params, manner), SystemClock()
    zone = served.schedule.zone
    first, last = _instant(since, zone, "--from"), _instant(until, zone, "--to", whole_day=True)
    if last < first:
        raise click.UsageError("--to comes before --from")
    last = min(last, clock.now_us())
    found = owed(state, served, first, last)
    if dry_run:
        return _show_owed(served, found, as_json)
    say = _sayer(Printer(sys.stdout))
    say(f"{sum(one.is_to_do for one in found)} of {len(found)} logical times are to be run")
    for one in found:
        if one.is_to_do:
            give_way(state, served, clock, say)
            if _run_one(flow, state, served, one, manner.options(params)):
                return ExitCode.INTERRUPTED
    return _judge(owed(state, served, first, last), say)


def _judge(found: Sequence[Owed], say: Callable[[str], None]) -> int:
    """What has not succeeded is named, whenever it ran: the stretch is not filled before that is repaired."""
    for one in found:
        if one.state is not RunState.SUCCESS:
            say(_standing(one))
    states = {one.state for one in found}
    if RunState.FAILED in states:
        return ExitCode.FAILED
    return ExitCode.SUCCESS if states <= {RunState.SUCCESS} else ExitCode.PARTIAL_OR_BLOCKED


def _instant(text: str, zone: tzinfo, option: str, *, whole_day: bool = False) -> int:
    """A day or a time, by the clocks of the schedule unless it says otherwise."""
    try:
        if len(text) <= _DATE_CHARACTERS:
            day = date.fromisoformat(text) + timedelta(days=whole_day)
            return instant_of(datetime(day.year, day.month, day.day, tzinfo=zone)) - whole_day
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} {text!r}: write 2026-11-21, or 2026-11-21T02:00") from None
    return instant_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=zone))


def _show_owed(served: Served, found: Sequence[Owed], as_json: bool) -> int:
    if as_json:
        for one in found:
            value = {**_value(served, one.logical), "run_id": one.run_id, "state": one.state, "to_do": one.is_to_do}
            click.echo(json.dumps(value, ensure_ascii=False))
        return ExitCode.SUCCESS
    rows = [(iso_of(one.logical, served.schedule.zone), _standing(one)) for one in found]
    table([("LOGICAL TIME", "WHAT"), *rows])
    click.echo(f"{sum(one.is_to_do for one in found)} to run")
    return ExitCode.SUCCESS


def _standing(one: Owed) -> str:
    if one.run_id is None:
        return "to run"
    if one.is_to_do:
        return f"to be gone on with: {one.run_id}"
    return f"{'BLOCKED' if one.is_blocked else one.state}: {one.run_id}"


def _run_one(flow: str, state: str, served: Served, one: Owed, options: RunOptions) -> bool:
    """True where it was interrupted."""
    zone, printer = served.schedule.zone, Printer(sys.stdout)
    options = replace(options, wait=True)
    if one.run_id is None:
        params = {**options.params, LOGICAL_TIME: iso_of(one.logical, zone)}
        options = replace(options, params=params, logical_time=one.logical)
    else:
        options = replace(options, resume=True)
    run_id = one.run_id or name_of(one.logical, zone)
    _sayer(printer)(f"run {run_id}")
    executor = Executor(
        run_id=run_id, flow=flow, state=state, options=options, on_events=printer.take, handle_signals=True
    )
    try:
        result = executor.run_result()
    except RefusedError as error:  # somebody else was quicker
        _sayer(printer)(str(error))
        return False
    if not printer.told_the_end:
        printer.write(f"{standing(result, state)}\n")
    return result.interrupted and result.state is RunState.RUNNING
