"""Executors that one process forks: they start, outlive it, and start without it."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.engine.errors import FlowError
from redrive.engine.executor import host
from redrive.engine.executor.starter import Starter
from support.processes import wait_until_dead

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


def spawn(folder: Path, state: str, starter: Starter) -> int:
    (folder / "flow.py").write_text(FLOW)
    path = str(folder / state)
    return host.spawn(flow=str(folder / "flow.py"), state=path, run_id="r", params={}, options={}, start=starter.start)


def state_of(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        return str(connection.execute("SELECT state FROM run").fetchone()[0])


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


def test_the_error_of_a_start_is_raised_as_by_a_fresh_interpreter(tmp_path, starter):
    (tmp_path / "broken.py").write_text("def broken(:\n")
    with pytest.raises(FlowError, match="SyntaxError"):
        host.spawn(
            flow=str(tmp_path / "broken.py"),
            state=str(tmp_path / "s.db"),
            run_id="r",
            params={},
            options={},
            start=starter.start,
        )
