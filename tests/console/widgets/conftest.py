"""A stage for one widget at a time: shown without a terminal, read back as text and styles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import pytest
from redrive.console.app.base_app import ConsoleBase
from redrive.console.app.theme import DEFAULT, load_theme
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from textual.app import ComposeResult
from textual.geometry import Region
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget

Kind = TypeVar("Kind", bound=Message)
PLAIN = load_theme(DEFAULT).without_colours().palette()


class Stage(ConsoleBase):
    """Shows widgets one below the other, and keeps the messages that reach it."""

    def __init__(self, *widgets: Widget) -> None:
        super().__init__(Tty(TerminalCapabilities()), palette=PLAIN)
        self.shown = widgets
        self.messages: list[Message] = []
        self.pilot: Pilot[None]

    def compose(self) -> ComposeResult:
        yield from self.shown

    def on_mount(self) -> None:
        for widget in self.shown:
            if widget.can_focus:
                widget.focus()
                break

    async def _on_message(self, message: Message) -> None:
        self.messages.append(message)
        await super()._on_message(message)

    def messages_of(self, kind: type[Kind]) -> list[Kind]:
        """The messages of a kind, in order."""
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def lines(self) -> list[str]:
        """The rows of the screen without the blanks at their ends."""
        return [strip.text.rstrip() for strip in self.screen._compositor.render_strips()]

    def styles_of(self, y: int) -> list[tuple[str, str]]:
        """Text and style of the segments of a row."""
        strip = self.screen._compositor.render_strips()[y]
        return [(segment.text, str(segment.style or "")) for segment in strip if segment.text]

    async def press(self, *keys: str) -> None:
        """Press keys and wait until everything has settled."""
        await self.pilot.press(*keys)
        await self.pilot.pause()


@pytest.fixture
def stage() -> Callable[..., AbstractAsyncContextManager[Stage]]:
    """``async with stage(widget, size=(40, 10)) as app``."""

    @asynccontextmanager
    async def opened(*widgets: Widget, size: tuple[int, int] = (40, 10)) -> AsyncIterator[Stage]:
        app = Stage(*widgets)
        async with app.run_test(size=size) as pilot:
            app.pilot = pilot
            await pilot.pause()
            yield app

    return opened


@pytest.fixture
def painted() -> Callable[[Widget], list[Region]]:
    """Which regions of a widget wait to be painted again, in its own cells; asking ends the list."""

    def regions(widget: Widget) -> list[Region]:
        return sorted(widget._exchange_repaint_regions())

    return regions
