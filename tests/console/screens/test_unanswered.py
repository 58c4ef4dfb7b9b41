"""Acts that were sent and have no answer: said in the console, asked about when it is left, and printed."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.engine.domain.acts import Answer, Command
from redrive.engine.errors import NoAnswerError

from ..conftest import FakeSession, StillClock, text_of
from ..model.runs import S
from .screen_driver import open_console, poisoned_run


@pytest.fixture
def session(clock: StillClock) -> FakeSession:
    session = poisoned_run(clock)
    session.address = "ssh://far/x.db"
    return session


class DarkLink:
    """Acts arrive, and no answer comes back before ``answer``."""

    def __init__(self, session: FakeSession) -> None:
        self.commands: list[Command] = []
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        session.send = self._send  # type: ignore[method-assign]

    async def _send(self, command: Command) -> Answer:
        self.commands.append(command)
        return await asyncio.shield(self.answer)


async def tick(driver: Any, clock: StillClock, seconds: int) -> str:
    clock.now += seconds * S
    driver.app.tick(clock.now)
    await driver.pilot.pause()
    return text_of(driver.app)


async def press(driver: Any, *keys: str) -> None:
    for key in keys:
        await driver.pilot.press(key)
        await driver.pilot.pause()


def lines(app: ConsoleApp) -> list[str]:
    return app.operator_actions.unanswered_lines()


async def test_a_late_answer_is_said_and_one_that_comes_ends_it(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "4", "j") as driver:
        link = DarkLink(session)
        await press(driver, "r")
        assert "sent, no answer" not in await tick(driver, clock, 2)
        assert "requeue fetch_invoices: sent, no answer for 3 s" in await tick(driver, clock, 1)
        assert "requeue fetch_invoices: sent, no answer for 7 s" in await tick(driver, clock, 4)
        link.answer.set_result(Answer(True, "requeued"))
        await driver.settle()
        assert "sent, no answer" not in await tick(driver, clock, 1)
        assert lines(driver.app) == []


async def test_leaving_asks_first_and_names_what_asks_again(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "4", "j") as driver:
        link = DarkLink(session)
        await press(driver, "r", "q")
        assert "No answer yet: requeue fetch_invoices" in text_of(driver.app)
        await press(driver, "enter")  # waits
        assert driver.app.is_running and "No answer yet" not in text_of(driver.app)
        (line,) = lines(driver.app)
        (command,) = link.commands
        assert shlex.join(["redrive", "events", "ssh://far/x.db", "--command-id", command.id]) in line
        await press(driver, "q", "down", "enter")
        assert driver.app.return_code == 0
        assert lines(driver.app) == [line]


async def test_the_event_of_an_act_is_its_answer(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "4", "j") as driver:
        link = DarkLink(session)
        await press(driver, "r")
        (command,) = link.commands
        link.answer.set_exception(NoAnswerError("no answer from far for 120 s"))
        await driver.settle()
        assert len(lines(driver.app)) == 1, "it may have been done all the same"
        event = session.builder.event("task", "fetch_invoices", new="PENDING", command_id=command.id)
        session.emit([event])
        await driver.settle()
        assert lines(driver.app) == []
