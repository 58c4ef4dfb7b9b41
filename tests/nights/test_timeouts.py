"""Nights in which a timeout strikes: the timeout is the bug, or the task hangs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redrive.engine import Flow
from redrive.engine.testing import Night, hang, in_turn, play


def refresh(**options: Any) -> Flow:
    flow = Flow("catalogue")
    flow.task(name="refresh", **options)(lambda: 5)
    flow.task(name="publish", after="refresh")(lambda: 1)
    return flow


def told(night: Night) -> list[str]:
    """What the on-call reads: the row in the inbox, the page, the detail of the attempt."""
    (entry,), (page,) = night.inbox, night.pages
    attempt = night.attempts("refresh")[-1]
    return [f"{entry.kind} {entry.message}", f"{page.title}: {page.body['why']}", attempt.diagnostic or ""]


def test_diwali_night() -> None:
    """Document 000: the work takes four times as long; the bug is the timeout, not the task."""
    times = in_turn("1s", "1s", "4s", "4s", "4s")
    night = play(refresh(timeout=3), durations={"refresh": times}, runs=3)
    assert night.states == {"refresh": "DEAD_LETTER", "publish": "PENDING"}
    assert night.starts("refresh") == 3
    for text in told(night):
        assert "too short" in text and "set timeout=5s" in text and "hang" not in text
    assert night.inbox[0].kind == "timeout"
    assert "requeue it with --timeout" in night.inbox[0].evidence
    assert "--timeout 5s -- refresh" in str(night.pages[0].body["command"])


@pytest.mark.long
def test_diwali_night_after_a_hundred_nights() -> None:
    night = play(refresh(timeout=3), durations={"refresh": in_turn(*["1s"] * 100, "4s", "4s", "4s")}, runs=101)
    assert all("set timeout=5s" in text for text in told(night))


def test_the_suggested_timeout_is_what_it_needed() -> None:
    night = play(refresh(timeout=5), durations={"refresh": in_turn("1s", "1s", "4s")}, runs=3)
    assert (night.state, night.starts("refresh")) == ("SUCCESS", 1)


def resumed(steps: int, timeout: float, **options: Any) -> Flow:
    flow = Flow("catalogue")

    @flow.task(timeout=timeout, **options)
    def refresh(ctx):
        for step in range(ctx.checkpointed or 0, steps):
            time.sleep(0.1)
            ctx.checkpoint(step + 1)
            ctx.progress(step + 1, steps)

    return flow


def test_a_task_that_gets_further_each_time_is_slow_not_hung() -> None:
    """35 %, then 71 %: the third attempt finishes. Each says what the whole needs, as it begins anew the next night."""
    night = play(resumed(110, 4))
    assert (night.state, night.starts("refresh"), night.pages) == ("SUCCESS", 3, [])
    for attempt in night.attempts("refresh")[:2]:
        assert attempt.failure_mode == "slow"
        assert "timeout too short: it needs about 12s; set timeout=15s" in (attempt.diagnostic or "")


def test_a_task_that_gets_further_and_has_no_attempt_left_names_the_timeout() -> None:
    night = play(resumed(120, 4, max_attempts=2))
    assert night.states["refresh"] == "DEAD_LETTER" and night.inbox[0].kind == "timeout"
    for text in told(night):
        assert "too short: it needs about" in text and "set timeout=" in text


def test_a_true_hang_stays_one() -> None:
    """Its timeout is far above what it usually takes, and it stands at the same place."""
    night = play(refresh(timeout=60), durations={"refresh": "1s"}, runs=4, faults=[hang("refresh", at="3h")])
    assert (night.states["refresh"], night.inbox[0].kind) == ("DEAD_LETTER", "hang")
    for text in told(night):
        assert "too short" not in text
