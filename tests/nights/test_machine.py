"""What happens to the machine: crashes, a full disk, no processes, no memory, a clock that is set, no power."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redrive.engine import Flow
from redrive.engine.testing import (
    clock_step,
    crash,
    disk_full,
    down,
    error,
    hang,
    in_turn,
    killed,
    not_started,
    play,
    play_schedule,
    slow,
)
from redrive.engine.testing.faults import Fault

from .flows import done, siblings


def nightly(schedule: str = "0 * * * *", timezone: str = "UTC", **options: Any) -> Flow:
    flow = Flow("nightly", schedule=schedule, timezone=timezone, **options)
    flow.task(name="load")(lambda ctx: str(ctx.logical_time))
    return flow


def hours(night) -> list[str]:
    return [run.run_id[11:16] for run in night.runs]


# --- Schedules -------------------------------------------------------------------------------------------------------


def test_an_hourly_flow_fails_at_two_and_is_well_at_three() -> None:
    faults = [error("load", PermissionError("locked"), at="02:00", lasts="30m")]
    night = play_schedule(nightly(), at="2026-01-05T22:30+00:00", lasts="6h", faults=faults)
    assert hours(night) == ["23:00", "00:00", "01:00", "02:00", "03:00", "04:00"]
    assert [run.state == "SUCCESS" for run in night.runs] == [True, True, True, False, True, True]
    assert [len(run.pages) for run in night.runs] == [0, 0, 0, 1, 0, 0]


@pytest.mark.long
def test_the_clock_is_set_forward_at_night() -> None:
    """29 March 2026, Europe: there is no half past two, and the run of that hour is not lost or doubled."""
    night = play_schedule(nightly("30 2 * * *", "Europe/Berlin"), at="2026-03-28T12:00+01:00", lasts="1d12h")
    assert len(night.runs) == 1 and night.state == "SUCCESS"


def test_the_clock_is_set_back_at_night() -> None:
    """25 October 2026, Europe: half past two comes twice, and the run starts once."""
    night = play_schedule(nightly("30 2 * * *", "Europe/Berlin"), at="2026-10-24T12:00+02:00", lasts="1d12h")
    assert len(night.runs) == 1


@pytest.mark.long
def test_the_machine_is_off_for_two_days_and_one_run_is_made_up_for() -> None:
    flow = nightly("0 2 * * *", misfire="one")
    night = play_schedule(flow, at="2026-01-05T22:00+00:00", lasts="4d", faults=[crash(at="10h", lasts="2d")])
    assert [run.run_id[:10] for run in night.runs] == ["2026-01-06", "2026-01-08", "2026-01-09"]


@pytest.mark.long
def test_the_machine_is_off_for_two_days_and_all_runs_are_made_up_for() -> None:
    flow = nightly("0 2 * * *", misfire="all")
    night = play_schedule(flow, at="2026-01-05T22:00+00:00", lasts="4d", faults=[crash(at="10h", lasts="2d")])
    assert [run.run_id[:10] for run in night.runs] == ["2026-01-06", "2026-01-07", "2026-01-08", "2026-01-09"]
    assert all(run.state == "SUCCESS" for run in night.runs)


def test_the_machine_is_off_in_the_middle_of_a_run() -> None:
    """The next service resumes it before it starts a new one."""
    flow = Flow("long", schedule="0 2 * * *")
    flow.task(name="extract")(int)
    flow.task(name="load", after="extract")(int)
    night = play_schedule(
        flow,
        at="2026-01-05T22:00+00:00",
        lasts="1d",
        durations={"extract": "10m", "load": "10m"},
        faults=[crash(at="4h15m", lasts="3h")],
    )
    assert [run.state for run in night.runs] == ["SUCCESS"]
    assert night.starts("extract") == 1 and night.starts("load") == 2


# --- Crashes ---------------------------------------------------------------------------------------------------------


def test_the_executor_is_killed_five_times_in_a_night() -> None:
    """No task is blamed, and nothing that was finished runs again."""
    faults = [crash(at=f"{10 * number + 5}s", lasts="1s") for number in range(5)]
    night = play(siblings(40), durations={f"t{number}": "4s" for number in range(40)}, faults=faults)
    assert night.state == "SUCCESS" and night.pages == []
    assert night.starts() <= 40 + 5 * 4


def test_every_process_of_the_machine_is_restarted() -> None:
    """Datadog, 8 March 2023, in small: an upgrade of systemd takes the processes that fork attempts."""
    faults = [crash("zygote", at=at) for at in ("15s", "40s")]
    night = play(siblings(12), durations={f"t{number}": "20s" for number in range(12)}, faults=faults)
    assert night.state == "SUCCESS" and night.pages == []


def test_a_long_task_is_not_started_twice() -> None:
    """Celery, issues 3270 and 5935: after the visibility timeout a second worker runs the task beside the first."""
    night = play(siblings(1), durations={"t0": "6h"}, faults=[crash(at="7h")], until="8h")
    assert night.state == "SUCCESS" and night.starts() == 1


def test_a_program_that_crashes_at_every_start_is_moved_aside() -> None:
    """Google Cloud, 12 June 2025: a null pointer at every start, without backoff. Here two starts, and one page."""
    night = play(siblings(10), faults=[killed("t4", 11)])
    assert done(night) == 9 and night.starts("t4") <= 3 and len(night.pages) == 1


def test_an_effect_is_not_repeated_after_a_crash_and_its_neighbours_are() -> None:
    """Knight Capital, 1 August 2012, in small: what has an effect outside happens once at most."""
    flow = siblings(3)
    flow.task(name="order", effect=True)(int)
    durations = {"order": "30s", **{f"t{number}": "30s" for number in range(3)}}
    night = play(flow, durations=durations, faults=[crash(at="10s")])
    assert night.starts("order") == 1 and night.states["order"] == "DEAD_LETTER"
    assert [night.starts(f"t{number}") for number in range(3)] == [2, 2, 2] and done(night) == 3


# --- Memory, processes, disk, clock ----------------------------------------------------------------------------------


def test_the_kernel_kills_a_task_for_its_memory() -> None:
    night = play(siblings(5), faults=[killed("t2", out_of_memory=True)])
    assert done(night) == 4 and night.states["t2"] == "DEAD_LETTER" and len(night.pages) == 1
    assert "memory" in (night.inbox[0].title + night.inbox[0].message).lower()


def test_the_machine_has_no_processes_left_for_ten_seconds() -> None:
    """AWS Kinesis, 25 November 2020: more threads than the machine allows; here nobody spends an attempt on that."""
    night = play(siblings(20), faults=[not_started("*", lasts="10s")])
    assert night.state == "SUCCESS" and night.pages == []


def test_the_disk_is_full_for_an_hour() -> None:
    """Nothing is lost, and nothing that was done runs again."""
    night = play(siblings(30), durations={f"t{number}": "1m" for number in range(30)}, faults=[disk_full("2m", "1h")])
    assert night.state == "SUCCESS" and night.starts() == 30


def test_the_clock_of_the_machine_jumps_by_a_day_and_back() -> None:
    """No wait becomes longer or shorter."""
    faults: list[Fault] = [
        down("bank", lasts="5m"),
        clock_step("1m", 86_400),
        clock_step("3m", -86_400),
    ]
    night = play(siblings(20, downstream="bank"), faults=faults)
    assert night.state == "SUCCESS" and max(night.start_seconds()) < 400


@pytest.mark.parametrize("step", [3600, -3600])
def test_what_runs_while_the_clock_is_set_has_run_as_long_as_it_has(step: int) -> None:
    flow = Flow("f")
    flow.task(name="load", expect_by="70m")(lambda: time.sleep(3600))
    night = play(flow, faults=[clock_step("20m", step)])
    ((lasts_us,),) = night.query("SELECT ended_at - started_at - waited_us FROM run")
    ((attempt_us, attempt_lasts_us),) = night.query("SELECT ended_at - started_at, duration_us FROM attempt")
    assert attempt_us == pytest.approx(attempt_lasts_us, abs=5e6)
    assert lasts_us == pytest.approx(3600e6, abs=5e6) and night.pages == []
    if step > 0:
        assert "30m" in night.why("load", "90m")


# --- Slow ------------------------------------------------------------------------------------------------------------


def test_every_task_takes_ten_times_as_long_for_half_an_hour() -> None:
    """Cloudflare, 2 July 2019: a regular expression takes all the CPU. With room in the timeouts nothing fails."""
    flow = siblings(20, timeout="5m")
    night = play(flow, durations={f"t{number}": "20s" for number in range(20)}, faults=[slow("*", 10, lasts="30m")])
    assert night.state == "SUCCESS" and night.starts() == 20


def test_a_task_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    night = play(siblings(1, timeout=10, grace_seconds=5), faults=[hang("t0", attempt=1, ignores_sigterm=True)])
    first, second = night.attempts("t0")
    assert first.sigkill_at and first.sigterm_at and first.sigkill_at - first.sigterm_at == 5_000_000
    assert night.state == "SUCCESS" and second.outcome == "success"


def test_a_body_gets_its_grace_to_clean_up() -> None:
    flow, cleaned = Flow("clean"), []

    @flow.task(timeout=10, grace_seconds=5, max_attempts=1)
    def work():
        try:
            time.sleep(60)
        finally:
            time.sleep(2)
            cleaned.append(time.monotonic())

    night = play(flow)
    (attempt,) = night.attempts("work")
    assert cleaned == [12.0] and attempt.sigkill_at is None
    assert attempt.duration_us == 12_000_000


def test_a_checkpoint_is_where_the_next_attempt_begins() -> None:
    flow, begun = Flow("load"), []

    @flow.task(timeout="1h", max_attempts=4)
    def load(ctx):
        begun.append(ctx.checkpointed)
        for part in range(ctx.checkpointed or 0, 10):
            time.sleep(600)
            ctx.checkpoint(part + 1)

    night = play(flow, faults=[crash(at="25m", lasts="1m")])
    assert night.state == "SUCCESS" and begun[0] is None and begun[-1] >= 2


def test_the_result_of_the_second_run_replaces_nothing_of_the_first() -> None:
    night = play(siblings(1), results={"t0": in_turn(1, 2, 3)}, runs=3)
    assert [run.result("t0") for run in night.runs] == [1, 2, 3]


def test_the_disk_is_full_when_the_executor_is_started_again() -> None:
    faults = [crash(at="30s", lasts="1s"), disk_full("20s", "5m")]
    night = play(siblings(8), durations={f"t{number}": "20s" for number in range(8)}, faults=faults)
    assert night.state == "SUCCESS" and max(night.start_seconds()) >= 320
