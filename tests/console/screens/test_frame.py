"""The frame of every screen: which run, how it stands, how old the picture is; and screens that are too small."""

from __future__ import annotations

import pytest
from redrive.console.model.session_status import Link
from redrive.console.screens.runs import RunsScreen
from redrive.console.text.pieces import plain as text_of_line
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import LinkError, SnapshotNeeded

from ..conftest import FakeSession, StillClock, emit_events, press, rows_of, settle, shown, text_of, until
from ..model.runs import START, EventBuilder, S, failed_task, projection_of


async def test_the_header_says_which_run_where_and_how_it_stands(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        top, tabs = rows_of(app)[:2]
        for fact in ("revenue", "run-2026-04-25", "local:revenue.db", "● running 2/10", "41s", "eta ", "slack 2h58"):
            assert fact in top
        assert "4 Inbox ◆1" in tabs
        assert "executor alive" in tabs
        for columns, rows in [(40, 15), (40, 10), (60, 20), (200, 60), (80, 24)]:
            await pilot.resize_terminal(columns, rows)
            await settle(app, pilot)
            assert len(rows_of(app)) == rows and max(map(len, rows_of(app))) <= columns
            assert "revenue" in rows_of(app)[0] and "? keys" in rows_of(app)[-1], "every size shows run and keys"
        assert "revenue.db" in rows_of(app)[0] and "● running 2/10" in rows_of(app)[0], "they come before the slack"


async def test_a_deadline_that_comes_near_comes_before_the_eta(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        for what, columns, said in [
            ("postponed", {"deadline_at": clock.now + 200 * S}, "slack 2m49"),
            ("postponed", {"deadline_at": clock.now - 70 * S}, "late by"),
            ("blocked", {"blocked_since": clock.now}, "◆ BLOCKED"),  # a blocked run is not called running
        ]:
            changed = revenue.builder.event("run", data={"what": what, "set": columns})
            await emit_events(app, pilot, revenue, changed)
            assert said in rows_of(app)[0]


async def test_the_age_of_a_heartbeat_is_said_from_three_seconds_on(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        for age, message in [(0.4, "alive"), (4.2, "4s ago")]:
            revenue.set_status(executor=ExecutorState(alive=True, age_us=round(age * S)))
            await pilot.resize_terminal(80, 24)
            await settle(app, pilot)
            assert rows_of(app)[1].endswith(f" {message}")
            await pilot.resize_terminal(120, 40)
            await settle(app, pilot)
            assert f"executor {message}" in rows_of(app)[1]


async def test_every_view_keeps_its_word_at_eighty_columns(revenue: FakeSession, clock: StillClock):
    """With two counts of two digits, and with what must be shown beside them."""
    words = ("1 Runs", "2 Graph", "3 Timeline", "4 Inbox", "5 Log", "6 Journal", "7 Systems")
    silent = ExecutorState(alive=True, age_us=4_200_000)
    problems = ({}, {"executor": silent}, {"executor": ExecutorState(gone_at=START)})
    for name in list(revenue.projection.tasks)[:10]:
        failed_task(revenue.projection, name)
        revenue.projection.tasks[name].bad_rows = 3
    async with shown(revenue, clock) as (app, pilot):
        for problem in problems:
            revenue.set_status(**problem)
            await settle(app, pilot)
            tabs = rows_of(app)[1]
            assert [word for word in words if word not in tabs] == []
            assert "4 Inbox ◆10" in tabs and "7 Systems ◆10" in tabs
            assert len(tabs) <= 80


async def test_an_old_picture_has_a_dashed_frame_and_no_colours(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        assert "─" in rows_of(app)[2]
        live_colours = app.palette.style("human")
        revenue.set_status(link=Link.STALE, problem="far does not answer", data_age_seconds=14.0, retry_in_seconds=3.0)
        await settle(app, pilot)
        assert "╌" in rows_of(app)[2]
        assert "stale 14s · reconnecting in 3s" in rows_of(app)[-1]
        assert app.palette.style("human") != live_colours
        revenue.set_status(link=Link.LIVE, data_age_seconds=0.0)
        await settle(app, pilot)
        assert app.palette.style("human") == live_colours


async def test_an_executor_that_has_gone_is_reported_with_what_can_be_done(revenue: FakeSession, clock: StillClock):
    revenue.set_status(executor=ExecutorState())
    async with shown(revenue, clock, (120, 40), state_path="/tmp/revenue.db") as (app, pilot):
        assert rows_of(app)[1].endswith("no executor"), "a copied state file comes without its lock"
        assert rows_of(app)[-1].startswith(" no executor runs it · R to resume here")
        revenue.set_status(executor=ExecutorState(gone_at=START))
        await settle(app, pilot)
        assert "R to resume here" in rows_of(app)[-1]
    async with shown(revenue, clock) as (app, pilot):
        assert "6 Journal" in rows_of(app)[1]
        assert rows_of(app)[1].endswith(" gone")
        assert "executor gone since 03:06:40 · resume it over there " in rows_of(app)[-1]
        assert rows_of(app)[-1].endswith("? keys")
        revenue.set_status(executor=ExecutorState(gone_at=START, stopped=True), service_pid=812)
        await settle(app, pilot)
        assert rows_of(app)[1].endswith(" served"), "a service will start it again"
        assert "redrive serve (pid 812) resumes it when a task can run" in rows_of(app)[-1]


async def test_a_clock_that_differs_is_told_and_counted_with(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        revenue.set_status(clock_offset_seconds=4.0)
        await settle(app, pilot)
        app.tick(app.live.now_us)
        await settle(app, pilot)
        assert "clock +4s" in rows_of(app)[1] and "45s" in rows_of(app)[0], "a clock that differs is counted with"
        revenue.set_status(clock_offset_seconds=0.0)
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert "6 Journal" in rows_of(app)[1]


async def test_a_countdown_that_has_passed_says_since_when_it_is_due(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        clock.now += 11 * S
        app.tick(clock.now)
        await settle(app, pilot)
        assert "due 4s ago" in text_of(app)


async def test_a_screen_that_is_too_small_says_what_it_needs(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock, (39, 9)) as (app, pilot):
        assert text_of(app).strip() == "needs 40x10, has 39x9"
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert "clean_refunds" in text_of(app)


# --- Pictures that do not come --------------------------------------------------------------------------------------


async def test_without_a_run_the_console_says_so_and_shows_the_first_that_comes(clock: StillClock):
    session = FakeSession(None)
    async with shown(session, clock) as (app, pilot):
        assert "no run has been recorded yet" in text_of(app)
        await press(app, pilot, "2", "3")
        assert "there is no run to show yet" in rows_of(app)[-1]
        session.projection = projection_of([("only", [])])
        session.builder = EventBuilder(session.projection)
        await emit_events(app, pilot, session, session.builder.event("run", data={"what": "created"}))
        await settle(app, pilot)
        assert "only" in text_of(app)
        assert app.current_mode == "timeline", "the view whose key was pressed last"


@pytest.mark.long
async def test_keys_without_an_effect_say_so(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        for keys, message in (
            (("1", "tab"), "= shows the tasks of the last runs"),
            (("2", "n", "n"), "no other task needs a human"),
            (("3", "tab"), "this screen has one pane"),
        ):
            await press(app, pilot, *keys)
            assert message in rows_of(app)[-1], keys


async def test_a_session_that_is_closed_for_good_says_why(clock: StillClock, revenue: FakeSession):
    revenue.error = LinkError("the key of far is not known here", final=True)
    async with shown(revenue, clock) as (app, _):
        assert "the key of far is not known here" in text_of(app)


async def test_a_new_picture_is_taken_when_events_no_longer_lead_to_it(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "n")
        before = app.live.board
        revenue.projection.tasks["notify"].state = revenue.projection.tasks["extract_orders"].state
        revenue.break_off(SnapshotNeeded("the file was replaced"))
        await until(app, pilot, lambda: app.live.board is not before)
        assert app.selected == "clean_refunds"
        assert any(row.startswith(" ✓") and " notify " in row for row in rows_of(app))


async def test_names_and_errors_of_tasks_reach_the_screen_as_text_only(clock: StillClock):
    hostile = "a\x1b]0;pwned\x07\x1b[2J[bold]\u202e\x9bx"
    projection = projection_of([(hostile, [])])
    projection.run = projection.run._replace(dag_name=hostile, run_id=hostile)
    session = FakeSession(projection, address=f"far:{hostile}")
    builder = session.builder
    async with shown(session, clock, (120, 40)) as (app, pilot):
        await emit_events(
            app, pilot, session, builder.start(hostile), builder.fail(hostile, "DEAD_LETTER", error=hostile)
        )
        await press(app, pilot, "i")
        text = text_of(app)
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert "[bold]" in text


async def test_a_fault_of_the_console_itself_ends_it(revenue: FakeSession, clock: StillClock):
    with pytest.raises(ZeroDivisionError):
        async with shown(revenue, clock) as (app, pilot):
            app.on_error(ZeroDivisionError("a fault"))
            await pilot.pause()
    assert app.failure is not None


@pytest.mark.long
async def test_a_click_on_a_tab_is_its_key_and_beside_the_tabs_none(revenue: FakeSession, clock: StillClock):
    async with shown(revenue, clock) as (app, pilot):

        async def click(x: int, y: int) -> str:
            await pilot.click(app.screen.header, offset=(x, y))
            await settle(app, pilot)
            return app.current_mode

        for x, y in ((79, 1), (rows_of(app)[1].index("alive"), 1), (3, 0)):
            assert await click(x, y) == "graph"
        for size in [(80, 24), (48, 16), (120, 30)]:
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            for key, view in (("4", "inbox"), ("3", "timeline"), ("2", "graph")):
                assert await click(rows_of(app)[1].index(key), 1) == view


async def test_a_second_that_passes_while_no_screen_is_there_fails_nothing(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    """The first screen is made on a slow machine, or the console ends."""
    async with shown(revenue, clock) as (app, _):
        with monkeypatch.context() as patch:
            patch.setattr(type(app), "screen_stack", property(lambda app: []))
            app.tick(clock.now)
            app.on_board_replaced(app.live.board)
        assert app.failure is None


async def test_a_run_that_arrives_while_the_views_are_closed_opens_none(
    revenue: FakeSession, clock: StillClock, monkeypatch: pytest.MonkeyPatch
):
    """The views end one after the other: the graph is gone already when that of the runs ends."""
    modes = list[str]()
    async with shown(revenue, clock) as (app, pilot):
        await press(app, pilot, "1")
        board = app.live.board

        def arrive(_: RunsScreen) -> None:
            modes.append(app.current_mode)
            app.follow(board.projection.run.run_id)
            app.on_board_replaced(board)

        monkeypatch.setattr(RunsScreen, "on_unmount", arrive, raising=False)
    assert ["runs"] == modes
    assert app.failure is None


async def test_a_state_file_that_was_deleted_locks_acts_and_is_named(revenue: FakeSession, clock: StillClock):
    revenue.set_status(link=Link.STALE, problem="there is no state file /srv/revenue.db", is_missing=True)
    async with shown(revenue, clock, (120, 40)) as (app, pilot):
        assert "stale" in rows_of(app)[1]
        await press(app, pilot, "n", "r")
        assert "there is no state file /srv/revenue.db any more: it was deleted or moved" in rows_of(app)[-1]
        assert not revenue.commands


async def test_a_failed_cause_has_a_badge_beside_that_of_dead_letters(revenue: FakeSession, clock: StillClock):
    failed_task(revenue.projection, "extract_refunds", "FAILED")
    async with shown(revenue, clock, (120, 40)) as (app, _):
        assert "4 Inbox ◆1 ✗1 " in rows_of(app)[1]


async def test_the_keys_that_act_follow_the_selected_task(revenue: FakeSession, clock: StillClock):
    """They are shown with the cursor, not at the next second."""
    tasks = revenue.projection.tasks.values()
    ended = next(row.name for row in tasks if row.state is TaskState.SUCCESS)
    pending = next(row.name for row in tasks if row.state is TaskState.PENDING)
    async with shown(revenue, clock) as (app, _):
        key_bar = app.console_screen.key_bar
        for name, has_skip in ((ended, False), (pending, True), (ended, False)):
            app.selected = name
            assert ("skip" in text_of_line(key_bar.line(0))) is has_skip
