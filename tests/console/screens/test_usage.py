"""What running tasks use: asked for while a screen shows it, and shown in rows and details."""

from __future__ import annotations

import pytest
from redrive.engine.domain.usage import TaskUsage
from redrive.engine.errors import LinkError

from ..model.runs import S
from .nights import at_the_console

RUNNING = "clean_orders"


@pytest.fixture
def night(revenue):
    revenue.running_usage = [TaskUsage(RUNNING, 98, 340_000_000, 3, "batch \x1b[2J90 of 96")]
    return revenue


async def second(hand) -> None:
    """The clock ticks twice: the first time it is asked, the second time it is shown."""
    for _ in range(2):
        hand.app.tick(hand.app.live.now_us + S)
        await hand.settle()


async def test_the_row_and_the_details_of_a_running_task_show_what_it_uses(night, clock):
    async with at_the_console(night, clock, size=(160, 40)) as hand:
        hand.app.selected = RUNNING
        await second(hand)
        (row,) = [line for line in hand.lines if RUNNING in line and "1/3" in line]
        assert " 98% 340 MB  batch 90 of 96" in row
        await hand.press("d")
        await second(hand)
        assert "now 98 % of a CPU, 340 MB, 3 child processes" in hand.text
        assert "wrote batch 90 of 96" in hand.text


async def test_nothing_is_asked_while_no_screen_shows_it(night, clock):
    async with at_the_console(night, clock) as hand:
        await second(hand)
        assert night.usage_reads
        for keys in (["4"], ["5"], ["6"], ["7"]):
            await hand.press(*keys)
            asked = night.usage_reads
            await second(hand)
            assert night.usage_reads == asked


async def test_without_a_link_nothing_is_shown(night, clock, monkeypatch):
    async with at_the_console(night, clock, size=(160, 40)) as hand:
        await second(hand)
        assert "340 MB" in hand.text

        async def fail():
            raise LinkError("the line is down")

        monkeypatch.setattr(night, "usage", fail)
        await second(hand)
        assert "340 MB" not in hand.text
