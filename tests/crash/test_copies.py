"""A copy of a state file whose executor lives: it is shown as a copy, and nothing in it runs or is changed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import run_redrive, start_redrive
from support.waiting import wait_until

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow, RetryPolicy

flow = Flow("copied", retry=RetryPolicy(base=0.01))

@flow.task(timeout=300)
def gate():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "flow.py").write_text(FLOW)
    started = start_redrive("run", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--run-id", "r", "--plain")
    assert started.stdout is not None
    assert "gate RUNNING" in started.stdout.readline()
    yield started
    if started.poll() is None:
        started.kill()
        started.communicate()


@pytest.fixture(params=["all files", pytest.param("the file alone", marks=pytest.mark.long)])
def copied(executor: subprocess.Popen[str], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """As ``cp state.db*`` makes it, or a backup by SQLite."""
    folder = tmp_path / "copies"
    folder.mkdir()
    if request.param == "all files":
        for name in ("state.db", "state.db-wal", "state.db-shm", "state.db.lock"):
            shutil.copy2(tmp_path / name, folder / name)
    else:
        with (
            closing(sqlite3.connect(tmp_path / "state.db")) as source,
            closing(sqlite3.connect(folder / "state.db")) as target,
        ):
            source.backup(target)
        (folder / "state.db").chmod(0o600)
    return folder / "state.db"


def sentence(executor: subprocess.Popen[str], folder: Path) -> str:
    return f"a copy of {folder / 'state.db'}, whose executor (pid {executor.pid}) lives"


def events(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM event").fetchall()


@pytest.mark.long
def test_lists_call_it_a_copy_and_offer_no_resume(
    executor: subprocess.Popen[str], copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("runs", "tasks", "inbox", "why", "doctor"):
        shown = run_redrive(command, *(["gate"] if command == "why" else []), "--state", copied).stdout
        assert sentence(executor, tmp_path) in shown, (command, shown)
        assert "redrive resume" not in shown and "redrive abandon" not in shown, (command, shown)
    monkeypatch.setenv("REDRIVE_STATE", str(copied))
    for command in ("fleet", "inbox"):
        shown = run_redrive(command).stdout
        assert "copy" in shown and "redrive resume" not in shown, (command, shown)


def test_nothing_runs_and_no_act_is_applied_without_a_word(
    executor: subprocess.Popen[str], copied: Path, tmp_path: Path
) -> None:
    before = events(copied)
    for words in (
        ("resume", copied, "--plain"),
        ("run", tmp_path / "flow.py", "--state", copied, "--run-id", "r", "--plain"),
        ("run", tmp_path / "flow.py", "--state", copied, "--plain"),
        ("skip", "gate", "--state", copied, "--reason", "x"),
        ("requeue", "gate", "--state", copied, "--reason", "x"),
        ("pause", copied, "--reason", "x"),
    ):
        done = run_redrive(*words)
        assert done.returncode == 2 and sentence(executor, tmp_path) in done.stderr, (words, done)
    assert events(copied) == before


@pytest.mark.long
def test_with_a_word_it_goes_on_and_the_original_as_well(
    executor: subprocess.Popen[str], copied: Path, tmp_path: Path
) -> None:
    second = start_redrive("resume", copied, "--copy", "--plain")
    assert second.stdout is not None
    wait_until(lambda: "gate RUNNING" in second.stdout.readline())
    (tmp_path / "go").touch()
    for process in (second, executor):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output


def test_a_copy_whose_original_was_killed_is_resumed_as_a_moved_file_is(
    executor: subprocess.Popen[str], copied: Path, tmp_path: Path
) -> None:
    executor.send_signal(signal.SIGKILL)
    executor.communicate()
    wait_until(lambda: "redrive resume" in run_redrive("runs", copied).stdout)
    (tmp_path / "go").touch()
    done = run_redrive("resume", copied, "--plain")
    assert done.returncode == 0, done.stderr


def test_a_copy_whose_original_has_ended_is_not_run_a_second_time(
    executor: subprocess.Popen[str], copied: Path, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    executor.communicate(timeout=60)
    why = f"a copy of {tmp_path / 'state.db'}, where the run has ended"
    listed = run_redrive("runs", copied).stdout
    assert why in listed and "redrive resume" not in listed
    before = events(copied)
    done = run_redrive("resume", copied, "--plain")
    assert done.returncode == 2 and why in done.stderr and events(copied) == before


@pytest.mark.long
def test_of_an_executor_of_another_host_nobody_knows_whether_it_lives(
    executor: subprocess.Popen[str], copied: Path, tmp_path: Path
) -> None:
    executor.kill()
    executor.communicate()
    lock = copied.with_name("state.db.lock")
    shutil.copy2(tmp_path / "state.db.lock", lock)
    lock.write_text(re.sub('"host": "[^"]*"', '"host": "far"', lock.read_text()))
    os.utime(lock, (0, 0))
    listed = run_redrive("runs", copied).stdout
    assert f"(pid {executor.pid}); if it is gone: redrive resume" in listed and "executor on far since " in listed
