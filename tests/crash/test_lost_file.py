"""Somebody removes, moves or replaces the state file, its lock or its socket under a living executor."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redrive.engine.agent import command_client, executor_socket
from redrive.engine.domain.acts import parse_command
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
    """A run under way, in a folder of its own: ``long`` runs until ``proceed``."""

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
        output = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            output += line
            if word in line:
                return output
        raise AssertionError(output)

    def proceed(self) -> None:
        (self.folder / "go-on").touch()

    def end(self) -> str:
        """What it prints to its end; ``communicate`` would lose lines that came together with the last one read."""
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        self.process.wait(timeout=120)
        return output

    def resume(self) -> int:
        resumed = self._redrive("resume", str(self.state))
        resumed.communicate(timeout=120)
        return resumed.returncode


def rows(path: Path) -> list[tuple[str, str]]:
    with database.reading(path) as connection:
        return connection.execute("SELECT name, state FROM task ORDER BY position").fetchall()


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[RunUnderWay]:
    live_run = RunUnderWay(tmp_path)
    yield live_run
    if live_run.process.poll() is None:
        live_run.process.kill()
        live_run.end()


@parametrize_mostly_long("pattern", ["state.db", "state.db*"])
def test_a_removed_file_is_kept_and_resumed(live_run: RunUnderWay, pattern: str) -> None:
    """What runs ends, and its result is in the copy; nothing else is started."""
    for path in live_run.folder.glob(pattern):
        path.unlink()
    output = live_run.read_until("storage degraded")
    assert f"a process has removed {live_run.state}; all of it is kept in {live_run.state}.rescued" in output
    live_run.proceed()
    output = live_run.end()
    assert (
        live_run.process.returncode == 2 and f"mv {live_run.state}.rescued {live_run.state} && redrive resume" in output
    )
    assert "below RUNNING" not in output
    copied = Path(f"{live_run.state}.rescued")
    assert rows(copied) == [("long", "SUCCESS"), ("below", "READY")]
    assert copied.stat().st_mode & 0o777 == 0o600
    assert not live_run.state.exists()
    copied.rename(live_run.state)
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_a_moved_file_is_moved_back_and_the_run_goes_on(live_run: RunUnderWay) -> None:
    away = live_run.folder / "away.db"
    live_run.state.rename(away)
    assert f"mv {away} {live_run.state} and the run goes on" in live_run.read_until("storage degraded")
    answer = executor_socket.ping(str(live_run.state))
    assert answer is not None and "was moved" in answer["storage_problem"]
    live_run.proceed()
    live_run.read_until("long SUCCESS")
    away.rename(live_run.state)
    output = live_run.read_until("storage recovered") + live_run.end()
    assert "below SUCCESS" in output
    assert live_run.process.returncode == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_removed_log_is_brought_into_the_file(live_run: RunUnderWay, suffix: str) -> None:
    Path(f"{live_run.state}{suffix}").unlink()
    assert f"a process has removed {live_run.state}{suffix}, which holds the latest changes" in live_run.read_until(
        "storage"
    )
    reader = sqlite3.connect(f"file:{live_run.state}?mode=ro", uri=True)  # keeps the closing writer from a checkpoint
    live_run.proceed()
    output = live_run.end()
    assert live_run.process.returncode == 2 and f"and ends; then redrive resume {live_run.state}" in output
    assert "below RUNNING" not in output and "Traceback" not in output
    reader.close()
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "READY")]
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


def test_a_log_that_was_cut_short_ends_the_executor_which_saves_its_memory(live_run: RunUnderWay) -> None:
    """At once: nothing that ends now can be written."""
    os.truncate(f"{live_run.state}-wal", 0)
    output = live_run.end()
    assert live_run.process.returncode == 2 and "Traceback" not in output
    assert f"somebody has cut {live_run.state}-wal short" in output
    steps = output.rpartition(f"{live_run.state}.rescued: ")[2].partition(" && redrive resume")[0]
    subprocess.run(steps, shell=True, check=True)
    live_run.proceed()
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_what_was_put_in_its_place_is_left_alone(live_run: RunUnderWay) -> None:
    other = live_run.folder / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    content = other.read_bytes()
    other.replace(live_run.state)
    assert f"another file is in the place of {live_run.state}" in live_run.read_until("storage degraded")
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 2
    assert live_run.state.read_bytes() == content
    assert rows(Path(f"{live_run.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]


def test_acts_are_refused_with_what_to_do(live_run: RunUnderWay) -> None:
    live_run.state.unlink()
    live_run.read_until("storage degraded")
    command = {"id": "c", "act": "pause", "run_id": "r", "actor": "ana@desk", "targets": [], "options": {}}
    answer = command_client.send_blocking(str(live_run.state), parse_command(command)).as_json()
    assert not answer["ok"] and "all of it is kept in" in answer["message"]


@pytest.mark.long
def test_a_removed_lock_is_made_again(live_run: RunUnderWay) -> None:
    Path(lock_file.lock_path(str(live_run.state))).unlink()
    assert "the lock file of" in live_run.read_until("storage lock")
    holder = lock_file.current_holder(str(live_run.state))
    assert holder is not None and holder.pid == live_run.process.pid and holder.run_id == "r"
    assert live_run.resume() == 75
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 0


def test_a_removed_socket_is_made_again(live_run: RunUnderWay) -> None:
    path = executor_socket.socket_path(str(live_run.state))
    os.unlink(path)
    wait_until(lambda: os.path.exists(path))
    assert (executor_socket.ping(str(live_run.state)) or {})["pid"] == live_run.process.pid
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 0 and not os.path.exists(path)


@pytest.mark.long
def test_a_copy_that_cannot_be_made_is_reported_and_made_at_the_end(live_run: RunUnderWay) -> None:
    """Nowhere to copy to: it is said, and that the process still has it."""
    for path in live_run.folder.glob("state.db*"):
        path.unlink()
    live_run.state.with_suffix(".db.rescued.part").mkdir()
    assert f"when pid {live_run.process.pid} ends" in live_run.read_until("when pid")
    live_run.state.with_suffix(".db.rescued.part").rmdir()
    live_run.proceed()
    live_run.end()
    assert rows(Path(f"{live_run.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]


# --- Cut short -----------------------------------------------------------------------------------------------------

#: Bytes that are left of a state file of so many bytes.
CUTS: dict[str, Callable[[int], int]] = {
    "nothing": lambda size: 0,
    "a page": lambda size: 4096,
    "the header": lambda size: 100,
    "half": lambda size: size // 2,
    "all but a page": lambda size: size - 4096,
    "all but a byte": lambda size: size - 1,
}


@parametrize_mostly_long("left", CUTS, quick=1)
@parametrize_mostly_long("is_running", [True, False], quick=2)
def test_a_file_that_is_cut_short_ends_the_executor_which_saves_it(
    live_run: RunUnderWay, left: str, is_running: bool
) -> None:
    """While nothing is written, and at the next commit, which would end the run as a success."""
    if not is_running:
        os.kill(live_run.process.pid, signal.SIGSTOP)
    os.truncate(live_run.state, CUTS[left](live_run.state.stat().st_size))
    if not is_running:
        live_run.proceed()
        os.kill(live_run.process.pid, signal.SIGCONT)
    output = live_run.end()
    assert live_run.process.returncode == 2 and "Traceback" not in output, output
    assert "run r SUCCESS" not in output
    assert f"somebody has cut {live_run.state} short; all of it is kept in {live_run.state}.rescued: rm -f" in output
    steps = output.rpartition(f"{live_run.state}.rescued: ")[2].partition(" && redrive resume")[0]
    subprocess.run(steps, shell=True, check=True)
    live_run.proceed()
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


def test_a_folder_that_is_renamed_is_renamed_back_and_the_run_goes_on(live_run: RunUnderWay) -> None:
    away = live_run.folder.with_name("renamed folder")
    live_run.folder.rename(away)
    back = f"mv '{away}' {live_run.folder}"
    output = live_run.read_until("storage degraded")
    assert f"the folder of {live_run.state} was moved: {back} and the run goes on; nothing is lost" in output
    subprocess.run(back, shell=True, check=True)
    output = live_run.read_until("storage recovered")
    assert "lost when" not in output and "could not be made" not in output
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 0 and not Path(f"{live_run.state}.rescued").exists()


@pytest.mark.long
def test_a_moved_file_that_is_then_removed_is_kept(live_run: RunUnderWay) -> None:
    away = live_run.folder / "away.db"
    live_run.state.rename(away)
    assert "was moved" in live_run.read_until("storage degraded")
    away.unlink()
    assert f"a process has removed {live_run.state}; all of it is kept" in live_run.read_until("storage degraded")
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 2
    assert rows(Path(f"{live_run.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]


def test_resume_is_refused_before_it_imports_the_flow(live_run: RunUnderWay) -> None:
    """Whatever the flow would say: another executor owns the file."""
    (live_run.folder / "flow.py").write_text("raise RuntimeError('imported')")
    resumed = start_redrive("resume", str(live_run.state), "--plain")
    output, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 75 and f"pid {live_run.process.pid}" in output and "imported" not in output
