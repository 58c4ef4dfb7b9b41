"""The health of a living executor, ``<state>.health``: what it knows and a full disk does not let it commit.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The file is made in its full size when the executor starts, and overwritten in place: that needs no room on the disk. It
has two slots, written in turn, each with a number and a checksum: a reader takes the later one that is whole, whenever
the writer was killed. Only the executor that holds the lock of the state file writes it. What a dead one has left says
nothing: a reader asks first whether it lives.
"""

import json
import os
import sqlite3
import stat
import struct
import weakref
import zlib
from typing import List, NamedTuple, Optional, Sequence, Tuple

from .lock_file import current_holder
from .paths import is_full
from .reader import stamps_of

SUFFIX = ".health"
SLOT_BYTES = 2048
_HEADER = struct.Struct("<8sQII")  # magic, number, bytes of the text, its checksum
_MAGIC = b"redrive1"
TEXT_CHARACTERS = 400
SENDERS_MAX = 4


class FailingSender(NamedTuple):
    """A sender of pages that fails. ``since``: the first failure since its last success, in microseconds UTC."""

    sender: str
    error: str
    since: int


class Health(NamedTuple):
    """What an executor knows of itself. Instants are microseconds UTC. Long texts and lists are cut.

    Attributes:
        storage_since: since when the state file cannot be written; None: it can be.
        storage_why: why, in one sentence.
        ended: tasks whose end waits in memory.
    """

    executor_id: str = ""
    storage_since: Optional[int] = None
    storage_why: str = ""
    ended: Sequence[str] = ()
    senders: Sequence[FailingSender] = ()


def health_path(state_path: str) -> str:
    return state_path + SUFFIX


class HealthFile(object):
    """The file, open for the executor. One that cannot be made is left out: the lists know less then."""

    def __init__(self, state_path: str) -> None:
        self._path = health_path(state_path)
        self._number = 0
        self._descriptor = -1
        self._written: Optional[bytes] = None
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
        header = _HEADER.pack(_MAGIC, self._number, len(text), _checksum(self._number, text))
        try:
            os.pwrite(self._descriptor, header + text, self._number % 2 * SLOT_BYTES)
            self._written = text
        except OSError:  # an error of the disk: what a reader finds is older
            pass

    def close(self) -> None:
        """Remove the file: its executor leaves in order."""
        if self._descriptor >= 0:
            self._close_descriptor()
            self._descriptor = -1
            try:
                os.unlink(self._path)
            except OSError:  # the folder is gone, or may no longer be written
                pass


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


def _open_whole(path: str) -> int:
    """Open the file in its full size, new or as a killed executor has left it. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if not _is_ours(path):
        _remove(path)
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


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _encode(health: Health) -> bytes:
    """As JSON that fits a slot: what is least is left out first."""
    ended, senders, characters = list(health.ended), list(health.senders[:SENDERS_MAX]), TEXT_CHARACTERS
    while True:
        short = health._replace(
            storage_why=health.storage_why[:characters],
            ended=ended,
            senders=[one._replace(error=one.error[: characters // 2]) for one in senders],
        )
        text = json.dumps(short._asdict()).encode()
        if len(text) <= SLOT_BYTES - _HEADER.size:
            return text
        ended, characters = ended[: len(ended) // 2], characters if ended else characters // 2


# --- Read ------------------------------------------------------------------------------------------------------------


def read_health(state_path: str) -> Optional[Health]:
    """What the living executor of a state file knows; None: there is none, or it cannot be known."""
    holder = current_holder(state_path)
    health = None if holder is None else _read(health_path(state_path))
    return health if health is not None and holder is not None and health.executor_id == holder.executor_id else None


def read_of(connection: sqlite3.Connection) -> List[Health]:
    """``read_health`` of the file of a connection, as one of ``READS``; empty if there is none."""
    (path,) = [path for _, name, path in connection.execute("PRAGMA database_list") if name == "main"]
    health = read_health(path)
    return [] if health is None else [health]


def _decode(text: bytes) -> Optional[Health]:
    """A health of a slot; None for anything else."""
    try:
        fields = json.loads(text.decode())
        senders = [FailingSender(str(one), str(error), int(since)) for one, error, since in fields["senders"]]
        since = fields["storage_since"]
        return Health(
            str(fields["executor_id"]),
            None if since is None else int(since),
            str(fields["storage_why"]),
            [str(name) for name in fields["ended"]],
            senders,
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _read(path: str) -> Optional[Health]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.pread(descriptor, 2 * SLOT_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    whole: List[Tuple[int, bytes]] = []
    for start in (0, SLOT_BYTES):
        slot = data[start : start + SLOT_BYTES]
        if len(slot) < _HEADER.size:
            continue
        magic, number, size, checksum = _HEADER.unpack_from(slot)
        text = slot[_HEADER.size : _HEADER.size + size]
        if magic == _MAGIC and _checksum(number, text) == checksum:
            whole.append((number, text))
    return _decode(max(whole)[1]) if whole else None


# --- Room on the disk, which a reader sees for itself ---------------------------------------------------------------


def full_since(state_path: str) -> Optional[int]:
    """Since when the file system of a state file has no room for a commit, in microseconds UTC: at the latest since
    the latest write. None: it has room, or does not say."""
    return _written_at(state_path) if is_full(state_path) else None


def _written_at(state_path: str) -> int:
    stamps = stamps_of(state_path)
    return max(stamp[-1] // 1000 if stamp else 0 for stamp in (stamps.file, stamps.log))
