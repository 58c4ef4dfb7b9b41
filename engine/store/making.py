"""Makes a state file: whole from the moment at which it has its name.

It is written beside its name, closed, and named by a link, which replaces no file. A making that is cut off leaves
nothing under the name. A file that was there before and holds nothing, as a container mounts one, gets its tables in
place, in one transaction: what a cut leaves there counts as empty (``opening.inspect``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from contextlib import closing
from functools import cache

from ..clock import wall_time_us
from ..errors import ForeignFileError, StateFileError, StorageError
from ..statefile.open_writing import connect, write_transaction
from ..statefile.opening import APPLICATION_ID, SCHEMA_VERSION, check_version, format_of
from ..statefile.ownership import making_prefix, remove_makings

#: Errors of a file system that has no hard links, or lets nobody make one.
_WITHOUT_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EINVAL}


def make(path: str) -> bool:
    """Make the state file of mode 0600, for errors and logs may hold secrets; of a link, the file that it names.

    False: there is a file that holds nothing, which still needs its tables. The caller holds the lock of the file.

    Raises sqlite3.Error, StateFileError or StorageError; nothing is left then.
    """
    real = os.path.realpath(path)
    remove_makings(real)
    if os.path.lexists(real):
        with contextlib.suppress(OSError):  # of another owner, or a file system without modes: doctor names it
            os.chmod(real, 0o600)
        return False
    made = os.path.join(os.path.dirname(real), f"{making_prefix(real)}{os.urandom(8).hex()}.new")
    try:
        tables = tables_alone()
        with open(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(tables)
        with closing(connect(made)) as connection:
            connection.execute("PRAGMA synchronous=OFF")  # ``_name`` syncs all of it
            if tables:
                with write_transaction(connection):
                    _write_facts(connection)
            else:
                require_tables(connection, made)
            set_log_mode(connection, path)
        _name(made, real)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"the disk that holds {path} is full; free some space") from error
        raise StorageError(f"cannot create the state file {path}: {error.strerror}") from error
    finally:
        remove_with_sidecars(made)
    return True


def _name(made: str, path: str) -> None:
    """Give a file its name, which no other file has. Raises OSError."""
    sync(made)
    try:
        os.link(made, path)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.replace(made, path)
    else:
        os.unlink(made)
    sync(os.path.dirname(path))


def sync(path: str) -> None:
    """Wait until a file or a folder is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_with_sidecars(path: str) -> None:
    """Remove a database and what SQLite keeps beside it."""
    for leftover in (path + "-journal", path + "-wal", path + "-shm", path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(leftover)


def require_tables(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables of a file that holds nothing, in one transaction. Raises OtherFormatError, ForeignFileError."""
    version = format_of(connection)
    if version:
        check_version(path, version)
        return
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first table; later it would write a page
    with write_transaction(connection):
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise ForeignFileError(f"{path} is an SQLite database of another program, not a redrive state file")
        create_tables(connection)
        _write_facts(connection)


@cache
def tables_alone() -> bytes:
    """Return a database of the tables without a row, to be copied; empty where SQLite cannot return one.

    A supervisor makes it once for all state files: the statements take longer than the rest of a making.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        if not hasattr(connection, "serialize"):  # SQLite before 3.36, unless it was built with it
            return b""
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        create_tables(connection)
        return connection.serialize()


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables, in the transaction of the caller."""
    with open(os.path.join(os.path.dirname(__file__), "schema.sql"), encoding="utf-8") as schema:
        _run_script(connection, schema.read())
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _write_facts(connection: sqlite3.Connection) -> None:
    facts = {"uuid": os.urandom(16).hex(), "created_at": str(wall_time_us()), "schema_version": str(SCHEMA_VERSION)}
    connection.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", facts.items())


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run a script within the transaction; ``executescript`` would commit it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def set_log_mode(connection: sqlite3.Connection, path: str) -> None:
    """Let the file have a write-ahead log. Raises StateFileError where that does not work."""
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise StateFileError(f"{path} is on a file system without shared memory, where SQLite's WAL does not work")
