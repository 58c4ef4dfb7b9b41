"""``redrive serve`` and ``backfill``: they start the runs of a schedule."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from ...engine.asyncio_log import run_with_log
from ...engine.clock import SystemClock
from ...engine.core.schedule import iso_time, logical_name
from ...engine.core.spec import LOGICAL_TIME
from ...engine.core.views import BLOCKED, RUN_STYLES, StateRole
from ...engine.domain.states import RunState
from ...engine.errors import RefusedError
from ...engine.executor.run_options import RunOptions
from ...engine.flow.source import split_target
from ...engine.schedule.flow_files import FlowFinder, read_found
from ...engine.schedule.supervisor import Supervisor
from ...engine.statefile.ownership import require_own_state_file
from ...engine.store.backfill import BackfillSlot, backfill_slots, wait_for_schedule
from ...engine.store.schedules import ServedFlow
from ..sessions.target import state_for_flow
from ..text.columns import json_value
from ..text.pieces import Piece
from ..text.text import echo, echo_json, one_line
from .days import instant_of, read_served
from .event_lines import EventPrinter
from .group import ExitCode, command
from .options import json_option, param_option, params_of, serving_options, written_option
from .output import print_table, with_schema
from .run import ExecutorStart, run_arguments, run_with_lines
from .schedule import NEXT_COLUMNS


@command("serve")
@click.argument("sources", nargs=-1, metavar="[FOLDER|PROGRAM]...")
@param_option("A parameter of every run, for one PROGRAM.")
@written_option
@serving_options
@click.option("--stop-runs", is_flag=True, help="SIGTERM stops the runs in order as well, as for a container.")
@click.option("--list", "lists", is_flag=True, help="Only print what would be served, and what is left out and why.")
def serve_flows(sources: tuple[str, ...], param: tuple[str, ...], stop_runs: bool, lists: bool, **options: Any) -> int:
    """Until SIGTERM, all flows in FOLDERs and PROGRAMs; without one, those in the working folder. New, changed and
    removed files are noticed. Each run has an executor of its own, which goes on after SIGTERM; a file that cannot be
    read stops its own flows alone.
    """
    if len(sources) != 1 and (param or options["state"]):
        raise click.UsageError("--param and --state go with one flow")
    words, arguments = sources or (".",), run_arguments(params_of(param), **options)
    for word in words:
        if not os.path.exists(split_target(word)[0]):
            raise click.UsageError(f"there is no folder or flow file {word!r}")
    if lists:
        return _list_sources(words)
    if arguments.state is not None:
        require_own_state_file(state_for_flow(words[0], arguments.run.params, arguments.state))
    print_line = _reporter(EventPrinter(sys.stdout))

    def report(flow: str, sentence: str) -> None:
        print_line(f"{flow}: {sentence}" if flow else sentence)

    supervisor = Supervisor(words, arguments.options(), report=report, state=arguments.state, stops_runs=stop_runs)
    supervisor.run()
    return ExitCode.SUCCESS


def _list_sources(words: Sequence[str]) -> int:
    """Print a line for each flow, and for each file without one. Exit code 1 if something may be missing."""
    finder = FlowFinder(words)
    files = run_with_log(read_found(finder))
    rows: list[tuple[str, str, str]] = []
    for file in sorted(files, key=lambda one: one.target):
        for flow in file.flows.values():
            times = flow.spec.schedule
            how = "left out: it has no schedule" if times is None else f"{times.expression} {times.timezone}"
            rows.append((flow.spec.name, how, os.path.relpath(file.target)))
        if not file.flows:
            rows.append(("", file.error or "left out: it has no flow", os.path.relpath(file.target)))
    rows += [("", f"left out: {why}", os.path.relpath(file)) for file, why in finder.left_out.items()]
    print_table([("FLOW", "WHAT", "FILE"), *(tuple(map(one_line, row)) for row in rows)])
    is_whole = not finder.left_out and all(file.error is None for file in files)
    return ExitCode.SUCCESS if is_whole else ExitCode.FAILED


def _reporter(printer: EventPrinter) -> Callable[[str], None]:
    return lambda sentence: printer.write([f"[{datetime.now().astimezone():%H:%M:%S}] {one_line(sentence)}"])


# --- Backfill ------------------------------------------------------------------------------------------------------


@command("backfill")
@click.argument("flow", metavar="PROGRAM")
@click.option("--from", "since", required=True, metavar="DATE", help="The first day, or time, in its zone.")
@click.option("--to", "until", required=True, metavar="DATE", help="The last day, or time.")
@click.option("--again", is_flag=True, help="Also dates whose run has ended.")
@click.option("--dry-run", is_flag=True, help="Only show what would run.")
@param_option("A parameter of every run.")
@written_option
@serving_options
@json_option
def backfill_flow(
    flow: str, since: str, until: str, param: tuple[str, ...], again: bool, dry_run: bool, as_json: bool, **options: Any
) -> int:
    arguments = run_arguments(params_of(param), **options)
    params, clock = arguments.run.params, SystemClock()
    served, state = read_served(flow, params), state_for_flow(flow, params, arguments.state)
    zone = served.schedule.zone
    first, last = instant_of(since, zone, "--from"), instant_of(until, zone, "--to", whole_day=True)
    if last < first:
        raise click.UsageError("--to comes before --from")
    last = min(last, clock.now_us())
    backlog = _Backlog(again)
    found = backfill_slots(state, served, first, last)
    if dry_run:
        return _print_slots(served, found, backlog, as_json)
    report = _reporter(EventPrinter(sys.stdout))
    report(f"{sum(map(backlog.includes, found))} of {len(found)} logical times are to be run")
    while (one := backlog.next_of(backfill_slots(state, served, first, last))) is not None:
        wait_for_schedule(state, served, clock, report)
        if _run_one(flow, state, served, one, arguments.options()):
            return ExitCode.INTERRUPTED
        found = backfill_slots(state, served, first, last)
        report(f"{sum(slot.has_ended for slot in found)} of {len(found)} have ended")
    return _report_result(backfill_slots(state, served, first, last), backlog, report)


class _Backlog:
    """The logical times that a backfill still has to run. ``again``: once also those whose run has ended."""

    def __init__(self, again: bool) -> None:
        self._again = again
        self._started: set[int] = set()  # each is started once, also if another process was faster

    def includes(self, one: BackfillSlot) -> bool:
        """Whether the logical time is to be run."""
        is_new = one.logical not in self._started
        return one.is_resumable or (is_new and (one.run_id is None or (self._again and one.has_ended)))

    def next_of(self, found: Sequence[BackfillSlot]) -> BackfillSlot | None:
        """The next logical time: first a run that can continue, then the oldest; None: all is done."""
        pending = sorted(filter(self.includes, found), key=lambda one: (not one.is_resumable, one.logical))
        if not pending:
            return None
        self._started.add(pending[0].logical)
        return pending[0]


def _report_result(found: Sequence[BackfillSlot], backlog: _Backlog, report: Callable[[str], None]) -> int:
    """Report every logical time without a successful run, and return the exit code."""
    for one in found:
        if one.state is not RunState.SUCCESS:
            report(_slot_status(one, backlog))
    states = {one.state for one in found}
    if RunState.FAILED in states:
        return ExitCode.FAILED
    return ExitCode.SUCCESS if states <= {RunState.SUCCESS} else ExitCode.PARTIAL_OR_BLOCKED


def _print_slots(served: ServedFlow, found: Sequence[BackfillSlot], backlog: _Backlog, as_json: bool) -> int:
    if as_json:
        for one in found:
            value = {
                **json_value(NEXT_COLUMNS, one.logical, served),
                "run_id": one.run_id,
                "state": one.state,
                "to_do": backlog.includes(one),
            }
            echo_json(with_schema("backfill", value))
        return ExitCode.SUCCESS
    rows = [(iso_time(one.logical, served.schedule.zone), _slot_cell(one, backlog)) for one in found]
    print_table([("LOGICAL TIME", "WHAT"), *rows])
    echo(f"{sum(map(backlog.includes, found))} to run")
    return ExitCode.SUCCESS


def _slot_cell(one: BackfillSlot, backlog: _Backlog) -> Piece:
    role = BLOCKED.role if one.is_blocked else StateRole.PENDING if one.state is None else RUN_STYLES[one.state].role
    return Piece(_slot_status(one, backlog), role)


def _slot_status(one: BackfillSlot, backlog: _Backlog) -> str:
    if one.run_id is None:
        return "to run"
    if one.is_resumable:
        return f"to resume: {one.run_id}"
    state = f"{'BLOCKED' if one.is_blocked else one.state}: {one.run_id}{' (deleted)' if one.is_deleted else ''}"
    return f"to run again, now {state}" if backlog.includes(one) else state


def _run_one(flow: str, state: str, served: ServedFlow, one: BackfillSlot, options: RunOptions) -> bool:
    """Run one logical time. Return whether it was interrupted."""
    zone, printer = served.schedule.zone, EventPrinter(sys.stdout, state)
    options = replace(options, wait=True)
    run_id = one.run_id if one.is_resumable and one.run_id else logical_name(one.logical, zone)
    if one.is_resumable:
        options = replace(options, resume=True)
    else:
        params = {**options.params, LOGICAL_TIME: iso_time(one.logical, zone)}
        options = replace(options, params=params, logical_time=one.logical, replaced_run=one.run_id)
    _reporter(printer)(f"run {run_id}")
    try:
        result = run_with_lines(printer, ExecutorStart(flow, state, run_id, options))
    except RefusedError as error:  # another process was faster
        _reporter(printer)(str(error))
        return False
    return result.interrupted and result.run_state is RunState.RUNNING
