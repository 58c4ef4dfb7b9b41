"""``--follow`` for lists: prints them again after new events, until it is interrupted.

On a terminal the list is drawn over the one before, line by line and without clearing, so that it does not flicker. In
a pipe, and as JSON, only new lines are written, so that a reader gets each change once.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import cast

from ....engine.domain.events import Event
from ...sessions.open import with_session
from ...sessions.session import Session
from ...sessions.ssh_options import Endpoint
from ...text.printing import echo, echo_lines
from ...text.text import sanitize_lines, shorten

Read = Callable[[Session], Awaitable[list[str]]]

GATHER_SECONDS = 0.2  # wait for more events before reading again

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


def print_view(endpoint: Endpoint, read: Read, *, follow: bool, as_json: bool) -> int:
    """Print the lines that ``read`` returns; with ``follow``, again whenever they change."""
    if not follow:
        echo_lines(with_session(endpoint, read))
        return 0
    view = RedrawnView() if sys.stdout.isatty() and not as_json else AppendedView()

    async def use(session: Session) -> int:
        batches = cast("AsyncGenerator[Sequence[Event]]", session.events(await _head(session)))
        view.print(await read(session))
        async with aclosing(batches):
            async for batch in batches:
                if batch:
                    await asyncio.sleep(GATHER_SECONDS)
                    view.print(await read(session))
        return 0

    return with_session(endpoint, use)


async def _head(session: Session) -> int:
    """The number of the latest event in the state file."""
    return (await session.snapshot(None)).seq


class AppendedView:
    """Prints only lines that were not in the list before."""

    def __init__(self) -> None:
        self._shown: frozenset[str] = frozenset()

    def print(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self._shown:
                echo(line)
        self._shown = frozenset(lines)
        sys.stdout.flush()


class RedrawnView:
    """Draws the whole list over the one before; lines below the terminal become a count."""

    def __init__(self) -> None:
        self._shown: list[str] | None = None

    def print(self, lines: Sequence[str]) -> None:
        columns, rows = shutil.get_terminal_size()
        if len(lines) >= rows:
            lines = [*lines[: rows - 2], f"... {len(lines) - rows + 2} more lines"]
        fitting = [shorten(sanitize_lines(line), columns) for line in lines]
        if fitting == self._shown:
            return
        # First scroll the screen away, so that its text stays in the terminal's history.
        room = "\n" * rows if self._shown is None else ""
        body = "".join(f"{line}{_TO_LINE_END}\n" for line in fitting)
        sys.stdout.write(f"{room}{_HOME}{body}{_TO_SCREEN_END}")
        sys.stdout.flush()
        self._shown = fitting
