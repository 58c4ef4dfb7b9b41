"""A zygote that dies or stops answering, at each moment of a run: the run goes on, and the journal says why."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor
from redrive.engine.executor import opening

FLOW = """
from redrive.engine import Flow

flow = Flow("f", timeout=60)

@flow.task
def task():
    return 1
"""


def test_a_zygote_that_dies_while_the_run_is_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_first = opening._write_first

    async def kill_first(lease: Any, *arguments: Any) -> Any:
        if lease.runner.is_open:
            os.kill(lease.runner.zygote_pid, signal.SIGKILL)
            while lease.runner.is_open or lease.runner._cleanups:  # noqa: ASYNC110  # nobody listens yet
                await asyncio.sleep(0.01)
        return await write_first(lease, *arguments)

    monkeypatch.setattr(opening, "_write_first", kill_first)
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    assert Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db").run() == "SUCCESS"
