"""Nights with errors that repeat, and with errors that only seem to: what is poison, and how many starts it takes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from redrive.engine import AmbiguousError, Flow, RetryPolicy, classify_http
from redrive.engine.testing import Night, crash, down, error, play
from redrive.engine.testing.faults import http_error

SIBLINGS = 1_247
UNANSWERED = json.JSONDecodeError("Expecting value", "<html>down for maintenance</html>", 0)
UNREADABLE = KeyError("row_groups")  # of a corrupt header


def one_task(**options: Any) -> Flow:
    flow = Flow("one")
    flow.task(name="fetch", **options)(lambda: 5)
    return flow


def many_tasks(count: int = SIBLINGS, **options: Any) -> Flow:
    flow = Flow("siblings")

    @flow.task
    def parts() -> list[int]:
        return list(range(count))

    flow.map(over=parts, name="read", max_size=2 * count, **options)(lambda part: part)
    return flow


def seen_by_the_on_call(night: Night) -> str:
    return " ".join(
        [*(f"{entry.kind} {entry.message}" for entry in night.inbox), *(page.title for page in night.pages)]
    )


# --- Errors that heal ---------------------------------------------------------------------------------------------


def test_document_003_wins_with_its_third_start() -> None:
    night = play(one_task(), faults=[error("fetch", RuntimeError("transient"), times=2)])
    assert (night.state, night.starts("fetch"), night.pages) == ("SUCCESS", 3, [])


def test_http_500_twice_is_not_yet_the_end() -> None:
    for fault in (
        error("fetch", lambda: classify_http(500), times=2),
        error("fetch", lambda: http_error("b", 500), times=2),
    ):
        night = play(one_task(), faults=[fault])
        assert (night.state, night.starts("fetch"), night.pages) == ("SUCCESS", 3, [])


def test_an_ambiguity_is_tried_three_times() -> None:
    flow = one_task(max_attempts=6)
    night = play(flow, faults=[error("fetch", AmbiguousError("is it there?"), times=2)])
    assert (night.state, night.starts("fetch")) == ("SUCCESS", 3)
    night = play(flow, faults=[error("fetch", AmbiguousError("is it there?"))])
    assert (night.states["fetch"], night.starts("fetch")) == ("DEAD_LETTER", 3)


@pytest.mark.parametrize("answer", [KeyError("amount"), UNANSWERED], ids=["JSON without the key", "HTML"])
@pytest.mark.parametrize("seed", range(5))
def test_a_maintenance_page_of_20_s_heals(answer: Exception, seed: int) -> None:
    flow = one_task(max_attempts=5, downstream="api")
    night = play(flow, faults=[down("api", lasts="20s", error=answer)], seed=seed)
    assert (night.state, night.pages) == ("SUCCESS", [])
    assert night.seconds < 80


def test_a_failure_of_another_kind_between_breaks_the_row() -> None:
    flow = one_task(max_attempts=6)
    faults = [error("fetch", KeyError("a"), attempt={1, 3}), error("fetch", ValueError("b"), attempt=2)]
    assert play(flow, faults=faults).state == "SUCCESS"


# --- Errors that repeat -------------------------------------------------------------------------------------------


def test_the_settlement_of_document_000_is_poison_at_its_second_failure() -> None:
    night = play(one_task(max_attempts=3), faults=[error("fetch", ZeroDivisionError("division by zero"))])
    assert (night.states["fetch"], night.starts("fetch"), len(night.pages)) == ("DEAD_LETTER", 2, 1)
    assert night.seconds < 3
    assert "poison" in seen_by_the_on_call(night)


def test_what_an_api_really_lacks_is_poison_after_a_minute_not_after_hours() -> None:
    flow = one_task(max_attempts=20, downstream="api")
    night = play(flow, faults=[error("fetch", KeyError("amount"))])
    assert (night.states["fetch"], len(night.pages)) == ("DEAD_LETTER", 1)
    assert 60 <= night.seconds < 200 and night.starts("fetch") < 12


def test_what_is_no_evidence_ends_failed_and_stops_its_children() -> None:
    flow = one_task()
    flow.task(name="child", after="fetch")(lambda: 1)
    night = play(flow, faults=[error("fetch", RuntimeError("?"))])
    assert night.states == {"fetch": "FAILED", "child": "UPSTREAM_FAILED"}


@pytest.mark.parametrize(("poison_after", "starts"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_who_asks_for_a_number_gets_that_number(poison_after: int, starts: int) -> None:
    flow = one_task(retry=RetryPolicy(max_attempts=5, poison_after=poison_after))
    night = play(flow, faults=[error("fetch", RuntimeError("?"))])
    assert (night.states["fetch"], night.starts("fetch")) == ("DEAD_LETTER", starts)


# --- Siblings -----------------------------------------------------------------------------------------------------


def reads(night: Night) -> int:
    return night.starts() - night.starts("parts")


@pytest.mark.long
@pytest.mark.parametrize("max_parallel", [4, pytest.param(64, marks=pytest.mark.weekly)])
def test_1247_siblings_of_one_corrupt_file_need_one_start_each(max_parallel: int) -> None:
    """Document 000: 3,741 starts. Each proved the same cause again with 2,494."""
    night = play(many_tasks(), faults=[error("read", UNREADABLE)], max_parallel=max_parallel)
    assert (night.state, len(night.pages), len(night.inbox)) == ("BLOCKED", 1, 1)
    assert Counter(night.states.values())["DEAD_LETTER"] == SIBLINGS
    assert SIBLINGS <= reads(night) <= SIBLINGS + 13


@pytest.mark.long
def test_the_evidence_of_siblings_outlives_the_executor() -> None:
    faults = (error("read", UNREADABLE), crash("executor", at="2s", lasts="5s"))
    night = play(many_tasks(600), faults=faults, durations={"read": "50ms"}, max_parallel=4)
    assert Counter(night.states.values())["DEAD_LETTER"] == 600
    assert reads(night) <= 600 + 13 + 4  # and those that the crash cut off


@pytest.mark.long
def test_siblings_that_heal_are_not_drawn_into_a_verdict() -> None:
    """A file that is half written for a second: each sibling that met it reads it well the next time."""
    night = play(many_tasks(300), faults=[error("read", UNREADABLE, times=1)], max_parallel=8)
    assert (night.state, night.pages) == ("SUCCESS", [])


@pytest.mark.long
def test_a_blip_of_half_a_second_spares_those_that_met_it() -> None:
    """All 300 fail at once. The three first to retry may fail again; the others wait for that verdict."""
    night = play(many_tasks(300), faults=[error("read", UNREADABLE, lasts="500ms")], max_parallel=300)
    assert Counter(night.states.values())["DEAD_LETTER"] <= 3
