"""After kill -9 of the executor every list says, by every door, that nobody runs the run, and how to go on with it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.executor import host
from redrive.engine.statefile import lock_file
from support.commands import quoted, run_redrive
from support.marks import parametrize_mostly_long
from support.processes import wait_for_end
from support.waiting import wait_until

FLOW = """
import time
from redrive.engine import Flow, PermanentError

flow = Flow("night")

@flow.task(timeout=600)
def long():
    time.sleep(600)

@flow.task
def broken():
    raise PermanentError("no")
"""


def output_of(*words: str) -> str:
    done = run_redrive(*words)
    return done.stdout + done.stderr


def begin(folder: Path) -> tuple[str, int]:
    """A run in which one task is running and one is a dead letter; its state file, and the executor's pid."""
    flow, state = folder / "flow.py", str(folder / "state.db")
    flow.write_text(FLOW)
    pid = host.spawn(flow=str(flow), state=state, run_id="r", options={"stay": True})
    wait_until(lambda: "DEAD_LETTER" in (output := output_of("tasks", state)) and "RUNNING" in output)
    return state, pid


@pytest.fixture
def killed(tmp_path: Path) -> tuple[str, int]:
    """The state file of an executor that was killed, and its pid."""
    state, pid = begin(tmp_path)
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    wait_until(lambda: lock_file.current_holder(state) is None)  # what it started dies after it
    return state, pid


def advice(state: str, pid: int) -> tuple[str, str]:
    return f"(pid {pid} gone); ", f"redrive resume {quoted(state)}@r"


@parametrize_mostly_long("command", ["runs", "tasks", "inbox", "doctor"])
def test_every_list_says_that_nobody_runs_it(killed: tuple[str, int], command: str) -> None:
    output = output_of(command, killed[0])
    assert "executor dead since " in output and "".join(advice(*killed)) in output
    assert "CUT OFF" in output and "r RUNNING" not in output and "r: RUNNING" not in output


@parametrize_mostly_long("command", ["runs", "tasks", "inbox"])
def test_programs_read_it_in_a_field(killed: tuple[str, int], command: str) -> None:
    state, pid = killed
    for line in output_of(command, state, "--json").splitlines():
        executor: dict[str, Any] = json.loads(line)["executor"]
        assert (executor["alive"], executor["pid"], executor["stopped"]) == (False, pid, False)
        assert executor["gone_at"] and executor["advice"].endswith(advice(state, pid)[1])


@pytest.mark.long
def test_the_same_is_said_through_ssh(killed: tuple[str, int], far: Any) -> None:
    state, pid = killed
    for command in ("runs", "tasks", "inbox"):
        output = output_of(command, f"ssh://far{state}")
        assert (
            "executor dead since " in output and f"(pid {pid} gone); on far: redrive resume {quoted(state)}@r" in output
        )


@pytest.mark.long
def test_nothing_is_said_of_a_living_executor_or_of_a_run_that_has_ended(tmp_path: Path) -> None:
    state, pid = begin(tmp_path)
    try:
        for command in ("runs", "tasks", "inbox"):
            output = output_of(command, state)
            assert "dead since" not in output and "redrive resume" not in output
        assert json.loads(output_of("runs", state, "--json"))["executor"]["alive"] is True
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid)
    assert f"(pid {pid} stopped); redrive resume" in output_of("runs", state)


@pytest.mark.long
def test_an_executor_that_is_stopped_is_said_to_be_silent(tmp_path: Path) -> None:
    state, pid = begin(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while f"executor {pid} silent for " not in (output := output_of("runs", state)):
            assert time.monotonic() < deadline, output
    finally:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid)
