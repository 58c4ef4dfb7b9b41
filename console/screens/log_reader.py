"""The log of one attempt: a window of it in memory, at first its end; the whole of it is searched in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from ...engine.core.projection import AttemptRow
from ...engine.errors import RedriveError
from ...engine.statefile.lists import OUTPUT
from ...engine.statefile.logs import READ_CHARACTERS_MAX, LogChunk
from ..model.lists import places_after
from ..model.log import LogLine, LogText
from ..present.log import LogLines
from ..sessions.session import Session
from ..text.pieces import Line
from ..widgets.text_view import LinesView
from .console import Console

WINDOW_CHUNKS = 64  # the end of a log, to begin with
PAGE_CHUNKS = 500
WINDOW_CHARACTERS_MAX = 2 * READ_CHARACTERS_MAX  # a larger window gives way to one around the place in view
_PAGES_MAX = 20  # per poll; the next poll reads further pages


class AttemptLog:
    """The log of one attempt. All reads may raise RedriveError.

    Attributes:
        text: the lines of the window.
        is_started: whether anything has been read.
        is_complete: whether the window begins with the first output that is kept.
        is_at_end: whether the window ended, when it was read last, with the latest output.
        is_finished: whether its end was read after the attempt had ended: there will be no more of it.
        output_bytes, dropped_bytes: as the engine counts them; None as long as it was not asked.
        until_us: what was written later (microseconds UTC) is left out; None: nothing is.
    """

    def __init__(self, session: Session, run_id: str, task: str, attempt: int, until: int | None = None) -> None:
        self.task = task
        self.attempt = attempt
        self.text = LogText()
        self.is_started = False
        self.is_complete = False
        self.is_at_end = True
        self.is_finished = False
        self.output_bytes: int | None = None
        self.dropped_bytes: int | None = None
        self.until_us = until
        self._session = session
        self.run_id = run_id

    @property
    def is_whole(self) -> bool:
        """Whether the window is all of the log."""
        return self.is_complete and self.is_at_end

    def can_advance_to(self, until: int | None) -> bool:
        """Move the limit to a later time. False if it is earlier or the present: the log must be read again."""
        if (until is None) != (self.until_us is None) or (until or 0) < (self.until_us or 0):
            return False
        if until != self.until_us:
            self.until_us, self.is_finished = until, False
        return True

    async def read_new(self) -> None:
        """Read new output, or the end of the log at first."""
        if not self.is_started:
            await self.read_end()
            return
        text = self.text
        for _ in range(_PAGES_MAX if self.is_at_end else 0):
            chunks, is_last = await self._read(PAGE_CHUNKS, after=text.last_id)
            if text is not self.text:
                return
            if chunks and text.characters > WINDOW_CHARACTERS_MAX:
                await self.read_end()
                return
            text.append(chunks)
            if is_last:
                break
        await self._read_sizes()

    async def has_grown(self) -> bool:
        """Whether there is output since the last read: far cheaper to ask than to read it."""
        before = self.output_bytes
        await self._read_sizes()
        return self.output_bytes != before

    async def read_end(self) -> None:
        """Make the end of the log the window."""
        if self.until_us is None:
            chunks, is_first = await self._read(WINDOW_CHUNKS, after=-1)
        else:
            chunks, is_first = await self._read(WINDOW_CHUNKS, before=await self._first_id_after_limit(self.until_us))
        await self._replace(chunks, is_complete=is_first, is_at_end=True)

    async def read_start(self) -> None:
        """Make the start of the log the window."""
        chunks, is_last = await self._read(PAGE_CHUNKS)
        await self._replace(chunks, is_complete=True, is_at_end=is_last)

    async def read_around(self, chunk_id: int) -> None:
        """Make the output before and after a chunk the window."""
        earlier, is_first = await self._read(PAGE_CHUNKS, before=chunk_id)
        later, is_last = await self._read(PAGE_CHUNKS, after=chunk_id - 1)
        await self._replace([*earlier, *later], is_complete=is_first, is_at_end=is_last)

    async def read_earlier(self) -> int:
        """Extend the window to the front, or move it there. Returns how many lines were added at its start."""
        read = await self._read_adjacent(before=self.text.first_id)
        if read is None:
            return 0
        chunks, self.is_complete = read
        return self.text.prepend(chunks)

    async def read_later(self) -> None:
        """Extend the window to the end, or move it there."""
        read = await self._read_adjacent(after=self.text.last_id)
        if read is not None:
            chunks, self.is_at_end = read
            self.text.append(chunks)

    async def read_whole(self) -> int:
        """Extend the window to the start of the log; of a long log, move it there. Returns as ``read_earlier``."""
        added, text = 0, self.text
        while not self.is_complete and text.characters <= WINDOW_CHARACTERS_MAX:
            added += await self.read_earlier()
            if text is not self.text:
                return 0
        if self.is_complete:
            return added
        await self.read_start()
        return 0

    async def find(self, pattern: str, step: int, start: int) -> int | None:
        """The chunk with the first match after the chunk ``start``, with a ``step`` of -1 the last one before it."""
        place: int | None = start
        while place is not None:
            after, before = (place, None) if step > 0 else (0, place)
            found, place = await self._session.find_in_log(
                self.run_id, self.task, self.attempt, pattern, after=after, before=before
            )
            if found is not None:
                return found
        return None

    async def pages(self) -> AsyncIterator[Sequence[LogChunk]]:
        """Yield the whole log, page by page."""
        after, is_last = 0, False
        while not is_last:
            chunks, is_last = await self._read(PAGE_CHUNKS, after=after)
            if not chunks:
                return
            yield chunks
            after = chunks[-1].id

    async def _replace(self, chunks: Sequence[LogChunk], *, is_complete: bool, is_at_end: bool) -> None:
        await self._read_sizes()
        self.text = LogText()
        self.text.append(chunks)
        self.is_started, self.is_complete, self.is_at_end = True, is_complete, is_at_end

    async def _read_adjacent(self, *, after: int = 0, before: int | None = None) -> tuple[list[LogChunk], bool] | None:
        """Return as ``_read``; None if the window is another one now, as one that was too large to be extended."""
        text = self.text
        if text.characters > WINDOW_CHARACTERS_MAX:
            await self.read_around(after if before is None else before)
            return None
        read = await self._read(PAGE_CHUNKS, after=after, before=before)
        return read if text is self.text else None

    async def _first_id_after_limit(self, until_us: int) -> int:
        """The id of the first chunk that was written after an instant, by bisection; one more than the last without."""
        chunks = await self._session.log(self.run_id, self.task, self.attempt, after=-1, limit=1)
        low, high = 0, chunks[-1].id + 1 if chunks else 1
        while low < high - 1:
            middle = (low + high) // 2
            (chunk,) = await self._session.log(self.run_id, self.task, self.attempt, after=middle - 1, limit=1)
            if chunk.at <= until_us:
                low = chunk.id
            else:
                high = middle
        return high

    async def _read(self, limit: int, *, after: int = 0, before: int | None = None) -> tuple[list[LogChunk], bool]:
        """Return chunks, and whether there are no more in this direction."""
        chunks = await self._session.log(self.run_id, self.task, self.attempt, after=after, limit=limit, before=before)
        size = sum(len(chunk.text) for chunk in chunks)
        shown = [chunk for chunk in chunks if self.until_us is None or chunk.at <= self.until_us]
        is_last = len(chunks) < limit and size < READ_CHARACTERS_MAX
        return shown, is_last or len(shown) < len(chunks)

    async def _read_sizes(self) -> None:
        rows = await self._session.query(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        if rows:
            self.output_bytes = rows[0].output_bytes if self.until_us is None else None
            self.dropped_bytes = rows[0].output_dropped_bytes


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
