"""One task fails while its downstream is well: it ends as it would without one, and nobody else is held.

What one task meets again and again is the fault of the task until calls of others fail as well.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from redrive.engine import AmbiguousError, AuthError, Flow, RetryPolicy, TransientError
from redrive.engine.testing import Night, down, error, hang, not_started, play
from redrive.engine.testing.faults import Fault
from support.marks import parametrize_mostly_long

from .flows import done, siblings


def refused() -> AuthError:
    return AuthError("403")


def ambiguous() -> AmbiguousError:
    return AmbiguousError("500")


def unavailable() -> TransientError:
    return TransientError("503")


def invoices(*faults: Fault, downstream: str | None = "proc") -> Night:
    """The night of document 004: 40 invoices, a policy of five attempts."""
    flow = Flow("pay", retry=RetryPolicy(5, base=1, cap=60), downstream=downstream, timeout=60)
    for number in range(40):
        flow.task(name=f"inv{number:02}")(int)
    return play(flow, faults=faults)


@pytest.mark.parametrize("faults", [(), (error("inv03", refused),), (error("inv03", unavailable, times=1),)])
def test_an_invoice_that_is_always_ambiguous_beside_others(faults: tuple[Fault, ...]) -> None:
    """A 403 of another half-opened the breaker, and the release charged it for ever: 256 starts in an hour."""
    night = invoices(error("inv05", ambiguous), *faults)
    assert night.states["inv05"] == "DEAD_LETTER" and night.starts("inv05") == 3
    assert done(night) >= 38 and night.seconds < 60 and "down" not in " ".join(page.title for page in night.pages)


@pytest.mark.parametrize("count", [2, 4, 12])
def test_several_invoices_that_are_always_ambiguous_have_a_handful_each(count: int) -> None:
    bad = [f"inv{number:02}" for number in range(5, 5 + count)]
    night = invoices(*(error(name, ambiguous) for name in bad))
    assert all(night.states[name] == "DEAD_LETTER" and night.starts(name) <= 12 for name in bad)
    assert done(night) == 40 - count and night.seconds < 600


@pytest.mark.parametrize("takes", ["1s", "65s", "2m"])
def test_a_task_whose_attempts_are_longer_than_the_window(takes: str) -> None:
    """The verdict depended on whether the window of a minute still held a success: 535 starts in 12 h."""
    flow = Flow("slow", downstream="warehouse", timeout=300)
    flow.task(name="extract")(int)
    flow.task(name="report", after="extract")(int)
    night = play(flow, faults=[error("report", ambiguous, takes=takes)])
    assert (night.state, night.starts("report"), len(night.inbox)) == ("BLOCKED", 3, 1)
    assert night.seconds < 400


@pytest.mark.parametrize(("usual", "timeout"), [("0.5s", "6s"), ("1m", "10m")])
def test_a_hang_is_one_at_its_second_timeout(usual: str, timeout: str) -> None:
    """With a downstream it was started 25 times in 4 h."""
    flow = siblings(1, downstream="lake", timeout=timeout)
    night = play(flow, runs=4, every="1d", durations={"t0": usual}, faults=[hang("t0", at="70h")])
    assert (night.states["t0"], night.starts("t0"), night.inbox[0].kind) == ("DEAD_LETTER", 2, "hang")


@pytest.mark.long
def test_a_task_alone_that_is_never_answered_ends_after_a_day() -> None:
    night = play(siblings(1, downstream="api"), faults=[error("t0", unavailable)], until="3d")
    assert (night.state, night.states["t0"], [page.title for page in night.pages]) == (
        "FAILED",
        "FAILED",
        ["api is down on t0", "budget spent on t0"],
    )
    assert 86_000 < night.seconds < 90_000 and night.starts() < 350


def test_a_task_alone_that_is_never_answered_is_held_with_growing_waits_and_paged_once() -> None:
    """678 starts in 3 h, without an end."""
    night = play(siblings(1, downstream="api"), faults=[error("t0", unavailable)], until="3h")
    ceilings = [attempt.ceiling_us / 1e6 for attempt in night.attempts("t0") if attempt.ceiling_us]
    assert ceilings == sorted(ceilings) and ceilings[-1] == 600 and night.starts() < 50
    (page,) = night.pages
    assert page.title == "api is down on t0"
    assert 599 <= (page.created_at - night.events[0].at) / 1e6 <= 610


@parametrize_mostly_long(
    "options", [{"max_elapsed": "30m"}, {"cap": 0.05, "base": 0.01}, {"base": 0}, {"factor": 1}], quick=1
)
def test_whatever_its_policy_a_held_task_has_few_starts(options: dict[str, Any]) -> None:
    policy = RetryPolicy(**options)
    night = play(siblings(1, downstream="api", retry=policy), faults=[error("t0", unavailable)], until="1h")
    assert night.starts() < 200 and night.state == ("FAILED" if policy.max_elapsed else "RUNNING")


def test_the_deadline_of_the_run_ends_a_held_task() -> None:
    flow = Flow("orders", deadline="1h")
    flow.task(name="t0", downstream="api")(int)
    night = play(flow, faults=[error("t0", unavailable)])
    assert night.state != "RUNNING" and night.seconds <= 3_700


def test_one_task_of_many_with_a_url_that_is_never_answered_ends_by_its_attempts() -> None:
    """Others succeed meanwhile: it is its own fault, and no page says that the downstream is down."""
    durations = {f"t{number}": "5s" for number in range(200)}
    night = play(siblings(200, downstream="api"), faults=[error("t3", unavailable)], durations=durations)
    assert (night.states["t3"], night.starts("t3"), done(night)) == ("FAILED", 3, 199)
    assert [page.title for page in night.pages] == ["budget spent on t3"]


def test_three_tasks_that_are_never_answered_hold_no_healthy_one_for_long() -> None:
    """They open the breaker, and would be its cheapest probes for ever."""
    flow = siblings(3, downstream="api")
    for number in range(20):
        flow.task(name=f"u{number:02}", downstream="api", after="clock")(int)
    flow.task(name="clock")(int)
    faults = [error(f"t{number}", unavailable) for number in range(3)]
    night = play(flow, faults=faults, durations={"clock": "1m"}, until="1h")
    assert done(night) == 21 and max(night.start_seconds(f"u{number:02}")[-1] for number in range(20)) < 180


def test_a_pause_in_an_outage_of_twenty_seconds_is_no_outage_of_ten_minutes() -> None:
    """No call has failed in those minutes: nobody knows."""
    acts = [("+10s", "pause"), ("+1h", "unpause")]
    night = play(siblings(20, downstream="api"), faults=[down("api", lasts="20s")], acts=acts)
    assert night.state == "SUCCESS" and not [page for page in night.pages if "down" in page.title]


@pytest.mark.long
def test_waits_grow_with_each_failure_charged_or_not() -> None:
    """At 503 in 60 % all retries waited below 2 s."""
    night = play(siblings(220, downstream="api"), faults=[down("api", share=0.6)], until="15m", seed=1)
    most = max(night.states, key=night.starts)
    ceilings = [attempt.ceiling_us for attempt in night.attempts(most) if attempt.ceiling_us]
    assert len(ceilings) > 3 and ceilings == sorted(ceilings) and ceilings[0] < ceilings[1]


@pytest.mark.long
def test_a_wait_of_a_day_that_the_server_asks_for_is_told_once() -> None:
    """429 with Retry-After: 86400 was silent for 20 h."""
    night = play(siblings(20, downstream="api"), faults=[down("api", lasts="1m", status=429, retry_after=86_400)])
    (page,) = night.pages
    assert page.title == "waits long on t0" or "waits long" in page.title
    assert (page.created_at - night.events[0].at) / 1e6 < 120 and "api asks" in str(page.body)


@pytest.mark.long
def test_a_machine_that_starts_no_process_is_told_after_ten_minutes() -> None:
    """It was silent for an hour; and 400 starts in 45 s, with a cap of 50 ms."""
    policy = RetryPolicy(max_attempts=6, base=0.01, cap=0.05)
    night = play(siblings(3, retry=policy), faults=[not_started("*", lasts="30m")])
    assert night.state == "SUCCESS" and night.starts() < 3 * 220
    (page,) = night.pages
    assert 600 <= (page.created_at - night.events[0].at) / 1e6 < 700 and "no process has started" in str(page.body)
    waits = night.waits("t0")
    assert all(later >= earlier for earlier, later in pairwise(waits[:9])) and min(waits[8:-1]) >= 10


@pytest.mark.long
def test_a_sensor_without_a_bound_is_told_once() -> None:
    flow = Flow("files")

    @flow.sensor(every="1m")
    def arrives() -> bool:
        return False

    night = play(flow, until="12h")
    assert [page.title for page in night.pages] == ["waits long on arrives"]


@pytest.mark.long
def test_the_tasks_of_an_ambiguous_outage_ask_in_turn() -> None:
    """The second probe of each round was the most urgent task again, until its budget was spent."""
    night = play(siblings(60, downstream="api"), faults=[down("api", lasts="10m", error=ambiguous)], max_parallel=16)
    assert done(night) == 60 and max(map(night.starts, night.states)) <= 5
