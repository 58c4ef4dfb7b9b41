"""Detects by ``stat`` that a state file must be reopened to show its current content.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Opening the file directly would drop the locks of this process's connection to it
(https://sqlite.org/howtocorrupt.html, section 2.2).
"""

import os
import time
from typing import NamedTuple, Tuple

REOPEN_SECONDS = 2.0  # shortest time between two openings of a live file

Stamp = Tuple[int, ...]  # device, inode, bytes, time of the last change in ns; empty if there is no file


class FileStamps(NamedTuple):
    """The stamps of a state file and of the files that SQLite keeps beside it."""

    file: Stamp
    log: Stamp  # -wal
    shared: Stamp  # -shm: a process has the file open, or has crashed


def stamps_of(path: str) -> FileStamps:
    """Read the current stamps."""
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
