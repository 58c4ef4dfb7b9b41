"""``redrive schedule``: all schedules of this machine, and what operators decide about them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from difflib import get_close_matches

import click

from ...engine.core.spec import LOGICAL_TIME
from ...engine.domain.task_options import convert_param
from ...engine.domain.text import did_you_mean, shell_command
from ...engine.errors import FlowError, NotFoundError, RefusedError
from ...engine.schedule.flow_service import decode_spec
from ...engine.statefile import supervisor_file
from ...engine.statefile.supervisor_file import FOREVER, ServedSchedule, is_served, read_schedules
from ..present.schedules import SCHEDULE_COLUMNS, decision_sentence, missed_times, schedule_cells, schedule_notes
from ..text.text import echo, echo_lines, one_line
from .main import ExitCode, cli, summary_of
from .operate import postpone_options_of
from .options import json_option, params_of
from .output import echo_values, print_table


class ScheduleGroup(click.Group):
    """``redrive schedule FLOW`` is short for ``redrive schedule next FLOW``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a line; a word that is none is a flow, unless it is a command with a typing error."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        close = get_close_matches(args[0], self.commands, n=2)
        if close and not os.path.exists(args[0]) and not _served(args[0]):
            raise click.UsageError(
                f"there is no flow file {args[0]!r} (Did you mean {' or '.join(map(repr, close))}?)", ctx
            )
        return super().resolve_command(ctx, ["next", *args])


flow_argument = click.argument("flow", metavar="FLOW")
optional_flow = click.argument("flow", metavar="[FLOW]", required=False)
all_option = click.option("--all", "all_flows", is_flag=True, help="All flows of this machine.")


@cli.group("schedule", cls=ScheduleGroup, invoke_without_command=True, help=summary_of("schedule"))
@json_option
@click.pass_context
def schedule(context: click.Context, as_json: bool) -> int | None:
    """Print one line for each schedule of this machine, and what a human has to know."""
    if context.invoked_subcommand is not None:
        return None
    rows, now_us = read_schedules().schedules, _now_us()
    if as_json:
        echo_values("schedules", (_value(row, now_us) for row in rows))
        return ExitCode.SUCCESS
    if not rows:
        echo("no schedule is known: redrive serve FOLDER starts the runs of the flows in it")
        return ExitCode.SUCCESS
    print_table([SCHEDULE_COLUMNS, *(schedule_cells(row, now_us) for row in rows)])
    notes = [one_line(note) for note in schedule_notes(rows, now_us)]
    echo_lines(["", *notes])
    return ExitCode.SUCCESS


@schedule.command("next")
@flow_argument
@click.option("--param", multiple=True, metavar="NAME=VALUE", help="A parameter that the flow declares.")
@click.option("--next", "count", default=5, show_default=True, type=click.IntRange(1, 1000), metavar="N")
@json_option
def print_next(flow: str, param: tuple[str, ...], count: int, as_json: bool) -> int:
    """The next runs of FLOW, a flow that is served or a flow file, in its time zone and here.

    With changes of daylight saving time.
    """
    from .schedule import print_schedule

    target = _rows(flow)[0].target if _served(flow) else flow
    return print_schedule(target, params_of(param), count, as_json)


def _value(row: ServedSchedule, now_us: int) -> dict[str, object]:
    missed = [run.logical_time for run in row.missed]
    return {**row._asdict(), "missed": missed, "is_served": is_served(row, now_us), "is_paused": row.is_paused(now_us)}


@schedule.command("pause")
@optional_flow
@all_option
@click.option("--until", metavar="TIME", help="As 06:00 or 2h; default: until unpause.")
def pause_schedules(flow: str | None, until: str | None, all_flows: bool) -> int:
    """Start no runs of FLOW; a run that goes on is not touched."""
    end = FOREVER
    if until is not None:
        options = postpone_options_of(until)
        end = _now_us() + round(options["seconds"] * 1e6) if options else FOREVER
    rows = _rows(flow, all_flows=all_flows)
    supervisor_file.pause([row.target for row in rows], end)
    echo_lines(decision_sentence(row, "pause", end) for row in rows)
    return ExitCode.SUCCESS


@schedule.command("unpause")
@optional_flow
@all_option
def unpause_schedules(flow: str | None, all_flows: bool) -> int:
    """End a pause; runs that were due meanwhile are started as misfire= of the flow says."""
    rows, now_us = _rows(flow, all_flows=all_flows), _now_us()
    supervisor_file.pause([row.target for row in rows if row.is_paused(now_us)], now_us)
    echo_lines(one_line(f"{row.flow}: not paused{' any more' if row.is_paused(now_us) else ''}") for row in rows)
    return ExitCode.SUCCESS


@schedule.command("skip-next")
@flow_argument
@click.option("--undo", is_flag=True, help="Take the skip back.")
def skip_next_run(flow: str, undo: bool) -> int:
    """Do not start the next run of FLOW; the one after it starts."""
    (row,) = _rows(flow)
    if not undo and row.next_logical is None:
        raise RefusedError(f"{row.flow} has no next run")
    supervisor_file.skip(row.target, None if undo else row.next_logical)
    echo(decision_sentence(row, "unskip" if undo else "skip", row.next_logical or 0))
    return ExitCode.SUCCESS


@schedule.command("start")
@flow_argument
@click.option("--at", metavar="TIME", help="The logical time of the run, as of a missed one; default: now.")
@click.option("--param", multiple=True, metavar="NAME=VALUE", help="A parameter of the run.")
def start_now(flow: str, at: str | None, param: tuple[str, ...]) -> int:
    """Start a run of FLOW now, by its supervisor, also while the schedule is paused."""
    (row,) = _rows(flow)
    if not is_served(row, _now_us()):
        command = shell_command(["redrive", "run", row.target])
        raise RefusedError(f"no supervisor serves {row.flow}: redrive serve, or {command}")
    logical = _now_us() // 1_000_000 * 1_000_000 if at is None else _instant(at)
    params = params_of(param)
    _check_params(row, params)
    supervisor_file.request_start(row.target, logical, params)
    echo(decision_sentence(row, "start", logical))
    return ExitCode.SUCCESS


def _check_params(row: ServedSchedule, given: Mapping[str, str]) -> None:
    """Raise FlowError for a parameter that would make the start fail: a failed start holds up those of the schedule."""
    served = decode_spec(supervisor_file.read_spec(row.target))
    if served is None:  # its file could never be read: the start says why
        return
    flow = served.flow
    known = sorted(flow.params.keys() - {LOGICAL_TIME})
    for name, value in given.items():
        if name not in known:
            meant = did_you_mean(name, known) or f"; it declares: {', '.join(known) or 'none'}"
            raise FlowError(f"flow {flow.name!r} has no parameter {name!r}{meant}")
        if name in flow.secrets:
            why = "and a request for a start is stored: name a variable in secrets=, and set it in env_file"
            raise FlowError(f"flow {flow.name!r}: the parameter {name!r} is secret, {why}")
        declared = flow.param_types.get(name)
        try:
            convert_param(value, flow.params[name], None if declared is None else asdict(declared))
        except ValueError as error:
            raise FlowError(f"flow {flow.name!r}: parameter {name!r} {error}") from None


@schedule.command("dismiss")
@flow_argument
@click.argument("at", nargs=-1, metavar="[TIME]...")
def dismiss_missed(flow: str, at: tuple[str, ...]) -> int:
    """Remove missed runs of FLOW from the list; without a TIME all of them."""
    (row,) = _rows(flow)
    known = [run.logical_time for run in row.missed]
    chosen = [_instant(text) for text in at] or known
    if unknown := set(chosen) - set(known):
        raise NotFoundError(f"{row.flow} missed no run of {_local(min(unknown))}; it missed {_listed(row) or 'none'}")
    supervisor_file.dismiss(row.target, chosen)
    echo(decision_sentence(row, "dismiss", count=len(chosen)))
    return ExitCode.SUCCESS


@schedule.command("acknowledge")
@flow_argument
def acknowledge_start(flow: str) -> int:
    """Say that the failed start of FLOW is known; it is tried again all the same."""
    (row,) = _rows(flow)
    if row.start_error is None:
        raise RefusedError(f"the latest start of {row.flow} did not fail")
    supervisor_file.acknowledge(row.target, _now_us())
    echo(decision_sentence(row, "acknowledge"))
    return ExitCode.SUCCESS


def _rows(flow: str | None, *, all_flows: bool = False) -> tuple[ServedSchedule, ...]:
    """Return the schedules that are meant. Raises UsageError, NotFoundError, RefusedError."""
    if (flow is None) != all_flows:
        raise click.UsageError("name a flow, or write --all")
    if flow is None:
        return read_schedules().schedules
    found = _served(flow)
    if not found:
        names = ", ".join(row.flow for row in read_schedules().schedules)
        raise NotFoundError(f"no schedule of {flow!r} is known{f'; there are {names}' if names else ''}")
    if len(found) > 1:
        raise RefusedError(f"{flow!r} means several: {', '.join(row.target for row in found)}")
    return found


def _served(flow: str) -> tuple[ServedSchedule, ...]:
    """Return the schedules with this name, target or file."""
    return tuple(row for row in read_schedules().schedules if flow in (row.flow, row.target, row.file))


def _listed(row: ServedSchedule) -> str:
    return ", ".join(missed_times(row))


def _instant(text: str) -> int:
    """Parse an instant; without an offset it is of this machine's zone."""
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1e6)
    except ValueError:
        raise click.UsageError(f"{text!r}: write an instant, as 2026-11-24T02:00") from None


def _local(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1e6).astimezone():%Y-%m-%d %H:%M:%S}"


def _now_us() -> int:
    return time.time_ns() // 1000
