"""What has happened: frozen, numbered values.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An event is written in the same transaction as the change that it tells. ``data["set"]`` of a ``task`` or ``run``
event names exactly the columns that changed, with their new values; ``data["attempt"]`` does the same for the row
of the attempt. Folding the events in order over the tasks as they were created gives the tables again
(``core/fold.py``), and that is how the executor, the console and the tests know the state of a run.
"""

from typing import Any, Dict, NamedTuple, Optional


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
    data: Dict[str, Any]


class EventKind(object):
    """Names for ``Event.kind``."""

    TASK = "task"  # a task moved from ``old`` to ``new``
    TASK_CHANGED = "task.changed"  # columns of a task changed, its state did not
    RUN = "run"  # a run was created, moved, or changed; ``data["what"]`` says which in a word
    ATTEMPT_STARTED = "attempt.started"  # its process exists: pid
    ATTEMPT_EFFECT = "attempt.effect"  # from here on its effect may happen, once: ``data["key"]``, on the disk before
    ATTEMPT_EXTENDED = "attempt.extended"  # an operator gave it ``data["seconds"]`` more before its timeout
    ATTEMPT_DEADLINE = "attempt.deadline"  # the timeout passed
    ATTEMPT_STACK = "attempt.stack"  # ``data["where"]`` it hung, and in what: "hang"; all of it is in the attempt's row
    ATTEMPT_SIGTERM = "attempt.sigterm"
    ATTEMPT_SIGKILL = "attempt.sigkill"
    ATTEMPT_SWEPT = "attempt.swept"  # processes that had left its group were killed: ``data["pids"]``
    ATTEMPT_LATE = "attempt.late"  # an outcome came after the task had moved on; it changed nothing
    ATTEMPT_LEAKED = "attempt.leaked"  # a thread ignored its cancel token: its slot is taken
    ATTEMPT_SILENT = "attempt.silent"  # its heartbeats stopped, its process is there: ``data["process"]`` says how
    ATTEMPT_RECLAIMED = "attempt.reclaimed"  # taken from its task, because nothing of it runs: data is the evidence
    ATTEMPT_RETRY = "attempt.retry"  # the task's own code retried inside the attempt
    PROGRESS = "attempt.progress"
    EXECUTOR = "executor"  # started, stopped, lost, zygote-died, threads-killed: ``data["what"]``
    BREAKER = "breaker"
    BUCKET = "bucket"
    PAGE = "page"
    QUARANTINE = "quarantine"
    NOTE = "note"  # somebody wrote a note on a cause: ``data`` is its fingerprint, downstream or None, and the text
    SCHEDULE = "schedule"  # of a flow: begun, changed, missed, late-start, late-end: ``data["what"]``
    CANARY = "canary"  # the task that ran first has ended: "released", "not-fixed", "failed"; ``data["tasks"]``
    STORAGE = "storage"  # degraded, recovered
    CLOCK = "clock"  # the wall clock moved
    OPERATOR = "operator"  # an act with no move of its own: attach, detach, ack, snooze
