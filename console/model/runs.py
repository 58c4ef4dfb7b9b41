"""Runs beside each other: those that need a human, those of a machine, and the last ones of a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from typing import NamedTuple

from ...engine.core.projection import RunRow
from ...engine.core.waiting import ALIVE, RunnerStatus
from ...engine.domain.states import RunState, TaskState
from ...engine.statefile.lists import DurationStats, ExecutorState, RunTaskRow, quantile
from ...engine.statefile.state_files import Offer
from ..sessions.session import Link, RunSummary, SessionStatus
from .board import runner_of
from .eta import is_overdue

# --- Waiting runs ----------------------------------------------------------------------------------------------------
#
# The runs of a state file that need a human: unfinished ones, and late ones that have ended with dead letters.


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that needs a human: it is blocked, has dead letters, or is unfinished and no executor runs it."""

    run: RunRow
    dead: int
    is_lost: bool

    @property
    def weight(self) -> int:
        """How much a badge counts for it: its dead letters, at least 1."""
        return max(self.dead, 1)


def is_lost(run: RunRow, status: SessionStatus) -> bool:
    """Whether an unfinished run that could go on has no executor, and no scheduler that starts one."""
    if run.ended_at is not None or run.blocked_since is not None or status.service_pid is not None:
        return False
    return not status.has_executor_of(run)


def waiting_runs(
    summaries: Iterable[RunSummary], status: SessionStatus, except_run_id: str | None = None
) -> list[WaitingRun]:
    """The runs that need a human, in the order given, without ``except_run_id``."""
    found = (
        WaitingRun(one.run, one.dead_letters, is_lost(one.run, status))
        for one in summaries
        if (one.run.ended_at is None or one.dead_letters) and one.run.run_id != except_run_id
    )
    return [one for one in found if one.dead or one.is_lost or one.run.blocked_since is not None]


# --- The state files of a machine ------------------------------------------------------------------------------------
#
# The state files of a machine as one list: the latest run of each, and what needs a human in any of its runs.


_NO_EXECUTOR = ExecutorState(False)


class FleetOrder(StrEnum):
    """The order of the list."""

    ATTENTION = "needs a human"  # that first, else in the order given
    LATEST = "latest"  # by the start of the latest run
    NEXT = "next start"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class FleetEntry:
    """A state file. ``run``: its latest one; ``waiting``: its unfinished runs that need a human.

    ``runner``: who runs ``run``; ``counts``: of its tasks by state, as far as they are known.
    """

    offer: Offer
    run: RunRow | None
    waiting: Sequence[WaitingRun]
    runner: RunnerStatus = ALIVE
    counts: Mapping[TaskState, int] = field(default_factory=dict)

    @property
    def executor(self) -> ExecutorState:
        """The latest executor."""
        return self.offer.executor or _NO_EXECUTOR

    @property
    def attention_count(self) -> int:
        """How much waits for a human: the badge of the inbox."""
        return sum(one.weight for one in self.waiting)

    @property
    def next_at(self) -> int | None:
        """When the next of its scheduled runs starts, in microseconds UTC."""
        return min((row.next_at for row in self.offer.schedules if row.next_at is not None), default=None)


def fleet_entries(offers: Iterable[Offer], order: FleetOrder = FleetOrder.ATTENTION) -> list[FleetEntry]:
    """One entry per state file, in an order."""
    return sorted(map(_entry, offers), key=_ORDERS[order])


_ORDERS: Mapping[FleetOrder, Callable[[FleetEntry], tuple[object, ...]]] = {
    FleetOrder.ATTENTION: lambda entry: (not entry.waiting,),
    FleetOrder.LATEST: lambda entry: (-entry.offer.started_at,),
    FleetOrder.NEXT: lambda entry: (entry.next_at is None, entry.next_at or 0),
    FleetOrder.NAME: lambda entry: (entry.offer.dag_name is None, entry.offer.dag_name or "", entry.offer.path),
}


def _entry(offer: Offer) -> FleetEntry:
    executor = offer.executor or _NO_EXECUTOR
    status = SessionStatus(
        Link.LIVE,
        executor_alive=executor.alive,
        executor_gone_at=executor.gone_at,
        executor_pid=executor.pid,
        executor_run_id=executor.run_id,
        executor_stopped=executor.stopped,
        service_pid=offer.service_pid,
    )
    open_runs = [
        RunSummary(
            RunRow(
                one.run_id,
                one.dag_name,
                one.started_at,
                one.ended_at,
                RunState.RUNNING if one.ended_at is None else RunState.FAILED,
                blocked_since=one.blocked_since,
                paused_since=one.paused_since,
            ),
            {
                TaskState.DEAD_LETTER: one.dead_letters,
                TaskState.RUNNING: one.working,
                TaskState.RETRYING: one.waiting,
            },
            one.dead_letters,
        )
        for one in offer.unfinished
    ]
    run = _latest_run(offer, open_runs)
    runner = ALIVE if run is None else runner_of(run, status)
    latest = next((one for one in open_runs if one.run is run), None)
    counts = {} if latest is None else {TaskState(state): count for state, count in latest.counts.items()}
    return FleetEntry(offer, run, waiting_runs(open_runs, status), runner, counts)


def _latest_run(offer: Offer, open_runs: Iterable[RunSummary]) -> RunRow | None:
    if offer.run_id is None:
        return None
    ended = RunRow(
        offer.run_id, offer.dag_name or "", offer.started_at, offer.ended_at, RunState(offer.state or RunState.RUNNING)
    )
    return next((one.run for one in open_runs if one.run.run_id == offer.run_id), ended)


# --- The last runs of a flow -----------------------------------------------------------------------------------------
#
# The last runs of a flow side by side: each task in each run, how long it took, and what was slower than usual.
#
# Also the calendar of a state file: what became of the runs of each day.


RUNS_MAX = 14
_WEEK_DAYS = 7


class HistoryCell(NamedTuple):
    """A task in one run. ``duration_us``: of its latest attempt; None if that has not ended."""

    state: TaskState
    attempts: int
    duration_us: int | None

    @property
    def ok_us(self) -> int | None:
        """How long the task took, if it succeeded."""
        return self.duration_us if self.state is TaskState.SUCCESS else None


@dataclass(frozen=True, slots=True)
class TaskTrend:
    """A task in each run, the oldest first; None: the run does not have the task."""

    name: str
    cells: tuple[HistoryCell | None, ...]

    @property
    def durations(self) -> list[int]:
        """How long the task took where it succeeded, ascending."""
        return sorted(cell.ok_us for cell in self.cells if cell is not None and cell.ok_us is not None)

    @property
    def typical_us(self) -> int | None:
        """The median of the durations; None if the task never succeeded."""
        durations = self.durations
        return quantile(durations, 0.5) if durations else None

    def is_slow(self, place: int) -> bool:
        """Whether the task took far longer in the run at ``place`` than in the others."""
        cell = self.cells[place]
        if cell is None or cell.duration_us is None:
            return False
        others = self.durations
        if cell.ok_us is not None:
            others.remove(cell.ok_us)
        if not others:
            return False
        usual = DurationStats(quantile(others, 0.5), quantile(others, 0.95), len(others))
        return is_overdue(cell.duration_us, usual)


class HistoryOrder(StrEnum):
    """The orders of the grid."""

    FLOW = "flow"
    PROBLEMS = "problems"
    DURATION = "duration"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class RunGrid:
    """The runs of a flow, the oldest first, and their tasks in the order of the latest run.

    Attributes:
        left_out: how many tasks of the latest run are not listed.
    """

    runs: tuple[RunSummary, ...] = ()
    tasks: tuple[TaskTrend, ...] = ()
    left_out: int = 0

    def in_order(self, order: HistoryOrder) -> list[TaskTrend]:
        """The tasks in an order."""
        return list(self.tasks) if order is HistoryOrder.FLOW else sorted(self.tasks, key=_ORDER_KEYS[order])


def latest_runs(summaries: Sequence[RunSummary], dag_name: str) -> tuple[RunSummary, ...]:
    """The last runs of a flow, the oldest first. ``summaries``: the latest first."""
    return tuple(reversed([one for one in summaries if one.run.dag_name == dag_name][:RUNS_MAX]))


def run_grid(runs: Sequence[RunSummary], rows: Mapping[str, Sequence[RunTaskRow]]) -> RunGrid:
    """The grid of ``runs``, the oldest first. ``rows``: run -> its tasks, in their order."""
    names: dict[str, None] = {}
    cells: list[dict[str, HistoryCell]] = []
    for one in reversed(runs):
        found = rows.get(one.run.run_id, ())
        names.update(dict.fromkeys(row.name for row in found))
        cells.insert(0, {row.name: HistoryCell(TaskState(row.state), row.attempt, row.duration_us) for row in found})
    tasks = tuple(TaskTrend(name, tuple(of_run.get(name) for of_run in cells)) for name in names)
    total = sum(runs[-1].counts.values()) if runs else 0
    listed = len(rows.get(runs[-1].run.run_id, ())) if runs else 0
    return RunGrid(tuple(runs), tasks, max(total - listed, 0))


def _problem_key(task: TaskTrend) -> tuple[int, int]:
    """The tasks that failed last come first, then those that failed most often."""
    bad = [place for place, cell in enumerate(task.cells) if is_bad(cell)]
    return -max(bad, default=-1), -len(bad)


def is_bad(cell: HistoryCell | None) -> bool:
    """Whether the task failed in that run."""
    return cell is not None and cell.state in (TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED)


_ORDER_KEYS: Mapping[HistoryOrder, Callable[[TaskTrend], tuple[int, int] | str]] = {
    HistoryOrder.PROBLEMS: _problem_key,
    HistoryOrder.DURATION: lambda task: (-(task.typical_us or 0), 0),
    HistoryOrder.NAME: lambda task: task.name,
}


# --- The calendar --------------------------------------------------------------------------------------------------


class RunDay(NamedTuple):
    """The runs of one day: how many, and the one that matters most."""

    runs: int
    worst: RunSummary


def days_of(summaries: Iterable[RunSummary], day_of: Callable[[int], date]) -> dict[date, RunDay]:
    """Day -> its runs. ``day_of``: the local day of an instant (microseconds UTC)."""
    days: dict[date, RunDay] = {}
    for one in summaries:
        day = day_of(one.run.started_at if one.run.logical_time is None else one.run.logical_time)
        known = days.get(day)
        worst = one if known is None else min(known.worst, one, key=lambda summary: severity(summary.run))
        days[day] = RunDay(1 if known is None else known.runs + 1, worst)
    return days


def weeks_until(last: date, count: int) -> list[list[date]]:
    """The ``count`` weeks up to that of ``last``, Monday first, the oldest first."""
    monday = last - timedelta(days=last.weekday())
    starts = (monday - timedelta(weeks=back) for back in reversed(range(count)))
    return [[start + timedelta(days=day) for day in range(_WEEK_DAYS)] for start in starts]


_SEVERITY = (RunState.FAILED, RunState.ABANDONED, RunState.PARTIAL, RunState.RUNNING, RunState.SUCCESS)


def severity(run: RunRow) -> int:
    """0 for the run that matters most: one that waits for a human."""
    is_blocked = run.state is RunState.RUNNING and run.blocked_since is not None
    return 0 if is_blocked else 1 + _SEVERITY.index(run.state)
