"""Approvals at night: nobody answers, the machine dies, and the next night begins."""

from __future__ import annotations

from redrive.engine import Flow
from redrive.engine.testing import crash, play, play_schedule


def asking(schedule: str | None = None) -> Flow:
    flow = Flow("release", schedule=schedule)
    flow.task(name="build")(int)
    flow.approval("ok", after="build", timeout="3h")
    flow.task(name="publish", after="ok")(int)
    return flow


def test_a_served_run_fails_at_the_timeout_of_its_approval_and_holds_no_executor_until_then() -> None:
    """Two runs wait at a time, which one executor that stays would not let begin."""
    night = play_schedule(asking("0 * * * *"), at="2026-01-05T22:30+00:00", lasts="5h")
    first = night.runs[0]
    assert [run.run_id[11:16] for run in night.runs] == ["23:00", "00:00", "01:00", "02:00", "03:00"]
    assert first.state == "FAILED"
    assert any("ok FAILED nobody has approved it by 02:00" in line for line in first.journal)
    assert night.runs[1].state == "FAILED" and night.runs[4].state == "BLOCKED"
    assert not any(line for run in night.runs for line in run.journal if "publish RUNNING" in line)


def test_a_machine_that_is_off_at_the_timeout_fails_it_when_it_is_back() -> None:
    faults = [crash(at="2h", lasts="6h")]
    night = play_schedule(asking("0 23 * * *"), at="2026-01-05T22:30+00:00", lasts="10h", faults=faults)
    (run,) = night.runs
    assert run.state == "FAILED"
    assert any("nobody has approved it by" in line for line in run.journal)


def test_a_crash_while_it_waits_changes_nothing() -> None:
    night = play(asking(), faults=[crash("executor", at="1h", lasts="30m")])
    assert night.state == "FAILED" and night.starts("publish") == 0
    assert any("ok FAILED nobody has approved it by" in line for line in night.journal)
