"""Follows a state file that somebody else writes: what changed, what came, and whether it is still the same file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Holds no transaction between calls, so the writer's log can always be reset.
"""

import os
import sqlite3
import time
from functools import partial
from typing import Any, List, NamedTuple, Optional, Tuple

from ..errors import SnapshotNeeded
from .ladder import look

LOOK_AGAIN_SECONDS = 2.0  # at most so often is a live file opened anew, to see that it is the same one

EVENT_COLUMNS = "seq, at, kind, run_id, task, old, new, attempt, generation, actor, reason, command_id, data"

_forgiving_text = partial(str, encoding="utf-8", errors="replace")  # a byte of damage must not hide the rest


class _Traces(NamedTuple):
    """What the file system says about the file and what SQLite keeps beside it; ``stat`` only, see ``ladder.look``."""

    file: Tuple[int, ...]
    log: Tuple[int, ...]  # -wal; () where there is none
    shared: Tuple[int, ...]  # -shm: somebody has the file open, or crashed


def _traces(path: str) -> _Traces:
    return _Traces(_trace(path), _trace(path + "-wal"), _trace(path + "-shm"))


def _trace(path: str) -> Tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Reader(object):
    """One state file, opened to be followed. Use from one thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = ""
        self._connection: Optional[sqlite3.Connection] = None
        self._still = False
        self._traces = _Traces((), (), ())
        self._data_version = -1
        self._looked_at = 0.0

    def open(self) -> None:
        """Open, or open again. Raises StateFileError or one of its kinds."""
        self.close()
        self._traces = _traces(self.path)  # before the look, so that what changes meanwhile is looked at again
        self._looked_at = time.monotonic()
        self._data_version = -1
        self._connection, self._still = look(self.path)
        self._connection.text_factory = _forgiving_text
        row = self._connection.execute("SELECT value FROM meta WHERE key = 'uuid'").fetchone()
        self.uuid = row[0] if row else ""

    def close(self) -> None:
        """Let go of the file. It can be opened again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def connection(self) -> sqlite3.Connection:
        """To read from; opened if need be."""
        if self._connection is None:
            self.open()
        assert self._connection is not None
        return self._connection

    def changed(self) -> bool:
        """True if something may have been committed since the last call; also right after ``open``.

        Raises SnapshotNeeded when another file is in its place, StateFileError when none is.
        """
        if self._connection is None or self._is_another_look_due(_traces(self.path)):
            uuid = self.uuid
            self.open()
            if uuid and self.uuid != uuid:
                raise SnapshotNeeded("another state file is in the place of {}".format(self.path))
        version = 0
        if not self._still:
            (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        due, self._data_version = version != self._data_version, version
        return due

    def _is_another_look_due(self, traces: _Traces) -> bool:
        old = self._traces
        if traces.file[:2] != old.file[:2]:
            return True
        if self._still and not old.shared:
            return traces != old  # at rest until now: any writer leaves a trace
        if self._still or traces.file != old.file:
            # Live but closed to us; or a checkpoint of its executor, unless somebody wrote over it in place.
            return time.monotonic() - self._looked_at > LOOK_AGAIN_SECONDS
        return False

    def head(self) -> int:
        """The number of the latest event ever told."""
        row = self.connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event'").fetchone()
        return int(row[0]) if row else 0

    def events(self, since: int, limit: int) -> List[Tuple[Any, ...]]:
        """Rows of what came after ``since``, in order; ``data`` as the text that it is.

        Raises SnapshotNeeded when they do not continue from ``since``: the file was cut back, or pruned.
        """
        rows = self.connection.execute(
            "SELECT " + EVENT_COLUMNS + " FROM event WHERE seq > ? ORDER BY seq LIMIT ?", (since, limit)
        ).fetchall()
        if rows and rows[0][0] == since + 1:
            return rows
        head = self.head()
        if head < since:
            raise SnapshotNeeded("{} holds less than was read from it before".format(self.path))
        if since and head > since and not self._is_kept(since):
            raise SnapshotNeeded("older events were removed from {} meanwhile".format(self.path))
        return rows

    def _is_kept(self, seq: int) -> bool:
        (oldest,) = self.connection.execute("SELECT min(seq) FROM event").fetchone()
        return oldest is not None and oldest <= seq + 1
