"""The schedule of a flow in its state file, for those who do not serve it: what became of its times, and its end.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import contextlib
import os
import sqlite3
import time
from typing import Any, List, Optional, Tuple

from ..errors import ExecutorBusyError, RedriveError, StateFileError
from .lists import IS_UNDECIDED
from .open_writing import write_alone
from .paths import file_uri
from .supervisor_file import ServedSchedule, is_served, remove

_PROGRESS = "SELECT since, decided_until FROM schedule WHERE dag_name = ?"
_TIMES = (
    "SELECT slot.logical_time, slot.state, coalesce(run.state, run_state),"
    " coalesce(ended_at, CASE WHEN run_state IS NOT NULL THEN decided_at END), blocked_since IS NOT NULL, "
    + IS_UNDECIDED
    + " FROM slot LEFT JOIN run ON run.run_id = slot.run_id WHERE slot.dag_name = ? AND slot.logical_time >= ?"
)


def read_times(path: str, flow: str, since: int) -> "Tuple[Optional[Tuple[int, int]], List[Tuple[Any, ...]]]":
    """Since when the schedule of a flow holds and up to where it is decided; None: it is not served. And its times.

    Of each: the logical time, "run" or "missed", the state of its run, when that ended (of a deleted one when it was
    decided), whether it is blocked, and whether it is PARTIAL for another reason than what operators have skipped.

    Nothing but SQLite opens the file: this process may write it as well. Raises StateFileError.
    """
    if not os.path.exists(path):
        return None, []
    try:
        with contextlib.closing(sqlite3.connect(file_uri(path, "mode=ro"), uri=True)) as connection:
            progress = connection.execute(_PROGRESS, (flow,)).fetchone()
            return progress, connection.execute(_TIMES, (flow, since)).fetchall()
    except sqlite3.Error as error:
        raise StateFileError(f"{path} cannot be read: {error}") from error


def end_schedule(path: str, flow: str) -> bool:
    """Remove the schedule of a flow that was renamed or forgotten from its state file: nothing of it is due any more.

    False: not now, for another process owns the file. What has run stays, and does not run again.
    """
    if not os.path.exists(path):
        return True
    try:
        with write_alone(path) as connection:
            if connection is not None:
                connection.execute("DELETE FROM schedule WHERE dag_name = ?", (flow,))
            return connection is not None
    except (RedriveError, sqlite3.Error):  # as of a full disk
        return False


def forget(row: ServedSchedule) -> None:
    """Remove a schedule whose flow is gone, with its ledger. Raises ExecutorBusyError while a run of it goes on.

    A supervisor that lives waits for the end of that run.
    """
    is_busy = row.state_path is not None and not end_schedule(row.state_path, row.flow)
    if is_busy and not is_served(row, int(time.time() * 1000000)):
        raise ExecutorBusyError(f"{row.state_path} is in use: forget {row.flow} when its run has ended")
    remove(row.id)
