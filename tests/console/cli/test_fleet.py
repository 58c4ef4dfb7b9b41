"""``redrive fleet``: all state files of a machine, those that need a human first."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.console.present.fleet import FLEET_COLUMNS
from redrive.engine import Executor, Flow, PermanentError
from redrive.engine.executor import host
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.state_files import FileRowReader
from redrive.engine.store.supervisor_writer import SupervisorFile
from support.commands import REDRIVE, run_redrive, start_redrive
from support.pty_terminal import PtyTerminal
from support.waiting import wait_until

HELD = """import time
from redrive.engine import Flow
flow = Flow("held")
@flow.task(timeout=600)
def wait(): time.sleep(600)
"""
YEARLY = """from redrive.engine import Flow
flow = Flow("yearly", schedule="0 0 1 1 *")
@flow.task
def a(): pass
"""


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return tmp_path / "states/redrive"


def run_flow(name: str, *, failures: int = 0, state: Path | None = None) -> None:
    """Run a flow of two tasks."""
    flow = Flow(name)

    def task(number: int) -> None:
        if number < failures:
            raise PermanentError("no")

    for number in range(2):
        flow.task(name=f"task_{number}")(lambda number=number: task(number))
    Executor(run_id="night", flow=flow, state=state).run()


def fleet() -> dict[str, dict[str, Any]]:
    """File name -> its values, in order."""
    lines = run_redrive("fleet", "--json").stdout.splitlines()
    return {Path(one["state_file"]).stem: one for one in map(json.loads, lines)}


def test_files_that_need_a_human_come_first_with_their_count(states: Path) -> None:
    run_flow("blocked", failures=2)
    run_flow("done")
    (states / "odd.db").write_text("not a database")
    found = fleet()
    assert [*found] == ["blocked", "odd", "done"]
    assert [(one["state"], one["needs_human"]) for one in found.values()] == [("BLOCKED", 2), (None, 1), ("SUCCESS", 0)]
    assert "not a redrive state file" in found["odd"]["problem"]
    heading, *rows = run_redrive("fleet").stdout.splitlines()
    assert re.split("  +", heading) == [column.title for column in FLEET_COLUMNS if column.title]
    assert rows[0].split()[:4] == ["2", "blocked", "BLOCKED", "0/2"] and str(states / "blocked.db") in rows[0]
    assert rows[0].endswith("2 tasks: no")
    assert rows[1].split()[0] == "1" and rows[2].split()[:3] == ["done", "SUCCESS", "2/2"]


def test_a_run_whose_executor_was_killed_needs_a_human(tmp_path: Path, states: Path) -> None:
    states.mkdir(parents=True)
    (tmp_path / "held.py").write_text(HELD)
    pid = host.spawn(flow=str(tmp_path / "held.py"), state=str(states / "held.db"), run_id="r", options={})
    reader = FileRowReader()
    (running,) = reader.read()
    assert running.executor.alive and running.executor.pid == pid
    assert (fleet()["held"]["needs_human"], fleet()["held"]["executor_pid"]) == (0, pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not reader.read()[0].executor.alive)
    assert (fleet()["held"]["needs_human"], fleet()["held"]["executor_alive"]) == (1, False)
    assert "executor dead since" in run_redrive("fleet").stdout


def test_a_served_file_says_who_serves_it_and_what_comes(tmp_path: Path) -> None:
    (tmp_path / "yearly.py").write_text(YEARLY)
    service = start_redrive("serve", tmp_path / "yearly.py")
    try:
        assert service.stdout is not None
        while "next " not in service.stdout.readline():
            pass
        found = fleet()["yearly"]
        assert (found["service_pid"], found["run_id"]) == (service.pid, None) and found["next_at"] > 0
        row = run_redrive("fleet").stdout.splitlines()[1]
        assert "served" in row and "next 01 Jan 00:00, in" in row
        assert row.split()[0] == found["flow"] == "yearly", "before its first run"
    finally:
        service.terminate()
        service.communicate()


def test_a_served_flow_with_its_state_file_elsewhere_is_in_the_one_look(states: Path, tmp_path: Path) -> None:
    states.mkdir(parents=True)
    with closing(SupervisorFile(supervisor_path(), "one")) as file:
        file.register(1, "here", "[]", 0)
        for name, folder in (("far", tmp_path), ("near", states)):
            row = file.claim(f"{name}.py:flow", name, str(folder / f"{name}.db"))
            file.save(row._replace(supervisor_id="one", spec="{}"))
    run_flow("near")
    assert [row.path for row in FileRowReader().read()] == [str(states / "near.db")], "it has no file yet"
    run_flow("far", failures=1, state=tmp_path / "far.db")
    assert {name: one["needs_human"] for name, one in fleet().items()} == {"far": 1, "near": 0}
    assert run_redrive("inbox").returncode == 3


def test_a_flow_that_could_never_start_is_in_the_fleet_though_it_has_no_state_file(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "broken.py").write_text(YEARLY.replace("def a():", "def a(:"))
    service = start_redrive("serve", folder)
    try:
        assert service.stdout is not None
        while "cannot be served" not in service.stdout.readline():
            pass
        (found,) = fleet().values()
        assert (found["flow"], found["needs_human"]) == ("broken", 1) and "SyntaxError" in found["problem"]
        row = run_redrive("fleet").stdout.splitlines()[1].split()
        assert row[:3] == ["1", "broken", "cannot"]
        inbox = run_redrive("inbox")
        assert inbox.returncode == 1 and "cannot start since" in inbox.stdout
        assert FileRowReader().read() == FileRowReader().read()  # a heartbeat alone changes nothing
    finally:
        service.terminate()
        service.communicate()


def test_a_reader_opens_a_file_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    run_flow("one")
    run_flow("two")
    reader = FileRowReader()
    before = reader.read()
    opened: list[str] = []
    module = "redrive.engine.statefile.reader"
    really_open = __import__(module, fromlist=["open_readonly"]).open_readonly
    monkeypatch.setattr(f"{module}.open_readonly", lambda path: (opened.append(path), really_open(path))[1])
    assert reader.read() == before and opened == []
    run_flow("three")
    assert len(reader.read()) == 3
    assert [Path(path).stem for path in opened] == ["three"]


def test_no_file_at_all_is_said(states: Path) -> None:
    assert "there is no state file in the default place" in run_redrive("fleet").stdout


def test_a_fleet_of_one_file_is_refused(tmp_path: Path) -> None:
    done = run_redrive("fleet", tmp_path / "x.db")
    assert done.returncode == 2 and "write ssh://host" in done.stderr


# --- attach --------------------------------------------------------------------------------------------------------


@pytest.fixture
def attach() -> Iterator[Callable[..., PtyTerminal]]:
    """The command on a terminal of its own."""
    started: list[PtyTerminal] = []

    def start(**variables: str) -> PtyTerminal:
        environ = dict(os.environ, TERM="xterm-256color", **variables)
        started.append(PtyTerminal([*REDRIVE, "attach"], columns=120, environ=environ))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


@pytest.mark.long
def test_without_a_command_a_terminal_shows_what_there_is(states: Path) -> None:
    """Nothing yet: first steps. One flow: its run. Several: the list."""
    shown = {0: "redrive demo", 1: "6 Journal", 2: "2 state files on this machine"}
    for count, text in shown.items():
        if count:
            run_flow(f"flow_{count}")
        terminal = PtyTerminal([*REDRIVE], columns=120, rows=200, environ=dict(os.environ, TERM="xterm-256color"))
        try:
            terminal.until(text)
            terminal.send("q" if count else "")
            assert terminal.wait() == 0
        finally:
            terminal.close()
    assert run_redrive().stdout.startswith("Usage: ")


@pytest.mark.long
def test_attach_shows_several_files_as_a_list_and_esc_returns_to_it(attach: Callable[..., PtyTerminal]) -> None:
    run_flow("blocked", failures=2)
    run_flow("done")
    terminal = attach()
    terminal.until(lambda: "2 state files on this machine" in terminal.text and "done" in terminal.text)
    terminal.send("\r")
    terminal.until(lambda: "6 Journal" in terminal.text and "task_1" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "2 state files on this machine" in terminal.text and "task_1" not in terminal.text)
    run_flow("third")
    terminal.until("3 state files on this machine")
    terminal.send("q")
    assert terminal.wait() == 0
    assert terminal.is_given_back()


@pytest.mark.long
def test_attach_opens_a_single_file_and_that_of_the_variable_at_once(
    attach: Callable[..., PtyTerminal], states: Path
) -> None:
    run_flow("one")
    single = attach()
    single.until(lambda: "6 Journal" in single.text and "one" in single.text)
    run_flow("two")
    named = attach(REDRIVE_STATE=str(states / "one.db"))
    named.until(lambda: "6 Journal" in named.text and "one" in named.text)
