"""Task and run states, the table of legal moves between them, and what is known of attempts.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

FAILED: the attempts were spent on different or transient errors; the failure propagates, because unattended pipelines
must end. DEAD_LETTER: a human must decide; the task holds its children and does not fail them. SKIPPED by an operator
satisfies children. READY: all dependencies are met, and the task waits for a slot, a pool or a breaker.
"""

import json
from enum import Enum
from typing import Dict, FrozenSet, Optional, Sequence, Tuple

from .text import format_clock, percent_encoded


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
    __hash__ = str.__hash__


class DeadLetterKind(str, Enum):
    """Why a human must decide."""

    POISON = "poison"  # a failure that repeats by its nature, again and with nothing changed in between
    PERMANENT = "permanent"  # the task reported that a retry will not work
    AUTH = "auth"  # a refused credential
    HANG = "hang"  # timed out twice at the same place, far above its usual duration
    TIMEOUT = "timeout"  # timed out until its attempts were spent, by a timeout that is too short
    OUT_OF_MEMORY = "oom"
    CRASH_LOOP = "crash-loop"  # lost with its executor or host too often
    INDETERMINATE = "indeterminate"  # lost, and not idempotent or its only attempt: what it did is unknown
    DEADLINE = "deadline"  # cannot finish before the run's deadline
    QUARANTINE = "quarantine"  # too many bad rows
    BREAKER = "breaker"  # the breaker of its downstream is open, and the flow wants a dead letter then

    __str__ = _word


class SkipCause(str, Enum):
    """The decider of a skip."""

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
    _S.READY: frozenset([_S.PENDING, _S.SKIPPED, _S.CANCELLED, _S.SUCCESS, _S.FAILED]),  # an approval is answered
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

#: Every legal move. ``statefile/transitions.py`` refuses all others.
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

#: What previews say of an act that lets tasks start, in a paused run.
PAUSED_NOTE = "paused: nothing starts until unpaused"

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

#: Loose fingerprints of attempts without a failure: they share no cause.
NO_CAUSE = frozenset(["", "lost"])


def cause_fingerprint(*fingerprints: Optional[str]) -> Optional[str]:
    """The fingerprint by which acts and pages name the cause of a failure: the first that is known; None: it has none.

    ``fingerprints``: of the latest attempt, the loose one and the strict one; of its task. SQL: ``CAUSE`` in
    ``statefile/lists.py``.
    """
    found = next(filter(None, fingerprints), "")
    return None if found in NO_CAUSE else found


#: States of a page that an operator can acknowledge; that he can silence.
ACKED_FROM = frozenset(["open", "snoozed"])
SNOOZED_FROM = ACKED_FROM | frozenset(["acked"])


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


# --- The deadline of a run: the rule and its words -------------------------------------------------------------------
#
# At ``run.deadline_at`` the run is over, unless the flow says ``deadline_action="page"``: in one transaction each task
# that has not started becomes CANCELLED, each running attempt gets SIGTERM, its grace and SIGKILL, and
# ``run.deadline_passed_at`` is set. Clean-ups stay (``statefile/clean_ups.py``). When neither a process nor a clean-up
# is left, the run is FAILED. Dead letters wait for a human as before; so does
# an effect that the deadline has interrupted, because nobody knows whether it has happened.
#
# An operator who lets tasks run after that wants them to run: the act lifts the deadline of the run, and tasks below
# that the deadline had cancelled run, too. ``postpone`` gives the run a later deadline, before or after the old one.


END = "end"


def ends_run(options: str) -> bool:
    action: str = json.loads(options).get("deadline_action", END)
    return action == END


def is_due(deadline_at: Optional[int], passed_at: Optional[int], options: str, now: int) -> bool:
    """Whether the deadline of an unfinished run is to end it now. Instants in microseconds UTC."""
    return deadline_at is not None and passed_at is None and now >= deadline_at and ends_run(options)


def describe_passed(deadline_at: int) -> str:
    """The reason of everything that a deadline ends."""
    return f"deadline {format_clock(deadline_at)} passed"


#: Why a run is over that an operator has ended.
ABANDONED = "an operator has abandoned the run"


def deadline_cause(run_id: str) -> str:
    """The cause of the page about the deadline of a run."""
    return f"deadline:{run_id}"


# --- Approvals -------------------------------------------------------------------------------------------------------
#
# A task of kind APPROVAL runs nothing: while it is READY, it waits for an operator, who approves or rejects it. With a
# timeout, ``task.expires_at`` is when it fails without an answer. Neither failure is tried again.


APPROVAL = "approval"
REJECTED, UNANSWERED = "rejected", "unanswered"  # ``task.failure_class``


def describe_unanswered(expires_at: int) -> str:
    """Why an approval has failed without an answer."""
    return f"nobody has approved it by {format_clock(expires_at)}"


# --- Attempts and effects of which nobody knows whether they happened -------------------------------------------------

LOST_HALFWAY = "it was lost while it ran and is not idempotent: find out whether it happened, then requeue or skip"
_LOST_EFFECT = (
    "its process died after the effect began: look for the key {} in the other system;"
    " skip the task if it happened, else requeue it"
)


def describe_blocked(by: Optional[str]) -> str:
    """Why a task does not start below one that has failed. ``by``: that, if it is known."""
    return "blocked by {}: requeue or skip that".format(by or "a task above it")


def may_have_happened(state: str, dead_letter_kind: Optional[str]) -> bool:
    """Whether an operator must find out if a task happened, before it runs again."""
    return state == TaskState.DEAD_LETTER and dead_letter_kind == DeadLetterKind.INDETERMINATE


def describe_lost(key: Optional[str]) -> str:
    """Say what to check before a lost task runs again. ``key``: the idempotency key of its effect, if it has one."""
    return LOST_HALFWAY if key is None else _LOST_EFFECT.format(key)


def describe_doubts(doubts: Sequence[Tuple[str, Optional[str]]]) -> str:
    """Say what to check before tasks run again that are in doubt. ``doubts``: each task with the key of its effect."""
    name, key = doubts[0]
    more = f" and {len(doubts) - 1} more" if len(doubts) > 1 else ""
    if key is None:
        return f"first find out whether {name}{more} happened"
    return f"first look for the key {key} in the other system: {name}{more} may have happened"


HAPPENED = "an effect that has happened"
#: The notice of a child of a map task, by which lists find it.
CHANGED_AFTER_EFFECT = "its element has changed since its effect happened: the effect stays as it is"


def describe_repetition(key: str) -> str:
    """Why an effect that has succeeded does not run again by the way. ``key``: its idempotency key."""
    return f"{HAPPENED}: --same-key repeats it with its key {key}, --new-key with a new one"


def effect_key(run_id: str, name: str, key_generation: int) -> str:
    """The idempotency key of a task, in ASCII: the same for every attempt, until an operator requests a new one."""
    plain = "".join(one if one < "\x7f" else percent_encoded(one) for one in name)
    return f"{run_id}/{plain}/{key_generation}"


def cut_off_cause(run_id: str) -> str:
    """The cause of the page about an unfinished run whose executor has died."""
    return f"cut-off:{run_id}"
