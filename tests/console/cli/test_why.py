"""``redrive why`` and ``redrive undo``: what the keys i and z of the console do, from the shell."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, PermanentError, RetryPolicy
from support.commands import run_redrive


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The file of a blocked run: ``load`` waits for ``clean``, which waits for a dead letter."""
    flow = Flow("etl")

    def fail() -> None:
        raise PermanentError("fix")

    flow.task(name="extract")(fail)
    flow.task(name="clean", after=["extract"])(lambda: None)
    flow.task(name="load", after=["clean"])(lambda: None)
    Executor(run_id="night", flow=flow, state=tmp_path / "etl.db").run()
    return tmp_path / "etl.db"


def test_why_names_what_holds_a_task_down_to_the_task_that_waits_for_a_human(state: Path) -> None:
    place, first, second, *_ = run_redrive("why", state, "load").stdout.splitlines()
    assert place == f"etl night in {state}"
    assert first.startswith("load PENDING: ")
    assert second.startswith("  extract DEAD_LETTER: ") and second.endswith(" · fix")
    (value,) = map(json.loads, run_redrive("why", state, "load", "--json").stdout.splitlines())
    assert [link["task"] for link in value["chain"]] == ["load", "extract"] and value["state"] == "PENDING"


def test_why_writes_a_state_once_and_an_exit_status_in_words(tmp_path: Path) -> None:
    flow = Flow("night")
    flow.command("vacuum", "exit 3", timeout=30, retry=RetryPolicy(max_attempts=1))
    Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run()
    _, line, *_ = run_redrive("why", tmp_path / "s.db", "vacuum").stdout.splitlines()
    assert line.startswith("vacuum FAILED: 1 of 1 attempts are spent, the last by exit status 3; requeue it")


def test_why_of_no_task_is_of_all_that_wait_and_an_unknown_one_is_refused(state: Path) -> None:
    of_all = run_redrive("why", state).stdout
    assert {line.split()[0] for line in of_all.splitlines()[1:] if line[0] != " "} >= set(tasks(state)) - {"SUCCESS"}
    assert "run night has no task 'lod'" in run_redrive("why", state, "lod").stderr


def test_undo_takes_back_the_last_act_and_then_the_one_before(state: Path) -> None:
    for task in ("extract", "clean"):
        assert run_redrive("skip", state, task, "--reason", "no data").returncode == 0
    assert tasks(state) == {"extract": "SKIPPED", "clean": "SKIPPED", "load": "PENDING"}
    assert "would take back: skip by " in run_redrive("undo", state, "--dry-run").stdout
    assert run_redrive("undo", state).returncode == 0
    assert tasks(state)["clean"] != "SKIPPED" and tasks(state)["extract"] == "SKIPPED"
    assert run_redrive("undo", state).returncode == 0
    assert tasks(state) == {"extract": "DEAD_LETTER", "clean": "PENDING", "load": "PENDING"}
    assert "] extract DEAD_LETTER again, undone by " in run_redrive("events", state).stdout
    done = run_redrive("undo", state)
    assert done.returncode == 2 and "there is no act in this file that can be taken back" in done.stderr


def test_a_preview_of_undo_says_that_it_is_too_late(state: Path) -> None:
    run_redrive("skip", state, "extract", "--reason", "no data")
    with sqlite3.connect(state) as connection:
        columns = "run_id, at, kind, task, old, new, data"
        moved = f"INSERT INTO event ({columns}) SELECT run_id, at, 'task', 'extract', '', '', '{{}}' FROM event LIMIT 1"
        connection.execute(moved)
    for words in (["--dry-run"], []):
        undo = run_redrive("undo", state, *words)
        assert undo.returncode == 1 and "too late: extract is SKIPPED now" in undo.stderr


def test_a_pause_stands_below_the_tasks_and_the_reasons_for_their_waits(state: Path) -> None:
    run_redrive("pause", state)
    for command in ("tasks", "why"):
        below = run_redrive(command, state).stdout.splitlines()[-2]
        assert below.startswith("paused for ") and below.endswith(f"no task starts: redrive unpause {state}@night")


def tasks(state: Path) -> dict[str, str]:
    lines = map(json.loads, run_redrive("tasks", state, "--json").stdout.splitlines())
    return {one["name"]: one["state"] for one in lines}


def test_undo_advises_no_resume_of_a_run_that_has_ended_or_waits_again(state: Path, tmp_path: Path) -> None:
    flow = Flow("short")
    flow.task(name="load")(lambda: None)
    Executor(run_id="r", flow=flow, state=tmp_path / "short.db").run()
    for path, task in ((tmp_path / "short.db", "load"), (state, "extract")):
        requeued = run_redrive("requeue", path, task, "--reason", "again", "--yes")
        assert "go on with: redrive resume" in requeued.stderr
        undone = run_redrive("undo", path)
        assert undone.returncode == 0 and "resume" not in undone.stderr, undone


def test_why_indents_two_tasks_that_hold_one_alike(tmp_path: Path) -> None:
    flow = Flow("etl")
    for name in ("orders", "rates"):
        flow.task(name=name)(_refuse)
    flow.task(name="report", after=["orders", "rates"])(lambda: None)
    Executor(run_id="night", flow=flow, state=tmp_path / "etl.db").run()
    _, report, *holders = run_redrive("why", tmp_path / "etl.db", "report").stdout.splitlines()
    assert report == "report PENDING: held by orders and rates"
    assert [line.partition(" DEAD")[0] for line in holders[:2]] == ["  orders", "  rates"]


def _refuse() -> None:
    raise PermanentError("fix")
