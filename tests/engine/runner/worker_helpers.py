"""Tasks of workers, and why workers are retired."""

from __future__ import annotations

import json
from typing import Any

from redrive.engine.core.outcome import OutcomeKind
from redrive.engine.domain.event_payloads import ExecutorChange, ExecutorChanged
from redrive.engine.runner.protocol import RunnerListener

PID_TASK = """
    @flow.task(isolation="worker")
    def pid():
        return os.getpid()
"""

PID_TASK_AND_WAITING_TASK = (
    PID_TASK
    + """
    @flow.task(isolation="worker")
    def waits():
        print("ready", flush=True)
        time.sleep(600)
"""
)


async def pid_of(bench: Any, task: str = "pid") -> int:
    """The process in which an attempt ran."""
    outcome, recorder = await bench.run(task)
    assert outcome.kind is OutcomeKind.SUCCESS
    assert json.loads(outcome.result) == recorder.pid
    return int(outcome.result)


def retired(bench: Any) -> list[str]:
    """Collect why workers are retired."""
    found: list[str] = []

    def on_change(payload: ExecutorChanged) -> None:
        assert payload.what == ExecutorChange.WORKER_RETIRED
        found.append(payload.how or "")

    bench.runner.listen(RunnerListener(executor_changed=on_change))
    return found
