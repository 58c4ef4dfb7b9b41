"""A disk that fails under a run: one sentence, no promise that it does not keep, and a run that can be resumed."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.domain.events import Event
from redrive.engine.errors import StorageError
from redrive.engine.store import database
from support.marks import parametrize_mostly_long
from support.tracing import needs_strace

FLOW = """
import time
from redrive.engine import Flow

flow = Flow("night")
for number in range(8):
    def work():
        time.sleep(0.05)
    flow.task(work, name=f"t{number}", after=f"t{number - 1}" if number else ())
"""


def test_a_failed_sync_ends_the_executor_and_the_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect whose claim was not synced is not started, and the attempt that runs is killed."""
    flow, state, events = Flow("night", retry=RetryPolicy(base=0.01)), tmp_path / "state.db", list[Event]()

    @flow.task
    def hang() -> None:
        time.sleep(0 if (tmp_path / "again").exists() else 60)

    @flow.task
    def look() -> None:
        (tmp_path / "broken").touch()

    @flow.task(kind="effect", after=look)
    def pay() -> None:
        (tmp_path / "paid").touch()

    def sync(descriptor: int) -> None:
        if (tmp_path / "broken").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", sync)
        began = time.monotonic()
        with pytest.raises(StorageError, match=f"the disk failed while {re.escape(str(state))} was synced"):
            Executor(run_id="r", flow=flow, state=state, on_events=events.extend).run()
        assert time.monotonic() - began < 30 and not (tmp_path / "paid").exists()
        assert "pay" not in [event.task for event in events if event.new == "RUNNING"]
    (tmp_path / "again").touch()
    Executor(run_id="r", flow=flow, state=state).run()
    with database.reading(state) as connection:
        states = dict(connection.execute("SELECT name, state FROM task"))
    assert (states["hang"], states["look"]) == ("SUCCESS", "SUCCESS")
    assert not (tmp_path / "paid").exists() or states["pay"] == "SUCCESS"  # its claim may be in the file: ask a human


def redrive(*words: object, inject: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "redrive.console", *map(str, words)]
    if inject is not None:
        state = next(str(word) for word in words if str(word).endswith(".db"))
        paths = [word for suffix in ("", "-wal") for word in ("-P", state + suffix)]
        calls = inject.partition(":")[0]
        command = [
            "strace",
            "-f",
            "-o",
            "/dev/null",
            *paths,
            "-e",
            f"trace={calls}",
            "-e",
            f"inject={inject}",
            *command,
        ]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.long
@needs_strace
@parametrize_mostly_long("error", ["EIO", "ENOSPC", "EROFS", "EDQUOT"], quick=0, daily=1)
@pytest.mark.parametrize(("call", "when"), [("pwrite64", 90), ("pwrite64", 131), ("ftruncate", 1)])
def test_a_disk_that_refuses_for_a_while_loses_nothing(tmp_path: Path, call: str, when: int, error: str) -> None:
    flow, state = tmp_path / "flow.py", tmp_path / "state.db"
    flow.write_text(FLOW)
    ended = redrive("run", flow, "--state", state, "--plain", inject=f"{call}:error={error}:when={when}..{when + 3}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert len(re.findall(r"t\d SUCCESS", ended.stdout)) == 8


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize("durability", ["normal", "full"])
@parametrize_mostly_long("when", [1, 4, 2, 7], quick=0, daily=1)
def test_a_disk_that_fails_to_sync_once_ends_the_run_in_one_sentence(
    tmp_path: Path, when: int, durability: str
) -> None:
    flow, state = tmp_path / "flow.py", tmp_path / "state.db"
    flow.write_text(FLOW)
    words = ("run", flow, "--state", state, "--run-id", "r", "--plain", "--durability", durability)
    ended = redrive(*words, inject=f"fdatasync:error=EIO:when={when}")
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1, ended.stdout + ended.stderr
    assert re.match("redrive: the disk (failed while|refused) ", ended.stderr), ended.stderr
    again = redrive(*words)
    assert again.returncode == 0, again.stdout + again.stderr
