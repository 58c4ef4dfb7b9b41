"""Follows a state file that somebody else writes: what changed, what came, and whether it is still the same file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``Follower`` is the algorithm: it yields queries and is sent their rows, so that whoever holds the connection asks them,
``Reader`` here, ``tail.follow`` in an event loop. Changes are noticed by ``PRAGMA data_version`` (14 us), which changes
with each commit of another connection; inotify on the log was quicker but missed the last commit of a run (measured).
No transaction outlives a query, so the writer's log can always be reset.
"""

import sqlite3
from functools import partial
from typing import Any, Generator, List, Optional, Tuple, TypeVar

from ..errors import SnapshotNeeded
from .file_changes import Watch
from .open_readonly import look

EVENT_COLUMNS = "seq, at, kind, run_id, task, old, new, attempt, generation, actor, reason, command_id, data"

_UUID = "SELECT value FROM meta WHERE key = 'uuid'"
_HEAD = "SELECT seq FROM sqlite_sequence WHERE name = 'event'"
_ENDS = "SELECT (SELECT min(seq) FROM event), (" + _HEAD + ")"

Row = Tuple[Any, ...]
Query = Tuple[str, Tuple[Any, ...]]
Result = TypeVar("Result")
Steps = Generator[Query, List[Row], Result]

forgiving_text = partial(str, encoding="utf-8", errors="replace")  # a byte of damage must not hide the rest


def events_query(since: int, limit: int, run_id: Optional[str] = None) -> Query:
    """Events after ``since``, in order, ``data`` as text; with ``run_id``, of that run and of the file itself."""
    # "+" keeps the planner on the order of seq: those who follow ask for the few latest.
    only = "" if run_id is None else " AND (+run_id = ? OR +run_id IS NULL)"
    values: Tuple[Any, ...] = (since, limit) if run_id is None else (since, run_id, limit)
    return "SELECT " + EVENT_COLUMNS + " FROM event WHERE seq > ?" + only + " ORDER BY seq LIMIT ?", values


def head_of(connection: sqlite3.Connection) -> int:
    """The number of the latest event ever told, also of one that was pruned since."""
    row = connection.execute(_HEAD).fetchone()
    return int(row[0]) if row else 0


class Follower(object):
    """What to ask of one state file, poll after poll. The generators yield queries, and return what they are for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = ""
        self._watch = Watch(path)
        self._still = False  # the connection shows one moment: the file is at rest, or a copy is read
        self._is_replaced = False
        self._data_version = -1

    def is_opening_due(self) -> bool:
        """True if the connection may show another file, or an old moment of this one."""
        return self._watch.is_another_look_due(self._still)

    def before_opening(self) -> None:
        """Call before the file is opened, so that what changes meanwhile is seen."""
        self._watch = Watch(self.path)
        self._data_version = -1

    def opened(self, still: bool) -> "Steps[None]":
        """Compare the file with the one before. ``still``: as ``ladder.look`` says."""
        self._still = still
        rows = yield _UUID, ()
        uuid = str(rows[0][0]) if rows else ""
        self._is_replaced = self._is_replaced or self.uuid not in ("", uuid)
        self.uuid = uuid

    def changed(self) -> "Steps[bool]":
        """True if something may have been committed since the last call; also right after the file was opened.

        Raises SnapshotNeeded, once, when another file has taken the place of the one before.
        """
        if self._is_replaced:
            self._is_replaced = False
            raise SnapshotNeeded("another state file is in the place of {}".format(self.path))
        version = 0
        if not self._still:
            ((version,),) = yield "PRAGMA data_version", ()
        is_due, self._data_version = version != self._data_version, version
        return is_due

    def events(self, since: int, limit: int, run_id: Optional[str] = None) -> "Steps[List[Row]]":
        """Rows of what came after ``since``, as ``events_query`` has them.

        Raises SnapshotNeeded when they do not continue from ``since``: the file was cut back, or pruned.
        """
        rows = yield events_query(since, limit, run_id)
        if rows and rows[0][0] == since + 1:
            return rows
        ((oldest, head),) = yield _ENDS, ()
        if (head or 0) < since:
            raise SnapshotNeeded("{} holds less than was read from it before".format(self.path))
        if since and (head or 0) > since and (oldest is None or oldest > since + 1):
            raise SnapshotNeeded("older events were removed from {} meanwhile".format(self.path))
        return rows


class Reader(object):
    """One state file, opened to be followed. Use from one thread."""

    def __init__(self, path: str) -> None:
        self._follower = Follower(path)
        self._connection: Optional[sqlite3.Connection] = None

    @property
    def uuid(self) -> str:
        """The identity of the file that was opened last; empty before."""
        return self._follower.uuid

    def open(self) -> None:
        """Open, or open again. Raises StateFileError or one of its kinds."""
        self.close()
        self._follower.before_opening()
        self._connection, still = look(self._follower.path)
        self._connection.text_factory = forgiving_text
        self._ask(self._follower.opened(still))

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
        """As ``Follower.changed``. Raises StateFileError when there is no file any more."""
        if self._connection is None or self._follower.is_opening_due():
            self.open()
        return self._ask(self._follower.changed())

    def head(self) -> int:
        """The number of the latest event ever told."""
        return head_of(self.connection)

    def events(self, since: int, limit: int) -> List[Row]:
        """As ``Follower.events``."""
        return self._ask(self._follower.events(since, limit))

    def _ask(self, steps: "Steps[Result]") -> Result:
        try:
            query = next(steps)
            while True:
                query = steps.send(self.connection.execute(*query).fetchall())
        except StopIteration as end:
            result: Result = end.value
            return result
