"""``redrive serve`` of several flows with real processes: refused, stopped, and killed, one service or all."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.statefile import lock_file
from support.commands import run_redrive, start_redrive
from support.processes import find_processes_in, wait_until_dead

PATIENCE_SECONDS = 60
QUICK = """from redrive.engine import Flow
flow = Flow('{name}', schedule='every 1s')
@flow.task
def a(): pass
"""
HELD = """import time
from redrive.engine import Flow
flow = Flow('{name}', schedule='every 1s')
@flow.task(timeout=600)
def held(): time.sleep(600)
"""


class Services:
    """One supervisor of several services, and what it has printed."""

    def __init__(self, *flows: Path) -> None:
        self.process: Any = start_redrive("serve", *flows, text=False)
        self.text = ""

    def until(self, pattern: str) -> None:
        """Wait until it has printed this, after what earlier calls have found."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, self.text)) is None:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert piece, f"no {pattern!r} in {self.text!r}"
            self.text += piece.decode()
        self.text = self.text[found.end() :]

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return tmp_path / "states/redrive"


@pytest.fixture
def serve(tmp_path: Path, states: Path) -> Iterator[Callable[..., Services]]:
    """Serves flows that are given by name and text."""
    made: list[Services] = []

    def start(**texts: str) -> Services:
        made.append(Services(*(write_flow(tmp_path, name, text) for name, text in texts.items())))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.stop()


def write_flow(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text.format(name=name))
    return path


def pid_of_service(state: Path) -> int:
    holder = lock_file.served_by(str(state))
    assert holder is not None
    return holder.pid


def runs_in(state: Path) -> list[str]:
    with sqlite3.connect(state) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM run ORDER BY started_at")]


def test_each_flow_has_its_process_its_state_file_and_its_name_before_its_lines(serve, states):
    services = serve(one=QUICK, second=QUICK)
    services.until(r"(?m)^one    \| \[.*\] a SUCCESS$")
    services.until(r"(?m)^second \| \[.*\] a SUCCESS$")
    assert len({pid_of_service(states / f"{name}.db") for name in ("one", "second")} - {services.process.pid}) == 2
    services.stop()
    assert all("SUCCESS" in runs_in(states / f"{name}.db") for name in ("one", "second"))


def test_nothing_starts_if_one_flow_is_broken_and_each_broken_one_is_named(tmp_path, states):
    good, broken = write_flow(tmp_path, "good", QUICK), write_flow(tmp_path, "broken", "1 / 0\n")
    unscheduled = write_flow(tmp_path, "unscheduled", QUICK.replace(", schedule='every 1s'", ""))
    namesake = write_flow(tmp_path, "namesake", QUICK.replace("{name}", "good"))
    done = run_redrive("serve", good, broken, unscheduled, namesake)
    assert (done.returncode, done.stdout) == (2, "")
    first, second, third = done.stderr.splitlines()
    assert str(broken) in first and "ZeroDivisionError" in first
    assert str(unscheduled) in second and "has no schedule" in second
    assert str(namesake) in third and f"as that of {good}" in third
    assert not states.exists()


@pytest.mark.parametrize("words", [["--state", "x.db"], ["--param", "n=1"]])
def test_what_can_mean_one_flow_only_is_refused(tmp_path, states, words):
    flows = [write_flow(tmp_path, name, QUICK) for name in ("one", "two")]
    assert run_redrive("serve", *flows, *words).returncode == 2
    assert not states.exists()


@pytest.mark.long
def test_a_service_that_is_killed_starts_again_and_the_others_go_on(serve, states):
    services = serve(one=QUICK, two=QUICK)
    services.until(r"one \| .* a SUCCESS")
    services.until(r"two \| .* a SUCCESS")
    killed, other = pid_of_service(states / "one.db"), pid_of_service(states / "two.db")
    os.kill(killed, signal.SIGKILL)
    services.until(r"one \| has died \(SIGKILL\), starts again in [01]\.\d s")
    services.until(r"one \| .* serves one")
    services.until(r"one \| .* a SUCCESS")
    services.until(r"two \| .* a SUCCESS")
    assert pid_of_service(states / "one.db") != killed and pid_of_service(states / "two.db") == other


def test_sigterm_stops_every_service_in_order_and_the_worst_exit_code_counts(serve, tmp_path):
    services = serve(quick=QUICK.replace("every 1s", "0 0 1 1 *"), held=HELD)
    services.until("held RUNNING")
    assert services.stop() == 130
    assert find_processes_in(tmp_path) == {}


def test_a_supervisor_that_is_killed_leaves_no_process_behind(serve, states, tmp_path):
    services = serve(quick=QUICK, held=HELD)
    services.until("held RUNNING")
    children = {*find_processes_in(tmp_path)} - {services.process.pid}
    assert len(children) > 2
    services.process.kill()
    services.process.wait()
    assert wait_until_dead(children, PATIENCE_SECONDS) == []
    assert runs_in(states / "held.db") == ["RUNNING"]
