"""Follows a state file that another process writes: detects commits, new events and a replaced file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``Follower`` is the algorithm: its generators yield queries and receive their rows, so that the caller runs them on its
own connection: ``Reader`` here, ``store/follow.py`` in an event loop. Commits are detected by ``PRAGMA data_version``
(14 us), which changes with each commit of another connection; inotify on the log was faster but missed the last commit
of a run (measured). No transaction outlives a query, so that the writer's log can always be reset.
"""

import os
import sqlite3
import time
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import Any, Callable, Generator, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

from ..domain.events import EventRow
from ..errors import RedriveError, SnapshotNeeded
from .opening import open_readonly

EVENT_COLUMNS = ", ".join(EventRow._fields)

_UUID = "SELECT value FROM meta WHERE key = 'uuid'"
_HEAD = "SELECT seq FROM sqlite_sequence WHERE name = 'event'"
_ENDS = "SELECT (SELECT min(seq) FROM event), (" + _HEAD + ")"

SqlRow = Tuple[Any, ...]
SqlQuery = Tuple[str, Tuple[Any, ...]]
Result = TypeVar("Result")
Steps = Generator[SqlQuery, List[SqlRow], Result]

lenient_text = partial(str, encoding="utf-8", errors="replace")  # one damaged byte must not hide the rest


def events_query(since: int, limit: int, run_id: Optional[str] = None) -> SqlQuery:
    """Events after ``since``, in order, ``data`` as text; with ``run_id``, of that run and of the file itself."""
    # "+" keeps the planner on the order of seq, because a follower reads the few latest events.
    only = "" if run_id is None else " AND (+run_id = ? OR +run_id IS NULL)"
    values: Tuple[Any, ...] = (since, limit) if run_id is None else (since, run_id, limit)
    return "SELECT " + EVENT_COLUMNS + " FROM event WHERE seq > ?" + only + " ORDER BY seq LIMIT ?", values


def latest_seq(connection: sqlite3.Connection) -> int:
    """The seq of the latest event ever written, even if it was pruned since."""
    row = connection.execute(_HEAD).fetchone()
    return int(row[0]) if row else 0


def last_seq_after(connection: sqlite3.Connection, since: int) -> int:
    """The seq that a reader of all events after ``since`` ends at; before ``since`` if the file was cut back.

    ``latest_seq`` is beyond it if the last events are missing from the file: a reader would wait for them for ever.
    """
    ((seq,),) = connection.execute("SELECT max(seq) FROM event WHERE seq > ?", (since,))
    return min(since, latest_seq(connection)) if seq is None else int(seq)


class Follower(object):
    """The queries that follow one state file, as generators that yield queries and receive their rows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uuid = ""
        self._file_watch = FileWatch(path)
        self._is_static = False  # the connection shows the content at its opening
        self._is_replaced = False
        self._data_version = -1

    def is_reopen_due(self) -> bool:
        """True if the connection may show another file, or outdated content."""
        return self._file_watch.is_reopen_due(self._is_static)

    def prepare_open(self) -> None:
        """Call before opening the file, so that changes while it is opened are detected."""
        self._file_watch = FileWatch(self.path)
        self._data_version = -1

    def verify_identity(self, is_static: bool) -> "Steps[None]":
        """Compare the opened file with the previous one. ``is_static``: ``ReadonlyDatabase.is_static``."""
        self._is_static = is_static
        rows = yield _UUID, ()
        uuid = str(rows[0][0]) if rows else ""
        self._is_replaced = self._is_replaced or self.uuid not in ("", uuid)
        self.uuid = uuid

    def changed(self) -> "Steps[bool]":
        """True if a commit may have happened since the last call, or if the file was just opened.

        Raises SnapshotNeeded, once, when another file is at the path.
        """
        if self._is_replaced:
            self._is_replaced = False
            raise SnapshotNeeded(f"another state file is in the place of {self.path}")
        version = 0
        if not self._is_static:
            ((version,),) = yield "PRAGMA data_version", ()
        is_due, self._data_version = version != self._data_version, version
        return is_due

    def events(self, since: int, limit: int) -> "Steps[List[SqlRow]]":
        """The events after ``since``, as rows of ``events_query``.

        Raises SnapshotNeeded when events between are missing: the file was cut back, or pruned.
        """
        rows = yield events_query(since, limit)
        if rows and rows[0][0] == since + 1:
            return rows
        ((oldest, head),) = yield _ENDS, ()
        if (head or 0) < since:
            raise SnapshotNeeded(f"{self.path} holds less than was read from it before")
        if since and (head or 0) > since and (oldest is None or oldest > since + 1):
            raise SnapshotNeeded(f"older events were removed from {self.path} meanwhile")
        return rows


class Reader(object):
    """Follows one state file. Use from one thread."""

    def __init__(self, path: str) -> None:
        self._follower = Follower(path)
        self._connection: Optional[sqlite3.Connection] = None

    @property
    def uuid(self) -> str:
        """The identity of the opened file; empty before the first opening."""
        return self._follower.uuid

    def open(self) -> None:
        """Open or reopen the file. Raises StateFileError."""
        self.close()
        self._follower.prepare_open()
        self._connection, is_static = open_readonly(self._follower.path)
        self._connection.text_factory = lenient_text
        self._run(self._follower.verify_identity(is_static))

    def close(self) -> None:
        """Close the file. It can be reopened."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, opened if necessary."""
        if self._connection is None:
            self.open()
        assert self._connection is not None
        return self._connection

    def changed(self) -> bool:
        """See ``Follower.changed``. Raises StateFileError when the file is gone."""
        self._reopen_if_due()
        return self._run(self._follower.changed())

    def read(self, what: str, options: Mapping[str, Any]) -> Any:
        """Answer one of READS."""

        def read_it() -> Any:
            self._reopen_if_due()
            return read(self.connection, what, options)

        return read_whole(self._follower.path, read_it)

    def _reopen_if_due(self) -> None:
        if self._connection is None or self._follower.is_reopen_due():
            self.open()

    def last_seq_after(self, since: int) -> int:
        return last_seq_after(self.connection, since)

    def events(self, since: int, limit: int) -> List[SqlRow]:
        return self._run(self._follower.events(since, limit))

    def _run(self, steps: "Steps[Result]") -> Result:
        try:
            query = next(steps)
            while True:
                query = steps.send(self.connection.execute(*query).fetchall())
        except StopIteration as end:
            result: Result = end.value
            return result


# --- Detects by ``stat`` that a state file must be reopened to show its current content ------------------------------
#
# Opening the file directly would drop the locks of this process's connection to it
# (https://sqlite.org/howtocorrupt.html, section 2.2).


REOPEN_SECONDS = 2.0  # shortest time between two openings of a live file

Stamp = Tuple[int, ...]  # device, inode, bytes, time of the last change in ns; empty if there is no file


class FileStamps(NamedTuple):
    """The stamps of a state file and of the files that SQLite keeps beside it."""

    file: Stamp
    log: Stamp  # -wal
    shared: Stamp  # -shm: a process has the file open, or has crashed


def stamps_of(path: str) -> FileStamps:
    return FileStamps(stamp_of(path), stamp_of(path + "-wal"), stamp_of(path + "-shm"))


def stamp_of(path: str) -> Stamp:
    """Read what changes with each write of a file; empty if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def inode_of(path: str) -> Stamp:
    """Read what stays while a file is written: its device and inode; empty if there is no file."""
    return stamp_of(path)[:2]


READS_MAX = 5


def read_whole(path: str, read: Callable[[], Result], reads: int = READS_MAX) -> Result:
    """The value of ``read``, which reads a state file; of another read if a process has written it meanwhile.

    A file that no process has open is read without locks (``opening.open_readonly``). A writer that comes changes it
    under the reader, which then sees parts of two commits, or damage.
    """
    before = stamps_of(path)
    try:
        value = read()
    except (RedriveError, sqlite3.Error):
        if reads == 1 or _is_whole(before, stamps_of(path)):
            raise
    else:
        if reads == 1 or _is_whole(before, stamps_of(path)):
            return value
    return read_whole(path, read, reads - 1)


def _is_whole(before: FileStamps, after: FileStamps) -> bool:
    """Whether SQLite's locks have guarded a read between these stamps, or nothing was written."""
    is_in_use = bool(before.shared) and before.shared == after.shared  # not the inode alone: a new file may get it
    return is_in_use or before == after


def read_once(path: str, read: Callable[[sqlite3.Connection], Result]) -> Result:
    """Open a state file, read it, and close it. Raises StateFileError or one of its kinds."""

    def read_it() -> Result:
        with closing(open_readonly(path).connection) as connection:
            return read(connection)

    return read_whole(path, read_it)


def read_or(path: str, read: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
    """The value of ``read``; ``otherwise`` for a state file that cannot be read, which another sentence reports."""
    try:
        return read_once(path, read)
    except (RedriveError, sqlite3.Error, OSError):
        return otherwise


class FileWatch(object):
    """Compares a file with its stamps at the time it was opened. Create it before opening the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamps = stamps_of(path)
        self._opened_at = time.monotonic()

    def is_reopen_due(self, is_static: bool) -> bool:
        """True if the connection may show another file, or outdated content.

        ``is_static``: the connection shows the content at its opening only (``ReadonlyDatabase.is_static``).
        """
        old, now = self._stamps, stamps_of(self._path)
        if now.file[:2] != old.file[:2]:
            return True
        if is_static and not old.shared:
            return now != old  # the file was not in use: every writer changes a stamp
        if is_static or now.file != old.file:
            # A live file that this user may not open; or a checkpoint, unless the file was overwritten in place.
            return time.monotonic() - self._opened_at > REOPEN_SECONDS
        return False


# --- Notices of writes to a state file or its log by inotify, which save readers from polling the file ---------------
#
# A notice may come before the commit is visible: SQLite writes the log first, waits for the disk, then writes the
# index of the log, which is mapped memory and sends none. So a notice only says when to look; ``PRAGMA data_version``
# says whether there is something new, and a reader checks it several times after each notice, and every IDLE_SECONDS.


IDLE_SECONDS = 1.0  # between two looks without a notice

_MODIFY, _MOVED_TO, _CREATE = 0x002, 0x080, 0x100


class WriteNotices(object):
    """``descriptor`` is readable after a write; None: no Linux, no free instance of inotify."""

    def __init__(self, path: str) -> None:
        self._masks = {
            os.path.dirname(os.path.realpath(path)): _CREATE | _MOVED_TO,  # a new log, another file in the place
            path: _MODIFY,
            path + "-wal": _MODIFY,
        }
        self.descriptor: Optional[int] = None
        try:
            import ctypes

            self._libc = ctypes.CDLL(None)
            descriptor = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except (ImportError, AttributeError):
            return
        if descriptor >= 0:
            self.descriptor = descriptor

    def watch(self) -> bool:
        """Watch what is at the paths now; what is watched already stays so. False: not even the folder can be."""
        if self.descriptor is None:
            return False
        watches = [
            self._libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask) for path, mask in self._masks.items()
        ]
        return bool(watches[0] >= 0)

    def clear(self) -> None:
        """Read the notices. Call when the descriptor is readable."""
        if self.descriptor is not None:
            os.read(self.descriptor, 65536)
            self.watch()  # a log that has just been created

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


# --- Questions -------------------------------------------------------------------------------------------------------


#: What can be read -> module beside this one and function: the connection first, then the options of the question.
READS = {
    "board": ("snapshot", "board"),
    "history": ("snapshot", "history"),
    "part": ("parts", "part"),
    "runs": ("lists", "runs"),
    "file": ("state_files", "file_row_of_connection"),
    "query": ("lists", "query_by_name"),
    "supervised": ("supervisor_file", "read_supervised"),
    "past": ("lists", "read_events"),
    "duration_stats": ("durations", "read_durations"),
    "log": ("logs", "read"),
    "find": ("logs", "find"),
    "attempt_text": ("logs", "attempt_text"),
    "cause_history": ("causes", "read_cause_histories"),
    "preview": ("dry_run", "preview"),
    "preview_prune": ("pruning", "preview_prune"),
}


def read(connection: sqlite3.Connection, what: str, options: Mapping[str, Any]) -> Any:
    """Answer one of READS. Its module is imported now: a far host gets it before its first question."""
    module, function = READS[what]
    return getattr(import_module("." + module, __package__), function)(connection, **options)
