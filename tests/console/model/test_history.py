"""The grid of the last runs: every task in every run, what was slower than usual; and the calendar of nights."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from redrive.console.model.runs import (
    RUNS_MAX,
    HistoryCell,
    HistoryOrder,
    TaskTrend,
    days_of,
    latest_runs,
    run_grid,
    weeks_until,
)
from redrive.engine.core.projection import RunRow, RunSummary
from redrive.engine.domain.states import RunState, TaskState
from redrive.engine.statefile.lists import RunTaskRow

from .runs import S

DAY = 86_400 * S
MONDAY = int(datetime(2026, 4, 20, tzinfo=UTC).timestamp()) * S


def summary(number: int, state: RunState = RunState.SUCCESS, flow: str = "revenue", **columns: Any) -> RunSummary:
    run = RunRow(f"night-{number}", flow, started_at=MONDAY + number * DAY, state=state, **columns)
    return RunSummary(run, {"SUCCESS": 2})


def history(*seconds: float | None) -> TaskTrend:
    """A task that took so long in each run; None: it failed after an hour."""
    cells = [
        HistoryCell(TaskState.FAILED, 3, 3600 * S)
        if lasts is None
        else HistoryCell(TaskState.SUCCESS, 1, round(lasts * S))
        for lasts in seconds
    ]
    return TaskTrend("load", tuple(cells))


def test_the_grid_has_the_tasks_of_all_runs_in_the_order_of_the_latest() -> None:
    runs = [summary(1), summary(2)]
    rows = {
        "night-1": [RunTaskRow("old", "SUCCESS", 1, S), RunTaskRow("load", "FAILED", 3, 4 * S)],
        "night-2": [RunTaskRow("load", "SUCCESS", 1, 2 * S), RunTaskRow("new", "PENDING", 0, None)],
    }
    grid = run_grid(runs, rows)
    assert [task.name for task in grid.tasks] == ["load", "new", "old"]
    load, new, old = grid.tasks
    assert load.cells == (HistoryCell(TaskState.FAILED, 3, 4 * S), HistoryCell(TaskState.SUCCESS, 1, 2 * S))
    assert new.cells[0] is None and old.cells[1] is None
    assert load.typical_us == 2 * S, "the duration of a failure is not usual"


def test_only_the_last_runs_of_the_flow_are_in_it() -> None:
    runs = [summary(number, flow="other" if number % 2 else "revenue") for number in reversed(range(100))]
    found = [one.run.run_id for one in latest_runs(runs, "revenue")]
    assert len(found) == RUNS_MAX and found[-1] == "night-98" and found[0] == "night-20"


def test_tasks_that_are_not_read_are_counted() -> None:
    grid = run_grid([RunSummary(summary(1).run, {"SUCCESS": 8_931})], {"night-1": [RunTaskRow("a", "SUCCESS", 1, S)]})
    assert grid.left_out == 8_930


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ((60, 62, 58, 300), [False, False, False, True]),
        ((60, 62, 58, 80), [False] * 4),  # less than half as long again
        ((1, 1, 1, 9), [False] * 4),  # seconds are no matter
        ((60, 300), [False, False]),  # two runs say nothing of the usual
        ((60, 62, 58, None), [False, False, False, True]),  # a failure that took an hour
    ],
)
def test_what_took_far_longer_than_in_other_runs_is_slow(seconds: tuple[float | None, ...], slow: list[bool]) -> None:
    task = history(*seconds)
    assert [task.is_slow(place) for place in range(len(seconds))] == slow


def test_problems_come_first_the_latest_before_the_frequent() -> None:
    good, early, late = history(1, 1, 1), history(None, None, 1), history(1, 1, None)
    tasks = [TaskTrend(name, task.cells) for name, task in (("good", good), ("early", early), ("late", late))]
    rows = {
        f"night-{place}": [
            RunTaskRow(task.name, cell.state, cell.attempts, cell.duration_us)
            for task in tasks
            if (cell := task.cells[place]) is not None
        ]
        for place in range(3)
    }
    grid = run_grid([summary(number) for number in range(3)], rows)
    assert [task.name for task in grid.in_order(HistoryOrder.PROBLEMS)] == ["late", "early", "good"]
    assert [task.name for task in grid.in_order(HistoryOrder.NAME)] == ["early", "good", "late"]
    assert [task.name for task in grid.in_order(HistoryOrder.FLOW)] == ["good", "early", "late"]


def test_a_day_shows_its_worst_run_and_counts_all() -> None:
    blocked = summary(0, RunState.RUNNING, blocked_since=MONDAY)
    runs = [summary(0), blocked, summary(0, RunState.FAILED), summary(2)]
    days = days_of(runs, lambda at: datetime.fromtimestamp(at / S, UTC).date())
    assert days[date(2026, 4, 20)].runs == 3 and days[date(2026, 4, 20)].worst is blocked
    assert days[date(2026, 4, 22)].runs == 1 and date(2026, 4, 21) not in days


def test_a_run_of_a_schedule_belongs_to_the_day_that_it_stands_for() -> None:
    late = summary(1, logical_time=MONDAY)
    assert list(days_of([late], lambda at: datetime.fromtimestamp(at / S, UTC).date())) == [date(2026, 4, 20)]


def test_weeks_begin_on_monday_and_end_with_the_week_of_the_day() -> None:
    weeks = weeks_until(date(2026, 4, 22), 2)
    assert [week[0] for week in weeks] == [date(2026, 4, 13), date(2026, 4, 20)]
    assert weeks[-1][-1] == date(2026, 4, 26)
