"""The health file: what the living processes of a state file know, and the file does not say.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``<state>.health`` has what a full disk does not let the executor commit. It has two slots, each with a number and a
checksum: a reader takes the later one that is whole, whenever the writer was killed. What a dead executor has left says
nothing: a reader asks first whether it lives.
"""

import json
import os
import sqlite3
import struct
import zlib
from contextlib import closing
from shlex import quote
from typing import List, Optional, Tuple

from ..domain.rows import FailingSender, Health
from ..errors import StateFileError
from .lock_file import current_holder
from .paths import file_uri, supervisor_path

SUFFIX = ".health"
SLOT_BYTES = 2048
HEADER = struct.Struct("<8sQII")  # magic, number, bytes of the text, its checksum
MAGIC = b"redrive1"


def checksum(number: int, text: bytes) -> int:
    """The checksum of a slot."""
    return zlib.crc32(text, number & 0xFFFFFFFF)


def health_path(state_path: str) -> str:
    return state_path + SUFFIX


def read_health(state_path: str) -> Optional[Health]:
    """Read what the living executor of a state file knows; None: there is none, or it cannot be known."""
    holder = current_holder(state_path)
    health = None if holder is None else _read(health_path(state_path))
    return health if health is not None and holder is not None and health.executor_id == holder.executor_id else None


def require_not_lost(state_path: str) -> None:
    """Raise StateFileError if what lies at the path of a state file, or nothing, is not what its executor has open, or
    had when it died: SQLite would join it with the log of that file, and show rows of both, or damage."""
    health = read_health(state_path)
    if health is None:
        _require_own_log(state_path)
        return
    if health.inodes in ("", inodes_of(state_path)):
        return
    holder = current_holder(state_path)
    if holder is None:  # it has ended since
        return
    why = health.storage_why or "its next look at the file, within a second, says where it is kept"
    sentence = "{} is not the file that {} has open (kill {} ends it): {}"
    raise StateFileError(sentence.format(state_path, holder.who, holder.pid, why))


def _require_own_log(state_path: str) -> None:
    """Raise StateFileError if the log beside a file is of the one that was in its place when its executor died."""
    died, log = _read(health_path(state_path)), log_of(state_path)
    if died is None or died.inodes == inodes_of(state_path) or not died.log_inodes:
        return
    if died.log_inodes == inodes_of(log):
        sentence = (
            "{0} has the changes of another file, which was in the place of {1} when its executor died: mv {2} {3}"
        )
        raise StateFileError(sentence.format(log, state_path, quote(log), quote(log + ".other")))


def log_of(state_path: str) -> str:
    """The write-ahead log of a state file: SQLite names it after the end of a link."""
    return os.path.realpath(state_path) + "-wal"


def inodes_of(path: str) -> str:
    """The inodes of a path, and of what it leads to if it is a link; empty: nothing lies there."""
    try:
        return f"{os.lstat(path).st_ino} {os.stat(path).st_ino}"
    except OSError:
        return ""


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
            {str(name): int(at) for name, at in fields["ended"].items()},
            senders,
            str(fields.get("inodes", "")),
            str(fields.get("log_inodes", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
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
        if len(slot) < HEADER.size:
            continue
        magic, number, size, expected = HEADER.unpack_from(slot)
        text = slot[HEADER.size : HEADER.size + size]
        if magic == MAGIC and checksum(number, text) == expected:
            whole.append((number, text))
    return _decode(max(whole)[1]) if whole else None


def stuck_run(state_path: str) -> Optional[str]:
    """The run of a state file that the code of its flow cannot resume; None: there is none, or nobody can say."""
    sql = "SELECT stuck_run_id FROM schedule WHERE state_path = ? AND stuck_run_id IS NOT NULL"
    try:
        with closing(sqlite3.connect(file_uri(supervisor_path(), "mode=ro"), uri=True)) as connection:
            row = connection.execute(sql, (os.path.abspath(state_path),)).fetchone()
    except sqlite3.Error:
        return None
    return str(row[0]) if row else None
