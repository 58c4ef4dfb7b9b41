"""Group commit: each future tells the truth about its own item, a disk that refuses fails no task (SPEC 4.16)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.policy import bounds
from redrive.engine.core.spec import Durability, FlowSpec, TaskSpec
from redrive.engine.domain.acts import Author
from redrive.engine.domain.event_payloads import StorageChanged
from redrive.engine.domain.events import Event
from redrive.engine.errors import CorruptFileError, StorageError
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs
from redrive.engine.store.write_ahead_log import SHARED_SYNC_SECONDS, OnDone
from redrive.engine.store.writer import FlushLimits, Writer, WriterListener, run_with_retry
from support.waiting import LIMIT_SECONDS

FAST = FlushLimits(retries=3, backoff_seconds=0.001, cap_seconds=0.002, query_delays_seconds=())


def failure(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


class FaultyConnection:
    """A real connection on which statements fail as told: ``faults`` are (start of the statement, error), used up."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self.real = real
        self.faults: list[tuple[str, Exception]] = []
        self.commits = 0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.faults and sql.startswith(self.faults[0][0]):
            raise self.faults.pop(0)[1]
        cursor = self.real.execute(sql, *values)
        self.commits += sql == "COMMIT"
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Desk:
    """A writer, and what it told."""

    def __init__(self, path: Path, durability: Durability = "normal", **reports: Any) -> None:
        self.path = path
        self.connection = FaultyConnection(database.open_for_writing(path, durability))
        self.events: list[Event] = []
        self.problems: list[tuple[str, str]] = []
        self.clock_us = 42
        self.degraded = asyncio.Event()
        self.recovered = asyncio.Event()
        options = {"limits": reports.pop("limits", FAST), "thread": reports.pop("thread", None)}
        connection: Any = self.connection
        listener = WriterListener(self.events.extend, storage_changed=self._problem, **reports)
        loop = asyncio.get_running_loop()
        self.writer = Writer(connection, loop, lambda: self.clock_us, listener, **options)

    def _problem(self, what: str, sentence: str) -> None:
        self.problems.append((what, sentence))
        (self.degraded if what == "degraded" else self.recovered).set()

    def stored(self) -> list[str]:
        """What all events in the file are about, as another connection sees them."""
        connection = sqlite3.connect(self.path)
        try:
            return [json.loads(data)["what"] for (data,) in connection.execute("SELECT data FROM event ORDER BY seq")]
        finally:
            connection.close()


@asynccontextmanager
async def desk(path: Path, **options: Any) -> AsyncIterator[Desk]:
    opened = Desk(path / "state.db", **options)
    try:
        yield opened
    finally:
        await opened.writer.close()


def emit(what: str) -> Callable[[Transaction], str]:
    def item(transaction: Transaction) -> str:
        transaction.emit(StorageChanged(what))
        return what

    return item


def fail_after_emit(transaction: Transaction) -> None:
    transaction.emit(StorageChanged("of the failed"))
    raise LookupError("the item's own fault")


# --- Futures -------------------------------------------------------------------------------------------------------


async def test_a_future_resolves_when_its_item_is_in_the_file_for_others_to_see(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        assert await it.writer.submit(emit("a")) == "a"
        assert it.stored() == ["a"]


async def test_events_are_handed_on_in_order_and_before_the_futures(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        seen: list[int] = []
        futures = [it.writer.submit(emit(str(number))) for number in range(50)]
        for future in futures:
            future.add_done_callback(lambda _: seen.append(len(it.events)))
        await asyncio.gather(*futures)
        assert seen == [50] * 50
        assert [event.payload.what for event in it.events] == it.stored() == [str(number) for number in range(50)]
        assert [event.seq for event in it.events] == sorted(event.seq for event in it.events)


async def test_what_queues_while_a_batch_is_written_is_the_next_batch(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.connection.commits = 0
        await asyncio.gather(*(it.writer.submit(emit("x")) for _ in range(500)))
        assert it.connection.commits == 1


async def test_a_batch_is_never_larger_than_its_cap(tmp_path: Path) -> None:
    async with desk(tmp_path, limits=FlushLimits(batch=100)) as it:
        await asyncio.gather(*(it.writer.submit(emit("x")) for _ in range(1000)))
        assert it.connection.commits == 10


async def test_actor_reason_and_command_reach_the_event(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.writer.submit(emit("a"), Author("ana@ops", "because", "c1"))
        event = it.events[0]
        assert (event.actor, event.reason, event.command_id, event.at) == ("ana@ops", "because", "c1", 42)


async def test_an_item_that_raises_fails_alone_and_leaves_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        items = [emit("before"), fail_after_emit, emit("between"), fail_after_emit, emit("after")]
        results = await asyncio.gather(*(it.writer.submit(item) for item in items), return_exceptions=True)
        assert [type(result) for result in results] == [str, LookupError, str, LookupError, str]
        assert it.stored() == ["before", "between", "after"]
        assert [event.payload.what for event in it.events] == it.stored()


async def test_a_broken_constraint_is_the_items_own_fault(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:

        def twice(transaction: Transaction) -> None:
            for _ in range(2):
                transaction.connection.execute("INSERT INTO meta VALUES ('same', 'key')")

        results = await asyncio.gather(it.writer.submit(emit("good")), it.writer.submit(twice), return_exceptions=True)
        assert results[0] == "good" and isinstance(results[1], sqlite3.IntegrityError)
        assert it.problems == []


async def test_stop_iteration_reaches_the_caller_as_an_error(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:

        def stop(transaction: Transaction) -> None:
            raise StopIteration

        with pytest.raises(RuntimeError, match="StopIteration"):
            await it.writer.submit(stop)


async def test_a_listener_that_raises_keeps_no_caller_waiting(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))

    def listen(events: Sequence[Event]) -> None:
        raise ValueError("the listener's fault")

    writer = Writer(database.open_for_writing(tmp_path / "state.db"), loop, lambda: 0, WriterListener(listen))
    assert await asyncio.wait_for(writer.submit(emit("a")), LIMIT_SECONDS) == "a"
    assert [type(context["exception"]) for context in reported] == [ValueError]
    await writer.close()


async def test_what_a_listener_submits_is_written(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        answers: list[asyncio.Future[str]] = []

        def listen(events: Sequence[Event]) -> None:
            if events[0].payload.what == "question":
                answers.append(it.writer.submit(emit("answer")))

        it.writer.listen(WriterListener(listen))
        await it.writer.submit(emit("question"))
        assert await answers[0] == "answer"


async def test_a_caller_that_is_cancelled_unwrites_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        cancelled, other = it.writer.submit(emit("a")), it.writer.submit(emit("b"))
        cancelled.cancel()
        assert await other == "b"
        assert it.stored() == ["a", "b"]


async def test_closing_writes_what_is_queued_and_takes_nothing_more(tmp_path: Path) -> None:
    it = Desk(tmp_path / "state.db")
    futures = [it.writer.submit(emit(str(number))) for number in range(20)]
    await it.writer.close()
    await it.writer.close()
    assert [await future for future in futures] == [str(number) for number in range(20)]
    assert len(it.stored()) == 20 and not Path(f"{it.path}-wal").exists()
    with pytest.raises(StorageError, match="closed"):
        it.writer.submit(emit("late"))


# --- Three layers --------------------------------------------------------------------------------------------------


def test_layer_b_tries_a_locked_file_three_times_50_and_100_ms_apart() -> None:
    pauses: list[float] = []
    answers: list[Any] = [failure(sqlite3.SQLITE_BUSY), failure(sqlite3.SQLITE_LOCKED), "in"]

    def work() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert run_with_retry(work, pause=pauses.append) == "in"
    assert pauses == [0.05, 0.1]


def test_layer_b_leaves_everything_else_to_layer_c() -> None:
    for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CONSTRAINT):
        tries = 0

        def work(code: int = code) -> None:
            nonlocal tries
            tries += 1
            raise failure(code)

        with pytest.raises(sqlite3.OperationalError):
            run_with_retry(work, pause=lambda seconds: pytest.fail("no pause is due"))
        assert tries == 1


def test_layer_b_stops_at_its_clamp_however_slow_layer_a_was() -> None:
    now = [0.0]
    tries = 0

    def work() -> None:
        nonlocal tries
        tries += 1
        now[0] += 6.0  # as long as the busy handler may wait, and more
        raise failure(sqlite3.SQLITE_BUSY)

    with pytest.raises(sqlite3.OperationalError):
        run_with_retry(work, pause=lambda seconds: None, monotonic=lambda: now[0])
    assert tries == 2


def test_layer_c_waits_double_plus_up_to_half() -> None:
    waits = [bounds(FlushLimits().policy, retry) for retry in range(4)]
    assert [round(longest, 3) for _, longest in waits] == [0.15, 0.3, 0.6, 1.2]
    assert [bounds(FlushLimits(cap_seconds=0.3).policy, retry)[0] for retry in range(4)] == [0.1, 0.2, 0.3, 0.3]


def test_the_knobs_of_the_document_are_read_under_both_names() -> None:
    limits = FlushLimits.from_environment(
        {
            "DIGITALKIN_SIGNAL_SEND_RETRIES": "5",
            "REDRIVE_SIGNAL_SEND_BACKOFF_MS": "50",
            "DIGITALKIN_SIGNAL_SEND_BACKOFF_MS": "999",
            "DIGITALKIN_GRPC_TIMEOUT": "60",
            "DIGITALKIN_SIGNAL_MAX_BATCH_SIZE": "50",
        }
    )
    assert (limits.retries, limits.backoff_seconds, limits.elapsed_seconds, limits.batch) == (5, 0.05, 60.0, 50)
    assert FlushLimits.from_environment({}) == FlushLimits()


def test_a_wrong_knob_is_reported_and_leaves_the_others_and_the_default() -> None:
    """It may be meant for the send buffer of another program; and the executor has no interval."""
    wrong = {"DIGITALKIN_GRPC_TIMEOUT": "soon", "REDRIVE_SIGNAL_FLUSH_INTERVAL": "-1"}
    reported: list[str] = []
    limits = FlushLimits.from_environment(
        {**wrong, "REDRIVE_SIGNAL_SEND_RETRIES": "5"}, lambda error: reported.append(str(error))
    )
    assert limits == FlushLimits(retries=5)
    assert reported == ["DIGITALKIN_GRPC_TIMEOUT is a finite number of at least 0, not 'soon'"]
    assert FlushLimits.from_environment(wrong) == FlushLimits()


async def test_forty_signals_survive_two_failed_flushes(tmp_path: Path) -> None:
    """The trace of document 002: attempts 1 and 2 fail, attempt 3 succeeds, 40 times True."""
    async with desk(tmp_path) as it:
        it.connection.faults = [("COMMIT", failure(sqlite3.SQLITE_BUSY))] * 2
        futures = [
            it.writer.submit(lambda transaction: bool(transaction.emit(StorageChanged("signal")))) for _ in range(40)
        ]
        assert await asyncio.gather(*futures) == [True] * 40
        assert it.stored() == ["signal"] * 40
        assert it.problems == []


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_READONLY])
async def test_one_slow_disk_fails_no_item_however_long_it_takes(tmp_path: Path, code: int) -> None:
    """92 at once, the first batch refused 20 times over: nobody gets an error, everybody is told in the end."""
    async with desk(tmp_path) as it:
        it.connection.faults = [("INSERT INTO event", failure(code))] * 20
        futures = [it.writer.submit(emit("start")) for _ in range(92)]
        assert await asyncio.gather(*futures) == ["start"] * 92
        assert it.stored() == ["start"] * 92
        assert [what for what, _ in it.problems] == ["degraded", "recovered"]
        assert "92 changes wait" in it.problems[0][1] and not it.writer.is_degraded


async def test_a_batch_in_retry_keeps_its_place(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.connection.faults = [("COMMIT", failure(sqlite3.SQLITE_FULL))] * 8
        first = it.writer.submit(emit("first"))
        await it.degraded.wait()
        second = it.writer.submit(emit("second"))
        assert "nothing is lost, 1 change waits in memory" in it.problems[0][1]
        assert it.writer.backlog == 2 and not first.done()
        await asyncio.gather(first, second)
        assert it.stored() == ["first", "second"]


async def test_the_instant_of_a_change_is_that_of_its_submission(tmp_path: Path) -> None:
    """If the clock is set meanwhile, the due times of the change move with it like all others."""
    async with desk(tmp_path) as it:
        it.connection.faults = [("COMMIT", failure(sqlite3.SQLITE_FULL))] * 8
        it.clock_us = 1_000
        written = it.writer.submit(lambda transaction: transaction.at)
        await it.degraded.wait()
        it.clock_us = 9_000
        assert await written == 1_000


async def test_closing_on_a_full_disk_fails_what_is_left_with_the_reason(tmp_path: Path) -> None:
    it = Desk(tmp_path / "state.db")
    it.connection.faults = [("COMMIT", failure(sqlite3.SQLITE_FULL))] * 1000
    futures = [it.writer.submit(emit("a"))]
    await it.degraded.wait()
    futures.append(it.writer.submit(emit("b")))
    await it.writer.close()
    for future in futures:
        with pytest.raises(StorageError, match="full"):
            await future
    assert it.stored() == []


async def test_damage_is_no_matter_of_patience(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.connection.faults = [("INSERT", failure(sqlite3.SQLITE_CORRUPT))]
        with pytest.raises(CorruptFileError, match="restore a copy"):
            await it.writer.submit(emit("a"))


async def test_a_problem_listener_that_raises_stops_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)

        def shout(what: str, sentence: str) -> None:
            raise ValueError("the listener's fault")

        it.writer.listen(WriterListener(storage_changed=shout))
        it.connection.faults = [("COMMIT", failure(sqlite3.SQLITE_FULL))] * 6
        assert await it.writer.submit(emit("a")) == "a"


# --- The disk ------------------------------------------------------------------------------------------------------


class Disk:
    """Stands in for ``os.fdatasync``: each sync waits until it is let go, or fails with ``error``."""

    def __init__(self) -> None:
        self.syncs = 0
        self.error: OSError | None = None
        self.go = threading.Event()

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        assert os.readlink(f"/proc/self/fd/{descriptor}").endswith("state.db-wal")
        assert self.go.wait(LIMIT_SECONDS)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fdatasync", disk.sync)
    yield disk
    disk.go.set()


async def test_only_what_is_durable_waits_for_the_disk_and_for_all_before_it(tmp_path: Path, disk: Disk) -> None:
    on_disk: list[Event] = []
    async with desk(tmp_path, events_durable=on_disk.extend) as it:
        assert await it.writer.submit(emit("a")) == "a"
        answer = it.writer.submit(emit("b"), durable=True)
        assert await it.writer.submit(emit("c")) == "c"  # commits go on meanwhile
        assert it.stored() == ["a", "b", "c"] == [event.payload.what for event in it.events]
        assert not answer.done() and not on_disk
        disk.go.set()
        assert await answer == "b"
        assert [event.payload.what for event in on_disk][:2] == ["a", "b"]
    assert [event.payload.what for event in on_disk] == ["a", "b", "c"]
    assert disk.syncs <= 3


async def test_a_read_waits_for_what_it_may_have_read(tmp_path: Path, disk: Disk) -> None:
    async with desk(tmp_path) as it:
        await it.writer.submit(emit("a"))
        count = it.writer.submit(lambda transaction: transaction.connection.total_changes, durable=True)
        await it.writer.submit(lambda transaction: None)
        assert not count.done()
        disk.go.set()
        await count
        syncs = disk.syncs
        await it.writer.submit(lambda transaction: None, durable=True)
        assert disk.syncs == syncs  # nothing was written since


async def test_a_thousand_commits_that_nobody_waits_for_share_syncs(tmp_path: Path, disk: Disk) -> None:
    disk.go.set()
    async with desk(tmp_path) as it:
        began = asyncio.get_running_loop().time()
        for number in range(1000):
            await it.writer.submit(emit(str(number)))
        seconds = asyncio.get_running_loop().time() - began
    assert disk.syncs <= seconds / SHARED_SYNC_SECONDS + 2


async def test_with_full_durability_each_commit_syncs_itself(tmp_path: Path, disk: Disk) -> None:
    on_disk: list[Event] = []
    loop = asyncio.get_running_loop()
    connection = database.open_for_writing(tmp_path / "state.db", "full")
    writer = Writer(connection, loop, lambda: 42, WriterListener(events_durable=on_disk.extend))
    await writer.submit(emit("a"))
    assert len(on_disk) == 1 and not disk.syncs
    await writer.close()


async def test_after_a_failed_sync_nothing_is_promised_any_more(tmp_path: Path, disk: Disk) -> None:
    """The kernel reports a failed sync once: the next one would succeed although the data is gone."""
    failures: list[StorageError] = []
    on_disk: list[Event] = []
    async with desk(tmp_path, writing_failed=failures.append, events_durable=on_disk.extend) as it:
        await it.writer.submit(emit("a"))
        answer = it.writer.submit(emit("b"), durable=True)
        await it.writer.submit(emit("c"))
        later = it.writer.submit(emit("d"), durable=True)
        disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
        disk.go.set()
        await asyncio.wait([answer, later])
        for future in (answer, later, it.writer.submit(emit("e")), it.writer.submit(emit("f"), durable=True)):
            with pytest.raises(
                StorageError, match=r"the disk failed while .*/state.db was synced \(Input/output error\)"
            ):
                await future
        disk.error = None
        with pytest.raises(StorageError, match="its last changes may be lost, and none of them was reported"):
            await it.writer.submit(emit("g"), durable=True)
        assert len(failures) == 1 and not on_disk and disk.syncs == 1
    assert (tmp_path / "state.db-wal").stat().st_size  # not copied into the file: its sums tell what is whole
    assert it.stored()[:3] == ["a", "b", "c"]


@pytest.mark.parametrize("left", [0, 4000])
@pytest.mark.parametrize("cache_pages", [500, 1])
async def test_a_log_that_is_cut_short_ends_the_writer(tmp_path: Path, left: int, cache_pages: int) -> None:
    """What its memory still holds is saved. The file is left as it was at its last checkpoint, and whole."""
    it = Desk(tmp_path / "state.db")
    it.connection.execute(f"PRAGMA cache_size = {cache_pages}")
    for number in range(50):
        await it.writer.submit(emit(f"{number} " + "x" * 3000))
    os.truncate(f"{it.path}-wal", left)
    it.writer.check_files()
    with pytest.raises(StorageError, match=f"somebody has cut {it.path}-wal short"):
        await it.writer.submit(emit("more"), durable=True)
    before = it.path.read_bytes()
    await it.writer.close()
    assert it.path.read_bytes() == before
    rescued = it.path.with_name("state.db.rescued")
    assert rescued.exists() is (cache_pages > 1)
    for path in [it.path] + [rescued] * rescued.exists():
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            count = connection.execute("SELECT count(*) FROM event").fetchone()[0]
        assert count == (50 if path == rescued else 0)


def create_run(run_id: str) -> Callable[[Transaction], None]:
    """An item that makes a run with output larger than the cache of a connection."""

    def item(transaction: Transaction) -> None:
        flow = FlowSpec("f", (TaskSpec("a"), TaskSpec("b", ("a",))))
        runs.create_run(
            transaction, run_id=run_id, flow=flow, max_parallel=1, params={}, at=transaction.at, deadline_at=None
        )
        for number in range(700):
            transaction.emit(StorageChanged(f"{number}" + "x" * 4000), run_id)

    return item


async def test_of_a_file_that_is_cut_short_each_run_is_saved_that_can_be_read(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.writer.submit(create_run("lost"))
    it = Desk(tmp_path / "state.db")
    await it.writer.submit(create_run("whole"))
    os.truncate(it.path, it.path.stat().st_size // 3)
    it.writer.check_files()
    rescued = it.path.with_name("state.db.rescued")
    with pytest.raises(StorageError, match=f"cut {it.path} short; 1 of 2 runs are kept in {rescued}, the others are"):
        await it.writer.submit(emit("more"), durable=True)
    await it.writer.close()
    with closing(sqlite3.connect(rescued)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM event WHERE run_id = 'whole'").fetchone() == (701,)
        assert list(runs.load_run(connection, "whole").tasks) == ["a", "b"]
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (1,)


async def test_a_file_that_is_cut_short_after_the_last_commit_is_saved_at_its_closing(tmp_path: Path) -> None:
    it = Desk(tmp_path / "state.db")
    await it.writer.submit(emit("a"))
    os.truncate(it.path, 4096)
    with pytest.raises(StorageError, match=f"somebody has cut {it.path} short; all of it is kept"):
        await it.writer.close()


async def test_a_log_that_another_program_has_emptied_by_a_checkpoint_is_no_loss(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.writer.submit(emit("x" * 9000))
        with closing(sqlite3.connect(it.path)) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        assert os.path.getsize(f"{it.path}-wal") == 0
        it.writer.check_files()
        await it.writer.submit(emit("more"), durable=True)
        os.truncate(f"{it.path}-wal", 0)
        with pytest.raises(StorageError, match="cut"):
            await it.writer.submit(emit("lost"), durable=True)


async def test_a_sync_that_fails_at_the_end_is_raised(tmp_path: Path, disk: Disk) -> None:
    it = Desk(tmp_path / "state.db")
    await it.writer.submit(emit("a"))
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    disk.go.set()
    with pytest.raises(StorageError, match="the disk failed"):
        await it.writer.close()


@pytest.mark.parametrize("durability", ["full", "normal"])
async def test_a_commit_whose_sync_fails_is_not_tried_again(tmp_path: Path, durability: Durability) -> None:
    failures: list[StorageError] = []
    async with desk(tmp_path, durability=durability, writing_failed=failures.append) as it:
        it.connection.faults = [("COMMIT", failure(sqlite3.SQLITE_IOERR_FSYNC))]
        for what in "ab":
            with pytest.raises(StorageError, match="the disk failed"):
                await it.writer.submit(emit(what))
        assert len(failures) == 1 and not it.events and it.stored() == []


# --- Real trouble --------------------------------------------------------------------------------------------------


async def test_a_file_that_may_not_grow_is_written_once_it_may(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.writer.submit(emit("small"))
        (pages,) = it.connection.execute("PRAGMA page_count").fetchone()
        it.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        texts = [
            it.writer.submit(lambda transaction: transaction.emit(StorageChanged("big", "x" * 20_000)))
            for _ in range(5)
        ]
        await it.degraded.wait()
        assert "full" in it.problems[0][1] and it.stored() == ["small"]
        it.connection.execute("PRAGMA max_page_count = 1000000")
        await asyncio.gather(*texts)
        assert it.stored() == ["small"] + ["big"] * 5
        assert database.integrity_check(it.connection.real) == []


async def test_a_limit_of_the_file_size_is_survived(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the write fails with an input/output error, as on a failing disk, and is not called one."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with desk(tmp_path) as it:
        await it.writer.submit(emit("small"))
        log = Path(f"{it.path}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (log + 8192, old[1]))
        try:
            big = it.writer.submit(lambda transaction: transaction.emit(StorageChanged("big", "x" * 200_000)))
            await it.degraded.wait()
            assert "ulimit -f" in it.problems[0][1]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, handler)
        await big
        assert it.stored() == ["small", "big"]


async def test_another_programs_lock_is_waited_for(tmp_path: Path) -> None:
    async with desk(tmp_path, limits=FlushLimits(retries=0, backoff_seconds=0.001, cap_seconds=0.01)) as it:
        it.connection.execute("PRAGMA busy_timeout = 1")
        other = sqlite3.connect(it.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = it.writer.submit(emit("patient"))
        await it.degraded.wait()
        assert "locked" in it.problems[0][1]
        other.execute("ROLLBACK")
        other.close()
        assert await waiting == "patient"


# --- Under a thread of the caller's choice -------------------------------------------------------------------------


class InlineThread:
    """Runs what it is given at once: a simulation has no threads."""

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        on_done(work(), None)

    def close(self) -> None:
        """There is no thread."""


async def test_a_simulation_commits_without_threads(tmp_path: Path) -> None:
    async with desk(tmp_path, thread=InlineThread()) as it:
        assert await asyncio.gather(*(it.writer.submit(emit(str(number))) for number in range(3))) == ["0", "1", "2"]
        assert it.stored() == ["0", "1", "2"]


async def test_a_write_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        go_on = threading.Event()
        slow = it.writer.submit(lambda transaction: go_on.wait(60))
        for _ in range(20):
            await asyncio.sleep(0.001)  # the loop turns
        assert not slow.done()
        go_on.set()
        assert await slow


async def test_a_machine_without_a_thread_left_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a writer that never wrote, and an executor that nothing could stop."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(database.open_for_writing(tmp_path / "state.db")) as connection:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageError, match="can't start new thread; raise the limit"):
            Writer(connection, asyncio.get_running_loop(), lambda: 0)


async def test_threads_that_tasks_take_later_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = database.open_for_writing(tmp_path / "state.db")
    writer = Writer(connection, asyncio.get_running_loop(), lambda: 0)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("a thread starts"))
    await writer.submit(lambda transaction: transaction.emit(StorageChanged("recovered", "again")), durable=True)
    await writer.close()
