"""The lock file as a commander takes it: without waiting, and only the file that others find under its name."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from redrive.engine.domain.rows import RunFacts
from redrive.engine.errors import StorageError
from redrive.engine.statefile import lock_file, ownership
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import needs_of
from redrive.engine.statefile.state_files import FileRow
from redrive.engine.store import lock


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "night.db")


@pytest.fixture
def owned(state: str) -> Iterator[lock.StateLock]:
    held = lock.acquire(state, "executor-1", "monday")
    yield held
    held.release()


def test_a_free_lock_is_taken_and_an_owned_one_is_not(state: str) -> None:
    taken = ownership.try_acquire(state)
    assert taken is not None and ownership.try_acquire(state) is None
    os.close(taken)
    lock.acquire(state, "executor-1").release()


def test_an_owner_is_not_disturbed(state: str, owned: lock.StateLock) -> None:
    assert ownership.try_acquire(state) is None
    assert lock_file.last_holder(state) == owned.holder


def test_where_locks_are_refused_files_are_read_and_not_written(
    state: str, owned: lock.StateLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some mounts of NFS do: the process of the holder, or the age of its sign of life, says whether it lives."""
    other = lock_file.LockHolder("executor-2", 7, 1, "boot", "another-host", 1)
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    assert lock_file.executor_of(state, False, time.time_ns() // 1000, None).alive
    assert lock_file.current_holder(state) == owned.holder
    with pytest.raises(StorageError, match=r"refuses locks .* use a local disk"):
        ownership.try_acquire(state)
    Path(lock_file.lock_path(state)).write_text(json.dumps(other._asdict()))
    assert lock_file.current_holder(state) == other
    os.utime(lock_file.lock_path(state), (1, 1))
    assert lock_file.current_holder(state) is None
    assert lock_file.executor_of(state, False, time.time_ns() // 1000, None).is_unseen


def test_a_lock_file_that_loses_its_name_meanwhile_is_not_taken(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that is refused removes the lock file that it made: the next one would lock another file."""
    try_lock = lock_file.try_lock

    def lose_the_name(descriptor: int, kind: int) -> bool:
        Path(lock_file.lock_path(state)).unlink()
        return try_lock(descriptor, kind)

    monkeypatch.setattr(ownership, "try_lock", lose_the_name)
    assert ownership.try_acquire(state) is None


def test_a_holder_of_a_later_version_is_read(state: str, owned: lock.StateLock) -> None:
    path = Path(lock_file.lock_path(state))
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "blue"}))
    assert lock_file.current_holder(state) == owned.holder


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/night\.db\.lock"):
        ownership.try_acquire(str(tmp_path / "nowhere" / "night.db"))


def test_nobody_knows_of_a_silent_executor_whose_lock_cannot_be_read(
    state: str, owned: lock.StateLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock belongs to another user: a missing sign of life is no end, and no reason to resume."""
    monkeypatch.setattr(lock_file, "_read_lock", lambda path: (None, False))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    seen_at = lock_file.heartbeat_at(state)
    assert seen_at is not None
    assert lock_file.executor_of(state, False, seen_at + 1_000_000, None).alive
    silent = lock_file.executor_of(state, False, seen_at + 9_000_000, None)
    assert not silent.alive and silent.is_unseen
    run = RunFacts("r", "etl", 1, state="RUNNING")
    (need,) = needs_of([FileRow("f", runs=[run], executor=silent)], 10)
    assert (need.kind, need.executor.place) == (NeedKind.LOST, ", which another user runs,")
