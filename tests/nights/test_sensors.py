"""Sensors whose checks fail: an outage is waited for, and what has failed long ago does not count."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.engine import Flow, RetryPolicy, TransientError
from redrive.engine.testing import Night, error, in_turn, play


def arrived(check: Any, **policy: Any) -> Flow:
    flow = Flow("wait")
    flow.sensor(name="export", every="1m", retry=RetryPolicy(max_attempts=3, base=1, cap=5, **policy))(check)
    return flow


def test_an_outage_of_its_checks_is_waited_for_at_its_rhythm() -> None:
    flow = arrived(lambda: True)
    night = play(flow, faults=[error("export", ConnectionRefusedError, lasts="10m")])
    assert night.state == "SUCCESS" and 10 <= night.starts("export") <= 12
    assert 600 <= night.seconds < 700


def test_the_wait_ends_at_max_elapsed() -> None:
    flow = arrived(lambda: True, max_elapsed="30m")
    night = play(flow, faults=[error("export", TransientError("503"))])
    assert night.state == "FAILED" and 28 * 60 < night.seconds < 31 * 60
    assert any("did not come within 1800 s" in line for line in night.journal)


@pytest.mark.long
def test_without_a_bound_a_day_without_an_answer_is_the_end() -> None:
    flow = Flow("wait")
    flow.sensor(name="export", every="30m")(lambda: True)
    night = play(flow, faults=[error("export", TransientError("503"))], until="2d")
    assert night.state == "FAILED" and 24 * 3600 < night.seconds < 25 * 3600


@pytest.mark.parametrize("failure", [RuntimeError("lost"), ValueError("no number")])
def test_an_answer_gives_back_what_errors_have_spent(failure: Exception) -> None:
    checks = in_turn(*[failure, False] * 8, True)
    assert waited(checks).state == "SUCCESS"


def test_three_errors_without_an_answer_between_are_the_end() -> None:
    failures = [type(f"Trouble{number}", (Exception,), {})("lost") for number in range(3)]
    night = waited(in_turn(False, *failures, True))
    assert night.state == "FAILED" and night.starts("export") == 4


def test_a_sensor_that_is_not_idempotent_is_not_called_again_after_a_failure() -> None:
    flow = Flow("wait")
    flow.sensor(name="export", every="1m", idempotent=False)(bool)
    night = play(flow, results={"export": in_turn(False, TransientError("503"), True)})
    assert night.state == "BLOCKED" and night.starts("export") == 2


def waited(checks: Any) -> Night:
    return play(arrived(bool), results={"export": checks})
