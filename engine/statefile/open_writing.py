"""Opens a state file for writing, and upgrades it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The caller holds the lock of the file (``lock_file.py``). The executor uses ``database.open_for_writing``, which also
creates the file; the command client uses ``open_existing``.
"""

import sqlite3
from contextlib import contextmanager
from typing import Iterator, Sequence

from ..errors import ForeignFileError
from .formats import FORMATS, SCHEMA_VERSION, Column, column_names, created_name, later_formats
from .opening import APPLICATION_ID, check_tables, check_version, file_uri

BUSY_SECONDS = 5.0  # layer A of three: the wait inside SQLite itself (002)
CACHED_STATEMENTS = 512


def open_existing(path: str) -> sqlite3.Connection:
    """Open a state file for one command, without checkpoints. Readers in this process keep their locks.

    Raises ForeignFileError, NewerFileError or sqlite3.Error; the file is unchanged then.
    """
    connection = connect(path)
    try:
        version = check_ours(connection, path)  # by SQLite: reading the header directly drops the locks of a reader
        check_tables(connection, path, version)
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


def check_ours(connection: sqlite3.Connection, path: str) -> int:
    """The format of the file. Raises ForeignFileError for the database of another program, NewerFileError."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path} is an SQLite database of another program, not a redrive state file")
    return check_known_version(connection, path)


def check_known_version(connection: sqlite3.Connection, path: str) -> int:
    """The format of the file, 0 for an empty one. Raises NewerFileError."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    check_version(path, version)
    return version


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


# --- Upgrades a state file of an earlier format (``formats.py``) -----------------------------------------------------


def upgrade(connection: sqlite3.Connection, path: str) -> None:
    """Bring a file to the latest format in the transaction of the caller, who holds the lock of the file.

    Raises NewerFileError for a file of a later format.
    """
    version = check_known_version(connection, path)
    if version < SCHEMA_VERSION:
        _add_missing(connection, version)
        set_version(connection)


def set_version(connection: sqlite3.Connection) -> None:
    """Mark the file as being in the latest format."""
    connection.execute("PRAGMA user_version = {}".format(SCHEMA_VERSION))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))


def _add_missing(connection: sqlite3.Connection, version: int) -> None:
    """Add what a file of format ``version`` lacks, in the transaction of the caller."""
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for later in later_formats(version):
        for sql in later.tables:
            if created_name(sql) not in there:
                connection.execute(sql)
        add_columns(connection, later.columns)
        for sql in later.indexes:
            if created_name(sql) not in there:
                connection.execute(sql)


def add_columns(connection: sqlite3.Connection, columns: Sequence[Column]) -> None:
    """Add the columns that are missing in the tables that there are."""
    for column in columns:
        names = column_names(connection, column.table)
        if names and column.name not in names:
            connection.execute("ALTER TABLE {} ADD COLUMN {} {}".format(*column))


def columns_of_all_formats() -> Sequence[Column]:
    return [column for number in sorted(FORMATS) for column in FORMATS[number].columns]
