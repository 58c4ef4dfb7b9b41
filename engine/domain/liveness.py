"""Whether a RUNNING attempt is alive: its process decides, a late heartbeat only raises doubt (003.40, 003.41).

A late heartbeat proves nothing: the cause may be a garbage collection, a suspended machine or a full disk. A missing
process is proof. So only a missing process takes an attempt from its task; a late heartbeat is reported.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from enum import Enum
from typing import Optional

HEARTBEAT_SECONDS = 10.0  # between two heartbeats of a task that are written
SWEEP_SECONDS = 60.0
SILENT_SECONDS = 90.0

#: On another host no process can be inspected: there an attempt ends itself when its lease is not renewed for so long.
LEASE_SECONDS = 15.0
LEASE_RENEWAL_SECONDS = 5.0
_FENCE_MARGIN_SECONDS = 5.0

LOST_HALFWAY = "it was lost while it ran and is not idempotent: find out whether it happened, then requeue or skip"
_LOST_EFFECT = (
    "its process died after the effect began: look for the key {} in the other system;"
    " skip the task if it happened, else requeue it"
)


def describe_lost(key: Optional[str]) -> str:
    """What to check before a lost task runs again. ``key``: the idempotency key of its effect, if it has one."""
    return LOST_HALFWAY if key is None else _LOST_EFFECT.format(key)


HAPPENED = "an effect that has happened"


def describe_repetition(key: str) -> str:
    """Why an effect that has succeeded does not run again by the way. ``key``: its idempotency key."""
    return "{}: --same-key repeats it with its key {}, --new-key with a new one".format(HAPPENED, key)


def effect_key(run_id: str, name: str, key_generation: int) -> str:
    """The idempotency key of a task: the same for every attempt, until an operator requests a new one."""
    return "{}/{}/{}".format(run_id, name, key_generation)


def cut_off_cause(run_id: str) -> str:
    """The cause of the page about an unfinished run whose executor has died."""
    return "cut-off:{}".format(run_id)


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
