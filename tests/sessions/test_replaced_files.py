"""Files that were replaced, removed, copied or damaged, through every kind of session."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redrive.console.model.session_status import Link
from redrive.console.sessions.local import LocalSession
from redrive.engine.errors import (
    CorruptFileError,
    ForeignFileError,
    OtherFormatError,
    RedriveError,
    SnapshotNeeded,
    StateFileError,
)
from redrive.engine.statefile import lock_file
from redrive.engine.store import database
from support.marks import parametrize_mostly_long
from support.state_file import StateFileBuilder
from support.waiting import wait_until_async

from .conftest import OpenSession
from .session_helpers import LIMIT_SECONDS, read_events, wait_for_status


@parametrize_mostly_long("replace", [os.replace, shutil.copyfile], quick=1)
async def test_another_file_gives_a_new_picture(
    open_session: OpenSession,
    run_file: StateFileBuilder,
    make_run_file: Callable[..., StateFileBuilder],
    replace: Callable[[Path, Path], object],
) -> None:
    run_file.close()
    session = await open_session(run_file.path)
    events = session.events((await session.snapshot()).seq)
    assert not await anext(events)
    other = make_run_file("other.db", run_id="other-1")
    other.close()
    replace(other.path, run_file.path)
    with pytest.raises(SnapshotNeeded):
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                await anext(events)
    projection = await session.snapshot()
    assert projection.run.run_id == "other-1"
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert not await anext(session.events(projection.seq))


async def test_events_that_were_removed_ask_for_a_new_picture(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.emit_idle_events(50)
    session = await open_session(run_file.path)
    run_file.write(lambda transaction: transaction.connection.execute("DELETE FROM event WHERE seq < 40"))
    with pytest.raises(SnapshotNeeded):
        await anext(session.events(10))
    kept = await read_events(session.events(39), run_file.head())
    assert kept[0].seq == 40


async def test_a_file_with_less_than_was_read_asks_for_a_new_picture(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await open_session(run_file.path)
    with pytest.raises(SnapshotNeeded):
        await anext(session.events(run_file.head() + 1))


async def test_a_file_that_is_gone_is_reported_and_found_again(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.close()
    session = await open_session(run_file.path)
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
        assert not session.status.executor.alive and session.status.executor.gone_at is None
    finally:
        await session.close()


async def test_a_file_at_rest_is_followed_when_somebody_writes_again(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.close()
    session = await open_session(run_file.path)
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


async def test_reading_leaves_no_trace_beside_a_file_at_rest(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.close()
    before = sorted(os.listdir(run_file.path.parent))
    bytes_before = run_file.path.read_bytes()
    session = await open_session(run_file.path)
    await session.snapshot()
    assert await anext(session.events(0))
    await session.close()
    assert sorted(os.listdir(run_file.path.parent)) == before
    assert run_file.path.read_bytes() == bytes_before


async def test_a_reader_does_not_hold_the_log_back(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    events = session.events(0)
    await read_events(events, run_file.head())
    run_file.emit_idle_events(20)
    await read_events(events, run_file.head())
    checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"  # it waits for a read that goes on, and not for ever
    await wait_until_async(lambda: run_file.connection.execute(checkpoint).fetchone() == (0, 0, 0))


@parametrize_mostly_long(
    ("content", "error"),
    [
        (None, StateFileError),
        (b"", StateFileError),
        (b"not a database at all" * 100, ForeignFileError),
        (b"SQLite format 3\x00cut", CorruptFileError),
    ],
    quick=3,
)
async def test_what_is_no_state_file_is_refused(
    open_session: OpenSession, tmp_path: Any, content: Any, error: Any
) -> None:
    path = tmp_path / "odd.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match="odd"):
        await open_session(path)
    assert (path.read_bytes() if content is not None else None) == content


async def test_somebody_elses_database_is_refused(open_session: OpenSession, tmp_path: Any) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    with pytest.raises(ForeignFileError):
        await open_session(tmp_path / "other.db")


async def test_a_file_of_a_later_version_is_refused(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    run_file.connection.execute("PRAGMA user_version = 99")
    run_file.close()
    with pytest.raises(OtherFormatError):
        await open_session(run_file.path)


@parametrize_mostly_long(
    "name", ["a b.db", "a?b#c.db", "100%.db", "a%20b.db", "naïve-日本.db", "'q\"$(id).db", "-x.db"], quick=5
)
async def test_a_path_may_hold_anything(
    open_session: OpenSession, make_run_file: Callable[..., StateFileBuilder], name: str
) -> None:
    run_file = make_run_file(name)
    projection = await (await open_session(run_file.path)).snapshot()
    assert projection.run.run_id == "night-1"


async def test_a_closed_session_stays_closed(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    await session.close()
    await session.close()
    assert session.status.link is Link.CLOSED
    with pytest.raises(RedriveError):
        await session.snapshot()
