"""A run whose threads ignore their cancel token goes on: their processes are killed, and the slots come back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.runner.runner import Runner
from support.waiting import wait_until

ONCE = RetryPolicy(max_attempts=1)


def rows(state: Path, query: str) -> list[Any]:
    with sqlite3.connect(state) as connection:
        return connection.execute(query).fetchall()


def killed(state: Path) -> list[dict[str, Any]]:
    found = [json.loads(data) for (data,) in rows(state, "SELECT data FROM event WHERE kind = 'executor' ORDER BY seq")]
    return [data for data in found if data["what"] == "threads-killed"]


def stubborn_flow(count: int, **options: Any) -> Flow:
    flow = Flow("stubborn")
    for number in range(count):

        @flow.task(name=f"stubborn_{number}", isolation="thread", timeout=0.2, grace_seconds=0.1, retry=ONCE, **options)
        def stubborn() -> None:
            import time

            while True:
                time.sleep(600)

    return flow


def test_tasks_that_hold_every_slot_do_not_hold_the_run(tmp_path: Path) -> None:
    flow = stubborn_flow(2)

    @flow.task(after=["stubborn_0", "stubborn_1"], rule="all_done")
    def after_them() -> int:
        return 1

    state = tmp_path / "state.db"
    assert Executor(run_id="r", flow=flow, state=state, max_parallel=2).run() == "FAILED"
    assert dict(rows(state, "SELECT name, state FROM task")) == {
        "stubborn_0": "FAILED",
        "stubborn_1": "FAILED",
        "after_them": "SUCCESS",
    }
    assert {task for data in killed(state) for task in data["leaked"]} == {"stubborn_0", "stubborn_1"}


def test_a_neighbour_that_is_lost_for_others_to_go_on_pays_nothing_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "patience_seconds", 0.2)
    flow, began, go_on = stubborn_flow(1, after=["begins"]), tmp_path / "began", tmp_path / "go-on"

    @flow.task
    def begins() -> None:
        wait_until(began.exists)

    @flow.task(isolation="thread", retry=ONCE)
    def neighbour() -> int:
        import time

        began.touch()
        while not go_on.exists():
            time.sleep(0.01)
        return 1

    @flow.task(after=["stubborn_0"], rule="all_done")
    def waits_for_a_slot() -> None:
        go_on.touch()

    state = tmp_path / "state.db"
    Executor(run_id="r", flow=flow, state=state, max_parallel=2).run()
    assert rows(state, "SELECT state, attempt, failures, losses FROM task WHERE name = 'neighbour'") == [
        ("SUCCESS", 2, 0, 0)
    ]
    assert rows(state, "SELECT outcome FROM attempt WHERE name = 'neighbour' ORDER BY attempt") == [
        ("lost",),
        ("success",),
    ]
    (event,) = killed(state)
    assert (event["leaked"], event["lost"]) == (["stubborn_0"], ["neighbour"])
