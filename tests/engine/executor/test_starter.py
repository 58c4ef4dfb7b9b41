"""Executors that one process forks: they start, outlive it, and start without it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redrive.engine.errors import FlowError
from redrive.engine.executor import host
from redrive.engine.executor.host import Starter
from redrive.engine.runner.process import children
from redrive.engine.statefile.opening import holds_nothing
from support.commands import start_redrive
from support.marks import parametrize_mostly_long
from support.processes import wait_until_dead
from support.waiting import wait_until

pytestmark = pytest.mark.spawns  # how executors start is tried

FLOW = """import time
from pathlib import Path
from redrive.engine import Flow
flow = Flow("f")
@flow.task(timeout=60)
def a():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


def spawn(folder: Path, state: str, starter: Starter, text: str = FLOW, **options: object) -> int:
    (folder / "flow.py").write_text(text)
    path, flow = str(folder / state), str(folder / "flow.py")
    return host.spawn(flow=flow, state=path, run_id="r", options=options, start=starter.start)


def state_of(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        return str(connection.execute("SELECT state FROM run").fetchone()[0])


def has_succeeded(path: Path) -> bool:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT state FROM run").fetchall() == [("SUCCESS",)]


@pytest.mark.long
def test_a_forked_executor_outlives_the_starter_and_a_dead_starter_is_replaced(tmp_path, starter):
    first = spawn(tmp_path, "one.db", starter)
    assert os.getsid(first) == first
    with open(f"/proc/{first}/stat") as stat:
        forked_by = int(stat.read().rpartition(")")[2].split()[1])
    os.kill(forked_by, signal.SIGKILL)
    second = spawn(tmp_path, "two.db", starter)
    third = spawn(tmp_path, "three.db", starter)
    (tmp_path / "go").touch()
    assert wait_until_dead([first, second, third]) == []
    assert {state_of(tmp_path / f"{name}.db") for name in ("one", "two", "three")} == {"SUCCESS"}


def test_a_run_of_few_tasks_starts_no_interpreter(tmp_path, starter):
    executor = spawn(tmp_path, "one.db", starter, few_tasks=True)
    (zygote,) = [pid for pid in children(executor) if has_descriptor(pid, "one.db.lock")]
    command = Path(f"/proc/{executor}/cmdline").read_bytes()
    assert Path(f"/proc/{zygote}/cmdline").read_bytes() == command
    assert not has_descriptor(zygote, "one.db")  # of the executor alone
    (tmp_path / "go").touch()
    assert wait_until_dead([executor, zygote]) == []
    assert state_of(tmp_path / "one.db") == "SUCCESS"


def test_what_a_forked_zygote_imports_dies_with_its_executor(tmp_path, starter):
    executor = spawn(tmp_path, "one.db", starter, few_tasks=True)
    wait_until(lambda: len(processes_below(executor)) >= 3)  # reaper, zygote, attempt
    below = processes_below(executor)
    os.kill(executor, signal.SIGKILL)
    assert wait_until_dead([executor, *below]) == []


@pytest.mark.long
def test_an_import_that_leaves_a_thread_gets_an_interpreter_after_all(tmp_path, starter):
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "go").touch()
    executor = spawn(tmp_path, "one.db", starter, thread + FLOW, few_tasks=True)
    assert wait_until_dead([executor]) == []
    assert state_of(tmp_path / "one.db") == "SUCCESS"


def has_descriptor(pid: int, name: str) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it is closed by now
            if os.readlink(link).endswith(f"/{name}"):
                return True
    return False


def processes_below(pid: int) -> list[int]:
    return [below for child in children(pid) for below in (child, *processes_below(child))]


def test_the_error_of_a_start_is_raised_as_by_a_fresh_interpreter(tmp_path, starter):
    (tmp_path / "broken.py").write_text("def broken(:\n")
    with pytest.raises(FlowError, match="SyntaxError"):
        host.spawn(
            flow=str(tmp_path / "broken.py"),
            state=str(tmp_path / "s.db"),
            run_id="r",
            options={},
            start=starter.start,
        )


@parametrize_mostly_long("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_start_goes_on_when_the_starter_dies_while_the_flow_is_imported(tmp_path: Path, number: int) -> None:
    """As its ssh connection ends. Its report had nobody to read it, and ended the executor before the first task."""
    gate = "import os, time\nopen('at-import', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    (tmp_path / "flow.py").write_text(gate + FLOW)
    words = ("run", "flow.py", "--state", "s.db", "--run-id", "r", "--detach")
    starter = start_redrive(*words, cwd=tmp_path)
    wait_until((tmp_path / "at-import").exists)
    starter.send_signal(number)
    starter.communicate()
    (tmp_path / "go").touch()
    wait_until(lambda: not holds_nothing(str(tmp_path / "s.db")) and has_succeeded(tmp_path / "s.db"))
    assert (tmp_path / "s.db.stderr").read_text() == ""


@pytest.mark.long
def test_the_process_that_forks_executors_ends_in_order_when_its_parent_dies_in_a_start(tmp_path: Path) -> None:
    """It answered a parent that was gone, with a traceback in the output of ``redrive serve``."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-P", "-m", "redrive.engine.executor.host", str(theirs.fileno())]
    with subprocess.Popen(words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True) as process:
        theirs.close()
        settings, (from_child, write_end) = os.memfd_create("settings"), os.pipe()
        given = {"flow": str(tmp_path / "no.py"), "state": str(tmp_path / "s.db"), "run_id": "r", "options": {}}
        os.write(settings, json.dumps(given).encode())
        log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
        socket.send_fds(ours, [b"start"], [log, settings, write_end])
        for descriptor in (log, settings, from_child, write_end):
            os.close(descriptor)
        ours.close()  # before it has imported what it forks
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    wait_until(lambda: (tmp_path / "log").read_text())
    assert "Traceback" not in (tmp_path / "log").read_text()
