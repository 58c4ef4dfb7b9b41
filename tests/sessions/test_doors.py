"""What every door to a state file promises."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.local import LocalSession
from redrive.console.sessions.session import Link, Session
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.command import Command, Target
from redrive.engine.domain.event_payloads import ExecutorChanged, OperatorActed, TaskMoved
from redrive.engine.domain.events import Event
from redrive.engine.domain.states import TaskState
from redrive.engine.domain.usage import TaskUsage
from redrive.engine.errors import (
    CorruptFileError,
    ForeignFileError,
    NewerFileError,
    RedriveError,
    RefusedError,
    SnapshotNeeded,
    StateFileError,
)
from redrive.engine.executor import host
from redrive.engine.runner.listener import BadRow
from redrive.engine.statefile import list_rows, lock_file
from redrive.engine.statefile.changes import logs
from redrive.engine.statefile.changes.log_rows import LogChunk
from redrive.engine.statefile.list_rows import DurationStats
from redrive.engine.statefile.reader import events_query
from redrive.engine.statefile.snapshot import EDGES_AT_ONCE
from redrive.engine.store import database, lock, quarantine, runs
from support.fake_executor import FakeExecutor
from support.state_file import StateFileBuilder
from support.waiting import wait_until_async

from .conftest import OpenSession

LIMIT_SECONDS = 90.0  # for what never comes


async def read_events(events: AsyncIterator[Sequence[Event]], until: int) -> list[Event]:
    """What comes, up to and with the event ``until``."""
    taken: list[Event] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        while not taken or taken[-1].seq < until:
            taken += await anext(events)
    return taken


async def wait_for_status(session: Any, what: Any) -> Any:
    """Wait until the status is so; looked at by the clock, as a screen does."""
    await wait_until_async(lambda: what(session.status), describe=lambda: session.status)
    return session.status


def command(act: str, *targets: tuple[str, str, int], id: str = "c1", **more: Any) -> Command:
    seen = tuple(Target(*target) for target in targets)
    return Command(id, act, more.pop("run_id", "night-1"), seen, "ana@desk", "because", more)


def without_tokens(projection: Any) -> Any:
    """Tokens of claims stay where they are."""
    for task in projection.tasks.values():
        task.claim_token = None
    return projection


async def test_a_snapshot_is_what_the_file_holds(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    projection = await session.snapshot()
    assert without_tokens(projection) == without_tokens(runs.load_run(run_file.connection, "night-1"))
    assert projection.seq == run_file.head()
    assert projection.tasks["task_00000"].attempts[1].duration_us == 1234
    assert projection.children["task_00000"] == ("task_00001", "task_00002")
    assert projection.tasks["task_00003"].spec.timeout == 30.0


@pytest.mark.long
async def test_a_snapshot_of_many_tasks_is_whole(
    door: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    run_file = make_run_file("many.db", tasks=1500)
    for number in range(700):
        run_file.finish(f"task_{number:05}")
    projection = await (await door(run_file.path)).snapshot("night-1")
    assert without_tokens(projection) == without_tokens(runs.load_run(run_file.connection, "night-1"))


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


async def test_a_snapshot_of_very_many_edges_is_whole(door: OpenSession, dense: Any) -> None:
    projection = await (await door(dense.path)).snapshot("dense")
    assert without_tokens(projection) == without_tokens(runs.load_run(dense.connection, "dense"))


async def test_who_does_not_wait_gets_the_rest_later(door: OpenSession, dense: Any) -> None:
    """At once there are the names and states of all; what follows is the same picture, and in the end whole."""
    whole = without_tokens(runs.load_run(dense.connection, "dense"))
    session = await door(dense.path)
    projection = await session.snapshot("dense", patience_seconds=0)
    assert {name: task.state for name, task in projection.tasks.items()} == {
        name: task.state for name, task in whole.tasks.items()
    }
    async with asyncio.timeout(LIMIT_SECONDS):
        while without_tokens(projection) != whole:
            with pytest.raises(SnapshotNeeded):
                async for _ in session.events(projection.seq):
                    pass
            again = await session.snapshot("dense", patience_seconds=0)
            assert again.seq >= projection.seq
            projection = again


async def test_a_run_that_is_not_there_is_named(door: OpenSession, run_file: StateFileBuilder) -> None:
    with pytest.raises(RefusedError, match="no-such"):
        await (await door(run_file.path)).snapshot("no-such")


async def test_the_latest_run_comes_first(door: OpenSession, run_file: StateFileBuilder) -> None:
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
    session = await door(run_file.path)
    latest, earlier = await session.runs()
    assert (latest.run.run_id, earlier.run.run_id) == ("night-2", "night-1")
    assert earlier.counts == {"SUCCESS": 1, "RUNNING": 1, "DEAD_LETTER": 1, "PENDING": 3}
    assert earlier.dead_letters == 1
    assert (await session.snapshot()).run.run_id == "night-2"


@pytest.mark.long
async def test_events_come_in_order_and_none_twice(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    events = session.events(0)
    first = await read_events(events, run_file.head())
    run_file.emit_progress(300)
    rest = await read_events(events, run_file.head())
    assert [event.seq for event in first + rest] == list(range(1, run_file.head() + 1))
    assert first == [runs.event_from_row(row) for row in run_file.connection.execute(*events_query(0, len(first)))]


async def test_events_begin_after_the_one_named(door: OpenSession, run_file: StateFileBuilder) -> None:
    since = run_file.head()
    run_file.emit_progress(3)
    session = await door(run_file.path)
    assert [event.seq for event in await read_events(session.events(since), since + 3)] == [
        since + 1,
        since + 2,
        since + 3,
    ]


async def test_folding_the_events_over_a_snapshot_gives_the_next_snapshot(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await door(run_file.path)
    projection = await session.snapshot()
    assert (await session.send(command("skip", ("task_00002", "DEAD_LETTER", 0)))).ok
    run_file.finish("task_00005")
    for event in await read_events(session.events(projection.seq), run_file.head()):
        projection.apply(event)
    assert projection.tasks["task_00002"].state is TaskState.SKIPPED
    assert projection.tasks["task_00005"].attempts[1].outcome == "success"
    assert without_tokens(projection) == without_tokens(await session.snapshot())


async def test_an_empty_batch_says_that_all_was_given(door: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.emit_progress(2000)
    session = await door(run_file.path)
    last = 0
    async with asyncio.timeout(LIMIT_SECONDS):
        async for batch in session.events(0):
            if not batch:
                break
            last = batch[-1].seq
    assert last == run_file.head()


async def test_an_event_is_seen_soon_after_its_commit(door: OpenSession, run_file: StateFileBuilder) -> None:
    """Each after a moment of quiet. Half of them may meet a machine that stands still."""
    session = await door(run_file.path)
    events = session.events(run_file.head())
    waits: list[float] = []
    for _ in range(9):
        await asyncio.sleep(0.1)  # a moment of quiet
        await asyncio.to_thread(run_file.emit_progress)
        committed_at = time.monotonic()
        await read_events(events, run_file.head())
        waits.append(time.monotonic() - committed_at)
    assert sorted(waits)[4] < 2.0


# --- Acts ----------------------------------------------------------------------------------------------------------


async def test_an_act_changes_the_file_when_no_executor_lives(door: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.close()
    session = await door(run_file.path)
    answer = await session.send(command("requeue", ("task_00002", "DEAD_LETTER", 0)))
    assert answer.ok and answer.results[0][:2] == ("task_00002", "done")
    projection = await session.snapshot()
    assert (projection.tasks["task_00002"].state, projection.tasks["task_00002"].generation) == (TaskState.PENDING, 1)


async def test_an_act_that_comes_twice_is_done_once(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    act = command("requeue", ("task_00002", "DEAD_LETTER", 0))
    first, second = await session.send(act), await session.send(act)
    assert first == second
    assert (await session.snapshot()).tasks["task_00002"].generation == 1


async def test_of_two_operators_the_second_gets_the_name_of_the_first(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await door(run_file.path)
    await session.send(command("requeue", ("task_00002", "DEAD_LETTER", 0), id="first"))
    answer = await session.send(command("skip", ("task_00002", "DEAD_LETTER", 0), id="second"))
    assert not answer.ok
    assert answer.results[0][1] == "refused" and "ana@desk" in answer.results[0][2]


async def test_an_act_reaches_the_living_executor(
    door: OpenSession, run_file: StateFileBuilder, executor: FakeExecutor
) -> None:
    session = await door(run_file.path)
    answer = await session.send(command("pause"))
    assert answer.ok
    (event,) = [
        event
        for event in await read_events(session.events(0), run_file.head())
        if event.command_id and event.new is None and event.kind == "run"
    ]
    assert event.actor == "ana@desk"


async def test_a_read_only_session_refuses_acts(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path, read_only=True)
    with pytest.raises(RedriveError, match="read-only"):
        await session.send(command("pause"))


async def test_a_hostile_name_is_only_a_name(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    answer = await session.send(command("skip", ("x'; DROP TABLE task; --", "PENDING", 0)))
    assert not answer.ok
    assert len((await session.snapshot()).tasks) == 6


# --- Who is there --------------------------------------------------------------------------------------------------


async def test_those_who_are_attached_see_each_other(
    door: OpenSession, run_file: StateFileBuilder, executor: FakeExecutor
) -> None:
    ana = await door(run_file.path, actor="ana@desk")
    ben = await door(run_file.path, actor="ben@sofa")
    assert (await wait_for_status(ana, lambda status: status.others)).others == ("ben@sofa",)
    assert (await wait_for_status(ben, lambda status: status.others)).others == ("ana@desk",)
    await ben.close()
    await wait_for_status(ana, lambda status: not status.others)


async def test_the_life_and_death_of_the_executor_is_seen(
    door: OpenSession, run_file: StateFileBuilder, executor: FakeExecutor
) -> None:
    session = await door(run_file.path)
    status = await wait_for_status(session, lambda status: status.executor_alive)
    assert status.heartbeat_age_seconds is not None and status.heartbeat_age_seconds < 60
    executor.die()
    a_while_ago = time.time() - 20  # so long is no executor silent that lives
    os.utime(f"{run_file.path}.lock", (a_while_ago, a_while_ago))
    status = await wait_for_status(session, lambda status: not status.executor_alive)
    assert abs(status.executor_gone_at / 1e6 - time.time()) < 60


@pytest.mark.long
async def test_who_serves_a_file_by_its_schedule_is_seen(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    service = lock.acquire(str(run_file.path) + lock_file.SERVICE, "service")
    assert (await wait_for_status(session, lambda status: status.service_pid)).service_pid == os.getpid()
    service.release()
    await wait_for_status(session, lambda status: status.service_pid is None)


# --- On demand -----------------------------------------------------------------------------------------------------


async def test_output_is_read_a_window_at_a_time(
    door: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    run_file = make_run_file()
    run_file.finish("task_00000", text="".join(f"line {number}\n" for number in range(20_000)))
    session = await door(run_file.path)
    first = await session.log("night-1", "task_00000", 1, limit=2)
    rest = await session.log("night-1", "task_00000", 1, after=first[-1].id)
    (last,) = await session.log("night-1", "task_00000", 1, after=-1, limit=1)
    assert first[0].text.startswith("line 0\n")
    assert last == rest[-1] and last.text.endswith("line 19999\n")
    ids = [chunk.id for chunk in [*first, *rest]]
    assert ids == sorted(set(ids))


async def test_long_texts_are_read_on_demand(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    assert (await session.attempt_text("night-1", "task_00002", 1)).traceback == "Traceback: of task_00002"
    assert (await session.attempt_text("night-1", "task_00005", 1)).traceback == ""


async def test_lists_beside_a_run_are_values(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    run_file.write(lambda transaction: transaction.emit(OperatorActed(what="ack"), "night-1"), actor="ana@desk")
    (act,) = await session.query(list_rows.JOURNAL, run_id="night-1", acts=1)
    assert (act.actor, act.data) == ("ana@desk", {"what": "ack"})
    assert [row.attempt for row in await session.query(list_rows.HISTORY, task="task_00002")] == [1]
    assert [] == await session.query(list_rows.BREAKERS) == await session.query(list_rows.SCHEDULES)
    assert [] == await session.query(list_rows.SLA)
    with pytest.raises(RedriveError, match="colour"):
        await session.query(list_rows.PAGES, colour="red")


async def test_quarantined_rows_are_listed_by_the_group_and_by_the_window(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    rows = [BadRow(row_key=f"c-{number}", payload="p" * 900, error="KeyError", fingerprint="f") for number in range(9)]
    run_file.write(lambda transaction: quarantine.add(transaction, "night-1", "task_00002", 1, 0, rows))
    session = await door(run_file.path)
    (group,) = await session.query(list_rows.QUARANTINE_GROUPS, run_id="night-1")
    assert ("task_00002", "f", "provisional", 9) == (group.name, group.fingerprint, group.state, group.rows)
    found = await session.query(
        list_rows.QUARANTINE_ROWS, run_id="night-1", task="task_00002", fingerprint="f", skip=7, limit=100
    )
    assert ["c-7", "c-8"] == [row.row_key for row in found]
    assert all(len(row.payload or "") < 900 for row in found)
    assert [] == await session.query(list_rows.PAGE_HEADS) == await session.query(list_rows.PAGES, id=1)


async def test_the_past_of_a_run_is_read_a_window_at_a_time(door: OpenSession, run_file: StateFileBuilder) -> None:
    """Also while events are followed, and without the other runs of the file."""
    session = await door(run_file.path)
    following = session.events(0)
    events = await read_events(following, run_file.head())
    run_file.write(lambda transaction: transaction.emit(ExecutorChanged("stopped")))
    run_file.write(lambda transaction: transaction.emit(TaskMoved(), "night-2", "task_00000"))
    run_file.emit_progress(3)
    found: list[Any] = []
    while window := await session.run_events("night-1", found[-1].seq if found else 0, 4):
        assert len(window) <= 4
        found += window
    later = await read_events(following, run_file.head())
    assert found == [event for event in [*events, *later] if event.run_id == "night-1"]


async def test_how_long_tasks_took_before_is_reported_of_runs_before(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await door(run_file.path)
    assert await session.duration_stats("night-1") == {}
    flow = FlowSpec("nightly", (TaskSpec("task_00000"), TaskSpec("new")))
    run_file.write(
        lambda transaction: runs.create_run(
            transaction, run_id="night-2", flow=flow, max_parallel=4, params={}, at=transaction.at, deadline_at=None
        )
    )
    assert await session.duration_stats("night-2") == {
        "task_00000": DurationStats(p50_us=1000, p95_us=1000, attempts=1)
    }
    with pytest.raises(RefusedError, match="no run 'night-3'"):
        await session.duration_stats("night-3")


async def test_what_an_act_would_do_is_reported_without_doing_it(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    found = await session.preview(
        Command("c1", "requeue", "night-1", (Target("task_00002", "DEAD_LETTER", 0),), "ana@desk")
    )
    assert found["ok"] and found["run_again"] == ["task_00002"]
    assert (await session.snapshot()).tasks["task_00002"].state is TaskState.DEAD_LETTER


async def test_what_came_of_a_cause_and_the_notes_on_it_are_stored(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    """Asked for before anything else: the far side learns what it needs for it."""
    sql = "UPDATE attempt SET fingerprint = 'f1', fingerprint_loose = 'f0' WHERE name = 'task_00002'"
    run_file.write(lambda transaction: transaction.connection.execute(sql))
    session = await door(run_file.path)
    (found,) = await session.cause_histories("night-1", [("f0", None)])
    assert (found.episodes, found.notes) == ((), ())
    noted = {"fingerprint": "f0", "downstream": None, "text": "reload the schema\x1b[31m first"}
    assert (await session.send(command("note", id="n1", **noted))).ok
    assert (await session.send(command("skip", ("task_00002", "DEAD_LETTER", 0)))).ok
    (found,) = await session.cause_histories("night-1", [("f0", None)])
    assert [note.text for note in found.notes] == ["reload the schema [31m first"]
    ((decision, tasks, reason),) = [(one.decision, one.tasks, one.reason) for one in found.episodes]
    assert (decision, tasks, reason) == ("skip", 1, "because")


async def test_what_failed_against_a_downstream_is_reported_with_all_of_its_attempts(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    sql = "UPDATE attempt SET fingerprint_loose = 'f0', fingerprint_detail = ? WHERE name = 'task_00002'"
    detail = '{"facts": {"status": 409}}'
    run_file.write(lambda transaction: transaction.connection.execute(sql, (detail,)))
    session = await door(run_file.path)
    (task,) = await session.failures("night-1", None, ["task_00002"])
    assert (task.name, task.state, task.run_id) == ("task_00002", "DEAD_LETTER", "night-1")
    assert [(one.outcome, one.facts) for one in task.attempts] == [("error", {"status": 409})]
    assert await session.failures("night-1", "nobody") == []


# --- Files that are not what they were -----------------------------------------------------------------------------


async def test_a_file_in_the_place_of_another_gives_a_new_picture(
    door: OpenSession, run_file: StateFileBuilder, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    run_file.close()
    session = await door(run_file.path)
    events = session.events((await session.snapshot()).seq)
    assert not await anext(events)
    other = make_run_file("other.db", run_id="other-1")
    other.close()
    os.replace(other.path, run_file.path)
    with pytest.raises(SnapshotNeeded):
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                await anext(events)
    projection = await session.snapshot()
    assert projection.run.run_id == "other-1"
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert not await anext(session.events(projection.seq))


async def test_a_file_that_was_written_over_gives_a_new_picture(
    door: OpenSession, run_file: StateFileBuilder, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    run_file.close()
    session = await door(run_file.path)
    events = session.events((await session.snapshot()).seq)
    assert not await anext(events)
    other = make_run_file("other.db", run_id="other-1")
    other.close()
    shutil.copyfile(other.path, run_file.path)
    with pytest.raises(SnapshotNeeded):
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                await anext(events)
    assert (await session.snapshot()).run.run_id == "other-1"


async def test_events_that_were_removed_ask_for_a_new_picture(door: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.emit_progress(50)
    session = await door(run_file.path)
    run_file.write(lambda transaction: transaction.connection.execute("DELETE FROM event WHERE seq < 40"))
    with pytest.raises(SnapshotNeeded):
        await anext(session.events(10))
    kept = await read_events(session.events(39), run_file.head())
    assert kept[0].seq == 40


async def test_a_file_with_less_than_was_read_asks_for_a_new_picture(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await door(run_file.path)
    with pytest.raises(SnapshotNeeded):
        await anext(session.events(run_file.head() + 1))


async def test_a_file_that_is_gone_is_reported_and_found_again(door: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.close()
    session = await door(run_file.path)
    hidden = run_file.path.with_name("hidden.db")
    os.rename(run_file.path, hidden)
    status = await wait_for_status(session, lambda status: status.problem)
    assert "no state file" in status.problem
    os.rename(hidden, run_file.path)
    await wait_for_status(session, lambda status: status.problem is None)
    assert (await session.snapshot()).run.run_id == "night-1"


async def test_a_copied_file_reports_no_executor_that_has_gone(run_file: StateFileBuilder) -> None:
    """An act on it touches the lock, which tells nothing of an executor."""
    run_file.close()
    copy = run_file.path.with_name("copy.db")
    shutil.copyfile(run_file.path, copy)
    Path(lock_file.lock_path(str(copy))).touch()
    session = await LocalSession.open(str(copy))
    try:
        assert not session.status.executor_alive and session.status.executor_gone_at is None
    finally:
        await session.close()


async def test_a_file_at_rest_is_followed_when_somebody_writes_again(
    door: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.close()
    session = await door(run_file.path)
    events = session.events((await session.snapshot()).seq)
    assert not await anext(events)
    again = database.open_for_writing(run_file.path)
    try:
        again.execute("INSERT INTO event (at, kind) VALUES (1, 'storage')")
        seq = again.execute("SELECT max(seq) FROM event").fetchone()[0]
        (event,) = await read_events(events, seq)
        assert event.kind == "storage"
    finally:
        again.close()


async def test_reading_leaves_no_trace_beside_a_file_at_rest(door: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.close()
    before = sorted(os.listdir(run_file.path.parent))
    bytes_before = run_file.path.read_bytes()
    session = await door(run_file.path)
    await session.snapshot()
    assert await anext(session.events(0))
    await session.close()
    assert sorted(os.listdir(run_file.path.parent)) == before
    assert run_file.path.read_bytes() == bytes_before


async def test_a_log_says_where_output_was_dropped_and_how_much(
    door: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    """More than is kept: a head, a tail, and the engine's own count of what lay between."""
    run_file = make_run_file()
    append = partial(logs.append, run_id="night-1", name="task_00000", limit_bytes=400_000)
    attempt = run_file.start("task_00000")
    for number in range(20):
        text = "".join(f"{number} {random.Random(n).random()}\n" for n in range(5_000))
        run_file.write(partial(append, attempt=attempt, text=text))
    session = await door(run_file.path)
    chunks = await all_chunks(session)
    (counted,) = await session.query(list_rows.OUTPUT, run_id="night-1", task="task_00000", attempt=1)
    (gap,) = [chunk.dropped for chunk in chunks if chunk.dropped]
    assert gap == counted.output_dropped_bytes == counted.output_bytes - sum(len(chunk.text) for chunk in chunks) > 0
    assert not chunks[0].dropped and not chunks[-1].dropped


async def all_chunks(session: Session) -> list[LogChunk]:
    found: list[LogChunk] = []
    while page := await session.log("night-1", "task_00000", 1, after=found[-1].id if found else 0):
        found += page
    return found


async def test_the_output_is_searched_where_it_is_kept(
    door: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    """Forward and backward, in slices, and as the lines that match alone."""
    run_file = make_run_file()
    run_file.finish(
        "task_00000", text="".join(f"row {number:06} \x1b[32mset\x1b[0mtled\n" for number in range(100_000))
    )
    session = await door(run_file.path)
    where = ("night-1", "task_00000", 1)

    async def search(pattern: str, after: int = 0, before: int | None = None) -> str:
        place: int | None = after if before is None else before
        while place is not None:
            if before is None:
                found, place = await session.find_in_log(*where, pattern, after=place)
            else:
                found, place = await session.find_in_log(*where, pattern, before=place)
            if found is not None:
                (chunk,) = await session.log(*where, after=found - 1, limit=1)
                return chunk.text
        return ""

    assert "row 090000" in await search(r"row 09000\d SETTLED$")
    assert "row 099999" in await search("settled", before=2**62)
    assert await search("row 100000") == ""
    pieces, place, rest, is_end = [], 0, "", False
    while not is_end:
        step = await session.select_in_log(*where, "(?=.*99 )(?=.*settled)", after=place, rest=rest)
        pieces, place, rest, is_end = [*pieces, *step.chunks], step.last_id, step.rest, step.is_end
    lines = "".join(chunk.text for chunk in pieces).splitlines()
    assert len(lines) == 1_000 and lines[0].startswith("row 000099 ")


async def test_a_pattern_that_takes_for_ever_is_given_up_with_a_sentence(
    door: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    """Each further letter of the line doubles the time of this pattern; the session goes on."""
    run_file = make_run_file()
    run_file.finish("task_00000", text=f"first\n{'a' * 60}!\n")
    session = await door(run_file.path)
    where = ("night-1", "task_00000", 1)
    for search in (session.find_in_log, session.select_in_log):
        with pytest.raises(RedriveError, match="the pattern takes too long on a part of the log: simplify it"):
            await search(*where, "(a+)+$")
    found, _ = await session.find_in_log(*where, "first")
    assert found is not None


async def test_a_reader_does_not_hold_the_log_back(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    events = session.events(0)
    await read_events(events, run_file.head())
    run_file.emit_progress(20)
    await read_events(events, run_file.head())
    busy, pages, moved = run_file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, pages, moved) == (0, 0, 0)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, StateFileError),
        (b"", StateFileError),
        (b"not a database at all" * 100, ForeignFileError),
        (b"SQLite format 3\x00cut", CorruptFileError),
    ],
)
async def test_what_is_no_state_file_is_refused(door: OpenSession, tmp_path: Any, content: Any, error: Any) -> None:
    path = tmp_path / "odd.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match="odd"):
        await door(path)
    assert (path.read_bytes() if content is not None else None) == content


async def test_somebody_elses_database_is_refused(door: OpenSession, tmp_path: Any) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    with pytest.raises(ForeignFileError):
        await door(tmp_path / "other.db")


async def test_a_file_of_a_later_version_is_refused(door: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.connection.execute("PRAGMA user_version = 99")
    run_file.close()
    with pytest.raises(NewerFileError):
        await door(run_file.path)


@pytest.mark.parametrize(
    "name", ["a b.db", "a?b#c.db", "100%.db", "a%20b.db", "naïve-日本.db", "'q\"$(id).db", "-x.db"]
)
async def test_a_path_may_hold_anything(
    door: OpenSession, make_run_file: Callable[..., StateFileBuilder], name: str
) -> None:
    run_file = make_run_file(name)
    projection = await (await door(run_file.path)).snapshot()
    assert projection.run.run_id == "night-1"


async def test_a_closed_session_stays_closed(door: OpenSession, run_file: StateFileBuilder) -> None:
    session = await door(run_file.path)
    await session.close()
    await session.close()
    assert session.status.link is Link.CLOSED
    with pytest.raises(RedriveError):
        await session.snapshot()


FLOW_THAT_SPINS = """
from redrive.engine import Flow
flow = Flow("f")
@flow.task(timeout=120)
def spin():
    print("spinning", flush=True)
    while True:
        pass
"""


async def test_what_a_running_task_uses_is_read_by_its_executor(door: OpenSession, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(FLOW_THAT_SPINS)
    pid = host.spawn(flow=str(tmp_path / "f.py"), state=str(tmp_path / "f.db"), run_id="r", params={}, options={})
    try:
        session = await door(tmp_path / "f.db")
        found: Sequence[TaskUsage] = ()
        for _ in range(900):
            found = await session.usage()
            if found and found[0].cpu_percent is not None and found[0].last_line == "spinning":
                break
            await asyncio.sleep(0.1)
        (one,) = found
        assert one.task == "spin" and one.memory_bytes and one.cpu_percent
    finally:
        os.kill(pid, signal.SIGKILL)
    await session.close()
