"""What stands between tasks and the world: seen, opened and acted on by key; read when events say so and never else."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.console.terminal.capabilities import Colours, TerminalCapabilities
from redrive.console.terminal.tty import Tty

from ..conftest import FakeSession, StillClock, make_app
from ..model.runs import projection_of
from .outages import OutageSession, outage

SIZES = [(80, 24), (120, 40), (40, 15)]


@pytest.fixture
def night(clock: StillClock) -> OutageSession:
    """One breaker open, two pages open, three rows held."""
    return outage(clock)


def size_id(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def pressing(app: ConsoleApp, *pressed: str):
    """What is done before the picture is taken."""

    async def look(pilot: Any) -> None:
        from .nights import Hand

        hand = Hand(app, pilot)
        await hand.settle()
        for key in pressed:
            await hand.press(key)

    return look


# --- Pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES, ids=size_id)
def test_picture(size, night, clock, snap_compare):
    app = make_app(night, clock)
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "7", "enter"))


def test_picture_of_a_page(night, clock, snap_compare):
    app = make_app(night, clock)
    assert snap_compare(app, run_before=pressing(app, "7", "n", "n"))


def test_picture_of_rows(night, clock, snap_compare):
    night.rows = night.lists["quarantine_groups"][0]["rows"] = 1204
    app = make_app(night, clock)
    assert snap_compare(app, run_before=pressing(app, "7", "N", "enter", "space", "space"))


def test_picture_of_nothing(clock, snap_compare):
    app = make_app(FakeSession(projection_of([("only", [])])), clock)
    assert snap_compare(app, run_before=pressing(app, "7"))


def test_picture_in_ascii(night, clock, snap_compare):
    app = make_app(night, clock, TerminalCapabilities(has_unicode=False))
    assert snap_compare(app, run_before=pressing(app, "7"))


def test_picture_without_colours(night, clock, snap_compare):
    app = ConsoleApp(night, clock=clock, tty=Tty(TerminalCapabilities(colours=Colours.NONE)))
    assert snap_compare(app, run_before=pressing(app, "7"))


def test_picture_of_a_question(night, clock, snap_compare):
    app = make_app(night, clock)
    assert snap_compare(app, run_before=pressing(app, "7", "f"))
