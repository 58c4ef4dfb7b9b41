"""An effect happens at most once, whatever dies: that it may begin is on the disk before it does."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Flow, FlowError, TaskDef
from redrive.engine.agent import command_client
from redrive.engine.domain.acts import parse_command
from redrive.engine.executor import host
from redrive.engine.store import database
from support.processes import wait_for_end
from support.waiting import wait_until

FLOW = """
import os, pathlib, time
from redrive.engine import Flow, TransientError

flow = Flow("night")
here = pathlib.Path(__file__).parent

@flow.task(kind="effect", max_attempts=5)
def pay(ctx):
    with open(here / "paid", "a") as paid:
        paid.write(ctx.idempotency_key + "\\n")
    while (here / "hang").exists():
        time.sleep(0.02)
    if (here / "fail").exists():
        raise TransientError("the line dropped")

@flow.task(after=pay)
def tell(): ...
"""


def begin(folder: Path, **options: Any) -> tuple[str, int]:
    """Start the run; its state file, and the executor's pid."""
    (folder / "flow.py").write_text(FLOW)
    state = str(folder / "state.db")
    settings: dict[str, Any] = {"flow": str(folder / "flow.py"), "state": state, "run_id": "r"}
    return state, host.spawn(**settings, options={"durability": "normal", **options})


def row(state: str, columns: str = "state, dead_letter_kind, error") -> Any:
    with sqlite3.connect(state) as connection:
        return connection.execute(f"SELECT {columns} FROM task WHERE name = 'pay'").fetchone()


def paid(folder: Path) -> list[str]:
    return (folder / "paid").read_text().splitlines() if (folder / "paid").exists() else []


def test_a_killed_executor_leaves_a_dead_letter_that_says_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    state, pid = begin(tmp_path)
    wait_until(lambda: paid(tmp_path))
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    with database.reading(state) as connection:
        sql = "SELECT json_extract(data, '$.key') FROM event WHERE kind = 'attempt.effect'"
        assert connection.execute(sql).fetchall() == [("r/pay/0",)]
    (tmp_path / "hang").unlink()
    state, pid = begin(tmp_path)
    wait_for_end(pid)
    now, kind, error = row(state)
    assert (now, kind) == ("DEAD_LETTER", "indeterminate")
    assert error.startswith("its process died after the effect began: look for the key r/pay/0")
    assert paid(tmp_path) == ["r/pay/0"]


@pytest.mark.long
def test_the_same_is_found_out_by_who_acts_before_anybody_resumes(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    state, pid = begin(tmp_path)
    wait_until(lambda: paid(tmp_path))
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    command = {"id": "c", "act": "requeue", "run_id": "r", "actor": "ana@desk", "reason": "again", "options": {}}
    answer = command_client.send_blocking(
        state, parse_command({**command, "targets": [["pay", "RUNNING", 0]]})
    ).as_json()
    assert not answer["ok"] and "look for the key r/pay/0 in the other system" in answer["message"]
    assert row(state)[:2] == ("DEAD_LETTER", "indeterminate")


@pytest.mark.long
def test_what_fails_on_the_way_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    state, pid = begin(tmp_path)
    wait_for_end(pid)
    assert row(state)[:2] == ("DEAD_LETTER", "indeterminate")
    assert paid(tmp_path) == ["r/pay/0"]


def test_one_that_goes_well_is_a_task_like_any_other(tmp_path: Path) -> None:
    state, pid = begin(tmp_path)
    wait_for_end(pid)
    assert row(state)[0] == "SUCCESS" and paid(tmp_path) == ["r/pay/0"]


def test_a_sensor_is_no_effect() -> None:
    flow = Flow("night")
    with pytest.raises(FlowError, match="at most once is a task of its own"):
        flow.add(TaskDef("look", lambda: True, kind="sensor", effect=True))
