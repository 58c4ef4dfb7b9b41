"""Decisions about outcomes: each rule, the order of the rules, and the numbers of the documents."""

from itertools import takewhile

import pytest
from msgspec.structs import replace
from redrive.engine.core.advice import TimeoutJudgement, TimeoutVerdict
from redrive.engine.core.breaker import CallVerdict, DownstreamHealth
from redrive.engine.core.consequences import consequences_of
from redrive.engine.core.decide import (
    COUNTED_CLASSES,
    NO_CIRCUMSTANCES,
    SIBLINGS_REASON,
    Cancel,
    Circumstances,
    DeadLetter,
    Defer,
    Fail,
    Interrupt,
    Retry,
    Siblings,
    Skip,
    Succeed,
    TaskHistory,
    decide,
)
from redrive.engine.core.failures.attempt_end import AttemptEnd, lost_outcome, memory_limit_failure
from redrive.engine.core.outcome import Failure, FailureClass, FailureMode, Fingerprint, LostWith, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.states import DeadLetterKind
from support.marks import for_each

NOW = 1_777_000_000_000_000


def top(low: float, high: float) -> float:
    return high


def bottom(low: float, high: float) -> float:
    return low


def failed(failure_class=FailureClass.UNCLASSIFIED, fingerprint="aaa", error="ValueError", **fields) -> Outcome:
    failure = Failure(error, fields.pop("message", "bad"), failure_class, Fingerprint(fingerprint, "loose"), **fields)
    kind = OutcomeKind.TIMED_OUT if failure_class is FailureClass.TIMEOUT else OutcomeKind.ERROR
    return Outcome(kind, failure)


def judge(
    outcome: Outcome,
    history: TaskHistory | None = None,
    policy: RetryPolicy | None = None,
    dice=top,
    around: Circumstances = NO_CIRCUMSTANCES,
):
    before = history or TaskHistory()
    spec = replace(before.spec, retry=policy or before.spec.retry)
    return decide(replace(before, spec=spec), outcome, around, NOW, dice)


def of_downstream(health: DownstreamHealth) -> Circumstances:
    return Circumstances(CallVerdict(health))


def history_of(
    *fingerprints: str, last="aaa", failed_at=(), failure_class=FailureClass.UNCLASSIFIED, **fields
) -> TaskHistory:
    """After these failures, the oldest first, of which the last ones equal ``last``, the one that is judged."""
    count = len(fingerprints)
    times = failed_at or (NOW,) * count
    alike = takewhile(lambda pair: pair[0] == last, zip(reversed(fingerprints), reversed(times), strict=True))
    return TaskHistory(
        failures=count,
        same_failures_at=tuple(at for _, at in alike),
        first_failed_at=times[0] if times else None,
        failures_of_class=count if failure_class in COUNTED_CLASSES else 0,
        **fields,
    )


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


def test_a_different_failure_in_between_breaks_the_row():
    """000: two consecutive attempts; A, B, A proves nothing."""
    policy = RetryPolicy(max_attempts=10)
    assert isinstance(judge(failed(fingerprint="b"), history_of("a", last="b"), policy), Retry)
    assert isinstance(judge(failed(fingerprint="a"), history_of("a", "b", last="a"), policy), Retry)
    assert DeadLetterKind.POISON == judge(failed(fingerprint="a"), history_of("a", "b", "a", last="a"), policy).kind


@for_each("error", ["RuntimeError", "AssertionError", "builtins.Exception", "CalledProcessError"])
def test_what_may_heal_is_retried_as_its_policy_says(error):
    """003: a RuntimeError that wins at its third start. It ends FAILED, however alike its failures are."""
    decisions = [judge(failed(error=error), history_of(*["aaa"] * before)) for before in range(3)]
    assert [Retry, Retry, Fail] == [type(decision) for decision in decisions]


@for_each("poison_after, failures_needed", [("evidence", None), (0, 1), (1, 1), (2, 2), (3, 3), (None, None)])
def test_a_number_counts_identical_failures_of_any_type(poison_after, failures_needed):
    """000.43 and SPEC 4.3: the numbers 0, 1 and 2 of document 000 are 0, 2 and 3 here."""
    policy = RetryPolicy(max_attempts=5, poison_after=poison_after)
    decisions = [judge(failed(error="RuntimeError"), history_of(*["aaa"] * before), policy) for before in range(4)]
    dead = [number for number, decision in enumerate(decisions, 1) if isinstance(decision, DeadLetter)]
    assert failures_needed == next(iter(dead), None)


def test_zero_means_any_failure_even_a_transient_one():
    """000: "immediate dead-letter on any failure"."""
    policy = RetryPolicy(max_attempts=5, poison_after=0)
    assert DeadLetterKind.POISON == judge(failed(FailureClass.TRANSIENT), None, policy).kind
    assert DeadLetterKind.HANG == judge(failed(FailureClass.TIMEOUT), None, policy).kind
    assert isinstance(judge(failed(FailureClass.TRANSIENT), None, RetryPolicy(poison_after=1)), Retry)


def test_poison_can_be_switched_off():
    policy = RetryPolicy(max_attempts=10, poison_after=None)
    assert isinstance(judge(failed(), history_of(*["aaa"] * 5), policy), Retry)


def test_a_fingerprint_that_was_seen_to_heal_raises_the_threshold():
    """SPEC 4.1: what healed once is by definition not deterministic."""
    policy = RetryPolicy(max_attempts=10)
    assert isinstance(judge(failed(), history_of("aaa", healed=1), policy), Retry)
    assert isinstance(judge(failed(), history_of("aaa", "aaa", healed=1), policy), DeadLetter)


def test_input_that_cannot_be_read_is_poison_at_its_second_failure():
    """SPEC 4.1: UnicodeDecodeError and JSONDecodeError, whose class is VALIDATION."""
    outcome = failed(FailureClass.VALIDATION, error="UnicodeDecodeError")
    assert isinstance(judge(outcome), Retry)
    assert DeadLetterKind.POISON == judge(outcome, history_of("aaa")).kind


SECOND = 1_000_000
CALLS = {"spec": TaskSpec("a", downstream="api")}


def shaped(*seconds_ago: float, error="KeyError", max_attempts=5, **fields):
    """Judge a KeyError of a task with a downstream, after the same failures some seconds ago."""
    failed_at = tuple(NOW - round(seconds * SECOND) for seconds in seconds_ago)
    history = history_of(*["aaa"] * len(seconds_ago), failed_at=failed_at, **CALLS, **fields)
    return judge(failed(error=error), history, RetryPolicy(max_attempts=max_attempts, jitter="none"))


@for_each(
    "seconds_ago, delay",
    [
        ((), 2.0),  # as the policy says
        ((2,), 4.0),  # a second failure so soon may be of the downstream
        ((6, 4), 8.0),
        ((14, 12, 8), 46.0 + 16.0),  # the last attempt comes 60 s after the first failure
        ((50, 40, 8), 16.0),  # the drawn wait is long enough
    ],
)
def test_an_error_about_what_was_read_gets_time_for_the_downstream(seconds_ago, delay):
    """A maintenance page of 20 s: JSON without the key, with five tries."""
    assert Retry(delay, delay, FailureMode.OTHER) == shaped(*seconds_ago)


@pytest.mark.parametrize(
    ("seconds_ago", "reason"),
    [
        ((60,), "the same failure 2 times in a row"),
        ((80, 20), "the same failure 3 times in a row"),
        ((9, 8, 7, 6), "the same failure 5 times in a row"),  # no attempt is left, and another would not help
    ],
)
def test_an_error_about_what_was_read_that_stays_is_poison(seconds_ago, reason):
    assert DeadLetter(DeadLetterKind.POISON, FailureMode.POISONED, reason) == shaped(*seconds_ago)


def test_an_error_of_the_program_has_nothing_to_do_with_its_downstream():
    assert DeadLetterKind.POISON == shaped(1, error="ZeroDivisionError").kind
    assert DeadLetterKind.POISON == judge(failed(error="KeyError"), history_of("aaa")).kind  # no downstream


def test_an_unfinished_answer_of_a_downstream_is_judged_by_time_not_by_number():
    """HTML in place of JSON is AMBIGUOUS: with a downstream it is tried until its attempts are spent."""
    failed_at = (NOW - 3 * SECOND, NOW - 2 * SECOND)
    ambiguous = {"failure_class": FailureClass.AMBIGUOUS}
    outcome = failed(error="json.decoder.JSONDecodeError", **ambiguous)
    policy = RetryPolicy(max_attempts=5)
    assert isinstance(
        judge(outcome, history_of("aaa", "aaa", failed_at=failed_at, **ambiguous, **CALLS), policy), Retry
    )
    decision = judge(outcome, history_of("aaa", "aaa", failed_at=failed_at, **ambiguous), policy)
    assert DeadLetterKind.PERMANENT == decision.kind  # without one it is ambiguous for the third time


def test_no_wait_for_evidence_exceeds_the_deadline_or_max_elapsed():
    history = history_of("aaa", failed_at=(NOW - SECOND,), first_started_at=NOW - SECOND, **CALLS)
    for bounded in (
        judge(failed(), history, RetryPolicy(max_attempts=3, max_elapsed=30)),
        judge(failed(), history, around=Circumstances(deadline_at=NOW + 30 * SECOND)),
    ):
        assert 4.0 == bounded.delay


def test_a_probe_that_reads_nonsense_spends_nothing():
    """An outage that answers with a page, not with an error: its probes are refusals."""
    probed, around = {"failed_at": (NOW - 30 * SECOND,), **CALLS}, of_downstream(DownstreamHealth.DOWN)
    assert "refusals" == judge(failed(), history_of("aaa", **probed), around=around).counts
    proven = Siblings(failed=3, poisoned=3)
    assert DeadLetterKind.POISON == judge(failed(), history_of("aaa", siblings=proven, **probed), around=around).kind


@for_each(
    "siblings, expected",
    [
        (Siblings(2, 2, 0), Retry(0.5, 2.0, FailureMode.OTHER)),
        (Siblings(3, 2, 0), Retry(2.5, 4.0, FailureMode.OTHER)),  # it waits for the verdict on the three
        (Siblings(3, 3, 0), DeadLetter(DeadLetterKind.POISON, FailureMode.POISONED, SIBLINGS_REASON)),
        (Siblings(3, 3, 1), Retry(0.5, 2.0, FailureMode.OTHER)),  # one healed: no proof
        (Siblings(3, 2, 1), Retry(0.5, 2.0, FailureMode.OTHER)),
    ],
)
def test_siblings_are_evidence(siblings, expected):
    """000.29: of 1,247 siblings each would prove the same cause again."""
    assert expected == judge(failed(), TaskHistory(siblings=siblings), dice=lambda low, high: 0.5)
    assert isinstance(judge(failed(), TaskHistory(siblings=siblings), RetryPolicy(poison_after=2)), Retry)
    assert isinstance(judge(failed(error="RuntimeError"), TaskHistory(siblings=siblings)), Retry)


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
    assert kind == judge(failed(failure_class, error="httpx.HTTPStatusError")).kind


def test_what_is_over_its_limit_of_memory_is_not_tried_again():
    outcome = Outcome(
        OutcomeKind.ERROR, memory_limit_failure(AttemptEnd(memory_used=2_300_000_000, memory_limit=2 * 10**9))
    )
    assert DeadLetterKind.OUT_OF_MEMORY == judge(outcome, policy=RetryPolicy(max_attempts=10)).kind


@pytest.mark.parametrize("places", [("a", "b", "c"), ("a", "a", "a")])
def test_ambiguous_failures_have_a_small_budget_of_their_own(places):
    """004.02: each is tried ``ambiguous_attempts`` times, at one place or at several."""
    *before, last = places
    outcome = failed(FailureClass.AMBIGUOUS, last, error="redrive.engine.errors.AmbiguousError")
    ambiguous = {"failure_class": FailureClass.AMBIGUOUS}
    decisions = [
        judge(outcome, history_of(*before[:number], **ambiguous), RetryPolicy(max_attempts=6)) for number in range(3)
    ]
    assert [Retry, Retry, DeadLetter] == [type(decision) for decision in decisions]
    assert DeadLetterKind.PERMANENT == decisions[-1].kind


def test_out_of_memory_twice_needs_a_human():
    history = history_of("m", failure_class=FailureClass.OUT_OF_MEMORY)
    policy = RetryPolicy(max_attempts=10)
    assert DeadLetterKind.OUT_OF_MEMORY == judge(failed(FailureClass.OUT_OF_MEMORY, "m"), history, policy).kind


AMPLE = TimeoutJudgement(TimeoutVerdict.AMPLE, "7 of 8 attempts took about 40s: more time would not help")
SHORT = TimeoutJudgement(TimeoutVerdict.SHORT, "timeout too short: it needs about 7s; set timeout=10s", 10.0)
UNKNOWN = TimeoutJudgement(TimeoutVerdict.UNKNOWN)


@for_each(
    "judged, places, expected",
    [
        (AMPLE, "a", "retry hang"),
        (AMPLE, "aa", "hang hang"),  # the same place again, far above its usual duration
        (AMPLE, "aba", "failed hang"),
        (SHORT, "a", "retry slow"),
        (SHORT, "aa", "retry slow"),  # the timeout is the bug, wherever it struck
        (SHORT, "aaa", "timeout slow"),
        (UNKNOWN, "aa", "retry hang"),
        (UNKNOWN, "aaa", "failed hang"),
    ],
)
def test_a_timeout_is_a_hang_or_too_short(judged, places, expected):
    """000.42: a timeout tighter than the work must not look like poison, nor like a hang."""
    *before, last = places
    history = history_of(*before, last=last, failure_class=FailureClass.TIMEOUT, timeout=judged)
    decision = judge(failed(FailureClass.TIMEOUT, last), history)
    words: dict[object, str] = {Retry: "retry", Fail: "failed"}
    assert expected == f"{words.get(type(decision)) or decision.kind} {decision.mode}"
    if isinstance(decision, DeadLetter):
        assert judged.reason in decision.why


def test_a_loss_does_not_spend_the_budget_and_waits_at_least_base():
    """SPEC 4.2: a task that kills its host must not kill it again at once."""
    decision = judge(Outcome(OutcomeKind.LOST), TaskHistory(failures=2), dice=bottom)
    assert ("losses", 2.0) == (decision.counts, decision.delay)


def test_losses_have_their_own_bound():
    assert DeadLetterKind.CRASH_LOOP == judge(Outcome(OutcomeKind.LOST), TaskHistory(losses=2)).kind


def test_a_task_with_one_attempt_is_not_started_again_after_a_kill_from_outside():
    """``max_attempts`` counts all starts, and `redrive exec` promises that it starts a command once."""
    killed, once = (
        lost_outcome("killed from outside (SIGKILL)", lost_with=LostWith.PROCESS),
        RetryPolicy(max_attempts=1),
    )
    decision = judge(killed, policy=once)
    assert DeadLetterKind.INDETERMINATE == decision.kind
    assert "killed from outside (SIGKILL) in its only attempt" in decision.why
    assert isinstance(judge(lost_outcome("its zygote died", lost_with=LostWith.ZYGOTE), policy=once), Retry)
    assert isinstance(judge(killed, policy=RetryPolicy(max_attempts=2)), Retry)


def test_a_loss_by_somebody_elses_doing_costs_nothing():
    decision = judge(lost_outcome("task 'b' ended the process", is_blameless=True), TaskHistory(losses=2))
    assert Interrupt("task 'b' ended the process") == decision


def test_a_task_that_is_not_idempotent_is_never_run_again_unasked():
    """003.32, 001.01."""
    history = TaskHistory(TaskSpec("a", idempotent=False))
    assert DeadLetterKind.INDETERMINATE == judge(lost_outcome("", is_blameless=True), history).kind
    assert DeadLetterKind.INDETERMINATE == judge(Outcome(OutcomeKind.LOST), history).kind
    assert DeadLetterKind.INDETERMINATE == judge(failed(FailureClass.TRANSIENT), history).kind


def test_a_sensor_polls_again_without_spending_the_budget():
    """000.48, de-phased by at most a tenth (004.43)."""
    at_once = Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0)
    assert Defer(pytest.approx(1.1)) == judge(at_once, TaskHistory())  # type: ignore[arg-type]
    assert Defer(pytest.approx(0.11)) == judge(at_once, TaskHistory(TaskSpec("a", recheck_seconds=0.05)))  # type: ignore[arg-type]
    assert Defer(33.0) == judge(Outcome(OutcomeKind.DEFERRED, recheck_seconds=30.0), TaskHistory(failures=2))
    assert Defer(30.0) == judge(Outcome(OutcomeKind.DEFERRED), dice=bottom)


def test_what_a_sensor_says_is_kept_until_its_next_check():
    history = TaskHistory()
    for said, kept in ((" no export yet\n", "no export yet"), ("", None)):
        outcome = Outcome(OutcomeKind.DEFERRED, defer_reason=said)
        end = consequences_of(NOW, "night", judge(outcome, history), outcome, history)
        assert end.columns["error"] == kept


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
    around = Circumstances(path_seconds=50.0, deadline_at=NOW + 49_000_000)
    refused = judge(failed(), around=around)
    assert DeadLetterKind.DEADLINE == refused.kind
    assert refused.why == (
        "a retry could not finish before the deadline of the run: 49s are left, and it usually needs 50s to the end"
    )
    assert isinstance(judge(failed(), around=replace(around, path_seconds=48.0)), Retry)


def test_a_retry_is_not_refused_while_a_shorter_wait_fits():
    """A wait of 8 s, then of 16 s, in a run that is due after 10 s: the third start is at 9.1 s, not never."""
    policy = RetryPolicy(max_attempts=3, base=8, jitter="none")
    first, second = (
        judge(
            failed(FailureClass.TRANSIENT),
            TaskHistory(failures=failures),
            policy,
            around=Circumstances(deadline_at=NOW + left_us),
        )
        for failures, left_us in ((0, 10_000_000), (1, 1_900_000))
    )
    assert (first.delay, second.delay, second.shortened_from) == (8.0, pytest.approx(0.95), 16.0)


LONG = RetryPolicy(max_attempts=9, base=2, cap=600, jitter="none")


@for_each(
    "failures, left, path, asked, expected",
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
    around, due_at = Circumstances(path_seconds=path, deadline_at=NOW + round(left * 1e6)), NOW + round(left * 1e6)
    outcome = failed(FailureClass.TRANSIENT, retry_after_seconds=asked)
    decision = judge(outcome, TaskHistory(failures=failures), LONG, around=around)
    if expected is None:
        assert DeadLetterKind.DEADLINE == decision.kind
    else:
        assert expected == (decision.delay, decision.ceiling, decision.shortened_from)
        assert decision.due_at == (None if decision.shortened_from is None else due_at)


def test_who_failed_together_is_still_thrown_together_no_closer_than_by_the_first_retry():
    """The dice stay as they fell under a lower ceiling; who had drawn a wait that is short enough keeps it."""
    around = Circumstances(path_seconds=100.0, deadline_at=NOW + 162_000_000)
    outcome, history = failed(FailureClass.TRANSIENT), TaskHistory(failures=6)
    policy = RetryPolicy(max_attempts=9, base=2, cap=600, jitter="full")
    delays = [
        judge(outcome, history, policy, lambda low, high, part=part: high * part / 100, around).delay
        for part in range(101)
    ]
    assert max(delays) <= 62.0 and len(set(delays)) > 90
    assert delays[40] == pytest.approx(51.2)  # as drawn
    assert delays[90] == pytest.approx(0.9 * 31)


def test_a_shortened_wait_may_fit_into_max_elapsed():
    history, around = TaskHistory(failures=6, first_started_at=NOW), Circumstances(deadline_at=NOW + 62_000_000)
    policy = RetryPolicy(max_attempts=9, base=2, cap=600, jitter="none", max_elapsed=40)
    assert judge(failed(FailureClass.TRANSIENT), history, policy, around=around).delay == 31.0


def test_a_failed_probe_of_a_breaker_spends_nothing_of_its_task():
    """SPEC 4.2: refusals are free."""
    history, around = TaskHistory(failures=2), of_downstream(DownstreamHealth.DOWN)
    decision = judge(failed(FailureClass.TRANSIENT), history, RetryPolicy(max_attempts=3), around=around)
    assert "refusals" == decision.counts
    assert isinstance(judge(failed(FailureClass.PERMANENT), history, around=around), DeadLetter)


def test_a_failing_downstream_is_charged_with_as_many_attempts_as_the_task_has():
    """003: at an error rate of 0.3, three attempts lose 2.7 % of the tasks, six 0.07 %."""
    policy, around = RetryPolicy(max_attempts=3), of_downstream(DownstreamHealth.FAILING)
    for refusals in range(3):
        history = TaskHistory(failures=2, refusals=refusals)
        assert "refusals" == judge(failed(FailureClass.TRANSIENT), history, policy, around=around).counts
    history = TaskHistory(failures=2, refusals=3)
    assert isinstance(judge(failed(FailureClass.TRANSIENT), history, policy, around=around), Fail)


@pytest.mark.parametrize("failure_class", [FailureClass.TIMEOUT, FailureClass.UNCLASSIFIED])
def test_failures_without_a_place_are_not_taken_for_the_same(failure_class):
    """A shell command that hangs has no Python frame: two such timeouts prove nothing."""
    history = history_of("", failure_class=failure_class, timeout=AMPLE)
    assert isinstance(judge(failed(failure_class, ""), history, RetryPolicy(max_attempts=10)), Retry)
