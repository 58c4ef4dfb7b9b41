"""Following a state file: every event once and in order, through crashes of the writer and changes of the file."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redrive.engine.domain.events import Event
from redrive.engine.errors import CorruptFileError, SnapshotNeeded, StateFileError
from redrive.engine.statefile import opening
from redrive.engine.statefile.reader import Reader
from redrive.engine.store import follow
from support.state_file import StateFileBuilder

#: Another process writes, as in life: data_version does not change for commits of the same connection.
WRITER = """
    import sys
    from redrive.engine.domain.event_payloads import ClockMoved
    from redrive.engine.store import database
    from redrive.engine.statefile.transitions import Transaction

    connection = database.open_for_writing(sys.argv[1])
    columns = "run_id, dag_name, started_at, state"
    connection.execute(f"INSERT OR IGNORE INTO run ({columns}) VALUES ('r', 'f', 0, 'RUNNING')")
    number = 0
    for line in sys.stdin:
        count, _, run_id = line.strip().partition(" ")
        for _ in range(int(count)):
            connection.execute("BEGIN IMMEDIATE")
            Transaction(connection, number).emit(ClockMoved(number), run_id or None)
            connection.execute("COMMIT")
            number += 1
        print("done", flush=True)
    connection.close()
    print("closed", flush=True)
"""


class Writer:
    """A process that owns the file and commits on request."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def commit(self, count: int, run_id: str = "") -> None:
        """Returns when the last of ``count`` events is in the file."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{count} {run_id}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        """An orderly end: the log goes into the file and is removed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.readline() == "closed\n"
        self.process.wait()
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    writers: list[Writer] = []

    def run(name: str = "state.db") -> Writer:
        writers.append(Writer(tmp_path / name))
        return writers[-1]

    yield run
    for writer in writers:
        writer.kill()
        for stream in (writer.process.stdin, writer.process.stdout):
            assert stream is not None
            stream.close()


async def read_events(feed: AsyncIterator[list[Event]], count: int) -> list[int]:
    """The numbers of the next ``count`` events."""
    numbers: list[int] = []
    while len(numbers) < count:
        batch = await asyncio.wait_for(anext(feed), 20)
        assert 0 < len(batch) <= follow.BATCH_EVENTS
        numbers += [event.payload.moved_us for event in batch]
    return numbers


async def test_past_and_new_events_are_read_once_and_in_order(tmp_path: Path, start: Callable[..., Writer]) -> None:
    writer = start()
    writer.commit(1200)
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 1200) == list(range(1200))
    for number in range(1200, 1230):
        writer.commit(1)
        assert await read_events(feed, 1) == [number]
    await feed.aclose()  # type: ignore[attr-defined]


async def test_the_last_event_before_a_long_silence_is_not_missed(tmp_path: Path, start: Callable[..., Writer]) -> None:
    writer = start()
    writer.commit(1)
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 1) == [0]
    waiting = asyncio.ensure_future(anext(feed))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    writer.commit(1)
    assert [event.payload.moved_us for event in await asyncio.wait_for(waiting, 20)] == [1]
    await feed.aclose()  # type: ignore[attr-defined]


async def test_following_resumes_where_it_was_left(tmp_path: Path, start: Callable[..., Writer]) -> None:
    start().commit(10)
    feed = follow.follow(tmp_path / "state.db", since=7)
    assert await read_events(feed, 3) == [7, 8, 9]
    await feed.aclose()  # type: ignore[attr-defined]


async def test_a_file_at_rest_is_read_and_its_next_writer_is_noticed(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    first = start()
    first.commit(2)
    first.close()
    assert [item.name for item in tmp_path.glob("state.db*")] == ["state.db"]
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 2) == [0, 1]
    start().commit(1)
    assert await read_events(feed, 1) == [0]
    await feed.aclose()  # type: ignore[attr-defined]


async def test_a_writer_that_is_killed_and_followed_by_another_loses_nothing(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    feed = None
    for _ in range(3):
        writer = start()
        writer.commit(5)
        feed = feed or follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
        assert await read_events(feed, 5) == [0, 1, 2, 3, 4]
        writer.commit(1)
        writer.kill()
        assert await read_events(feed, 1) == [5]
    assert feed is not None
    await feed.aclose()  # type: ignore[attr-defined]


async def test_an_orderly_end_of_the_writer_is_seen_to_its_last_event(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    writer = start()
    writer.commit(1)
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 1) == [0]
    writer.commit(3)
    writer.close()
    assert await read_events(feed, 3) == [1, 2, 3]
    await feed.aclose()  # type: ignore[attr-defined]


async def test_another_file_in_the_same_place_asks_for_a_snapshot(tmp_path: Path, start: Callable[..., Writer]) -> None:
    start().commit(1)
    other = start("other.db")
    other.commit(5)
    other.close()
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 1) == [0]
    os.replace(tmp_path / "other.db", tmp_path / "state.db")
    with pytest.raises(SnapshotNeeded, match="another state file"):
        await asyncio.wait_for(anext(feed), 20)


async def test_a_file_set_back_to_an_older_copy_asks_for_a_snapshot(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    writer = start()
    writer.commit(2)
    writer.close()
    shutil.copyfile(tmp_path / "state.db", tmp_path / "old.db")
    writer = start()
    writer.commit(2)
    writer.close()
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    await read_events(feed, 4)
    os.replace(tmp_path / "old.db", tmp_path / "state.db")
    with pytest.raises(SnapshotNeeded, match="holds less"):
        await asyncio.wait_for(anext(feed), 20)


async def test_to_have_read_more_than_the_file_holds_asks_for_a_snapshot(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    start().commit(1)
    with pytest.raises(SnapshotNeeded, match="holds less"):
        await anext(follow.follow(tmp_path / "state.db", since=99))


async def test_a_file_that_is_gone_or_was_never_there_is_named(tmp_path: Path, start: Callable[..., Writer]) -> None:
    with pytest.raises(StateFileError, match="there is no state file"):
        await anext(follow.follow(tmp_path / "state.db", since=0))
    start().commit(1)
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 1) == [0]
    for item in tmp_path.glob("state.db*"):
        item.unlink()
    with pytest.raises(StateFileError, match="there is no state file"):
        await asyncio.wait_for(anext(feed), 20)


async def test_a_file_cut_short_while_it_rests_is_called_damaged(tmp_path: Path, start: Callable[..., Writer]) -> None:
    writer = start()
    writer.commit(1)
    writer.close()
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    assert await read_events(feed, 1) == [0]
    os.truncate(tmp_path / "state.db", 8192)
    with pytest.raises(CorruptFileError, match="cut short"):
        await asyncio.wait_for(anext(feed), 20)


async def test_a_follower_between_polls_keeps_no_log_from_being_reused(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    """3000 commits beside an open read transaction made 122 MB of log; beside a follower it stays small."""
    writer = start()
    writer.commit(1)
    feed = follow.follow(tmp_path / "state.db", since=0, poll_seconds=0.01)
    seen = 1
    assert await read_events(feed, 1) == [0]
    for _ in range(10):
        writer.commit(400)
        seen += len(await read_events(feed, 400))
    assert seen == 4001
    assert (tmp_path / "state.db-wal").stat().st_size < 8 * 1024 * 1024
    await feed.aclose()  # type: ignore[attr-defined]


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a follower waits for a notice; no look of its own comes after it."""
    monkeypatch.setattr(follow, "IDLE_SECONDS", 3600.0)
    waits, wait = asyncio.Event(), follow.AsyncWriteNotices.wait

    async def observed(notices: follow.AsyncWriteNotices, poll_seconds: float) -> bool:
        waits.set()
        return await wait(notices, poll_seconds)

    monkeypatch.setattr(follow.AsyncWriteNotices, "wait", observed)
    return waits


async def test_an_idle_follower_reads_again_when_the_file_is_written(
    tmp_path: Path, start: Callable[..., Writer], idle: asyncio.Event
) -> None:
    writer = start()
    writer.commit(1)
    feed = follow.follow(tmp_path / "state.db", since=0)
    await read_events(feed, 1)
    for number in (1, 2):
        coming = asyncio.ensure_future(read_events(feed, 1))
        idle.clear()
        await idle.wait()
        writer.commit(1)
        assert await asyncio.wait_for(coming, 30) == [number]
    await feed.aclose()  # type: ignore[attr-defined]


async def test_an_idle_follower_notices_a_writer_that_starts(
    tmp_path: Path, start: Callable[..., Writer], idle: asyncio.Event
) -> None:
    first = start()
    first.commit(1)
    first.close()
    feed = follow.follow(tmp_path / "state.db", since=0)
    await read_events(feed, 1)
    coming = asyncio.ensure_future(read_events(feed, 1))
    await idle.wait()
    start().commit(1)
    assert len(await asyncio.wait_for(coming, 30)) == 1
    await feed.aclose()  # type: ignore[attr-defined]


async def test_an_idle_follower_asks_nothing(
    tmp_path: Path, start: Callable[..., Writer], idle: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console that looks 20 times a second takes one percent of a processor all night."""
    writer = start()
    writer.commit(1)
    asked: list[str] = []
    run_queries = follow._run_queries
    monkeypatch.setattr(follow, "_run_queries", lambda *steps: asked.append("") or run_queries(*steps))
    feed = follow.follow(tmp_path / "state.db", since=0)
    await read_events(feed, 1)
    coming = asyncio.ensure_future(read_events(feed, 1))
    await idle.wait()
    settled = len(asked)
    await asyncio.sleep(10 * follow.POLL_SECONDS)
    assert len(asked) == settled
    coming.cancel()
    await asyncio.wait({coming})


async def test_without_inotify_a_follower_polls(
    tmp_path: Path, start: Callable[..., Writer], idle: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    writer = start()
    writer.commit(1)
    feed = follow.follow(tmp_path / "state.db", since=0)
    await read_events(feed, 1)
    coming = asyncio.ensure_future(read_events(feed, 1))
    await idle.wait()
    writer.commit(1)
    assert len(await asyncio.wait_for(coming, 30)) == 1
    await feed.aclose()  # type: ignore[attr-defined]


async def test_following_leaves_nothing_behind(tmp_path: Path, start: Callable[..., Writer]) -> None:
    writer = start()
    writer.commit(1)
    writer.close()
    before = {item.name: item.read_bytes() for item in tmp_path.glob("state.db*")}
    feed = follow.follow(tmp_path / "state.db", since=0)
    await read_events(feed, 1)
    await feed.aclose()  # type: ignore[attr-defined]
    assert {item.name: item.read_bytes() for item in tmp_path.glob("state.db*")} == before
    open_files = [
        os.readlink(f"/proc/self/fd/{number}")
        for number in os.listdir("/proc/self/fd")
        if number.isdigit() and os.path.exists(f"/proc/self/fd/{number}")
    ]
    assert not any(str(tmp_path) in name for name in open_files)


async def test_a_damaged_byte_in_one_event_does_not_hide_the_others(
    tmp_path: Path, start: Callable[..., Writer]
) -> None:
    writer = start()
    writer.commit(3)
    writer.close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("UPDATE event SET reason = CAST(x'62ff64' AS TEXT) WHERE seq = 2")
    connection.commit()
    connection.close()
    feed = follow.follow(tmp_path / "state.db", since=0)
    assert await read_events(feed, 3) == [0, 1, 2]
    await feed.aclose()  # type: ignore[attr-defined]


def test_a_file_replaced_while_it_was_closed_is_reported_once(tmp_path: Path, start: Callable[..., Writer]) -> None:
    """Also when somebody has read from the new file before: the reading must not hide it."""
    for name in ("state.db", "other.db"):
        writer = start(name)
        writer.commit(1)
        writer.close()
    reader = Reader(str(tmp_path / "state.db"))
    assert reader.changed() and not reader.changed()
    before = reader.uuid
    reader.close()
    os.replace(tmp_path / "other.db", tmp_path / "state.db")
    assert reader.last_seq_after(0) == 1
    with pytest.raises(SnapshotNeeded, match="another state file"):
        reader.changed()
    assert reader.uuid != before and reader.changed() and not reader.changed()
    reader.close()


class SlowToClose:
    """A connection to a file on a slow disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def close(self) -> None:
        time.sleep(0.05)
        self._connection.close()


async def test_a_follower_that_is_cancelled_again_and_again_leaves_no_thread(
    run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is still closing reports to a loop that may be closed by then."""
    opened, original = threading.Event(), opening.open_readonly

    def open_slow_disk(path: str) -> opening.ReadonlyDatabase:
        connection, is_static = original(path)
        opened.set()
        return opening.ReadonlyDatabase(SlowToClose(connection), is_static)  # type: ignore[arg-type]

    async def read() -> None:
        async for _ in follow.follow(run_file.path, 0):
            pass

    monkeypatch.setattr(opening, "open_readonly", open_slow_disk)
    for turns in range(8):  # of the loop behind the opening: the thread starts in one of them
        opened.clear()
        reading = asyncio.create_task(read())
        while not opened.is_set() and not reading.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        while not reading.done():
            reading.cancel()
            await asyncio.sleep(0)
        assert reading.cancelled()
        assert [thread.name for thread in threading.enumerate() if "connection_worker" in thread.name] == []
