"""Detects a write-ahead log that somebody has cut short in its place (``> state.db-wal``).

SQLite does not look: it writes the next commit behind the end that it knows, and a later checkpoint would copy the hole
into the state file. While the writer has the file open, the log never shrinks by itself. So its length is compared
before each batch, when the pages of the cut are not yet zeros but an error, and at each heartbeat.
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

    def __init__(self, path: str) -> None:
        self._path = path
        self._bytes = 0

    def update(self) -> None:
        """Remember the length after a commit."""
        self._bytes = self._read()

    def is_cut(self) -> bool:
        """True if the log is shorter than after the last commit. A removed log is no matter of this module."""
        return 0 <= self._read() < self._bytes

    def require(self, connection: sqlite3.Connection) -> None:
        """Raise LogCutError if the log was cut, after a try to save what the connection still holds in memory."""
        if self.is_cut():
            raise LogCutError(self._explain(connection))

    def _explain(self, connection: sqlite3.Connection) -> str:
        path, rescued = self._path, self._path + COPY_SUFFIX
        what = f"somebody has cut {path}-wal short, which held the latest changes"
        try:
            copy(connection, rescued)
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
