"""Task and run states, and the table of legal moves between them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

FAILED: the attempts were spent on different or transient errors; the failure propagates, because unattended pipelines
must end. DEAD_LETTER: a human must decide; the task holds its children and does not fail them. SKIPPED by an operator
satisfies children. READY: all dependencies are met, and the task waits for a slot, a pool or a breaker.
"""

from enum import Enum
from typing import Dict, FrozenSet


def _word(member: str) -> str:
    """Return the value, as SQLite and people read it. Enum before 3.8 would override ``__str__ = str.__str__``."""
    return str.__str__(member)


class TaskState(str, Enum):
    """The eleven states of a task."""

    PENDING = "PENDING"
    READY = "READY"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    RETRYING = "RETRYING"
    SENSING = "SENSING"
    FAILED = "FAILED"
    DEAD_LETTER = "DEAD_LETTER"
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"

    __str__ = _word
    __hash__ = str.__hash__  # that of Enum is a call of Python for each use as a key


class RunState(str, Enum):
    """The states of a run. *Blocked* is RUNNING with ``run.blocked_since`` set."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PARTIAL = "PARTIAL"
    ABANDONED = "ABANDONED"  # an operator has ended it: what had not ended is CANCELLED

    __str__ = _word


class DeadLetterKind(str, Enum):
    """Why a human must decide."""

    POISON = "poison"  # a failure that repeats by its nature, again and with nothing changed in between
    PERMANENT = "permanent"  # the task reported that a retry will not work
    AUTH = "auth"  # a refused credential
    HANG = "hang"  # timed out twice at the same place, far above its usual duration
    TIMEOUT = "timeout"  # timed out until its attempts were spent, by a timeout that is too short
    OUT_OF_MEMORY = "oom"
    CRASH_LOOP = "crash-loop"  # lost with its executor or host too often
    INDETERMINATE = "indeterminate"  # not idempotent and lost: whether its effect happened is unknown
    DEADLINE = "deadline"  # cannot finish before the run's deadline
    QUARANTINE = "quarantine"  # too many bad rows
    BREAKER = "breaker"  # the breaker of its downstream is open, and the flow wants a dead letter then

    __str__ = _word


class SkipCause(str, Enum):
    """Who decided to skip a task."""

    OPERATOR = "operator"  # permitted failure: satisfies children
    CONDITION = "condition"  # the task itself: its branch is not taken
    CASCADE = "cascade"  # all of its parents were skipped by condition

    __str__ = _word


_S = TaskState

#: Moves that the executor makes on its own.
EXECUTOR_MOVES: Dict[TaskState, FrozenSet[TaskState]] = {
    _S.PENDING: frozenset([_S.READY, _S.UPSTREAM_FAILED, _S.SKIPPED, _S.CANCELLED]),
    _S.READY: frozenset([_S.RUNNING, _S.UPSTREAM_FAILED, _S.SKIPPED, _S.CANCELLED, _S.FAILED, _S.DEAD_LETTER]),
    _S.RUNNING: frozenset([_S.SUCCESS, _S.RETRYING, _S.FAILED, _S.DEAD_LETTER, _S.SENSING, _S.SKIPPED, _S.CANCELLED]),
    _S.RETRYING: frozenset([_S.READY, _S.DEAD_LETTER, _S.CANCELLED]),
    _S.SENSING: frozenset([_S.READY, _S.FAILED, _S.DEAD_LETTER, _S.CANCELLED]),
    _S.SUCCESS: frozenset(),
    _S.FAILED: frozenset(),
    _S.DEAD_LETTER: frozenset([_S.FAILED]),  # dead_letter_ttl: expired at the deadline of the run
    _S.UPSTREAM_FAILED: frozenset(),
    _S.SKIPPED: frozenset(),
    _S.CANCELLED: frozenset(),
}

#: ``task.failure_mode`` of a task that the deadline of its run has ended or is ending.
DEADLINE_MODE = "deadline"

#: What only an operator may do: requeue, skip, cancel, bring forward; and their undo.
OPERATOR_MOVES: Dict[TaskState, FrozenSet[TaskState]] = {
    _S.PENDING: frozenset(
        [_S.SKIPPED, _S.CANCELLED, _S.FAILED, _S.DEAD_LETTER, _S.UPSTREAM_FAILED, _S.SUCCESS, _S.RETRYING, _S.SENSING]
    ),
    _S.READY: frozenset([_S.PENDING, _S.SKIPPED, _S.CANCELLED]),
    _S.RUNNING: frozenset([_S.CANCELLED]),
    _S.RETRYING: frozenset([_S.PENDING, _S.READY, _S.SKIPPED, _S.CANCELLED]),
    _S.SENSING: frozenset([_S.PENDING, _S.READY, _S.SKIPPED, _S.CANCELLED]),
    _S.SUCCESS: frozenset([_S.PENDING]),
    _S.FAILED: frozenset([_S.PENDING, _S.SKIPPED]),
    _S.DEAD_LETTER: frozenset([_S.PENDING, _S.SKIPPED, _S.CANCELLED]),
    _S.UPSTREAM_FAILED: frozenset([_S.PENDING, _S.SKIPPED]),
    _S.SKIPPED: frozenset(
        [_S.PENDING, _S.READY, _S.FAILED, _S.DEAD_LETTER, _S.UPSTREAM_FAILED, _S.RETRYING, _S.SENSING]
    ),
    _S.CANCELLED: frozenset([_S.PENDING, _S.SKIPPED]),
}

#: Every legal move. ``statefile/changes/transitions.py`` refuses all others.
LEGAL_MOVES: Dict[str, FrozenSet[str]] = {state: EXECUTOR_MOVES[state] | OPERATOR_MOVES[state] for state in TaskState}

#: The executor still moves tasks in these states.
MOVING = frozenset([_S.PENDING, _S.READY, _S.RUNNING, _S.RETRYING, _S.SENSING])

#: Only an operator moves tasks out of these states.
RESTING = frozenset(TaskState) - MOVING

#: The end is open: the task still moves, or a human decides about it.
OPEN = MOVING | frozenset([_S.DEAD_LETTER])

#: Not started; the parents still decide whether the task starts.
WAITING = frozenset([_S.PENDING, _S.READY])

#: Not started, or stopped by a task above.
NOT_STARTED = WAITING | frozenset([_S.UPSTREAM_FAILED])

#: Waiting only for an instant: the next attempt, or the next check of a sensor.
TIMED = frozenset([_S.RETRYING, _S.SENSING])

#: May have an instant before which the task does not start (``next_retry_at``).
WITH_INSTANT = TIMED | frozenset([_S.PENDING])

#: Allowed to start by the parents, and not running.
ABOUT_TO_START = TIMED | frozenset([_S.READY])

#: Started and not ended.
UNDER_WAY = TIMED | frozenset([_S.RUNNING])

#: Running, or successful, with the results that the parents had at that time.
RAN = frozenset([_S.RUNNING, _S.SUCCESS])

#: Needs no result of a parent any more: the task has it, or does not start.
NEEDS_NO_RESULT = RAN | frozenset([_S.SKIPPED, _S.CANCELLED])

#: Successful, or not needed.
FINISHED = frozenset([_S.SUCCESS, _S.SKIPPED])

#: ``attempt.outcome`` of attempts that count as failures. Losses and deferrals have counters of their own.
FAILED_OUTCOMES = frozenset(["error", "timed_out"])

#: The states that the inbox shows.
NEEDS_HUMAN = frozenset([_S.DEAD_LETTER, _S.FAILED])

#: Ended without success, by itself or by an operator.
ENDED_BADLY = NEEDS_HUMAN | frozenset([_S.CANCELLED])

#: States from which an operator may requeue; an UPSTREAM_FAILED task returns with its cause instead.
REQUEUE_FROM = frozenset(
    [_S.READY, _S.RETRYING, _S.SENSING, _S.SUCCESS, _S.FAILED, _S.DEAD_LETTER, _S.SKIPPED, _S.CANCELLED]
)

#: States from which an operator may skip.
SKIP_FROM = frozenset(
    [_S.PENDING, _S.READY, _S.RETRYING, _S.SENSING, _S.FAILED, _S.DEAD_LETTER, _S.UPSTREAM_FAILED, _S.CANCELLED]
)
