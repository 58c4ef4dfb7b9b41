"""The herds of the documents, by their numbers: what a policy does to a server that has just come back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from redrive.engine.analysis.load_models import SCENARIOS, HerdResult, simulate_outage
from redrive.engine.core.policy import RetryPolicy, fixed_policy
from support.defended_herd import simulate_defended

DEFAULT = RetryPolicy(base=2, cap=600)  # 000.14


def herd(scenario: str, policy: RetryPolicy, **options) -> HerdResult:
    return simulate_outage(SCENARIOS[scenario], policy, random.Random(7), **options)


def test_five_thousand_tasks_after_two_minutes_come_in_one_second_or_never_more_than_the_server_can_do():
    """000.07: fixed waits keep the herd together for ever; full jitter dissolves it."""
    together = herd("herd-5000", replace(fixed_policy(30), max_attempts=100), seconds_max=150)
    apart = herd("herd-5000", DEFAULT)
    assert 5000 == together.peak_per_second
    assert apart.peak_per_second < 100, "below what the server does in a second"
    assert 0 == apart.failed


@pytest.mark.long
def test_twelve_thousand_settlements_without_jitter_are_what_the_rate_limiter_saw():
    """000.08: after 90 s of delay, all of them within one window of thirty seconds."""
    together = herd("herd-12000", replace(fixed_policy(30), max_attempts=100), seconds_max=125)
    held = simulate_defended(SCENARIOS["herd-12000"], DEFAULT, random.Random(7))
    assert together.peak_per_second >= 8 * SCENARIOS["herd-12000"].usual_per_second
    assert held.peak_per_second < 2 * SCENARIOS["herd-12000"].per_second


def test_five_hundred_workers_that_all_come_again_after_a_second_keep_the_outage_alive():
    """004.18, 004.19: 8 requests a second become 508 by one spike, and the retries become the load."""
    together = herd("herd-500", fixed_policy(1))
    apart = herd("herd-500", RetryPolicy(base=1, cap=60))
    assert 508 == together.peak_per_second
    assert together.calls_per_second[20] > 300, "twenty seconds after a spike of a fifth of a second"
    assert apart.calls_per_second[20] < 50
    assert apart.calls < together.calls / 4


@pytest.mark.parametrize("jitter", ["full", "equal", "add50"])
def test_with_three_attempts_most_tasks_would_have_failed_in_the_outage(jitter):
    """SPEC 5.3: attempts do not survive two minutes; a breaker that holds without spending them does."""
    policy = RetryPolicy(max_attempts=3, base=2, cap=600, jitter=jitter)
    spent = herd("herd-5000", policy, spend_attempts=True)
    assert spent.failed > 0.9 * SCENARIOS["herd-5000"].clients
