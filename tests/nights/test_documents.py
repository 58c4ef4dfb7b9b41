"""The incidents of the source documents, and the nineteen stories that were tried on them, as nights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from redrive.engine import AmbiguousError, Flow, RetryPolicy
from redrive.engine.testing import crash, down, error, hang, in_turn, killed, limited, play
from support.marks import parametrize_mostly_long

from .flows import done, siblings

# --- 503 and a downstream --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_1_three_of_ten_calls_get_a_503_and_no_downstream_is_named() -> None:
    """Document 003's incident: 99.4 % of 220 tasks are done, and one page says what is not."""
    night = play(siblings(220, max_attempts=4), faults=[error("*", ConnectionError, share=0.3)], seed=2)
    assert done(night) >= 218 and night.seconds < 40
    assert len(night.pages) <= 1 and night.starts() < 340


@parametrize_mostly_long("seed", [1, 2, 3], quick=0)  # by default: test_document_003 in test_breakers
def test_2_three_of_ten_calls_get_a_503_and_a_downstream_is_named(seed: int) -> None:
    """To name the downstream makes nothing worse: as many are done, within twice the time."""
    without = play(siblings(220, max_attempts=4), faults=[error("*", ConnectionError, share=0.3)], seed=seed)
    named = siblings(220, max_attempts=4, downstream="api")
    night = play(named, faults=[down("api", share=0.3)], until="15m", seed=seed)
    assert done(night) >= done(without)
    assert night.seconds <= 2 * without.seconds
    assert len(night.pages) <= 1


def test_3_a_downstream_is_down_for_two_minutes() -> None:
    """No task is lost, and a handful of calls finds out that it is well again."""
    night = play(siblings(60, downstream="api"), faults=[down("api", lasts="2m")])
    assert night.state == "SUCCESS" and night.exit_code == 0
    assert night.healed_within("45s", after="api") and night.starts() <= 90
    assert night.pages == []


def test_4_a_downstream_is_down_for_ten_seconds() -> None:
    night = play(siblings(60, downstream="api"), faults=[down("api", lasts="10s")])
    assert night.state == "SUCCESS" and night.starts() <= 90
    assert night.healed_within("45s", after="api")


@pytest.mark.long
def test_5_three_hundred_tasks_and_a_downstream_that_is_down_for_the_first_ten_seconds() -> None:
    """What is healthy again is used again: the release grows while calls succeed."""
    night = play(siblings(300, downstream="api"), faults=[down("api", lasts="10s")])
    assert night.state == "SUCCESS" and night.seconds <= 45


@pytest.mark.long
def test_6_a_blip_of_two_seconds_in_the_middle_of_many_children() -> None:
    flow = Flow("pages")
    flow.downstream("api")
    flow.task(name="pages")(lambda: list(range(400)))
    flow.map(name="fetch", over="pages", downstream="api", max_attempts=4)(lambda page: page)
    night = play(flow, durations={"fetch": "100ms"}, faults=[down("api", at="4s", lasts="2s")], until="5m")
    assert (done(night) >= 400 and night.healed_after("api") < 60) or night.state == "FAILED"
    assert 0 <= 2


def test_7_a_blip_of_two_seconds_at_the_end() -> None:
    """240 tasks, the server is down for two seconds after the 170th call: with a healthy server nobody waits."""
    night = play(
        siblings(240, downstream="api"),
        durations={f"t{number}": "100ms" for number in range(240)},
        faults=[down("api", at="4.25s", lasts="2s")],
        until="15m",
    )
    assert night.state == "SUCCESS" and night.healed_within("60s", after="api")


def test_8_a_server_allows_five_calls_a_second_and_says_when_to_come_again() -> None:
    """429 with Retry-After: 2: it is idle for the five seconds of an open breaker at most, and not for thirty."""
    night = play(siblings(60, downstream="api", max_attempts=8), faults=[limited("api", 5, retry_after=2)])
    calls = night.calls("api")
    assert done(night) == 60
    assert max(later - earlier for earlier, later in pairwise(calls)) < 5.5


def test_9_a_credential_is_refused() -> None:
    """401 for all: a few calls, one page, and the run waits for whoever can mend it."""
    night = play(siblings(60, downstream="api"), faults=[down("api", status=401)])
    assert night.state == "BLOCKED" and night.exit_code == 3
    assert night.seconds < 2 and night.starts() <= 5 and len(night.pages) == 1
    assert "only an operator" in " ".join(cause.title + cause.message for cause in night.inbox)


def test_10_connections_hang_for_eight_seconds() -> None:
    night = play(siblings(20, timeout=6, downstream="api"), faults=[hang("*", lasts="8s")])
    assert night.state == "SUCCESS" and night.seconds < 90 and night.starts() <= 32


def test_11_a_connection_is_reset_for_two_seconds() -> None:
    night = play(siblings(1, max_attempts=5), faults=[error("t0", ConnectionResetError, lasts="2s")])
    assert night.state == "SUCCESS" and night.seconds < 10 and night.starts() <= 4 and night.pages == []


# --- Deaths ----------------------------------------------------------------------------------------------------------


def test_12_one_of_eight_tasks_aborts() -> None:
    """Document 004's poison pill is moved aside: seven are done, one page."""
    night = play(siblings(8), faults=[killed("t3", 6)])
    assert done(night) == 7 and night.states["t3"] == "DEAD_LETTER"
    assert night.starts() == 9 and len(night.pages) == 1


def test_13_the_executor_is_killed_inside_an_effect() -> None:
    """An effect happens once at most: a human looks for its key."""
    flow = Flow("mail")

    @flow.task(effect=True)
    def send():
        time.sleep(10)

    night = play(flow, faults=[crash(at="5s")])
    assert night.state == "BLOCKED" and night.starts("send") == 1 and len(night.pages) == 1
    (cause,) = night.inbox
    assert cause.kind == "indeterminate"


def test_14_the_executor_is_killed_in_the_middle_of_a_run() -> None:
    """What was finished does not run again."""
    flow = Flow("steps")
    for number in range(10):
        flow.task(name=f"s{number}", after=f"s{number - 1}" if number else ())(lambda: 1)
    night = play(flow, durations={f"s{number}": "10s" for number in range(10)}, faults=[crash(at="55s", lasts="5s")])
    assert night.state == "SUCCESS"
    assert [night.starts(f"s{number}") for number in range(10)] == [1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert night.pages == []


# --- The same bug many times -----------------------------------------------------------------------------------------


def corrupt() -> None:
    header = {"date": "2026-04-25"}
    header["amount"]


def test_15_many_siblings_meet_the_same_corrupt_header() -> None:
    """One cause in the inbox, one page."""
    night = play(siblings(100, corrupt))
    assert night.state == "BLOCKED" and len(night.pages) == 1
    (cause,) = night.inbox
    assert len(cause.tasks) == 100 and cause.kind == "poison"


def test_15_siblings_are_evidence_so_the_later_ones_need_one_start() -> None:
    night = play(siblings(100, corrupt))
    assert night.starts() <= 105


def test_16_all_are_sent_back_without_a_fix_behind_a_canary() -> None:
    """One start shows that the fix did not help."""
    night = play(siblings(50, corrupt), acts=[("+10m", "requeue", "*", {"canary": True})])
    assert night.state == "BLOCKED"
    assert len([at for at in night.start_seconds() if at >= 600]) <= 2
    assert night.answers[0][1]


def test_17_all_are_sent_back_after_the_fix() -> None:
    acts = [("+5m", "change", siblings(50, int)), ("+10m", "requeue", "*", {"canary": True})]
    night = play(siblings(50, corrupt), acts=acts)
    assert night.state == "SUCCESS" and done(night) == 50
    assert len([at for at in night.start_seconds() if at >= 600]) == 50


# --- What heals by itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "met", [KeyError("amount"), json.JSONDecodeError("Expecting value", "<html>", 0)], ids=["key", "html"]
)
def test_18_a_maintenance_page_is_met_for_twenty_seconds(met: Exception) -> None:
    """JSON without the key, or HTML, by a task that names its downstream and has five tries."""
    night = play(siblings(1, downstream="api", max_attempts=5), faults=[down("api", lasts="20s", error=met)])
    assert night.state == "SUCCESS" and night.healed_within("1m", after="api")


def test_19_the_timeout_is_shorter_than_the_work_of_the_season() -> None:
    """Document 000's Diwali night: the timeout is the bug, and the inbox and the page say so with the one to set."""
    flow = Flow("settlement")
    flow.task(name="settle", timeout=3)(lambda: 1)
    night = play(flow, durations={"settle": in_turn("1s", "1s", "4s")}, runs=3)
    assert [run.state for run in night.runs[:2]] == ["SUCCESS", "SUCCESS"]
    (cause,) = night.inbox
    assert "hang" not in f"{cause.kind} {cause.message}" and "requeue it with --timeout" in cause.evidence
    assert "set timeout=" in cause.message and "set timeout=" in str(night.pages[0].body["why"])


# --- The other rows of the table -------------------------------------------------------------------------------------


def test_first_tries_never_wait_for_the_budget_of_retries() -> None:
    """The breaker is closed and the budget empty: refused retries do not stand before first tries."""
    night = play(
        siblings(100, downstream="api", max_attempts=6),
        durations={f"t{number}": "1s" for number in range(100)},
        faults=[error(f"t{number}", ConnectionError, attempt={1, 2}) for number in range(0, 100, 4)],
        until="10m",
    )
    firsts = sorted(start for number in range(100) for start in night.start_seconds(f"t{number}")[:1])
    assert len(firsts) == 100
    assert max(later - earlier for earlier, later in pairwise(firsts)) < 3


def test_the_program_of_document_003_whose_third_start_wins() -> None:
    night = play(siblings(1), faults=[error("t0", lambda: RuntimeError("transient"), times=2)])
    assert night.state == "SUCCESS" and night.starts() == 3


def test_http_500_twice_and_then_healthy() -> None:
    night = play(siblings(1, downstream="api"), faults=[error("t0", http_500, times=2)])
    assert night.state == "SUCCESS" and night.starts() == 3


def http_500() -> Exception:
    class HTTPError(Exception):
        status_code = 500

    return HTTPError("Internal Server Error")


def test_an_ambiguous_failure_is_tried_a_handful_of_times() -> None:
    """``help retries``: ambiguous failures are retried, three at most, also where they arise at one place."""
    night = play(siblings(1, max_attempts=6), faults=[error("t0", lambda: AmbiguousError("409"), times=2)])
    assert night.state == "SUCCESS" and night.starts() == 3


def test_two_other_failures_between_are_not_twice_the_same() -> None:
    """A, B, A: the same failure was not met twice in a row."""
    errors = [KeyError("a"), ValueError("b"), KeyError("a")]
    night = play(siblings(1, max_attempts=6), results={"t0": in_turn(*errors, 5)})
    assert night.state == "SUCCESS" and night.starts() == 4


def test_the_deadline_of_a_run_ends_it() -> None:
    flow = Flow("d", deadline="6s")
    flow.task(name="long", grace_seconds=2)(lambda: time.sleep(25))
    flow.task(name="child", after="long")(int)
    night = play(flow)
    assert night.state == "FAILED" and night.exit_code == 1
    assert night.seconds < 10 and night.starts("child") == 0
    assert len(night.pages) == 1 and "deadline" in night.summary.lower()


def test_a_wait_is_shortened_to_fit_before_the_deadline() -> None:
    flow = Flow("d", deadline="10s")
    flow.task(name="t", retry=RetryPolicy(max_attempts=3, base=8, jitter="none"))(int)
    night = play(flow, faults=[error("t", ConnectionError, times=2)])
    assert night.state == "SUCCESS" and night.seconds < 10


def test_a_task_that_gets_further_each_time_is_slow_and_not_hung() -> None:
    """After two runs of a second: 32 % done, 64 % done, done."""

    def steps(count: int) -> Callable[..., None]:
        def work(ctx) -> None:
            for step in range(ctx.checkpointed or 0, count):
                time.sleep(0.1)
                ctx.checkpoint(step + 1)
                ctx.progress(step + 1, count)

        return work

    flow = siblings(1, timeout=4, max_attempts=5)
    night = play(flow, runs=3, results={"t0": in_turn(steps(10), steps(10), steps(120))})
    assert night.state == "SUCCESS" and night.starts("t0") <= 4


def test_a_map_task_may_name_a_downstream_that_is_declared_nowhere() -> None:
    flow = Flow("m")
    flow.task(name="pages")(lambda: [1, 2, 3])
    flow.map(name="fetch", over="pages", downstream="api")(lambda page: page)
    assert play(flow).state == "SUCCESS"


def test_a_name_that_does_not_resolve_is_the_same_in_python_and_in_curl() -> None:
    import socket

    from redrive.engine.testing import exits

    unresolved = "curl: (6) Could not resolve host: bank.example.com\n"
    flow = siblings(1)
    flow.command("curl", "curl https://bank.example.com")
    faults = [error("t0", socket.gaierror(-2, "Name or service not known")), exits("curl", 6, stderr=unresolved)]
    night = play(flow, faults=faults)
    assert night.states["t0"] == night.states["curl"] and night.starts("t0") == night.starts("curl")
