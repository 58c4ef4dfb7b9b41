"""Copies a state file that is in use, with what its write-ahead log holds."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from ..errors import StorageError


def copy(connection: sqlite3.Connection, target: str) -> None:
    """Copy all that a connection sees, which is in no transaction, to a file that then takes the place of ``target``.

    Raises StorageError.
    """
    unfinished = target + ".part"
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        with closing(sqlite3.connect(unfinished)) as to:
            connection.backup(to)
        _sync(unfinished)
        os.replace(unfinished, target)
        _sync(os.path.dirname(target))
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the copy {target} could not be made: {error}") from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
