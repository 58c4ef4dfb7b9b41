"""What is on the disk at any instant is enough: a state file as a power cut leaves it is resumed and ends well."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.agent import command_client
from redrive.engine.domain.acts import parse_command
from redrive.engine.errors import CopiedFileError
from redrive.engine.executor import host
from support.commands import start_redrive
from support.waiting import wait_until

from .test_kill_executor import FLOW, check, successes

pytestmark = pytest.mark.spawns  # what is executed is traced

LONG = """
import pathlib, time
from redrive.engine import Flow

flow = Flow("crash")
go_on = pathlib.Path(__file__).with_name("go-on")

@flow.task
def long():
    while not go_on.exists():
        time.sleep(0.02)
"""


def as_by_a_power_cut(state: Path, copy: Path, pid: int) -> None:
    """All that is in the files at one instant; the index in shared memory would not survive."""
    os.kill(pid, signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{pid}/stat")
        wait_until(lambda: stat.read_bytes().rpartition(b")")[2].split()[0] == b"T", interval_seconds=0.001)
        for suffix in ("", "-wal"):
            if Path(f"{state}{suffix}").exists():
                shutil.copy(f"{state}{suffix}", f"{copy}{suffix}")
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_any_instant_of_a_run_can_be_resumed(tmp_path: Path) -> None:
    flow, state = tmp_path / "flow.py", tmp_path / "state.db"
    flow.write_text(FLOW)
    first = start_redrive("run", str(flow), "--state", str(state), "--run-id", "r", "--plain")
    copies = [tmp_path / f"copy{number}.db" for number in range(3)]
    for copy in copies:
        for _ in range(20):
            assert first.stdout.readline()
        as_by_a_power_cut(state, copy, first.pid)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 0, output
    for copy in copies:
        before = successes(copy)
        resumed = start_redrive("resume", str(copy), "--copy", "--plain")
        output, _ = resumed.communicate(timeout=240)
        assert resumed.returncode == 0, output
        check(copy, before)


def attempts(state: Path) -> list[tuple[str, int]]:
    if not state.exists():
        return []
    with sqlite3.connect(state) as connection:
        return connection.execute("SELECT outcome, pid FROM attempt WHERE pid IS NOT NULL").fetchall()


@pytest.mark.long
def test_who_resumes_a_copy_leaves_the_original_alone(tmp_path: Path) -> None:
    """The executor in the copy never said goodbye, because it lives: nothing of it is killed, and the copy goes on."""
    flow, state, copy = tmp_path / "flow.py", tmp_path / "state.db", tmp_path / "copy.db"
    flow.write_text(LONG)
    settings: dict[str, Any] = {"flow": str(flow), "run_id": "r"}
    pid = host.spawn(**settings, state=str(state), options={})
    wait_until(lambda: attempts(state))
    as_by_a_power_cut(state, copy, pid)
    command = {"id": "c", "act": "requeue", "run_id": "r", "actor": "ana@desk", "reason": "again", "options": {}}
    with pytest.raises(CopiedFileError, match="is a copy of"):
        command_client.send_blocking(str(copy), parse_command({**command, "targets": [["long", "RUNNING", 0]]}))
    other = host.spawn(**settings, state=str(copy), options={"copy": True})
    wait_until(lambda: len(attempts(copy)) == 2)
    ((outcome, attempt_pid),) = attempts(state)
    assert outcome == "running" and Path(f"/proc/{attempt_pid}").exists()
    (tmp_path / "go-on").touch()
    for executor in (pid, other):
        assert os.waitpid(executor, 0)[1] == 0
    assert [outcome for outcome, _ in attempts(state)] == ["success"]
    assert [outcome for outcome, _ in attempts(copy)] == ["lost", "success"]
