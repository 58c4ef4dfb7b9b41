"""Opens a state file for writing; refuses to go on with a run in a copy of its file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The executor uses ``database.open_for_writing``, which also creates the file; who changes a file without an executor
uses ``write_alone``.
"""

import os
import sqlite3
from contextlib import closing, contextmanager
from typing import Iterator, Optional

from ..domain.rows import ExecutorState
from ..domain.text import advised
from ..errors import CopiedFileError, ForeignFileError
from .copies import living_original
from .opening import APPLICATION_ID, check_tables, check_version, format_of
from .ownership import locked_file, try_acquire
from .paths import file_uri

BUSY_SECONDS = 5.0  # layer A of three: the wait inside SQLite itself (002)
CACHED_STATEMENTS = 512


@contextmanager
def write_alone(path: str) -> "Iterator[Optional[sqlite3.Connection]]":
    """Make one transaction in a state file without an executor; None: another process owns the file.

    Raises StorageError, StateFileError, sqlite3.Error.
    """
    lock = try_acquire(path)
    if lock is None:
        yield None
        return
    try:
        with locked_file(path), closing(open_existing(path)) as connection, write_transaction(connection):
            yield connection
    finally:
        os.close(lock)


def open_existing(path: str) -> sqlite3.Connection:
    """Open a state file for one command, without checkpoints. Readers in this process keep their locks.

    Raises ForeignFileError, OtherFormatError or sqlite3.Error; the file is unchanged then.
    """
    connection = connect(path)
    try:
        check_ours(connection, path)  # by SQLite: reading the header directly drops the locks of a reader
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: str) -> sqlite3.Connection:
    """Open an existing file to read and write it. Raises sqlite3.Error."""
    return sqlite3.connect(
        file_uri(path, "mode=rw"),
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # ``write_transaction`` sends BEGIN and COMMIT
        check_same_thread=False,  # opened in one thread, used by the writer thread only
        cached_statements=CACHED_STATEMENTS,
    )


def check_ours(connection: sqlite3.Connection, path: str) -> None:
    """Raises ForeignFileError for the database of another program, OtherFormatError, CorruptFileError."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path} is an SQLite database of another program, not a redrive state file")
    check_version(path, format_of(connection))
    check_tables(connection, path)


def refuse_copy(connection: sqlite3.Connection, path: str, run_id: Optional[str]) -> None:
    """Raise CopiedFileError if the run goes on, or has ended, in the original of this file."""
    original = living_original(connection, path, run_id)
    if original is not None:
        copy = ExecutorState(original=original.path, pid=original.pid)
        resume = advised("resume", path, run_id or None, ["--copy"])
        raise CopiedFileError(f"{path} is {copy.copy_sentence}: act there; {resume} goes on here")


@contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end; roll back if an exception is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
