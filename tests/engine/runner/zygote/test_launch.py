"""The zygote that starts while the executor imports its modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow
from redrive.engine.runner.zygote.launch import SpawnedZygote, ZygoteProcess
from redrive.engine.statefile.ownership import has_token
from redrive.engine.statefile.processes import pids
from support.waiting import wait_until


@pytest.fixture
def spawned() -> Iterator[SpawnedZygote]:
    zygote = SpawnedZygote({"REDRIVE_EXECUTOR": f"early-{os.getpid()}"})
    yield zygote
    zygote.end_unused()


def end(zygote: ZygoteProcess) -> None:
    zygote.control.close()
    zygote.reap()
    os.close(zygote.output)
    os.close(zygote.pidfd)


def test_it_is_handed_out_once(spawned: SpawnedZygote) -> None:
    first, second = spawned(None), spawned(None)
    assert first.pid != second.pid
    end(first)
    end(second)


def test_a_flow_with_another_interpreter_gets_a_zygote_of_its_own(spawned: SpawnedZygote) -> None:
    other = spawned(sys.executable)
    try:
        command = Path(f"/proc/{other.pid}/cmdline")
        wait_until(lambda: command.read_text() != "")  # empty while the kernel replaces the program
        assert command.read_text().startswith(sys.executable)
        wait_until(lambda: processes_with_token() == [other.pid])
    finally:
        end(other)


def test_a_zygote_that_nobody_used_is_gone_after_its_end(spawned: SpawnedZygote) -> None:
    assert len(processes_with_token()) == 1
    spawned.end_unused()
    assert processes_with_token() == []


def processes_with_token() -> list[int]:
    return [pid for pid in pids() if has_token(pid, [f"early-{os.getpid()}"])]


PROGRAM = """
import gc, os, sys
from redrive.engine import Executor, Flow

class Left:
    def __del__(self):
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()} ")

gc.disable()
left = Left()
left.itself = left
del left
flow = Flow("f")
flow.task(lambda: None, name="a")
Executor(run_id="r", flow=flow, state=sys.argv[2]).run()
print(os.getpid())
"""


def test_what_the_program_left_is_not_ended_in_the_zygote(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    words = [sys.executable, "-P", "-c", PROGRAM, str(ended), str(tmp_path / "s.db")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    pids = ended.read_text().split() if ended.exists() else []
    assert set(pids) <= {done.stdout.split()[-1]}


def test_commands_of_an_executor_inside_a_task_inherit_the_variables_of_that_executor(tmp_path: Path) -> None:
    """By its token the processes of a dead executor are found."""

    def nested() -> None:
        inner = Flow("inner")
        inner.command("c", f"printf %s $REDRIVE_EXECUTOR > {tmp_path / 'inner'}")
        Executor(flow=inner, state=tmp_path / "inner.db").run()
        (tmp_path / "outer").write_text(os.environ["REDRIVE_EXECUTOR"])

    outer = Flow("outer")
    outer.task(nested)
    assert Executor(flow=outer, state=tmp_path / "outer.db").run() == "SUCCESS"
    tokens = {(tmp_path / name).read_text() for name in ("inner", "outer")}
    assert len(tokens) == 2 and "" not in tokens
