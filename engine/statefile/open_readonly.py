"""Opens a state file to look at it: never writes, never checkpoints, creates nothing in its folder.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import shutil
import sqlite3
import tempfile
from typing import NamedTuple
from urllib.parse import quote

from ..errors import CorruptFileError, StateFileError, StorageError
from .file_systems import network_trouble
from .header import SCHEMA_VERSION, has_content, inspect, newer

BUSY_SECONDS = 5.0


class Look(NamedTuple):
    """A connection to look through. ``still``: it shows one moment; open again when the file has changed."""

    connection: sqlite3.Connection
    still: bool


def look(path: str) -> Look:
    """Open the state file by the rungs that its state allows.

    Never while this process has another connection to the file: the first look at its bytes would drop the locks of
    that one (https://sqlite.org/howtocorrupt.html, section 2.2). Raises StateFileError or one of its kinds.
    """
    trouble = network_trouble(path)
    if trouble:
        raise StateFileError(trouble)
    try:
        if inspect(path) is None:
            raise StateFileError("{} is empty: no run has been recorded in it".format(path))
    except FileNotFoundError:
        raise StateFileError("there is no state file {}".format(path)) from None
    try:
        return _climb(path)
    except sqlite3.OperationalError as error:
        raise StorageError("{} cannot be read: {}".format(path, error)) from error
    except sqlite3.Error as error:
        raise CorruptFileError("{} is damaged ({}); restore a copy".format(path, error)) from error


def file_uri(path: str, options: str) -> str:
    """A file URI. Unquoted, ``a?b.db`` would open another file, and create it."""
    return "file:{}?{}".format(quote(os.fsencode(os.path.abspath(path))), options)


def _climb(path: str) -> Look:
    """Rungs: a file that nobody has open, as it stands; a crashed one without its index, as a copy; else live.

    ``immutable`` ignores the log, so it is right only where there is none. ``mode=ro`` makes the -shm where it is
    missing, and an executor of another user could not open that.
    """
    if os.path.exists(path + "-shm"):
        try:
            return Look(_probed(path, "mode=ro"), still=False)
        except sqlite3.OperationalError:
            pass  # it may not be opened by this user, or has just gone
    if has_content(path + "-wal"):
        return Look(_copied(path), still=True)
    return Look(_probed(path, "immutable=1"), still=True)


def _probed(path: str, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        file_uri(path, options), uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise newer(path, version)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'event'").fetchone() is None:
            raise CorruptFileError("{} is damaged: its tables are missing; restore a copy".format(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(path: str) -> sqlite3.Connection:
    """The log is there but its index is gone and cannot be made here: nobody writes, so a copy is whole."""
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
        return Look(_probed(copy, "immutable=1"), still=True).connection  # the file lives on without its name
