"""A detached executor whose disk is full says so to everybody who looks, and goes on when there is room again."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.clock import wall_time_us
from redrive.engine.domain.acts import Command
from redrive.engine.domain.states import RunState
from redrive.engine.executor import host
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import needs_of
from redrive.engine.statefile.state_files import file_row_of
from support.commands import invoke_redrive, run_redrive
from support.waiting import wait_until_async

from .conftest import OpenSession

FLOW = """
import os, time
from redrive.engine import Flow
flow = Flow("nightly")
@flow.task
def loud():
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    print("x" * 500_000)
flow.task(lambda: None, name="after", after=loud)
"""


class Tmpfs:
    """A real file system of two megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, pid: int) -> None:
        with open(self._ballast, "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
            while True:
                ballast.write(b"\0" * 4096)

    def free(self, pid: int) -> None:
        self._ballast.unlink()


class Limit:
    """Where nothing may be mounted: no file of the executor may grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def free(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.fixture(params=["mounted", pytest.param("limited", marks=pytest.mark.long)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tmpfs | Limit]:
    folder = tmp_path / "small"
    folder.mkdir()
    if request.param == "limited" or not _mounts(folder):
        yield Limit(folder)
        return
    yield Tmpfs(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


def _mounts(folder: Path) -> bool:
    """Only root may, and not in every container."""
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "small", str(folder)]
    return shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode


async def wait_for_status(session: Any, what: Any) -> Any:
    await wait_until_async(lambda: what(session.status), describe=lambda: session.status)
    return session.status


async def until_it_runs(session: Any, projection: Any) -> None:
    if not projection.tasks["loud"].attempts:
        async with asyncio.timeout(90):
            async for batch in session.events(projection.seq):
                if any(event.new == "RUNNING" for event in batch):
                    return


def assert_lists_know(state: Path) -> None:
    """The inbox, its exit code, the list of files, the metrics and the list of tasks say the same."""
    inbox = run_redrive("inbox", state)
    assert inbox.returncode == 3 and f"{state}: cannot be written for " in inbox.stdout.splitlines()[0]
    assert run_redrive("inbox", state, "--quiet").returncode == 3
    needs = needs_of([file_row_of(str(state))], wall_time_us())
    assert [need.kind for need in needs] == [NeedKind.STORAGE] and not needs[0].is_notice
    (line,) = [line for line in run_redrive("tasks", state).stdout.splitlines() if line.startswith("loud ")]
    assert "UNSAVED" in line or "attempt 1 runs for" in line


@pytest.mark.long
async def test_a_full_disk_is_reported_through_every_session_and_by_doctor(
    open_session: OpenSession, disk: Any, tmp_path: Path
) -> None:
    """002.16: the executor is degraded, starts nothing, and fails no task for it."""
    state, go = disk.folder / "state.db", tmp_path / "go"
    (tmp_path / "flow.py").write_text(FLOW.format(go=str(go)))
    pid = host.spawn(flow=str(tmp_path / "flow.py"), state=str(state), run_id="r", options={})
    session = await open_session(state)
    await until_it_runs(session, await session.snapshot("r"))
    assert session.status.storage_problem is None

    disk.fill(pid)
    go.touch()
    status = await wait_for_status(session, lambda status: status.storage_problem)
    assert str(state) in status.storage_problem and "wait in memory" in status.storage_problem
    assert status.executor.alive and status.read_only is None, "it lives and may be asked to stop"
    examined = invoke_redrive("doctor", state)
    (line,) = [line for line in examined.output.splitlines() if line.split()[1] == "storage"]
    assert 1 == examined.return_value and line.startswith("error") and str(state) in line
    await asyncio.to_thread(assert_lists_know, state)
    breaker = Command("c", "breaker", "r", (), "ana@desk", "why", {"downstream": "api", "how": "open"})
    answer = await session.send(breaker)
    assert not answer.ok and answer.message.startswith("nothing is changed: ")

    disk.free(pid)
    await wait_for_status(session, lambda status: status.storage_problem is None)
    await wait_for_status(session, lambda status: not status.executor.alive)
    assert (await session.snapshot("r")).run.state == RunState.SUCCESS
    with sqlite3.connect(state) as connection:
        rows = connection.execute("SELECT json_extract(data, '$.what') FROM event WHERE kind = 'storage'").fetchall()
        assert [("recovered",)] == rows
        assert [(1,), (1,)] == connection.execute("SELECT attempt FROM task").fetchall()
