"""Task and run states, and the one table of legal moves.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

FAILED means that the budget was honestly spent on different or transient errors; it propagates, because
unattended pipelines must end. DEAD_LETTER means that a human is needed; it holds its children and does not
fail them. SKIPPED by an operator satisfies children. READY means that all dependencies are met and that the
task waits for a slot, a pool or a breaker.
"""

from enum import Enum
from typing import Dict, FrozenSet


def _word(member: str) -> str:
    """The value itself, as SQLite and people read it. ``str.__str__`` in its place is undone by Enum before 3.8."""
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


class RunState(str, Enum):
    """The states of a run. *Blocked* is RUNNING with ``run.blocked_since`` set."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PARTIAL = "PARTIAL"

    __str__ = _word


class DeadLetterKind(str, Enum):
    """Why a human is needed."""

    POISON = "poison"  # the same failure again, nothing changed between
    PERMANENT = "permanent"  # the task said that another try will not work
    AUTH = "auth"  # a refused credential
    HANG = "hang"  # timed out twice at the same place
    OUT_OF_MEMORY = "oom"
    CRASH_LOOP = "crash-loop"  # lost with its executor or host too often
    INDETERMINATE = "indeterminate"  # not idempotent and lost: nobody knows whether it happened
    DEADLINE = "deadline"  # cannot finish before the run's deadline
    QUARANTINE = "quarantine"  # too many bad rows
    BREAKER = "breaker"  # its downstream is open and the flow asked for this

    __str__ = _word


class SkipCause(str, Enum):
    """Who decided that a task is not needed."""

    OPERATOR = "operator"  # permitted failure: satisfies children
    CONDITION = "condition"  # the task itself: branch not taken
    CASCADE = "cascade"  # all of its parents were skipped by condition

    __str__ = _word


_S = TaskState

#: What the executor may do on its own.
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

#: Every legal move, whoever makes it. ``statefile/changes/transitions.py`` refuses all others.
LEGAL_MOVES = {state: EXECUTOR_MOVES[state] | OPERATOR_MOVES[state] for state in TaskState}

#: Something will still happen to these without an operator.
MOVING = frozenset([_S.PENDING, _S.READY, _S.RUNNING, _S.RETRYING, _S.SENSING])

#: Nothing happens to these any more without an operator.
RESTING = frozenset(TaskState) - MOVING

#: How these end is not known yet: they move, or a human decides about them.
OPEN = MOVING | frozenset([_S.DEAD_LETTER])

#: These have not started, and their parents still decide what becomes of them.
WAITING = frozenset([_S.PENDING, _S.READY])

#: These have not had their turn, or lost it because of a task above.
NOT_STARTED = WAITING | frozenset([_S.UPSTREAM_FAILED])

#: These wait for an instant alone: the next attempt, or a sensor's next look.
TIMED = frozenset([_S.RETRYING, _S.SENSING])

#: These may carry an instant that must come first (``next_retry_at``).
WITH_INSTANT = TIMED | frozenset([_S.PENDING])

#: Their parents allowed these to start, and they do not run.
ABOUT_TO_START = TIMED | frozenset([_S.READY])

#: These have begun to work and are not done.
UNDER_WAY = TIMED | frozenset([_S.RUNNING])

#: These run, or ran to their success, with what their parents handed on at that time.
RAN = frozenset([_S.RUNNING, _S.SUCCESS])

#: These ask for the result of a parent no more: they have it, or do not start.
NEEDS_NO_RESULT = RAN | frozenset([_S.SKIPPED, _S.CANCELLED])

#: These did what they should, or need not.
FINISHED = frozenset([_S.SUCCESS, _S.SKIPPED])

#: What the inbox shows.
NEEDS_HUMAN = frozenset([_S.DEAD_LETTER, _S.FAILED])

#: These ended by themselves or by an operator, without success.
ENDED_BADLY = NEEDS_HUMAN | frozenset([_S.CANCELLED])

#: What an operator may run again; an UPSTREAM_FAILED task comes back with its cause instead.
REQUEUE_FROM = frozenset(
    [
        _S.READY,
        _S.RETRYING,
        _S.SENSING,
        _S.SUCCESS,
        _S.FAILED,
        _S.DEAD_LETTER,
        _S.SKIPPED,
        _S.CANCELLED,
    ]
)

#: What an operator may permit to be missing.
SKIP_FROM = frozenset(
    [
        _S.PENDING,
        _S.READY,
        _S.RETRYING,
        _S.SENSING,
        _S.FAILED,
        _S.DEAD_LETTER,
        _S.UPSTREAM_FAILED,
        _S.CANCELLED,
    ]
)
