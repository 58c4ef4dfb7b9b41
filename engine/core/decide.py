"""Decide what follows an attempt: (history, outcome, circumstances, now, random numbers) -> decision.

``FAILURE_RULES`` lists the rules for a failure in their order; the first rule with a decision wins. The poison rule
comes before the rule of spent attempts: a deterministic failure becomes a dead letter on its second occurrence
although attempts are left (``failures/tables.py`` has the rule in words).

What an identical failure needs to be poison, by ``poison_after`` of the policy:

    poison_after    failure                                         in a row    and
    ------------    --------------------------------------------    --------    -----------------------------------
    "evidence"      repeats by its type                             2           nothing changed between
    "evidence"      about what was read, in a task that names a     2           first and last are poison_seconds
                    downstream                                                  apart, or no attempt is left
    "evidence"      repeats by its type, and SIBLINGS_MIN tasks     1           no sibling has healed
                    of the run are poison by it
    "evidence"      ambiguous, or of another type                   -           retried as the policy says
    a number        any that is not transient                       number      nothing changed between
    0               any at all                                      1
    None            any                                             -           retried as the policy says

A failure that healed before needs one more in a row for each time. Document 000 counts the failures before the one
that is judged: its numbers 0, 1 and 2 are 0, 2 and 3 here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from ..domain.states import DeadLetterKind, describe_lost
from ..domain.text import counted, format_seconds
from .advice import NOT_JUDGED, TimeoutJudgement, TimeoutVerdict
from .breaker import CallVerdict, DownstreamHealth
from .deadline import shorten_delay
from .failures.tables import is_shape_error, nature_of
from .outcome import MEMORY_LIMIT_ERROR, NOT_STARTED, Failure, FailureClass, FailureMode, LostWith, Outcome, OutcomeKind
from .policy import RetryPolicy, Uniform, add_retry_after, ceiling, draw_delay
from .spec import TaskSpec

SIBLINGS_MIN = 3  # tasks that fail alike, from which one failure of the next is evidence enough
SIBLINGS_REASON = f"{SIBLINGS_MIN} siblings are poison by the same failure"


class Siblings(msgspec.Struct, frozen=True):
    """Other tasks of the run that failed with the same strict fingerprint, each counted up to ``SIBLINGS_MIN``."""

    failed: int = 0  # whatever became of them
    poisoned: int = 0  # dead letters of kind poison
    healed: int = 0  # successes since, without an operator

    @property
    def are_proof(self) -> bool:
        """Whether they prove that this failure repeats."""
        return self.poisoned >= SIBLINGS_MIN and not self.healed


NO_SIBLINGS = Siblings()


class TaskHistory(msgspec.Struct, frozen=True):
    """The task before this outcome, as the state file has it. Counters are those of the current generation."""

    spec: TaskSpec = TaskSpec("")
    failures: int = 0
    losses: int = 0
    deferrals: int = 0
    refusals: int = 0
    previous_delay: float | None = None  # seconds, for decorrelated jitter
    same_failures_at: tuple[int, ...] = ()  # ends of the failures just before this one that equal it, the latest first
    first_failed_at: int | None = None  # of this generation in the same environment, as those: microseconds UTC
    failures_of_class: int = 0  # earlier ones of its class in this generation, for ``COUNTED_CLASSES``
    healed: int = 0  # how often a success followed this fingerprint, in all history
    first_started_at: int | None = None  # microseconds UTC
    siblings: Siblings = NO_SIBLINGS
    timeout: TimeoutJudgement = NOT_JUDGED  # of an attempt that was killed at it
    effect_key: str | None = None  # of a task with an external effect, which runs at most once
    cancel_requested: bool = False  # an operator cancelled the attempt, or the deadline of the run ends it
    deadline_passed: str | None = None  # why the deadline of the run ends the attempt
    bounded_until: int | None = None  # of a clean-up of a run that is over: when it is ended, microseconds UTC
    changed: tuple[str, ...] = ()  # parts of the environment that differ from the last such failure, in words
    verifies: str | None = None  # a canary: loose fingerprint of the failure that the fix must end


class Circumstances(msgspec.Struct, frozen=True):
    """The facts about the end of an attempt that the executor alone knows: no row has them."""

    call: CallVerdict = CallVerdict()  # how much of the failure its downstream explains
    path_seconds: float = 0.0  # of this task and the longest path below it, by the durations of earlier runs
    deadline_at: int | None = None  # of the run, if it ends the run: microseconds UTC
    is_interrupted: bool = False  # the executor terminated the attempt because it stops
    is_silent: bool = False  # the attempt has written no output


NO_CIRCUMSTANCES = Circumstances()


class Succeed(msgspec.Struct, frozen=True):
    """The task is done."""


class Retry(msgspec.Struct, frozen=True):
    """Run again after ``delay`` seconds, drawn up to ``ceiling``; ``counts`` names the counter that increases.

    ``shortened_from``: the drawn delay, if the deadline of the run, ``due_at``, shortened it.
    """

    delay: float
    ceiling: float
    mode: FailureMode
    counts: Literal["failures", "losses", "refusals"] = "failures"
    shortened_from: float | None = None
    due_at: int | None = None


class Fail(msgspec.Struct, frozen=True):
    """The budget is spent: FAILED, which propagates to the children."""

    mode: FailureMode
    why: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A human is needed: the children wait and do not fail."""

    kind: DeadLetterKind
    mode: FailureMode
    why: str
    fix_failed: bool = False  # a canary failed by the failure that the fix should have ended
    timeout: float | None = None  # seconds, to requeue it with


class Defer(msgspec.Struct, frozen=True):
    """A sensor runs again after ``delay`` seconds. Until then it holds no slot, and its budget does not change.

    ``has_answered``: the check has found nothing yet, which gives back what earlier errors have spent. Else it got no
    answer.
    """

    delay: float
    has_answered: bool = True


class Skip(msgspec.Struct, frozen=True):
    """The task skipped its branch."""


class Cancel(msgspec.Struct, frozen=True):
    """An operator cancelled the task, or the deadline of the run, which ``why`` says, ended it."""

    why: str | None = None


class Interrupt(msgspec.Struct, frozen=True):
    """The attempt ended for a cause outside the task: the task runs again at once, and no counter increases."""

    why: str = "the executor stopped"


Decision = Succeed | Retry | Fail | DeadLetter | Defer | Skip | Cancel | Interrupt


def counter_of(decision: Decision) -> str | None:
    """Return the counter that a decision increases: failures, losses, refusals or deferrals."""
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


class _FailureCase(msgspec.Struct, frozen=True):
    failure: Failure
    history: TaskHistory
    circumstances: Circumstances
    now: int
    uniform: Uniform

    @property
    def policy(self) -> RetryPolicy:
        return self.history.spec.retry

    @property
    def failures(self) -> int:
        """The failures of this generation, this one included."""
        return self.history.failures + 1

    @property
    def tries(self) -> int:
        """The failures with those that were charged to the downstream: the waits grow with each."""
        return self.failures + self.history.refusals

    @property
    def failing_seconds(self) -> float:
        """The time for which the task has failed, from its first start on; 0 of a sensor, which has had answers."""
        has_failed = self.history.first_failed_at is not None and not self.history.deferrals
        return self.elapsed_seconds if has_failed else 0.0

    @property
    def elapsed_seconds(self) -> float:
        """The time from the first start."""
        return _seconds_since(self.history.first_started_at, self.now)

    @property
    def is_spent(self) -> bool:
        """Whether no attempt is left."""
        return self.failures >= self.policy.max_attempts

    @property
    def same_failures(self) -> int:
        """The number of identical failures in a row, this one included; 0: this one cannot be compared."""
        return len(self.history.same_failures_at) + 1 if self.failure.fingerprint.strict else 0

    @property
    def same_failure_seconds(self) -> float:
        """The time from the first to the last of these failures."""
        return _seconds_since(self.history.same_failures_at[-1] if self.history.same_failures_at else None, self.now)

    @property
    def may_be_of_downstream(self) -> bool:
        """Whether the failure is about what the task has perhaps read from its downstream."""
        is_judged = self.policy.poison_after == "evidence" and self.history.spec.downstream is not None
        return is_judged and is_shape_error(self.failure)


def decide(
    history: TaskHistory, outcome: Outcome, circumstances: Circumstances, now: int, uniform: Uniform
) -> Decision:
    """Decide what follows an attempt. ``now``: microseconds UTC; ``uniform(low, high)`` returns a random number."""
    decision = _decide_outcome(history, outcome, circumstances, now, uniform)
    is_undone = isinstance(decision, Retry | Defer | Interrupt | Cancel) or outcome.kind is OutcomeKind.LOST
    if history.cancel_requested and is_undone:  # also if the attempt ended before the request reached it
        return Cancel() if history.deadline_passed is None else _end_at_deadline(history, history.deadline_passed)
    return decision


def _end_at_deadline(history: TaskHistory, why: str) -> Decision:
    """Cancel a task whose attempt the deadline ended; a human decides about one that may have done half of its work."""
    if history.spec.idempotent:
        return Cancel(why)
    what = f"{why}; {describe_lost(history.effect_key)}"
    return DeadLetter(DeadLetterKind.INDETERMINATE, FailureMode.LOST, what)


def _decide_outcome(
    history: TaskHistory, outcome: Outcome, circumstances: Circumstances, now: int, uniform: Uniform
) -> Decision:
    match outcome.kind:
        case OutcomeKind.SUCCESS:
            return Succeed()
        case OutcomeKind.SKIPPED:
            return Skip()
        case OutcomeKind.CANCELLED if circumstances.is_interrupted and not history.cancel_requested:
            # A half-done attempt that is not idempotent is as uncertain as after a crash.
            return Interrupt() if history.spec.idempotent else decide_loss(history, uniform)
        case OutcomeKind.CANCELLED:
            return Cancel()
        case OutcomeKind.LOST if outcome.is_blameless and history.spec.idempotent:
            return Interrupt(outcome.failure.message if outcome.failure is not None else "lost by no fault of its own")
        case OutcomeKind.LOST:
            how = outcome.failure.message if outcome.failure is not None else ""
            if (
                outcome.lost_with is LostWith.PROCESS
                and history.spec.idempotent
                and history.spec.retry.max_attempts == 1
            ):
                # Its executor lives and goes on by itself; after the loss of an executor somebody asks for the resume.
                why = f"{how or 'lost'} in its only attempt: find out what it did, then requeue or skip"
                return DeadLetter(DeadLetterKind.INDETERMINATE, FailureMode.LOST, why)
            return decide_loss(history, uniform, how)
        case OutcomeKind.DEFERRED:
            return _decide_deferral(history, outcome, now, uniform)
    assert outcome.failure is not None, "a failed attempt has a failure"
    case = _FailureCase(outcome.failure, history, circumstances, now, uniform)
    for rule in FAILURE_RULES:
        decision = rule(case)
        if decision is not None:
            return _fail_canary(case, decision)
    raise AssertionError("the last rule always decides")


def _fail_canary(case: _FailureCase, decision: Decision) -> Decision:
    """Make a dead letter of a canary that fails with the same fingerprint: no retry, and no descendant fails."""
    if case.history.verifies is None or case.failure.fingerprint.loose != case.history.verifies:
        return decision
    if not isinstance(decision, Retry | Fail | DeadLetter):
        return decision
    kind = decision.kind if isinstance(decision, DeadLetter) else DeadLetterKind.POISON
    return DeadLetter(kind, decision.mode, "the fix did not help: the same failure as before", fix_failed=True)


def decide_loss(history: TaskHistory, uniform: Uniform, last: str = "") -> Decision:
    """Decide what follows the loss of an attempt: ``losses`` are bounded apart from failures.

    ``last``: how it was lost, in words; empty: together with its executor or host. The wait is at least ``base``: a
    task that kills its host would otherwise kill it again at once.
    """
    if not history.spec.idempotent:
        return DeadLetter(DeadLetterKind.INDETERMINATE, FailureMode.LOST, describe_lost(history.effect_key))
    if history.losses + 1 >= history.spec.max_losses:
        why = f"lost {history.losses + 1} times; the last time: {last or 'together with its executor or host'}"
        return DeadLetter(DeadLetterKind.CRASH_LOOP, FailureMode.LOST, why)
    policy = history.spec.retry
    delay, ceiling = draw_delay(policy, history.losses, None, uniform)
    return Retry(max(delay, policy.base), max(ceiling, policy.base), FailureMode.LOST, counts="losses")


RECHECK_SECONDS_MIN = 0.1  # a recheck of 0 s would fork without a pause
ASKED_SECONDS_MIN = 1.0  # ``NotReady(recheck_seconds=0)`` would check as often for ever; a shorter rhythm is declared


def _decide_deferral(history: TaskHistory, outcome: Outcome, now: int, uniform: Uniform) -> Decision:
    asked = outcome.recheck_seconds if outcome.recheck_seconds is not None else history.spec.recheck_seconds
    recheck = max(asked, RECHECK_SECONDS_MIN, min(history.spec.recheck_seconds, ASKED_SECONDS_MIN))
    # Up to a tenth more: sensors with one schedule must not run at the same instant.
    delay = recheck + uniform(0, recheck * 0.1)
    elapsed, max_elapsed = _seconds_since(history.first_started_at, now), history.spec.retry.max_elapsed
    if max_elapsed is not None and elapsed + delay > max_elapsed:
        checks = counted(history.deferrals + 1, "check")
        why = f"what it waits for did not come within {max_elapsed:g} s, in {checks}"
        return Fail(FailureMode.OTHER, f"{why}: {outcome.defer_reason}" if outcome.defer_reason else why)
    return Defer(delay)


def _seconds_since(at: int | None, now: int) -> float:
    return 0.0 if at is None else (now - at) / 1e6


def mode_of(failure: Failure) -> FailureMode:
    """Return the failure mode that a class suggests."""
    if failure.failure_class is FailureClass.TIMEOUT:
        return FailureMode.HANG
    if failure.failure_class is FailureClass.TRANSIENT:
        return FailureMode.TRANSIENT
    return FailureMode.OTHER


# --- The rules, in their order -------------------------------------------------------------------------------------


def _credential_refused(case: _FailureCase) -> Decision | None:
    if case.failure.failure_class is FailureClass.AUTH:
        return DeadLetter(DeadLetterKind.AUTH, FailureMode.OTHER, "the credential is refused; retries can lock it")
    return None


#: ``errors.TooManyBadRows``, as the attempt reports it.
TOO_MANY_BAD_ROWS = "redrive.engine.errors.TooManyBadRows"


def _too_many_bad_rows(case: _FailureCase) -> Decision | None:
    if case.failure.error_type == TOO_MANY_BAD_ROWS:
        return DeadLetter(DeadLetterKind.QUARANTINE, FailureMode.OTHER, case.failure.message)
    return None


def _permanent(case: _FailureCase) -> Decision | None:
    failure = case.failure
    by_type = failure.failure_class is FailureClass.VALIDATION and nature_of(failure) is not None  # poison, if again
    if failure.failure_class in (FailureClass.PERMANENT, FailureClass.VALIDATION) and not by_type:
        return DeadLetter(DeadLetterKind.PERMANENT, FailureMode.OTHER, "another try will not work")
    return None


def _not_idempotent(case: _FailureCase) -> Decision | None:
    if not case.history.spec.idempotent and case.failure.fingerprint.loose != NOT_STARTED:
        why = "it failed after its start and is not idempotent: find out what it did, then requeue or skip"
        return DeadLetter(DeadLetterKind.INDETERMINATE, FailureMode.OTHER, why)
    return None


def _out_of_memory(case: _FailureCase) -> Decision | None:
    """End a task for which its memory was not enough twice; at once if its own limit has ended it."""
    seen = case.history.failures_of_class + 1
    if case.failure.failure_class is not FailureClass.OUT_OF_MEMORY:
        return None
    if seen >= 2 or case.failure.error_type == MEMORY_LIMIT_ERROR:
        why = "another try would need as much memory" if seen == 1 else "out of memory twice, with the same memory"
        return DeadLetter(DeadLetterKind.OUT_OF_MEMORY, FailureMode.OTHER, why)
    return None


#: A sensor without ``max_elapsed`` fails when each of its checks has failed for so long.
NO_ANSWER_SECONDS = 24 * 3600.0


def _no_answer(case: _FailureCase) -> Decision | None:
    """Check a sensor again at its rhythm when what it asks is not there: an outage is what it may well wait for."""
    if case.history.spec.kind != "sensor" or case.failure.failure_class is not FailureClass.TRANSIENT:
        return None
    unanswered_seconds = _seconds_since(case.history.first_failed_at, case.now)
    if case.policy.max_elapsed is None and unanswered_seconds >= NO_ANSWER_SECONDS:
        return Fail(FailureMode.TRANSIENT, f"it has had no answer for {format_seconds(NO_ANSWER_SECONDS)}")
    asked = Outcome(OutcomeKind.DEFERRED, defer_reason=case.failure.message)
    decision = _decide_deferral(case.history, asked, case.now, case.uniform)
    if not isinstance(decision, Defer):
        return decision
    return Defer(max(decision.delay, case.failure.retry_after_seconds or 0.0), has_answered=False)


#: A machine that starts no process for so long is a failure of its tasks, which somebody must see.
NOT_STARTED_SECONDS = 3600.0
NOT_STARTED_FLOOR_MAX = 10.0  # seconds; the floor of the wait doubles up to here, whatever the policy says


def _not_started(case: _FailureCase) -> Decision | None:
    """Count a start that the machine refused as a refusal: the task has not run."""
    if case.failure.fingerprint.loose != NOT_STARTED or case.elapsed_seconds > NOT_STARTED_SECONDS:
        return None
    refusals = case.history.refusals
    delay, ceiling = draw_delay(case.policy, refusals, case.history.previous_delay, case.uniform)
    floor = min(NOT_STARTED_FLOOR_MAX, 0.1 * 2.0 ** min(refusals, 60))
    return Retry(max(delay, floor), max(ceiling, floor), FailureMode.TRANSIENT, counts="refusals")


#: A task that its downstream fails for so long ends, whoever else fails.
HELD_SECONDS_MAX = 86400.0
HELD_TRIES_MAX = 10  # failures that are charged to a downstream, unless they are transient


def _charged_to_downstream(case: _FailureCase) -> Decision | None:
    """Count the failure as a refusal: an outage must not spend the attempts of the tasks that meet it.

    While the breaker is closed the evidence is weaker, and the task gets at most as many attempts again; what is
    ambiguous, and a timeout, is never charged without a limit. A task alone is held before its last attempt is spent.
    An error about what was read is charged until it has come for ``poison_seconds``, or siblings prove that it is no
    outage.
    """
    health, refusals = case.circumstances.call.health, case.history.refusals
    limit = case.policy.max_attempts if health is DownstreamHealth.FAILING else HELD_TRIES_MAX
    is_explained = health is not DownstreamHealth.FAILING and case.failure.failure_class is FailureClass.TRANSIENT
    is_limited = refusals >= limit and not is_explained
    has_attempts = health is DownstreamHealth.SILENT and not case.is_spent
    if health is DownstreamHealth.UP or is_limited or has_attempts:
        return None
    lasts = case.same_failure_seconds >= case.policy.poison_seconds or case.history.siblings.are_proof
    if is_shape_error(case.failure) and lasts:
        return None
    if case.failing_seconds >= HELD_SECONDS_MAX:
        return Fail(mode_of(case.failure), f"its downstream has failed for {format_seconds(case.failing_seconds)}")
    decision = _retry(case)
    return replace(decision, counts="refusals") if isinstance(decision, Retry) else decision


#: Seconds. Behind an open breaker, and alone as long as its outage is short, a task waits no longer than this: the
#: breaker asks as often. Alone it then waits half as long as no call has succeeded, up to the cap.
HELD_CAP = 30.0
HELD_BASE_MIN = 0.1


def _waits_by(case: _FailureCase) -> RetryPolicy:
    """Return the policy of the waits: they grow with each failure, charged or not, as far as the downstream allows."""
    policy = case.policy
    planned = ceiling(policy, max(case.failures, policy.max_attempts - 1) - 1)  # the longest of the policy's own
    call = case.circumstances.call
    if call.health is DownstreamHealth.SILENT and case.is_spent:
        return _held_policy(policy, call.silent_seconds)
    if call.health is DownstreamHealth.DOWN:
        base = max(policy.base, HELD_BASE_MIN)  # ``base=0`` would ask for a day without a pause
        return dataclasses.replace(policy, base=base, cap=min(policy.cap, max(HELD_CAP, planned)))
    return policy if not case.history.refusals else dataclasses.replace(policy, cap=planned)


def _held_policy(policy: RetryPolicy, silent_seconds: float) -> RetryPolicy:
    """Return the policy of a task that is held alone: it has no breaker before it that bounds the calls."""
    return dataclasses.replace(
        policy,
        base=max(policy.base, HELD_BASE_MIN),
        factor=max(policy.factor, 2.0),
        cap=max(HELD_CAP, min(policy.cap, silent_seconds / 2)),
        jitter="equal" if policy.jitter == "full" else policy.jitter,  # so that each wait is longer than the last
    )


def _any_failure(case: _FailureCase) -> Decision | None:
    if case.policy.poison_after != 0:
        return None
    why = "poison_after=0: any failure is a dead letter at once"
    if case.failure.failure_class is FailureClass.TIMEOUT:  # never poison (SPEC 4.1)
        return _too_early(case) or DeadLetter(DeadLetterKind.HANG, FailureMode.HANG, why)
    return DeadLetter(DeadLetterKind.POISON, FailureMode.POISONED, why)


#: What ends a task by the number of its failures of one class; either comes a few times in a generation.
COUNTED_CLASSES = frozenset([FailureClass.OUT_OF_MEMORY, FailureClass.AMBIGUOUS])


def compares(history: TaskHistory, failure: Failure) -> bool:
    """Whether a decision depends on ``same_failures_at`` and ``healed``: a task may have thousands of failures.

    Where it does, a few of them end the task. ``history``: all but these two.
    """
    case = _FailureCase(failure, history, NO_CIRCUMSTANCES, 0, max)
    is_of_downstream = history.spec.downstream is not None and is_shape_error(failure)
    return is_of_downstream or _may_have_hung(case) or _failures_needed(case) is not None


#: TRANSIENT, RetryAfter, AUTH, cancellation and losses never count as poison (SPEC 4.1).
_POISON_CLASSES = frozenset([FailureClass.AMBIGUOUS, FailureClass.UNCLASSIFIED, FailureClass.VALIDATION])


def _poisoned(case: _FailureCase) -> Decision | None:
    needed, alike = _failures_needed(case), case.same_failures
    if needed is None or not alike or alike < needed + case.history.healed:  # what healed before may heal again
        return None
    if needed > 1 and case.may_be_of_downstream and not _has_lasted(case):
        return None
    return DeadLetter(DeadLetterKind.POISON, FailureMode.POISONED, _poison_reason(case, needed))


def _failures_needed(case: _FailureCase) -> int | None:
    """Return how many identical failures in a row are poison; None: they are not (the table in the module)."""
    if case.failure.failure_class not in _POISON_CLASSES or case.failure.retry_after_seconds is not None:
        return None
    if case.history.spec.kind == "command" and "exit_code" in case.failure.facts:
        return None  # the exit of a program says too little: an outage may look like a mistake
    if case.policy.poison_after != "evidence":
        return case.policy.poison_after
    is_ambiguous = case.failure.failure_class is FailureClass.AMBIGUOUS and not case.may_be_of_downstream
    if is_ambiguous or nature_of(case.failure) is None:
        return None
    return 1 if case.history.siblings.are_proof else 2


def _has_lasted(case: _FailureCase) -> bool:
    return case.is_spent or case.same_failure_seconds >= case.policy.poison_seconds


def _poison_reason(case: _FailureCase, needed: int) -> str:
    if needed == 1 and case.policy.poison_after == "evidence":
        return SIBLINGS_REASON
    times = "once" if case.same_failures == 1 else f"{case.same_failures} times in a row"
    return f"the same failure {times}"


def _hung(case: _FailureCase) -> Decision | None:
    """Applies only to a timeout far above the usual duration: a short one kills what does not hang."""
    judged, threshold = case.history.timeout, case.policy.poison_after
    if not _may_have_hung(case) or case.same_failures < (2 if threshold == "evidence" else threshold or 0):
        return None
    return DeadLetter(DeadLetterKind.HANG, FailureMode.HANG, f"it hung at the same place again; {judged.reason}")


def _may_have_hung(case: _FailureCase) -> bool:
    is_ample = case.history.timeout.verdict is TimeoutVerdict.AMPLE
    return case.failure.failure_class is FailureClass.TIMEOUT and is_ample and case.policy.poison_after is not None


def _timed_out_too_early(case: _FailureCase) -> Decision | None:
    """Retry a task whose timeout is too short; in the end a human sets another one."""
    dead_letter = _too_early(case)
    if dead_letter is None or case.is_spent:
        return dead_letter
    decision = _retry(case)
    if isinstance(decision, Fail):
        return dead_letter
    return replace(decision, mode=FailureMode.SLOW) if isinstance(decision, Retry) else decision


def _too_early(case: _FailureCase) -> DeadLetter | None:
    judged = case.history.timeout
    if case.failure.failure_class is not FailureClass.TIMEOUT or judged.verdict is not TimeoutVerdict.SHORT:
        return None
    return DeadLetter(DeadLetterKind.TIMEOUT, FailureMode.SLOW, judged.reason, timeout=judged.timeout)


def _ambiguous_budget(case: _FailureCase) -> Decision | None:
    seen = case.history.failures_of_class + 1
    if case.failure.failure_class is not FailureClass.AMBIGUOUS or case.may_be_of_downstream:
        return None
    if seen >= case.policy.ambiguous_attempts:
        return DeadLetter(DeadLetterKind.PERMANENT, FailureMode.OTHER, f"ambiguous {seen} times: taken as permanent")
    return None


def _attempts_spent(case: _FailureCase) -> Decision | None:
    if case.is_spent:
        return Fail(mode_of(case.failure), f"{case.failures} of {case.policy.max_attempts} attempts failed")
    return None


def _retry(case: _FailureCase) -> Decision:
    drawn, highest = draw_delay(_waits_by(case), case.tries - 1, case.history.previous_delay, case.uniform)
    floor = case.failure.retry_after_seconds
    delay, ceiling = add_retry_after(floor, drawn, highest)  # never before Retry-After
    slack, shortened_from, due_at = _slack_seconds(case), None, None
    if delay > slack:
        shorter = shorten_delay(drawn, highest, max(floor or 0.0, 0.0), slack)
        if shorter is not None:
            shortened_from, due_at, (delay, ceiling) = delay, case.circumstances.deadline_at, shorter
    if case.policy.max_elapsed is not None and case.elapsed_seconds + delay > case.policy.max_elapsed:
        return Fail(mode_of(case.failure), f"the next try would come after max_elapsed, {case.policy.max_elapsed:g} s")
    bound, has_hung = case.history.bounded_until, case.failure.failure_class is FailureClass.TIMEOUT
    if bound is not None and (has_hung or case.now + delay * 1e6 >= bound):
        return Fail(mode_of(case.failure), "the run is over, and no time is left for another try of its clean-up")
    if delay > slack:
        return DeadLetter(DeadLetterKind.DEADLINE, mode_of(case.failure), _too_late(case, slack))
    return Retry(delay, ceiling, mode_of(case.failure), shortened_from=shortened_from, due_at=due_at)


def _slack_seconds(case: _FailureCase) -> float:
    """Return how long the task may wait without missing the deadline of the run; a clean-up has a bound of its own."""
    deadline = None if case.history.bounded_until is not None else case.circumstances.deadline_at
    return math.inf if deadline is None else (deadline - case.now) / 1e6 - case.circumstances.path_seconds


def _retry_for_evidence(case: _FailureCase) -> Decision | None:
    """Wait longer where time tells more than another attempt: for the downstream, or for the verdict on siblings."""
    least = _evidence_seconds(case)
    decision = _retry(case) if least > 0 else None
    if not isinstance(decision, Retry) or decision.delay >= least:
        return decision
    delay = least + decision.delay  # the sum, so that those that failed together do not return together
    limit = math.inf if case.policy.max_elapsed is None else case.policy.max_elapsed
    if delay > min(_slack_seconds(case), limit - case.elapsed_seconds):
        return decision
    return replace(decision, delay=delay, ceiling=least + decision.ceiling)


def _evidence_seconds(case: _FailureCase) -> float:
    if case.policy.poison_after != "evidence" or nature_of(case.failure) is None:
        return 0.0
    if case.may_be_of_downstream:
        is_last = case.failures + 1 >= case.policy.max_attempts
        return case.policy.poison_seconds - case.same_failure_seconds if is_last else 0.0
    siblings = case.history.siblings
    return case.policy.base if siblings.failed >= SIBLINGS_MIN and not siblings.healed else 0.0


def _too_late(case: _FailureCase, slack: float) -> str:
    path, asked = case.circumstances.path_seconds, case.failure.retry_after_seconds
    why, left = "a retry could not finish before the deadline of the run", slack + path
    if left <= 0:
        return f"{why}, which has passed"
    needs = "usually needs {} to the end" if asked is None else "is asked to wait {} first"
    needed = format_seconds(path if asked is None else asked)
    return f"{why}: {format_seconds(left)} are left, and it {needs.format(needed)}"


FAILURE_RULES: tuple[Callable[[_FailureCase], Decision | None], ...] = (
    _credential_refused,
    _too_many_bad_rows,
    _permanent,
    _not_idempotent,
    _out_of_memory,
    _not_started,
    _no_answer,
    _charged_to_downstream,
    _any_failure,
    _poisoned,
    _hung,
    _timed_out_too_early,
    _ambiguous_budget,
    _attempts_spent,
    _retry_for_evidence,
    _retry,
)
