"""Copies of a state file in whose original the run goes on or has ended: nothing may run a second time.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An executor writes the path of its file into the file. A copy (``cp``, a backup, ``rsync``) has another path, so its
lock is free although the run goes on, or has ended there. A file that was moved has left its recorded path.
"""

import os
import sqlite3
from contextlib import closing
from typing import NamedTuple, Optional

from .lock_file import current_holder
from .opening import has_log
from .paths import file_uri
from .processes import is_alive
from .reader import read_or

RESCUED = ".rescued"  # suffix of the copy of a file that was lost under a living executor, which puts it back itself


class Original(NamedTuple):
    """The file that another one is a copy of. ``pid``: of its living executor; None: the run has ended there."""

    path: str
    pid: Optional[int]


def living_original(connection: sqlite3.Connection, path: str, run_id: Optional[str] = None) -> Optional[Original]:
    """The original of the state file at ``path``, if an executor lives there, or the run has ended there.

    None: no copy, or the run goes on nowhere else.

    ``run_id``: of the run that would go on here; None: of the latest executor.
    """
    row = connection.execute(
        "SELECT run_id, state_path, pid, start_ticks, boot_id, stopped_at FROM executor"
        " WHERE run_id = coalesce(?, run_id) ORDER BY rowid DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    if row is None or row[1] is None:
        return None
    run, recorded, pid, start_ticks, boot_id, stopped_at = row
    own = os.path.realpath(path)
    if own == recorded or own.startswith(recorded + RESCUED) or not os.path.exists(recorded):
        return None
    here, there = _identity(connection, run), _identity_at(recorded, run)
    if here.uuid != there.uuid:
        return None
    holder = current_holder(recorded)
    if holder is not None and holder.is_alive():
        return Original(recorded, holder.pid)
    if stopped_at is None and is_alive(pid, start_ticks, boot_id):
        return Original(recorded, pid)
    has_ended_there = there.has_ended and not here.has_ended and there.last_seq > here.last_seq
    return Original(recorded, None) if has_ended_there else None


def original_of(path: str) -> Optional[Original]:
    """See ``living_original``. None for a file that cannot be read, which another sentence says."""
    return read_or(path, lambda connection: living_original(connection, path), None)


class _Identity(NamedTuple):
    """The uuid of a file, which its copies have too; whether a run has ended in it; the number of its latest event."""

    uuid: Optional[str] = None
    has_ended: bool = False
    last_seq: int = 0


def _identity(connection: sqlite3.Connection, run_id: Optional[str]) -> _Identity:
    row = connection.execute("SELECT value FROM meta WHERE key = 'uuid'").fetchone()
    ended = connection.execute("SELECT 1 FROM run WHERE run_id = ? AND ended_at IS NOT NULL", (run_id,)).fetchone()
    (last_seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
    return _Identity(row and str(row[0]), ended is not None, last_seq)


def _identity_at(path: str, run_id: Optional[str]) -> _Identity:
    """Read the identity of another file through SQLite, because this process may have connections to that file."""
    options = "mode=ro" if has_log(path) else "immutable=1"
    try:
        with closing(sqlite3.connect(file_uri(path, options), uri=True)) as connection:
            return _identity(connection, run_id)
    except sqlite3.Error:
        return _Identity()
