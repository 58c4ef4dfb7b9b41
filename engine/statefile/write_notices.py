"""Notices of writes to a state file or its log by inotify, which save readers from polling the file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A notice may come before the commit is visible: SQLite writes the log first, waits for the disk, then writes the index
of the log, which is mapped memory and sends none. So a notice only says when to look; ``PRAGMA data_version`` says
whether there is something new, and a reader checks it several times after each notice, and every IDLE_SECONDS.
"""

import os
from typing import Optional

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
        """Close the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
