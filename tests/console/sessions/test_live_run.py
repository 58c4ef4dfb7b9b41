"""The pump: events reach the board once, in few paints, and errors reach whoever can say them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace
from redrive.console.model.board import Board, BoardUpdate
from redrive.console.model.replay import initial_projection
from redrive.console.model.snapshot import RunSnapshot
from redrive.console.sessions import live_run
from redrive.console.sessions.live_run import FLUSH_SECONDS, PENDING_EVENTS_MAX, LiveRun
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.core.spec import map_task
from redrive.engine.domain.event_payloads import TaskMapped
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import LinkError, NotFoundError, SnapshotNeeded, StateFileError
from redrive.engine.statefile.durations import DurationStats
from support.waiting import LIMIT_SECONDS

from ..conftest import FakeSession, StillClock
from ..model.runs import START, S, projection_of


class Watcher:
    """Writes down what it was told."""

    def __init__(self) -> None:
        self.boards: list[Board] = []
        self.news: list[BoardUpdate] = []
        self.ticks: list[int] = []
        self.signs = 0
        self.errors: list[Exception] = []
        self.gone: list[str] = []
        self.on_take: Callable[[], None] = lambda: None

    def on_board_replaced(self, board: Board) -> None:
        self.boards.append(board)

    def on_board_update(self, update: BoardUpdate) -> None:
        self.on_take()
        self.news.append(update)

    def tick(self, now_us: int) -> None:
        self.ticks.append(now_us)

    def on_status(self) -> None:
        self.signs += 1

    def on_run_gone(self, sentence: str) -> None:
        self.gone.append(sentence)

    def on_error(self, error: Exception) -> None:
        self.errors.append(error)


async def until(met: Callable[[], object]) -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not met():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


@pytest.fixture
async def watcher() -> Watcher:
    return Watcher()


def following(session: FakeSession, clock: StillClock, watcher: Watcher) -> LiveRun:
    live = LiveRun(session, clock, watcher)
    live.follow(None)
    return live


async def test_events_of_a_moment_come_as_one_paint(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    builder, began = revenue.builder, time.monotonic()
    revenue.emit(builder.succeed("clean_orders"))
    await until(lambda: watcher.news)
    for _ in range(50):
        revenue.emit(builder.event(EventKind.ATTEMPT_SWEPT, "extract_payments"))
        await asyncio.sleep(0)
    revenue.emit(builder.start("extract_payments"))
    await until(lambda: live.board.row("extract_payments").state is TaskState.RUNNING)
    assert len(watcher.news) <= 3 + (time.monotonic() - began) / FLUSH_SECONDS, "the machine may have stopped meanwhile"
    assert sum(len(news.events) for news in watcher.news) == 53
    live.close()


async def test_the_board_is_what_was_painted_last_and_nothing_newer(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    revenue.emit(revenue.builder.event(EventKind.ATTEMPT_SWEPT))
    await until(lambda: watcher.news)
    painted = len(watcher.news)
    revenue.emit(revenue.builder.succeed("clean_orders"))
    await asyncio.sleep(0.02)  # the event has come, and may wait for the next paint
    if len(watcher.news) == painted:
        assert live.board.row("clean_orders").state is TaskState.RUNNING
    await until(lambda: len(watcher.news) > painted)
    assert live.board.row("clean_orders").state is TaskState.SUCCESS
    live.close()


async def test_a_flood_is_applied_before_it_piles_up(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    builder = revenue.builder
    revenue.emit([builder.event(EventKind.ATTEMPT_SWEPT) for _ in range(2 * PENDING_EVENTS_MAX)])
    await until(lambda: sum(len(news.events) for news in watcher.news) == 2 * PENDING_EVENTS_MAX)
    assert live._pending == []
    live.close()


async def test_a_new_picture_is_of_the_same_run(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    revenue.break_off(SnapshotNeeded("cut back"))
    await until(lambda: len(watcher.boards) == 2)
    assert watcher.boards[1].dag is watcher.boards[0].dag
    live.close()


async def test_a_session_that_fails_is_tried_again_and_says_why(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    revenue.error = StateFileError("the disk does not answer")
    live = following(revenue, clock, watcher)
    await until(lambda: live.error_message)
    assert live.error_message == "the disk does not answer"
    revenue.error = None
    await until(lambda: watcher.boards)
    assert live.error_message is None
    live.close()


async def test_a_session_that_is_closed_for_good_is_left_alone(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    revenue.error = LinkError("not let in", final=True)
    live = following(revenue, clock, watcher)
    await until(lambda: live._follow_task.done())
    assert live.error_message == "not let in"
    assert watcher.errors == []
    live.close()


async def test_a_fault_of_our_own_is_not_swallowed(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)

    def break_down() -> None:
        raise ZeroDivisionError

    watcher.on_take = break_down
    revenue.emit(revenue.builder.event(EventKind.ATTEMPT_SWEPT))
    await until(lambda: watcher.errors)
    assert isinstance(watcher.errors[0], ZeroDivisionError)
    live.close()


async def test_seconds_are_reported_at_whole_seconds_of_the_clock_over_there(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    clock.now += 950_000
    revenue.set_status(clock_offset_seconds=2.0)
    live = following(revenue, clock, watcher)
    assert live.now_us == clock.now + 2 * S
    await until(lambda: watcher.ticks)
    live.close()


async def test_an_empty_batch_is_a_sign_of_life(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    before = watcher.signs
    revenue.set_status(executor=ExecutorState())
    await until(lambda: watcher.signs > before)
    assert not live.status.executor.alive
    live.close()


async def test_an_executor_is_gone_once_what_it_wrote_last_is_known(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    revenue.status = replace(revenue.status, executor=ExecutorState())
    revenue.emit(revenue.builder.start("notify"))
    await until(lambda: watcher.news)
    live.reload()
    await until(lambda: len(watcher.boards) == 2)
    assert live.status.executor.alive
    revenue.emit()
    await until(lambda: not live.status.executor.alive)
    live.close()


# --- What earlier runs say -------------------------------------------------------------------------------------------

EARLIER = {
    "extract_payments": DurationStats(60 * S, 90 * S, 9),
    "aggregate_revenue": DurationStats(600 * S, 700 * S, 9),
}


async def test_earlier_runs_report_when_a_run_will_be_done_before_anything_of_it_is(
    clock: StillClock, watcher: Watcher
):
    session = FakeSession(projection_of([("extract_payments", []), ("aggregate_revenue", ["extract_payments"])]))
    session.durations = EARLIER
    live = following(session, clock, watcher)
    await until(lambda: live.forecast)
    assert live.forecast.left.low_us == 660 * S
    assert live.board.duration_stats == EARLIER and watcher.signs
    live.close()


async def test_the_end_of_a_large_run_is_estimated_after_its_screens_have_started(
    clock: StillClock, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live_run, "LARGE_TASKS", 1)
    monkeypatch.setattr(live_run, "LARGE_DELAY_SECONDS", 1e9)
    session = FakeSession(projection_of([("extract_payments", []), ("aggregate_revenue", ["extract_payments"])]))
    session.durations = EARLIER
    live = following(session, clock, watcher)
    await until(lambda: live.board is not None and live.board.duration_stats)
    assert live.forecast is None
    monkeypatch.setattr(live_run, "LARGE_DELAY_SECONDS", 0)
    live.reload()
    await until(lambda: live.forecast)
    live.close()


async def test_earlier_runs_are_asked_once_for_each_run_and_again_where_they_could_not_be(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    asked = []

    async def duration_stats(run_id: str) -> Mapping[str, DurationStats]:
        asked.append(run_id)
        if len(asked) == 1:
            raise LinkError("no answer")
        return EARLIER

    revenue.duration_stats = duration_stats  # type: ignore[method-assign]
    live = following(revenue, clock, watcher)
    await until(lambda: asked)
    for count in (2, 3, 4):
        revenue.break_off(SnapshotNeeded("once more"))
        await until(lambda count=count: len(watcher.boards) == count and live.board.duration_stats)  # type: ignore[misc]
    assert len(asked) == 2
    live.close()


# --- The past --------------------------------------------------------------------------------------------------------


async def test_events_that_come_while_the_past_is_shown_change_the_present_alone(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    board, head = live.board, live.latest_seq
    live.seek(RunSnapshot(initial_projection(board.projection), is_past=True), START)
    assert live.is_past and live.now_us == START and watcher.ticks[-1] == START
    assert board.row("clean_orders").state is TaskState.PENDING and len(watcher.news[-1].delta.tasks) == 6
    revenue.emit(revenue.builder.succeed("clean_orders"))
    await until(lambda: live.latest_seq > head)
    assert board.row("clean_orders").state is TaskState.PENDING
    assert watcher.news[-1].events and not watcher.news[-1].delta
    live.seek_present()
    assert board.row("clean_orders").state is TaskState.SUCCESS
    assert not live.is_past and live.now_us == clock.now == watcher.ticks[-1]
    live.close()


async def test_time_that_passes_in_a_moment_turns_nothing(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    moment = RunSnapshot(initial_projection(live.board.projection), is_past=True)
    live.seek(moment, START)
    count = len(watcher.news)
    live.seek(moment, START + S)
    assert len(watcher.news) == count and watcher.ticks[-1] == START + S
    live.close()


async def test_a_console_that_is_left_in_the_past_ends_with_the_present(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    """The last words and the exit code are read from the board."""
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    finished = live.board.finished
    live.seek(RunSnapshot(initial_projection(live.board.projection), is_past=True), START)
    assert live.board.finished == 0
    live.close()
    assert live.board.finished == finished == 2


async def test_added_tasks_give_every_screen_the_board_again(revenue: FakeSession, clock: StillClock, watcher: Watcher):
    live = following(revenue, clock, watcher)
    await until(lambda: watcher.boards)
    row = live.board.row("clean_orders")
    row.spec = map_task(spec_of(row), spec_of(row).parents[0], 10)
    revenue.emit(
        [
            revenue.builder.event(
                "task.mapped", "clean_orders", payload=TaskMapped(2, ["clean_orders[0]", "clean_orders[1]"])
            )
        ]
    )
    await until(lambda: watcher.news)
    assert watcher.boards == [live.board, live.board]
    assert len(watcher.news[0].events) == 1, "the journal gets the event as well"
    assert "clean_orders[1]" in live.board.dag
    live.close()


# --- Another file in the place of the open one ------------------------------------------------------------------------


class Moved(FakeSession):
    """Its file was replaced by one without the run that was shown: of another run, or of none."""

    def __init__(self, session: FakeSession, other: FakeSession | None) -> None:
        super().__init__(session.projection)
        self.other = other
        self.is_moved = False
        self.snapshots = 0

    def move(self) -> None:
        self.is_moved = True
        self.break_off(SnapshotNeeded("another state file is in the place of x.db"))

    async def snapshot(self, run_id=None, patience_seconds=None, *, successes="all"):
        self.snapshots += 1
        if not self.is_moved:
            return self.projection
        if self.other is None or run_id not in (None, self.other.projection.run.run_id):
            raise NotFoundError(f"no run {run_id} in x.db")
        return self.other.projection

    async def events(self, since):
        if self.is_moved and self.other is None:
            raise SnapshotNeeded("another state file is in the place of x.db")
        async for batch in super().events(since):
            yield batch


async def test_a_run_that_is_gone_gives_way_to_the_latest_one_and_that_is_said(
    revenue: FakeSession, clock: StillClock, watcher: Watcher
):
    other = FakeSession(projection_of([("a", [])]))
    session = Moved(revenue, other)
    live = following(session, clock, watcher)
    await until(lambda: watcher.boards)
    session.move()
    await until(lambda: watcher.gone)
    assert live.board is not None and live.board.projection.run.run_id == other.projection.run.run_id
    assert watcher.gone == [
        "another state file is in the place of x.db: run run-2026-04-25 is not in it any more; this is its latest run"
    ]
    assert live.status.connection_problem is None
    live.close()


async def test_a_file_without_a_run_locks_the_screen_and_is_asked_once_a_second(
    revenue: FakeSession, clock: StillClock, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live_run, "RETRY_SECONDS", 3600.0)
    monkeypatch.setattr(live_run, "FLUSH_SECONDS", 0.0)
    session = Moved(revenue, None)
    live = following(session, clock, watcher)
    await until(lambda: watcher.boards)
    session.move()
    await until(lambda: live.status.is_stale)
    assert "run run-2026-04-25 is not in it any more" in str(live.status.problem)
    clock.now += 9 * S
    await until(lambda: session.snapshots > 4)
    asked = session.snapshots
    for _ in range(200):
        await asyncio.sleep(0)
    assert session.snapshots == asked  # it waits
    live._update_status()
    assert live.status.data_age_seconds == 9.0
    live.close()
