"""001.14: policies of the library tenacity, taken over whole or refused; the library itself says what is right."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tenacity
from redrive.engine import from_tenacity
from redrive.engine.core.policy import RetryPolicy, bounds
from tenacity import (
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    stop_never,
    wait_chain,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_none,
    wait_random,
    wait_random_exponential,
)

FIVE = stop_after_attempt(5)


def shortest_and_longest(wait: Any, retry_index: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """What the library itself waits after this failure when its dice fall lowest and highest."""
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = retry_index + 1
    found = []
    for dice in (0.0, 1.0):
        monkeypatch.setattr("random.random", lambda dice=dice: dice)
        monkeypatch.setattr("random.uniform", lambda low, high, dice=dice: low + dice * (high - low))
        found.append(float(wait(state)))
    return found[0], found[1]


@pytest.mark.parametrize(
    "wait",
    [
        wait_none(),
        wait_fixed(7),
        wait_random(0, 4),
        wait_random(2, 4),
        wait_exponential(),
        wait_exponential(multiplier=2, max=60, exp_base=3),
        wait_exponential(multiplier=4, min=4, max=10),
        wait_random_exponential(multiplier=0.5, max=20),
    ],
    ids=lambda wait: f"{type(wait).__name__}-{sorted(vars(wait).values())}",
)
def test_the_waits_are_those_of_the_library(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = from_tenacity(wait=wait, stop=FIVE)
    for index in range(12):
        assert bounds(policy, index) == pytest.approx(shortest_and_longest(wait, index, monkeypatch))


def test_a_decorated_function_is_read_with_its_bounds() -> None:
    @tenacity.retry(wait=wait_random_exponential(multiplier=1, max=60), stop=FIVE | stop_before_delay(90))
    def call() -> None: ...

    assert from_tenacity(call.retry) == RetryPolicy(5, base=1, cap=60, jitter="full", max_elapsed=90)


def test_of_two_bounds_the_sooner_counts() -> None:
    assert from_tenacity(stop=stop_after_attempt(9) | FIVE | stop_never).max_attempts == 5


class Own(wait_fixed):
    """A subclass, which may do anything."""


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"wait": wait_fixed(1)}, "nothing bounds the number of starts"),
        ({"stop": stop_never}, "nothing bounds the number of starts"),
        ({"stop": stop_before_delay(9)}, "nothing bounds the number of starts"),
        ({"stop": FIVE | stop_after_delay(9)}, "lets one more start after that: take stop_before_delay"),
        ({"stop": FIVE & stop_before_delay(9)}, "stop_all has no equal here"),
        ({"wait": Own(1), "stop": FIVE}, "Own has no equal here"),
        ({"wait": wait_fixed(1) + wait_random(0, 1), "stop": FIVE}, "wait_combine has no equal here"),
        ({"wait": wait_chain(wait_fixed(1)), "stop": FIVE}, "wait_chain has no equal here"),
        ({"wait": wait_exponential_jitter(), "stop": FIVE}, "wait_exponential_jitter has no equal here"),
        ({"wait": wait_exponential(min=4, max=10), "stop": FIVE}, "a min of 4 s over the first wait"),
        ({"wait": wait_random_exponential(min=1, max=10), "stop": FIVE}, "full jitter begins at 0 here"),
        ({"wait": wait_random(3, 4), "stop": FIVE}, "none, half or all of the longest"),
        ({"wait": wait_exponential(exp_base=0.5), "stop": FIVE}, "factor is a finite number of at least 1"),
        ({"wait": wait_exponential(max=math.inf), "stop": FIVE}, "cap is a duration"),
    ],
)
def test_what_has_no_equal_is_refused_with_what_to_write_instead(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_tenacity(**parts)
