"""An executor that has its result applies no more acts: the client does it itself, once the lock is free."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import warnings
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
    server.start()
    try:
        command = {"id": "c1", "act": act, "run_id": "r", "targets": [], "actor": "ana@desk", "options": {}}
        response = await asyncio.to_thread(executor_socket.request, str(tmp_path / "night.db"), command, 10.0)
    finally:
        await server.close()
    assert response is None


def connected(state: Path) -> socket.socket:
    client = executor_socket.connect(str(state))
    assert client is not None
    return client


async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    """Python 3.13 prints an error about a connection that is open when its loop is gone."""
    run: Any = SimpleNamespace(has_result=False, attempts=SimpleNamespace(running={}))
    server = CommandServer(run, str(tmp_path / "night.db"))
    server.start()
    with connected(tmp_path / "night.db") as client:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):  # the server stops to read when its responses fill the connection
            while True:
                client.send(b'{"act": 1}\n' * 1000)
                await asyncio.sleep(0.001)
        await server.close()
        client.settimeout(10.0)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 20):  # blocks the loop, which therefore sends nothing more
                pass


async def test_a_client_that_connects_while_the_server_closes_is_disconnected(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(has_result=False, attempts=SimpleNamespace(running={}))
    server = CommandServer(run, str(tmp_path / "night.db"))
    server.start()
    gc.collect()  # what earlier tests left
    with warnings.catch_warnings(record=True) as found, connected(tmp_path / "night.db") as client:
        warnings.simplefilter("always", ResourceWarning)
        await asyncio.sleep(0)  # the loop sees the client, and accepts it after this step
        await asyncio.create_task(server.close())
        client.settimeout(10.0)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        gc.collect()
    assert [warning.message for warning in found] == []


async def test_a_socket_that_is_removed_again_and_again_leaves_one_listener(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(has_result=True, attempts=SimpleNamespace(running={}))
    server = CommandServer(run, str(tmp_path / "night.db"))
    server.start()
    path = Path(executor_socket.socket_path(str(tmp_path / "night.db")))
    open_before = len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(5):
            path.unlink()
            server.check_socket()
            assert path.is_socket()
        assert len(os.listdir("/proc/self/fd")) <= open_before
        connected(tmp_path / "night.db").close()
    finally:
        await server.close()
