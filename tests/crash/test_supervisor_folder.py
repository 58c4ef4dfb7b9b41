"""``redrive serve`` whose own file is removed, replaced or cut short under it, with real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.supervisor_file import FOREVER, ServedSchedule, is_served, read_schedules
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.processes import find_processes_in, wait_until_dead
from support.waiting import wait_until

FLOW = """from redrive.engine import Flow
flow = Flow('{name}', schedule='0 0 1 1 *')  # nothing comes while a test runs
@flow.task
def a(): pass
"""


class Served:
    """A folder of flows, the folder of state files, and the supervisors."""

    def __init__(self, path: Path) -> None:
        self.flows, self.states = path / "flows", path / "states/redrive"
        self.processes: list[Any] = []
        self.flows.mkdir()
        for name in ("yearly", "paused"):
            (self.flows / f"{name}.py").write_text(FLOW.format(name=name))

    def serve(self) -> Any:
        self.processes.append(start_redrive("serve", self.flows))
        return self.processes[-1]

    def until(self, flow: str, holds: Callable[[ServedSchedule], object]) -> None:
        wait_until(lambda: any(row.flow == flow and holds(row) for row in read()), describe=read)

    def supervisors(self) -> list[tuple[int]]:
        with contextlib.closing(sqlite3.connect(supervisor_path())) as connection:
            return connection.execute("SELECT pid FROM supervisor WHERE stopped_at IS NULL").fetchall()


def read() -> tuple[ServedSchedule, ...]:
    with contextlib.suppress(Exception):  # the file is being made or removed
        return tuple(read_schedules().schedules)
    return ()


def now_us() -> int:
    return time.time_ns() // 1000


def lives(row: ServedSchedule) -> bool:
    return is_served(row, now_us())


def lives_since(instant: int) -> Callable[[ServedSchedule], bool]:
    """Whether a supervisor lives that has written the file after the instant."""
    return lambda row: lives(row) and (row.heartbeat_at or 0) > instant


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """One that serves two flows, of which one is paused."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    served = Served(tmp_path)
    served.serve()
    for name in ("yearly", "paused"):
        served.until(name, lives)
    assert run_redrive("schedule", "pause", "paused", "--reason", "closed").returncode == 0
    served.until("paused", lambda row: row.paused_until == FOREVER)
    yield served
    for process in served.processes:
        process.kill()
        process.wait()
        process.stdout.close()
    for pid in find_processes_in(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert wait_until_dead(find_processes_in(tmp_path)) == []


def remove_folder(states: Path) -> None:
    subprocess.run(["rm", "-r", "-f", str(states)], check=False)  # the new file may come while it is at it


def remove_file(states: Path) -> None:
    Path(supervisor_path()).unlink()


def remove_log(states: Path) -> None:
    Path(f"{supervisor_path()}-wal").unlink()


def move_folder_away(states: Path) -> None:
    states.rename(states.with_name("away"))


def restore_folder(states: Path) -> None:
    """From a copy that was made while it was served."""
    shutil.copytree(states, states.with_name("copy"))
    states.rename(states.with_name("away"))
    states.with_name("copy").rename(states)


def replace_file_by_a_copy(states: Path) -> None:
    with contextlib.closing(sqlite3.connect(supervisor_path())) as connection:
        connection.execute("VACUUM INTO ?", (str(states / "copy"),))
    for end in ("-wal", "-shm"):
        Path(supervisor_path() + end).unlink()
    (states / "copy").rename(supervisor_path())


LOSSES = (remove_folder, replace_file_by_a_copy, remove_file, remove_log, move_folder_away, restore_folder)


@parametrize_mostly_long("lose", LOSSES, quick=0, daily=3)
def test_a_file_that_is_lost_ends_it_with_one_sentence_and_the_next_one_serves(
    served: Served, lose: Callable[[Path], None]
) -> None:
    (first,) = served.processes
    lose(served.states)
    text, _ = first.communicate(timeout=60)
    assert first.returncode not in (0, None)
    assert "serve it again" in text.splitlines()[-1] and "Traceback" not in text
    lost_at = now_us()
    second = served.serve()
    for name in ("yearly", "paused"):
        served.until(name, lives_since(lost_at))
    assert (second.pid,) in served.supervisors()


@pytest.mark.long
def test_a_lock_that_was_removed_is_made_again_or_is_that_of_another_supervisor(served: Served) -> None:
    locks = sorted(served.states.glob("*.serve.lock"))
    assert len(locks) == 2
    for lock in locks:
        lock.unlink()
    wait_until(lambda: sorted(served.states.glob("*.serve.lock")) == locks)
    assert "served already" in served.serve().communicate(timeout=60)[0]


def test_a_flow_of_the_same_name_in_another_file_is_not_called_served(served: Served) -> None:
    """Not before the first run either, when no run says which file the state file belongs to."""
    served.flows = shutil.copytree(served.flows, served.flows.with_name("others"))
    served.serve()
    file = str(served.flows / "yearly.py")
    served.until("yearly", lambda row: row.file == file and "rename one of them" in (row.start_error or ""))


@pytest.mark.long
def test_who_comes_beside_a_stopped_one_is_told_how_that_goes_on(served: Served) -> None:
    (first,) = served.processes
    first.send_signal(signal.SIGSTOP)
    try:
        told = served.serve().communicate(timeout=60)[0]
        assert f"(stopped: kill -CONT {first.pid})" in told.splitlines()[-1]
    finally:
        first.send_signal(signal.SIGCONT)


def test_a_file_that_is_cut_short_ends_it_with_one_sentence(served: Served) -> None:
    os.truncate(supervisor_path(), 100)
    text, _ = served.processes[0].communicate(timeout=60)
    assert served.processes[0].returncode not in (0, None)
    assert "restore a copy or remove it" in text.splitlines()[-1] and "Traceback" not in text
