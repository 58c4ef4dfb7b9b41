"""What the labels of the timeline have room for."""

from __future__ import annotations

from typing import Any

import pytest

from ..conftest import FakeSession, StillClock, press, rows_of, settle, shown
from ..model.runs import S


@pytest.mark.long
async def test_labels_of_the_timeline_have_the_time_of_attempts_on_wide_screens(
    revenue: FakeSession, clock: StillClock
) -> None:
    async with shown(revenue, clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "3")
        assert " took " in rows_of(app)[3] and find(app, "extract_refunds", "   9s ")
    async with shown(revenue, clock, (80, 24)) as (app, pilot):
        await press(app, pilot, "3")
        assert " took " not in rows_of(app)[3]


async def test_the_time_of_a_running_attempt_grows(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "3")
        before = find(app, "clean_orders")
        clock.now += 5 * S
        app.tick(clock.now)
        await settle(app, pilot)
        label = app.screen.timeline.label_columns
        assert find(app, "clean_orders")[:label] != before[:label]


def find(app: Any, name: str, *words: str) -> str:
    """The list's row of a task, if it has these words; "" if not."""
    rows = (row for row in rows_of(app)[3:] if name in row[:40])
    return next((row for row in rows if all(word in row for word in words)), "")
