"""Nights in which a downstream fails, at default settings, beside the same nights without a downstream."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise, product
from typing import Any

import pytest
from redrive.engine import Flow, RetryPolicy, TransientError
from redrive.engine.domain.event_payloads import BreakerChanged
from redrive.engine.testing import Night, down, error, limited, play
from support.marks import parametrize_mostly_long


def calls(count: int, downstream: str | None = "api", **options: Any) -> Flow:
    """A flow of ``count`` instant calls of a downstream, with a sender of pages."""
    flow = Flow("orders", max_parallel=16)
    flow.page("bell")
    for number in range(count):
        flow.task(name=f"t{number}", downstream=downstream, **options)(lambda: 1)
    return flow


def unavailable() -> TransientError:
    return TransientError("503")


def done(night: Night) -> int:
    return Counter(night.states.values())["SUCCESS"]


@parametrize_mostly_long("attempts, seed", product([3, 4], range(5)), daily=3)
def test_document_003_with_an_error_rate_of_a_third(attempts, seed):
    """220 tasks, each call 503 with probability 0.3: done as without a downstream, and no task is lost."""
    retry = RetryPolicy(max_attempts=attempts)
    night = play(calls(220, retry=retry), faults=[down("api", share=0.3)], seed=seed)
    alone = play(calls(220, None, retry=retry), faults=[error("*", unavailable, share=0.3)], seed=seed)
    assert done(night) >= 218 and len(night.pages) <= 1
    assert night.seconds <= max(2 * alone.seconds, 20) and night.seconds < 32
    assert not [event for event in night.events if event.kind == "breaker"]


def test_a_blip_of_two_seconds_near_the_end_loses_no_task():
    """240 tasks, down from the 170th call on: 37 were held after 15 minutes, one start in 30 s."""
    night = play(calls(240), faults=[down("api", at="0.1s", lasts="2s")], seed=1)
    assert done(night) == 240 and night.seconds < 60
    assert night.healed_within("20s", after="api") and night.pages == []


def test_the_first_call_after_the_open_time_is_a_probe_even_if_tasks_do_not_wait():
    """Or an outage of a minute would fail every task of the night."""
    flow = calls(12, retry=RetryPolicy(max_attempts=3, base=0.05, cap=0.1))
    flow.downstream("api", minimum_calls=2, open_seconds=2, on_open="fail")
    flow.task(name="a_while", after=["t0", "t11"], rule="all_done")(lambda: None)
    flow.task(name="late", downstream="api", after="a_while")(lambda: None)
    faults = [error(name, unavailable, times=1) for name in ("t0", "t1", "t11")]  # the first three: two have a child
    durations = {f"t{number}": "0.1s" for number in range(12)} | {"a_while": "3s"}
    night = play(flow, max_parallel=3, durations=durations, faults=faults)
    assert night.state == "FAILED" and done(night) <= 3
    assert (night.states["late"], night.starts("late")) == ("SUCCESS", 1)
    breaker = [event.payload.state for event in night.events if isinstance(event.payload, BreakerChanged)]
    assert (breaker[0], breaker[-1]) == ("OPEN", "CLOSED")


@pytest.mark.long
def test_300_tasks_meet_a_system_that_is_down_for_its_first_ten_seconds():
    """Five starts a second for ever after recovery took 91 s."""
    night = play(calls(300), faults=[down("api", lasts="10s")])
    assert done(night) == 300 and night.seconds < 45 and len(night.calls("api")) < 350


@pytest.mark.long
@pytest.mark.weekly
def test_an_outage_of_an_hour_spends_no_attempt_once_it_is_known():
    """1,000 tasks: healed within five minutes of recovery, one page, probes spend nothing."""
    slow = {f"t{number}": "1s" for number in range(1000)}
    night = play(calls(1000), faults=[down("api", at="1s", lasts="1h", takes=1)], durations=slow, until="3h")
    assert done(night) == 1000 and night.healed_within("5m", after="api")
    assert len(night.pages) == 1 and "down" in night.pages[0].title
    failures = [count for (count,) in night.query("SELECT failures FROM task")]
    assert max(failures) <= 1 and sum(failures) <= 32


@pytest.mark.long
@pytest.mark.weekly
def test_thousands_of_children_meet_one_blip():
    flow = Flow("pages", max_parallel=16)

    @flow.task
    def pages() -> list[int]:
        return list(range(3_000))

    @flow.map(over=pages, downstream="api", max_size=3_000)  # declared nowhere else
    def fetch(page: int) -> int:
        return page

    night = play(flow, faults=[down("api", at="3s", lasts="2s")])
    assert night.state == "SUCCESS" and night.healed_within("30s", after="api")
    assert len(night.calls("api")) < 3_100


@pytest.mark.parametrize("attempts", [2, 3, 5])
def test_a_task_alone_outlives_an_outage(attempts):
    """Its last attempt is a probe: what it would have spent on opening the breaker."""
    retry = RetryPolicy(max_attempts=attempts, base=2, cap=20)
    night = play(calls(1, retry=retry), faults=[down("api", lasts="2m")], seed=3)
    assert night.state == "SUCCESS" and night.healed_within("1m", after="api")


def test_too_many_requests_wait_as_long_as_the_server_asks():
    """A server of five calls a second answers 429 with Retry-After: 2; it idled for 30 s."""
    night = play(calls(60), faults=[limited("api", per_second=5, retry_after=2)])
    assert done(night) == 60 and night.seconds < 43
    assert len(night.calls("api")) <= 120
    starts = night.calls("api")
    assert max(after - before for before, after in pairwise(starts)) < 6


@pytest.mark.long
def test_an_error_rate_of_nine_tenths_opens_within_seconds():
    night = play(calls(300), faults=[down("api", share=0.9, lasts="1m")], seed=5)
    assert done(night) == 300
    opened = next(event for event in night.events if event.kind == "breaker")
    assert (opened.at - night.events[0].at) / 1e6 < 5


@pytest.mark.long
def test_first_tries_do_not_wait_for_a_budget_that_is_spent():
    """One due retry before each first try starved 100 first tries for 20 s."""
    flow = calls(100)
    for number in range(100):
        flow.task(name=f"bad{number}", downstream="api", retry=RetryPolicy(max_attempts=30, base=0.1, cap=0.2))(
            lambda: 1
        )
    night = play(flow, faults=[down("api", lasts="1s")], seed=2)
    assert night.state == "SUCCESS" and night.seconds < 40


@pytest.mark.long
def test_a_system_without_a_recovery_is_paged_and_holds_its_tasks():
    night = play(calls(5), faults=[down("api")], until="1h")
    assert night.state == "RUNNING" and len(night.pages) == 1
    assert night.why("t0", "30m").startswith("breaker api is ")


@pytest.mark.parametrize("met", [KeyError("amount"), json.JSONDecodeError("Expecting value", "<html>", 0)])
@pytest.mark.parametrize("count", [1, 100])
def test_a_maintenance_page_of_twenty_seconds_is_no_poison(met, count):
    """The downstream answers 200 with a page instead of data; a KeyError twice was a dead letter after a second."""
    retry = RetryPolicy(max_attempts=5)
    night = play(calls(count, retry=retry), faults=[down("api", lasts="20s", error=met)], seed=4)
    assert done(night) == count and night.healed_within("1m", after="api") and night.pages == []


def test_a_mistake_in_the_code_is_poison_although_its_tasks_name_a_downstream():
    """No breaker hides a KeyError of a hundred tasks for ever: it is one cause in the inbox, and few starts."""
    night = play(calls(100), faults=[down("api", error=KeyError("amuont"))], until="1h")
    assert night.state == "BLOCKED" and len(night.pages) == 1 and len(night.inbox) == 1
    assert night.seconds < 180 and night.starts() < 140
