"""A state file under two names has one executor: whoever comes by a link finds its lock and its socket."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import REDRIVE, run_redrive, start_redrive

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow

flow = Flow("linked")

@flow.task(timeout=300)
def gate():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One on ``state.db``, whose task runs until there is a file ``go``."""
    (tmp_path / "flow.py").write_text(FLOW)
    started = start_redrive("run", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--run-id", "r", "--plain")
    assert started.stdout is not None
    assert "gate RUNNING" in started.stdout.readline()
    yield started
    started.kill()
    started.communicate()


def finish(executor: subprocess.Popen[str], folder: Path) -> None:
    """Let the task end: it ran once, and its run has succeeded."""
    (folder / "go").touch()
    output, _ = executor.communicate(timeout=60)
    assert executor.returncode == 0, output
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        assert connection.execute("SELECT run_id, state, attempt FROM task").fetchall() == [("r", "SUCCESS", 1)]


def test_by_a_symbolic_link_a_second_executor_is_refused_and_acts_arrive_at_the_first(
    executor: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It took a lock of its own, settled the living attempts as lost, and two processes wrote one file."""
    link = tmp_path / "link.db"
    link.symlink_to("state.db")
    second = run_redrive("run", tmp_path / "flow.py", "--state", link, "--run-id", "other", "--plain")
    assert (second.returncode, "another executor owns" in second.stderr) == (75, True), second
    assert f"`redrive stop {tmp_path / 'state.db'}` ends it" in second.stderr
    assert run_redrive("pause", link).returncode == 0
    assert run_redrive("unpause", link).returncode == 0
    finish(executor, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.db*")) == ["link.db", "state.db", "state.db.lock"]


def test_by_a_hard_link_nothing_is_written(executor: subprocess.Popen[str], tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.hardlink_to(tmp_path / "state.db")
    started = run_redrive("run", tmp_path / "flow.py", "--state", link, "--run-id", "other", "--plain")
    finish(executor, tmp_path)
    acted = run_redrive("requeue", link, "gate", "--reason", "again")
    for refused in (started, acted):
        assert (refused.returncode, "has 2 names" in refused.stderr) == (2, True), refused


@pytest.mark.long
def test_a_file_that_is_locked_itself_has_no_second_executor_and_no_acts(
    executor: subprocess.Popen[str], tmp_path: Path
) -> None:
    """As behind a bind mount: neither the lock file nor the socket is beside this name of the file."""
    other = tmp_path / "other"
    other.mkdir()
    path = tmp_path / "state.db"
    names = [path.name, f"{path.name}-wal", f"{path.name}-shm"]
    for name in names:  # the executor waits for them to come back
        (tmp_path / name).rename(other / name)
    words = ("run", tmp_path / "flow.py", "--state", other / "state.db", "--run-id", "other", "--plain")
    for second in (run_redrive(*words), run_redrive("pause", other / "state.db", "--reason", "x")):
        assert f"pid {executor.pid} writes {other / 'state.db'} under another name" in second.stderr
    assert run_redrive(*words).returncode == 75
    for name in names:
        (other / name).rename(tmp_path / name)
    finish(executor, tmp_path)


@pytest.mark.long
def test_behind_a_bind_mount_of_the_file_there_is_no_second_executor(
    executor: subprocess.Popen[str], tmp_path: Path
) -> None:
    """As a container has one file of a volume. A whole run was lost, and its exit code was 0."""
    other = tmp_path / "other.db"
    other.touch()
    words = map(str, ("run", tmp_path / "flow.py", "--state", other, "--run-id", "other", "--plain"))
    mounted = f'mount --bind "{tmp_path / "state.db"}" "{other}" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *REDRIVE, *words], capture_output=True, text=True
    )
    assert done.returncode == 75 and "under another name" in done.stderr, done
    finish(executor, tmp_path)
