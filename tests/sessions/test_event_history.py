"""Through every door the night comes back as it was, and no more of it than was asked for (SPEC part 4, 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redrive.console.cli.events import print_replay
from redrive.console.model.replay import initial_projection
from redrive.console.sessions.address import Endpoint
from redrive.console.sessions.event_history import EventHistory
from redrive.engine.core.projection import RunProjection
from redrive.engine.domain.event_payloads import AttemptColumns, TaskColumns, TaskMoved
from redrive.engine.domain.events import Event
from redrive.engine.errors import RedriveError
from support.state_file import StateFileBuilder
from support.waiting import wait_until_async

from .conftest import OpenSession


def replay_until(projection: RunProjection, events: list[Event], seq: int) -> RunProjection:
    """From nothing, event by event."""
    then = initial_projection(projection)
    for event in events:
        if event.seq <= seq:
            then.apply(event)
    return then


async def read_events(session: Any, run_id: str) -> list[Event]:
    return list(await session.run_events(run_id, 0, 10_000))


def end(run_file: StateFileBuilder, name: str) -> None:
    """The running attempt did well."""

    def item(transaction: Any) -> None:
        ended: AttemptColumns = {"ended_at": transaction.at, "duration_us": 7, "outcome": "success"}
        transaction.change_attempt(run_file.run_id, name, 1, ended)
        columns: TaskColumns = {"ended_at": transaction.at}
        transaction.move(
            run_file.run_id,
            name,
            "RUNNING",
            "SUCCESS",
            0,
            set=columns,
            attempt=1,
            payload=TaskMoved(attempt_set=ended),
        )

    run_file.write(item)


async def test_every_moment_is_what_the_events_up_to_it_give(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.emit_idle_events(30)
    end(run_file, "task_00001")
    run_file.finish("task_00003", "FAILED", error="boom", failures=3)
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    past = EventHistory(session, projection)
    await past.load(projection.seq)
    events = await read_events(session, "night-1")
    for event in events:
        point = await past.point_at(event.seq)
        expected = replay_until(projection, events, event.seq)
        assert point.event == event
        assert (point.snapshot.projection.run, point.snapshot.projection.tasks) == (expected.run, expected.tasks)
    assert point.snapshot.projection.tasks == projection.tasks


async def test_what_comes_later_is_read_on(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    past = EventHistory(session, projection)
    await past.load(projection.seq)
    before = past.index.seq
    end(run_file, "task_00001")
    run_file.finish("task_00003")
    await past.load(run_file.head())
    assert past.index.seq == run_file.head() > before
    assert (await past.point_at(run_file.head())).snapshot.projection.tasks["task_00003"].state == "SUCCESS"
    assert (await past.point_at(before)).snapshot.projection.tasks["task_00003"].state == "PENDING"


async def test_the_run_is_read_in_windows_and_reports_how_far_it_is(
    open_session: OpenSession, run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.console.sessions.event_history.READ_EVENTS", 10)
    run_file.emit_idle_events(45)
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    progress: list[int] = []
    await EventHistory(session, projection).load(projection.seq, progress.append)
    assert progress == sorted(progress) and len(progress) >= 4 and progress[-1] <= run_file.head()


async def test_no_more_stretches_are_kept_than_there_is_room_for(
    open_session: OpenSession, run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.console.sessions.event_history.CACHED_WINDOWS_MAX", 2)
    run_file.emit_idle_events(100)
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    past = EventHistory(session, projection)
    past.index._frame_events = 10
    await past.load(projection.seq)
    for seq in range(1, past.index.seq + 1, 5):
        await past.point_at(seq)
        assert past.cached_point(seq) is not None
        assert len(past._cache) <= 2


async def test_a_run_whose_beginning_was_removed_is_refused(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.write(lambda transaction: transaction.connection.execute("DELETE FROM event WHERE seq < 5"))
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    with pytest.raises(RedriveError, match="was removed from the file"):
        await EventHistory(session, projection).load(projection.seq)
    run_file.write(lambda transaction: transaction.connection.execute("DELETE FROM event"))
    with pytest.raises(RedriveError, match="the file no longer has the events of this run"):
        await EventHistory(session, projection).load(projection.seq)


async def test_the_past_is_read_without_holding_the_log_back(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    past = EventHistory(session, projection)
    await past.load(projection.seq)
    await past.point_at(3)
    await session.duration_stats("night-1")
    run_file.emit_idle_events(20)
    checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"  # it waits for a read that goes on, and not for ever
    await wait_until_async(lambda: run_file.connection.execute(checkpoint).fetchone() == (0, 0, 0))


# --- redrive replay ------------------------------------------------------------------------------------------------


@pytest.fixture
def replay(run_file: StateFileBuilder, capsys: pytest.CaptureFixture[str]) -> Callable[[str | None], str]:
    """What ``redrive replay --at`` prints of the night."""
    run_file.close()

    def show(at: str | None) -> str:
        assert print_replay(Endpoint(str(run_file.path)), (), False, at) == 0
        return capsys.readouterr().out

    return show


def test_replay_prints_the_tasks_as_they_were_after_an_event(replay: Callable[[str | None], str]) -> None:
    assert "DEAD_LETTER" in replay(None)
    then = replay("3")
    assert "RUNNING" in then and "DEAD_LETTER" not in then and "task_00005  PENDING" in then
    states = [[line.split()[:3] for line in replay(at).splitlines()[1:]] for at in ("999999", None)]
    assert states[0] == states[1]  # the first line and the notes tell the time


def test_replay_before_the_run_says_when_it_began(replay: Callable[[str | None], str]) -> None:
    with pytest.raises(RedriveError, match=r"2001-01-01 is before run .* began: 20"):
        replay("2001-01-01")


def test_replay_refuses_what_is_no_time(replay: Callable[[str | None], str]) -> None:
    with pytest.raises(RedriveError, match="is not a time"):
        replay("noon")
