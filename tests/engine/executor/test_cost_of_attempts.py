"""What a short attempt costs, in counts that no other process changes: messages, commits, statements, modules.

Seconds are measured by ``tests/bench/bench_peers.py``. A bound that fails here is raised only with a reason.
"""

import ast
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, TaskDef
from redrive.engine.executor import attempts
from redrive.engine.executor.opening import Machine
from redrive.engine.runner import protocol
from redrive.engine.runner.channels import FrameSocket
from redrive.engine.runner.zygote import connection
from redrive.engine.store import database

TASKS = 40
OPENING = 12  # commits and messages of a run, however many tasks it has


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts commits, SQL statements, and frames from and to the zygote, in runs of this process."""
    found: Counter[str] = Counter()
    open_for_writing, enqueue, receive = database.open_for_writing, FrameSocket._enqueue, protocol.decode_zygote_frame

    def open_counted(*args: Any, **options: Any) -> sqlite3.Connection:
        opened = open_for_writing(*args, **options)
        opened.set_trace_callback(lambda sql: found.update(["commits" if sql == "COMMIT" else "statements"]))
        return opened

    def sent(self: FrameSocket, frame: protocol.Frame, *args: Any) -> None:
        found["messages"] += 1
        enqueue(self, frame, *args)

    def received(payload: bytes) -> Any:
        found["messages"] += 1
        return receive(payload)

    monkeypatch.setattr(database, "open_for_writing", open_counted)
    monkeypatch.setattr(FrameSocket, "_enqueue", sent)
    monkeypatch.setattr(protocol, "decode_zygote_frame", received)
    monkeypatch.setattr(attempts, "STARTED_DELAY_SECONDS", 60.0)  # else attempts on a busy machine are long ones
    monkeypatch.setattr(connection, "PING_SECONDS", 600.0)  # else a busy machine counts pings
    return found


def test_a_short_attempt_costs_three_messages_and_one_commit(tmp_path: Path, counts: Counter[str]) -> None:
    tasks = [TaskDef(f"t{number}", int, [f"t{number - 1}"] if number else []) for number in range(TASKS)]
    machine = Machine(open_database=database.open_for_writing, heartbeat_seconds=60.0)
    assert Executor("cost", "r", tasks, state=tmp_path / "s.db", machine=machine).run() == "SUCCESS"
    each = {name: round((count - OPENING) / TASKS, 1) for name, count in counts.items()}
    bounds = {"messages": 3.0, "commits": 1.0, "statements": 12}  # a slow disk makes more rounds of syncs
    assert {name: count for name, count in each.items() if count > bounds[name]} == {}, each


#: Modules whose memory or work after a fork each attempt would pay for.
COSTLY = {"asyncio", "threading", "random", "subprocess", "logging", "_hashlib", "zoneinfo", "binascii", "unicodedata"}

#: A program with a flow of its own. Its task returns what it has loaded.
PROGRAM = f"""
import sys
from redrive.engine import Executor, TaskDef

def loaded(ctx):
    return sorted({COSTLY} & sys.modules.keys())

print(Executor("cost", "r", [TaskDef("t", loaded)], state=sys.argv[1]).run_result()["t"])
"""


def test_an_attempt_has_no_module_that_costs_each_fork(tmp_path: Path) -> None:
    """In an interpreter of its own: pytest has imported much that a flow has not."""
    words = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "s.db")]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ast.literal_eval(ran.stdout) == []
