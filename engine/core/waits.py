"""What a run can wait for, who ends each wait, and where it is shown.

``waiting.py`` finds the reason of each task, ``executor/run_end.py`` ends a run as BLOCKED when all that is left waits
for a human, ``console/model/inbox.py`` lists what only a human can end. All three read this table. A wait for other
tasks has no place of its own: the tasks at its root have.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class WaitReason(StrEnum):
    """Why a task that is not finished does not run, or runs."""

    PARENTS = "parents"
    NOT_BEFORE = "not before"
    RETRY = "retry"
    SENSOR = "sensor"
    ATTEMPT = "attempt"
    DISPATCH = "dispatch"
    SLOT = "slot"
    POOL = "pool"
    MACHINE_POOL = "machine pool"
    RETRY_BUDGET = "retry budget"
    RELEASE = "release"
    OUTAGE = "outage"
    PROBE = "probe"
    CREDENTIAL = "credential"
    FORCED_OPEN = "forced open"
    PAUSE = "pause"
    DECISION = "decision"
    CANARY = "canary"
    DEADLINE = "deadline"
    NOTHING = "nothing"


class EndedBy(StrEnum):
    """Who ends a wait."""

    TASKS = "other tasks"
    TIME = "time"
    EXECUTOR = "the executor"
    HUMAN = "a human"


class Wait(NamedTuple):
    """One row of the table. ``how``: what ends the wait.

    ``inbox``, ``header``, ``exit_code``, ``page``: where it is shown: the words of the entry in the inbox, the state in
    the header of the console, the exit code of ``redrive run``, and the title of the page.
    """

    ended_by: EndedBy
    how: str
    inbox: str | None = None
    header: str = "running"
    exit_code: int | None = None
    page: str | None = None


_BLOCKED, _EXIT_CODE = "BLOCKED", 3
_HELD = "held by a breaker that only an operator can close"
_LATE = "deadline at risk"  # if the run has a deadline

WAITS: Mapping[WaitReason, Wait] = {
    WaitReason.PARENTS: Wait(EndedBy.TASKS, "the tasks above, which have waits of their own"),
    WaitReason.NOT_BEFORE: Wait(EndedBy.TIME, "its instant", page=_LATE),
    WaitReason.RETRY: Wait(EndedBy.TIME, "the backoff, which is bounded by cap and max_elapsed", page=_LATE),
    WaitReason.SENSOR: Wait(EndedBy.TIME, "the next check; max_elapsed bounds the checks", page=_LATE),
    WaitReason.ATTEMPT: Wait(EndedBy.EXECUTOR, "the end of the attempt, or its timeout", page=_LATE),
    WaitReason.DISPATCH: Wait(EndedBy.EXECUTOR, "the next step of the executor"),
    WaitReason.SLOT: Wait(EndedBy.EXECUTOR, "the end of a running attempt"),
    WaitReason.POOL: Wait(EndedBy.EXECUTOR, "the end of an attempt that holds slots; a flow with too few is refused"),
    WaitReason.MACHINE_POOL: Wait(
        EndedBy.EXECUTOR, "the end of an attempt of another flow that holds slots: redrive pools", page=_LATE
    ),
    WaitReason.RETRY_BUDGET: Wait(EndedBy.TIME, "a success, or bucket_per_second"),
    WaitReason.RELEASE: Wait(EndedBy.TIME, "its turn: a rate that doubles each second"),
    WaitReason.OUTAGE: Wait(EndedBy.TIME, "the probes after open_seconds", page="is down"),  # after ten minutes
    WaitReason.PROBE: Wait(EndedBy.EXECUTOR, "the answer to the probes"),
    WaitReason.CREDENTIAL: Wait(EndedBy.HUMAN, "redrive breakers --probe", _HELD, _BLOCKED, _EXIT_CODE, "is held open"),
    WaitReason.FORCED_OPEN: Wait(
        EndedBy.HUMAN, "redrive breakers --close", _HELD, _BLOCKED, _EXIT_CODE, "is held open"
    ),
    WaitReason.PAUSE: Wait(EndedBy.HUMAN, "redrive unpause", "held by a pause", _BLOCKED, _EXIT_CODE, "paused"),
    WaitReason.DECISION: Wait(
        EndedBy.HUMAN, "redrive requeue or skip; dead_letter_ttl", "DEAD_LETTER", _BLOCKED, _EXIT_CODE, "the cause"
    ),
    WaitReason.DEADLINE: Wait(
        EndedBy.HUMAN, "redrive postpone, or requeue", "ended by the deadline", "FAILED", 1, "deadline missed"
    ),
    WaitReason.CANARY: Wait(EndedBy.TASKS, "the canary, which has a wait of its own"),
    WaitReason.NOTHING: Wait(
        EndedBy.HUMAN,
        "redrive requeue or skip of the tasks above it",
        "waits for nothing: a fault of redrive",
        _BLOCKED,
        _EXIT_CODE,
        "waits for nothing: a fault of redrive",
    ),
}

#: A paused run in which nothing runs is BLOCKED after this time, so that a forgotten pause is paged.
PAUSE_SECONDS = 600.0


def needs_human(reason: WaitReason | None) -> bool:
    """Whether only a human can end a wait."""
    return reason is not None and WAITS[reason].ended_by is EndedBy.HUMAN
