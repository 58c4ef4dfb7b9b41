"""An approval in the console: the keys ``y`` and ``n`` answer it, with a reason."""

from __future__ import annotations

import pytest

from ..conftest import FakeSession, StillClock
from ..model.runs import EventBuilder, projection_of
from .screen_driver import open_console


@pytest.fixture
def session(clock: StillClock) -> FakeSession:
    """A task that waits for an approval, and another that runs."""
    flow = [("build", []), ("ok", ["build"]), ("publish", ["ok"]), ("other", [])]
    projection = projection_of(flow, {"ok": {"kind": "approval"}})
    builder = EventBuilder(projection)
    for event in [*builder.start("build"), *builder.succeed("build"), *builder.start("other")]:
        projection.apply(event)
    projection.apply(builder.move("ok", "READY", started_at=builder.at))
    session = FakeSession(projection)
    session.builder = builder
    clock.now = builder.at
    return session


async def test_the_inbox_lists_it_while_other_tasks_run(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "4") as driver:
        assert "1 cause · 1 approval · oldest 0s" in driver.text
        assert " ".join(driver.find("waits for an").split()).startswith("▾ ◆ 1 waits for an approval asked at")
        assert "◆ ok" in driver.text and "approve?" in driver.text
        assert "Nothing failed: it waits for an answer." in driver.text
        assert "4 Inbox ◆1" in driver.text
        assert "y approve… n reject…" in " ".join(driver.lines[-1].split())


@pytest.mark.parametrize(("key", "act"), [("y", "approve"), ("n", "reject")])
@pytest.mark.parametrize("view", ["4", "2"])
async def test_a_key_answers_it_with_a_reason(
    session: FakeSession, clock: StillClock, view: str, key: str, act: str
) -> None:
    async with open_console(session, clock, view) as driver:
        driver.app.selected = "ok"
        await driver.settle()
        await driver.press(key)
        assert f"{act.capitalize()} ok" in driver.text
        assert session.commands == []
        await driver.submit("")
        assert "A reason is needed" in driver.text
        await driver.submit("numbers fit")
        await driver.press("a") if not session.commands else None
        (command,) = session.commands
        assert (command.act, command.reason, command.targets) == (act, "numbers fit", (("ok", "READY", 0),))


async def test_elsewhere_the_keys_do_what_they_always_do(session: FakeSession, clock: StillClock) -> None:
    async with open_console(session, clock, "2") as driver:
        driver.app.selected = "publish"
        await driver.settle()
        assert "approve…" not in driver.lines[-1]
        await driver.press("y")
        assert "Approve" not in driver.text
