"""Events: frozen, numbered values that record what has happened, and the JSON that they are.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An event is written in the same transaction as the change that it records; its payload (``event_payloads.py``) names the
changed columns. Applying the events in order to the created tasks yields the tables again (``projection.py``): the
executor, the console and the tests know the state of a run in this way.
"""

import json
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence, Union

if TYPE_CHECKING:
    from .event_payloads import Payload

# --- Types for JSON values, as in a state file or on the wire --------------------------------------------------------


if TYPE_CHECKING:
    Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
else:
    Json = Any  # a recursive alias fails if annotations are evaluated at run time

JsonObject = Mapping[str, Json]

OWN_INSTANT = "\x01"  # on the wire: the instant of an event in its own payload, as no JSON has it


# --- Events ----------------------------------------------------------------------------------------------------------


class EventRow(NamedTuple):
    """A row of table ``event``: the columns of an ``Event``, and its payload as JSON text."""

    seq: int
    at: int
    kind: str
    run_id: Optional[str]
    task: Optional[str]
    old: Optional[str]
    new: Optional[str]
    attempt: Optional[int]
    generation: Optional[int]
    actor: Optional[str]
    reason: Optional[str]
    command_id: Optional[str]
    data: str


class Event(NamedTuple):
    """An event of a run. ``seq`` orders all events of a state file; the numbers may have gaps."""

    seq: int
    at: int  # microseconds UTC
    kind: str  # one of EventKind
    run_id: Optional[str]
    task: Optional[str]
    old: Optional[str]  # states before and after, of kinds "task" and "run"
    new: Optional[str]
    attempt: Optional[int]
    generation: Optional[int]
    actor: Optional[str]  # user@host of the operator; None for the executor
    reason: Optional[str]
    command_id: Optional[str]  # the id of the command, chosen by its sender
    payload: "Payload"  # column ``data`` of the table


class EventKind(object):
    """Names for ``Event.kind``; the payload types say what each kind means."""

    TASK = "task"
    TASK_CHANGED = "task.changed"
    MAPPED = "task.mapped"
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


#: The steps of a kill, which only events record -> the field of an attempt that shows the step.
KILL_STEPS = {
    EventKind.ATTEMPT_DEADLINE: "deadline_at",
    EventKind.ATTEMPT_STACK: "where",
    EventKind.ATTEMPT_SIGTERM: "sigterm_at",
    EventKind.ATTEMPT_SIGKILL: "sigkill_at",
}


def kill_step_value(kind: str, at: int, data: str) -> Union[int, str, None]:
    """The instant of a kill step, or for the stack step the place of the hang. ``data``: the payload as JSON."""
    if kind != EventKind.ATTEMPT_STACK:
        return at
    where = json.loads(data).get("where")
    return where if isinstance(where, str) else None
