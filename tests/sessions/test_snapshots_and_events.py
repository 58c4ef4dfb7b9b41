"""Snapshots and events, as every kind of session delivers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import RefusedError, SnapshotNeeded
from redrive.engine.statefile.reader import events_query
from redrive.engine.statefile.snapshot import EDGES_AT_ONCE
from redrive.engine.store import runs
from support.state_file import StateFileBuilder

from .conftest import OpenSession
from .session_helpers import LIMIT_SECONDS, command, read_events


async def test_a_snapshot_is_what_the_file_holds(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    assert projection == runs.load_run(run_file.connection, "night-1")
    assert projection.seq == run_file.head()
    assert projection.tasks["task_00000"].attempts[1].duration_us == 1234
    assert projection.children["task_00000"] == ("task_00001", "task_00002")
    assert projection.tasks["task_00003"].spec.timeout == 30.0


@pytest.mark.long
async def test_a_snapshot_of_many_tasks_is_whole(
    open_session: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    run_file = make_run_file("many.db", tasks=1500)
    for number in range(700):
        run_file.finish(f"task_{number:05}")
    projection = await (await open_session(run_file.path)).snapshot("night-1")
    assert projection == runs.load_run(run_file.connection, "night-1")


@pytest.fixture
def dense(run_file: StateFileBuilder) -> StateFileBuilder:
    """A night in which each task waits for very many, and half of them are done."""
    names = [f"task_{number:05}" for number in range(200)]
    specs = tuple(TaskSpec(name, parents=tuple(reversed(names[:number]))) for number, name in enumerate(names))
    run_file.run_id = "dense"
    run_file.write(
        lambda transaction: runs.create_run(
            transaction,
            run_id="dense",
            flow=FlowSpec("dense", specs),
            max_parallel=1,
            params={},
            at=transaction.at,
            deadline_at=None,
        )
    )
    for name in names[:100]:
        run_file.finish(name)
    assert 200 * 199 / 2 > EDGES_AT_ONCE
    return run_file


async def test_a_snapshot_of_very_many_edges_is_whole(open_session: OpenSession, dense: Any) -> None:
    projection = await (await open_session(dense.path)).snapshot("dense")
    assert projection == runs.load_run(dense.connection, "dense")


async def test_who_does_not_wait_gets_the_rest_later(open_session: OpenSession, dense: Any) -> None:
    """At once there are the names and states of all; what follows is the same picture, and in the end whole."""
    whole = runs.load_run(dense.connection, "dense")
    session = await open_session(dense.path)
    projection = await session.snapshot("dense", patience_seconds=0)
    assert {name: task.state for name, task in projection.tasks.items()} == {
        name: task.state for name, task in whole.tasks.items()
    }
    async with asyncio.timeout(LIMIT_SECONDS):
        while projection != whole:
            with pytest.raises(SnapshotNeeded):
                async for _ in session.events(projection.seq):
                    pass
            again = await session.snapshot("dense", patience_seconds=0)
            assert again.seq >= projection.seq
            projection = again


async def test_a_run_that_is_not_there_is_named(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    with pytest.raises(RefusedError, match="no-such"):
        await (await open_session(run_file.path)).snapshot("no-such")


async def test_the_latest_run_comes_first(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.write(
        lambda transaction: runs.create_run(
            transaction,
            run_id="night-2",
            flow=FlowSpec("nightly", ()),
            max_parallel=1,
            params={},
            at=transaction.at,
            deadline_at=None,
        )
    )
    session = await open_session(run_file.path)
    latest, earlier = await session.runs()
    assert (latest.run.run_id, earlier.run.run_id) == ("night-2", "night-1")
    assert earlier.counts == {"SUCCESS": 1, "RUNNING": 1, "DEAD_LETTER": 1, "PENDING": 3}
    assert earlier.dead_letters == 1
    assert (await session.snapshot()).run.run_id == "night-2"


@pytest.mark.long
async def test_events_come_in_order_and_none_twice(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    events = session.events(0)
    first = await read_events(events, run_file.head())
    run_file.emit_idle_events(300)
    rest = await read_events(events, run_file.head())
    assert [event.seq for event in first + rest] == list(range(1, run_file.head() + 1))
    assert first == [event_of(row) for row in run_file.connection.execute(*events_query(0, len(first)))]


async def test_events_begin_after_the_one_named(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    since = run_file.head()
    run_file.emit_idle_events(3)
    session = await open_session(run_file.path)
    assert [event.seq for event in await read_events(session.events(since), since + 3)] == [
        since + 1,
        since + 2,
        since + 3,
    ]


async def test_folding_the_events_over_a_snapshot_gives_the_next_snapshot(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    assert (await session.send(command("skip", ("task_00002", "DEAD_LETTER", 0)))).ok
    run_file.finish("task_00005")
    for event in await read_events(session.events(projection.seq), run_file.head()):
        projection.apply(event)
    assert projection.tasks["task_00002"].state is TaskState.SKIPPED
    assert projection.tasks["task_00005"].attempts[1].outcome == "success"
    assert projection == await session.snapshot()


async def test_an_empty_batch_says_that_all_was_given(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.emit_idle_events(2000)
    session = await open_session(run_file.path)
    last = 0
    async with asyncio.timeout(LIMIT_SECONDS):
        async for batch in session.events(0):
            if not batch:
                break
            last = batch[-1].seq
    assert last == run_file.head()


@pytest.mark.parametrize("has_read_all", (False, True))
async def test_an_empty_batch_comes_where_the_last_events_are_missing(
    open_session: OpenSession, run_file: StateFileBuilder, has_read_all: bool
) -> None:
    """The file still counts the events that were deleted from it."""
    with run_file.connection:
        run_file.connection.execute("DELETE FROM event WHERE seq > ?", (run_file.head() - 3,))
    session = await open_session(run_file.path)
    projection = await session.snapshot()
    assert projection.seq > run_file.head() > 0
    taken: list[int] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        async for batch in session.events(projection.seq if has_read_all else 0):
            if not batch:
                break
            taken += [event.seq for event in batch]
    assert taken == ([] if has_read_all else list(range(1, run_file.head() + 1)))


async def test_an_event_is_seen_soon_after_its_commit(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    """Each after a moment of quiet. Half of them may meet a machine that stands still."""
    session = await open_session(run_file.path)
    events = session.events(run_file.head())
    waits: list[float] = []
    for _ in range(9):
        await asyncio.sleep(0.1)  # a moment of quiet
        await asyncio.to_thread(run_file.emit_idle_events)
        committed_at = time.monotonic()
        await read_events(events, run_file.head())
        waits.append(time.monotonic() - committed_at)
    assert sorted(waits)[4] < 2.0
