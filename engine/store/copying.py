"""Copies a state file that is in use, including its write-ahead log, also one that has lost pages."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from ..errors import StorageError
from .database import open_for_writing

COPY_SUFFIX = ".rescued"  # of the copy of a file that was lost under a living executor


class PartlySaved(NamedTuple):
    """How many runs of a damaged file were saved, of how many."""

    kept: int
    runs: int


def copy(connection: sqlite3.Connection, target: str) -> None:
    """Copy the database of a connection, which must be in no transaction, and replace ``target`` by the copy.

    Raises StorageError.
    """
    with _made(target) as partial, closing(sqlite3.connect(partial)) as copied:
        connection.backup(copied)


def rescue(connection: sqlite3.Connection, target: str) -> PartlySaved | None:
    """Copy the database of a connection whose file has lost pages; None: all of it was in memory and in the log.

    If it was not, each run that can still be read is copied row by row: the latest are the likeliest to be in memory.

    Raises StorageError if no run can be read.
    """
    with suppress(StorageError), _made(target) as partial, closing(sqlite3.connect(partial)) as copied:
        connection.backup(copied)
        found = str(copied.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if found != "ok":  # SQLite reads the pages behind the end of its file as zeros
            raise sqlite3.DatabaseError(found)
        return None
    with _made(target) as partial:
        os.unlink(partial)
        with closing(open_for_writing(partial)) as copied:
            copied.execute("BEGIN IMMEDIATE")
            saved = _copy_runs(connection, copied)
            copied.execute("COMMIT")
    return saved


def _copy_runs(connection: sqlite3.Connection, copied: sqlite3.Connection) -> PartlySaved:
    """Copy each run that can be read whole, and what of the other tables can be read. Raises sqlite3.Error."""
    tables = [name for (name,) in copied.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = [name for name in tables if not name.startswith("sqlite_")]
    of_runs = [name for name in tables if "run_id" in [row[1] for row in copied.execute(f"PRAGMA table_info({name})")]]
    runs = [run_id for (run_id,) in connection.execute("SELECT run_id FROM run ORDER BY started_at DESC")]
    kept = [run_id for run_id in runs if _copy_rows(connection, copied, of_runs, "WHERE run_id = ?", (run_id,))]
    if not kept:
        raise sqlite3.DatabaseError("no run of it can be read any more")
    for name in tables:
        _copy_rows(connection, copied, [name], "WHERE run_id IS NULL" if name in of_runs else "", ())
    return PartlySaved(len(kept), len(runs))


def _copy_rows(
    connection: sqlite3.Connection, copied: sqlite3.Connection, tables: list[str], where: str, values: tuple[str, ...]
) -> bool:
    """Copy rows of some tables, all or none. False: some cannot be read."""
    copied.execute("SAVEPOINT rows")
    try:
        for table in tables:
            rows = connection.execute(f"SELECT * FROM {table} {where}", values)
            columns = [column[0] for column in rows.description]
            into = f"{table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            copied.executemany(f"INSERT OR REPLACE INTO {into}", rows)
    except sqlite3.DatabaseError:
        copied.execute("ROLLBACK TO rows")
        return False
    copied.execute("RELEASE rows")
    return True


@contextmanager
def _made(target: str) -> Iterator[str]:
    """Yield the path of an empty file of mode 0600 that replaces ``target`` at the end. Raises StorageError."""
    partial = target + ".part"
    try:
        with suppress(FileNotFoundError):  # of an earlier try, or planted: never written through
            os.unlink(partial)
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield partial
        _fsync(partial)
        os.replace(partial, target)
        _fsync(os.path.dirname(target))
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the copy {target} could not be made: {error}") from error


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
