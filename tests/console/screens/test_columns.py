"""The columns of the lists: chosen by key and by mouse, kept in a file."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.console.app.launch import UserSettings
from redrive.console.app.preferences import SettingsFileError, load_columns
from redrive.console.keys.actions import ScreenName, actions_of
from redrive.console.model.lists import COLUMNS, FLEET, ColumnChoice
from redrive.engine.domain.events import EventKind
from textual.pilot import Pilot

from ..conftest import FakeSession, StillClock, emit_events, press, rows_of, settle, shown, text_of
from ..model.runs import S
from .outages import outage
from .screen_driver import open_console, poisoned_run


def test_every_list_with_columns_has_the_key_and_no_other() -> None:
    having = {screen for screen in ScreenName if any(action.name == "columns" for action in actions_of(screen))}
    assert {screen.value for screen in having} | {FLEET} == set(COLUMNS)


async def test_a_column_is_hidden_and_shown_again_and_stored(clock: StillClock) -> None:
    async with open_console(poisoned_run(clock), clock) as driver:
        await driver.press("4")
        assert "holds 30" in driver.text and "oldest" in driver.text
        await driver.press("C")
        assert "Columns of Inbox" in driver.text and "✓ holds" in driver.text
        await driver.press("j", "j", "space")
        assert "✓ holds" not in driver.text
        await driver.press("enter")
        assert "holds 30" not in driver.text
        assert load_columns().shown_in(ScreenName.INBOX.value) == {"downstream", "message", "age"}
        await driver.press("C", "j", "j", "space", "enter")
        assert "holds 30" in driver.text
        assert UserSettings.read().columns.as_dict() == {"inbox": ["age", "downstream", "holds", "message"]}


async def test_escape_leaves_the_columns_as_they_were(clock: StillClock) -> None:
    async with open_console(poisoned_run(clock), clock) as driver:
        await driver.press("4", "C", "j", "j", "space", "escape")
        assert "holds 30" in driver.text
        assert load_columns().as_dict() == {}


async def test_columns_are_chosen_by_mouse(clock: StillClock) -> None:
    async with open_console(poisoned_run(clock), clock) as driver:
        await driver.press("4")
        await click_on(driver.app, driver.pilot, "3 causes")
        await click_on(driver.app, driver.pilot, "✓ holds")
        await click_on(driver.app, driver.pilot, "Enter takes them")
        assert "Columns of" not in driver.text and "holds 30" not in driver.text


@pytest.mark.long
async def test_each_column_can_be_hidden_at_any_width(revenue: FakeSession, clock: StillClock) -> None:
    revenue.lists["journal"] = []
    for size in ((60, 20), (80, 24), (160, 40)):
        async with shown(revenue, clock, size) as (app, pilot):
            for screen, columns in COLUMNS.items():
                if screen == FLEET:
                    continue
                await press(app, pilot, app.keymap.keys_of(f"view_{screen}")[0])
                for column in columns:
                    app.columns.choose(screen, {one.name for one in columns} - {column.name})
                    app.console_screen.columns_changed()
                    await settle(app, pilot)
                    assert all(len(row) <= size[0] for row in rows_of(app))
                app.columns.choose(screen, ())


async def test_the_rows_of_runs_lack_what_is_hidden(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "1")
        row = next(line for line in rows_of(app) if "2/10" in line and line.startswith(" ● running  revenue"))
        await press(app, pilot, "C", "space", "space", "enter")  # the bar and what is done
        without = next(line for line in rows_of(app) if line.startswith(" ● running  revenue"))
        assert "═" in row and "═" not in without and "2/10" not in without
        assert "13m20" in without or "41s" in without


async def test_the_figures_of_breakers_go_with_their_titles(clock: StillClock) -> None:
    async with shown(outage(clock), clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "7")
        assert " failed " in rows_of(app)[3] and " retries" in rows_of(app)[3]
        await press(app, pilot, "C", "space", "space", "enter")
        assert " failed " not in rows_of(app)[3] and " retries" not in rows_of(app)[3]
        assert " open " in text_of(app)


async def test_rows_of_the_graph_lack_what_is_hidden(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock, (200, 40)) as (app, pilot):
        await press(app, pilot, "2", "g", "j")
        assert find(app, "extract_payments", "2/3", "▕█████░▏") and find(app, "clean_orders", "▕██░░░░▏")
        await press(app, pilot, "C", "j", "space", "space", "enter")  # attempts and bars
        row = find(app, "clean_orders", "running")[:120]
        assert "41 %" in row and "▕" not in row and "1/3" not in row


async def test_rows_of_groups_lack_their_bars(clock: StillClock) -> None:
    async with shown(poisoned_run(clock), clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "2")
        screen: Any = app.screen
        before = screen.graph_view.line(0)
        await press(app, pilot, "C", "j", "j", "space", "enter")
        assert len(screen.graph_view.line(0)) < len(before)


async def test_labels_of_the_timeline_have_the_time_of_attempts_on_wide_screens(
    revenue: FakeSession, clock: StillClock
) -> None:
    async with shown(revenue, clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "3")
        assert "took" in rows_of(app)[3] and find(app, "extract_refunds", "   9s ")
        bars_from = app.screen.timeline.label_columns
        await press(app, pilot, "C", "j", "space", "enter")
        assert "took" not in rows_of(app)[3] and not find(app, "extract_refunds", "   9s ")
        assert app.screen.timeline.label_columns < bars_from
    async with shown(revenue, clock, (80, 24)) as (app, pilot):
        await press(app, pilot, "3")
        assert "took" not in rows_of(app)[3]


async def test_the_time_of_a_running_attempt_grows(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "3")
        before = find(app, "clean_orders")
        clock.now += 5 * S
        app.tick(clock.now)
        await settle(app, pilot)
        label = app.screen.timeline.label_columns
        assert find(app, "clean_orders")[:label] != before[:label]


async def test_order_and_columns_of_the_timeline_by_mouse(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock, (120, 30)) as (app, pilot):
        await press(app, pilot, "3")
        await click_on(app, pilot, "by start")
        assert "by longest" in rows_of(app)[3]
        await click_on(app, pilot, "took")
        assert "Columns of Timeline" in text_of(app)


async def test_the_order_of_downstreams_by_key_and_by_mouse(clock: StillClock) -> None:
    def breakers(app: Any) -> list[str]:
        return [row.key for row in app.screen.table.order if row.section == "breakers" and row.key and not row.task]

    async with shown(outage(clock), clock, (80, 24)) as (app, pilot):
        await press(app, pilot, "7")
        assert rows_of(app)[3].endswith("sort: urgency ▾") and breakers(app) == ["rates-api", "mail", "payments-api"]
        await press(app, pilot, "e")
        assert rows_of(app)[3].endswith("sort: name ▾") and breakers(app) == ["rates-api", "mail", "payments-api"]
        await click_on(app, pilot, "sort: name")
        assert rows_of(app)[3].endswith("sort: count ▾")
        await click_on(app, pilot, "sort: count")
        assert rows_of(app)[3].endswith("sort: urgency ▾")
        await click_on(app, pilot, "Breakers")
        assert "Columns of Systems" in text_of(app)


async def test_the_journal_without_its_times(revenue: FakeSession, clock: StillClock) -> None:
    async with shown(revenue, clock, (80, 24)) as (app, pilot):
        await press(app, pilot, "6")
        data = {"act": "pause", "answer": {"ok": True, "message": "paused"}}
        paused = revenue.builder.event(EventKind.OPERATOR, actor="ana@ops-1", reason="a reason", data=data)
        await emit_events(app, pilot, revenue, paused)
        assert "ana@ops-1: a reason" in text_of(app)
        await press(app, pilot, "C", "G", "space", "enter")
        assert "ana@ops-1" in text_of(app) and "a reason" not in text_of(app)


def test_a_file_of_columns_that_is_wrong_is_refused_in_one_sentence(own_config: Any) -> None:
    own_config.mkdir(parents=True)
    (own_config / "columns.toml").write_text("runs = [")
    with pytest.raises(SettingsFileError, match=r"columns\.toml cannot be read"):
        UserSettings.read()


def test_columns_that_are_unknown_are_left_out() -> None:
    choice = ColumnChoice({"runs": ["done", "colour"], "nothing": ["x"]})
    assert choice.shown_in(ScreenName.RUNS.value) == {"done"}
    assert choice.shown_in(ScreenName.HISTORY.value) == {"usual", "trend"}


def find(app: Any, name: str, *words: str) -> str:
    """The list's row of a task, if it has these words; "" if not."""
    rows = (row for row in rows_of(app)[3:] if name in row[:40])
    return next((row for row in rows if all(word in row for word in words)), "")


async def click_on(app: Any, pilot: Pilot[Any], text: str) -> None:
    rows = rows_of(app)
    y = next(place for place, row in enumerate(rows) if text in row)
    await pilot.click(offset=(rows[y].index(text), y))
    await settle(app, pilot)
