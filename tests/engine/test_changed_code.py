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
from redrive.engine.domain.acts import Answer, Command, Target
from redrive.engine.executor import host

from ..support.processes import zygotes_of
from ..support.waiting import wait_until

pytestmark = pytest.mark.spawns  # zygotes are found by their words

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


class FlowUnderEdit:
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
        self.pid = host.spawn(flow=flow, state=self.state, run_id="r", options={"stay": True})

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
        return zygotes_of(self.pid)

    def result_of(self, task: str) -> object:
        return self.query(f"SELECT result FROM task WHERE name = '{task}'")[0][0]


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[FlowUnderEdit]:
    edited = FlowUnderEdit(tmp_path)
    yield edited
    edited.kill()


@pytest.fixture
def failed_edit(edited: FlowUnderEdit) -> FlowUnderEdit:
    edited.start()
    edited.wait_for("load", "FAILED")
    edited.wait_for("long", "RUNNING")
    return edited


@pytest.mark.long
def test_a_requeue_runs_the_new_code_of_a_module_beside_the_flow(failed_edit: FlowUnderEdit) -> None:
    edited = failed_edit
    edited.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    answer = edited.requeue("load")
    assert answer.ok
    assert "runs the code of " in answer.message and "(parts/helper.py changed)" in answer.message
    edited.wait_for("report", "SUCCESS")
    assert edited.result_of("report") == "8"
    hashes = edited.query("SELECT DISTINCT code_hash FROM attempt WHERE name = 'load'")
    assert len(hashes) == 2, "the evidence must name the changed code"
    assert edited.query("SELECT count(*) FROM event WHERE data LIKE '%code-loaded%'") == [(1,)]
    edited.write("night.py", edited.flow_text.replace("return load", "return load + 1"))
    assert "by themselves" not in edited.requeue("report").message, "it runs again, and nothing else has changed"


@pytest.mark.long
def test_a_running_attempt_ends_with_the_code_that_it_began_with(failed_edit: FlowUnderEdit) -> None:
    edited = failed_edit
    edited.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    assert edited.send("pause").ok, "so that the run goes on after the attempt"
    assert "runs the code of " in edited.requeue("load").message
    assert len(edited.zygotes()) == 2
    (edited.folder / "gate").touch()
    edited.wait_for("long", "SUCCESS")
    assert edited.result_of("long") == "5"
    wait_until(lambda: len(edited.zygotes()) == 1)


def test_code_that_cannot_be_imported_is_named_with_its_line_and_the_old_code_stays(failed_edit: FlowUnderEdit) -> None:
    edited = failed_edit
    edited.write("night.py", edited.flow_text + "\ndef broken(:\n")
    answer = edited.requeue("load")
    assert answer.ok, "the requeue itself is done, with the old code"
    line = len((edited.folder / "night.py").read_text().splitlines())
    assert "night.py changed but cannot be used" in answer.message and f"line {line}" in answer.message
    wait_until(lambda: edited.query("SELECT attempt, state FROM task WHERE name = 'load'") == [(2, "FAILED")])
    assert edited.query("SELECT code_changed FROM run") == [("night.py",)]
    assert not edited.send("reload").ok
    edited.write("night.py", edited.flow_text)
    assert edited.send("reload").message == "nothing changed: the executor runs the code that is on the disk"
    wait_until(lambda: edited.query("SELECT code_changed FROM run") == [(None,)])
    assert edited.query("SELECT state FROM task WHERE name = 'long'") == [("RUNNING",)]


def test_changed_options_of_a_task_apply_to_its_next_attempt(failed_edit: FlowUnderEdit) -> None:
    edited = failed_edit
    changed = edited.flow_text.replace("max_attempts=1)", "max_attempts=2, base=0.01), timeout=77")
    edited.write("night.py", changed)
    assert "changed tasks: load" in edited.requeue("load").message
    wait_until(lambda: edited.query("SELECT attempt, state FROM task WHERE name = 'load'") == [(3, "DEAD_LETTER")])
    assert edited.query("SELECT timeout_us FROM attempt WHERE name = 'load' AND attempt = 3") == [(77_000_000,)]


@pytest.mark.long
def test_a_graph_that_no_longer_fits_is_not_loaded_and_the_answer_says_why(failed_edit: FlowUnderEdit) -> None:
    edited = failed_edit
    edited.write("night.py", edited.flow_text.replace("def report(load)", "def renamed(load)"))
    answer = edited.send("reload")
    assert not answer.ok
    assert "it no longer defines report: stop, then redrive resume /" in answer.message
    edited.write("night.py", edited.flow_text + "\n@flow.task\ndef extra():\n    return 1\n")
    assert "added tasks, which start after a stop and a resume: extra" in edited.send("reload").message


@pytest.mark.long
def test_a_failure_after_a_change_reports_it_and_runs_the_loaded_code(edited: FlowUnderEdit) -> None:
    retrying = edited.flow_text.replace("max_attempts=1)", "max_attempts=2, base=0.5, jitter='none')")
    edited.write("night.py", retrying.replace("if amount() < 7", "if SEEN.exists() or not SEEN.touch()"))
    text = (edited.folder / "night.py").read_text()
    edited.write("night.py", f"from pathlib import Path\nSEEN = Path({str(edited.folder / 'seen')!r})\n" + text)
    edited.start()
    wait_until(lambda: (edited.folder / "seen").exists())
    edited.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    edited.wait_for("load", "DEAD_LETTER")
    wait_until(lambda: edited.query("SELECT code_changed FROM run") == [("parts/helper.py",)])
    assert len(edited.query("SELECT DISTINCT code_hash FROM attempt WHERE name = 'load'")) == 1


@pytest.mark.long
def test_a_dead_zygote_is_replaced_while_attempts_of_the_replaced_code_go_on(failed_edit: FlowUnderEdit) -> None:
    """The end of one zygote must not kill what another one has forked."""
    edited = failed_edit
    edited.write("parts/helper.py", "def amount():\n    return 5 + 3\n")
    assert edited.send("reload").ok
    _, current = edited.zygotes()
    os.kill(current, signal.SIGKILL)
    wait_until(lambda: edited.query("SELECT 1 FROM event WHERE data LIKE '%zygote-died%'"))
    assert edited.requeue("load").ok
    edited.wait_for("report", "SUCCESS")
    (edited.folder / "gate").touch()
    edited.wait_for("long", "SUCCESS")
    assert (edited.result_of("report"), edited.result_of("long")) == ("8", "5")
    assert os.waitpid(edited.pid, 0)[1] == 0
