"""The last runs of a flow side by side: each task in each run, how long it took, and what was slower than usual.

Also the calendar of a state file: what became of the runs of each day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import NamedTuple

from ...engine.core.projection import RunRow
from ...engine.domain.states import RunState, TaskState
from ...engine.statefile.duration_stats import quantile
from ...engine.statefile.list_rows import DurationStats, RunTaskRow
from ..sessions.session import RunSummary
from .eta import is_overdue

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
