"""``redrive prune``: whole ended runs go, in steps; what people still need stays; the space comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, FlowError, PermanentError
from redrive.engine.statefile import pruning
from redrive.engine.statefile.pruning import RetentionRule, prune_step
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database
from support.commands import run_redrive, start_redrive
from support.marks import for_each

TABLES = ("task", "attempt", "edge", "event", "log", "quarantine", "page_task")
DAY_US = 86_400 * 1_000_000


def flow_of(text: str = "x" * 2000, *, fails: bool = False) -> Flow:
    flow = Flow("nightly")

    @flow.task(timeout=30)
    def load() -> None:
        print(text)
        if fails:
            raise PermanentError("no column price")

    flow.command("send", "echo sent", after=[load], timeout=30)
    return flow


@pytest.fixture(scope="module")
def folder_of_five_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("five")
    for number in range(5):
        assert Executor(run_id=f"r{number}", flow=flow_of(), state=folder / "s.db").run() == "SUCCESS"
    return folder


@pytest.fixture
def state(folder_of_five_runs: Path, tmp_path: Path) -> Path:
    """Five ended runs, in a file of this test."""
    shutil.copytree(folder_of_five_runs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "s.db"


def rows_of(state: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(state)) as connection:
        return connection.execute(sql, values).fetchall()


def run_ids(state: Path) -> list[object]:
    return [run_id for (run_id,) in rows_of(state, "SELECT run_id FROM run ORDER BY started_at")]


def assert_whole(state: Path) -> None:
    """The file is sound, and every row belongs to a run that is there, or to one that is being deleted."""
    assert rows_of(state, "PRAGMA integrity_check") == [("ok",)]
    for table in TABLES:
        orphans = f"SELECT run_id FROM {table} WHERE run_id NOT IN (SELECT run_id FROM run)"
        orphans += " AND run_id NOT IN (SELECT run_id FROM pruned_run)"
        assert rows_of(state, orphans + (" AND kind <> 'note'" if table == "event" else "")) == [], table


@pytest.mark.long
def test_the_latest_runs_stay_and_the_file_shrinks(state: Path) -> None:
    before = os.path.getsize(state)
    dry = run_redrive("prune", state, "--keep", "2", "--dry-run")
    assert dry.stdout.splitlines()[:3] == ["would delete r0", "would delete r1", "would delete r2"]
    assert len(run_ids(state)) == 5
    done = run_redrive("prune", state, "--keep", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 runs deleted, ")
    assert " kB freed" in done.stdout
    assert run_ids(state) == ["r3", "r4"]
    assert_whole(state)
    assert rows_of(state, "SELECT * FROM pruned_run") == []
    for table in TABLES:
        assert rows_of(state, f"SELECT run_id FROM {table} WHERE run_id < 'r3'") == [], table
    assert os.path.getsize(state) < before
    assert rows_of(state, "PRAGMA freelist_count") == [(0,)]
    again = run_redrive("prune", state, "--keep", "2")
    assert again.stdout.startswith("0 runs deleted, ")


def test_of_several_files_one_has_to_be_named(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    files = [tmp_path / "states/redrive" / name for name in ("one.db", "two.db")]
    files[0].parent.mkdir(parents=True)
    for file in files:
        shutil.copy(state, file)
    done = run_redrive("prune", "--keep", "0")
    assert done.returncode == 2 and "2 state files are in the default place: name one" in done.stderr
    assert [len(run_ids(file)) for file in files] == [5, 5]


@pytest.mark.long
def test_runs_that_ended_lately_stay(state: Path) -> None:
    with closing(sqlite3.connect(state)) as connection, connection:
        connection.execute("UPDATE run SET ended_at = ended_at - ? WHERE run_id IN ('r0', 'r2')", (40 * DAY_US,))
    assert json.loads(run_redrive("prune", state, "--keep", "30d", "--json").stdout)["deleted"] == ["r0", "r2"]
    assert run_ids(state) == ["r1", "r3", "r4"]
    assert json.loads(run_redrive("prune", state, "--keep", "0", "--json").stdout)["deleted"] == ["r1", "r3"]
    assert run_ids(state) == ["r4"]


@pytest.mark.parametrize("keep", ["", "-1", "lots", "1.5"])
def test_a_wrong_retention_is_refused(state: Path, keep: str) -> None:
    done = run_redrive("prune", state, "--keep", keep)
    if keep == "1.5":  # seconds
        assert done.returncode == 0
        return
    assert done.returncode == 2
    assert "--keep" in done.stderr
    assert len(run_ids(state)) == 5


def test_an_unfinished_run_its_history_and_notes_stay(tmp_path: Path) -> None:
    state, failing = tmp_path / "s.db", flow_of(fails=True)
    for run_id in ("r0", "r1", "r2"):
        Executor(run_id=run_id, flow=failing, state=state).run()
    cause = rows_of(state, "SELECT fingerprint_loose FROM attempt WHERE run_id = 'r0' AND name = 'load'")[0][0]
    note = ("note", "the vendor drops the column", "--fingerprint", cause, "--state", state, "--run", "r0")
    assert run_redrive(*note).returncode == 0
    for run_id in ("r0", "r1"):  # decided, so that these two end
        words = ("skip", "--state", state, "--run", run_id, "load", "--reason", "vendor told")
        assert run_redrive(*words).returncode == 0
        Executor(run_id=run_id, flow=flow_of(), state=state).run()
    Executor(run_id="r3", flow=flow_of(), state=state).run()
    assert run_redrive("prune", state, "--keep", "0").stdout.splitlines()[1:] == [
        "kept: 1 run with an earlier failure of a cause in the inbox"
    ]
    assert run_ids(state) == ["r1", "r2", "r3"]  # the history of r2, what is blocked, the latest
    inbox = run_redrive("inbox", state, "--run", "r2").stdout
    assert "the vendor drops the column" in inbox
    assert "vendor told" in inbox
    assert_whole(state)


def test_rows_in_quarantine_are_not_deleted(tmp_path: Path) -> None:
    state = tmp_path / "s.db"
    with closing(database.open_for_writing(state)) as connection, connection:
        for number in range(3):
            connection.execute(
                "INSERT INTO run (run_id, dag_name, started_at, ended_at, state) VALUES (?, 'f', ?, ?, 'SUCCESS')",
                (f"r{number}", number, number + 1),
            )
        connection.execute(
            "INSERT INTO quarantine (run_id, name, attempt, row_key, state, at) VALUES ('r0', 'a', 1, '7', 'held', 0)"
        )
    done = run_redrive("prune", state, "--keep", "0")
    assert "kept: 1 run with quarantined rows or dead letters to decide" in done.stdout
    assert run_ids(state) == ["r0", "r2"]


LIVING = """
from redrive.engine import Flow
flow = Flow("nightly")
flow.command("a", "while ! test -e go; do sleep 0.05; done", timeout=60)
"""


def test_a_living_executor_deletes_old_runs_and_goes_on(state: Path) -> None:
    folder = state.parent
    (folder / "flow.py").write_text(LIVING)
    running = start_redrive("run", "flow.py", "--plain", "--state", "s.db", "--run-id", "live", cwd=folder)
    assert running.stdout is not None
    assert "a RUNNING" in running.stdout.readline()
    done = run_redrive("prune", state, "--keep", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 runs deleted")
    (folder / "go").touch()
    rest, _ = running.communicate(timeout=60)
    assert running.returncode == 0, rest
    assert run_ids(state) == ["live"]
    assert_whole(state)


KILLED = """
import os, sys
from redrive.engine.statefile import pruning
from redrive.engine.store import database
from redrive.engine.statefile.open_writing import write_transaction
from redrive.engine.statefile.transitions import Transaction
pruning.ROWS_MAX = 3
connection = database.open_for_writing(sys.argv[1])
for _ in range(100):
    with write_transaction(connection):
        pruning.prune_step(Transaction(connection, 10**18), pruning.RetentionRule(runs=0))
    print("step", flush=True)
"""


@pytest.mark.long
def test_a_kill_between_two_steps_leaves_a_whole_file(state: Path, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(state)]
    for steps in (1, 4, 9):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pruning_process:
            assert pruning_process.stdout is not None
            for _ in range(steps):
                assert pruning_process.stdout.readline() == "step\n"
            pruning_process.send_signal(signal.SIGKILL)
        assert_whole(state)
        assert run_redrive("runs", state).returncode == 0
    # The name of a run that is half deleted can be used again.
    for run_id in [row[0] for row in rows_of(state, "SELECT run_id FROM pruned_run")] or ["r0"]:
        assert Executor(run_id=str(run_id), flow=flow_of(), state=state).run() == "SUCCESS"
    run_redrive("prune", state, "--keep", "0")
    assert_whole(state)
    assert rows_of(state, "SELECT * FROM pruned_run") == []


def test_a_step_is_bounded(tmp_path: Path) -> None:
    with closing(database.open_for_writing(tmp_path / "s.db")) as connection:
        connection.execute("BEGIN")
        for run in range(3):
            connection.execute(
                "INSERT INTO run (run_id, dag_name, started_at, ended_at, state) VALUES (?, 'f', ?, ?, 'SUCCESS')",
                (f"r{run}", run, run + 1),
            )
            for _ in range(5000):
                connection.execute("INSERT INTO event (at, kind, run_id) VALUES (0, 'task', ?)", (f"r{run}",))
        connection.execute("COMMIT")
        steps, left = 0, [3 * 5000]
        while True:
            connection.execute("BEGIN IMMEDIATE")
            step = prune_step(Transaction(connection, time.time_ns() // 1000), RetentionRule(runs=1))
            connection.execute("COMMIT")
            if step.is_last:
                break
            steps += 1
            (count,) = connection.execute("SELECT count(*) FROM event").fetchone()
            assert left[-1] - count <= pruning.ROWS_MAX
            left.append(count)
        assert left[-1] == 5000
        assert steps >= 10_000 // pruning.ROWS_MAX


SHORT = """
from redrive.engine import Flow
flow = Flow("nightly", retention=2)
flow.command("a", "echo hello", timeout=60)
"""


def test_a_flow_with_a_retention_deletes_old_runs_after_each_run(state: Path) -> None:
    folder = state.parent
    (folder / "flow.py").write_text(SHORT)
    for number in range(2):
        done = run_redrive("run", "flow.py", "--plain", "--state", "s.db", "--run-id", f"new{number}", cwd=folder)
        assert done.returncode == 0, done.stderr
    assert run_ids(state) == ["new0", "new1"]
    assert_whole(state)
    events = [json.loads(line) for line in run_redrive("events", state, "--json").stdout.splitlines()]
    messages = [event["data"]["answer"]["message"] for event in events if event["actor"] == "retention"]
    assert messages == ["4 runs deleted", "1 run deleted"]


@for_each("retention, kept", [("30d", (None, 2_592_000.0)), (7, (7, None)), ("7", (7, None)), (None, (None, None))])
def test_a_retention_is_a_duration_or_a_number_of_runs(
    retention: str | int | None, kept: tuple[object, object]
) -> None:
    flow = Flow("f", retention=retention)
    flow.command("a", "true")
    assert (flow.spec().retention_runs, flow.spec().retention_seconds) == kept
    with pytest.raises(FlowError, match="retention is a number of runs"):
        Flow("f", retention="a while")


def test_a_step_gives_many_pages_back(tmp_path: Path) -> None:
    with closing(database.open_for_writing(tmp_path / "s.db")) as connection:
        connection.execute("BEGIN")
        for _ in range(400):
            connection.execute(
                "INSERT INTO log (run_id, name, attempt, at, bytes, text) VALUES ('r', 'a', 1, 0, 1, ?)", ("x" * 4000,)
            )
        connection.execute("DELETE FROM log")
        connection.execute("COMMIT")
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        assert free > 100
        connection.execute("BEGIN IMMEDIATE")
        step = prune_step(Transaction(connection, time.time_ns() // 1000), RetentionRule(runs=1))
        connection.execute("COMMIT")
        assert step.freed_bytes >= free * 4096
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
