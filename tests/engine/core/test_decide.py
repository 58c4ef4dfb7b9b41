"""Decisions about outcomes: each rule, the order of the rules, and the numbers of the documents."""

from dataclasses import replace

import pytest
from redrive.engine.core.decide import (
    Cancel,
    DeadLetter,
    Defer,
    Fail,
    Interrupt,
    Retry,
    Skip,
    Succeed,
    TaskHistory,
    decide,
)
from redrive.engine.core.outcome import Failure, FailureClass, FailureMode, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.domain.states import DeadLetterKind
from redrive.engine.runner.outcome_of_exit import lost

NOW = 1_777_000_000_000_000


def top(low: float, high: float) -> float:
    return high


def bottom(low: float, high: float) -> float:
    return low


def failed(failure_class=FailureClass.UNCLASSIFIED, fingerprint="aaa", **fields) -> Outcome:
    failure = Failure("builtins.ValueError", "bad", failure_class, Fingerprint(fingerprint, "loose"), **fields)
    kind = OutcomeKind.TIMED_OUT if failure_class is FailureClass.TIMEOUT else OutcomeKind.ERROR
    return Outcome(kind, failure)


def judge(outcome: Outcome, history: TaskHistory | None = None, policy: RetryPolicy | None = None, dice=top):
    return decide(history or TaskHistory(), outcome, policy or RetryPolicy(), NOW, dice)


def history_of(*fingerprints: str, failure_class=FailureClass.UNCLASSIFIED, **fields) -> TaskHistory:
    classes = (failure_class,) * len(fingerprints)
    return TaskHistory(failures=len(fingerprints), fingerprints=fingerprints, classes=classes, **fields)


@pytest.mark.parametrize(
    ("kind", "decision"),
    [(OutcomeKind.SUCCESS, Succeed()), (OutcomeKind.SKIPPED, Skip()), (OutcomeKind.CANCELLED, Cancel())],
)
def test_an_outcome_without_a_failure_needs_no_rule(kind, decision):
    assert decision == judge(Outcome(kind))


def test_the_first_ceiling_is_the_base():
    """000.14 and SPEC 4.2: base 2, full jitter, so the first wait lies in 0..2 s."""
    decision = judge(failed())
    assert Retry(2.0, 2.0, FailureMode.OTHER) == decision
    assert 0.0 == judge(failed(), dice=bottom).delay


def test_three_attempts_mean_three_starts():
    """SPEC 4.2: the documents' two numberings together gave two."""
    policy = RetryPolicy(max_attempts=3, poison_after=None)
    decisions = [judge(failed(), TaskHistory(failures=failures), policy) for failures in range(3)]
    assert [Retry, Retry, Fail] == [type(decision) for decision in decisions]


def test_the_poison_check_comes_before_the_attempts_check():
    """000.35: the second identical failure is dead-lettered, also where it is the last attempt as well."""
    decision = judge(failed(), history_of("aaa"), RetryPolicy(max_attempts=2))
    assert DeadLetterKind.POISON == decision.kind
    assert FailureMode.POISONED == decision.mode


def test_a_different_failure_in_between_does_not_hide_a_poison():
    """SPEC 4.1: A, B, A, B is caught although no two neighbours are equal."""
    policy = RetryPolicy(max_attempts=10)
    assert isinstance(judge(failed(fingerprint="b"), history_of("a"), policy), Retry)
    assert DeadLetterKind.POISON == judge(failed(fingerprint="a"), history_of("a", "b"), policy).kind


@pytest.mark.parametrize(("poison_after", "failures_needed"), [(1, 1), (2, 2), (3, 3)])
def test_poison_after_counts_identical_failures(poison_after, failures_needed):
    """000.43 and SPEC 4.3."""
    policy = RetryPolicy(max_attempts=10, poison_after=poison_after)
    decisions = [judge(failed(), history_of(*["aaa"] * before), policy) for before in range(failures_needed)]
    assert [isinstance(decision, DeadLetter) for decision in decisions] == [False] * (failures_needed - 1) + [True]


def test_poison_can_be_switched_off():
    policy = RetryPolicy(max_attempts=10, poison_after=None)
    assert isinstance(judge(failed(), history_of(*["aaa"] * 5), policy), Retry)


def test_a_fingerprint_that_was_seen_to_heal_raises_the_threshold():
    """SPEC 4.1: what healed once is by definition not deterministic."""
    policy = RetryPolicy(max_attempts=10)
    assert isinstance(judge(failed(), history_of("aaa", healed=1), policy), Retry)
    assert isinstance(judge(failed(), history_of("aaa", "aaa", healed=1), policy), DeadLetter)


@pytest.mark.parametrize("failure_class", [FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.OUT_OF_MEMORY])
def test_some_classes_are_never_poison(failure_class):
    policy = RetryPolicy(max_attempts=10)
    assert isinstance(judge(failed(failure_class), history_of("aaa"), policy), Retry)


def test_retry_after_is_a_floor_and_jitter_only_adds():
    """004.04: never sooner than asked."""
    outcome = failed(FailureClass.TRANSIENT, retry_after_seconds=60.0)
    assert 60.0 == judge(outcome, dice=bottom).delay
    assert Retry(62.0, 62.0, FailureMode.TRANSIENT) == judge(outcome)


@pytest.mark.parametrize(
    ("failure_class", "kind"),
    [
        (FailureClass.AUTH, DeadLetterKind.AUTH),
        (FailureClass.PERMANENT, DeadLetterKind.PERMANENT),
        (FailureClass.VALIDATION, DeadLetterKind.PERMANENT),
    ],
)
def test_what_will_not_work_is_dead_lettered_at_once(failure_class, kind):
    """004.11, 004.32: no attempt is spent to prove it."""
    assert kind == judge(failed(failure_class)).kind


def test_ambiguous_failures_have_a_small_budget_of_their_own():
    """004.02."""
    policy = RetryPolicy(max_attempts=10, poison_after=None)
    history = history_of("a", "b", failure_class=FailureClass.AMBIGUOUS)
    assert DeadLetterKind.PERMANENT == judge(failed(FailureClass.AMBIGUOUS, "c"), history, policy).kind


def test_out_of_memory_twice_needs_a_human():
    history = history_of("m", failure_class=FailureClass.OUT_OF_MEMORY)
    policy = RetryPolicy(max_attempts=10)
    assert DeadLetterKind.OUT_OF_MEMORY == judge(failed(FailureClass.OUT_OF_MEMORY, "m"), history, policy).kind


def test_a_hang_at_one_place_is_judged_only_where_history_clears_the_timeout():
    """000.42: a timeout tighter than the work must not look like poison."""
    policy = RetryPolicy(max_attempts=10)
    outcome = failed(FailureClass.TIMEOUT)
    tight = history_of("aaa", failure_class=FailureClass.TIMEOUT, timeout_seconds=600.0, p99_seconds=720.0)
    roomy = history_of("aaa", failure_class=FailureClass.TIMEOUT, timeout_seconds=600.0, p99_seconds=100.0)
    assert isinstance(judge(outcome, tight, policy), Retry)
    assert DeadLetterKind.HANG == judge(outcome, roomy, policy).kind


def test_a_loss_does_not_spend_the_budget_and_waits_at_least_base():
    """SPEC 4.2: a task that kills its host must not kill it again at once."""
    decision = judge(Outcome(OutcomeKind.LOST), TaskHistory(failures=2), dice=bottom)
    assert ("losses", 2.0) == (decision.counts, decision.delay)


def test_losses_have_their_own_bound():
    assert DeadLetterKind.CRASH_LOOP == judge(Outcome(OutcomeKind.LOST), TaskHistory(losses=2)).kind


def test_a_loss_by_somebody_elses_doing_costs_nothing():
    decision = judge(lost("task 'b' ended the process", is_blameless=True), TaskHistory(losses=2))
    assert Interrupt("task 'b' ended the process") == decision


def test_a_task_that_is_not_idempotent_is_never_run_again_unasked():
    """003.32, 001.01."""
    history = TaskHistory(idempotent=False)
    assert DeadLetterKind.INDETERMINATE == judge(lost("", is_blameless=True), history).kind
    assert DeadLetterKind.INDETERMINATE == judge(Outcome(OutcomeKind.LOST), history).kind
    assert DeadLetterKind.INDETERMINATE == judge(failed(FailureClass.TRANSIENT), history).kind


def test_a_sensor_polls_again_without_spending_the_budget():
    """000.48, de-phased by at most a tenth (004.43)."""
    at_once = Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0)
    assert Defer(pytest.approx(1.1)) == judge(at_once, TaskHistory())  # type: ignore[arg-type]
    assert Defer(pytest.approx(0.11)) == judge(at_once, TaskHistory(recheck_seconds=0.05))  # type: ignore[arg-type]
    assert Defer(33.0) == judge(Outcome(OutcomeKind.DEFERRED, recheck_seconds=30.0), TaskHistory(failures=2))
    assert Defer(30.0) == judge(Outcome(OutcomeKind.DEFERRED), dice=bottom)


def test_a_sensor_gives_up_after_max_elapsed():
    history = TaskHistory(first_started_at=NOW - 100_000_000)
    assert isinstance(judge(Outcome(OutcomeKind.DEFERRED), history, RetryPolicy(max_elapsed=110)), Fail)


def test_max_elapsed_bounds_the_retries():
    """004.28."""
    history = TaskHistory(first_started_at=NOW - 9_000_000)
    assert isinstance(judge(failed(), history, RetryPolicy(max_elapsed=10)), Fail)
    assert isinstance(judge(failed(), history, RetryPolicy(max_elapsed=12)), Retry)


def test_a_retry_that_cannot_finish_before_the_deadline_is_refused_early():
    """SPEC 4.14: not discovered at 02:00."""
    history = TaskHistory(path_seconds=50.0, deadline_at=NOW + 49_000_000)
    refused = judge(failed(), history)
    assert DeadLetterKind.DEADLINE == refused.kind
    assert refused.why == (
        "a retry could not finish before the deadline of the run: 49s are left, and it usually needs 50s to the end"
    )
    assert isinstance(judge(failed(), replace(history, path_seconds=48.0)), Retry)


def test_a_retry_is_not_refused_while_a_shorter_wait_fits():
    """A wait of 8 s, then of 16 s, in a run that is due after 10 s: the third start is at 9.1 s, not never."""
    policy = RetryPolicy(max_attempts=3, base=8, jitter="none")
    first = judge(failed(FailureClass.TRANSIENT), TaskHistory(deadline_at=NOW + 10_000_000), policy)
    second = judge(failed(FailureClass.TRANSIENT), TaskHistory(failures=1, deadline_at=NOW + 1_900_000), policy)
    assert (first.delay, second.delay, second.shortened_from) == (8.0, pytest.approx(0.95), 16.0)


LONG = RetryPolicy(max_attempts=9, base=2, cap=600, jitter="none")


@pytest.mark.parametrize(
    ("failures", "left", "path", "asked", "expected"),
    [
        # The drawn wait of the retry after so many failures is 2 s * 2 ** failures.
        (6, 1000.0, 100.0, None, (128.0, 128.0, None)),  # time enough: as it was drawn
        (6, 162.0, 100.0, None, (31.0, 31.0, 128.0)),  # 62 s left: half of it, the other for work that is slower
        (6, 103.0, 100.0, None, (1.5, 1.5, 128.0)),  # also below the first wait of the policy
        (0, 101.0, 100.0, None, (0.5, 0.5, 2.0)),  # also the first wait itself
        (6, 99.0, 100.0, None, None),  # the work alone takes too long
        (6, 202.0, 100.0, 40.0, (71.0, 71.0, 168.0)),  # Retry-After stays whole: 40 s and half of the other 62 s
        (6, 141.0, 100.0, 40.0, (40.5, 40.5, 168.0)),
        (6, 141.0, 100.0, 60.0, None),  # it asks for more than is left
    ],
)
def test_a_wait_that_the_deadline_has_no_time_for_is_shortened_or_refused(failures, left, path, asked, expected):
    """SPEC part 4, 2 and 4.14: a shorter wait that could still make it, never below what the other side asked for."""
    history = TaskHistory(failures=failures, path_seconds=path, deadline_at=NOW + round(left * 1e6))
    decision = judge(failed(FailureClass.TRANSIENT, retry_after_seconds=asked), history, LONG)
    if expected is None:
        assert DeadLetterKind.DEADLINE == decision.kind
    else:
        assert expected == (decision.delay, decision.ceiling, decision.shortened_from)


def test_who_failed_together_is_still_thrown_together_no_closer_than_by_the_first_retry():
    """The dice stay as they fell under a lower ceiling; who had drawn a wait that is short enough keeps it."""
    history = TaskHistory(failures=6, path_seconds=100.0, deadline_at=NOW + 162_000_000)
    policy = RetryPolicy(max_attempts=9, base=2, cap=600, jitter="full")
    delays = [
        judge(failed(FailureClass.TRANSIENT), history, policy, lambda low, high, part=part: high * part / 100).delay
        for part in range(101)
    ]
    assert max(delays) <= 62.0 and len(set(delays)) > 90
    assert delays[40] == pytest.approx(51.2)  # as drawn
    assert delays[90] == pytest.approx(0.9 * 31)


def test_a_shortened_wait_may_fit_into_max_elapsed():
    history = TaskHistory(failures=6, first_started_at=NOW, deadline_at=NOW + 62_000_000)
    policy = RetryPolicy(max_attempts=9, base=2, cap=600, jitter="none", max_elapsed=40)
    assert judge(failed(FailureClass.TRANSIENT), history, policy).delay == 31.0


def test_a_failed_probe_of_a_breaker_spends_nothing_of_its_task():
    """SPEC 4.2: refusals are free."""
    history = TaskHistory(failures=2, is_probe=True)
    decision = judge(failed(FailureClass.TRANSIENT), history, RetryPolicy(max_attempts=3))
    assert "refusals" == decision.counts
    assert isinstance(judge(failed(FailureClass.PERMANENT), history), DeadLetter)


@pytest.mark.parametrize("failure_class", [FailureClass.TIMEOUT, FailureClass.UNCLASSIFIED])
def test_failures_without_a_place_are_not_taken_for_the_same(failure_class):
    """A shell command that hangs has no Python frame: two such timeouts prove nothing."""
    history = history_of("", failure_class=failure_class, timeout_seconds=600.0, p99_seconds=100.0)
    assert isinstance(judge(failed(failure_class, ""), history, RetryPolicy(max_attempts=10)), Retry)
