"""Whether a RUNNING attempt is alive: its process decides, a late heartbeat only raises doubt (003.40, 003.41).

A late heartbeat proves nothing: the cause may be a garbage collection, a suspended machine or a full disk. A missing
process is proof. So only a missing process takes an attempt from its task; a late heartbeat is reported.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from enum import Enum
from typing import NamedTuple, Optional

HEARTBEAT_SECONDS = 10.0  # between two heartbeats of a task that are written
SWEEP_SECONDS = 60.0
SILENT_SECONDS = 90.0

#: On another host no process can be inspected: there an attempt ends itself when its lease is not renewed for so long.
LEASE_SECONDS = 15.0
LEASE_RENEWAL_SECONDS = 5.0
_FENCE_MARGIN_SECONDS = 5.0


class Liveness(str, Enum):
    """The result of checking one attempt."""

    FINE = "fine"
    SILENT = "silent"  # the process lives, but its heartbeats have stopped for SILENT_SECONDS
    SUSPECT = "suspect"  # the process is gone; the message of its end may still arrive
    LOST = "lost"  # the process is gone since the previous check, and no message has arrived


def check_liveness(process_is_there: bool, was_suspect: bool, promised: bool, silent_seconds: float) -> Liveness:
    """Classify one attempt. ``promised``: the attempt has sent a heartbeat or progress at least once."""
    if not process_is_there:
        return Liveness.LOST if was_suspect else Liveness.SUSPECT
    return Liveness.SILENT if promised and silent_seconds > SILENT_SECONDS else Liveness.FINE


def fence_seconds(grace_seconds: float) -> float:
    """Seconds that an attempt on another host may live after the last renewal of its lease."""
    return LEASE_SECONDS + grace_seconds + _FENCE_MARGIN_SECONDS


# --- What a running task uses now ------------------------------------------------------------------------------------


class TaskUsage(NamedTuple):
    """The resources that the processes of a running attempt use. ``cpu_percent``: of one CPU, since the reading before;
    ``memory_bytes``: resident; both None if they cannot be told apart from those of other tasks."""

    task: str
    cpu_percent: Optional[int]
    memory_bytes: Optional[int]
    children: int
    last_line: str
