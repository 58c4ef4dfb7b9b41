"""The two programs that are recorded: a bare writer, and ``redrive run`` with an operator."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from redrive.engine.agent import command_client
from redrive.engine.domain.acts import parse_command

from .disk import is_making
from .evidence import SUFFIXES, AcknowledgedByRun, AcknowledgedNumbers
from .recording import Call, read_calls, recorded

RUN_ID = "night"
FLOW = """
import pathlib, time
from redrive.engine import Flow, RetryPolicy, TransientError

flow = Flow("cuts", max_parallel=4)
here = pathlib.Path(__file__).parent
flow.page("command", line=f"echo $REDRIVE_PAGE_KEY >> {here}/paged")

@flow.task
def wait():
    while not (here / "go-on").exists():
        time.sleep(0.02)

@flow.task(after=wait, kind="effect")
def pay(ctx):
    with open(here / "paid", "a") as paid:
        paid.write(ctx.idempotency_key + "\\n")

@flow.task(after=pay, retry=RetryPolicy(max_attempts=2, base=0.05, cap=0.05), optional=True)
def fail():
    raise TransientError("again")

for number in range(WIDTH):
    def work(number=number):
        print("x" * 500)
    flow.task(work, name=f"work{number}", after=wait)
"""


def _read(trace: Path, state: Path) -> list[Call]:
    folder = str(state.parent)
    files = {folder, *(f"{state}{suffix}" for suffix in SUFFIXES), f"{folder}/paid", f"{folder}/paged"}
    return read_calls(trace, lambda path: path in files or is_making(path) or path.startswith(("pipe:", "socket:")))


def record_writer(folder: Path, commits: int) -> tuple[list[Call], AcknowledgedNumbers, Path]:
    """Record a writer whose log starts again every few commits."""
    state, trace, program = folder / "state.db", folder / "trace", Path(__file__).with_name("writer_under_trace.py")
    with recorded([sys.executable, program, state, commits], trace, os.environ) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return _read(trace, state), AcknowledgedNumbers(), state


def record_run(folder: Path, width: int) -> tuple[list[Call], AcknowledgedByRun, Path]:
    """Record a run with an effect, a failure that pages, and an operator who pauses and unpauses it."""
    state, trace, flow = folder / "state.db", folder / "trace", folder / "flow.py"
    flow.write_text(FLOW.replace("WIDTH", str(width)))
    words = [
        sys.executable,
        "-P",
        "-m",
        "redrive.console",
        "run",
        flow,
        "--state",
        state,
        "--run-id",
        RUN_ID,
        "--plain",
    ]
    with recorded(words, trace, os.environ) as process:
        while process.poll() is None and not Path(f"{state}.sock").exists():
            time.sleep(0.02)
        for act in ("pause", "unpause"):
            assert _act(state, act)
        (folder / "go-on").touch()
        output, _ = process.communicate(timeout=240)
    assert "run night PARTIAL" in output, output
    calls = _read(trace, state)
    executor = next(call.pid for call in calls if call.name == "link")
    return calls, AcknowledgedByRun(RUN_ID, executor), state


def _act(state: Path, act: str) -> bool:
    command: Mapping[str, object] = {
        "id": uuid.uuid4().hex,
        "act": act,
        "run_id": RUN_ID,
        "actor": "ana@desk",
        "reason": "a reason",
        "targets": [],
        "options": {},
    }
    return command_client.send_blocking(str(state), parse_command(command)).ok
