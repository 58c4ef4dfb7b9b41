"""Clean-ups (``rule="all_done"``): they run however their parents have ended, also when the run is over."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redrive.engine import Flow, PermanentError, RetryPolicy, TransientError
from redrive.engine.testing import Night, crash, error, hang, in_turn, play, play_schedule


def cluster(clean_up: Any = int, **options: Any) -> Flow:
    """A cluster that is made, used and deleted; ``report`` is no clean-up."""
    flow = Flow("cluster", **{"deadline": "1h", **options})
    flow.task(name="create")(int)
    flow.task(name="work", after="create", timeout="5h", grace_seconds=2)(lambda: time.sleep(4 * 3600))
    flow.task(name="report", after="work")(int)
    flow.task(name="delete", after=["create", "work"], rule="all_done", timeout="5m")(clean_up)
    flow.task(name="notify", after="delete")(int)
    return flow


ENDED = {"create": "SUCCESS", "work": "CANCELLED", "report": "CANCELLED", "delete": "SUCCESS", "notify": "CANCELLED"}


def test_the_deadline_ends_the_work_and_not_its_clean_up() -> None:
    night = play(cluster(lambda: time.sleep(60)))
    assert (night.state, night.exit_code, night.states) == ("FAILED", 1, ENDED)
    assert 3660 <= night.seconds < 3670
    assert [page.title for page in night.pages] == ["deadline missed"]
    assert any("2 tasks are cancelled, delete cleans up" in line for line in night.journal)


def test_a_clean_up_that_runs_at_the_deadline_goes_on() -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="work")(int)
    flow.task(name="delete", after="work", rule="all_done", timeout="5m")(lambda: time.sleep(120))
    night = play(flow, durations={"work": "59m"})
    assert night.states == {"work": "SUCCESS", "delete": "SUCCESS"} and night.state == "SUCCESS"


def test_two_clean_ups_run_one_after_the_other_each_with_its_own_bound() -> None:
    flow = cluster(lambda: time.sleep(200))
    flow.task(name="close", after="delete", rule="all_done", timeout="5m")(lambda: time.sleep(200))
    night = play(flow)
    assert night.states == {**ENDED, "close": "SUCCESS"} and night.state == "FAILED"
    assert 4000 <= night.seconds < 4020


@pytest.mark.parametrize(("timeout", "seconds"), [("5m", 300), (None, 600)])
def test_a_clean_up_that_hangs_is_ended_by_its_bound(timeout: Any, seconds: int) -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="work", timeout="5h")(lambda: time.sleep(4 * 3600))
    flow.task(name="delete", after="work", rule="all_done", timeout=timeout)(int)
    flow.task(name="close", after="delete", rule="all_done")(int)
    night = play(flow, durations={"delete": "4h"}, faults=[hang("delete")] if timeout else ())
    assert night.states["delete"] == ("FAILED" if timeout else "CANCELLED") and night.states["close"] == "SUCCESS"
    assert night.state == "FAILED" and night.starts("delete") == 1
    assert 3600 + seconds <= night.seconds < 3600 + seconds + 30


def test_a_clean_up_is_tried_again_within_its_bound() -> None:
    night = play(cluster(), faults=[error("delete", TransientError("503"), times=2)])
    assert night.states == ENDED and night.starts("delete") == 3


def test_a_clean_up_that_fails_for_ever_is_failed_and_no_dead_letter() -> None:
    policy = RetryPolicy(max_attempts=100, base=40, cap=40)
    flow = Flow("cluster", deadline="1h")
    flow.task(name="work", timeout="5h")(lambda: time.sleep(4 * 3600))
    flow.task(name="delete", after="work", rule="all_done", timeout="2m", retry=policy)(int)
    night = play(flow, faults=[error("delete", TransientError("503"))])
    assert night.states["delete"] == "FAILED" and night.seconds < 3600 + 140


@pytest.mark.parametrize("at", ["59m", "1h1m"])
def test_the_executor_is_killed_before_the_deadline_or_in_the_clean_up(at: str) -> None:
    night = play(cluster(lambda: time.sleep(200)), faults=[crash("executor", at=at, lasts="2h")])
    assert (night.state, night.states) == ("FAILED", ENDED)
    assert night.starts("delete") == (1 if at == "59m" else 2)


def test_a_blocked_run_cleans_up_at_its_deadline_and_its_dead_letter_waits_on() -> None:
    flow = cluster()
    night = play(flow, faults=[error("work", PermanentError("schema"))], acts=[("+2h", "resume")])
    assert night.states == {**ENDED, "work": "DEAD_LETTER"} and night.state == "FAILED"


def test_at_no_ttl_at_all_it_cleans_up_at_once() -> None:
    night = play(cluster(dead_letter_ttl=0), faults=[error("work", PermanentError("schema"))])
    assert night.states["delete"] == "SUCCESS" and night.state == "FAILED" and night.seconds < 60


def chain() -> Flow:
    """The clean-ups are no children of the tasks that they clean up after."""
    flow = Flow("chain", deadline="1h")
    flow.task(name="work", timeout="5h", grace_seconds=30)(lambda: time.sleep(4 * 3600))
    flow.task(name="report", after="work")(int)
    flow.task(name="delete", after="report", rule="all_done", timeout="5m")(lambda: time.sleep(60))
    flow.task(name="notify", after="delete")(int)
    flow.task(name="close", after="notify", rule="all_done", timeout="5m")(int)
    return flow


def test_a_clean_up_waits_for_the_attempt_above_its_parents_to_end() -> None:
    """``report`` and ``notify`` have not started, and are cancelled at once: nothing was deleted under ``work``."""
    night = play(chain(), faults=[hang("work", ignores_sigterm=True)])
    (work,), (delete,), (close,) = (night.attempts(name) for name in ("work", "delete", "close"))
    assert (work.ended_at or 0) <= (delete.started_at or 0) and (delete.ended_at or 0) <= (close.started_at or 0)
    assert night.why("delete", "1h5s").startswith("waits for work, which has not ended")
    assert night.state == "FAILED" and 3690 <= night.seconds < 3700


def test_a_clean_up_that_waits_survives_the_executor() -> None:
    hanging = hang("work", ignores_sigterm=True)
    night = play(chain(), faults=[hanging, crash("executor", at="60m10s")])
    assert (night.states["delete"], night.states["close"]) == ("SUCCESS", "SUCCESS") and night.starts("delete") == 1


def test_an_effect_that_the_deadline_interrupts_does_not_hold_the_clean_up() -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="pay", kind="effect", timeout="5h")(lambda: time.sleep(4 * 3600))
    flow.task(name="delete", after="pay", rule="all_done")(int)
    night = play(flow)
    assert night.states == {"pay": "DEAD_LETTER", "delete": "SUCCESS"} and night.state == "FAILED"


def test_no_clean_up_asks_a_human_after_the_deadline() -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="work", timeout="5h")(lambda: time.sleep(4 * 3600))
    flow.approval("sure", after="work", rule="all_done")
    flow.task(name="delete", after="sure", rule="all_done")(int)
    night = play(flow)
    assert night.states == {"work": "CANCELLED", "sure": "CANCELLED", "delete": "SUCCESS"}


def test_a_sensor_as_a_clean_up_has_ten_minutes() -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="work", timeout="5h")(lambda: time.sleep(4 * 3600))
    flow.sensor(name="gone", after="work", rule="all_done", every="1m")(lambda: False)
    night = play(flow)
    assert night.states["gone"] == "CANCELLED" and 4200 <= night.seconds < 4230


def test_a_map_deletes_each_cluster() -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="clusters")(lambda: ["a", "b"])
    flow.task(name="work", after="clusters", timeout="5h")(lambda: time.sleep(4 * 3600))
    flow.map(lambda cluster: cluster, name="delete", over="clusters", after="work", rule="all_done")
    night = play(flow)
    assert [night.states[name] for name in ("delete[0]", "delete[1]", "delete")] == ["SUCCESS"] * 3
    assert night.state == "FAILED"


def test_a_map_whose_children_may_fail_is_no_clean_up() -> None:
    flow = Flow("cluster", deadline="1h")
    flow.task(name="listed")(lambda: ["a", "b", "c"])
    flow.map(lambda one: time.sleep(4 * 3600), name="load", over="listed", rule="all_done", timeout="5h")
    night = play(flow, max_parallel=1)
    assert night.starts("load[1]") == 0 and night.state == "FAILED" and night.seconds < 3700


def test_a_requeue_in_the_morning_makes_it_an_ordinary_task_again() -> None:
    acts = [("+90m", "requeue", "work", {"cascade": True}), ("+91m", "resume")]
    night = play(cluster(), durations={"work": in_turn("4h", "1m")}, acts=acts)
    assert set(night.states.values()) == {"SUCCESS"} and night.starts("delete") == 2


# --- Abandoned -----------------------------------------------------------------------------------------------------


def blocked(*acts: Any) -> Night:
    faults = [error("work", PermanentError("schema"))]
    return play(cluster(lambda: time.sleep(60), deadline=None), faults=faults, acts=[*acts])


def test_an_abandoned_run_cleans_up_and_is_abandoned_then() -> None:
    night = blocked(("+1h", "abandon"), ("+2h", "resume"))
    assert night.states == {**ENDED, "work": "CANCELLED"} and night.state == "ABANDONED"
    assert any("abandoned the run: delete cleans up" in line for line in night.journal)


def test_a_run_that_is_abandoned_twice_ends_at_once() -> None:
    night = blocked(("+1h", "abandon"), ("+61m", "abandon"))
    assert night.states["delete"] == "CANCELLED" and night.state == "ABANDONED" and night.starts("delete") == 0


def test_a_requeue_of_an_abandoned_run_lets_it_go_on() -> None:
    acts = [("+1h", "abandon"), ("+61m", "requeue", "work"), ("+62m", "resume")]
    flow = cluster(deadline=None)
    faults = [error("work", PermanentError("schema"), times=1)]
    night = play(flow, faults=faults, acts=acts, durations={"work": "1m"})
    assert night.states["work"] == "SUCCESS" and night.states["delete"] == "SUCCESS"
    assert night.state != "ABANDONED"


# --- Served ------------------------------------------------------------------------------------------------------


def served(**options: Any) -> Night:
    night = play_schedule(cluster(schedule="0 1 * * *", **options), at="2026-01-05T00:30+00:00", lasts="20h")
    return night.runs[0]


def test_a_served_run_cleans_up_at_its_deadline() -> None:
    run = served()
    assert (run.state, run.states) == ("FAILED", ENDED)


@pytest.mark.parametrize("ttl", ["10m", "8h"])
def test_a_dead_letter_of_a_served_run_expires_and_the_run_ends(ttl: str) -> None:
    flow = Flow("cluster", schedule="0 1 * * *", dead_letter_ttl=ttl)
    flow.task(name="work")(int)
    flow.task(name="delete", after="work", rule="all_done")(int)
    night = play_schedule(
        flow, at="2026-01-05T00:30+00:00", lasts="20h", faults=[error("work", PermanentError("schema"))]
    )
    (run,) = night.runs
    assert (run.state, run.states) == ("FAILED", {"work": "FAILED", "delete": "SUCCESS"})
