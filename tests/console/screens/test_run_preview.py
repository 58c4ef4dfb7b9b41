"""The run under the cursor of the list of runs, in the rows that the list leaves free."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from redrive.console.screens.runs import TASKS_MAX
from redrive.engine.core.projection import RunProjection, RunRow, RunSummary, Successes
from redrive.engine.domain.states import RunState
from redrive.engine.errors import RefusedError

from ..conftest import FakeSession, StillClock
from ..model.runs import START, S, failed_task, projection_of
from .screen_driver import ScreenDriver, open_console


class TwoRuns(FakeSession):
    """The run of the pictures, and one before it that failed; ``reads`` are the runs that were read."""

    other: RunProjection
    reads: list[str | None]

    async def snapshot(
        self, run_id: str | None = None, patience_seconds: float | None = None, *, successes: Successes = "all"
    ) -> RunProjection:
        self.reads.append(run_id)
        self._raise()
        return self.other if run_id == "night-1" else await super().snapshot(run_id, patience_seconds)


@pytest.fixture
def runs(revenue: FakeSession) -> TwoRuns:
    revenue.__class__ = TwoRuns
    assert isinstance(revenue, TwoRuns)
    revenue.reads = []
    revenue.other = projection_of([("load", []), ("report", ["load"])])
    revenue.other.run.run_id = "night-1"
    failed_task(revenue.other, "load", "FAILED", "KeyError")
    revenue.projection.run.params = json.dumps({"day": "2026-04-25", "limit": 100, "note": "\x1b[2Jx"})
    own = RunSummary(revenue.projection.run, {"RUNNING": 10})
    before = RunRow("night-1", "revenue", START - 3600 * S, state=RunState.FAILED, ended_at=START - 60 * S)
    revenue.summaries = [own, RunSummary(before, {"FAILED": 1, "UPSTREAM_FAILED": 1})]
    return revenue


def below_the_list(driver: ScreenDriver) -> list[str]:
    return driver.lines[-1 - driver.app.screen.preview.row_count : -1]


async def test_what_needs_a_human_comes_first_under_the_parameters(runs: TwoRuns, clock: StillClock) -> None:
    async with open_console(runs, clock, "1") as driver:
        heading, first, second, *_ = below_the_list(driver)
        assert heading == " revenue · run-2026-04-25  day=2026-04-25  limit=100  note=␛[2Jx"
        assert first.split()[:4] == ["◆", "clean_refunds", "2/3", "DEAD"]
        assert second.split()[:4] == ["●", "clean_orders", "1/3", "running"]
        assert not any("aggregate_revenue" in line for line in below_the_list(driver))  # it only waits
        clock.now += 5 * S
        driver.app.tick(clock.now)
        await driver.settle()
        assert "34s" in below_the_list(driver)[2]


async def test_another_run_is_read_when_the_cursor_rests_on_it(runs: TwoRuns, clock: StillClock) -> None:
    async with open_console(runs, clock, "1") as driver:
        runs.reads.clear()
        await driver.press("j")
        heading, first, *rest = below_the_list(driver)
        assert (heading.split()[2], first.split()[1:4], rest) == ("night-1", ["load", "1/3", "failed"], [])
        await driver.press("k", "j")
        assert runs.reads == ["night-1"]


async def test_a_large_run_and_one_that_cannot_be_read_have_no_rows(runs: TwoRuns, clock: StillClock) -> None:
    assert runs.summaries is not None
    own, other = runs.summaries
    runs.summaries = [own, replace(other, counts={"SUCCESS": TASKS_MAX + 1})]
    async with open_console(runs, clock, "1", "j") as driver:
        assert driver.app.screen.preview.row_count == 0
    runs.summaries = [own, other]
    async with open_console(runs, clock, "1") as driver:
        runs.error = RefusedError("gone")
        await driver.press("j")
        assert not any(line.strip() for line in below_the_list(driver))


async def test_a_long_list_leaves_no_row_on_a_small_screen_and_some_on_a_tall_one(
    runs: TwoRuns, clock: StillClock
) -> None:
    assert runs.summaries is not None
    many = [RunRow(f"night-{number}", "revenue", START, state=RunState.FAILED, ended_at=START) for number in range(60)]
    runs.summaries = [runs.summaries[0], *(RunSummary(run, {"FAILED": 2}) for run in many)]
    for size, rows in (((80, 24), 0), ((120, 40), 7)):
        async with open_console(runs, clock, "1", size=size) as driver:
            assert driver.app.screen.preview.row_count == rows
