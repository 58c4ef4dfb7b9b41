"""Nights with a deadline: what it ends, what may go on, and what everybody reads about it."""

from __future__ import annotations

import time

import pytest
from msgspec import structs
from redrive.engine import Flow, PermanentError, RetryPolicy
from redrive.engine.domain.text import format_clock
from redrive.engine.testing import clock_step, crash, down, error, hang, play, play_schedule
from support.marks import parametrize_mostly_long

from .flows import siblings


def long_and_child(**options: object) -> Flow:
    flow = Flow("d", **options)  # type: ignore[arg-type]
    flow.task(name="long", grace_seconds=2, timeout="1h")(lambda: time.sleep(25))
    flow.task(name="child", after="long")(int)
    return flow


def test_a_task_of_25_s_in_a_run_of_6_s_is_ended_and_told() -> None:
    night = play(long_and_child(deadline="6s"))
    assert night.states == {"long": "CANCELLED", "child": "CANCELLED"}
    assert (night.state, night.exit_code, night.seconds) == ("FAILED", 1, pytest.approx(6, abs=2.5))
    (page,) = night.pages
    assert page.title == "deadline missed"
    (cause,) = night.inbox
    assert (cause.title, cause.tasks) == ("ended by the deadline", ("long", "child"))
    due = format_clock(night.projection.run.deadline_at or 0)
    assert f"deadline {due} passed" in night.header("10s")
    for text in (night.summary, night.why("child", "10s"), *night.journal[-1:]):
        assert f"deadline {due} passed" in text


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    night = play(long_and_child(deadline="6s"), faults=[hang("long", ignores_sigterm=True)])
    assert night.state == "FAILED" and 8 <= night.seconds < 10


def test_what_fits_before_the_deadline_still_starts() -> None:
    flow = Flow("chain", deadline="7s")
    for name, above in zip("abcde", ([], "a", "b", "c", "d"), strict=True):
        flow.task(name=name, after=above)(int)
    night = play(flow, durations=dict.fromkeys("abcde", "2s"))
    assert list(night.states.values()) == ["SUCCESS", "SUCCESS", "SUCCESS", "CANCELLED", "CANCELLED"]


def test_a_run_that_waits_for_a_human_at_its_deadline_is_over_and_its_dead_letter_waits_on() -> None:
    flow = Flow("d", deadline="1h")
    flow.task(name="broken")(int)
    flow.task(name="below", after="broken")(int)
    night = play(flow, faults=[error("broken", PermanentError("schema"))], acts=[("+2h", "resume")])
    assert night.states == {"broken": "DEAD_LETTER", "below": "CANCELLED"}
    assert night.state == "FAILED"
    assert {page.title for page in night.pages} == {"permanent on broken", "deadline missed"}


def test_in_the_morning_a_requeue_is_enough() -> None:
    flow = Flow("d", deadline="1h")
    flow.task(name="broken")(int)
    flow.task(name="below", after="broken")(int)
    faults = [error("broken", PermanentError("schema"), at=0, lasts="2h")]
    night = play(flow, faults=faults, acts=[("+2h", "resume"), ("+3h", "requeue", "broken")])
    assert night.state == "SUCCESS" and night.starts("below") == 1


def test_an_effect_that_the_deadline_interrupts_is_looked_up_by_a_human() -> None:
    flow = Flow("d", deadline="6s")
    flow.task(name="pay", effect=True)(lambda: time.sleep(25))
    night = play(flow)
    assert (night.state, night.states) == ("FAILED", {"pay": "DEAD_LETTER"})
    assert {cause.kind for cause in night.inbox} == {"indeterminate"}
    assert night.starts("pay") == 1


def test_an_executor_that_is_down_over_the_deadline_ends_the_run_when_it_is_back() -> None:
    flow = long_and_child(deadline="1m")
    night = play(flow, durations={"long": "50s"}, faults=[crash("executor", at="30s", lasts="2m")])
    assert night.state == "FAILED" and night.starts("child") == 0 and night.starts("long") == 1
    assert [page.title for page in night.pages if "deadline" in page.title] == ["deadline missed"]


def test_an_outage_over_the_deadline_leaves_no_task_behind() -> None:
    flow = siblings(20, name="orders", downstream="bank", retry=RetryPolicy(max_attempts=9, base=2))
    flow.declared = structs.replace(flow.declared, deadline_seconds=120)
    night = play(flow, faults=[down("bank")], until="1h")
    assert set(night.states.values()) <= {"SUCCESS", "CANCELLED", "FAILED", "DEAD_LETTER"}
    assert night.state == "FAILED" and night.seconds < 130


def test_a_deadline_that_only_pages_ends_nothing() -> None:
    night = play(long_and_child(deadline="6s", deadline_action="page"))
    assert night.state == "SUCCESS" and [page.title for page in night.pages] == ["deadline missed on long"]


@parametrize_mostly_long("at", ["2026-03-28T12:00+01:00", "2026-10-24T12:00+02:00"], ids=["forward", "back"], quick=1)
def test_the_clock_is_set_in_the_night_and_the_deadline_keeps_real_hours(at: str) -> None:
    """From half past one by the clocks of Berlin, two hours: until 04:30 by summer time, 02:30 by winter time."""
    flow = Flow("nightly", schedule="30 1 * * *", timezone="Europe/Berlin", deadline="2h")
    flow.task(name="load")(lambda: time.sleep(5 * 3600))
    night = play_schedule(flow, at=at, lasts="1d")
    ((started, deadline, ended),) = night.query("SELECT started_at, deadline_at, ended_at FROM run")
    assert deadline - started == pytest.approx(2 * 3600e6, abs=5e6)
    assert night.state == "FAILED" and 0 <= ended - deadline < 10e6


def test_the_machine_is_off_for_two_days_and_the_run_that_is_made_up_for_is_not_ended_at_once() -> None:
    flow = Flow("nightly", schedule="0 2 * * *", deadline="3h")
    flow.task(name="load")(lambda: time.sleep(600))
    night = play_schedule(flow, at="2026-01-05T22:00+00:00", lasts="3d", faults=[crash(at="1h", lasts="2d")])
    made_up = night.runs[0]
    assert made_up.state == "SUCCESS"
    assert any("starts only now" in str(page.body) for page in made_up.pages)


@pytest.mark.parametrize("step", [3600, -3600, 86400])
def test_a_deadline_of_a_duration_moves_with_a_step_of_the_clock(step: int) -> None:
    """A run of nine seconds was ended by its deadline of half an hour, and had an hour more the other way round."""
    flow = long_and_child(deadline="30m")
    night = play(flow, faults=[clock_step("9s", step)])
    assert night.state == "SUCCESS"
    late = play(long_and_child(deadline="20s"), faults=[clock_step("9s", step)])
    assert late.state == "FAILED" and late.states["long"] == "CANCELLED"
