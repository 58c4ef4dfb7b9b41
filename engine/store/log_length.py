"""Detects a write-ahead log that was truncated in place (``> state.db-wal``).

SQLite does not notice: it writes the next commit behind the end that it knows, and a later checkpoint would copy the
hole into the state file. While the writer has the file open, the log never shrinks by itself. So its length is compared
before each batch, when the pages of the cut are not yet zeros but an error, and at each heartbeat. Another program may
empty it by a checkpoint of SQLite, which the data version of the connection shows.
"""

from __future__ import annotations

import os
import shlex
import sqlite3

from ..errors import StorageError
from .copying import COPY_SUFFIX, copy


class LogCutError(StorageError):
    """The log was cut short: what was committed may be lost, and nothing may be written any more."""


class LogLength:
    """The length of the log of a write connection, in bytes."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._bytes = 0
        self._version = self._read_version()

    def update(self) -> None:
        """Remember the length after a commit."""
        self._bytes = self._read()

    def is_cut(self) -> bool:
        """True if the log is shorter than after the last commit. That of a removed log is unknown."""
        return 0 <= self._read() < self._bytes

    def require(self) -> None:
        """Raise LogCutError if the log was cut, after a try to save what the connection still holds in memory."""
        if not self.is_cut():
            return
        version = self._read_version()
        if version == self._version:
            raise LogCutError(self._explain())
        self._version = version
        self.update()

    def _read_version(self) -> object:
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _explain(self) -> str:
        path, rescued = self._path, self._path + COPY_SUFFIX
        what = f"somebody has cut {path}-wal short, which held the latest changes"
        try:
            copy(self._connection, rescued)
        except StorageError:
            return f"{what}: some of them are lost; restore a copy, or resume from what {path} still has"
        remove, move = ["rm", "-f", f"{path}-wal", f"{path}-shm"], ["mv", rescued, path]
        steps = " && ".join(map(shlex.join, (remove, move, ["redrive", "resume", path])))
        return f"{what}; all of them are kept in {rescued}: {steps}"

    def _read(self) -> int:
        """Return the length; -1: there is no such file, or none can be seen."""
        try:
            return os.stat(self._path + "-wal").st_size
        except OSError:
            return -1
