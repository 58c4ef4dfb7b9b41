"""Detects a state file or its write-ahead log that was cut short in place (``> state.db``, ``> state.db-wal``).

SQLite does not notice. Behind the end of a log that it knows, it writes the next commit, and a later checkpoint would
copy the hole into the state file; of a state file, it reads the missing pages as zeros. While the writer has them open,
neither shrinks but in a checkpoint of its own. So the lengths are compared before each batch, when nothing has been
read or written yet, and at each heartbeat. Another program may empty the log by a checkpoint of SQLite, which the data
version of the connection shows.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from dataclasses import dataclass

from ..errors import StorageError
from ..statefile.header import inspect
from .copying import COPY_SUFFIX, rescue


class FileCutError(StorageError):
    """The file or its log was cut short: what was committed may be lost, and nothing may be written any more."""


@dataclass(slots=True)
class _Length:
    """The length of a file after the last commit. ``inode``: which file it was; another one is not compared."""

    path: str
    inode: int = -1
    bytes: int = 0

    def update(self) -> None:
        self.inode, self.bytes = self._read()

    def is_there(self) -> bool:
        return self.inode >= 0 and self._read()[0] == self.inode

    def is_cut(self) -> bool:
        inode, size = self._read()
        return inode == self.inode and size < self.bytes

    def _read(self) -> tuple[int, int]:
        """Return inode and length; (-1, 0): there is no such file, or none can be seen."""
        try:
            status = os.stat(self.path)
        except OSError:
            return -1, 0
        return status.st_ino, status.st_size


class FileLengths:
    """The lengths of the file of a write connection and of its log, in bytes."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._file, self._log = _Length(path), _Length(path + "-wal")
        self._file.update()
        self._version = self._read_version()

    def update(self) -> None:
        """Remember the lengths after a commit."""
        self._file.update()
        self._log.update()

    def is_cut(self) -> bool:
        """True if the file or the log is shorter than after the last commit."""
        return self._file.is_cut() or self._log.is_cut()

    def require(self) -> None:
        """Raise FileCutError if one of them was cut, after a try to save what the connection and the log still hold."""
        if not self.is_cut():
            return
        version = self._read_version()
        if version == self._version:
            raise FileCutError(self._explain(self._path if self._file.is_cut() else self._log.path))
        self._version = version
        self.update()

    def read_back(self) -> None:
        """Raise CorruptFileError if the file that has been closed is not whole. A missing one was reported before."""
        if self._file.is_there():
            inspect(self._path)

    def _read_version(self) -> object:
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _explain(self, cut: str) -> str:
        path, rescued = self._path, self._path + COPY_SUFFIX
        what = f"somebody has cut {cut} short" + ("" if cut == path else ", which held the latest changes")
        try:
            saved = rescue(self._connection, rescued)
        except StorageError as error:
            rest = (
                f"restore a copy of {path}" if cut == path else f"restore a copy, or resume from what {path} still has"
            )
            return f"{what}; some of them are lost ({error}): {rest}"
        remove, move = ["rm", "-f", f"{path}-wal", f"{path}-shm"], ["mv", rescued, path]
        steps = " && ".join(map(shlex.join, (remove, move, ["redrive", "resume", path])))
        if saved is None:
            return f"{what}; all of it is kept in {rescued}: {steps}"
        kept = f"{saved.kept} of {saved.runs} runs are kept in {rescued}"
        return f"{what}; {kept}, the others are lost unless there is a copy: {steps}"
