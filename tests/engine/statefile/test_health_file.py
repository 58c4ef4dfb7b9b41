"""``<state>.health``: what an executor knows and cannot commit, found by readers whenever its writer was killed."""

from __future__ import annotations

import os
import random
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.engine.domain.rows import FailingSender, Health
from redrive.engine.errors import StateFileError
from redrive.engine.executor.health import HealthFile
from redrive.engine.statefile import health_file
from redrive.engine.statefile.health_file import health_path, inodes_of, read_health
from redrive.engine.statefile.opening import open_readonly
from redrive.engine.statefile.state_files import file_row_of
from redrive.engine.store.database import open_for_reading, open_for_writing
from redrive.engine.store.lock import StateLock, acquire

FULL = Health("one", 5, "the disk is full", {"a": 3, "b": 4}, [FailingSender("command", "exit status 1", 3)])


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "night.db")


@pytest.fixture
def lock(state: str) -> Iterator[StateLock]:
    held = acquire(state, "one")
    yield held
    held.release()


def test_a_reader_finds_what_the_living_executor_wrote_last(state: str, lock: StateLock) -> None:
    file = HealthFile(state)
    file.write(Health("one"))
    assert read_health(state) == Health("one", None, "", {}, [])
    file.write(FULL)
    assert read_health(state) == FULL
    assert os.stat(health_path(state)).st_mode & 0o777 == 0o600
    file.close()
    assert read_health(state) is None and not os.path.exists(health_path(state))


def test_what_a_dead_executor_has_left_says_nothing(state: str) -> None:
    held = acquire(state, "one")
    HealthFile(state).write(FULL)
    held.drop()
    assert read_health(state) is None
    other = acquire(state, "two")
    assert read_health(state) is None
    HealthFile(state).write(Health("two"))
    assert read_health(state) == Health("two", None, "", {}, [])
    other.release()


@pytest.mark.parametrize("why", ["all of it is kept in night.db.rescued", ""])
@pytest.mark.parametrize("what", ["replaced", "linked", "removed", "ours"])
def test_another_file_than_the_open_one_is_not_read(state: str, lock: StateLock, what: str, why: str) -> None:
    """SQLite would join it with the log of the open one, and call that damage, or show rows of both."""
    open_for_writing(state).close()
    file = HealthFile(state)
    file.write(Health("one", 5 if why else None, why, inodes=inodes_of(state)))
    if what != "ours":
        os.rename(state, f"{state}.ours")
    if what == "replaced":
        Path(state).write_bytes(Path(f"{state}.ours").read_bytes())
    if what == "linked":
        os.symlink(f"{state}.ours", state)
    if what == "ours":
        assert "is not the file" not in str(file_row_of(state).problem)
        return
    said = f"is not the file that pid {os.getpid()} on .* {why or 'its next look at the file'}"
    with pytest.raises(StateFileError, match=said):
        open_readonly(state)
    with pytest.raises(StateFileError, match=said):
        open_for_reading(state)
    assert re.search(said, str(file_row_of(state).problem))


def test_a_write_needs_no_room(state: str, lock: StateLock) -> None:
    file = HealthFile(state)
    before, limits = os.stat(health_path(state)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before.st_size, limits[1]))
    try:
        for number in range(4):
            file.write(FULL._replace(storage_since=number))
            found = read_health(state)
            assert found is not None and found.storage_since == number
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = os.stat(health_path(state))
    assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)


def test_a_write_that_was_cut_off_leaves_the_one_before(state: str, lock: StateLock) -> None:
    file = HealthFile(state)
    file.write(FULL._replace(storage_since=1))
    before = Path(health_path(state)).read_bytes()
    file.write(FULL._replace(storage_since=2))
    after = Path(health_path(state)).read_bytes()
    with open(health_path(state), "r+b", buffering=0) as written:  # a file that is cut to nothing and closed is flushed
        for size in range(len(after) + 1):
            written.truncate(os.pwrite(written.fileno(), after[:size] + before[size:], 0))
            found = read_health(state)
            assert found is not None and found.storage_since in (1, 2)


def test_any_bytes_are_an_answer(state: str, lock: StateLock) -> None:
    file, dice = HealthFile(state), random.Random(3)
    file.write(FULL)
    whole = Path(health_path(state)).read_bytes()
    for _ in range(300):
        start = dice.randrange(len(whole))
        Path(health_path(state)).write_bytes(whole[:start] + dice.randbytes(dice.randrange(60)) + whole[start + 9 :])
        assert read_health(state) in (None, FULL, Health("one", None, "", {}, []), Health("", None, "", {}, []))


@pytest.mark.parametrize("text", ["é" * 5000, "\x00" * 5000, '"' * 5000])
def test_what_is_too_long_is_cut(state: str, lock: StateLock, text: str) -> None:
    ends, senders = {f"{text}{number}": 1 for number in range(500)}, [FailingSender(text[:50], text, 1)] * 9
    HealthFile(state).write(Health("one", 1, text, ends, senders))
    found = read_health(state)
    assert found is not None and found.storage_since == 1 and found.storage_why
    assert text.startswith(found.storage_why) and os.path.getsize(health_path(state)) == 2 * health_file.SLOT_BYTES


def test_a_sentence_with_its_commands_stays_whole_as_long_as_it_fits(state: str, lock: StateLock) -> None:
    why = "mv /a/long/path /another/long/path && " * 30 + "redrive resume"
    HealthFile(state).write(Health("one", 1, why, dict.fromkeys(map(str, range(500)), 1), []))
    found = read_health(state)
    assert found is not None and found.storage_why == why and found.ended


@pytest.mark.parametrize("plant", ["link", "hard link", "pipe", "folder"])
def test_what_somebody_has_planted_is_not_written(state: str, lock: StateLock, tmp_path: Path, plant: str) -> None:
    target, path = tmp_path / "precious", Path(health_path(state))
    target.write_text("mine")
    {
        "link": lambda: path.symlink_to(target),
        "hard link": lambda: path.hardlink_to(target),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[plant]()
    HealthFile(state).write(FULL)
    assert target.read_text() == "mine" and read_health(state) == (None if plant == "folder" else FULL)
