"""What became of the logical times of a flow, for flows that come after it: read beside whoever writes the state file.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import contextlib
import os
import sqlite3
from typing import Any, List, Optional, Tuple

from ..errors import StateFileError
from .lists import IS_UNDECIDED
from .opening import file_uri

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
        raise StateFileError("{} cannot be read: {}".format(path, error)) from error
