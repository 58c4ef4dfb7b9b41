"""What stands between tasks and the world: seen, opened and acted on by key; read when events say so and never else."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.console.terminal.capabilities import Colours, TerminalCapabilities
from redrive.console.terminal.tty import Tty
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock, make_app
from ..model.runs import projection_of
from .outages import OutageSession, outage

SIZES = [(80, 24), (120, 40), (40, 15)]


@pytest.fixture
def session(clock: StillClock) -> OutageSession:
    """One breaker open, two pages open, three rows held."""
    return outage(clock)


def size_id(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def pressing(app: ConsoleApp, *pressed: str):
    """What is done before the picture is taken."""

    async def prepare(pilot: Any) -> None:
        from .screen_driver import ScreenDriver

        driver = ScreenDriver(app, pilot)
        await driver.settle()
        for key in pressed:
            await driver.press(key)

    return prepare


# --- Pictures --------------------------------------------------------------------------------------------------------


@parametrize_mostly_long("size", SIZES, ids=size_id, quick=1)
def test_picture(size, session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "7", "l"))


def test_picture_of_a_page(session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, run_before=pressing(app, "7", "n", "n"))


def test_picture_of_rows(session, clock, snap_compare):
    session.row_count = session.lists["quarantine_groups"][0]["held"] = 1204
    app = make_app(session, clock)
    assert snap_compare(app, run_before=pressing(app, "7", "N", "enter", "space", "space"))


def test_picture_of_nothing(clock, snap_compare):
    app = make_app(FakeSession(projection_of([("only", [])])), clock)
    assert snap_compare(app, run_before=pressing(app, "7"))


def test_picture_in_ascii(session, clock, snap_compare):
    app = make_app(session, clock, TerminalCapabilities(has_unicode=False))
    assert snap_compare(app, run_before=pressing(app, "7"))


def test_picture_without_colours(session, clock, snap_compare):
    app = ConsoleApp(session, clock=clock, tty=Tty(TerminalCapabilities(colours=Colours.NONE)))
    assert snap_compare(app, run_before=pressing(app, "7"))


def test_picture_of_a_question(session, clock, snap_compare):
    app = make_app(session, clock)
    assert snap_compare(app, run_before=pressing(app, "7", "f"))
