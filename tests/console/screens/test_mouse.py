"""The mouse: hints of the footer are keys, a click on the order changes it."""

from __future__ import annotations

from typing import Any

from redrive.console.keys.actions import ACTIONS
from redrive.console.keys.keymap import key_label, key_name, key_of_label
from textual.pilot import Pilot

from ..conftest import FakeSession, StillClock, rows_of, settle, shown


def test_every_label_leads_back_to_its_key() -> None:
    keys = {key_name(key) for action in ACTIONS for key in action.keys}
    assert {key_of_label(key_label(key)) for key in keys} == keys


async def test_a_click_on_a_hint_presses_its_key_and_one_between_hints_nothing(
    revenue: FakeSession, clock: StillClock
) -> None:
    async with shown(revenue, clock) as (app, pilot):
        before = rows_of(app)
        await pilot.click(app.screen.key_bar, offset=(0, 0))
        await settle(app, pilot)
        assert rows_of(app) == before and not revenue.commands
        await click_on(app, pilot, "? keys")
        assert "The keys that work here, and the signs" in "\n".join(rows_of(app))


async def test_a_click_on_the_order_changes_it(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock) as (app, pilot):
        await pilot.press("1")
        await settle(app, pilot)
        assert "sort: latest" in rows_of(app)[3]
        await click_on(app, pilot, "sort: latest")
        assert "sort: needs a human" in rows_of(app)[3]


async def click_on(app: Any, pilot: Pilot[Any], text: str) -> None:
    rows = rows_of(app)
    y = max(place for place, row in enumerate(rows) if text in row)
    await pilot.click(offset=(rows[y].index(text), y))
    await settle(app, pilot)
