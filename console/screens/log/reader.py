"""Reads the log that the screen shows: what is new, and what is scrolled to. One read runs at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Protocol

from ....engine.core.projection import AttemptRow
from ....engine.errors import RedriveError
from ...model.log import LogSelection
from ...text.pieces import Role
from .attempt_log import AttemptLog
from .finder import SearchedScreen


class Read(IntEnum):
    """The kinds of reads, in order of priority."""

    NEWS = 0
    END = 1
    EARLIER = 2
    LATER = 3
    WHOLE = 4
    ONLY = 5  # the lines that match the filter


class ReadScreen(SearchedScreen, Protocol):
    """The screen of the log, as the reader uses it. ``selection``: the lines of the window that the filter leaves."""

    selection: LogSelection | None

    @property
    def attempt(self) -> AttemptRow | None:
        """The attempt that is shown."""

    def store_filter(self) -> str:
        """The filter as a regular expression for the store."""


class LogReader:
    """The reads of one screen. ``start``: runs work in the background, in place of what it ran before."""

    def __init__(self, screen: ReadScreen, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._screen = screen
        self._start = start
        self._log_being_read: AttemptLog | None = None
        self._requests: set[Read] = set()
        self._when_complete: Callable[[], None] | None = None  # as soon as everything has been read

    def reset(self) -> None:
        """Forget what was to be read: another log is shown."""
        self._requests.clear()
        self._when_complete = None

    def request(self, kind: Read) -> None:
        """Read as soon as what is being read has come."""
        log = self._screen.attempt_log
        if log is None:
            return
        if kind is Read.NEWS and (log.is_finished or (log is self._log_being_read and not log.is_started)):
            return
        if kind is Read.END and (log.is_at_end or not log.is_started):
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
            self.request(Read.WHOLE)

    async def _read_requests(self) -> None:
        log = self._screen.attempt_log
        try:
            while log is not None and log is self._screen.attempt_log and self._requests:
                kind = min(self._requests)
                self._requests.discard(kind)
                await self._read(log, kind)
        except RedriveError as error:
            self._requests.clear()
            self._screen.console.show_message(str(error), Role.WARNING)
        finally:
            if self._log_being_read is log:
                self._log_being_read = None

    async def _read(self, log: AttemptLog, kind: Read) -> None:
        screen = self._screen
        over = screen.attempt is not None and screen.attempt.outcome != "running"
        shown, place = log.text, screen.text.first_in_view()
        first, added = await self._read_window(log, kind if log.is_started else Read.NEWS)
        log.is_finished = over and log.is_at_end and (log.is_finished or kind in (Read.NEWS, Read.END))
        if log is not screen.attempt_log or screen.selection is None:
            return
        if log.text is not shown or screen.selection.text is not log.text:
            screen.show_window(log)
            if kind in (Read.EARLIER, Read.LATER) and place is not None:
                self._scroll_back(log, place)
        elif added:
            screen.text.lines_changed(dropped=-screen.selection.apply_prepended(added))
        else:
            screen.selection.update_from(first)
            screen.text.lines_changed()
        if kind in (Read.WHOLE, Read.ONLY) and self._when_complete is not None:
            step, self._when_complete = self._when_complete, None
            step()
        screen.show_heading()

    async def _read_window(self, log: AttemptLog, kind: Read) -> tuple[int, int]:
        """Read one window. Return the first line that changed, and how many lines were added at the start."""
        if kind is Read.NEWS:
            return await log.read_new(), 0
        if kind is Read.LATER:
            return max(await log.read_later(), 0), 0
        if kind is Read.END:
            await log.read_end()
        elif kind is Read.ONLY:
            await log.read_only(self._screen.store_filter())
        else:
            return 0, max(await (log.read_earlier() if kind is Read.EARLIER else log.read_whole()), 0)
        return 0, 0

    def _scroll_back(self, log: AttemptLog, place: tuple[int, str]) -> None:
        """Scroll so that the previous first line is the first again."""
        self._screen.text.is_following = False
        for number, line in enumerate(log.text.lines):
            if (line.id, line) == place:
                self._screen.text.set_first_line(number)
                return
