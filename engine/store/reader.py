"""Follows a state file that somebody else writes: what changed, what came, and whether it is still the same file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Holds no transaction between calls, so the writer's log can always be reset.
"""

import sqlite3
from functools import partial
from typing import Any, List, Optional, Tuple

from ..errors import SnapshotNeeded
from .ladder import look
from .traces import Watch

EVENT_COLUMNS = "seq, at, kind, run_id, task, old, new, attempt, generation, actor, reason, command_id, data"

_forgiving_text = partial(str, encoding="utf-8", errors="replace")  # a byte of damage must not hide the rest


def head_of(connection: sqlite3.Connection) -> int:
    """The number of the latest event ever told, also of one that was pruned since."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event'").fetchone()
    return int(row[0]) if row else 0


class Reader(object):
    """One state file, opened to be followed. Use from one thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = ""
        self._connection: Optional[sqlite3.Connection] = None
        self._still = False
        self._watch = Watch(path)
        self._data_version = -1

    def open(self) -> None:
        """Open, or open again. Raises StateFileError or one of its kinds."""
        self.close()
        self._watch = Watch(self.path)
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
        if self._connection is None or self._watch.is_another_look_due(self._still):
            uuid = self.uuid
            self.open()
            if uuid and self.uuid != uuid:
                raise SnapshotNeeded("another state file is in the place of {}".format(self.path))
        version = 0
        if not self._still:
            (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        due, self._data_version = version != self._data_version, version
        return due

    def head(self) -> int:
        """The number of the latest event ever told."""
        return head_of(self.connection)

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
