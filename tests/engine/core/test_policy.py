"""The waits that a policy grants, against the tables of documents 000, 002 and 004."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.core.policy import (
    JITTER_RANGES,
    RetryPolicy,
    Uniform,
    add_retry_after,
    bounds,
    ceiling,
    draw_delay,
    fixed_policy,
    mean_wait_seconds,
    planned_waits,
    policy_warnings,
    worst_case_elapsed_seconds,
    worst_case_wait_seconds,
)
from support.marks import for_each

JITTERS = [*JITTER_RANGES, "decorrelated"]


def high(low: float, high: float) -> float:
    return high


def low(low: float, high: float) -> float:
    return low


def policy(**fields: object) -> RetryPolicy:
    return RetryPolicy(**fields)  # type: ignore[arg-type]


def ceilings(own: RetryPolicy, retries: int | None = None) -> tuple[float, ...]:
    granted = own if retries is None else replace(own, max_attempts=retries + 1)
    return tuple(wait.ceiling for wait in planned_waits(granted))


def test_the_ceilings_of_document_000():
    """000.11: base 1, cap 300: 1 2 4 8 16 32 64 128 256 300."""
    assert ceilings(policy(base=1.0, cap=300.0), 10) == (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)


def test_eight_waits_of_document_004_come_to_183_seconds():
    """004.23: base 1, cap 60: 1 2 4 8 16 32 60 60, in all 183 s."""
    nine_starts = policy(max_attempts=9, base=1.0, cap=60.0)
    assert ceilings(nine_starts) == (1, 2, 4, 8, 16, 32, 60, 60)
    assert worst_case_wait_seconds(nine_starts) == 183
    assert [wait.longest_total for wait in planned_waits(nine_starts)] == [1, 3, 7, 15, 31, 63, 123, 183]


def test_what_waits_reach_without_a_cap():
    """004.26: the 7th wait is 64 s, the 10th 512 s, the 15th more than four hours."""
    uncapped = ceilings(policy(base=1.0, cap=1e9), 15)
    assert (uncapped[6], uncapped[9]) == (64, 512)
    assert uncapped[14] > 4 * 3600


@for_each("attempts, seconds", [(1, 0), (2, 2), (3, 6), (5, 30), (8, 254), (10, 1022), (12, 2222), (13, 2822)])
def test_the_worst_case_is_the_exact_sum_and_not_attempts_times_cap(attempts, seconds):
    """000.41: document 000 says "up to 20 minutes" for three attempts under base 2, cap 600; it is 6 s."""
    own = policy(max_attempts=attempts, base=2.0, cap=600.0)
    assert worst_case_wait_seconds(own) == seconds
    assert mean_wait_seconds(own) == seconds / 2


def test_a_policy_of_a_million_starts_is_summed_at_once():
    """The sum is closed once the waits stand at the cap, for every kind of policy."""
    assert worst_case_wait_seconds(policy(max_attempts=10**9 + 1, base=600.0, cap=600.0)) == 600 * 10**9
    assert worst_case_wait_seconds(policy(max_attempts=10**9, base=0.0)) == 0
    assert worst_case_wait_seconds(fixed_policy(30, max_attempts=10**9 + 1)) == 30 * 10**9
    decorrelated = policy(max_attempts=10**9 + 1, base=1.0, cap=9.0, factor=8.0, jitter="decorrelated")
    assert worst_case_wait_seconds(decorrelated) == 3 + 9 * (10**9 - 1)


def test_the_default_policy_is_the_one_of_the_executor():
    """000.14: base 2, cap 600, full jitter, three starts; the first ceiling is the base (4.2)."""
    assert RetryPolicy() == policy(max_attempts=3, base=2.0, cap=600.0, factor=2.0, jitter="full")
    assert ceiling(RetryPolicy(), 0) == 2.0


def test_attempt_ten_thousand_waits_the_cap_and_does_not_overflow():
    """A task that is retried for months must not die of its own arithmetic."""
    assert ceiling(policy(), 10_000) == 600
    assert ceiling(policy(base=1, cap=60, factor=3), 10**9) == 60
    assert ceiling(policy(base=0.0), 10_000) == 0
    assert ceiling(policy(base=5.0, factor=1.0), 10_000) == 5


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
def test_the_multiplier_is_a_field(factor):
    """004.25: 1.5 and 3 are as legal as 2."""
    assert ceilings(policy(base=1.0, factor=factor), 3) == (1, factor, factor**2)


@for_each("jitter, shortest, longest", [("none", 8, 8), ("full", 0, 8), ("equal", 4, 8), ("add50", 8, 12)])
def test_where_the_dice_may_fall(jitter, shortest, longest):
    """000.10: full = uniform(0, exp), equal = exp/2 + uniform(0, exp/2); 002.14: delay + uniform(0, delay * 0.5)."""
    own = policy(base=1.0, jitter=jitter)
    assert draw_delay(own, 3, None, low) == (shortest, longest)
    assert draw_delay(own, 3, None, high) == (longest, longest)
    assert bounds(own, 3) == (shortest, longest)


def test_no_jitter_rolls_no_dice():
    """A policy without jitter is deterministic even with dice that would fail."""

    def broken(low: float, high: float) -> float:
        raise AssertionError("no dice were asked for")

    assert draw_delay(policy(jitter="none"), 1, None, broken) == (4, 4)


def test_decorrelated_follows_the_previous_delay():
    """000.45: uniform(base, 3 x previous), capped; the attempt count plays no part."""
    own = policy(base=2.0, cap=20.0, jitter="decorrelated")
    assert draw_delay(own, 0, None, high) == (6, 6)
    assert draw_delay(own, 7, 5.0, low) == (2, 15)
    assert draw_delay(own, 7, 5.0, high) == (15, 15)
    assert draw_delay(own, 1, 19.0, high) == (20, 20)


def test_the_fourfold_trace_of_the_send_buffer():
    """002.14: base 100 ms: 100 + (0-50), 200 + (0-100), 400 + (0-200) ms."""
    own = policy(max_attempts=4, base=0.1, cap=10.0, jitter="add50")
    assert [bounds(own, index) for index in range(3)] == [
        pytest.approx((0.1, 0.15)),
        pytest.approx((0.2, 0.3)),
        pytest.approx((0.4, 0.6)),
    ]


@given(
    jitter=st.sampled_from(JITTERS),
    base=st.floats(0, 1e6),
    cap=st.floats(0, 1e6),
    factor=st.floats(1, 10),
    index=st.integers(0, 100_000),
    previous=st.none() | st.floats(0, 1e6),
    seed=st.integers(0, 2**32),
)
def test_a_draw_is_never_negative_nor_above_what_it_says(jitter, base, cap, factor, index, previous, seed):
    """Whatever the policy, 0 <= delay <= ceiling, and the ceiling respects the cap (add50: one and a half of it)."""
    own = policy(base=base, cap=cap, factor=factor, jitter=jitter)
    delay, longest = draw_delay(own, index, previous, random.Random(seed).uniform)
    assert 0 <= delay <= longest * (1 + 1e-12) + 1e-12
    assert longest <= cap * (1.5 if jitter == "add50" else 1.0) * (1 + 1e-12)


def test_full_jitter_scatters_five_thousand_retries_over_the_whole_window():
    """000.13: 5000 tasks that share an attempt count come back over 64 s, none of those seconds with a herd."""
    dice = random.Random(5)
    per_second = Counter(int(draw_delay(policy(base=1.0), 6, None, dice.uniform)[0]) for _ in range(5000))
    assert set(per_second) == set(range(64))
    assert max(per_second.values()) < 2 * 5000 / 64


def test_without_jitter_they_all_come_back_in_the_same_instant():
    """000.12: "none" is the herd."""
    dice = random.Random(5)
    assert len({draw_delay(policy(jitter="none"), 6, None, dice.uniform) for _ in range(5000)}) == 1


def test_equal_jitter_never_comes_back_early():
    """000.12: equal keeps at least half, for when an early retry is expensive."""
    dice = random.Random(5)
    assert min(draw_delay(policy(base=1.0, jitter="equal"), 6, None, dice.uniform)[0] for _ in range(1000)) >= 32


def test_retry_after_is_a_floor_that_jitter_only_adds_to():
    """004.04: never sooner than Retry-After; two clients told the same second do not come back together."""
    assert add_retry_after(30.0, 1.5, 4.0) == (31.5, 34.0)
    assert add_retry_after(None, 1.5, 4.0) == add_retry_after(0.0, 1.5, 4.0) == (1.5, 4.0)


def test_the_fixed_preset_is_the_baseline_of_document_000():
    """000.01: 30 s every time."""
    assert ceilings(fixed_policy(30), 5) == (30,) * 5
    assert draw_delay(fixed_policy(30), 4, None, high) == (30, 30)


def test_document_004s_first_retry_is_three_starts_one_second_apart():
    """004.12, 004.13: three numbers: how often, how long apart, which errors."""
    own = policy(max_attempts=3, base=1.0, factor=1.0, jitter="none", retry_on=("TransientError",))
    assert (ceilings(own), worst_case_wait_seconds(own)) == ((1, 1), 2)


def test_worst_case_elapsed_counts_the_calls_too():
    """004.28: three tries with a 30 s call and 1 + 2 s between take 93 s, not three."""
    own = policy(base=1.0)
    assert worst_case_elapsed_seconds(own, 30) == 93
    assert worst_case_elapsed_seconds(own, 30, grace_seconds=5) == 3 * 35 + 3
    assert worst_case_elapsed_seconds(own, None) == math.inf
    assert worst_case_elapsed_seconds(policy(base=1.0, max_elapsed=40), 30) == 70


@for_each(
    "fields, round_trip, word",
    [
        ({"max_attempts": 11}, None, "redesign"),
        ({"jitter": "none"}, None, "no jitter"),
        ({"base": 0.0}, None, "base 0"),
        ({"base": 0.2}, 1.5, "round trip"),
        ({"retry_on": ("Exception",)}, None, "name the errors"),
    ],
)
def test_a_legal_policy_may_still_be_a_concern(fields, round_trip, word):
    """001.13, 004.27, 004.29: too many starts, no jitter, no wait, base below the round trip, everything retried."""
    (sentence,) = policy_warnings(policy(**fields), round_trip)
    assert word in sentence


def test_the_default_policy_raises_no_concern():
    assert policy_warnings(RetryPolicy(), 1.0) == ()
    assert policy_warnings(policy(max_attempts=1, jitter="none")) == ()


@for_each(
    "fields, word",
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"max_attempts": 10**30}, "max_attempts"),
        ({"ambiguous_attempts": 0}, "ambiguous_attempts"),
        ({"poison_after": -1}, "poison_after"),
        ({"poison_after": "never"}, "poison_after"),
        ({"poison_seconds": -1}, "poison_seconds"),
        ({"base": -1.0}, "base"),
        ({"base": math.nan}, "base"),
        ({"base": "2 moons"}, "base"),
        ({"cap": 1e300}, "cap"),
        ({"cap": -0.1}, "cap"),
        ({"cap": math.inf}, "cap"),
        ({"factor": 0.5}, "factor"),
        ({"max_elapsed": -1}, "max_elapsed"),
        ({"jitter": "Full"}, "jitter"),
        ({"retry_on": "ValueError"}, "retry_on"),
        ({"never_retry": (ValueError,)}, "never_retry"),
    ],
)
def test_an_impossible_policy_is_refused_by_the_name_of_its_field(fields, word):
    """000.10: document 000 takes any unknown jitter for "none" without a word; here it is an error."""
    with pytest.raises(ValueError, match=f"^{word} is "):
        policy(**fields)


def test_waits_may_be_written_as_texts():
    written = RetryPolicy(base="2s", cap="10m", max_elapsed="1h30m")
    assert (written.base, written.cap, written.max_elapsed) == (2.0, 600.0, 5400.0)


def test_a_negative_retry_index_is_refused():
    with pytest.raises(ValueError, match="retry_index"):
        ceiling(RetryPolicy(), -1)


def test_the_edges_of_legality_are_legal():
    edge = policy(max_attempts=1, base=0, cap=0, factor=1, max_elapsed=0, poison_after=None)
    uniform: Uniform = random.Random(1).uniform
    assert draw_delay(edge, 0, None, uniform) == (0, 0)
    assert worst_case_wait_seconds(edge) == 0
