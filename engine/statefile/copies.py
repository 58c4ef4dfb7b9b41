"""Copies of a state file whose original has a living executor: nothing of theirs may run a second time.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An executor writes the path of its file into the file. A copy (``cp``, a backup, ``rsync``) has another path, so its
lock is free although the run goes on. A file that was moved has left its recorded path.
"""

import os
import sqlite3
from contextlib import closing
from typing import NamedTuple, Optional

from ..errors import CopiedFileError, RedriveError
from .lock_file import current_holder
from .opening import file_uri, open_readonly
from .processes import is_alive

RESCUED = ".rescued"  # suffix of the copy of a file that was lost under a living executor, which puts it back itself


class Original(NamedTuple):
    """The file that another one is a copy of, and the process of its living executor."""

    path: str
    pid: int


def living_original(connection: sqlite3.Connection, path: str, run_id: Optional[str] = None) -> Optional[Original]:
    """The original of the state file at ``path``, if an executor lives there; None: no copy, or nobody lives there.

    ``run_id``: of the run that would go on here; None: of the latest executor.
    """
    row = connection.execute(
        "SELECT state_path, pid, start_ticks, boot_id, stopped_at FROM executor WHERE run_id = coalesce(?, run_id)"
        " ORDER BY started_at DESC, rowid DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    if row is None or row[0] is None:
        return None
    recorded, pid, start_ticks, boot_id, stopped_at = row
    own = os.path.realpath(path)
    if own == recorded or own.startswith(recorded + RESCUED) or not os.path.exists(recorded):
        return None
    holder = current_holder(recorded)
    if holder is not None and holder.is_alive():
        pid = holder.pid
    elif stopped_at is not None or not is_alive(pid, start_ticks, boot_id):
        return None
    return Original(recorded, pid) if _uuid(connection) == _uuid_at(recorded) else None


def original_of(path: str) -> Optional[Original]:
    """See ``living_original``. None for a file that cannot be read, which another sentence says."""
    try:
        with closing(open_readonly(path).connection) as connection:
            return living_original(connection, path)
    except (RedriveError, sqlite3.Error):
        return None


def refuse_copy(connection: sqlite3.Connection, path: str, run_id: Optional[str]) -> None:
    """Raise CopiedFileError if the run goes on in the original of this file."""
    original = living_original(connection, path, run_id)
    if original is not None:
        sentence = "{} is a copy of {}, whose executor (pid {}) lives: act there; redrive resume --copy goes on here"
        raise CopiedFileError(sentence.format(path, original.path, original.pid))


def _uuid(connection: sqlite3.Connection) -> Optional[str]:
    row = connection.execute("SELECT value FROM meta WHERE key = 'uuid'").fetchone()
    return row and str(row[0])


def _uuid_at(path: str) -> Optional[str]:
    """The identity of a file that a process writes. By SQLite: its bytes are not read beside its connections."""
    try:
        with closing(sqlite3.connect(file_uri(path, "mode=ro"), uri=True)) as connection:
            return _uuid(connection)
    except sqlite3.Error:
        return None
