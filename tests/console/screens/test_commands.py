"""Help, palette, themes, copying, the list of runs: what keys do that changes no run."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from redrive.console.app import theme
from redrive.console.app.app import ConsoleApp
from redrive.console.keys.actions import VIEWS, ScreenName, actions_of
from redrive.console.keys.keymap import key_label, keys_of
from redrive.console.screens.dialogs import ChoiceOption, CommandPalette, matching
from redrive.console.terminal.capabilities import Colours, TerminalCapabilities
from redrive.console.text.pieces import Piece, Role, plain, width
from redrive.engine.domain.rows import RunRow, RunSummary
from redrive.engine.domain.states import RunState
from redrive.engine.errors import StateFileError
from textual.pilot import Pilot

from ..conftest import FakeSession, StillClock, emit_events, make_app, press, rows_of, settle, shown, text_of
from ..model.runs import START, S

# --- Help and palette -----------------------------------------------------------------------------------------------


async def test_help_lists_the_keys_of_this_screen_and_no_others(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (100, 100)) as (app, pilot):
        await press(app, pilot, "question_mark")
        text = text_of(app)
        assert "Run again in 5s, unless taken back" in text
        assert "One step more detail" in text
        assert "Fold long lines" not in text
        await press(app, pilot, "escape")
        assert "clean_refunds" in text_of(app)


@pytest.mark.long
async def test_help_says_what_each_key_of_a_screen_does(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (100, 40)) as (app, pilot):
        for screen in VIEWS:
            app.open_view(screen)
            await settle(app, pilot)
            actions = app.commands._available()
            await press(app, pilot, "question_mark")
            text = " ".join(" ".join(map(plain, app.screen.view.lines)).split())
            for action in actions:
                keys = " ".join(key_label(key) for key in keys_of(action.name))
                assert not keys or f"{keys} {action.name.replace('_', ' ')}: {action.help}" in text, screen
            await press(app, pilot, "escape")


async def test_every_key_that_help_shows_works_here(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, _):
        possible = {action.name for action in app.commands._available()}
        expected = {action.name for action in actions_of(ScreenName.GRAPH)} - {"step_back", "step_forward"}
        assert expected <= possible


@pytest.mark.long
async def test_help_can_be_searched_and_says_how_much_is_below(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "question_mark")
        hidden = len(app.screen.view.lines) - app.screen.view.span[1]
        assert hidden > 0 and f"{hidden} more below" in text_of(app)
        await press(app, pilot, "end")
        assert "more below" not in text_of(app)
        await press(app, pilot, "slash", *"undo take", "enter")
        assert "Run again" not in text_of(app)
        for word in ("requeue", "skip", "undo", "pause"):
            await close_all(app, pilot)
            await press(app, pilot, "question_mark", "slash", *word, "enter")
            assert f"{word}:" in text_of(app)


async def close_all(app: ConsoleApp, pilot: Pilot[object]) -> None:
    """Close what is open over the view."""
    while len(app.screen_stack) > 1:
        await press(app, pilot, "escape")


@pytest.mark.long
async def test_help_is_wrapped_again_when_the_terminal_changes_its_size(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        await press(app, pilot, "question_mark")
        wide = [plain(line) for line in app.screen.view.lines]
        await pilot.resize_terminal(50, 30)
        await settle(app, pilot)
        narrow = [plain(line) for line in app.screen.view.lines]
        assert max(len(line.rstrip()) for line in narrow) <= 45 < max(map(len, wide))
        assert "".join("".join(narrow).split()) == "".join("".join(wide).split())
        await pilot.resize_terminal(120, 40)
        await settle(app, pilot)
        assert [plain(line) for line in app.screen.view.lines] == wide


async def test_at_eighty_columns_the_palette_says_what_each_command_does(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "colon")
        entries = [app.screen._entries[value] for value in app.screen.table.order]
        told = [plain(app.screen._row(entry.value, 80)) for entry in entries]
        cut = [row for entry, row in zip(entries, told, strict=True) if entry.help not in row]
        assert len(cut) < len(told) / 10 and all(width([Piece(row)]) <= 80 for row in told), cut


async def test_the_palette_runs_a_command_by_its_name_and_nothing_else(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):

        async def enter(*keys: str) -> None:
            await close_all(app, pilot)
            await press(app, pilot, "colon", *keys)

        for text, found in [("rque", "requeue"), ("vwinb", "view inbox"), ("requeue", "requeue")]:
            await enter(*text)  # letters of a name in their order
            assert found in [app.screen._entries[value].label for value in app.screen.table.order]
        await enter(*"view", "down", "down")
        assert app.screen.table.cursor == 2
        await press(app, pilot, "up")
        assert app.screen.table.cursor == 1
        await close_all(app, pilot)
        await press(app, pilot, "n", "ctrl+p", *"xyzzy", "enter")
        assert "no command has this name" in text_of(app)
        assert isinstance(app.screen, CommandPalette)
        await enter(*"requeue --param factor=5", "enter")
        assert "options are for the shell: redrive requeue --help" in text_of(app)
        await enter()
        app.screen.prompt.insert("requeue\nskip\n")  # a paste
        await pilot.pause()
        assert revenue.commands == []
        await enter(*"requeue", "enter")
        assert [command.act for command in revenue.commands] == ["requeue"]


async def test_colon_q_leaves(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "colon", "q")
        await pilot.press("enter")
        await pilot.pause()
        await pilot.pause()
        assert app.return_code == 0


def test_the_exact_name_comes_before_what_only_mentions_it():
    entries = [
        ChoiceOption("a", "stop run", "end it"),
        ChoiceOption("b", "stop", "stop it"),
        ChoiceOption("c", "undo", "the last stop"),
    ]
    assert [entry.value for entry in matching(entries, "stop")] == ["b", "a", "c"]


# --- Themes ---------------------------------------------------------------------------------------------------------


async def test_a_theme_is_used_at_once_and_stored(revenue: FakeSession, clock: StillClock, own_config: Path):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "colon", *"theme high", "enter")
        assert app.palette.style(Role.TEXT).bgcolor.name == "#000000"
        assert "theme high-contrast" in rows_of(app)[-1]
    assert theme.initial_theme_name() == "high-contrast"


async def test_without_colours_every_theme_marks_by_reverse_video(revenue: FakeSession, clock: StillClock):
    app = make_app(revenue, clock, TerminalCapabilities(colours=Colours.NONE))
    async with app.run_test() as pilot:
        app.use_theme(theme.load_theme("dark"))
        await pilot.pause()
        assert app.palette.style(Role.HUMAN).reverse


# --- Copying --------------------------------------------------------------------------------------------------------


async def test_y_copies_an_error_a_command_line_or_a_summary(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    copied: list[str] = []
    async with shown(revenue, clock) as (app, pilot):
        monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
        await press(app, pilot, "n")
        for moves, expected in enumerate(
            [
                "division by zero",
                "redrive requeue local:revenue.db@run-2026-04-25 --reason 'after a fix' -- clean_refunds",
                "- 1 x `ZeroDivisionError settle.py:87 in settle`: `clean_refunds`; holds 3 tasks",
            ]
        ):
            await press(app, pilot, "y", *["j"] * moves, "enter")
            assert expected in copied[-1]
            assert "clipboard" in rows_of(app)[-1]


async def test_what_has_no_room_among_the_texts_to_copy_is_cut_with_a_sign(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, size=(80, 24)) as (app, pilot):
        await press(app, pilot, "n", "y")
        (row,) = [row for row in rows_of(app) if "redrive requeue" in row]
        assert row.split("│")[1].rstrip().endswith("…")


async def test_y_in_the_inbox_copies_the_task_under_the_cursor(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    copied = []
    async with shown(revenue, clock) as (app, pilot):
        monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
        await press(app, pilot, "4", "g")
        app.selected = "extract_orders"  # as another screen left it
        await press(app, pilot, "y", "enter")
        assert copied == ["division by zero"]


# --- Runs -----------------------------------------------------------------------------------------------------------


async def test_the_list_of_runs_distinguishes_them_and_opens_one(revenue: FakeSession, clock: StillClock):
    old = RunRow("run-2026-04-24", "revenue", START - 86400 * S, START - 82800 * S, RunState.FAILED)
    revenue.summaries = [
        RunSummary(revenue.projection.run, {"SUCCESS": 2, "DEAD_LETTER": 1}),
        RunSummary(old, {"SUCCESS": 8, "FAILED": 2}),
    ]
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        await press(app, pilot, "1")
        heading = rows_of(app)[3]
        now, before = (
            next(row for row in rows_of(app)[4:] if row.startswith(f" run-2026-04-{day}")) for day in (25, 24)
        )
        assert heading.startswith(" 2 runs · 2 need a human")
        assert "● running" in now
        assert "2/10" in now
        assert "◆1" in now
        assert "✗ FAILED" in before
        assert "8/10" in before
        assert "1h00" in before
        await press(app, pilot, "enter")
        assert "extract_orders" in text_of(app)


async def test_the_run_that_is_followed_is_counted_live(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (120, 24)) as (app, pilot):
        await press(app, pilot, "1")
        assert "2/10" in rows_of(app)[5]
        await emit_events(app, pilot, revenue, revenue.builder.succeed("clean_orders"))
        assert "3/10" in rows_of(app)[5]


async def test_runs_are_filtered_and_sorted(revenue: FakeSession, clock: StillClock):
    runs = [RunRow(f"run-{n}", "etl", START - n * S, None, RunState.RUNNING, START) for n in range(3)]
    runs[0] = runs[0]._replace(ended_at=START, state=RunState.SUCCESS)
    revenue.summaries = [
        RunSummary(run, {"SUCCESS": 1, "DEAD_LETTER": dead}) for run, dead in zip(runs, (0, 5, 1), strict=True)
    ]
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "1", "e")
        assert "sort: needs a human" in rows_of(app)[3]
        assert ["run-1" in rows_of(app)[5], "run-2" in rows_of(app)[6]] == [True, True]
        await press(app, pilot, "slash", *"run-2", "enter")
        assert "/run-2: 1" in rows_of(app)[3]
        assert "run-2" in rows_of(app)[5]
        assert "run-1" not in text_of(app)


async def test_n_goes_to_the_next_run_that_needs_a_human(revenue: FakeSession, clock: StillClock):
    revenue.summaries = [
        RunSummary(RunRow(f"night-{number}", "revenue", START, START, RunState(state)), {"SUCCESS": 1})
        for number, state in enumerate(("SUCCESS", "FAILED", "SUCCESS", "PARTIAL"))
    ]
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "1")
        assert app.screen.table.cursor_key == "night-1"
        await press(app, pilot, "n")
        assert app.screen.table.cursor_key == "night-3"
        revenue.summaries = revenue.summaries[:1]
        await press(app, pilot, "ctrl+l", "n")
        assert "no other run needs a human" in rows_of(app)[-1]


async def test_a_list_of_runs_that_cannot_be_read_says_why(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        revenue.error = StateFileError("revenue.db is damaged")
        await press(app, pilot, "1")
        assert "revenue.db is damaged" in rows_of(app)[-1]


async def test_above_the_list_of_runs_stands_what_comes_next_and_beside_a_run_by_how_much_it_is_late(
    revenue: FakeSession, clock: StillClock
):
    """003.35."""
    late = RunRow("run-1", "revenue", START - 60 * S, START, RunState.SUCCESS, deadline_at=START - 30 * S)
    revenue.summaries = [RunSummary(late, {"SUCCESS": 1})]
    due = datetime.fromtimestamp(clock.now / S, timezone(timedelta(hours=5, minutes=30))) + timedelta(
        hours=3, minutes=12
    )
    answer = {
        "expression": "0 2 * * *",
        "timezone": "Asia/Kolkata",
        "next_local": due.isoformat(),
        "next_at": clock.now + 11_520 * S,
    }
    revenue.lists["schedules"] = [{"dag_name": "revenue", **answer}]
    revenue.set_status(service_pid=8)
    async with shown(revenue, clock, (120, 24)) as (app, pilot):
        await press(app, pilot, "1")
        heading, _, listed = rows_of(app)[3:6]
        assert "next " in heading and "11:49 Asia/Kolkata), in 3h12" in heading
        assert "late 30s" in listed
