"""Somebody removes, moves or replaces the state file, its lock or its socket under a living executor."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.engine.agent import command_client, executor_request, executor_socket
from redrive.engine.domain.command import parse_command
from redrive.engine.statefile import lock_file
from redrive.engine.store import database
from support.commands import start_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

FLOW = """
import pathlib, time
from redrive.engine import Flow

flow = Flow("night")
go_on = pathlib.Path(__file__).with_name("go-on")

@flow.task
def long():
    while not go_on.exists():
        time.sleep(0.02)
    return 42

@flow.task(after=long)
def below(): ...
"""


class RunUnderWay:
    """A run under way, in a folder of its own: ``long`` runs until ``go_on``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "flow.py").write_text(FLOW)
        self.state = folder / "state.db"
        self.process = self._redrive("run", str(folder / "flow.py"), "--state", str(self.state), "--run-id", "r")
        self.read_until("long RUNNING")

    def _redrive(self, *words: str) -> subprocess.Popen[str]:
        return start_redrive(*words, "--plain")

    def read_until(self, word: str) -> str:
        """What it prints, up to the line that holds ``word``."""
        said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said += line
            if word in line:
                return said
        raise AssertionError(said)

    def go_on(self) -> None:
        (self.folder / "go-on").touch()

    def end(self) -> str:
        return self.process.communicate(timeout=120)[0]

    def resume(self) -> int:
        resumed = self._redrive("resume", str(self.state))
        resumed.communicate(timeout=120)
        return resumed.returncode


def rows(path: Path) -> list[tuple[str, str]]:
    with database.reading(path) as connection:
        return connection.execute("SELECT name, state FROM task ORDER BY position").fetchall()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[RunUnderWay]:
    night = RunUnderWay(tmp_path)
    yield night
    if night.process.poll() is None:
        night.process.kill()
        night.end()


@parametrize_mostly_long("pattern", ["state.db", "state.db*"])
def test_a_removed_file_is_kept_and_resumed(night: RunUnderWay, pattern: str) -> None:
    """What runs ends, and its result is in the copy; nothing else is started."""
    for path in night.folder.glob(pattern):
        path.unlink()
    said = night.read_until("storage degraded")
    assert f"a process has removed {night.state}; all of it is kept in {night.state}.rescued" in said
    night.go_on()
    said = night.end()
    assert night.process.returncode == 2 and f"mv {night.state}.rescued {night.state} && redrive resume" in said
    assert "below RUNNING" not in said
    copied = Path(f"{night.state}.rescued")
    assert rows(copied) == [("long", "SUCCESS"), ("below", "READY")]
    assert copied.stat().st_mode & 0o777 == 0o600
    assert not night.state.exists()
    copied.rename(night.state)
    assert night.resume() == 0
    assert rows(night.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_a_moved_file_is_moved_back_and_the_run_goes_on(night: RunUnderWay) -> None:
    away = night.folder / "away.db"
    night.state.rename(away)
    assert f"mv {away} {night.state} and the run goes on" in night.read_until("storage degraded")
    answer = executor_request.ping(str(night.state))
    assert answer is not None and "was moved" in answer["storage_problem"]
    night.go_on()
    night.read_until("long SUCCESS")
    away.rename(night.state)
    night.read_until("storage recovered")
    assert "below SUCCESS" in night.end()
    assert night.process.returncode == 0
    assert rows(night.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_removed_log_is_brought_into_the_file(night: RunUnderWay, suffix: str) -> None:
    Path(f"{night.state}{suffix}").unlink()
    assert f"a process has removed {night.state}{suffix}, which holds the latest changes" in night.read_until("storage")
    reader = sqlite3.connect(f"file:{night.state}?mode=ro", uri=True)  # keeps the closing writer from a checkpoint
    night.go_on()
    said = night.end()
    assert night.process.returncode == 2 and f"and ends; then redrive resume {night.state}" in said
    assert "below RUNNING" not in said and "Traceback" not in said
    reader.close()
    assert rows(night.state) == [("long", "SUCCESS"), ("below", "READY")]
    assert night.resume() == 0
    assert rows(night.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


def test_a_log_that_was_cut_short_ends_the_executor_which_saves_its_memory(night: RunUnderWay) -> None:
    """At once: nothing that ends now can be written."""
    os.truncate(f"{night.state}-wal", 0)
    said = night.end()
    assert night.process.returncode == 2 and "Traceback" not in said
    assert f"somebody has cut {night.state}-wal short" in said
    steps = said.rpartition(f"{night.state}.rescued: ")[2].partition(" && redrive resume")[0]
    subprocess.run(steps, shell=True, check=True)
    night.go_on()
    assert night.resume() == 0
    assert rows(night.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_what_was_put_in_its_place_is_left_alone(night: RunUnderWay) -> None:
    other = night.folder / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    content = other.read_bytes()
    other.replace(night.state)
    assert f"another file is in the place of {night.state}" in night.read_until("storage degraded")
    night.go_on()
    night.end()
    assert night.process.returncode == 2
    assert night.state.read_bytes() == content
    assert rows(Path(f"{night.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]


def test_acts_are_refused_with_what_to_do(night: RunUnderWay) -> None:
    night.state.unlink()
    night.read_until("storage degraded")
    command = {"id": "c", "act": "pause", "run_id": "r", "actor": "ana@desk", "targets": [], "options": {}}
    answer = command_client.send_blocking(str(night.state), parse_command(command)).as_json()
    assert not answer["ok"] and "all of it is kept in" in answer["message"]


@pytest.mark.long
def test_a_removed_lock_is_made_again(night: RunUnderWay) -> None:
    Path(lock_file.lock_path(str(night.state))).unlink()
    assert "the lock file of" in night.read_until("storage lock")
    holder = lock_file.current_holder(str(night.state))
    assert holder is not None and holder.pid == night.process.pid and holder.run_id == "r"
    assert night.resume() == 75
    night.go_on()
    night.end()
    assert night.process.returncode == 0


def test_a_removed_socket_is_made_again(night: RunUnderWay) -> None:
    path = executor_socket.socket_path(str(night.state))
    os.unlink(path)
    wait_until(lambda: os.path.exists(path))
    assert (executor_request.ping(str(night.state)) or {})["pid"] == night.process.pid
    night.go_on()
    night.end()
    assert night.process.returncode == 0 and not os.path.exists(path)


@pytest.mark.long
def test_a_copy_that_cannot_be_made_is_told_and_made_at_the_end(night: RunUnderWay) -> None:
    """Nowhere to copy to: it is said, and that the process still has it."""
    for path in night.folder.glob("state.db*"):
        path.unlink()
    night.state.with_suffix(".db.rescued.part").mkdir()
    assert f"when pid {night.process.pid} ends" in night.read_until("when pid")
    night.state.with_suffix(".db.rescued.part").rmdir()
    night.go_on()
    night.end()
    assert rows(Path(f"{night.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]
