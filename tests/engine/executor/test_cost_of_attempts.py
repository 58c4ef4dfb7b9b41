"""What a short attempt costs, in counts that no other process changes: messages, commits, statements, calls, pages.

Seconds are measured by ``tests/bench/bench_peers.py``. A bound that fails here is raised only with a reason.
"""

import ast
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from redrive.engine import Executor, TaskDef
from redrive.engine.executor import attempts
from redrive.engine.executor.machine import Machine
from redrive.engine.runner import protocol
from redrive.engine.runner.frame_socket import FrameSocket
from redrive.engine.store import database

TASKS = 40
OPENING = 12  # commits and messages of a run, however many tasks it has
PAGES = 110  # found 99; through child.py 275 (direct_call.py)
PAGES_WITH_LOGGING = 125  # and threading; 113, and 60 more with all that both do after a fork
PAGES_WITH_RANDOM = 128  # 116, and 10 more with what it does after a fork
PAGES_WITH_ARGUMENT = 185  # the result of a parent; 169
PAGES_WITH_CONTEXT = 262  # 237, and 45 more through child.py


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts commits, SQL statements, and frames from and to the zygote, in runs of this process."""
    found: Counter[str] = Counter()
    open_for_writing, enqueue, receive = database.open_for_writing, FrameSocket._enqueue, protocol.decode_zygote_frame

    def opened(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = open_for_writing(*args, **options)
        connection.set_trace_callback(lambda sql: found.update(["commits" if sql == "COMMIT" else "statements"]))
        return connection

    def sent(self: FrameSocket, frame: protocol.Frame, *args: Any) -> None:
        found["messages"] += 1
        enqueue(self, frame, *args)

    def received(payload: bytes) -> Any:
        found["messages"] += 1
        return receive(payload)

    monkeypatch.setattr(database, "open_for_writing", opened)
    monkeypatch.setattr(FrameSocket, "_enqueue", sent)
    monkeypatch.setattr(protocol, "decode_zygote_frame", received)
    monkeypatch.setattr(protocol, "ANNOUNCE_SECONDS", 60.0)  # else attempts on a busy machine are long ones
    monkeypatch.setattr(attempts, "STARTED_DELAY_SECONDS", 60.0)
    return found


def calls_of_the_engine(frame: Any, event: str, argument: object) -> None:
    if event == "call" and "/engine/" in frame.f_code.co_filename:
        _calls["calls"] += 1


_calls: Counter[str] = Counter()


def test_a_short_attempt_costs_two_messages_and_one_commit(tmp_path: Path, counts: Counter[str]) -> None:
    tasks = [TaskDef(f"t{number}", int, [f"t{number - 1}"] if number else []) for number in range(TASKS)]
    _calls.clear()
    executor = Executor(
        "cost",
        "r",
        tasks,
        state=tmp_path / "s.db",
        machine=Machine(open_database=database.open_for_writing, heartbeat_seconds=60.0),
        on_open=lambda run_id: sys.setprofile(calls_of_the_engine),
    )
    try:
        assert executor.run() == "SUCCESS"
    finally:
        sys.setprofile(None)
    each = {name: round((count - OPENING) / TASKS, 1) for name, count in (counts + _calls).items()}
    bounds = {"messages": 2.0, "commits": 1.0, "statements": 12, "calls": 275}  # a slow disk makes more rounds of syncs
    assert {name: count for name, count in each.items() if count > bounds[name]} == {}, each


#: Modules whose libraries, objects or work after a fork each attempt would pay for.
COSTLY = {"asyncio", "threading", "random", "subprocess", "logging", "_hashlib", "zoneinfo", "binascii", "unicodedata"}

#: A program with a flow of its own. Its tasks return how many pages they have copied, and what they have loaded.
PROGRAM = """
import resource, sys, {module}
from redrive.engine import Executor, TaskDef

def cost({parameter}):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    loaded = {costly} & sys.modules.keys()
    return [faults, sorted(loaded - {{"{module}", "threading" if "{module}" == "logging" else ""}})]

tasks = [TaskDef(f"t{{number}}", cost, ["above"]) for number in range(8)]
result = Executor("cost", "r", [TaskDef("above", dict), *tasks], state=sys.argv[1]).run_result()
print([result[task.name] for task in tasks])
"""


@pytest.mark.parametrize(
    ("module", "parameter", "pages"),
    [
        ("os", "", PAGES),
        ("logging", "", PAGES_WITH_LOGGING),
        ("random", "", PAGES_WITH_RANDOM),
        ("os", "above", PAGES_WITH_ARGUMENT),
        ("os", "above, ctx", PAGES_WITH_CONTEXT),
    ],
)
def test_the_fork_of_an_attempt_copies_few_pages(tmp_path: Path, module: str, parameter: str, pages: int) -> None:
    """In an interpreter of its own: pytest has imported much that a flow has not."""
    ran = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            PROGRAM.format(module=module, parameter=parameter, costly=COSTLY),
            str(tmp_path / "s.db"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    results = ast.literal_eval(ran.stdout)
    assert [loaded for _, loaded in results if loaded] == []
    found = median(faults for faults, _ in results)
    assert found <= pages, found
