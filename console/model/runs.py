"""Runs beside each other: those that need a human, those of a machine, and the last ones of a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import NamedTuple

import msgspec

from ...engine.core.views import RunLike, run_code
from ...engine.core.waiting import ALIVE, RunnerStatus, WaitReason
from ...engine.domain.rows import NO_EXECUTOR, NO_HEALTH, ExecutorState, RunFacts, RunRow, RunSummary
from ...engine.domain.states import FAILED_OUTCOMES, RunState, TaskState
from ...engine.domain.text import format_duration
from ...engine.statefile.durations import DurationStats, quantile
from ...engine.statefile.lists import NeedKind, NeedRow, PastAttemptRow, RunTaskRow, ScheduleRow
from ...engine.statefile.needs import Need, attention_count, lost_executor, need_of_storage, needs_of, needs_of_run
from ...engine.statefile.state_files import FileRow
from ...engine.statefile.supervisor_file import ServedSchedule
from ..text.text import split_address
from .board import Board
from .overdue import is_overdue
from .session_status import Link, SessionStatus, runner_of

# --- The runs of a state file that need a human, and those whose end nobody has acknowledged -------------------------


class WaitingRun(msgspec.Struct, frozen=True):
    """A run with what it needs most, and ``others``."""

    run: RunFacts
    need: Need
    others: tuple[Need, ...] = ()

    @property
    def is_notice(self) -> bool:
        """Whether nothing waits for it: it is listed until somebody acknowledges it."""
        return self.need.is_notice

    @property
    def weight(self) -> int:
        """The number that a badge counts for the need."""
        return attention_count([self.need, *self.others])

    def count_of(self, kind: NeedKind) -> int:
        """The number of tasks that need this, or 1 for the run as a whole."""
        return sum(need.counted for need in (self.need, *self.others) if need.kind is kind)


def is_lost(run: RunRow, status: SessionStatus) -> bool:
    """Whether an unfinished run that could go on has no executor, and no scheduler that starts one."""
    return run.ended_at is None and run.blocked_since is None and _lost_executor(run, status) is not None


def _lost_executor(run: RunLike, status: SessionStatus) -> ExecutorState | None:
    return lost_executor(run.run_id, status.executor, status.service_pid if status.is_served(run) else None)


def waiting_runs(
    rows: Iterable[RunFacts],
    status: SessionStatus,
    now_us: int,
    except_run_id: str | None = None,
    groups: Sequence[NeedRow] = (),
) -> list[WaitingRun]:
    """The runs that need a human, then the notices, each in the order given, without ``except_run_id``.

    ``groups``: dead letters by cause, if they are known.
    """
    found = []
    for row in rows:
        of_run = [one for one in groups if one.run_id == row.run_id]
        needs = needs_of_run(row, now_us, _lost_executor(row, status), of_run)
        if needs and row.run_id != except_run_id:
            found.append(WaitingRun(row, needs[0], tuple(needs[1:])))
    return sorted(found, key=lambda one: one.is_notice)


def needs_of_board(board: Board, status: SessionStatus | None, now_us: int) -> list[Need]:
    """The needs of a run, by the rule of the lists. ``status``: None where nobody knows who runs it, as in the past."""
    run = board.projection.run
    is_late = run.deadline_at is not None and run.ended_at is not None and run.ended_at > run.deadline_at
    is_well = run.ended_at is not None and run.state not in (RunState.FAILED, RunState.PARTIAL) and not is_late
    if is_well or run.acknowledged_at is not None:  # as the lists leave it out
        return []
    failed = board.counts[TaskState.FAILED] + list(board.held_tasks().values()).count(WaitReason.DEADLINE)
    facts = RunFacts(run.run_id, run.dag_name, run.started_at, run.ended_at, run.state, run.blocked_since)
    facts = facts._replace(
        deadline_at=run.deadline_at, dead_letters=board.dead_letters, failed_tasks=failed, asked=len(board.asked)
    )
    if run.state == RunState.PARTIAL:
        bad_rows = any(row.bad_rows for row in board.projection.tasks.values())
        facts = facts._replace(undecided=board.finished < board.total or bad_rows)
    found = needs_of_run(facts, now_us, None if status is None else _lost_executor(run, status))
    if status is None or not status.has_executor_of(run) or status.storage_problem is None:
        return found
    return [need_of_storage(status.health, "", run.dag_name, run.run_id), *found]


# --- The state files of a machine as one list: the latest run of each, and what needs a human in any of its runs -----


class RunOrder(StrEnum):
    """The order of the runs of a state file."""

    LATEST = "latest"
    NEEDS = "needs a human"
    SLOWEST = "slower than usual"
    NAME = "name"


class FleetOrder(StrEnum):
    """The order of the state files."""

    ATTENTION = "needs a human"  # that first, else in the order given
    LATEST = "latest"  # by the start of the latest run
    NEXT = "next start"
    NAME = "name"


class FleetEntry(msgspec.Struct, frozen=True):
    """A state file. ``needs``: what needs a human in it, and notices; ``host``: if the list is of several."""

    file_row: FileRow
    needs: Sequence[Need]
    host: str = ""
    now_us: int = 0

    @property
    def schedule(self) -> ServedSchedule | None:
        """The schedule of its flow, if a supervisor knows one; None also beside others."""
        rows = self.file_row.supervised
        return rows[0] if len(rows) == 1 and len(self._schedules) <= 1 else None

    @property
    def run(self) -> RunFacts | None:
        """The latest run."""
        return self.file_row.latest

    @property
    def runner(self) -> RunnerStatus:
        """The process that runs the latest run."""
        return ALIVE if self.run is None else runner_of(self.run, status_of(self.file_row))

    @property
    def counts(self) -> Mapping[TaskState, int]:
        """The tasks of the latest run by state, as far as they are known."""
        return {} if self.run is None else known_counts(self.run)

    @property
    def executor(self) -> ExecutorState:
        """The latest executor."""
        return self.file_row.executor or NO_EXECUTOR

    @property
    def flow(self) -> str | None:
        """The flow of the latest run, else the one that is scheduled; None: neither is known, or there are several."""
        scheduled = {one.dag_name for one in self.file_row.schedules}
        only = next(iter(scheduled)) if len(scheduled) == 1 else None
        return self.run.dag_name if self.run is not None else self.file_row.dag_name or only

    @property
    def attention_count(self) -> int:
        """The number of things that wait for a human: the badge of the inbox."""
        return attention_count(self.needs)

    @property
    def notice_count(self) -> int:
        """The number of things that are listed until somebody has acknowledged them."""
        return sum(need.is_notice for need in self.needs)

    @property
    def next_at(self) -> int | None:
        """The start of the next of its scheduled runs, in microseconds UTC."""
        return min((row.next_at for row in self.coming if row.next_at is not None), default=None)

    @property
    def coming(self) -> Sequence[ScheduleRow]:
        """The schedules that start runs: those that nobody has paused."""
        paused = {row.flow for row in self.file_row.supervised if row.is_paused(self.now_us)}
        return [row for row in self._schedules if row.dag_name not in paused]

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused all of its schedules."""
        return bool(self._schedules) and not self.coming

    @property
    def _schedules(self) -> Sequence[ScheduleRow]:
        """The schedules in its file, and those that a supervisor writes there once no other process owns the file."""
        written = {row.dag_name for row in self.file_row.schedules}
        new = [row for row in self.file_row.supervised if row.next_at is not None and row.flow not in written]
        return [*self.file_row.schedules, *map(schedule_row, new)] if new else self.file_row.schedules


def schedule_row(row: ServedSchedule) -> ScheduleRow:
    """The schedule as its supervisor writes it into the state file."""
    next_local = datetime.fromtimestamp((row.next_logical or 0) / 1e6, UTC).astimezone(zone_of(row)).isoformat()
    return ScheduleRow(row.flow, row.expression or "", row.timezone or "", "", None, 0, 0, row.next_at, next_local)


def zone_of(row: ServedSchedule) -> tzinfo | None:
    """The time zone of a schedule; None, which is that of this machine, if it is unknown here."""
    from zoneinfo import ZoneInfo  # here: a list of runs needs none

    try:
        return ZoneInfo(row.timezone or "")
    except (ValueError, OSError, KeyError):  # no name, a damaged one, no such zone
        return None


def fleet_entries(
    file_rows: Sequence[FileRow], now_us: int, order: FleetOrder = FleetOrder.ATTENTION
) -> list[FleetEntry]:
    """An entry per state file, in an order."""
    hosts = {file_row.path: split_address(file_row.path)[0] for file_row in file_rows}
    is_named = len(set(hosts.values())) > 1
    entries = (
        FleetEntry(one, needs_of([one], now_us), hosts[one.path] if is_named else "", now_us + one.clock_offset_us)
        for one in file_rows
    )
    return sorted(entries, key=_ORDERS[order])


_ORDERS: Mapping[FleetOrder, Callable[[FleetEntry], tuple[object, ...]]] = {
    FleetOrder.ATTENTION: lambda entry: (not entry.attention_count, not entry.needs),
    FleetOrder.LATEST: lambda entry: _order_of_starts(entry.run, entry.now_us),
    FleetOrder.NEXT: lambda entry: (entry.next_at is None, entry.next_at or 0),
    FleetOrder.NAME: lambda entry: (
        entry.file_row.dag_name is None,
        entry.file_row.dag_name or "",
        entry.file_row.path,
    ),
}


def _order_of_starts(run: RunFacts | None, now_us: int) -> tuple[bool, int]:
    """The latest start first; last what a clock that was ahead has dated."""
    return (True, 0) if run is None else (run.started_at > now_us, -run.started_at)


def status_of(file_row: FileRow) -> SessionStatus:
    """The executor of a state file, as a session on the file would say it."""
    stuck_run = next((row.stuck_run_id for row in file_row.supervised if row.stuck_run_id is not None), None)
    executor, pid = file_row.executor or NO_EXECUTOR, file_row.service_pid
    return SessionStatus(Link.LIVE, None, None, executor, pid, stuck_run, file_row.health or NO_HEALTH)


def known_counts(run: RunFacts) -> Mapping[TaskState, int]:
    """The tasks of a run by state, as far as its facts say."""
    return {
        TaskState.DEAD_LETTER: run.dead_letters,
        TaskState.RUNNING: run.working - run.asked,
        TaskState.PENDING: run.waiting + run.asked,
    }


def latest_code(file_row: FileRow) -> str:
    """The state of the latest run as lists for grep print it; empty without a run."""
    run = file_row.latest
    return "" if run is None else run_code(run, runner_of(run, status_of(file_row)), known_counts(run))


def describe_latest(file_row: FileRow, now_us: int) -> str:
    """The latest run of a state file, in a line."""
    run = file_row.latest
    if run is None:
        return "no run yet"
    age = format_duration(max(0, now_us - run.started_at))
    return f"{run.dag_name} · {run.run_id} · {latest_code(file_row)} · started {age} ago"


# --- The last runs of a flow side by side: each task in each run, how long it took, and what is unusual --------------


RUNS_MAX = 40


class Pace(NamedTuple):
    """A duration beside what is usual. ``times``: of the usual; ``is_slow``, ``is_quick``: by far."""

    times: float
    is_slow: bool
    is_quick: bool


def pace_of(lasts_us: int, others: Sequence[int]) -> Pace | None:
    """The pace of what took ``lasts_us``. ``others``: the durations of the successes beside it, ascending."""
    if not others or not (usual_us := quantile(others, 0.5)):
        return None
    stats = DurationStats(usual_us, quantile(others, 0.95), len(others))
    quickest = DurationStats(lasts_us, lasts_us, len(others))
    return Pace(lasts_us / usual_us, is_overdue(lasts_us, stats), is_overdue(quantile(others, 0.05), quickest))


class TaskTrend(msgspec.Struct, frozen=True):
    """A task in each run, the oldest first; None: the run does not have the task."""

    name: str
    cells: tuple[RunTaskRow | None, ...]

    @property
    def durations(self) -> list[int]:
        """The durations of the task where it succeeded, ascending."""
        return sorted(cell.ok_us for cell in self.cells if cell is not None and cell.ok_us is not None)

    @property
    def typical_us(self) -> int | None:
        """The median of the durations; None if the task never succeeded, or only one run has it."""
        durations, is_alone = self.durations, sum(cell is not None for cell in self.cells) == 1
        return quantile(durations, 0.5) if durations and not is_alone else None

    def is_slow(self, place: int) -> bool:
        """Whether the task took far longer in the run at ``place`` than in the others."""
        pace = pace_beside(self.cells[place], self.durations)
        return pace is not None and pace.is_slow


def pace_beside(cell: RunTaskRow | None, durations: Sequence[int]) -> Pace | None:
    """The pace of a cell. ``durations``: ascending, with its own if it is a success."""
    if cell is None or cell.duration_us is None:
        return None
    return pace_of(cell.duration_us, durations_beside(cell, durations))


def durations_beside(cell: RunTaskRow, durations: Sequence[int]) -> Sequence[int]:
    """``durations``, ascending, without that of the cell if it is a success."""
    others = list(durations)
    if cell.ok_us in others:
        others.remove(cell.ok_us)
    return others


def is_comparable(run: RunRow, is_moving: bool) -> bool:
    """Whether how long a run takes says how fast it is: it works or has ended.

    One that is paused, or stands until a human decides, or has no executor, is neither slow nor quick.
    """
    is_working = is_moving and run.paused_since is None
    return run.ended_at is not None or is_working


def trend_of_attempts(name: str, rows: Iterable[PastAttemptRow], clock_us: int | None = None) -> TaskTrend:
    """The attempts of a task in any run, with a cell each. ``rows``: the latest first; ``clock_us``: of what runs."""
    states = {"success": TaskState.SUCCESS, **dict.fromkeys(FAILED_OUTCOMES, TaskState.FAILED)}
    found = [RunTaskRow(name, states[row.outcome], 1, row.duration_us) for row in rows if row.outcome in states]
    running = () if clock_us is None else (RunTaskRow(name, TaskState.RUNNING, 1, clock_us),)
    return TaskTrend(name, (*reversed(found), *running))


WHOLE_RUN = "the whole run"
_CELL_STATES: Mapping[str, TaskState] = {
    RunState.RUNNING: TaskState.RUNNING,
    RunState.SUCCESS: TaskState.SUCCESS,
    RunState.FAILED: TaskState.FAILED,
    RunState.ABANDONED: TaskState.FAILED,
    RunState.PARTIAL: TaskState.SKIPPED,
}


def run_cell(run: RunRow) -> RunTaskRow:
    """A run as a cell of the grid."""
    end = run.ended_at if run.ended_at is not None else run.blocked_since
    lasts_us = None if end is None else max(end - run.started_at - run.waited_us, 0)
    is_blocked = run.ended_at is None and run.blocked_since is not None
    state = TaskState.DEAD_LETTER if is_blocked else _CELL_STATES[run.state]
    return RunTaskRow(WHOLE_RUN, state, 1, lasts_us)


def usual_durations(summaries: Sequence[RunSummary]) -> dict[str, list[int]]:
    """Flow -> how long its last runs took that succeeded, ascending. ``summaries``: the latest first."""
    flows = dict.fromkeys(one.run.dag_name for one in summaries)
    return {flow: run_grid(latest_runs(summaries, flow), {}).whole.durations for flow in flows}


class RunGrid(msgspec.Struct, frozen=True):
    """The runs of a flow, the oldest first, and their tasks in the order of the latest run.

    Attributes:
        left_out: how many tasks of the latest run are not listed.
    """

    runs: tuple[RunSummary, ...] = ()
    tasks: tuple[TaskTrend, ...] = ()
    left_out: int = 0

    @property
    def whole(self) -> TaskTrend:
        """The runs themselves."""
        return TaskTrend(WHOLE_RUN, tuple(run_cell(one.run) for one in self.runs))

    @property
    def flow(self) -> str | None:
        return self.runs[-1].run.dag_name if self.runs else None

    def place_of(self, run_id: str | None) -> int | None:
        """The column of a run; None: it has none."""
        return next((place for place, one in enumerate(self.runs) if one.run.run_id == run_id), None)


def latest_runs(summaries: Sequence[RunSummary], dag_name: str | None) -> tuple[RunSummary, ...]:
    """The last runs of a flow, the oldest first. ``summaries``: the latest first."""
    return tuple(reversed([one for one in summaries if one.run.dag_name == dag_name][:RUNS_MAX]))


def run_grid(runs: Sequence[RunSummary], rows: Mapping[str, Sequence[RunTaskRow]]) -> RunGrid:
    """The grid of ``runs``, the oldest first. ``rows``: run -> its tasks, in their order."""
    names: dict[str, None] = {}
    cells: list[dict[str, RunTaskRow]] = []
    for one in reversed(runs):
        found = rows.get(one.run.run_id, ())
        names.update(dict.fromkeys(row.name for row in found))
        cells.insert(0, {row.name: row for row in found})
    tasks = tuple(TaskTrend(name, tuple(of_run.get(name) for of_run in cells)) for name in names)
    total = sum(runs[-1].counts.values()) if runs else 0
    listed = len(rows.get(runs[-1].run.run_id, ())) if runs else 0
    return RunGrid(tuple(runs), tasks, max(total - listed, 0))


def is_bad(cell: RunTaskRow | None) -> bool:
    return cell is not None and cell.state in (TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED)
