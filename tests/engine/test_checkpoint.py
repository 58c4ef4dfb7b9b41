"""A long task goes on where its last attempt was (003.33)."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, RetryPolicy, TransientError
from redrive.engine.agent.command_client import send_blocking
from redrive.engine.domain.acts import parse_command

QUICK = RetryPolicy(max_attempts=4, base=0.01, cap=0.02)


def run(tmp_path: Path, flow: Flow) -> str:
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()


def pages_read(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "read").read_text().split()]


def reading(tmp_path: Path, stops_at: dict[int, Any]) -> Flow:
    """Reads ten pages, one after the other; ``stops_at``: attempt -> (page, how it ends there)."""
    flow = Flow("f")

    @flow.task(timeout=30, retry=QUICK)
    def read(ctx: Any) -> int:
        first = (ctx.checkpointed or {"next": 0})["next"]
        for page in range(first, 10):
            at, end = stops_at.get(ctx.attempt, (None, None))
            if page == at:
                end()
            with (tmp_path / "read").open("a") as file:
                file.write(f"{page}\n")
            ctx.checkpoint({"next": page + 1})
        return first

    return flow


def reset() -> None:
    raise TransientError("connection reset")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_retry_goes_on_where_the_attempt_before_was(tmp_path):
    assert "SUCCESS" == run(tmp_path, reading(tmp_path, {1: (4, reset), 2: (8, reset)}))
    assert list(range(10)) == pages_read(tmp_path)


def test_what_was_left_before_a_kill_is_not_lost(tmp_path):
    assert "SUCCESS" == run(tmp_path, reading(tmp_path, {1: (7, die)}))
    assert list(range(10)) == pages_read(tmp_path)


def test_a_requeue_begins_at_the_beginning(tmp_path):
    run(tmp_path, reading(tmp_path, {}))
    command = {
        "id": "c1",
        "act": "requeue",
        "run_id": "r",
        "targets": [["read", "SUCCESS", 0]],
        "actor": "ana@ops",
        "reason": "the source was wrong",
    }
    assert send_blocking(str(tmp_path / "state.db"), parse_command(command)).ok
    assert "SUCCESS" == run(tmp_path, reading(tmp_path, {}))
    assert 2 * list(range(10)) == pages_read(tmp_path)


@pytest.mark.parametrize("value", [object(), "x" * 70_000])
def test_a_value_that_cannot_be_stored_is_refused_in_words(tmp_path, value):
    flow = Flow("f")

    @flow.task(timeout=30, max_attempts=1)
    def leaves(ctx: Any) -> None:
        ctx.checkpoint(value)

    run(tmp_path, flow)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        ((error, checkpoint),) = connection.execute("SELECT error, checkpoint FROM task").fetchall()
    assert checkpoint is None and ("checkpoint" in error or "JSON" in error)
