"""Source files that change while an executor runs: what loads them, what only reports them, what stays as it was."""

from __future__ import annotations

import os
import signal
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redrive.engine.agent import command_client
from redrive.engine.domain.command import Answer, Command, Target
from redrive.engine.executor import host

from ..support.waiting import wait_until

FLOW = """
import time
from redrive.engine import Flow, RetryPolicy
from parts.helper import amount

flow = Flow("night")

@flow.task(retry=RetryPolicy(max_attempts=1))
def load():
    if amount() < 7:
        raise ValueError("too little")
    return amount()

@flow.task(timeout=600)
def long():
    while not GATE.exists():
        time.sleep(0.01)
    return amount()

@flow.task(after=[load])
def report(load):
    return load
"""
Write = Callable[[str, str], None]


class Night:
    """A flow file with a helper module beside it, and an executor of its own that stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = str(folder / "night.db")
        (folder / "parts").mkdir()
        (folder / "parts" / "__init__.py").write_text("")
        self.write("parts/helper.py", "def amount():\n    return 5\n")
        self.flow_text = f"from pathlib import Path\nGATE = Path({str(folder / 'gate')!r})\n" + FLOW
        self.write("night.py", self.flow_text)
        self.pid = 0

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def start(self) -> None:
        flow = str(self.folder / "night.py")
        self.pid = host.spawn(flow=flow, state=self.state, run_id="r", params={}, options={"stay": True})

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.state) as connection:
            return connection.execute(sql).fetchall()

    def wait_for(self, task: str, state: str) -> None:
        sql = f"SELECT state FROM task WHERE name = '{task}'"
        wait_until(lambda: self.query(sql) == [(state,)], describe=lambda: f"{task}: {self.query(sql)}")

    def send(self, act: str, *targets: Target) -> Answer:
        command = Command(uuid.uuid4().hex, act, "r", targets, "ana@host", "because")
        return command_client.send_blocking(self.state, command)

    def requeue(self, task: str) -> Answer:
        ((state, generation),) = self.query(f"SELECT state, generation FROM task WHERE name = '{task}'")
        return self.send("requeue", Target(task, str(state), int(str(generation))))

    def zygotes(self) -> list[int]:
        """The children of the executor that fork attempts."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"zygote.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def result_of(self, task: str) -> object:
        return self.query(f"SELECT result FROM task WHERE name = '{task}'")[0][0]


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    night = Night(tmp_path)
    yield night
    night.kill()


@pytest.fixture
def failed_night(night: Night) -> Night:
    night.start()
    night.wait_for("load", "FAILED")
    night.wait_for("long", "RUNNING")
    return night


def test_a_requeue_runs_the_new_code_of_a_module_beside_the_flow(failed_night: Night) -> None:
    night = failed_night
    night.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    answer = night.requeue("load")
    assert answer.ok
    assert "runs the code of " in answer.message and "(parts/helper.py changed)" in answer.message
    night.wait_for("report", "SUCCESS")
    assert night.result_of("report") == "8"
    hashes = night.query("SELECT DISTINCT code_hash FROM attempt WHERE name = 'load'")
    assert len(hashes) == 2, "the evidence must name the changed code"
    assert night.query("SELECT count(*) FROM event WHERE data LIKE '%code-loaded%'") == [(1,)]


def test_a_running_attempt_ends_with_the_code_that_it_began_with(failed_night: Night) -> None:
    night = failed_night
    night.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    assert night.send("pause").ok, "so that the run goes on after the attempt"
    assert "runs the code of " in night.requeue("load").message
    assert len(night.zygotes()) == 2
    (night.folder / "gate").touch()
    night.wait_for("long", "SUCCESS")
    assert night.result_of("long") == "5"
    wait_until(lambda: len(night.zygotes()) == 1)


def test_code_that_cannot_be_imported_is_named_with_its_line_and_the_old_code_stays(failed_night: Night) -> None:
    night = failed_night
    night.write("night.py", night.flow_text + "\ndef broken(:\n")
    answer = night.requeue("load")
    assert answer.ok, "the requeue itself is done, with the old code"
    line = len((night.folder / "night.py").read_text().splitlines())
    assert "night.py changed but cannot be used" in answer.message and f"line {line}" in answer.message
    wait_until(lambda: night.query("SELECT attempt, state FROM task WHERE name = 'load'") == [(2, "FAILED")])
    assert night.query("SELECT code_changed FROM run") == [("night.py",)]
    assert not night.send("reload").ok
    night.write("night.py", night.flow_text)
    assert night.send("reload").message == "nothing changed: the executor runs the code that is on the disk"
    wait_until(lambda: night.query("SELECT code_changed FROM run") == [(None,)])
    assert night.query("SELECT state FROM task WHERE name = 'long'") == [("RUNNING",)]


def test_changed_options_of_a_task_apply_to_its_next_attempt(failed_night: Night) -> None:
    night = failed_night
    changed = night.flow_text.replace("max_attempts=1)", "max_attempts=2, base=0.01), timeout=77")
    night.write("night.py", changed)
    assert "changed tasks: load" in night.requeue("load").message
    wait_until(lambda: night.query("SELECT attempt, state FROM task WHERE name = 'load'") == [(3, "DEAD_LETTER")])
    assert night.query("SELECT timeout_us FROM attempt WHERE name = 'load' AND attempt = 3") == [(77_000_000,)]


def test_a_graph_that_no_longer_fits_is_not_loaded_and_the_answer_says_why(failed_night: Night) -> None:
    night = failed_night
    night.write("night.py", night.flow_text.replace("def report(load)", "def renamed(load)"))
    answer = night.send("reload")
    assert not answer.ok
    assert "it no longer defines report: redrive stop, then redrive resume" in answer.message
    night.write("night.py", night.flow_text + "\n@flow.task\ndef extra():\n    return 1\n")
    assert "added tasks, which start after redrive stop and redrive resume: extra" in night.send("reload").message


def test_a_failure_after_a_change_reports_it_and_runs_the_loaded_code(night: Night) -> None:
    retrying = night.flow_text.replace("max_attempts=1)", "max_attempts=2, base=0.5, jitter='none')")
    night.write("night.py", retrying.replace("if amount() < 7", "if SEEN.exists() or not SEEN.touch()"))
    text = (night.folder / "night.py").read_text()
    night.write("night.py", f"from pathlib import Path\nSEEN = Path({str(night.folder / 'seen')!r})\n" + text)
    night.start()
    wait_until(lambda: (night.folder / "seen").exists())
    night.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    night.wait_for("load", "DEAD_LETTER")
    wait_until(lambda: night.query("SELECT code_changed FROM run") == [("parts/helper.py",)])
    assert len(night.query("SELECT DISTINCT code_hash FROM attempt WHERE name = 'load'")) == 1


def test_a_dead_zygote_is_replaced_while_attempts_of_the_replaced_code_go_on(failed_night: Night) -> None:
    """The end of one zygote must not kill what another one has forked."""
    night = failed_night
    night.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    assert night.send("reload").ok
    _, current = night.zygotes()
    os.kill(current, signal.SIGKILL)
    wait_until(lambda: night.query("SELECT 1 FROM event WHERE data LIKE '%zygote-died%'"))
    assert night.requeue("load").ok
    night.wait_for("report", "SUCCESS")
    (night.folder / "gate").touch()
    night.wait_for("long", "SUCCESS")
    assert (night.result_of("report"), night.result_of("long")) == ("8", "5")
    assert os.waitpid(night.pid, 0)[1] == 0
