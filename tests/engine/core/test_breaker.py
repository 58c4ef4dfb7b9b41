"""The circuit breaker and the retry bucket as state machines: SPEC 4.12, documents 000 and 004."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.engine.core.breaker import (
    SLICES,
    Admission,
    Breaker,
    BreakerState,
    BreakerStatus,
    CallEnd,
    CallPermit,
    ProbeCandidate,
    admit,
    after_act,
    choose_probe,
    encode,
    evidence_of_outage,
    new_breaker,
    new_status,
    probe_for_new_run,
    probe_now,
    record,
    release_call,
    restore,
    totals,
)
from redrive.engine.core.outcome import FailureClass
from redrive.engine.core.retry_budget import Bucket, new_bucket, next_retry_at, refill, refund, spend_token
from redrive.engine.core.spec import DownstreamSpec
from redrive.engine.domain.rows import BreakerRow
from support.marks import for_each

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
SPEC = DownstreamSpec(
    "payments-api", window_seconds=60, open_seconds=30, minimum_calls=5, probes=1, release_per_second=5
)
TRANSIENT = FailureClass.TRANSIENT


class Downstream:
    """A breaker with a clock, as an executor would hold it."""

    def __init__(self, spec: DownstreamSpec = SPEC) -> None:
        self.spec = spec
        self.breaker = new_breaker(spec)
        self.now = START

    @property
    def state(self) -> BreakerState:
        return self.breaker.state

    @property
    def status(self) -> BreakerStatus:
        return BreakerStatus(self.spec, self.breaker, new_bucket(self.spec), START)

    def act(self, how: str) -> None:
        self.breaker = after_act(self.status, how, "ana", self.now)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def admit(self) -> Admission:
        self.breaker, admission = admit(self.breaker, self.spec, self.now)
        return admission

    def begin(self) -> CallPermit:
        call = self.admit().call
        assert call is not None, "it was not let through"
        return call

    def end(
        self, call: CallPermit, failure_class: FailureClass | None = None, failures_before: int = 0, task: str = "t"
    ) -> None:
        self.breaker = record(self.breaker, self.spec, call, CallEnd(task, failure_class, failures_before), self.now)

    def call(self, failure_class: FailureClass | None = None, failures_before: int = 0, task: str = "t") -> None:
        self.end(self.begin(), failure_class, failures_before, task)

    def refuse_two(self) -> None:
        for task in ("a", "b"):
            self.call(FailureClass.AUTH, task=task)

    def break_it(self) -> None:
        for _ in range(self.spec.minimum_calls):
            self.call(TRANSIENT)
        assert self.state is BreakerState.OPEN


@pytest.fixture
def downstream() -> Downstream:
    return Downstream()


class TestClosed:
    def test_a_rate_means_nothing_below_the_minimum(self, downstream):
        """4.12: minimum throughput: four failures of four calls do not open it, the fifth does."""
        for _ in range(4):
            downstream.call(TRANSIENT)
        assert downstream.state is BreakerState.CLOSED
        downstream.call(TRANSIENT)
        assert downstream.state is BreakerState.OPEN

    def test_it_opens_at_a_rate_that_chance_does_not_explain(self, downstream):
        """000.51: more than X % of the tasks against one downstream failed in the last Y minutes."""
        downstream.spec = DownstreamSpec("api")
        for number in range(150):
            downstream.call(TRANSIENT if number % 2 else None)
        assert downstream.state is BreakerState.CLOSED  # half of them: the rate itself is allowed
        for number in range(1000):
            if downstream.state is BreakerState.CLOSED:
                downstream.call(TRANSIENT if number % 5 < 3 else None)
        assert downstream.state is BreakerState.OPEN
        found = totals(downstream.breaker, downstream.spec, downstream.now)
        calls, failures = found.calls, found.failures
        assert (
            0.5 < failures / calls < 0.6
        ) and downstream.breaker.why == f"{failures} of {calls} calls failed in 60 s"

    @pytest.mark.parametrize("seed", range(8))
    def test_an_error_rate_of_a_third_does_not_open_it(self, downstream, seed):
        """003: 220 tasks, 503 at 30 %, 330 calls; here ten times as many."""
        dice, downstream.spec = random.Random(seed), DownstreamSpec("api")
        for _ in range(3_300):
            downstream.call(TRANSIENT if dice.random() < 0.3 else None)
            downstream.wait(0.02)
        assert downstream.state is BreakerState.CLOSED

    @pytest.mark.parametrize("seed", range(20))
    def test_an_error_rate_of_nine_tenths_opens_it_within_seconds(self, downstream, seed):
        """Also after a busy minute without a failure: old successes do not hide a sudden outage."""
        dice, downstream.spec = random.Random(seed), DownstreamSpec("api")
        for _ in range(3_000):
            downstream.call()
        calls = 0
        while downstream.state is BreakerState.CLOSED:
            downstream.call(TRANSIENT if dice.random() < 0.9 else None)
            calls += 1
        assert calls <= 60

    def test_failures_of_an_hour_ago_are_no_part_of_a_streak(self, downstream):
        for _ in range(4):
            downstream.call(TRANSIENT)
        downstream.wait(3600)
        downstream.call(TRANSIENT)
        assert downstream.state is BreakerState.CLOSED

    @pytest.mark.parametrize("evidence", [{"tasks_failing": 2}, {"is_repeat": True}])
    def test_what_few_tasks_meet_again_and_again_does_not_open_it(self, downstream, evidence):
        """000.51: more than X % of the *tasks* fail."""
        for _ in range(100):
            call = downstream.begin()
            end = CallEnd("bad", TRANSIENT, **evidence)
            downstream.breaker = record(downstream.breaker, downstream.spec, call, end, downstream.now)
        assert downstream.state is BreakerState.CLOSED

    def test_the_window_slides(self, downstream):
        """000.51: failures older than the window are forgotten."""
        for _ in range(4):
            downstream.call(TRANSIENT)
        downstream.wait(70)
        assert totals(downstream.breaker, SPEC, downstream.now)[1:] == (0, 0, 0, 0)
        for _ in range(4):
            downstream.call(TRANSIENT)
        assert downstream.state is BreakerState.CLOSED

    def test_its_memory_does_not_grow_with_the_load(self, downstream):
        """Bounded: ten thousand calls in a window are counted in eleven slices at most."""
        for _ in range(10_000):
            downstream.call()
            downstream.wait(0.01)
        assert len(downstream.breaker.window) <= SLICES + 1
        assert 5_400 <= totals(downstream.breaker, SPEC, downstream.now).calls <= 6_600

    @pytest.mark.parametrize("failure_class", [TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS])
    def test_these_failures_count(self, downstream, failure_class):
        """4.12: transient, timeouts and ambiguous."""
        for _ in range(5):
            downstream.call(failure_class)
        assert downstream.state is BreakerState.OPEN

    @pytest.mark.parametrize(
        "failure_class",
        [
            FailureClass.VALIDATION,
            FailureClass.PERMANENT,
            FailureClass.UNCLASSIFIED,
            FailureClass.OUT_OF_MEMORY,
        ],
    )
    def test_a_bad_row_does_not_close_a_downstream_to_everybody(self, downstream, failure_class):
        """4.12: validation and poison never count, neither as failure nor as call."""
        for _ in range(50):
            downstream.call(failure_class)
        assert downstream.state is BreakerState.CLOSED
        assert totals(downstream.breaker, SPEC, downstream.now)[1:] == (0, 0, 0, 0)

    def test_a_credential_refused_to_two_tasks_opens_it_without_an_end(self, downstream):
        """004.32: retries can lock the account: nobody knocks again before an operator says so."""
        downstream.refuse_two()
        assert downstream.state is BreakerState.OPEN
        downstream.wait(86_400)
        assert downstream.admit() == Admission(None)
        assert downstream.breaker.why == "credential refused to a and b: waits for an operator"
        downstream.breaker = probe_now(downstream.breaker, SPEC)
        downstream.call()
        assert (downstream.state, downstream.breaker.refused) == (BreakerState.CLOSED, ())

    def test_a_credential_refused_to_one_task_holds_the_others_while_one_of_them_asks(self, downstream):
        """One forbidden URL does not close a downstream."""
        downstream.call(FailureClass.AUTH, task="a")
        probe = downstream.begin()
        assert probe.probe and downstream.admit().call is None
        downstream.end(probe, task="b")
        assert downstream.state is BreakerState.CLOSED
        downstream.wait(1)
        downstream.call(FailureClass.AUTH, task="c")
        assert downstream.state is BreakerState.HALF_OPEN, "the success of b clears a"

    def refuse_by_text(self, downstream, task: str) -> None:
        call, end = downstream.begin(), CallEnd(task, FailureClass.AUTH, is_by_text=True)
        downstream.breaker = record(downstream.breaker, SPEC, call, end, downstream.now)

    def test_a_refusal_that_only_a_text_says_holds_nobody_by_itself(self, downstream):
        for _ in range(3):
            self.refuse_by_text(downstream, "a")
        assert downstream.state is BreakerState.CLOSED
        self.refuse_by_text(downstream, "b")
        assert downstream.breaker.needs_operator, "two tasks say so"

    def test_a_success_between_two_texts_says_otherwise(self, downstream):
        self.refuse_by_text(downstream, "a")
        downstream.call(task="c")
        self.refuse_by_text(downstream, "b")
        assert downstream.state is BreakerState.CLOSED

    def test_a_text_confirms_the_refusal_that_is_examined(self, downstream):
        downstream.call(FailureClass.AUTH, task="a")
        self.refuse_by_text(downstream, "b")
        assert downstream.breaker.needs_operator

    def test_a_probe_that_only_a_text_refuses_gives_its_permit_back(self, downstream):
        downstream.break_it()
        downstream.wait(31)
        self.refuse_by_text(downstream, "a")
        assert downstream.state is BreakerState.HALF_OPEN and downstream.begin().probe

    def test_the_same_task_refused_again_is_no_second_witness(self, downstream):
        for _ in range(3):
            downstream.call(FailureClass.AUTH, task="a")
        assert downstream.state is BreakerState.HALF_OPEN
        downstream.call(FailureClass.AUTH, task="b")
        assert downstream.state is BreakerState.OPEN

    def test_a_call_that_began_before_the_first_refusal_is_a_witness(self, downstream):
        early = downstream.begin()
        downstream.call(FailureClass.AUTH, task="a")
        downstream.end(early, FailureClass.AUTH, task="b")
        assert downstream.breaker.needs_operator

    def test_a_new_run_probes_once_and_is_refused_once(self, downstream):
        downstream.refuse_two()
        downstream.breaker = probe_for_new_run(downstream.breaker, SPEC)
        probe = downstream.begin()
        assert probe.probe and downstream.admit().call is None
        downstream.end(probe, FailureClass.AUTH, task="a")
        assert downstream.breaker.needs_operator and downstream.admit().call is None

    def test_a_new_run_does_not_probe_what_an_operator_holds_open(self, downstream):
        downstream.act("open")
        assert probe_for_new_run(downstream.breaker, SPEC) == downstream.breaker

    def test_an_outage_of_the_probe_does_not_forget_the_refusal(self, downstream):
        downstream.call(FailureClass.AUTH, task="a")
        downstream.call(TRANSIENT, task="b")
        downstream.wait(30)
        downstream.call(FailureClass.AUTH, task="b")
        assert downstream.breaker.needs_operator


class TestOpen:
    def test_it_holds_and_says_until_when(self, downstream):
        """000.51, Part 5: of the document's two behaviours this is "refuses to dispatch": no attempt is spent."""
        downstream.break_it()
        downstream.wait(10)
        assert downstream.admit() == Admission(None, START + 30 * SECOND)
        assert downstream.breaker.why == "5 of 5 calls failed in 60 s"

    def test_what_was_on_its_way_neither_reopens_nor_escalates(self, downstream):
        """4.12: in-flight failures after opening."""
        calls = [downstream.begin() for _ in range(12)]
        for call in calls[:5]:
            downstream.end(call, TRANSIENT)
        opened = downstream.breaker
        downstream.wait(20)
        for call in calls[5:10]:
            downstream.end(call, TRANSIENT)
        downstream.end(calls[10], FailureClass.AUTH)
        downstream.end(calls[11])
        assert downstream.breaker == opened

    def test_a_late_failure_does_not_count_against_the_probe(self, downstream):
        late = downstream.begin()
        downstream.break_it()
        downstream.wait(30)
        probe = downstream.begin()
        downstream.end(late, TRANSIENT)
        assert downstream.state is BreakerState.HALF_OPEN
        downstream.end(probe)
        assert downstream.state is BreakerState.CLOSED

    def test_a_clock_set_back_does_not_hold_it_for_years(self, downstream):
        """4.10: due times ahead of the clock are clamped to the longest wait that a downstream may ask for."""
        downstream.break_it()
        downstream.wait(-86_400 * 365)
        assert downstream.admit().retry_at == downstream.now + 300 * SECOND
        downstream.wait(300)
        assert downstream.begin().probe

    def test_it_stays_open_twice_as_long_each_time_up_to_the_longest(self):
        """The first wait is short, because most outages are; a long outage is asked once in 30 s."""
        downstream, waits = Downstream(DownstreamSpec("api", probes=1)), []
        for _ in range(10):
            downstream.call(TRANSIENT)
        for _ in range(5):
            retry_at = downstream.admit().retry_at
            assert retry_at is not None
            waits.append((retry_at - downstream.now) // SECOND)
            downstream.now = retry_at
            downstream.call(TRANSIENT)
        assert waits == [5, 10, 20, 30, 30]

    def test_a_longer_open_time_of_the_flow_is_the_longest(self):
        downstream = Downstream(DownstreamSpec("api", minimum_calls=1, open_seconds=600))
        downstream.call(TRANSIENT)
        assert downstream.admit().retry_at == START + 600 * SECOND

    @pytest.mark.parametrize(("asked", "waits"), [(None, 30), (-5, 30), (0, 30), (2, 30), (45, 45), (86_400, 300)])
    def test_it_waits_as_long_as_the_downstream_asks_and_no_shorter_than_without(self, downstream, asked, waits):
        """004.04: Retry-After is a floor. A huge one binds whom it was sent to; one of the others asks after 5 min."""
        call = [downstream.begin() for _ in range(5)]
        for permit in call:
            end = CallEnd("t", TRANSIENT, retry_after_seconds=asked)
            downstream.breaker = record(downstream.breaker, SPEC, permit, end, downstream.now)
        assert downstream.admit().retry_at == START + waits * SECOND


class TestHalfOpen:
    def test_one_probe_and_no_more(self, downstream):
        """4.12: HALF_OPEN(k probes)."""
        downstream.break_it()
        downstream.wait(30)
        assert downstream.begin().probe
        assert downstream.admit() == Admission(None)

    def test_a_failed_probe_opens_it_again(self, downstream):
        downstream.break_it()
        downstream.wait(30)
        downstream.call(FailureClass.TIMEOUT)
        assert downstream.state is BreakerState.OPEN
        assert downstream.admit().retry_at == downstream.now + 30 * SECOND

    @for_each(
        "answers, state",
        [
            ([None], BreakerState.CLOSED),
            ([TRANSIENT], BreakerState.HALF_OPEN),
            ([TRANSIENT, None], BreakerState.HALF_OPEN),
            ([TRANSIENT, None, None], BreakerState.CLOSED),
            ([TRANSIENT, None, TRANSIENT], BreakerState.OPEN),
            ([TRANSIENT, TRANSIENT], BreakerState.OPEN),
        ],
    )
    def test_most_probes_decide(self, answers, state):
        """At an error rate of 0.3 one probe alone would open it again in 3 of 10 cases."""
        downstream = Downstream(replace(SPEC, probes=3))
        downstream.break_it()
        downstream.wait(30)
        for answer in answers:
            probe = downstream.begin()
            assert downstream.admit().call is None, "one at a time"
            downstream.end(probe, answer)
        assert downstream.state is state

    @pytest.mark.parametrize("ended", ["withdrawn", "bad row"])
    def test_a_probe_that_says_nothing_makes_room_for_another(self, downstream, ended):
        """Cancelled, lost, or failed by its own fault: the downstream was not asked; it must not stay half open."""
        downstream.break_it()
        downstream.wait(30)
        probe = downstream.begin()
        if ended == "withdrawn":
            downstream.breaker = release_call(downstream.breaker, probe)
        else:
            downstream.end(probe, FailureClass.VALIDATION)
        assert downstream.state is BreakerState.HALF_OPEN
        assert downstream.begin().probe

    def test_the_probe_is_the_cheapest_idempotent_task(self):
        """4.12."""
        ledger = ProbeCandidate("ledger", idempotent=False, seconds=0.1)
        report = ProbeCandidate("report", seconds=900)
        ping = ProbeCandidate("ping", seconds=2)
        unknown = ProbeCandidate("unknown")
        assert choose_probe([ledger, report, ping, unknown]) == ping
        assert choose_probe([ledger, unknown]) == unknown
        assert choose_probe([ledger]) == ledger
        assert choose_probe([]) is None


class TestRelease:
    def release(self, downstream: Downstream, count: int, failure_class: FailureClass | None) -> list[int]:
        """Close the breaker, and call as soon as it admits a call; return the seconds from one call to the next."""
        downstream.break_it()
        downstream.wait(30)
        downstream.call()
        released: list[int] = []
        while len(released) < count:
            admission = downstream.admit()
            if admission.call is None:
                assert admission.retry_at is not None
                downstream.now = admission.retry_at
            else:
                released.append(downstream.now)
                downstream.end(admission.call, failure_class)
        return released

    def test_what_was_held_is_released_at_a_rate_that_doubles_each_second(self, downstream):
        """4.12: on close, or the breaker itself makes the herd: 300 held tasks take six seconds, the first five one."""
        released = self.release(downstream, 300, None)
        seconds = [(at - released[0]) // SECOND for at in released]
        assert [seconds.count(second) for second in (0, 1, 2)] == [7, 14, 27]
        assert seconds[-1] == 5

    def test_a_failure_halves_the_rate_down_to_that_of_the_flow(self, downstream):
        self.release(downstream, 100, None)
        rate = downstream.breaker.release_rate
        downstream.now = downstream.breaker.release_at or 0
        downstream.call(TRANSIENT)
        assert downstream.breaker.release_rate == rate / 2
        downstream.breaker = replace(downstream.breaker, release_rate=6.0)
        downstream.now = downstream.breaker.release_at or 0
        downstream.call(TRANSIENT)
        assert downstream.breaker.release_rate == 5.0

    def test_a_release_waits_as_long_as_the_downstream_asks(self, downstream):
        self.release(downstream, 10, None)
        downstream.now = downstream.breaker.release_at or 0
        end = CallEnd("t", TRANSIENT, retry_after_seconds=7)
        downstream.breaker = record(downstream.breaker, SPEC, downstream.begin(), end, downstream.now)
        assert downstream.admit().retry_at == downstream.now + 7 * SECOND

    def test_pacing_ends_when_nobody_waits_any_more(self, downstream):
        downstream.break_it()
        downstream.wait(30)
        downstream.call()
        downstream.call()
        downstream.wait(2)
        for _ in range(20):
            downstream.call()
        assert downstream.state is BreakerState.CLOSED

    def test_a_rate_of_zero_releases_all_at_once(self):
        downstream = Downstream(replace(SPEC, release_per_second=0))
        downstream.break_it()
        downstream.wait(30)
        for _ in range(20):
            downstream.call()
        assert downstream.state is BreakerState.CLOSED

    def test_after_closing_the_window_is_empty(self, downstream):
        """Old failures must not open it at the first new one."""
        downstream.break_it()
        downstream.wait(30)
        downstream.call()
        downstream.wait(0.2)
        downstream.call(TRANSIENT)
        assert downstream.state is BreakerState.CLOSED


class TestOperator:
    def test_forced_open_admits_no_call_and_records_nothing(self, downstream):
        """4.12: FORCED_OPEN."""
        call = downstream.begin()
        downstream.act("open")
        downstream.end(call)
        downstream.wait(86_400)
        assert downstream.admit() == Admission(None)
        assert downstream.breaker.why == "held by ana"
        downstream.act("close")
        downstream.call()
        assert downstream.state is BreakerState.CLOSED

    def test_disabled_lets_everybody_through_and_counts_nothing(self, downstream):
        """4.12: DISABLED."""
        downstream.break_it()
        downstream.act("disable")
        for _ in range(50):
            downstream.call(TRANSIENT)
        downstream.call(FailureClass.AUTH)
        assert downstream.state is BreakerState.DISABLED
        assert downstream.breaker.window == ()

    def test_metrics_only_counts_and_never_opens(self):
        """4.12: METRICS_ONLY shows what a breaker would have done."""
        downstream = Downstream(replace(SPEC, metrics_only=True))
        for _ in range(50):
            downstream.call(TRANSIENT)
        downstream.call(FailureClass.AUTH)
        assert downstream.state is BreakerState.METRICS_ONLY
        assert evidence_of_outage(downstream.breaker, downstream.spec, downstream.now)
        assert totals(downstream.breaker, downstream.spec, downstream.now)[1:] == (0, 50, 0, 0)

    def test_a_breaker_that_was_reset_releases_at_the_rate_all_the_same(self, downstream):
        downstream.break_it()
        downstream.act("close")
        downstream.call()
        assert downstream.admit().call is None


def test_a_downstream_that_needs_retries_is_degraded_before_it_fails(downstream):
    """004.17: recoveries are a signal: most successes needed a retry, and nothing has failed for good yet."""
    for _ in range(4):
        downstream.call()
    for _ in range(3):
        downstream.call(failures_before=2)
    assert not downstream.status.is_degraded(downstream.now)
    downstream.call(failures_before=1)
    assert downstream.status.is_degraded(downstream.now)
    assert not new_status(SPEC).is_degraded(START)


class TestBucket:
    SPEC = replace(SPEC, bucket_capacity=3, bucket_refund=0.5, bucket_per_second=2)

    def ask(self, bucket: Bucket, now: int) -> tuple[Bucket, int | None]:
        """Return the bucket after one retry, if that may start now; and when the next one may: None: it did."""
        bucket = refill(bucket, self.SPEC, now, 0)
        retry_at = next_retry_at(bucket, self.SPEC)
        return (spend_token(bucket) if retry_at is None else bucket), retry_at

    def test_a_retry_costs_one_and_a_success_brings_a_share(self):
        """4.12, and the retry budgets of Finagle and Envoy."""
        bucket = refill(new_bucket(self.SPEC), self.SPEC, START, 0)
        for _ in range(3):
            bucket, retry_at = self.ask(bucket, START)
            assert retry_at is None
        bucket, retry_at = self.ask(bucket, START)
        assert retry_at == START + SECOND // 2
        bucket = refund(refund(bucket, self.SPEC, 1), self.SPEC, 2)
        assert self.ask(bucket, START)[1] is None

    def test_a_full_bucket_does_not_overflow(self):
        bucket = refill(new_bucket(self.SPEC), self.SPEC, START, 0)
        assert refund(bucket, self.SPEC, 1) == bucket == refill(bucket, self.SPEC, START, 0)

    def test_what_the_calls_of_the_window_brought_is_kept_until_their_retries_are_due(self):
        """A bucket of ten overflows in a busy second: 10,000 tasks with an error rate of 0.3 waited ten minutes."""
        bucket = new_bucket(self.SPEC)
        for successes in range(1, 7001):
            bucket = refund(bucket, self.SPEC, successes)
        assert bucket.tokens > 3000
        assert refill(bucket, self.SPEC, START, 0).tokens == 3, "once the window has passed, it holds what it held"

    def test_an_empty_bucket_gains_so_much_a_second(self):
        """4.12: a floor: when only retries are left, no success would ever refill it."""
        bucket, through = refill(Bucket(0.0), self.SPEC, START, 0), 0
        bucket = Bucket(0.0, START)
        for tenth in range(100):
            bucket, retry_at = self.ask(bucket, START + tenth * SECOND // 10)
            through += retry_at is None
        assert 18 <= through <= 20

    def test_a_capacity_of_none_still_lets_a_retry_start(self):
        spec = replace(SPEC, bucket_capacity=0)
        assert next_retry_at(new_bucket(spec), spec) is None

    def test_a_clock_set_back_neither_fills_nor_empties_it(self):
        bucket, _ = self.ask(Bucket(0.0, START + 10**15), START)
        assert bucket == Bucket(0.0, START)


def test_a_pace_from_a_clock_that_was_ahead_holds_for_the_longest_wait_at_most() -> None:
    spec = replace(SPEC, release_per_second=5.0)
    breaker = replace(new_breaker(spec), release_at=START + 86_400 * SECOND, release_rate=5.0)
    breaker, refused = admit(breaker, spec, START)
    assert (refused.call, refused.retry_at) == (None, START + 300 * SECOND)
    assert admit(breaker, spec, START + 300 * SECOND)[1].call is not None


def restored(status: BreakerStatus, spec: DownstreamSpec) -> BreakerStatus:
    """What the next executor has, whose flow declares ``spec``."""
    return restore(BreakerRow(*json.loads(json.dumps(encode(status)))), spec)


class TestStored:
    def stored(self, downstream: Downstream) -> Breaker:
        return restored(downstream.status, downstream.spec).breaker

    def test_a_restart_does_not_reset_it(self, downstream):
        """4.12: persisted: open stays open until the same instant, with its reason."""
        downstream.break_it()
        stored = self.stored(downstream)
        assert (stored.state, stored.reopens_at) == (BreakerState.OPEN, START + 30 * SECOND)
        assert stored.why == "5 of 5 calls failed in 60 s"

    def test_a_restart_does_not_forget_the_window(self, downstream):
        for _ in range(4):
            downstream.call(TRANSIENT)
        downstream.breaker = self.stored(downstream)
        downstream.call(TRANSIENT)
        assert downstream.state is BreakerState.OPEN

    def test_a_probe_does_not_survive_a_restart_and_is_sent_again(self, downstream):
        downstream.break_it()
        downstream.wait(30)
        downstream.begin()
        downstream.breaker = self.stored(downstream)
        assert downstream.begin().probe

    def test_the_first_refusal_is_stored_after_a_restart(self, downstream):
        downstream.call(FailureClass.AUTH, task="a")
        downstream.breaker = self.stored(downstream)
        downstream.call(FailureClass.AUTH, task="b")
        assert downstream.breaker.needs_operator

    def test_a_refused_credential_is_still_held_after_a_restart(self, downstream):
        downstream.refuse_two()
        downstream.breaker = self.stored(downstream)
        downstream.wait(86_400)
        assert downstream.admit().call is None

    def test_pacing_goes_on_after_a_restart(self, downstream):
        downstream.break_it()
        downstream.wait(30)
        downstream.call()
        downstream.call()
        downstream.breaker = self.stored(downstream)
        assert downstream.admit().call is None
        assert replace(downstream.status, held=("load",)).why == "released at 5.7/s"

    def test_pacing_ends_with_the_rate_of_the_flow(self, downstream):
        """As after "breakers --close" without an executor, or a change of the flow."""
        downstream.breaker, unpaced = replace(downstream.breaker, release_at=START), replace(SPEC, release_per_second=0)
        closed = restored(downstream.status, unpaced).breaker
        assert admit(closed, unpaced, START)[1].call is not None

    def test_forced_and_disabled_are_kept(self, downstream):
        for how, state in (("open", BreakerState.FORCED_OPEN), ("disable", BreakerState.DISABLED)):
            downstream.act(how)
            assert self.stored(downstream).state is state

    def test_the_flow_decides_whether_it_only_measures(self, downstream):
        downstream.break_it()
        measuring = restored(downstream.status, replace(SPEC, metrics_only=True))
        assert measuring.state is BreakerState.METRICS_ONLY
        back = restored(measuring, SPEC)
        assert back.state is BreakerState.CLOSED

    def test_the_bucket_is_kept(self):
        stored = replace(new_status(SPEC), bucket=Bucket(7.5, START))
        assert restored(stored, SPEC).bucket == Bucket(7.5, START)
        assert restore(encode(stored)._replace(tokens=None), SPEC).tokens == SPEC.bucket_capacity


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "end", "withdraw", "wait", "reset", "restart"]),
            st.sampled_from([None, TRANSIENT, FailureClass.AUTH, FailureClass.VALIDATION]),
            st.integers(0, 40),
        ),
        max_size=80,
    )
)
def test_whatever_happens_it_never_stays_shut_by_itself(steps):
    """000.54: every state has a bounded exit: with no call on its way one wait is enough, a credential excepted."""
    downstream = Downstream(replace(SPEC, probes=2))
    on_their_way: list[CallPermit] = []
    for step, failure_class, number in steps:
        match step:
            case "admit":
                call = downstream.admit().call
                if call is not None:
                    on_their_way.append(call)
            case "end" if on_their_way:
                call = on_their_way.pop(number % len(on_their_way))
                downstream.end(call, failure_class, task=f"t{number}")
            case "withdraw" if on_their_way:
                downstream.breaker = release_call(downstream.breaker, on_their_way.pop(number % len(on_their_way)))
            case "wait":
                downstream.wait(number)
            case "reset":
                downstream.act("close")
            case "restart":
                on_their_way.clear()
                downstream.breaker = restored(downstream.status, downstream.spec).breaker
        assert 0 <= downstream.breaker.probes.free <= 2
    for call in on_their_way:
        downstream.breaker = release_call(downstream.breaker, call)
    held = downstream.state is BreakerState.OPEN and downstream.breaker.reopens_at is None
    downstream.wait(30)
    assert (downstream.admit().call is None) == held
