"""``redrive serve`` whose own file is removed, replaced or cut short under it, with real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.supervisor_file import FOREVER, ServedSchedule, SupervisorFile, is_served, read_schedules
from support.commands import run_redrive
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
        command = [sys.executable, "-P", "-m", "redrive", "serve", str(self.flows)]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.processes.append(subprocess.Popen(command, text=True, **pipes))
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


@parametrize_mostly_long("lose", LOSSES, quick=2)
def test_a_file_that_is_lost_is_made_again_with_its_pauses_and_no_second_supervisor_starts(
    served: Served, lose: Callable[[Path], None]
) -> None:
    before = os.stat(supervisor_path()).st_ino
    lose(served.states)
    lost_at = now_us()
    wait_until(lambda: os.path.exists(supervisor_path()) and os.stat(supervisor_path()).st_ino != before)
    for name in ("yearly", "paused"):
        served.until(name, lives_since(lost_at))
    served.until("paused", lambda row: row.paused_until == FOREVER and row.pause_reason == "closed")
    (first,) = served.processes
    assert served.supervisors() == [(first.pid,)]
    second = served.serve()
    assert "served already" in second.communicate(timeout=60)[0] and second.returncode != 0
    first.terminate()
    text, _ = first.communicate(timeout=60)
    assert text.count("begins anew") >= 1 and first.returncode == 0
    assert (first.pid,) not in served.supervisors()


def test_a_folder_that_is_moved_back_is_served_with_what_it_has(served: Served) -> None:
    away = served.states.with_name("away")
    move_folder_away(served.states)
    served.until("paused", lives)
    assert run_redrive("schedule", "unpause", "paused").returncode == 0
    served.states.rename(served.states.with_name("between"))
    away.rename(served.states)
    served.until("paused", lives_since(now_us()))
    served.until("paused", lambda row: row.paused_until == FOREVER)
    assert served.processes[0].poll() is None


def test_a_lock_that_was_removed_is_made_again_or_is_that_of_another_supervisor(served: Served) -> None:
    locks = sorted(served.states.glob("*.serve.lock"))
    assert len(locks) == 2
    for lock in locks:
        lock.unlink()
    wait_until(lambda: sorted(served.states.glob("*.serve.lock")) == locks)
    assert "served already" in served.serve().communicate(timeout=60)[0]


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


def test_of_two_after_a_removal_one_ends(served: Served) -> None:
    remove_folder(served.states)
    served.serve()
    wait_until(lambda: sum(one.poll() is None for one in served.processes) == 1)
    ended = next(one for one in served.processes if one.poll() is not None)
    assert "served already" in ended.stdout.read()
    served.until("yearly", lives)


@pytest.mark.long
@pytest.mark.parametrize("lose", [move_folder_away, remove_file])
def test_a_pause_outlives_a_file_that_another_makes_before_the_first_notices(
    served: Served, lose: Callable[[Path], None]
) -> None:
    (first,) = served.processes
    assert run_redrive("schedule", "skip-next", "yearly").returncode == 0
    skipped = next(row.skip_logical for row in read() if row.flow == "yearly")
    assert skipped is not None
    first.send_signal(signal.SIGSTOP)
    try:
        lose(served.states)
        if lose is remove_file:  # the locks of the flows stay, so the second ends: a bare file is what it leaves
            SupervisorFile(supervisor_path(), "other").close()
        else:
            served.serve()
            served.until("paused", lambda row: lives(row) and row.pid != first.pid and not row.paused_until)
    finally:
        first.send_signal(signal.SIGCONT)
    served.until("paused", lambda row: row.paused_until == FOREVER and row.pause_reason == "closed" and lives(row))
    served.until("yearly", lambda row: row.skip_logical == skipped and lives(row))
    if lose is move_folder_away:
        text, _ = first.communicate(timeout=60)
        assert first.returncode not in (0, None)
        assert "served already" in text.splitlines()[-1] and "Traceback" not in text
