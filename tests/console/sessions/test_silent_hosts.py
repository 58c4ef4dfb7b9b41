"""Hosts that take a connection and say nothing: what waits for them, and for how long."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from redrive.console.cli.hosts import fleet_of
from redrive.console.sessions import address, agent_process, connection, login
from redrive.console.sessions import open as sessions
from redrive.console.sessions.address import Endpoint, SshOptions, parse
from redrive.console.sessions.login import Login
from redrive.engine.errors import LinkError
from redrive.engine.statefile.needs import needs_of

SILENCE = 0.3


@pytest.fixture(autouse=True)
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every host is silent; each login is a line of the file."""
    script, logins = tmp_path / "ssh", tmp_path / "logins"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{logins}"\nexec sleep 600\n')
    script.chmod(0o700)
    monkeypatch.setenv("REDRIVE_SSH", str(script))
    for module in (sessions, connection, login):
        monkeypatch.setattr(module, "SILENCE_SECONDS", SILENCE)
    monkeypatch.setattr(sessions, "OPEN_SECONDS", SILENCE)
    monkeypatch.setattr(address, "ANSWER_SECONDS", SILENCE)
    monkeypatch.setattr(agent_process, "CLOSE_TIMEOUT_SECONDS", 0.1)
    return logins


async def test_a_command_gives_a_silent_host_up_once(silent: Path) -> None:
    """A login that is silent is not followed by another that waits as long again."""
    (row,) = await sessions.list_hosts(["ssh://hung:2222"], SshOptions())
    assert row.problem == f"hung:2222 took the connection but started no agent for {SILENCE:g} s"
    assert len([line for line in silent.read_text().splitlines() if not line.startswith("-G")]) == 1


async def test_a_command_on_one_file_does_not_wait_longer(silent: Path) -> None:
    with pytest.raises(LinkError, match=f"started no agent for {SILENCE:g} s"):
        await sessions.open_session(Endpoint("ssh://hung/x.db"), is_console=False)


async def test_a_list_shows_each_host_at_once() -> None:
    async with aclosing(
        sessions.watch_hosts({target: Login(parse(target), SshOptions()) for target in ("ssh://a", "ssh://b")})
    ) as lists:
        rows = await anext(lists)
        assert [(row.path, row.has_file, row.problem) for row in rows] == [
            ("ssh://a", False, None),
            ("ssh://b", False, None),
        ]
        assert needs_of(rows, 0) == []
        later = await anext(lists)
        assert any(row.problem for row in later)


def test_the_console_opens_without_what_a_host_has_not_said() -> None:
    fleet, _ = fleet_of(None, SshOptions(), ["ssh://a", "ssh://b"])
    assert fleet is not None
    assert [*fleet.hosts] == ["ssh://a", "ssh://b"]
    for one in fleet.hosts.values():
        one.give_up()


def test_a_shared_connection_that_hangs_is_left_with_its_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh hands its standard streams to the master: they stay open there when ssh itself is killed."""
    line = f"setsid sleep 60 & echo $! > {tmp_path}/master; exec sleep 60"

    async def connect() -> str:
        agent = agent_process.AgentProcess(parse("ssh://hung/x.db"), SshOptions(), print)
        async with asyncio.timeout(20):
            with pytest.raises(LinkError, match="hung took the connection but started no agent"):
                await agent.open(["sh", "-c", line], {}, silence_seconds=SILENCE)
            return str(await agent.ended)

    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    assert "hung" in asyncio.run(connect())
    gc.collect()
    assert not errors  # a pipe that outlives its event loop ends in one
    os.kill(int((tmp_path / "master").read_text()), signal.SIGKILL)
