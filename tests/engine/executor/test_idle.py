"""What an executor does that waits for a human all night."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, PermanentError, RunOptions
from redrive.engine.executor.opening import HEARTBEAT_SECONDS

BEATS = 3
#: A beat wakes the loop once; a row or a look at the flow's files, every ten beats, a few times more.
WAKE_UPS_MAX = BEATS * 6 + 10


@pytest.mark.long
async def test_an_idle_executor_wakes_up_once_a_second(tmp_path: Path) -> None:
    flow, blocked = Flow("idle"), asyncio.Event()

    @flow.task(timeout=10)
    def load() -> None:
        raise PermanentError("no")

    def on_events(events: Any) -> None:
        if any("blocked_since" in getattr(event.payload, "set", ()) for event in events):
            blocked.set()

    executor = Executor(flow=flow, state=tmp_path / "s.db", options=RunOptions(stay=True), on_events=on_events)
    running = asyncio.create_task(executor.run_here())
    await asyncio.wait({running, asyncio.ensure_future(blocked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(HEARTBEAT_SECONDS)  # the block itself is written and told
    selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select, waits = selector.select, []

    def counted(timeout: float | None = None) -> Any:
        waits.append(timeout)
        return select(timeout)

    selector.select = counted
    await asyncio.sleep(BEATS * HEARTBEAT_SECONDS)
    selector.select = select
    executor.stop()
    await running
    assert BEATS - 1 <= len(waits) <= WAKE_UPS_MAX
