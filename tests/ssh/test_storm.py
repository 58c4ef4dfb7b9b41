"""A console over ssh while all between it and the run is cut, frozen or killed: it stays, and ends with the truth.

What is struck, when, and which keys are pressed is drawn from a number.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.commands import REDRIVE, run_redrive, start_redrive
from support.marks import parametrize_mostly_long, scaled
from support.pty_terminal import PtyTerminal
from support.ssh_host import SshHost
from support.waiting import wait_until

from ..crash.test_kill_executor import projection_is_table

STRIKES = 8
FROZEN_SECONDS = 7.0  # longer than the silence after which a line is called stale
#: No key of these leaves the console, or pauses the run.
KEYS = [*"2345678jkhlgGdontvemi0,.-=[]{}a", " ", "\t", "\x1b", "\r", "r", "s", "b", "y"]
FLOW = """
import pathlib, time
from redrive.engine import Flow, RetryPolicy

flow = Flow("storm", max_parallel=4)
here = pathlib.Path(__file__).parent

def steady():
    time.sleep(0.6)
    print("steady")

def fragile():
    time.sleep(0.1)
    if not (here / "mended").exists():
        raise ValueError("the file is not there")

last = []
for level in range(12):
    names = [f"steady{level}a", f"steady{level}b", f"steady{level}c"]
    for name in names:
        flow.task(steady, name=name, after=last, timeout=60, max_losses=99)
    flow.task(fragile, name=f"fragile{level}", after=last, timeout=60, max_losses=99)
    last = names
"""


class Storm:
    """A run, the executors that it gets one after another, and a console that follows it over ssh."""

    def __init__(self, folder: Path, far: SshHost, number: int) -> None:
        self.dice = random.Random(number)
        self.far = far
        self.folder = folder
        self.state = folder / "storm.db"
        (folder / "flow.py").write_text(FLOW)
        self.executor = start_redrive("run", folder / "flow.py", "--state", self.state, "--run-id", "r", "--plain")
        wait_until(self.state.exists)
        self.terminal = PtyTerminal(
            [*REDRIVE, "attach", f"ssh://far{self.state}"],
            columns=100,
            rows=30,
            environ=dict(os.environ, TERM="xterm-256color", PAGER="true", EDITOR="true", VISUAL="true"),
        )

    def close(self) -> None:
        self.terminal.close()
        self.executor.kill()
        self.executor.communicate(timeout=60)

    def strike(self) -> None:
        """Do something to the line, a process or the window, while keys are pressed."""
        acts: list[Callable[[], None]] = [
            self.far.cut,
            self.freeze_line,
            self.kill_agents,
            self.restart_server,
            self.kill_executor,
            self.resize,
        ]
        self.dice.choice(acts)()
        for _ in range(self.dice.randint(1, 6)):
            self.terminal.send(self.dice.choice(KEYS))
            self.terminal.read_for(self.dice.uniform(0.0, 0.2))
        assert self.terminal.process.poll() is None, self.terminal.text

    def freeze_line(self) -> None:
        clients = self.far.connections()
        for pid in clients:
            os.kill(pid, signal.SIGSTOP)
        self.terminal.read_for(self.dice.choice((0.5, FROZEN_SECONDS)))
        for pid in clients:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill_agents(self) -> None:
        for pid in remote_agents(self.far):
            os.kill(pid, signal.SIGKILL)

    def restart_server(self) -> None:
        self.far.stop()
        self.far.cut()
        self.terminal.read_for(self.dice.uniform(0.0, 2.0))
        self.far.start()

    def kill_executor(self) -> None:
        """The next executor goes on with the run, which may have ended."""
        self.executor.kill()
        self.executor.communicate(timeout=60)
        self.terminal.read_for(self.dice.uniform(0.0, 1.0))
        self.executor = start_redrive("resume", self.state, "--plain")

    def resize(self) -> None:
        self.terminal.resize(self.dice.randint(70, 160), self.dice.randint(20, 50))

    def end_run(self) -> None:
        """Let the executor end, mend what failed, and requeue it."""
        self.executor.communicate(timeout=240)
        (self.folder / "mended").touch()
        requeued = run_redrive(
            "requeue", "*", "--only", "dead_letter", "--yes", "--reason", "mended", "--state", self.state
        )
        assert requeued.returncode in (0, 3), requeued
        self.executor = start_redrive("resume", self.state, "--plain")
        self.executor.communicate(timeout=240)

    def check(self) -> None:
        """Check the file, and that the console says what the file says."""
        terminal, state, count = self.terminal, *self.end()
        with closing(sqlite3.connect(self.state)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            projection_is_table(connection)
        terminal.resize(100, 30)
        for _ in range(6):  # out of every dialog, filter and past
            terminal.send("\x1b")
            terminal.read_for(0.2)
        terminal.send("2")
        terminal.until(lambda: f" {state} {count}/48 ".lower() in terminal.lines[0].lower())
        terminal.until(
            lambda: (
                any(line.startswith((" groups", " matches")) for line in terminal.lines) and "DEAD" not in terminal.text
            )
        )
        terminal.send("q")
        assert terminal.wait() in (0, 3), terminal.text
        assert terminal.is_given_back()
        wait_until(lambda: not self.far.connections() and not remote_agents(self.far))

    def end(self) -> tuple[str, int]:
        """The state of the run, and how many of its tasks succeeded or were skipped."""
        with closing(sqlite3.connect(self.state)) as connection:
            ((state, blocked),) = connection.execute("SELECT state, blocked_since FROM run").fetchall()
            ((done,),) = connection.execute("SELECT count(*) FROM task WHERE state IN ('SUCCESS', 'SKIPPED')")
        return "BLOCKED" if blocked else state, done


def remote_agents(far: SshHost) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "-ISuc" in process.cmdline() and process.environ().get("HOME") == str(far.home):
                found.append(process.pid)
    return found


@pytest.fixture
def make_storm(tmp_path: Path, far: Any) -> Iterator[Callable[[int], Storm]]:
    made: list[Storm] = []

    def make(number: int) -> Storm:
        made.append(Storm(tmp_path, far, number))
        return made[-1]

    yield make
    for storm in made:
        storm.close()


@parametrize_mostly_long("number", range(scaled(3)), quick=0, daily=1)
def test_a_console_outlives_whatever_happens_between_it_and_the_run(
    make_storm: Callable[[int], Storm], number: int
) -> None:
    storm = make_storm(number)
    terminal = storm.terminal
    terminal.until(lambda: 1049 in terminal.modes and "storm" in terminal.text)
    for _ in range(STRIKES):
        storm.strike()
    storm.end_run()
    storm.check()
