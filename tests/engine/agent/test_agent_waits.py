"""How long the agent waits before it looks at the file again."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redrive.engine.agent import agent as agent_module
from redrive.engine.agent.agent import BUSY_POLL_SECONDS, POLL_SECONDS, Agent, Input, Output
from redrive.engine.statefile.reader import IDLE_SECONDS
from support.waiting import LIMIT_SECONDS


@pytest.fixture
def open_agent(run_file: Any) -> Iterator[Callable[[], Agent]]:
    """Opens an agent on the state file; its input stays silent, and its output is read by nobody."""
    pipes = [*os.pipe(), *os.pipe()]

    def opened() -> Agent:
        settings = {"path": str(run_file.path), "actor": "ana@desk"}
        agent = Agent(settings, {}, Input(pipes[0]), Output(pipes[3], "m"))
        agent.open(settings)
        return agent

    yield opened
    for descriptor in pipes:
        os.close(descriptor)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest time of each wait. Waits end at once, with what is readable by then."""
    found: list[float] = []
    wait = select.select

    def observed(read: list[int], write: list[int], errors: list[int], seconds: float) -> Any:
        found.append(seconds)
        return wait(read, write, errors, 0)

    monkeypatch.setattr(select, "select", observed)
    return found


def test_an_idle_agent_waits_for_a_write(
    open_agent: Callable[[], Agent], run_file: Any, delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "BUSY_SECONDS", LIMIT_SECONDS)
    agent = open_agent()
    assert agent._wait() == []
    run_file.emit_idle_events(1)
    assert agent._wait() == [agent._notices.descriptor]
    assert agent._wait() == []  # it looks at once and soon again, however many writes follow
    assert delays == [IDLE_SECONDS, IDLE_SECONDS, BUSY_POLL_SECONDS]
    agent._notices.close()


def test_an_agent_without_inotify_polls(
    open_agent: Callable[[], Agent], delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert open_agent()._wait() == []
    assert delays == [POLL_SECONDS]


def test_a_stream_of_events_is_gathered_longer_than_one_act(
    open_agent: Callable[[], Agent], run_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch costs a packet; who acts sees what follows at once."""
    now = 1000.0
    agent = open_agent()
    monkeypatch.setattr(agent_module, "time", SimpleNamespace(monotonic=lambda: now))
    agent._events.follow(run_file.head())
    agent._poll()

    def waited() -> int:
        nonlocal now
        sent, steps = agent._events.sent, 0
        while agent._events.sent == sent:
            now += 1 / 64
            steps += 1
            run_file.emit_idle_events(1)
            agent._poll()
        return steps

    assert [waited() for _ in range(5)] == [1, 7, 13, 20, 20]
    now += 2.0
    assert [waited() for _ in range(3)] == [1, 7, 13]
