"""Opens a state file to change it: the checks and the transaction that the executor and a commander share.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The caller holds the lock of the file (``lock_file.py``). ``database.open_for_writing`` is the executor's way in, which
also makes the file; ``open_existing`` is the way of a commander, for one command.
"""

import sqlite3
from contextlib import contextmanager
from typing import Iterator

from ...errors import ForeignFileError
from ..header import APPLICATION_ID, SCHEMA_VERSION, newer
from ..open_readonly import file_uri

BUSY_SECONDS = 5.0  # layer A of three: the wait inside SQLite itself (document 002)
CACHED_STATEMENTS = 512


def open_existing(path: str) -> sqlite3.Connection:
    """Open a state file for one command; the executor alone checkpoints. A reader in this process keeps its locks.

    Raises ForeignFileError, NewerFileError, sqlite3.Error; the file is unchanged then.
    """
    connection = connect(path)
    try:
        demand_ours(connection, path)  # through SQLite: reading the header by hand would drop the locks of a reader
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
        isolation_level=None,  # we say BEGIN and COMMIT ourselves
        check_same_thread=False,  # opened here, used by the writer's thread alone
        cached_statements=CACHED_STATEMENTS,
    )


def demand_ours(connection: sqlite3.Connection, path: str) -> None:
    """Raises ForeignFileError for the database of another program, NewerFileError for a later format."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path} is an SQLite database of another program, not a redrive state file")
    demand_known_version(connection, path)


def demand_known_version(connection: sqlite3.Connection, path: str) -> int:
    """The format of the file, 0 for an empty one. Raises NewerFileError."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise newer(path, version)
    return version


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing: committed at the end, rolled back where anything is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
