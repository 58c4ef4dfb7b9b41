"""``redrive schedule``: all schedules of this machine, and what operators decide about them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from itertools import islice

import click
from msgspec.structs import asdict

from ...engine.clock import SystemClock
from ...engine.core.schedule import Cron, daylight_note, iso_time, local_time, logical_name
from ...engine.core.spec import LOGICAL_TIME
from ...engine.domain.task_options import convert_param
from ...engine.domain.text import counted, format_duration, format_seconds, unknown_parameter
from ...engine.errors import FlowError, NotFoundError, RefusedError
from ...engine.flow.source import split_target
from ...engine.statefile import flow_times, supervisor_file
from ...engine.statefile.start_requests import remove, write_request
from ...engine.statefile.state_files import file_rows
from ...engine.statefile.supervisor_file import FOREVER, ServedSchedule, is_served, read_schedules
from ...engine.store.backfill import backfill_slots
from ...engine.store.schedules import ServedFlow, decode_spec
from ..model.runs import zone_of
from ..present import schedules as present
from ..sessions.session import current_actor, machine_now_us
from ..text.columns import Column, Columns
from ..text.text import echo, echo_lines, is_interactive, one_line
from .days import instant_of, read_served
from .group import CommandWithCommands, ExitCode, command_with_commands
from .operate import postpone_options_of
from .options import Number, json_option, param_option, params_of
from .output import print_list


class ScheduleGroup(CommandWithCommands):
    """``redrive schedule FLOW`` is short for ``redrive schedule next FLOW``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a line; a word that is none is a flow, unless it is a command with a typing error."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        if not os.path.exists(args[0]) and not _served(args[0]):
            self.refuse_mistyped(ctx, args[0], f"there is no flow or command {args[0]!r}")
        return super().resolve_command(ctx, ["next", *args])


_SERVE = "redrive serve FOLDER starts the runs of the flows in it"
flow_argument = click.argument("flow", metavar="FLOW")
optional_flow = click.argument("flow", metavar="[FLOW]", required=False)
all_option = click.option("--all", "all_flows", is_flag=True, help="All flows of this machine.")


@command_with_commands("schedule", ScheduleGroup, runs_alone=True)
@click.option("--graph", is_flag=True, help="Which flows come after which.")
@json_option
@click.pass_context
def schedule(context: click.Context, graph: bool, as_json: bool) -> int | None:
    """Without a command: a line for each schedule, with its next, last and usual run, and what holds it up.
    redrive schedule FLOW: the next runs of one.
    """
    if context.invoked_subcommand is not None:
        if graph or as_json:
            raise click.UsageError("--graph goes with no other word, and --json stands behind FLOW or the command")
        return None
    view, now_us = read_schedules(), machine_now_us()
    rows = tuple(present.in_graph(view.schedules)) if graph else view.rows
    empty = "no flow comes after another" if graph else f"no schedule is known: {_SERVE}"
    print_list("schedules", present.SCHEDULE_COLUMNS, rows, now_us, as_json=as_json, empty=empty)
    if as_json or graph or not rows:
        return ExitCode.SUCCESS
    echo_lines(["", *map(one_line, present.schedule_notes(view.schedules, now_us))])
    return ExitCode.SUCCESS


@schedule.command("next")
@flow_argument
@param_option("A parameter that the flow declares.")
@click.option("--next", "count", default=5, show_default=True, type=Number(1, 1000), metavar="N", help="So many runs.")
@json_option
def print_next(flow: str, param: tuple[str, ...], count: int, as_json: bool) -> int:
    """The next runs of FLOW, a flow that is served or a flow file, in its time zone and here.

    With changes of daylight saving time.
    """
    is_file = os.path.exists(split_target(flow)[0]) or flow.endswith(".py")
    target = flow if is_file and not _served(flow) else _rows(flow)[0].target
    served = read_served(target, params_of(param))
    times = list(islice(served.schedule.after(SystemClock().now_us()), count))
    rows = [row for row in read_schedules().schedules if row.flow == served.name]

    def note(at: int, served: ServedFlow) -> str:
        words = (*(present.left_out_words(row, at) for row in rows), daylight_note(served.schedule, at))
        return "; ".join(filter(None, words))

    columns = [*NEXT_COLUMNS[:-1], Column("note", "NOTE", note)]
    if as_json:
        print_list("schedule", columns, times, served, as_json=True, empty="")
        return ExitCode.SUCCESS
    echo(one_line(_headline(served)))
    if not any(is_served(row, machine_now_us()) for row in rows):
        echo("nobody serves it: redrive serve starts its runs")
    if served.schedule.follows:
        return ExitCode.SUCCESS
    title, zone = _other_zone(served, times)
    other: Column[int, ServedFlow] = Column("here", title, None, lambda at, served: f"{_here(at, zone):%a %H:%M:%S %z}")
    columns.insert(-1, other)
    print_list("schedule", columns, times, served, as_json=False, empty="")
    return ExitCode.SUCCESS


NEXT_COLUMNS: Columns[int, ServedFlow] = (
    Column("flow", None, lambda at, served: served.name),
    Column("run_id", None, lambda at, served: logical_name(at, served.schedule.zone)),
    Column(
        "logical_time",
        "LOGICAL TIME",
        lambda at, served: iso_time(at, served.schedule.zone),
        lambda at, served: f"{local_time(at, served.schedule.zone):%a %Y-%m-%d %H:%M:%S %z}",
    ),
    Column("due_at", None, lambda at, served: served.schedule.due_at(at)),
    Column("note", "NOTE", lambda at, served: daylight_note(served.schedule, at)),
)


def _headline(served: ServedFlow) -> str:
    spec, schedule = served.spec, served.schedule
    words = f" ({schedule.recurrence.description})" if isinstance(schedule.recurrence, Cron) else ""
    parts = [f"{served.name}: {spec.expression}{words} {spec.timezone}", f"misfire {spec.misfire}"]
    if schedule.holidays:
        parts.append(f"not on {counted(len(schedule.holidays), 'holiday')}")
    if schedule.splay_us:
        parts.append(f"each starts {format_duration(schedule.splay_us)} later, its share of the splay")
    if schedule.start_within_us is not None:
        parts.append(f"starts within {format_duration(schedule.start_within_us)}")
    if served.flow.deadline_seconds is not None:
        parts.append(f"ends within {format_seconds(served.flow.deadline_seconds)}")
    return ", ".join(parts)


def _other_zone(served: ServedFlow, times: Sequence[int]) -> tuple[str, tzinfo | None]:
    """The time zone of this machine; UTC if the schedule has the same zone."""
    same = all(local_time(at, served.schedule.zone).utcoffset() == _here(at, None).utcoffset() for at in times)
    if not same:
        return f"HERE ({_here(times[0], None).tzname()})", None
    return "UTC", UTC


def _here(at: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at // 1_000_000, UTC).astimezone(zone)


@schedule.command("pause")
@optional_flow
@all_option
@click.option("--until", metavar="TIME", help="As 06:00 or 2h; default: until unpause.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for others.")
def pause_schedules(flow: str | None, until: str | None, reason: str, all_flows: bool) -> int:
    """Start no runs of FLOW; a run that goes on is not touched."""
    end = FOREVER
    if until is not None:
        options = postpone_options_of(until)
        end = machine_now_us() + round(options["seconds"] * 1e6) if options else FOREVER
    rows = _rows(flow, all_flows=all_flows)
    supervisor_file.pause([row.id for row in rows], end, reason, current_actor())
    echo_lines(present.decision_sentence(row, "pause", end) for row in rows)
    return ExitCode.SUCCESS


@schedule.command("unpause")
@optional_flow
@all_option
def unpause_schedules(flow: str | None, all_flows: bool) -> int:
    """End a pause; runs that were due meanwhile are started as misfire= of the flow says."""
    rows, now_us = _rows(flow, all_flows=all_flows), machine_now_us()
    supervisor_file.unpause([row.id for row in rows if row.is_paused(now_us)], now_us)
    echo_lines(one_line(f"{row.flow}: not paused{' any more' if row.is_paused(now_us) else ''}") for row in rows)
    return ExitCode.SUCCESS


@schedule.command("skip-next")
@flow_argument
@click.option("--undo", is_flag=True, help="Take the skip back.")
def skip_next_run(flow: str, undo: bool) -> int:
    """Do not start the next run of FLOW; the one after it starts."""
    row = _row_for(flow, "skip_next")
    logical = row.next_logical or row.skip_logical or 0  # the last run of a schedule may be skipped already
    supervisor_file.skip(row.id, None if undo else logical, current_actor())
    echo(present.decision_sentence(row, "unskip" if undo else "skip", logical))
    return ExitCode.SUCCESS


@schedule.command("start")
@flow_argument
@click.option("--at", metavar="TIME", help="A logical time, as of a missed run, by the clock of the flow.")
@click.option("--early", is_flag=True, help="Also a logical time that is still to come, which then starts no more.")
@param_option("A parameter of the run.")
def start_now(flow: str, at: str | None, early: bool, param: tuple[str, ...]) -> int:
    """Start a run of FLOW now, by its supervisor, also while the schedule is paused."""
    row = _row_for(flow, "start_run")
    served = decode_spec(supervisor_file.read_spec(row.id))
    if served is None or row.state_path is None:
        raise RefusedError(f"{row.flow} cannot be read: {row.start_error or 'wait until redrive serve has read it'}")
    logical = None if at is None else _time_to_start(row, served, at, early)
    params = params_of(param)
    _check_params(served, params)
    write_request(row.flow, row.state_path, logical, params, current_actor(), machine_now_us())
    echo(present.decision_sentence(row, "start-now" if logical is None else "start", logical or 0))
    return ExitCode.SUCCESS


def _time_to_start(row: ServedSchedule, served: ServedFlow, text: str, early: bool) -> int:
    """Return the logical time that is meant. Raises RefusedError for one that must not start now."""
    logical = instant_of(text, zone_of(row), "--at")
    coming = next(served.schedule.after(logical - 1), None)
    if coming != logical:
        nearest = "" if coming is None else f"; the next one after it is {present.logical_text(row, coming)}"
        raise RefusedError(f"{row.flow} has no run at {present.logical_text(row, logical)} by its schedule{nearest}")
    found = backfill_slots(row.state_path, served, logical, logical) if row.state_path else []
    if found and found[0].run_id is not None:
        raise RefusedError(
            f"the run of {row.flow} for {present.logical_text(row, logical)} has started already: {found[0].run_id};"
            " redrive backfill --again runs a day anew"
        )
    if logical > machine_now_us() and not early and not _starts_early(row, logical):
        raise RefusedError(f"{row.flow}: nothing is started")
    return logical


def _starts_early(row: ServedSchedule, logical: int) -> bool:
    """Ask about a run that is still to come. Raises RefusedError without a terminal."""
    what = f"the run of {row.flow} for {present.logical_text(row, logical)} is still to come"
    if not is_interactive():
        raise RefusedError(f"{what}; --early starts it now, and then not at its time; without --at a run of now starts")
    return click.confirm(one_line(f"{what}: start it now, and then not at its time?"), err=True)


def _check_params(served: ServedFlow, given: Mapping[str, str]) -> None:
    """Raise FlowError for a parameter that would make the start fail: a failed start holds up those of the schedule."""
    flow = served.flow
    known = flow.params.keys() - {LOGICAL_TIME}
    for name, value in given.items():
        if name not in known:
            raise FlowError(unknown_parameter(f"flow {flow.name!r}", name, known))
        if name in flow.secrets:
            why = "and a request for a start is stored: name a variable in secrets=, and set it in env_file"
            raise FlowError(f"flow {flow.name!r}: the parameter {name!r} is secret, {why}")
        declared = flow.param_types.get(name)
        try:
            convert_param(value, flow.params[name], None if declared is None else asdict(declared))
        except ValueError as error:
            raise FlowError(f"flow {flow.name!r}: parameter {name!r} {error}") from None


@schedule.command("dismiss")
@optional_flow
@click.argument("at", nargs=-1, metavar="[TIME]...")
@all_option
def dismiss_missed(flow: str | None, at: tuple[str, ...], all_flows: bool) -> int:
    """Remove missed runs of FLOW from the list, and starts that nobody took; without a TIME all of them."""
    now_us = machine_now_us()
    for row in _rows(flow, all_flows=all_flows):
        chosen = [instant_of(text, zone_of(row), "TIME") for text in at]
        if unknown := set(chosen) - {run.first for run in row.missed}:
            when = present.logical_text(row, min(unknown))
            raise NotFoundError(
                f"{row.flow} missed no run of {when}; it missed {', '.join(present.missed_times(row)) or 'none'}"
            )
        if not at:
            for request in row.requests:
                remove(request)
        if row.missed_times or not all_flows:
            supervisor_file.dismiss(row.id, chosen or None, now_us, current_actor())
            echo(present.decision_sentence(row, "dismiss", count=len(chosen) or row.missed_times))
    return ExitCode.SUCCESS


@schedule.command("acknowledge")
@flow_argument
def acknowledge_start(flow: str) -> int:
    """Say that the failed start of FLOW, or a warning, is known; it is tried again all the same."""
    row = _row_for(flow, "acknowledge_start")
    supervisor_file.acknowledge(row.id, machine_now_us())
    echo(present.decision_sentence(row, "acknowledge"))
    return ExitCode.SUCCESS


@schedule.command("forget")
@flow_argument
def forget_flow(flow: str) -> int:
    """Remove the schedule of FLOW, which is in no file any more, or which nobody serves."""
    if not _served(flow) and (path := _unknown_schedule(flow)) is not None and flow_times.end_schedule(path, flow):
        echo(one_line(f"{flow}: forgotten in {path}"))
        return ExitCode.SUCCESS
    row = _row_for(flow, "forget_flow")
    flow_times.forget(row)
    echo(present.decision_sentence(row, "forget"))
    return ExitCode.SUCCESS


def _unknown_schedule(flow: str) -> str | None:
    """The state file that has a schedule of a flow which no supervisor knows, as one that was copied here."""
    found = [one for one in file_rows() if one.service_pid is None and not one.supervised]
    return next((one.path for one in found if any(row.dag_name == flow for row in one.schedules)), None)


@schedule.command("times")
@flow_argument
@json_option
def print_times(flow: str, as_json: bool) -> int:
    """The fate of each run of FLOW that was due: whether it ran, and if not why, and who decided so."""
    (row,) = _rows(flow)
    entries, empty = present.as_ranges(supervisor_file.read_ledger(row.id)), f"no run of {row.flow} has been due"
    print_list("times", present.TIMES_COLUMNS, entries, row, as_json=as_json, empty=empty)
    return ExitCode.SUCCESS


def _rows(flow: str | None, *, all_flows: bool = False) -> tuple[ServedSchedule, ...]:
    """Return the schedules that are meant. Raises UsageError, NotFoundError, RefusedError."""
    if (flow is None) != all_flows:
        raise click.UsageError("name a flow, or write --all, and not both")
    if flow is None:
        return read_schedules().schedules
    found = _served(flow)
    if not found:
        names = ", ".join(row.flow for row in read_schedules().schedules)
        known = f"there are {names}" if names else _SERVE
        raise NotFoundError(f"no schedule of {flow!r} is known; {known}")
    if len(found) > 1:
        raise RefusedError(f"{flow!r} means several: {', '.join(row.target for row in found)}")
    return found


def _row_for(flow: str, action: str) -> ServedSchedule:
    """Return the schedule of a flow. Raises NotFoundError; RefusedError, also if the action can do nothing to it."""
    (row,) = _rows(flow)
    present.require_acts(row, action, machine_now_us())
    return row


def _served(flow: str) -> tuple[ServedSchedule, ...]:
    """Return the schedules with this name, target or file."""
    return tuple(row for row in read_schedules().schedules if flow in (row.flow, row.target, row.file))
