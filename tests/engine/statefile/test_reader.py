"""A state file that no process has open is read without locks: a read that a writer has torn is repeated."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from redrive.engine.statefile.reader import READS_MAX, read_whole


class TornRead:
    """A read that finds the file changed under it, the first ``torn`` times."""

    def __init__(self, path: Path, torn: int) -> None:
        self.path, self.torn, self.reads = path, torn, 0
        path.write_bytes(b"")

    def __call__(self) -> str:
        self.reads += 1
        if self.reads > self.torn:
            return "whole"
        with self.path.open("ab") as file:
            file.write(b"a commit")
        if self.reads % 2:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return "torn"


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_read_is_repeated_until_nothing_was_written_meanwhile(tmp_path: Path, torn: int) -> None:
    read = TornRead(tmp_path / "a.db", torn)
    assert (read_whole(str(read.path), read), read.reads) == ("whole", torn + 1)


def test_a_file_that_is_always_written_is_read_a_bounded_number_of_times(tmp_path: Path) -> None:
    read = TornRead(tmp_path / "a.db", torn=READS_MAX + 1)
    with pytest.raises(sqlite3.DatabaseError):
        read_whole(str(read.path), read)
    assert read.reads == READS_MAX


def test_locks_guard_a_file_that_is_in_use(tmp_path: Path) -> None:
    read = TornRead(tmp_path / "a.db", torn=READS_MAX)
    (tmp_path / "a.db-shm").write_bytes(b"index")
    read.reads = 1
    assert (read_whole(str(read.path), read), read.reads) == ("torn", 2)


def test_the_damage_of_a_file_that_nobody_writes_is_said_at_once(tmp_path: Path) -> None:
    reads = []

    def read() -> None:
        reads.append(1)
        raise sqlite3.DatabaseError("database disk image is malformed")

    with pytest.raises(sqlite3.DatabaseError):
        read_whole(str(tmp_path / "a.db"), read)
    assert len(reads) == 1
