"""The health of an executor, which it publishes because a full disk keeps it out of the state file.

The file is made in its full size when the executor starts, and overwritten in place: that needs no room on the disk.
Only the executor that holds the lock of the state file writes it.
"""

from __future__ import annotations

import json
import os
import stat
import weakref
from contextlib import suppress

from ..domain.rows import Health
from ..statefile.health_file import HEADER, MAGIC, SLOT_BYTES, checksum, health_path

ERROR_CHARACTERS = 200  # of a sender
SENDERS_MAX = 4


class HealthFile:
    """The file, open for the executor. One that cannot be made is left out: the lists know less then."""

    def __init__(self, state_path: str) -> None:
        self._path = health_path(state_path)
        self._number = 0
        self._descriptor = -1
        self._written: bytes | None = None
        try:
            self._descriptor = _open_whole(self._path)
        except OSError:
            return
        # The executor of a played night may die, and its process lives on.
        self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
        self.write(Health())

    def write(self, health: Health) -> None:
        """Replace what readers find. Writes nothing if it is the same; never raises."""
        text = _encode(health)
        if self._descriptor < 0 or text == self._written:
            return
        self._number += 1
        header = HEADER.pack(MAGIC, self._number, len(text), checksum(self._number, text))
        with suppress(OSError):  # an error of the disk: what a reader finds is older
            os.pwrite(self._descriptor, header + text, self._number % 2 * SLOT_BYTES)
            self._written = text

    def close(self) -> None:
        """Remove the file: its executor leaves in order."""
        if self._descriptor >= 0:
            self._close_descriptor()
            self._descriptor = -1
            with suppress(OSError):  # the folder is gone, or may no longer be written
                os.unlink(self._path)


def _open_whole(path: str) -> int:
    """Open the file in its full size, new or as a killed executor has left it. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if not _is_ours(path):
        with suppress(OSError):
            os.unlink(path)
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.pwrite(descriptor, b"\0" * (2 * SLOT_BYTES), 0)  # what an earlier executor has left counts no more
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def _encode(health: Health) -> bytes:
    """Return JSON that fits a slot; the sentence of the storage, which has the commands to type, is cut last."""
    ended, characters = list(health.ended.items()), len(health.storage_why)
    senders, error_characters = health.senders[:SENDERS_MAX], ERROR_CHARACTERS
    while True:
        short = health._replace(
            storage_why=health.storage_why[:characters],
            ended=dict(ended),
            senders=[one._replace(error=one.error[:error_characters]) for one in senders],
        )
        text = json.dumps(short._asdict()).encode()
        if len(text) <= SLOT_BYTES - HEADER.size:
            return text
        if ended:
            ended = ended[: len(ended) // 2]
        elif error_characters:
            error_characters //= 2
        else:
            characters = characters * 3 // 4
