"""The log of one attempt of the selected task: follow, search, filter, pager.

A hidden screen reads nothing; output before the end is read when it is scrolled to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from textual import events
from textual.app import SuspendNotSupported
from textual.widget import Widget

from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.domain.states import FAILED_OUTCOMES
from ...engine.errors import RedriveError
from ...engine.statefile.logs import AttemptText
from ..keys.actions import ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.lists import places_after, search_pattern
from ..model.log import ERROR, LogLine, is_error_line, shown_attempt
from ..present import log as present
from ..sessions.attempt_log import AttemptLog
from ..text.pieces import Line
from ..widgets.bars import Bar, KeyHint, has_room_for_strip
from ..widgets.text_view import LinesView
from .base import ConsoleScreen
from .console import run_latest
from .pager import page_log

POLL_SECONDS = 0.5  # between two polls of a growing log


class LogScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.LOG

    def __init__(self) -> None:
        super().__init__()
        self.heading = Bar(id="heading")
        self.failure = FailureBar(self)
        self.text = LogView(self)
        self.attempt_log: AttemptLog | None = None
        self._task_name: str | None = None
        self._pinned_attempt: int | None = None  # the attempt that was asked for; None: the one with something to read
        self.lines: present.LogLines | None = None
        self.finder = LogFinder(self)
        self.reader = LogReader(self)

    def content(self) -> Iterable[Widget]:
        yield self.heading
        yield self.text

    def widgets_below(self) -> Iterable[Widget]:
        yield self.failure

    # --- Which attempt --------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(POLL_SECONDS, self._poll)

    def on_shown(self) -> None:
        """Show the output of the selected task."""
        self.text.focus()
        self._select_attempt()
        self.reader.request(ReadKind.NEWS)

    def board_replaced(self, board: Board) -> None:
        """Show the same attempt of the new board, or another run."""
        if self.attempt_log is not None and self.attempt_log.run_id != board.projection.run.run_id:
            self.attempt_log = self._task_name = self._pinned_attempt = None
        elif self.attempt_log is not None:
            self.attempt_log.is_finished = False
        self._refresh_log()

    def on_news(self, news: BoardUpdate) -> None:
        """Refresh if the task changed or the shown time moved."""
        log = self.attempt_log
        if self._task_name is None or self._task_name in news.delta.tasks or (log and log.until_us != self._until_us()):
            self._refresh_log()

    def on_seek(self, seq: int) -> None:
        """Show only output written by then."""
        self._refresh_log()

    def _until_us(self) -> int | None:
        live = self.console.live
        return live.now_us if live.is_past else None

    def _refresh_log(self) -> None:
        if self.is_current:
            self._select_attempt()
            self.reader.request(ReadKind.NEWS)

    def tick(self, now_us: int) -> None:
        """Update the age of the attempt, and show or hide the times of lines."""
        self.show_heading()
        if self.lines is not None and self.lines.has_times != self.console.absolute_times:
            self.lines.has_times = self.console.absolute_times
            self.text.lines_changed()
        if not len(self.text.lines):
            self.text.refresh_rows(0)

    def _poll(self) -> None:
        """Read what a running attempt has written, while the screen is visible."""
        attempt = self.attempt
        if attempt is not None and attempt.outcome == "running" and self.is_current:
            self.reader.request(ReadKind.NEWS)

    def _row(self) -> TaskRow | None:
        return self.board.projection.tasks.get(self._task_name) if self._task_name is not None else None

    @property
    def attempt(self) -> AttemptRow | None:
        """The attempt that is shown; None before the first."""
        row = self._row()
        return row.attempts.get(self.attempt_log.attempt) if row is not None and self.attempt_log is not None else None

    def _select_attempt(self) -> None:
        """Show the selected task: its pinned attempt, else the one with something to read."""
        board = self.board
        name = self.console.selected
        if name is None:
            name = self._task_name or board.next_problem(None) or board.current_task()
            name = self.console.selected = name or next(iter(board.projection.tasks), None)
        if name != self._task_name:
            self._task_name, self._pinned_attempt = name, None
        row = self._row()
        if row is not None:
            self._show_attempt(row)
        self.show_heading()

    def _show_attempt(self, row: TaskRow) -> None:
        """Show the pinned attempt, else the one with something to read; a log that is not followed stays."""
        shown = self.attempt_log
        same = shown is not None and shown.task == row.name and shown.attempt in row.attempts
        if self._pinned_attempt is not None and self._pinned_attempt in row.attempts:
            number = self._pinned_attempt
        elif same and shown is not None and not self.text.is_following:
            number = shown.attempt
        else:
            number = shown_attempt(row)
        if not number:
            self.attempt_log = None
            self._show_lines()
        elif not same or shown is None or shown.attempt != number or not shown.can_advance_to(self._until_us()):
            run_id = self.board.projection.run.run_id
            self.attempt_log = AttemptLog(self.console.live.session, run_id, row.name, number, self._until_us())
            self._show_lines()

    def _show_lines(self) -> None:
        """Show another log, from its end."""
        self.reader.reset()
        self.text.is_following = True
        if self.attempt_log is None:
            self.lines = None
            self.text.set_lines(())
        else:
            self.show_window(self.attempt_log)

    def show_window(self, log: AttemptLog) -> None:
        """Show another window of the log."""
        self.lines = present.LogLines(log.text, self.console.glyphs)
        self.lines.has_times = self.console.absolute_times
        self.text.set_lines(self.lines)

    def go_to_attempt(self, step: int) -> None:
        """Show the next attempt, or the previous one."""
        row = self._row()
        if row is None or self.attempt_log is None:
            self._notify_if_empty()
            return
        numbers = sorted(row.attempts)
        place = numbers.index(self.attempt_log.attempt) + step
        if not 0 <= place < len(numbers):
            self.console.show_message(f"this is the {'first' if step < 0 else 'latest'} attempt")
            return
        self.key_bar.clear_message()  # it may say that there is no other attempt
        self._pinned_attempt = numbers[place] if numbers[place] != shown_attempt(row) else None
        self.text.is_following = True
        self._select_attempt()
        self.reader.request(ReadKind.NEWS)

    # --- Reading --------------------------------------------------------------------------------------------------

    def on_lines_view_position_changed(self, message: LinesView.PositionChanged) -> None:
        """Read more output near the start or the end of the loaded lines."""
        log = self.attempt_log
        first, last = self.text.span
        if log is not None and log.is_started and last:
            if not log.is_complete and first < self.text.rows:
                self.reader.request(ReadKind.EARLIER)
            if not log.is_at_end and last > len(self.text.lines) - self.text.rows:
                self.reader.request(ReadKind.LATER)
        self.show_heading()

    # --- Words ----------------------------------------------------------------------------------------------------

    def show_heading(self) -> None:
        row, log = self._row(), self.attempt_log
        if row is None or not self.is_mounted:
            return
        last = self.text.span[1]
        heading = present.LogHeading(
            lines=len(self.text.lines),
            last=last,
            last_at=self.lines.line_at(last - 1).at if self.lines is not None and last else 0,
            is_following=self.text.is_following,
            is_searching=self.finder.is_searching,
            is_given_up=self.finder.is_given_up,
            searched=self.filter_text,
            has_match=self.finder.has_match,
        )
        columns, context = self.app.size.width, self.run_context()
        self.heading.show(*present.heading_line(row, self.attempt, log, heading, context, columns))
        attempt = self.attempt if log is not None and log.is_started else None
        self.failure.show_attempt(self.board.projection.run.run_id, row.name, attempt, len(self.text.lines))

    def empty_line(self) -> Line:
        if self._task_name is None:
            return []
        log, row, console = self.attempt_log, self._row(), self.console
        why = self.board.explain(self._task_name, console.live.now_us, console.runner) if log is None else ""
        is_read = log is None or (log.is_started and log.is_whole)
        dropped = log.dropped_bytes if log is not None else None
        wrote = [one.attempt for one in row.attempts.values() if one.output_bytes] if row is not None else []
        return present.empty_line(self.attempt, why, is_read, console.glyphs, dropped, wrote)

    def hints(self) -> list[KeyHint]:
        """Rename some keys for this screen."""
        row = self._row()
        one = row is None or len(row.attempts) < 2
        words = {shown_key("filter"): "search", shown_key("output"): "pager"}
        silent = set() if self.attempt is None or self.attempt.outcome == "running" else {shown_key("follow")}
        alone = {shown_key("older_attempt")} if one else set()
        pair = f"{shown_key('older_attempt')} {shown_key('newer_attempt')}"
        named = [(key, words.get(key, word)) for key, word in super().hints() if key not in alone | silent]
        return [(pair, word) if key == shown_key("older_attempt") else (key, word) for key, word in named]

    # --- Finding --------------------------------------------------------------------------------------------------

    def open_filter_input(self) -> None:
        """Look for words; the first line that has them comes into view at every key."""
        self.footer_widget.open_prompt("/", self.filter_text, hint="words to search for")

    def filter_changed(self, text: str) -> None:
        """Search for the text."""
        self.text.search(text)
        self.finder.reset()
        if text:
            self._find(1)
        else:
            self.workers.cancel_group(self, "log search")
        self.show_heading()

    def _find(self, step: int) -> None:
        """Go to the next match."""
        wanted = search_pattern(self.filter_text)
        target = LogTarget(wanted.pattern, lambda line: wanted.search(line) is not None)
        self._search(target, step, self.text.search_start(step))

    def _search(self, target: LogTarget, step: int, after: int | None) -> None:
        """Search after a line in memory, or in the store from its start."""
        self.finder.reset()
        run_latest(self, partial(self.finder.find, target, step, after), "log search")

    def go_to_next(self, step: int) -> None:
        """Go to the next or previous match; without a search, to a line that shows an error."""
        if self.filter_text:
            self._find(step)
        else:
            self._go_to_error(max(self.text.search_start(1), -1 if step > 0 else 0), step)

    def go_to_first_error(self) -> None:
        """Go to the first line that shows an error."""
        self._go_to_error(-1)

    def _go_to_error(self, after: int, step: int = 1) -> None:
        if self.attempt_log is None:
            self._notify_if_empty()
        else:
            target = LogTarget(ERROR.pattern, is_error_line, self._no_error_text())
            self._search(target, step, after if self.finder.is_all_loaded or after >= 0 else None)

    def _no_error_text(self) -> str:
        log = self.attempt_log
        return f"no line shows an error{present.unsearched_output_text(log.dropped_bytes if log is not None else None)}"

    def back(self) -> None:
        """End the search."""
        if self.filter_text:
            self.use_filter("")
        else:
            super().back()

    # --- Following, folding -----------------------------------------------------------------------------------------

    def toggle_follow_of_log(self) -> None:
        """Follow the end of the log; of an attempt that has ended only show it."""
        attempt = self.attempt
        if attempt is None:
            self._notify_if_empty()
        elif attempt.outcome == "running":
            self.text.toggle_follow_of_end()
            self.console.show_message("follows the output" if self.text.is_following else "stands still")
        else:
            self.text.move_to_edge(1)
            self.console.show_message("the attempt has ended: this is the end of its output")

    def on_lines_view_wrap_toggled(self, message: LinesView.WrapToggled) -> None:
        """Say what happens to long lines: there may be none in view."""
        self.console.show_message("long lines are folded" if self.text.is_wrapping else "long lines are cut")

    def _notify_if_empty(self) -> None:
        self.console.show_message("no attempt of this task has begun: there is no output")

    # --- Elsewhere ------------------------------------------------------------------------------------------------

    def show_output(self) -> None:
        """Show the whole log in the operator's pager."""
        log = self.attempt_log
        if log is None:
            self._notify_if_empty()
        else:
            run_latest(self, partial(self._open_pager, log), "pager")

    async def _open_pager(self, log: AttemptLog) -> None:
        try:
            await page_log(self.app, log, self.console.glyphs)
        except SuspendNotSupported:
            self.console.show_warning("there is no terminal for a pager")

    def on_resize(self, event: events.Resize) -> None:
        """Render the heading for the new width."""
        if self.console.live.board is not None:
            self.show_heading()


# --- The failure of the attempt whose output is shown, below the output ----------------------------------------------


_FRAME_ROWS = 6  # header, tabs, two rules, heading, keys
_Key = tuple[str, str, int]  # run, task, attempt


class FailureBar(Bar):
    """The error of a failed attempt with the end of its traceback; no row for any other attempt."""

    def __init__(self, screen: LogScreen) -> None:
        super().__init__(0, id="failure")
        self._log_screen = screen
        self._key: _Key | None = None
        self._texts: AttemptText | None = None  # None until they have been read

    def show_attempt(self, run_id: str, task: str, attempt: AttemptRow | None, log_lines: int) -> None:
        """Show the failure in the rows that ``log_lines`` leave free, at least in a third of the screen.

        Below an empty log it begins at once.
        """
        if attempt is None or attempt.outcome not in FAILED_OUTCOMES:
            self._key = None
            self.set_row_count(0)
            return
        key = run_id, task, attempt.attempt
        if key != self._key:
            self._key, self._texts = key, None
            run_latest(self._log_screen, self._read, "failure", shows_errors=False)
        size = self.app.size
        free = max(size.height // 3, self._log_screen.screen_rows - _FRAME_ROWS - max(log_lines, 1))
        free = free if has_room_for_strip(size.height) else 1
        lines = present.failure_lines(attempt, self._texts, size.width, free, self._log_screen.console.glyphs)
        self.set_row_count(len(lines) if log_lines else free)
        self.show_lines(lines)

    async def _read(self) -> None:
        key = self._key
        if key is None:
            return
        texts = await self._log_screen.console.live.session.attempt_text(*key)
        if key == self._key:
            self._texts = texts
            self._log_screen.show_heading()


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

    def __init__(self, screen: LogScreen) -> None:
        super().__init__(follow=True, id="log")
        self._log_screen = screen

    def searched_text(self, line: int) -> str:
        return self.lines.text_at(line) if isinstance(self.lines, present.LogLines) else super().searched_text(line)

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
        line = (
            self.lines.line_at(self.span[0]) if isinstance(self.lines, present.LogLines) and len(self.lines) else None
        )
        return (line.id, str(line)) if line is not None else None

    def go_to_top(self) -> None:
        """Go to the first loaded line."""
        super().move_to_edge(-1)


# --- Searching everywhere --------------------------------------------------------------------------------------------
#
# Finds the next match in a log: among the loaded lines, then in the store, whose window is loaded around the match.


_AFTER_EVERY_CHUNK = 2**62


class LogFinder:
    """The search of one screen, and how it stands.

    Attributes:
        has_match: whether the latest search has found a line, or still may.
        is_searching: whether the store is being searched.
        is_given_up: whether the latest search ended with an error.
    """

    def __init__(self, screen: LogScreen) -> None:
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
    """The reads of one screen."""

    def __init__(self, screen: LogScreen) -> None:
        self._screen = screen
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
            run_latest(self._screen, self._read_requests, "log")

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
