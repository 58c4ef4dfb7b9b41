"""What has happened: frozen, numbered values.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An event is written in the same transaction as the change that it tells, and its payload (``event_payloads.py``) names
what changed. Folding the events in order over the tasks as they were created gives the tables again (``projection.py``), and
that is how the executor, the console and the tests know the state of a run.
"""

import json
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

if TYPE_CHECKING:
    from .event_payloads import Payload


class Event(NamedTuple):
    """One thing that happened. ``seq`` orders all events of one state file, without gaps being promised."""

    seq: int
    at: int  # microseconds UTC
    kind: str  # one of EventKind
    run_id: Optional[str]
    task: Optional[str]
    old: Optional[str]  # state before and after, for "task" and "run"
    new: Optional[str]
    attempt: Optional[int]
    generation: Optional[int]
    actor: Optional[str]  # user@host for an operator's act; None for the executor
    reason: Optional[str]
    command_id: Optional[str]  # the client-made id of the act
    payload: "Payload"  # column ``data`` of the table


class EventKind(object):
    """Names for ``Event.kind``. What each of them means is at its payload."""

    TASK = "task"
    TASK_CHANGED = "task.changed"
    RUN = "run"
    ATTEMPT_STARTED = "attempt.started"
    ATTEMPT_EFFECT = "attempt.effect"
    ATTEMPT_EXTENDED = "attempt.extended"
    ATTEMPT_DEADLINE = "attempt.deadline"
    ATTEMPT_STACK = "attempt.stack"
    ATTEMPT_SIGTERM = "attempt.sigterm"
    ATTEMPT_SIGKILL = "attempt.sigkill"
    ATTEMPT_SWEPT = "attempt.swept"
    ATTEMPT_LATE = "attempt.late"
    ATTEMPT_LEAKED = "attempt.leaked"
    ATTEMPT_SILENT = "attempt.silent"
    ATTEMPT_RECLAIMED = "attempt.reclaimed"
    ATTEMPT_RETRY = "attempt.retry"
    PROGRESS = "attempt.progress"
    EXECUTOR = "executor"
    BREAKER = "breaker"
    PAGE = "page"
    QUARANTINE = "quarantine"
    NOTE = "note"
    SCHEDULE = "schedule"
    CANARY = "canary"
    STORAGE = "storage"
    CLOCK = "clock"
    OPERATOR = "operator"


#: The steps of a kill, which events alone record, and the field of an attempt that shows each.
KILL_STEPS = {
    EventKind.ATTEMPT_DEADLINE: "deadline_at",
    EventKind.ATTEMPT_STACK: "where",
    EventKind.ATTEMPT_SIGTERM: "sigterm_at",
    EventKind.ATTEMPT_SIGKILL: "sigkill_at",
}


def kill_step_value(kind: str, at: int, data: str) -> Union[int, str, None]:
    """Return when a step of a kill was taken, or where the attempt hung. ``data``: the payload as JSON."""
    if kind != EventKind.ATTEMPT_STACK:
        return at
    where = json.loads(data).get("where")
    return where if isinstance(where, str) else None
