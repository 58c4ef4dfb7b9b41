"""The grid of the last runs: every task in every run, and what was slower than usual."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from redrive.console.model.runs import (
    RUNS_MAX,
    WHOLE_RUN,
    TaskTrend,
    is_bad,
    latest_runs,
    pace_of,
    run_cell,
    run_grid,
    usual_durations,
)
from redrive.console.present.runs import RUN_COLUMNS, ListedRun
from redrive.console.present.states import RowContext
from redrive.console.text.columns import screen_row
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.domain.rows import RunRow, RunSummary
from redrive.engine.domain.states import RunState, TaskState
from redrive.engine.statefile.lists import RunTaskRow
from support.marks import for_each

from .runs import S

DAY = 86_400 * S
MONDAY = int(datetime(2026, 4, 20, tzinfo=UTC).timestamp()) * S


def summary(number: int, state: RunState = RunState.SUCCESS, flow: str = "revenue", **columns: Any) -> RunSummary:
    run = RunRow(f"night-{number}", flow, started_at=MONDAY + number * DAY, state=state, **columns)
    return RunSummary(run, {"SUCCESS": 2})


def history(*seconds: float | None) -> TaskTrend:
    """A task that took so long in each run; None: it failed after an hour."""
    cells = [
        RunTaskRow("load", TaskState.FAILED, 3, 3600 * S)
        if lasts is None
        else RunTaskRow("load", TaskState.SUCCESS, 1, round(lasts * S))
        for lasts in seconds
    ]
    return TaskTrend("load", tuple(cells))


def test_the_grid_has_the_tasks_of_all_runs_in_the_order_of_the_latest() -> None:
    runs = [summary(1), summary(2)]
    rows = {
        "night-1": [RunTaskRow("old", "SUCCESS", 1, S), RunTaskRow("load", TaskState.FAILED, 3, 4 * S)],
        "night-2": [RunTaskRow("load", TaskState.SUCCESS, 1, 2 * S), RunTaskRow("new", "PENDING", 0, None)],
    }
    grid = run_grid(runs, rows)
    assert [task.name for task in grid.tasks] == ["load", "new", "old"]
    load, new, old = grid.tasks
    assert load.cells == (
        RunTaskRow("load", TaskState.FAILED, 3, 4 * S),
        RunTaskRow("load", TaskState.SUCCESS, 1, 2 * S),
    )
    assert new.cells[0] is None and old.cells[1] is None
    assert load.typical_us == 2 * S, "the duration of a failure is not usual"


def test_only_the_last_runs_of_the_flow_are_in_it() -> None:
    runs = [summary(number, flow="other" if number % 2 else "revenue") for number in reversed(range(100))]
    found = [one.run.run_id for one in latest_runs(runs, "revenue")]
    assert len(found) == RUNS_MAX and found[-1] == "night-98" and found[0] == "night-20"


def test_tasks_that_are_not_read_are_counted() -> None:
    grid = run_grid([RunSummary(summary(1).run, {"SUCCESS": 8_931})], {"night-1": [RunTaskRow("a", "SUCCESS", 1, S)]})
    assert grid.left_out == 8_930


@for_each(
    "seconds, slow",
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


def test_a_single_run_is_not_what_is_usual() -> None:
    assert history(60).typical_us is None
    assert history(60, None).typical_us == 60 * S


def test_a_run_that_stands_is_neither_slow_nor_quick() -> None:
    at = {"now_us": MONDAY + 900 * S}
    others = [10 * S] * 4
    blocked = summary(0, RunState.RUNNING, blocked_since=MONDAY + S).run
    paused = summary(0, RunState.RUNNING, paused_since=MONDAY + 100 * S).run
    for run in (blocked, paused):
        listed = ListedRun(RunSummary(run, {}), durations=others)
        assert listed.pace(**at) is None and listed.usual_sentence(**at) == ""
    assert ListedRun(summary(0, RunState.RUNNING), durations=others).pace(**at) == (90.0, True, False)
    ended = ListedRun(summary(0, ended_at=MONDAY + 10 * S), durations=[10 * S])
    assert ended.usual_sentence(**at) == "", "the only run is not usual beside itself"


def test_a_run_that_has_ended_is_no_longer_paused() -> None:
    held: dict[str, Any] = {"paused_since": MONDAY, "paused_by": "ana@ops"}
    runs = [summary(0, RunState.RUNNING, **held).run, summary(0, RunState.ABANDONED, ended_at=MONDAY + S, **held).run]
    rows = [
        plain(screen_row(RUN_COLUMNS, ListedRun(RunSummary(run, {})), RowContext(MONDAY, UTF8), 120)) for run in runs
    ]
    assert ["ana@ops" in row for row in rows] == [True, False]


def test_a_run_is_slow_or_quick_beside_the_successes_of_its_flow() -> None:
    assert pace_of(600 * S, [200 * S] * 4) == (3.0, True, False)
    assert pace_of(20 * S, [200 * S] * 4) == (0.1, False, True)
    assert pace_of(220 * S, [200 * S] * 4) == (1.1, False, False)
    assert pace_of(600 * S, [200 * S] * 2) == (3.0, False, False), "two runs say nothing of the usual"
    assert pace_of(600 * S, []) is None


def test_a_failure_is_no_measure_of_what_is_usual() -> None:
    ends = [("SUCCESS", 100), ("FAILED", 5), ("ABANDONED", 900)]
    runs = [
        summary(number, RunState(state), ended_at=MONDAY + number * DAY + seconds * S)
        for number, (state, seconds) in enumerate(ends)
    ]
    assert usual_durations(runs[::-1]) == {"revenue": [100 * S]}
    cells = [run_cell(one.run) for one in runs]
    assert [cell.state for cell in cells] == [TaskState.SUCCESS, TaskState.FAILED, TaskState.FAILED]
    assert [is_bad(cell) for cell in cells] == [False, True, True]


def test_a_run_lasts_until_it_is_blocked_without_the_time_in_which_nobody_worked() -> None:
    blocked = summary(0, RunState.RUNNING, blocked_since=MONDAY + 300 * S, waited_us=100 * S)
    assert run_cell(blocked.run) == RunTaskRow(WHOLE_RUN, TaskState.DEAD_LETTER, 1, 200 * S)
    assert run_cell(summary(0, RunState.RUNNING).run).duration_us is None
