"""A long outage: the inbox, the list of files, the metrics and the page say the same, since its beginning."""

from __future__ import annotations

from redrive.engine import Flow, RetryPolicy
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import exit_code_of, needs_of
from redrive.engine.statefile.state_files import file_row_of
from redrive.engine.testing import crash, down, play
from support.marks import parametrize_mostly_long

MINUTE = 60_000_000


def calls(tasks: int = 4) -> Flow:
    flow = Flow("outage", deadline="3h", timeout=20)
    for number in range(tasks):
        flow.task(name=f"a{number}", downstream="api", retry=RetryPolicy(max_attempts=5, base=1, cap=5))(lambda: 1)
    return flow


@parametrize_mostly_long("until", ["8m", "11m", "31m", "31m10s", "31m20s"], quick=2)
def test_an_outage_is_a_need_and_a_page_since_it_began(until: str) -> None:
    night = play(calls(), faults=[down("api", lasts="3h")], until=until)
    now = night.query("SELECT max(at) FROM event")[0][0]
    found = [need for need in needs_of([file_row_of(night.state_file)], now) if need.kind is NeedKind.BREAKER]
    is_long = until != "8m"
    assert len(found) == len(night.pages) == is_long
    if is_long:
        start = night.projection.run.started_at
        assert found[0].since - start < MINUTE and exit_code_of(found) == 3


def test_a_new_executor_knows_since_when() -> None:
    night = play(calls(), faults=[down("api", lasts="3h"), crash("executor", at="5m")], until="11m")
    needs = needs_of([file_row_of(night.state_file)], night.query("SELECT max(at) FROM event")[0][0])
    (need,) = [need for need in needs if need.kind is NeedKind.BREAKER]
    assert need.since - night.projection.run.started_at < MINUTE


def test_an_outage_that_is_over_is_no_need() -> None:
    night = play(calls(), faults=[down("api", lasts="12m")])
    assert night.state == "SUCCESS" and night.query("SELECT opened_at FROM breaker") == [(None,)]


def test_a_breaker_that_an_operator_holds_is_a_notice_since_it_was_opened() -> None:
    acts = [("+1m", "breaker", "api", "open"), ("+15m", "breaker", "api", "close")]
    night = play(calls(), faults=[down("api", lasts="3h")], acts=acts[:1], until="20m")
    (need,) = needs_of([file_row_of(night.state_file)], night.query("SELECT max(at) FROM event")[0][0] + 20 * MINUTE)[
        -1:
    ]
    assert need.kind is NeedKind.BREAKER and need.is_notice
    assert need.since - night.projection.run.started_at < MINUTE


def test_one_task_alone_that_is_held_is_a_need_like_its_page() -> None:
    night = play(calls(1), faults=[down("api", lasts="3h")], until="25m")
    needs = needs_of([file_row_of(night.state_file)], night.query("SELECT max(at) FROM event")[0][0])
    assert len(night.pages) == 1
    (need,) = [need for need in needs if need.kind is NeedKind.BREAKER]
    assert need.since - night.projection.run.started_at < MINUTE
    well = play(calls(1), faults=[down("api", lasts="15m")])
    assert well.state == "SUCCESS" and needs_of([file_row_of(well.state_file)], need.since + 60 * MINUTE) == []
