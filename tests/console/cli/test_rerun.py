"""Runs once more: ``redrive rerun``, ``backfill --again``, and a requeue while a backfill goes on."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.commands import run_redrive, start_redrive

FLOW = """
from pathlib import Path
from redrive.engine import Flow, PermanentError
flow = Flow("daily", schedule="0 2 * * *", params={"rows": 7})
@flow.task(timeout=30)
def load(logical_time, rows):
    print(logical_time, rows)
    if Path(__file__).with_name("broken").exists() and "-18T" in logical_time:
        raise PermanentError("no")
@flow.task(timeout=60, after=[load])
def publish(logical_time):
    import time
    while Path(__file__).with_name("hold").exists() and "-19T" in logical_time:
        time.sleep(0.05)
"""
DATES = ("--from", "2026-11-18", "--to", "2026-11-19", "--state", "s.db")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "daily.py").write_text(FLOW)
    return tmp_path


def redrive(folder: Path, *words: object, code: int = 0) -> CompletedProcess[str]:
    done = run_redrive(*words, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def runs_of(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        return connection.execute("SELECT run_id, state FROM run ORDER BY started_at").fetchall()


def slots_of(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        return [run_id for (run_id,) in connection.execute("SELECT run_id FROM slot ORDER BY logical_time")]


@pytest.mark.long
def test_dates_that_succeeded_run_again_on_request(folder: Path) -> None:
    redrive(folder, "backfill", "daily.py", *DATES)
    first = slots_of(folder)
    assert redrive(folder, "backfill", "daily.py", *DATES).stdout.count("RUNNING") == 0
    dry = redrive(folder, "backfill", "daily.py", *DATES, "--again", "--dry-run").stdout
    assert dry.count("to run again, now SUCCESS: ") == 2
    assert "2 to run" in dry
    redrive(folder, "backfill", "daily.py", *DATES, "--again")
    assert slots_of(folder) == [f"{run_id}-2" for run_id in first]
    assert [state for _, state in runs_of(folder)] == ["SUCCESS"] * 4


@pytest.mark.long
def test_dates_of_deleted_runs_are_known(folder: Path) -> None:
    redrive(folder, "backfill", "daily.py", *DATES)
    redrive(folder, "prune", "s.db", "--keep", "0")
    assert len(runs_of(folder)) == 1
    dry = redrive(folder, "backfill", "daily.py", *DATES, "--dry-run").stdout
    assert dry.count("SUCCESS: ") == 2
    assert dry.count("(deleted)") == 1
    redrive(folder, "backfill", "daily.py", *DATES, "--again")
    assert len(runs_of(folder)) == 3


@pytest.mark.long
def test_a_rerun_has_the_parameters_and_the_time_of_the_run(folder: Path) -> None:
    redrive(folder, "backfill", "daily.py", *DATES, "--param", "rows=9")
    old = slots_of(folder)[0]
    redrive(folder, "rerun", f"s.db@{old}", "--plain")
    assert slots_of(folder)[0] == f"{old}-2"
    logs = [redrive(folder, "logs", "s.db", "load", "--run", run).stdout for run in (old, f"{old}-2")]
    assert logs[0] == logs[1] == "2026-11-18T02:00:00+00:00 9\n"
    redrive(folder, "rerun", f"s.db@{old}-2", "--plain", "--param", "rows=5")
    assert redrive(folder, "logs", "s.db", "load").stdout == "2026-11-18T02:00:00+00:00 5\n"


def test_a_rerun_of_a_run_by_hand_is_a_run_by_hand(folder: Path) -> None:
    redrive(folder, "run", "daily.py", "--plain", "--state", "s.db", "--run-id", "r", "--param", "rows=3")
    redrive(folder, "rerun", "s.db@r", "--quiet")
    assert slots_of(folder) == []
    assert redrive(folder, "logs", "s.db", "load").stdout.endswith(" 3\n")


def test_only_a_run_that_has_ended_runs_again(folder: Path) -> None:
    (folder / "broken").touch()
    redrive(folder, "backfill", "daily.py", *DATES, code=3)
    blocked = slots_of(folder)[0]
    refused = redrive(folder, "rerun", f"s.db@{blocked}", "--plain", code=1)
    assert refused.stderr == f"redrive: run {blocked!r} has not ended: resume it, or abandon it first\n"
    assert "there is no run 'gone'" in redrive(folder, "rerun", "s.db@gone", code=2).stderr


@pytest.mark.long
def test_a_requeue_during_a_backfill_lets_the_backfill_go_on_with_the_run(folder: Path) -> None:
    (folder / "broken").touch()
    (folder / "hold").touch()
    backfill = start_redrive("backfill", "daily.py", *DATES, cwd=folder)
    assert backfill.stdout is not None
    for line in backfill.stdout:
        if "publish RUNNING" in line:  # of the second day: the first one waits for a human
            break
    blocked = slots_of(folder)[0]
    (folder / "broken").unlink()
    redrive(folder, "requeue", "s.db", "--run", blocked, "load", "--reason", "repaired")
    (folder / "hold").unlink()
    rest, _ = backfill.communicate(timeout=60)
    assert backfill.returncode == 0, rest
    assert runs_of(folder) == [(run_id, "SUCCESS") for run_id in slots_of(folder)]
    values = [
        json.loads(line) for line in redrive(folder, "tasks", "s.db", "--run", blocked, "--json").stdout.splitlines()
    ]
    assert {value["state"] for value in values} == {"SUCCESS"}


@pytest.mark.long
def test_the_latest_run_is_repeated_without_its_name(folder: Path) -> None:
    redrive(folder, "rerun", "s.db", "--plain", code=2)
    redrive(folder, "run", "daily.py", "--run-id", "a", "--state", "s.db", "--param", "rows=1", "--quiet")
    redrive(folder, "run", "daily.py", "--run-id", "b", "--state", "s.db", "--param", "rows=2", "--quiet")
    redrive(folder, "rerun", "s.db", "--quiet")
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        rows = [json.loads(params)["rows"] for (params,) in connection.execute("SELECT params FROM run ORDER BY rowid")]
    assert rows == [1, 2, 2]
