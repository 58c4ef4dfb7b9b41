"""What running tasks use: asked for while a screen shows it, and shown in rows and details."""

from __future__ import annotations

import pytest
from redrive.engine.domain.states import TaskUsage
from redrive.engine.errors import LinkError

from ..model.runs import S
from .screen_driver import open_console

RUNNING = "clean_orders"


@pytest.fixture
def session(revenue):
    revenue.running_usage = [TaskUsage(RUNNING, 98, 340_000_000, 3, "batch \x1b[2J90 of 96")]
    return revenue


async def second(driver) -> None:
    """The clock ticks twice: the first time it is asked, the second time it is shown."""
    for _ in range(2):
        driver.app.tick(driver.app.live.now_us + S)
        await driver.settle()


async def test_the_row_and_the_details_of_a_running_task_show_what_it_uses(session, clock):
    async with open_console(session, clock, size=(170, 40)) as driver:
        driver.app.selected = RUNNING
        await second(driver)
        (row,) = [line for line in driver.lines if RUNNING in line and "1/3" in line]
        assert " cpu 98% 340 MB  batch 90 of 96" in row
        await driver.press("d")
        await second(driver)
        assert "now 98 % of a CPU, 340 MB, 3 child processes" in driver.text
        assert "wrote batch 90 of 96" in driver.text


async def test_nothing_is_asked_while_no_screen_shows_it(session, clock):
    async with open_console(session, clock) as driver:
        await second(driver)
        assert session.usage_reads
        for keys in (["4"], ["5"], ["6"], ["7"]):
            await driver.press(*keys)
            asked = session.usage_reads
            await second(driver)
            assert session.usage_reads == asked


async def test_without_a_link_nothing_is_shown(session, clock, monkeypatch):
    async with open_console(session, clock, size=(160, 40)) as driver:
        await second(driver)
        assert "340 MB" in driver.text

        async def fail():
            raise LinkError("the line is down")

        monkeypatch.setattr(session, "usage", fail)
        await second(driver)
        assert "340 MB" not in driver.text
