"""Whether an attempt that is said to run still does: the process decides, and the clock only asks (003.40, 003.41).

A heartbeat that is late proves nothing: a garbage collection, a suspended machine, a full disk. A process that is not
there any more proves everything. So only the second takes an attempt away from its task; the first is told.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from enum import Enum
from typing import Optional

HEARTBEAT_SECONDS = 10.0  # how often a task's sign of life is written
SWEEP_SECONDS = 60.0
SILENT_SECONDS = 90.0

#: On another host no process can be looked at. There an attempt ends by itself once nobody has asked for it so long.
LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0
_FENCE_MARGIN_SECONDS = 5.0

#: What is known of a task that is not idempotent and was lost while it ran.
LOST_HALFWAY = "it was lost while it ran and is not idempotent: find out whether it happened, then requeue or skip"
_LOST_EFFECT = (
    "lost after its effect was let go: look over there for the key {}; skip it if it happened, else requeue it"
)


def what_is_known(key: Optional[str]) -> str:
    """Of something that may have happened and was lost. ``key``: of an effect, as the system that it calls knows it."""
    return LOST_HALFWAY if key is None else _LOST_EFFECT.format(key)


def effect_key(run_id: str, name: str, key_generation: int) -> str:
    """The idempotency key of a task: the same for every attempt, until an operator wants another."""
    return "{}/{}/{}".format(run_id, name, key_generation)


class Sight(str, Enum):
    """What a look at one attempt says."""

    FINE = "fine"
    SILENT = "silent"  # it promised heartbeats, and none came for too long, but its process is there
    SUSPECT = "suspect"  # its process is gone; the news of its end may still be on the way
    LOST = "lost"  # its process is gone, was gone at the last look, and nobody has told


def look(process_is_there: bool, was_suspect: bool, promised: bool, silent_seconds: float) -> Sight:
    """Judge one attempt. ``promised``: it has sent a heartbeat or progress at least once."""
    if not process_is_there:
        return Sight.LOST if was_suspect else Sight.SUSPECT
    return Sight.SILENT if promised and silent_seconds > SILENT_SECONDS else Sight.FINE


def fence_seconds(grace_seconds: float) -> float:
    """How long after its lease was last renewed an attempt on another host may still live."""
    return LEASE_SECONDS + grace_seconds + _FENCE_MARGIN_SECONDS
