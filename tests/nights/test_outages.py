"""Outages of what a flow calls: how long until all is well, with how many calls, and what is shown meanwhile."""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from itertools import pairwise

import pytest
from redrive.engine import Flow
from redrive.engine.testing import down, error, exits, hang, limited, play

from .flows import done, siblings


@pytest.mark.long
def test_an_hour_of_outage_and_a_thousand_tasks() -> None:
    """S3, 28 February 2017, in small: no attempt is spent after the breaker opens, and all is well in five minutes."""
    night = play(siblings(1000, downstream="bank", max_attempts=4), faults=[down("bank", lasts="1h")])
    assert night.state == "SUCCESS" and night.healed_within("5m", after="bank")
    assert len([at for at in night.calls("bank") if at < 3600]) < 450  # three probes each half minute
    assert len(night.pages) == 1 and "bank is down" in night.pages[0].title
    assert "breaker bank is open" in night.why("t999", "30m")


@pytest.mark.parametrize("children", [200, pytest.param(2_000, marks=[pytest.mark.long, pytest.mark.weekly])])
def test_a_blip_of_two_seconds_among_many_children(children: int) -> None:
    flow = Flow("pages")
    flow.downstream("api")
    flow.task(name="pages")(lambda: list(range(children)))
    flow.map(name="fetch", over="pages", downstream="api", max_attempts=4, max_size=children)(lambda page: page)
    night = play(flow, faults=[down("api", at="1s", lasts="2s")], until="1h")
    assert night.state == "SUCCESS" and night.starts("fetch") < 1.1 * children
    assert night.pages == []


def test_one_task_alone_in_an_outage_is_not_failed_while_its_breaker_still_counts() -> None:
    night = play(siblings(1, downstream="bank", max_attempts=5), faults=[down("bank", lasts="2m")])
    assert night.state == "SUCCESS" and night.healed_within("1m", after="bank")


@pytest.mark.long
def test_eighty_five_of_a_hundred_calls_fail_for_49_minutes() -> None:
    """Fastly, 8 June 2021: most answers are 503, some are well."""
    night = play(siblings(40, downstream="cdn", max_attempts=6), faults=[down("cdn", lasts="49m", share=0.85)])
    assert night.state == "SUCCESS" and night.healed_within("5m", after="cdn")
    assert len(night.pages) <= 1


def test_a_storm_of_retries_reaches_no_healthy_neighbour() -> None:
    """DoorDash, May 2022, by a secondary account: the breaker of one service must not open for another."""
    flow = siblings(20, downstream="payments")
    for number in range(20):
        flow.task(name=f"menu{number}", downstream="menus")(int)
    night = play(flow, faults=[down("payments", lasts="10m")])
    assert night.state == "SUCCESS"
    assert max(night.start_seconds(f"menu{number}")[-1] for number in range(20)) < 5
    assert len(night.calls("menus")) == 20


def test_no_name_resolves_for_twenty_minutes() -> None:
    """Facebook, 4 October 2021, in small: a flap of DNS is transient."""
    unresolved = socket.gaierror(-2, "Name or service not known")
    flow = siblings(10, downstream="bank")
    night = play(flow, faults=[down("bank", lasts="20m", error=unresolved)])
    assert night.state == "SUCCESS" and night.healed_within("2m", after="bank")


def test_no_name_resolves_for_twenty_minutes_as_curl_says() -> None:
    flow = Flow("dns")
    for number in range(10):
        flow.command(f"c{number}", "curl https://bank", downstream="bank")
    unresolved = "curl: (6) Could not resolve host: bank\n"
    night = play(flow, faults=[exits("*", 6, stderr=unresolved, lasts="20m")])
    assert night.state == "SUCCESS"


def test_a_certificate_has_expired() -> None:
    """Let's Encrypt, 30 September 2021: nothing heals by itself, one page says what it is."""
    expired = ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired")
    night = play(siblings(10, downstream="bank"), faults=[down("bank", error=expired)], until="1h")
    assert night.state in ("BLOCKED", "FAILED") and len(night.pages) == 1
    assert night.starts() <= 30 and "certificate" in night.inbox[0].message


def test_a_rotated_key_is_refused_until_somebody_brings_the_new_one() -> None:
    """Azure AD, 15 March 2021: the run waits as BLOCKED, and goes on after one requeue."""
    night = play(
        siblings(20, downstream="api"),
        faults=[down("api", lasts="2h", status=401)],
        acts=[("+130m", "requeue", "*")],
    )
    assert night.state == "SUCCESS" and night.starts() <= 30 and len(night.pages) == 1


def test_a_rate_limit_without_a_word_about_when() -> None:
    night = play(siblings(30, downstream="api", max_attempts=8), faults=[limited("api", 5)], until="30m")
    assert done(night) == 30


def test_retry_after_is_never_broken() -> None:
    """Document 004: never before Retry-After."""
    night = play(
        siblings(5, max_attempts=6, downstream="api"), faults=[down("api", lasts="3s", status=429, retry_after=7)]
    )
    assert night.state == "SUCCESS"
    assert all(wait >= 7 for name in night.states for wait in night.waits(name))


def test_a_partition_of_43_seconds() -> None:
    """GitHub, 21 October 2018: the network is away for 43 s; here everything is well again soon after."""
    night = play(
        siblings(50, downstream="db", max_attempts=4), faults=[down("db", at="1s", lasts="43s", error=ConnectionError)]
    )
    assert night.state == "SUCCESS" and night.healed_within("1m", after="db") and night.pages == []


def test_an_outage_that_comes_and_goes() -> None:
    """Flapping: four outages of a minute, a minute apart."""
    faults = [down("db", at=f"{minute}m", lasts="1m") for minute in (0, 2, 4, 6)]
    night = play(siblings(60, downstream="db", max_attempts=5), faults=faults, durations={"t59": "3m"})
    assert night.state == "SUCCESS" and night.starts() < 110
    assert Counter(len(night.attempts(name)) for name in night.states)[1] > 40


def test_answers_take_thirty_seconds_before_they_fail() -> None:
    """Slack, 4 January 2021: it is slow before it is down, and calls pile up behind the slots."""
    night = play(siblings(20, downstream="api", timeout=60), faults=[down("api", lasts="5m", takes="30s")])
    assert night.state == "SUCCESS" and night.healed_within("2m", after="api")
    assert len([at for at in night.calls("api") if at < 300]) < 25


@pytest.mark.long
def test_two_downstreams_are_down_at_once_and_each_is_paged_once() -> None:
    flow = siblings(10, downstream="bank")
    for number in range(10):
        flow.task(name=f"mail{number}", downstream="mail")(int)
    night = play(flow, faults=[down("bank", lasts="30m"), down("mail", lasts="30m")])
    assert night.state == "SUCCESS"
    assert sorted(page.title for page in night.pages) == sorted({page.title for page in night.pages})
    assert len(night.pages) == 2


@pytest.mark.long
def test_what_does_not_call_the_downstream_goes_on() -> None:
    flow = siblings(10, downstream="bank")
    flow.task(name="report")(int)
    flow.task(name="send", after="report")(int)
    night = play(flow, faults=[down("bank", lasts="1h")])
    assert night.start_seconds("send")[0] < 1 and night.state == "SUCCESS"
    assert "waiting" in night.header("30m") and night.inbox_at("30m") == []


def test_a_hang_of_every_connection_ends_by_the_timeout_and_opens_the_breaker() -> None:
    night = play(siblings(40, downstream="bank", timeout="20s"), faults=[hang("*", lasts="10m")])
    assert night.state == "SUCCESS" and night.starts() < 75
    assert all(later - earlier < 130 for earlier, later in pairwise(night.calls("bank")))


def test_an_error_of_one_task_says_nothing_about_its_downstream() -> None:
    """A bug of one task among healthy calls: the others are not held."""
    night = play(siblings(30, downstream="api"), faults=[error("t3", ZeroDivisionError)])
    assert done(night) == 29 and night.seconds < 30 and night.states["t3"] == "DEAD_LETTER"
