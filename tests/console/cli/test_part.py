"""A part of a flow: ``redrive run --only``, ``--from``, ``--until`` and ``--results-of``."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from redrive.engine.executor import host
from support.commands import run_redrive
from support.waiting import wait_until

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow
flow = Flow("nightly")
@flow.task(timeout=30)
def extract():
    return [1, 2, 3]
@flow.map(over=extract, timeout=30)
def load(item):
    return item * 10
@flow.task(after=[load], timeout=30)
def clean(load):
    return sum(load)
@flow.task(after=[clean], timeout=30, max_attempts=1)
def report(clean):
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.05)
    if Path(__file__).with_name("broken").exists():
        raise ValueError("no paper")
    print("total", clean)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nightly.py").write_text(FLOW)
    return tmp_path


def redrive(folder: Path, *words: object, code: int = 0) -> CompletedProcess[str]:
    done = run_redrive(*words, "--state", "s.db", cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run(folder: Path, *words: object, code: int = 0) -> CompletedProcess[str]:
    return redrive(folder, "run", "nightly.py", "--plain", "--output", *words, code=code)


def states_of(folder: Path) -> dict[str, tuple[str, str | None]]:
    latest = "(SELECT run_id FROM run ORDER BY started_at DESC LIMIT 1)"
    sql = f"SELECT name, state, skip_cause FROM task WHERE run_id = {latest} ORDER BY position"
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        return {name: (state, cause) for name, state, cause in connection.execute(sql)}


def test_one_task_runs_with_the_results_of_an_earlier_run(folder: Path) -> None:
    run(folder, "--run-id", "A")
    done = run(folder, "--only", "report", "--results-of", "latest", "--run-id", "B")
    assert "report | total 60" in done.stdout and done.stdout.count("RUNNING") == 1
    assert states_of(folder) == {
        "extract": ("SKIPPED", "imported"),
        "load": ("SKIPPED", "imported"),
        "clean": ("SKIPPED", "imported"),
        "report": ("SUCCESS", None),
    }
    said = "not in this part of the flow: its result is that of run A"
    assert f"clean SKIPPED: {said}" in redrive(folder, "why", "clean").stdout
    part = "part of the flow: --only report --results-of A"
    assert part in redrive(folder, "tasks").stdout.splitlines()[0]
    assert part in redrive(folder, "runs").stdout
    rows = [json.loads(line) for line in redrive(folder, "tasks", "--json").stdout.splitlines()]
    assert [row["error"] for row in rows] == [said] * 3 + [None]
    assert rows[2]["result"] == 60
    redrive(folder, "report", "-o", folder / "x.html")
    assert part in (folder / "x.html").read_text()


def test_a_rerun_of_a_part_names_the_command_and_does_not_run_the_whole_flow(folder: Path) -> None:
    run(folder, "--run-id", "A")
    run(folder, "--only", "report", "--results-of", "latest", "--run-id", "B")
    refused = redrive(folder, "rerun", "B", code=1).stderr
    assert "run 'B' took a part of the flow" in refused
    assert refused.rstrip().endswith("--only report --results-of A")


def test_a_part_needs_what_it_leaves_out(folder: Path) -> None:
    refused = run(folder, "--only", "report", code=2)
    assert refused.stderr == (
        "redrive: 'report' needs the result of 'clean', which is not in this part of the flow: add --results-of latest,"
        " or start with --from clean\n"
    )
    assert not (folder / "s.db").exists()
    missing = run(folder, "--only", "report", "--results-of", "latest", code=2)
    assert "there is no earlier run of flow 'nightly'" in missing.stderr
    run(folder, "--run-id", "A")
    assert "there is no run 'Z' of flow" in run(folder, "--only", "report", "--results-of", "Z", code=2).stderr
    assert "name the part" in run(folder, "--results-of", "A", code=2).stderr
    assert "exists: a part" in run(folder, "--only", "report", "--results-of", "A", "--run-id", "A", code=1).stderr


def test_until_a_task_and_from_there_on(folder: Path) -> None:
    run(folder, "--until", "clean", "--run-id", "A")
    assert states_of(folder)["report"] == ("SKIPPED", "part")
    assert "report | total 60" in run(folder, "--from", "report", "--results-of", "A").stdout


def test_a_map_task_runs_again_with_what_follows(folder: Path) -> None:
    run(folder, "--run-id", "A")
    (folder / "nightly.py").write_text(FLOW.replace("item * 10", "item * 100"))
    done = run(folder, "--from", "load", "--results-of", "A")
    assert "report | total 600" in done.stdout
    assert states_of(folder)["extract"] == ("SKIPPED", "imported")
    assert states_of(folder)["load[0]"] == ("SUCCESS", None)
    refused = run(folder, "--only", "load[1]", "--results-of", "A", code=2).stderr
    assert "name 'load', or requeue the child in its run" in refused


@pytest.mark.long
def test_the_children_have_the_keys_of_the_imported_list(folder: Path) -> None:
    flow = FLOW.replace("@flow.map(over=extract,", "@flow.map(over=extract, key=lambda item: f'no {item}',")
    (folder / "nightly.py").write_text(flow)
    run(folder, "--run-id", "A")
    run(folder, "--from", "load", "--results-of", "A")
    assert {"load[no 1]", "load[no 2]", "load[no 3]"} <= states_of(folder).keys()


@pytest.mark.long
def test_a_killed_executor_leaves_the_part_as_it_is(folder: Path) -> None:
    run(folder, "--run-id", "A")
    (folder / "hold").touch()
    options = {"only": ["report"], "results_of": "A"}
    flow, state = str(folder / "nightly.py"), str(folder / "s.db")
    pid = host.spawn(flow=flow, state=state, run_id="B", options=options)
    wait_until(lambda: states_of(folder)["report"][0] == "RUNNING")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (folder / "hold").unlink()
    resumed = run_redrive("resume", state, "--plain", "--output", cwd=folder)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "report | total 60" in resumed.stdout
    assert [cause for _, cause in states_of(folder).values()] == ["imported"] * 3 + [None]


@pytest.mark.long
def test_the_success_of_a_part_does_not_stand_for_the_night(folder: Path) -> None:
    """The failed night stays an alarm: a part of the flow that succeeded later has not done its work."""
    (folder / "broken").touch()
    run(folder, "--run-id", "night", code=1)
    (folder / "broken").unlink()
    run(folder, "--until", "clean")
    assert run_redrive("inbox", "--quiet", "s.db", cwd=folder).returncode == 1
    run(folder)
    assert run_redrive("inbox", "--quiet", "s.db", cwd=folder).returncode == 0
