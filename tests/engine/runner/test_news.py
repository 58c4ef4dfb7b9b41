"""What a run is told of the processes below it: what its import left and printed, and why its zygote died."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from redrive.engine import Executor
from redrive.engine.domain.events import Event, EventKind

FLOW = """
import os, signal
from redrive.engine import Flow, RetryPolicy

log = open("/dev/zero")
print("loading tables")
flow = Flow("f", retry=RetryPolicy(base=0.01))

@flow.task
def ends_the_zygote():
    if not os.path.exists({mark!r}):
        open({mark!r}, "x")
        os.kill(os.getppid(), 9)
        signal.pause()
"""


def executor_events(state: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(state) as connection:
        rows = connection.execute("SELECT data FROM event WHERE kind = 'executor' ORDER BY seq").fetchall()
    return [json.loads(data) for (data,) in rows]


def test_the_journal_says_what_an_import_left_and_printed_and_that_the_zygote_died(tmp_path: Path) -> None:
    flow, state = tmp_path / "flow.py", tmp_path / "state.db"
    flow.write_text(FLOW.format(mark=str(tmp_path / "mark")))
    shown: list[Event] = []
    assert Executor(run_id="r", flow=str(flow), state=state, on_events=shown.extend).run() == "SUCCESS"
    started, died, stopped = executor_events(state)
    assert started["what"] == "started"
    assert started["printed"] == "loading tables\n"
    (warning,) = started["warnings"]
    assert "/dev/zero" in warning
    assert (died["what"], died["how"]) == ("zygote-died", "signal 9")
    assert died["pid"] != os.getpid()
    assert stopped["what"] == "stopped"
    assert [event.payload.what for event in shown if event.kind == EventKind.EXECUTOR] == [
        "started",
        "zygote-died",
        "stopped",
    ]
