"""Opens a state file read-only: never writes, never checkpoints, creates nothing in its folder.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import shutil
import sqlite3
import tempfile
from typing import NamedTuple
from urllib.parse import quote

from ..errors import CorruptFileError, StateFileError, StorageError
from .file_systems import network_problem
from .header import check_version, has_content, inspect

BUSY_SECONDS = 5.0
VALUE_BYTES_MAX = 64 * 1024 * 1024  # of a row; a longer one is not ours
TABLES = {"attempt", "breaker", "edge", "event", "executor", "log", "log_size", "meta", "page", "page_task"}
TABLES |= {"pruned_run", "quarantine", "run", "schedule", "sla", "slot", "task"}


class ReadonlyDatabase(NamedTuple):
    """A read-only connection. ``is_static``: it shows the content at its opening; reopen when the file changes."""

    connection: sqlite3.Connection
    is_static: bool


def open_readonly(path: str) -> ReadonlyDatabase:
    """Open the state file in the best way that its state allows.

    Never call this while this process has another connection to the file: reading the header would drop the locks of
    that connection (https://sqlite.org/howtocorrupt.html, section 2.2). Raises StateFileError or one of its kinds.
    """
    problem = network_problem(path)
    if problem:
        raise StateFileError(problem)
    try:
        if inspect(path) is None:
            raise StateFileError("{} is empty: no run has been recorded in it".format(path))
    except FileNotFoundError:
        raise StateFileError("there is no state file {}".format(path)) from None
    try:
        return _open(path)
    except sqlite3.OperationalError as error:
        raise StorageError("{} cannot be read: {}".format(path, error)) from error
    except (sqlite3.Error, ValueError) as error:  # SQLite quotes a damaged schema
        raise CorruptFileError("{} is damaged ({}); restore a copy".format(path, error)) from error


def file_uri(path: str, options: str) -> str:
    """A file URI. Unquoted, ``a?b.db`` would open another file, and create it."""
    return "file:{}?{}".format(quote(os.fsencode(os.path.abspath(path))), options)


def _open(path: str) -> ReadonlyDatabase:
    """Open a file in use live, a crashed one without its -shm as a copy, and any other as immutable.

    ``immutable`` ignores the log, so it is correct only if there is none. ``mode=ro`` creates a missing -shm, which
    an executor of another user could not open.
    """
    if os.path.exists(path + "-shm"):
        try:
            return ReadonlyDatabase(_connect(path, "mode=ro"), is_static=False)
        except sqlite3.OperationalError:
            pass  # this user may not open it, or it has just been removed
    if has_content(path + "-wal"):
        return ReadonlyDatabase(_open_copy(path), is_static=True)
    return ReadonlyDatabase(_connect(path, "immutable=1"), is_static=True)


def _connect(path: str, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        file_uri(path, options), uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        check_version(path, version)
        check_tables(connection, path)
        if hasattr(connection, "setlimit"):  # since Python 3.11
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    except BaseException:
        connection.close()
        raise
    return connection


def check_tables(connection: sqlite3.Connection, path: str) -> None:
    """Raises CorruptFileError if reading or writing a table would run SQL of the file, or if one is missing."""
    connection.execute("PRAGMA trusted_schema=OFF")
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE %'")
    if not TABLES.issubset(name for (name,) in tables):
        raise CorruptFileError("{} is damaged: its tables are missing; restore a copy".format(path))
    if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger'").fetchone():
        raise CorruptFileError("{} has triggers, which no state file has; restore a copy".format(path))


def _open_copy(path: str) -> sqlite3.Connection:
    """Copy a file whose log lacks its index: no process writes, so the copy is complete."""
    with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
        copy = os.path.join(folder, "state.db")
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(path + "-wal", copy + "-wal")
        except OSError as error:
            raise StorageError("cannot copy {} to read it: {}".format(path, error.strerror)) from error
        merging = sqlite3.connect(copy, isolation_level=None)
        merging.execute("PRAGMA journal_mode=DELETE")
        merging.close()
        return ReadonlyDatabase(_connect(copy, "immutable=1"), is_static=True).connection
