"""Copies a state file that is in use, including its write-ahead log."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import closing

from ..errors import StorageError

COPY_SUFFIX = ".rescued"  # of the copy of a file that was lost under a living executor


def copy(connection: sqlite3.Connection, target: str) -> None:
    """Copy the database of a connection, which must be in no transaction, and replace ``target`` by the copy.

    Raises StorageError.
    """
    partial = target + ".part"
    try:
        with contextlib.suppress(FileNotFoundError):  # of an earlier try, or planted: never written through
            os.unlink(partial)
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        with closing(sqlite3.connect(partial)) as copied:
            connection.backup(copied)
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
