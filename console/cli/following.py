"""``--follow`` for lists: prints them again after new events, until it is interrupted.

On a terminal the list is drawn over the one before, line by line and without clearing, so that it does not flicker. In
a pipe, and as JSON, only new lines are written, so that a reader gets each change once.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from ...engine.domain.events import Event
from ..sessions.address import Endpoint
from ..sessions.once import with_session
from ..sessions.session import LiveSession, Session
from ..text.pieces import Line, Piece, wrap
from ..text.text import is_remote, sanitize_lines
from .output import ReadRows, Shown, painted, plain_text, print_lines

GATHER_SECONDS = 0.2  # wait for more events before reading again
_REST_FACTOR = 5  # pause after a read without news, as a multiple of its duration

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


def follow_view(endpoint: Endpoint, read: ReadRows, *, as_json: bool) -> int:
    """Print the lines that ``read`` returns, again whenever they change."""
    view = RedrawnView() if sys.stdout.isatty() and not as_json else AppendedView()
    ticks = isinstance(view, RedrawnView) and not is_remote(endpoint.target)  # over ssh each read costs what it carries

    async def show(session: Session) -> float:
        """Read and print; return when it may be done again without news."""
        began = time.monotonic()
        view.print([*await read(session)])
        ended = time.monotonic()
        return ended + _REST_FACTOR * (ended - began)

    async def use(session: LiveSession) -> int:
        batches = cast("AsyncGenerator[Sequence[Event]]", session.events((await session.part(None, ())).seq))
        due_at = await show(session)
        async with aclosing(batches):
            async for batch in batches:
                if batch:
                    await asyncio.sleep(GATHER_SECONDS)
                # an empty batch comes each second: clocks go on
                if batch or (ticks and time.monotonic() >= due_at):
                    due_at = await show(session)
        return 0

    return with_session(endpoint, use)


class AppendedView:
    """Prints only lines that were not in the list before."""

    def __init__(self) -> None:
        self._shown: frozenset[str] = frozenset()

    def print(self, lines: Sequence[Shown]) -> None:
        texts = [plain_text(line) for line in lines]
        print_lines(line for line, text in zip(lines, texts, strict=True) if text not in self._shown)
        self._shown = frozenset(texts)
        sys.stdout.flush()


class RedrawnView:
    """Draws the list over the one before, its lines wrapped; those without room become a count."""

    def __init__(self) -> None:
        self._shown: list[str] | None = None

    def print(self, lines: Sequence[Shown]) -> None:
        columns, rows = shutil.get_terminal_size()
        shown = [_wrapped(line, columns) for line in lines[:rows]]
        while shown and sum(map(len, shown)) > rows - 1 - (len(shown) < len(lines)):
            shown.pop()
        fitting = [painted(row) for line in shown for row in line]
        if left_out := len(lines) - len(shown):
            fitting.append(f"... {left_out} more lines")
        if fitting == self._shown:
            return
        # First scroll the screen away, so that its text stays in the terminal's history.
        room = "\n" * rows if self._shown is None else ""
        body = "".join(f"{line}{_TO_LINE_END}\n" for line in fitting)
        sys.stdout.write(f"{room}{_HOME}{body}{_TO_SCREEN_END}")
        sys.stdout.flush()
        self._shown = fitting


def _wrapped(line: Shown, columns: int) -> list[Line]:
    return wrap([Piece(sanitize_lines(line))] if isinstance(line, str) else line, columns, None)
