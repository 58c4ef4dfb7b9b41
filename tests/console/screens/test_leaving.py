"""Leaving the console, ending the run, and coming back to one whose executor is gone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from redrive.console.app.app import ConsoleApp, console_end, exit_lines
from redrive.console.cli.attach import code_of_console
from redrive.console.screens.dialogs import ChoiceDialog
from redrive.engine.core.flow_difference import FlowDifference
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import RunState, TaskState
from redrive.engine.errors import RedriveError
from redrive.engine.executor.resume_plan import ResumePlan
from redrive.engine.statefile.lists import NeedKind

from ..conftest import FakeSession, StillClock, emit_events, press, rows_of, settle, shown, text_of
from ..model.runs import S


def exit_code(app: ConsoleApp) -> int:
    return code_of_console(console_end(app))


async def test_a_read_only_console_quits_without_a_question(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await pilot.press("q")
        assert app.return_code == 0
        assert revenue.commands == []


async def test_leaving_a_run_that_was_started_here_asks_and_leaving_it_running_is_the_default(
    revenue: FakeSession, clock: StillClock
):
    async with shown(revenue, clock, started_here=True) as (app, pilot):
        await press(app, pilot, "ctrl+c")
        assert app.return_code is None
        assert "q leaves" in rows_of(app)[-1], "Ctrl-C ends nothing and says what does"
        await press(app, pilot, "q")
        assert isinstance(app.screen, ChoiceDialog)
        text = text_of(app)
        assert text.index("Leave it running") < text.index("Stop after the running tasks") < text.index("Stop now")
        await press(app, pilot, "escape")
        assert app.return_code is None
        assert "clean_refunds" in text_of(app)
        await press(app, pilot, "q")
        await pilot.press("enter")
        assert app.return_code == 0
        assert revenue.commands == []


async def test_where_no_task_runs_there_is_one_way_to_stop(revenue: FakeSession, clock: StillClock):
    for row in revenue.projection.tasks.values():
        row.state = TaskState.DEAD_LETTER if row.state is TaskState.RUNNING else row.state
    async with shown(revenue, clock, started_here=True) as (app, pilot):
        await press(app, pilot, "q")
        text = text_of(app)
        assert "Leave it running" in text and "no task runs now; resume goes on from there" in text
        assert "Stop now" not in text and "after the running" not in text
        await press(app, pilot, "j", "enter")
        assert [command.options for command in revenue.commands] == [{"how": "drain"}]


async def test_a_timer_may_draw_the_frame_when_the_screens_are_gone(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, _pilot):
        screen, stack = app.screen, app._screen_stacks[app.current_mode]
        screens = list(stack)
        stack.clear()
        screen.show_frame()
        stack.extend(screens)


@pytest.mark.parametrize(("moves", "how"), [(1, "drain"), (2, "now")])
async def test_stopping_waits_until_the_executor_has_gone(
    revenue: FakeSession, clock: StillClock, moves: int, how: str
):
    async with shown(revenue, clock, started_here=True) as (app, pilot):
        await press(app, pilot, "q", *["j"] * moves, "enter")
        (command,) = revenue.commands
        assert (command.act, command.options) == ("stop", {"how": how})
        assert app.return_code is None
        revenue.set_status(executor=ExecutorState())
        await pilot.pause()
        await pilot.pause()
        assert app.return_code == 0
        assert exit_code(app) == 130


async def test_a_second_q_does_not_wait_any_longer(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, started_here=True) as (app, pilot):
        await press(app, pilot, "q", "j", "enter")
        await pilot.press("q")
        assert app.return_code == 0


@pytest.mark.parametrize("started_here", [True, False])
async def test_the_exit_code_says_how_the_run_stands(revenue: FakeSession, clock: StillClock, started_here: bool):
    async with shown(revenue, clock, started_here=started_here) as (app, _):
        projection = app.live.board.projection
        for state, blocked_since, code in [
            (RunState.SUCCESS, None, 0),
            (RunState.FAILED, None, 1),
            (RunState.PARTIAL, None, 3),
            (RunState.RUNNING, 1, 3),
            (RunState.RUNNING, None, 0),
        ]:
            ended_at = None if state is RunState.RUNNING else clock.now
            projection.run = projection.run._replace(state=state, blocked_since=blocked_since, ended_at=ended_at)
            assert exit_code(app) == (code if started_here else 0)


async def test_the_last_words_say_what_waits_and_how_to_come_back(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, _):
        words = "\n".join(exit_lines(app.live.board, ALIVE, "revenue.db", ["--ssh-option=Port=22"]))
        assert "redrive attach revenue.db --ssh-option=Port=22" in words
        assert "redrive stop revenue.db --ssh-option=Port=22" in words
        assert "revenue run-2026-04-25: running, 2 of 10 done" in words
        assert "1 dead letter to decide: clean_refunds" in words
        assert "the run goes on; come back with: redrive attach revenue.db" in words
        assert "stop its executor with: redrive stop revenue.db" in words
        app.live.board.projection.run = app.live.board.projection.run._replace(blocked_since=clock.now)
        assert "the run waits for a decision; come back with: " in "\n".join(exit_lines(app.live.board, ALIVE, "r.db"))


# --- Resuming -------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Executors that were started: (state file, run)."""
    calls: list[tuple[str, str]] = []

    async def resume(path: str, run_id: str, options: Any) -> None:
        calls.append((path, run_id))

    monkeypatch.setattr("redrive.console.sessions.local.resume", resume)
    planned(monkeypatch)
    return calls


def planned(monkeypatch: pytest.MonkeyPatch, doubts: tuple[str, ...] = (), **difference: Any) -> list[bool]:
    """Let each resume have this plan; the list of those that were made: whether the code was trusted."""
    build_row: list[bool] = []

    async def plan(path: str, run_id: str, *, trusted: bool, run_again: object = ()) -> ResumePlan:
        build_row.append(trusted)
        left = () if trusted else doubts
        return ResumePlan(run_id, "/srv/revenue.py", (), left, None if left else FlowDifference(**difference))

    monkeypatch.setattr("redrive.engine.executor.resume_plan.plan_resume", plan)
    return build_row


async def test_the_question_shows_the_code_and_what_changed_in_the_flow(
    revenue: FakeSession, clock: StillClock, started: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
):
    planned(monkeypatch, added=("load_eu",), unfinished=("load",))
    lose_executor(revenue, clock)
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        await press(app, pilot, "R")
        await settle(app, pilot)
        assert "the code: /srv/revenue.py, which belongs to nobody" in text_of(app)
        assert "the flow changed: added: load_eu" in text_of(app)
        assert "removed before it finished, skipped: load" in text_of(app)


async def test_code_that_others_may_have_written_is_imported_after_a_word_only(
    revenue: FakeSession, clock: StillClock, started: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
):
    build_row = planned(monkeypatch, ("/srv/revenue.py belongs to eve",), added=("load_eu",))
    lose_executor(revenue, clock)
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        await press(app, pilot, "R")
        await settle(app, pilot)
        assert "/srv/revenue.py belongs to eve" in text_of(app) and "added" not in text_of(app)
        assert build_row == [False]
        await press(app, pilot, "a")
        await settle(app, pilot)
        assert build_row == [False, True] and "added: load_eu" in text_of(app)
        assert started == []
        await press(app, pilot, "a")
        await settle(app, pilot)
        assert len(started) == 1


def lose_executor(session: FakeSession, clock: StillClock) -> None:
    session.set_status(executor=ExecutorState(gone_at=clock.now - 60 * S))


async def test_a_requeue_starts_the_executor_that_it_needs_after_one_question(
    revenue: FakeSession, clock: StillClock, started: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
):
    planned(monkeypatch, added=("load_eu",))
    lose_executor(revenue, clock)
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        app.screen.graph_view.select("clean_refunds")
        messages: list[str] = []
        monkeypatch.setattr(app, "show_message", lambda sentence, *_: messages.append(sentence))
        await press(app, pilot, "r")
        await settle(app, pilot)
        assert messages == ["reading the flow ..."]
        assert "Then an executor starts here, with the code: /srv/revenue.py" in text_of(app)
        assert "added: load_eu" in text_of(app) and "requeue and go on" in text_of(app)
        assert (revenue.commands, started) == ([], [])
        await press(app, pilot, "a")
        await settle(app, pilot)
        assert ([command.act for command in revenue.commands], len(started)) == (["requeue"], 1)
        assert "clean_refunds requeued · an executor starts · z takes it back" in rows_of(app)[-1]
        await emit_events(app, pilot, revenue, [revenue.builder.move("clean_refunds", "PENDING")])
        assert NeedKind.LOST not in kinds_of_needs(app)  # it is about to come
        revenue.set_status(executor=ExecutorState(alive=True, age_us=300000))
        await settle(app, pilot)
        lose_executor(revenue, clock)
        await settle(app, pilot)
        assert NeedKind.LOST in kinds_of_needs(app)


def kinds_of_needs(app: ConsoleApp) -> list[NeedKind]:
    return [need.kind for need in app.needs_of_run]


async def test_r_capital_asks_before_it_starts_an_executor(
    revenue: FakeSession, clock: StillClock, started: list[tuple[str, str]]
):
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        await press(app, pilot, "R")
        assert "its executor is alive" in rows_of(app)[-1], "nothing is resumed while an executor lives"
        lose_executor(revenue, clock)
        await settle(app, pilot)
        await press(app, pilot, "R")
        assert "8 tasks of 10 are not done" in text_of(app)
        await press(app, pilot, "R", "R", "enter")
        assert started == []
        await press(app, pilot, "R", "a")
        assert started == [("/tmp/revenue.db", "run-2026-04-25")]


async def test_an_effect_that_was_running_is_not_said_to_run_again(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    row = next(row for row in revenue.projection.tasks.values() if row.state is TaskState.RUNNING)
    row.spec = structs.replace(spec_of(row), effect=True, idempotent=False)
    planned(monkeypatch)
    lose_executor(revenue, clock)
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        await press(app, pilot, "R")
        assert f"Not {row.name}, which may have happened: a human decides." in text_of(app)


async def test_an_executor_of_a_paused_run_is_said_to_start_nothing(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    revenue.projection.run = revenue.projection.run._replace(paused_since=clock.now)
    planned(monkeypatch)
    lose_executor(revenue, clock)
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        await press(app, pilot, "R")
        assert "The run is paused: it starts nothing until p unpauses it." in text_of(app)


async def test_a_far_run_is_not_resumed_from_here(revenue: FakeSession, clock: StillClock):
    lose_executor(revenue, clock)
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "R")
        assert "an executor runs beside its state file" in rows_of(app)[-1]


async def test_what_keeps_an_executor_from_starting_is_said(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    async def resume(path: str, run_id: str, options: Any) -> None:
        raise RedriveError("flow.py is gone")

    monkeypatch.setattr("redrive.console.sessions.local.resume", resume)
    planned(monkeypatch)
    lose_executor(revenue, clock)
    async with shown(revenue, clock, state_path="/tmp/revenue.db") as (app, pilot):
        await press(app, pilot, "R", "a")
        await settle(app, pilot)
        assert "flow.py is gone" in rows_of(app)[-1]
