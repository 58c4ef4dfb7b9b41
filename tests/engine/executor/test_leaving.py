"""An executor that has its result applies no more acts: the client does it itself, once the lock is free."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redrive.engine.agent import executor_socket
from redrive.engine.executor.server import CommandServer


@pytest.mark.parametrize("act", ["requeue", "skip", "pause", "stop"])
async def test_an_act_that_comes_too_late_gets_no_answer(tmp_path: Path, act: str) -> None:
    run: Any = SimpleNamespace(has_result=True, attempts=SimpleNamespace(running={}))
    server = CommandServer(run, str(tmp_path / "night.db"))
    await server.start()
    try:
        command = {"id": "c1", "act": act, "run_id": "r", "targets": [], "actor": "ana@desk", "options": {}}
        response = await asyncio.to_thread(executor_socket.request, str(tmp_path / "night.db"), command, 10.0)
    finally:
        await server.close()
    assert response is None
