"""Through every door the night comes back as it was, and no more of it than was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redrive.console.cli import listings
from redrive.console.feed import event_reader
from redrive.console.feed.event_reader import Night
from redrive.console.model.replay import blank
from redrive.engine.core.projection import RunFold
from redrive.engine.domain.event_payloads import TaskMoved
from redrive.engine.domain.events import Event
from redrive.engine.errors import RedriveError


def fold_until(fold: RunFold, events: list[Event], seq: int) -> RunFold:
    """From nothing, event by event."""
    then = blank(fold)
    for event in events:
        if event.seq <= seq:
            then.apply(event)
    return then


async def told(session: Any, run_id: str) -> list[Event]:
    return list(await session.past(run_id, 0, 10_000))


def end(night: Any, name: str) -> None:
    """The running attempt did well."""

    def item(journal: Any) -> None:
        ended = {"ended_at": journal.at, "duration_us": 7, "outcome": "success"}
        journal.change_attempt(night.run_id, name, 1, ended)
        columns = {"ended_at": journal.at}
        journal.move(
            night.run_id, name, "RUNNING", "SUCCESS", 0, set=columns, attempt=1, payload=TaskMoved(attempt_set=ended)
        )

    night.write(item)


async def test_every_moment_is_what_the_events_up_to_it_give(door: Any, night: Any) -> None:
    night.tell(30)
    end(night, "task_00001")
    night.finish("task_00003", "FAILED", error="boom", failures=3)
    session = await door(night.path)
    fold = await session.snapshot()
    past = Night(session, fold)
    await past.read(fold.seq)
    events = await told(session, "night-1")
    for event in events:
        sight = await past.sight(event.seq)
        expected = fold_until(fold, events, event.seq)
        assert sight.event == event
        assert (sight.moment.fold.run, sight.moment.fold.tasks) == (expected.run, expected.tasks)
    assert without_tokens(sight.moment.fold.tasks) == without_tokens(fold.tasks)


def without_tokens(tasks: Any) -> Any:
    """Tokens of claims stay where they are."""
    for task in tasks.values():
        task.claim_token = None
    return tasks


async def test_what_comes_later_is_read_on(door: Any, night: Any) -> None:
    session = await door(night.path)
    fold = await session.snapshot()
    past = Night(session, fold)
    await past.read(fold.seq)
    before = past.reel.seq
    end(night, "task_00001")
    night.finish("task_00003")
    await past.read(night.head())
    assert past.reel.seq == night.head() > before
    assert (await past.sight(night.head())).moment.fold.tasks["task_00003"].state == "SUCCESS"
    assert (await past.sight(before)).moment.fold.tasks["task_00003"].state == "PENDING"


async def test_the_night_is_read_in_windows_and_tells_how_far_it_is(
    door: Any, night: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "READ_EVENTS", 10)
    night.tell(45)
    session = await door(night.path)
    fold = await session.snapshot()
    heard: list[int] = []
    await Night(session, fold).read(fold.seq, heard.append)
    assert heard == sorted(heard) and len(heard) >= 4 and heard[-1] <= night.head()


async def test_no_more_stretches_are_kept_than_there_is_room_for(
    door: Any, night: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "KEPT_EVENTS", 25)
    night.tell(100)
    session = await door(night.path)
    fold = await session.snapshot()
    past = Night(session, fold)
    past.reel._frame_events = 10
    await past.read(fold.seq)
    for seq in range(1, past.reel.seq + 1, 5):
        await past.sight(seq)
        assert past.sight_at_hand(seq) is not None
        assert sum(len(events) for events in past._kept.values()) <= 25


async def test_a_night_whose_beginning_was_removed_is_refused(door: Any, night: Any) -> None:
    night.write(lambda journal: journal.connection.execute("DELETE FROM event WHERE seq < 5"))
    session = await door(night.path)
    fold = await session.snapshot()
    with pytest.raises(RedriveError, match="was removed from the file"):
        await Night(session, fold).read(fold.seq)
    night.write(lambda journal: journal.connection.execute("DELETE FROM event"))
    with pytest.raises(RedriveError, match="nothing of what happened is in the file"):
        await Night(session, fold).read(fold.seq)


async def test_the_past_is_read_without_holding_the_log_back(door: Any, night: Any) -> None:
    session = await door(night.path)
    fold = await session.snapshot()
    past = Night(session, fold)
    await past.read(fold.seq)
    await past.sight(3)
    await session.usual("night-1")
    night.tell(20)
    assert night.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


# --- redrive replay ------------------------------------------------------------------------------------------------


@pytest.fixture
def replay(night: Any, capsys: pytest.CaptureFixture[str]) -> Callable[[str | None], str]:
    """What ``redrive replay --at`` prints of the night."""
    night.close()

    def show(at: str | None) -> str:
        assert listings.show_replay(str(night.path), None, False, at) == 0
        return capsys.readouterr().out

    return show


def test_replay_prints_the_tasks_as_they_were_after_an_event(replay: Callable[[str | None], str]) -> None:
    assert "DEAD_LETTER" in replay(None)
    then = replay("3")
    assert "RUNNING" in then and "DEAD_LETTER" not in then and "task_00005  PENDING" in then
    assert replay("999999") == replay(None)


def test_replay_before_the_run_says_when_it_began(replay: Callable[[str | None], str]) -> None:
    with pytest.raises(RedriveError, match=r"2001-01-01 is before run .* began: 20"):
        replay("2001-01-01")


def test_replay_refuses_what_is_no_time(replay: Callable[[str | None], str]) -> None:
    with pytest.raises(RedriveError, match="is no time"):
        replay("noon")
