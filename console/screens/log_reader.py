"""The reads and the search of the log that the screen shows; the whole of it is searched in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from ...engine.core.projection import AttemptRow
from ...engine.errors import RedriveError
from ..model.lists import places_after
from ..model.log import LogLine
from ..present.log import LogLines
from ..sessions.attempt_log import AttemptLog
from ..text.pieces import Line
from ..widgets.text_view import LinesView
from .console import Console

# --- Searches the lines of a log in memory, a slice at a time: the console handles keys between two slices -----------


SLICE_LINES = 200


class LogTarget(NamedTuple):
    """A search of a log: a regular expression for the store, which may find too much, and a test of lines.

    ``nothing``: the message if no line matches.
    """

    pattern: str
    matches: Callable[[str], bool]
    nothing: str = ""


async def first_match(
    places: Iterable[int], text_at: Callable[[int], str], matches: Callable[[str], bool]
) -> int | None:
    """The first place whose line matches."""
    for count, place in enumerate(places, 1):
        if matches(text_at(place)):
            return place
        if count % SLICE_LINES == 0:
            await asyncio.sleep(0)
    return None


# --- The lines of a log in view, with what was found in them ---------------------------------------------------------


class LogView(LinesView):
    """The lines of a log, or a message if there are none; it loads the start on demand."""

    def __init__(self, screen: ReadScreen) -> None:
        super().__init__(follow=True, id="log")
        self._log_screen = screen

    def searched_text(self, line: int) -> str:
        return self.lines.text_at(line) if isinstance(self.lines, LogLines) else super().searched_text(line)

    def move_to_edge(self, direction: int) -> None:
        """Go to the start, which may have to be read first; or to the end, and follow it."""
        if direction < 0:
            self._log_screen.reader.call_when_complete(self.go_to_top)
        else:
            self.is_following = True
            super().move_to_edge(direction)
            self._log_screen.reader.request(ReadKind.END)

    def toggle_follow(self) -> None:
        """Follow the end or not, as far as the attempt writes any more."""
        self._log_screen.toggle_follow_of_log()

    def toggle_follow_of_end(self) -> None:
        """Follow the end, or stand still."""
        super().toggle_follow()

    def line(self, y: int) -> Line:
        """Render a line, or why there is none."""
        return super().line(y) if len(self.lines) else self._log_screen.empty_line() if y == 0 else []

    def first_in_view(self) -> tuple[int, str] | None:
        """The chunk and the text of the first visible line, by which it is found again among other lines."""
        line = self.lines.line_at(self.span[0]) if isinstance(self.lines, LogLines) and len(self.lines) else None
        return (line.id, str(line)) if line is not None else None

    def go_to_top(self) -> None:
        """Go to the first loaded line."""
        super().move_to_edge(-1)


# --- Searching everywhere --------------------------------------------------------------------------------------------
#
# Finds the next match in a log: among the loaded lines, then in the store, whose window is loaded around the match.


_AFTER_EVERY_CHUNK = 2**62


class ReadScreen(Protocol):
    """The screen of the log, as its search and its reads use it.

    ``attempt_log``: the log that is shown; ``lines``: those of its window.
    """

    attempt_log: AttemptLog | None
    lines: LogLines | None
    text: LogView
    reader: LogReader

    @property
    def console(self) -> Console:
        """The app."""

    @property
    def attempt(self) -> AttemptRow | None:
        """The attempt that is shown."""

    def show_window(self, log: AttemptLog) -> None:
        """Show another window of the log."""

    def show_heading(self) -> None:
        """Show the progress of the search."""

    def empty_line(self) -> Line:
        """Say why there is no line."""

    def toggle_follow_of_log(self) -> None:
        """Follow the end or not, as far as the attempt writes any more."""


class LogFinder:
    """The search of one screen, and how it stands.

    Attributes:
        has_match: whether the latest search has found a line, or still may.
        is_searching: whether the store is being searched.
        is_given_up: whether the latest search ended with an error.
    """

    def __init__(self, screen: ReadScreen) -> None:
        self._screen = screen
        self.reset()

    def reset(self) -> None:
        """Forget how the latest search ended."""
        self.has_match, self.is_searching, self.is_given_up = True, False, False

    @property
    def is_all_loaded(self) -> bool:
        """Whether all lines that can match are in memory."""
        log = self._screen.attempt_log
        return log is None or log.is_whole

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
            screen.console.show_warning(str(error))
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
        places = places_after(len(text.lines), after, step, wraps=self.is_all_loaded)
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


# --- Reads the log that the screen shows: what is new, and what is scrolled to ---------------------------------------
#
# One read runs at a time.


class ReadKind(IntEnum):
    """The kinds of reads, in order of priority."""

    NEWS = 0
    END = 1
    EARLIER = 2
    LATER = 3
    WHOLE = 4


class LogReader:
    """The reads of one screen. ``start``: runs work in the background, in place of what it ran before."""

    def __init__(self, screen: ReadScreen, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._screen = screen
        self._start = start
        self._log_being_read: AttemptLog | None = None
        self._requests: set[ReadKind] = set()
        self._when_complete: Callable[[], None] | None = None  # as soon as everything has been read

    def reset(self) -> None:
        """Forget what was to be read: another log is shown."""
        self._requests.clear()
        self._when_complete = None

    def request(self, kind: ReadKind) -> None:
        """Read as soon as what is being read has come."""
        log = self._screen.attempt_log
        if log is None:
            return
        if kind is ReadKind.NEWS and (log.is_finished or (log is self._log_being_read and not log.is_started)):
            return
        if kind is ReadKind.END and (log.is_at_end or not log.is_started):
            return
        self._requests.add(kind)
        if self._log_being_read is not log:
            self._log_being_read = log
            self._start(self._read_requests)

    def call_when_complete(self, step: Callable[[], None]) -> None:
        """Call ``step`` once the window begins with the start of the log."""
        log = self._screen.attempt_log
        if log is None or log.is_complete:
            step()
        else:
            self._when_complete = step
            self.request(ReadKind.WHOLE)

    async def _read_requests(self) -> None:
        log = self._screen.attempt_log
        try:
            while log is not None and log is self._screen.attempt_log and self._requests:
                kind = min(self._requests)
                self._requests.discard(kind)
                await self._read(log, kind)
        except RedriveError as error:
            self._requests.clear()
            self._screen.console.show_warning(str(error))
        finally:
            if self._log_being_read is log:
                self._log_being_read = None

    async def _read(self, log: AttemptLog, kind: ReadKind) -> None:
        screen = self._screen
        over = screen.attempt is not None and screen.attempt.outcome != "running"
        shown, place = log.text, screen.text.first_in_view()
        added = await self._read_window(log, kind if log.is_started else ReadKind.NEWS)
        log.is_finished = over and log.is_at_end and (log.is_finished or kind in (ReadKind.NEWS, ReadKind.END))
        if log is not screen.attempt_log or screen.lines is None:
            return
        if log.text is not shown or screen.lines.text is not log.text:
            screen.show_window(log)
            if kind in (ReadKind.EARLIER, ReadKind.LATER) and place is not None:
                self._scroll_back(log, place)
        else:
            screen.text.lines_changed(dropped=-added)
        if kind is ReadKind.WHOLE and self._when_complete is not None:
            step, self._when_complete = self._when_complete, None
            step()
        screen.show_heading()

    async def _read_window(self, log: AttemptLog, kind: ReadKind) -> int:
        """Read one window. Return how many lines were added at its start."""
        if kind in (ReadKind.EARLIER, ReadKind.WHOLE):
            return await (log.read_earlier() if kind is ReadKind.EARLIER else log.read_whole())
        await {ReadKind.NEWS: log.read_new, ReadKind.LATER: log.read_later, ReadKind.END: log.read_end}[kind]()
        return 0

    def _scroll_back(self, log: AttemptLog, place: tuple[int, str]) -> None:
        """Scroll so that the previous first line is the first again."""
        self._screen.text.is_following = False
        for number, line in enumerate(log.text.lines):
            if (line.id, line) == place:
                self._screen.text.set_first_line(number)
                return
