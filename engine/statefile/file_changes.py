"""What the file system says of a state file from outside: whether it must be opened anew to be seen as it is now.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

By ``stat`` only: opening the file by hand would drop the locks of this process's connection to it
(https://sqlite.org/howtocorrupt.html, section 2.2).
"""

import os
import time
from typing import NamedTuple, Tuple

LOOK_AGAIN_SECONDS = 2.0  # at most so often is a live file opened anew, to see that it is the same one

Trace = Tuple[int, ...]  # device, inode, bytes, when changed; empty where there is no file


class Traces(NamedTuple):
    """The file and what SQLite keeps beside it."""

    file: Trace
    log: Trace  # -wal
    shared: Trace  # -shm: somebody has the file open, or crashed


def traces_of(path: str) -> Traces:
    """As of now."""
    return Traces(_trace(path), _trace(path + "-wal"), _trace(path + "-shm"))


def _trace(path: str) -> Trace:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Watch(object):
    """Remembers how the file was when it was opened. Make it before, so that what changes meanwhile is seen."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._traces = traces_of(path)
        self._looked_at = time.monotonic()

    def is_another_look_due(self, still: bool) -> bool:
        """True if the connection that was opened then may show another file, or an old moment of this one.

        ``still``: it shows one moment (``ladder.Look``).
        """
        old, now = self._traces, traces_of(self._path)
        if now.file[:2] != old.file[:2]:
            return True
        if still and not old.shared:
            return now != old  # at rest until now: any writer leaves a trace
        if still or now.file != old.file:
            # Live but closed to us; or a checkpoint of its executor, unless somebody wrote over it in place.
            return time.monotonic() - self._looked_at > LOOK_AGAIN_SECONDS
        return False
