"""Finds the next match in a log: among the loaded lines, then in the store, whose window is loaded around the match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ....engine.errors import RedriveError
from ...model.log import LogLine
from ...text.pieces import Role
from ..console import Console
from .attempt_log import AttemptLog
from .line_search import LogTarget, first_match, places_after
from .view import LogView

_AFTER_EVERY_CHUNK = 2**62


class SearchedScreen(Protocol):
    """The screen of the log, as the search uses it. ``attempt_log``: the log that is shown."""

    attempt_log: AttemptLog | None
    text: LogView

    @property
    def console(self) -> Console:
        """The app."""

    def show_window(self, log: AttemptLog) -> None:
        """Show another window of the log."""

    def show_heading(self) -> None:
        """Show the progress of the search."""


class LogFinder:
    """The search of one screen, and how it stands.

    Attributes:
        has_match: whether the latest search has found a line, or still may.
        is_searching: whether the store is being searched.
        is_given_up: whether the latest search ended with an error.
    """

    def __init__(self, screen: SearchedScreen) -> None:
        self._screen = screen
        self.reset()

    def reset(self) -> None:
        """Forget how the latest search ended."""
        self.has_match, self.is_searching, self.is_given_up = True, False, False

    @property
    def is_all_loaded(self) -> bool:
        """Whether all lines that can match are in memory."""
        log = self._screen.attempt_log
        return log is None or log.is_whole or bool(log.only)

    async def find(self, target: LogTarget, step: int, after: int | None) -> None:
        """Show the next match after a line in memory, or in the store from its start; without a match say so."""
        screen, log, found = self._screen, self._screen.attempt_log, None
        try:
            if after is not None:
                found = await self._find_in_memory(target, step, after)
            if found is None and log is not None and not self.is_all_loaded:
                self.is_searching = True
                screen.show_heading()
                found = await self._find_in_store(log, target, step, after is None)
        except RedriveError as error:
            screen.text.search("")
            self.is_given_up, self.has_match = True, True
            screen.console.show_message(str(error), Role.WARNING)
            target = target._replace(nothing="")
        else:
            self.has_match = found is not None
        if log is screen.attempt_log:
            self.is_searching = False
            self._show(found, target)

    def _show(self, found: int | None, target: LogTarget) -> None:
        if found is not None:
            self._screen.text.show_match(found)
        elif target.nothing:
            self._screen.console.show_message(target.nothing)
        self._screen.show_heading()

    async def _find_in_memory(self, target: LogTarget, step: int, after: int) -> int | None:
        text = self._screen.text
        places = places_after(len(text.lines), after, step, self.is_all_loaded)
        return await first_match(places, text.searched_text, target.matches)

    async def _find_in_store(self, log: AttemptLog, target: LogTarget, step: int, from_start: bool) -> int | None:
        """Show the window with the next match, at last from the other end of the log; return its line."""
        start = 0 if from_start else log.text.last_id if step > 0 else log.text.first_id
        edge = 0 if step > 0 else _AFTER_EVERY_CHUNK
        for first in (start, edge) if start != edge else (edge,):
            place: int | None = first
            while place is not None and log is self._screen.attempt_log:
                place = await log.find(target.pattern, step, place)
                if place is None:
                    break
                await log.read_around(place)
                if log is not self._screen.attempt_log:
                    return None
                self._screen.text.is_following = False
                self._screen.show_window(log)
                line = await _find_in_chunk(log.text.lines, target, place, step)
                if line is not None:
                    return line
        return None


async def _find_in_chunk(lines: Sequence[LogLine], target: LogTarget, chunk: int, step: int) -> int | None:
    """Return the first match from a chunk on, or with a ``step`` of -1 the last one up to it."""
    places = places_after(len(lines), -1 if step > 0 else len(lines), step, wraps=False)
    near = (place for place in places if (lines[place].id - chunk) * step >= 0)
    return await first_match(near, lines.__getitem__, target.matches)
