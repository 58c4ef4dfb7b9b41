"""What happens next after an attempt ended: (task, outcome, policy, now, dice) -> decision.

``FAILURE_RULES`` is the order in which a failure is judged; the first rule with an answer wins. The poison check comes
before the attempts check (document 000, failure path v2), so that a deterministic failure is dead-lettered on its
second sight although attempts are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ..domain.liveness import what_is_known
from ..domain.states import DeadLetterKind
from .deadline import shorten_delay
from .outcome import NOT_STARTED, Failure, FailureClass, FailureMode, Outcome, OutcomeKind
from .policy import RetryPolicy, add_retry_after, bounds, draw_delay


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """What a decision needs to know of the task, as it was before this outcome. Counters of the current generation."""

    failures: int = 0
    losses: int = 0
    deferrals: int = 0
    refusals: int = 0
    previous_delay: float | None = None  # seconds, for decorrelated jitter
    fingerprints: tuple[str, ...] = ()  # strict, of failures of this generation in these circumstances, oldest first
    classes: tuple[FailureClass, ...] = ()  # of all failed attempts of this generation
    healed: int = 0  # how often the fingerprint at hand was followed by a success, in all history
    first_started_at: int | None = None  # microseconds UTC
    p99_seconds: float | None = None  # of this task's successful attempts, when there is history
    timeout_seconds: float | None = None
    idempotent: bool = True
    effect_key: str | None = None  # of a task that does something to the world, at most once
    is_probe: bool = False  # it was sent to find out whether its downstream is back
    max_losses: int = 3
    recheck_seconds: float = 30.0
    path_seconds: float = 0.0  # this task and the longest path behind it, by history
    deadline_at: int | None = None  # of the run, microseconds UTC
    cancel_requested: bool = False  # an operator wants the end of this attempt
    changed: tuple[str, ...] = ()  # what was not the same when it last failed like this, as people call it
    verifies: str | None = None  # loose fingerprint of the failure that a fix is meant to have ended


@dataclass(frozen=True, slots=True)
class Succeed:
    """The task is done."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again. ``delay`` was drawn under ``ceiling`` (seconds); ``counts`` says which counter pays.

    ``shortened_from``: the delay that the deadline of the run left no time for; None: it is as it was drawn.
    """

    delay: float
    ceiling: float
    mode: FailureMode
    counts: Literal["failures", "losses", "refusals"] = "failures"
    shortened_from: float | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The budget is spent: FAILED, and it propagates."""

    mode: FailureMode
    why: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A human is needed: children are held, not failed."""

    kind: DeadLetterKind
    mode: FailureMode
    why: str
    fix_failed: bool = False  # the very failure that a fix was meant to have ended


@dataclass(frozen=True, slots=True)
class Defer:
    """A sensor looks again after ``delay`` seconds; no slot is held, no attempt of the budget is spent."""

    delay: float


@dataclass(frozen=True, slots=True)
class Skip:
    """The task decided that its branch is not taken."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """An operator stopped it."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The attempt was ended for something that is not the task's, and costs it nothing: it runs again at once."""

    why: str = "the executor stopped"


Decision = Succeed | Retry | Fail | DeadLetter | Defer | Skip | Cancel | Interrupt


def counter_of(decision: Decision) -> str | None:
    """The counter of the generation that a decision adds one to: failures, losses, refusals or deferrals."""
    match decision:
        case Retry():
            return decision.counts
        case DeadLetter(mode=FailureMode.LOST):
            return "losses"
        case Fail() | DeadLetter():
            return "failures"
        case Defer():
            return "deferrals"
        case _:
            return None


Uniform = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class _Case:
    failure: Failure
    history: TaskHistory
    policy: RetryPolicy
    now: int
    uniform: Uniform

    @property
    def failures(self) -> int:
        """Including this one."""
        return self.history.failures + 1


def decide(history: TaskHistory, outcome: Outcome, policy: RetryPolicy, now: int, uniform: Uniform) -> Decision:
    """Judge one ended attempt. ``now`` in microseconds UTC; ``uniform(low, high)`` are the dice."""
    decision = _judge(history, outcome, policy, now, uniform)
    goes_on = isinstance(decision, Retry | Defer | Interrupt)
    if history.cancel_requested and (goes_on or outcome.kind is OutcomeKind.LOST):
        return Cancel()  # it ended by itself, at its deadline or with its executor, before it could be ended
    return decision


def _judge(history: TaskHistory, outcome: Outcome, policy: RetryPolicy, now: int, uniform: Uniform) -> Decision:
    match outcome.kind:
        case OutcomeKind.SUCCESS:
            return Succeed()
        case OutcomeKind.SKIPPED:
            return Skip()
        case OutcomeKind.CANCELLED:
            return Cancel()
        case OutcomeKind.LOST if outcome.is_blameless and history.idempotent:
            return Interrupt(outcome.failure.message if outcome.failure is not None else "lost by no fault of its own")
        case OutcomeKind.LOST:
            return decide_loss(history, policy, uniform)
        case OutcomeKind.DEFERRED:
            return _decide_deferral(history, outcome, policy, now, uniform)
    assert outcome.failure is not None, "an attempt that failed says why"
    case_ = _Case(outcome.failure, history, policy, now, uniform)
    for rule in FAILURE_RULES:
        decision = rule(case_)
        if decision is not None:
            return _not_fixed(case_, decision)
    raise AssertionError("the last rule always answers")


def _not_fixed(case: _Case, decision: Decision) -> Decision:
    """One that was sent to try a fix out, and fails as before, has its answer: no retry, and nothing propagates."""
    if case.history.verifies is None or case.failure.fingerprint.loose != case.history.verifies:
        return decision
    assert isinstance(decision, Retry | Fail | DeadLetter), "what a failure can lead to"
    kind = decision.kind if isinstance(decision, DeadLetter) else DeadLetterKind.POISON
    return DeadLetter(kind, decision.mode, "the fix did not fix it: the same failure as before", fix_failed=True)


def decide_loss(history: TaskHistory, policy: RetryPolicy, uniform: Uniform) -> Decision:
    """The executor or the host died under the attempt: not the task's failure, but bounded on its own.

    The wait is at least ``base``, or a task that kills its host would kill it again at once.
    """
    if not history.idempotent:
        return DeadLetter(DeadLetterKind.INDETERMINATE, FailureMode.LOST, what_is_known(history.effect_key))
    if history.losses + 1 >= history.max_losses:
        why = f"lost {history.losses + 1} times together with its executor or host"
        return DeadLetter(DeadLetterKind.CRASH_LOOP, FailureMode.LOST, why)
    delay, ceiling = draw_delay(policy, history.losses, None, uniform)
    return Retry(max(delay, policy.base), max(ceiling, policy.base), FailureMode.LOST, counts="losses")


RECHECK_SECONDS_MIN = 0.1  # a sensor that says "at once" would fork without a pause


def _decide_deferral(
    history: TaskHistory, outcome: Outcome, policy: RetryPolicy, now: int, uniform: Uniform
) -> Decision:
    asked = outcome.recheck_seconds if outcome.recheck_seconds is not None else history.recheck_seconds
    recheck = max(asked, RECHECK_SECONDS_MIN)
    # De-phased by up to a tenth: sensors with one schedule are a hidden herd (document 004).
    delay = recheck + uniform(0, recheck * 0.1)
    if policy.max_elapsed is not None and _elapsed_seconds(history, now) + delay > policy.max_elapsed:
        return Fail(FailureMode.OTHER, f"what it waits for did not come within {policy.max_elapsed:g} s")
    return Defer(delay)


def _elapsed_seconds(history: TaskHistory, now: int) -> float:
    return 0.0 if history.first_started_at is None else (now - history.first_started_at) / 1e6


def mode_of(failure: Failure) -> FailureMode:
    """Which of the document's three modes a first look suggests."""
    if failure.failure_class is FailureClass.TIMEOUT:
        return FailureMode.HANG
    if failure.failure_class is FailureClass.TRANSIENT:
        return FailureMode.TRANSIENT
    return FailureMode.OTHER


# --- The rules, in their order -------------------------------------------------------------------------------------


def _credential_refused(case: _Case) -> Decision | None:
    if case.failure.failure_class is FailureClass.AUTH:
        return DeadLetter(DeadLetterKind.AUTH, FailureMode.OTHER, "the credential is refused; retries can lock it")
    return None


#: ``errors.TooManyBadRows``, as the attempt reports it.
TOO_MANY_BAD_ROWS = "redrive.engine.errors.TooManyBadRows"


def _too_many_bad_rows(case: _Case) -> Decision | None:
    if case.failure.error_type == TOO_MANY_BAD_ROWS:
        return DeadLetter(DeadLetterKind.QUARANTINE, FailureMode.OTHER, case.failure.message)
    return None


def _permanent(case: _Case) -> Decision | None:
    if case.failure.failure_class in (FailureClass.PERMANENT, FailureClass.VALIDATION):
        return DeadLetter(DeadLetterKind.PERMANENT, FailureMode.OTHER, "another try will not work")
    return None


def _not_idempotent(case: _Case) -> Decision | None:
    if not case.history.idempotent and case.failure.fingerprint.loose != NOT_STARTED:
        why = "it failed on the way and is not idempotent: find out what it did, then requeue or skip"
        return DeadLetter(DeadLetterKind.INDETERMINATE, FailureMode.OTHER, why)
    return None


#: What says something about the downstream and not about the task.
_OUTAGE_CLASSES = frozenset([FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS])


def _failed_probe(case: _Case) -> Decision | None:
    """The breaker's question, not the task's failure: an outage must not eat the budget of who was sent to look."""
    if not case.history.is_probe or case.failure.failure_class not in _OUTAGE_CLASSES:
        return None
    decision = _try_again(case)
    return replace(decision, counts="refusals") if isinstance(decision, Retry) else decision


def _out_of_memory_again(case: _Case) -> Decision | None:
    seen = case.history.classes.count(FailureClass.OUT_OF_MEMORY) + 1
    if case.failure.failure_class is FailureClass.OUT_OF_MEMORY and seen >= 2:
        return DeadLetter(DeadLetterKind.OUT_OF_MEMORY, FailureMode.OTHER, "out of memory twice, with the same memory")
    return None


#: TRANSIENT, RetryAfter, AUTH, cancellation and losses never count as poison (SPEC 4.1).
_POISON_CLASSES = frozenset([FailureClass.AMBIGUOUS, FailureClass.UNCLASSIFIED])


def _poisoned(case: _Case) -> Decision | None:
    threshold = case.policy.poison_after
    if threshold is None or case.failure.failure_class not in _POISON_CLASSES:
        return None
    if case.failure.retry_after_seconds is not None:
        return None
    threshold += case.history.healed  # a failure that was seen to heal is not deterministic
    strict = case.failure.fingerprint.strict
    if not strict:  # it cannot be told whether two such failures are the same
        return None
    seen = (*case.history.fingerprints, strict)
    if _consecutive(seen) >= threshold or seen[-2 * threshold :].count(strict) >= threshold:
        return DeadLetter(DeadLetterKind.POISON, FailureMode.POISONED, f"the same failure {seen.count(strict)} times")
    return None


def _consecutive(seen: tuple[str, ...]) -> int:
    count = 0
    for fingerprint in reversed(seen):
        if fingerprint != seen[-1]:
            break
        count += 1
    return count


def _hangs_at_the_same_place(case: _Case) -> Decision | None:
    """Only where history shows that the timeout is not simply tighter than the work (document 000, what goes wrong)."""
    history = case.history
    if case.failure.failure_class is not FailureClass.TIMEOUT or case.policy.poison_after is None:
        return None
    if not case.failure.fingerprint.strict:  # no frame of Python was seen: the places cannot be compared
        return None
    if history.p99_seconds is None or history.timeout_seconds is None or history.timeout_seconds <= history.p99_seconds:
        return None
    if _consecutive((*history.fingerprints, case.failure.fingerprint.strict)) >= case.policy.poison_after:
        return DeadLetter(DeadLetterKind.HANG, FailureMode.HANG, "it hung at the same place again")
    return None


def _ambiguous_budget(case: _Case) -> Decision | None:
    seen = case.history.classes.count(FailureClass.AMBIGUOUS) + 1
    if case.failure.failure_class is FailureClass.AMBIGUOUS and seen >= case.policy.ambiguous_attempts:
        return DeadLetter(DeadLetterKind.PERMANENT, FailureMode.OTHER, f"ambiguous {seen} times: taken as permanent")
    return None


def _attempts_spent(case: _Case) -> Decision | None:
    if case.failures >= case.policy.max_attempts:
        return Fail(mode_of(case.failure), f"{case.failures} of {case.policy.max_attempts} attempts failed")
    return None


def _try_again(case: _Case) -> Decision:
    drawn, highest = draw_delay(case.policy, case.failures - 1, case.history.previous_delay, case.uniform)
    floor = case.failure.retry_after_seconds
    delay, ceiling = add_retry_after(floor, drawn, highest)  # never sooner than asked; jitter only adds
    slack, shortened_from = _slack_seconds(case), None
    if delay > slack:
        first = bounds(case.policy, 0)[1]
        shorter = shorten_delay(drawn, highest, max(floor or 0.0, 0.0), first, slack)
        if shorter is not None:
            shortened_from, (delay, ceiling) = delay, shorter
    elapsed = _elapsed_seconds(case.history, case.now)
    if case.policy.max_elapsed is not None and elapsed + delay > case.policy.max_elapsed:
        return Fail(mode_of(case.failure), f"the next try would come after max_elapsed, {case.policy.max_elapsed:g} s")
    if delay > slack:
        why = "a retry could not finish before the deadline of the run"
        return DeadLetter(DeadLetterKind.DEADLINE, mode_of(case.failure), why)
    return Retry(delay, ceiling, mode_of(case.failure), shortened_from=shortened_from)


def _slack_seconds(case: _Case) -> float:
    """How long this task may wait and the run still make its deadline."""
    deadline = case.history.deadline_at
    return math.inf if deadline is None else (deadline - case.now) / 1e6 - case.history.path_seconds


FAILURE_RULES: tuple[Callable[[_Case], Decision | None], ...] = (
    _credential_refused,
    _too_many_bad_rows,
    _permanent,
    _not_idempotent,
    _failed_probe,
    _out_of_memory_again,
    _poisoned,
    _hangs_at_the_same_place,
    _ambiguous_budget,
    _attempts_spent,
    _try_again,
)
