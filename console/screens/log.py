"""The log of one attempt of the selected task: follow, search, filter, pager.

A hidden screen reads nothing; output before the end is read when it is scrolled to.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import SuspendNotSupported
from textual.binding import BindingType
from textual.timer import Timer
from textual.widget import Widget

from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.errors import RedriveError
from ...engine.statefile.changes.log_search import SlowPatternError, time_limit
from ..feed.live_run import BoardUpdate
from ..keys.actions import ScreenName
from ..model.board import Board
from ..model.filters import Filter, line_regex, parse_line_filter, search_pattern
from ..model.log import ERROR, LogLine, LogSelection, LogText, is_error_line
from ..model.log_diff import compare_output
from ..present.log import LogHeading, LogLines, diff_rows, empty_line, heading_line, line_text, unsearched_words
from ..terminal.pager import show_in_pager
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar, KeyHint
from ..widgets.bindings import bindings_of
from ..widgets.text_view import LinesView
from .attempt_log import AttemptLog
from .base import ConsoleScreen, run_latest
from .log_search import SLICE_SECONDS, LogTarget, first_match, places_after
from .text_dialog import TextDialog

_AFTER_EVERY_CHUNK = 2**62

POLL_SECONDS = 0.5  # between two polls of a growing log
_NEWS, _END, _EARLIER, _LATER, _WHOLE, _ONLY = range(6)  # kinds of reads, in order of priority


class LogView(LinesView):
    """The lines of a log, or a message if there are none; it loads the start on demand."""

    def __init__(
        self, nothing: Callable[[], Line], to_the_top: Callable[[], None], to_the_end: Callable[[], None]
    ) -> None:
        super().__init__(follow=True, id="log")
        self._empty_line = nothing
        self._on_top_requested = to_the_top
        self._on_end_requested = to_the_end

    def search_start(self, step: int) -> int:
        """The line that was found last, else the one before the first in view, in the direction of ``step``."""
        return self._match_line if self._match_line is not None else self.span[0] - step

    def searched_text(self, line: int) -> str:
        """The text of a line, for the search."""
        return self.lines.text(line) if isinstance(self.lines, LogLines) else super().searched_text(line)

    def show_match(self, line: int) -> None:
        """Show a line and set it off."""
        self._match_line = line
        self.is_following = False
        self.show_line(line)
        self.refresh()

    def move_to_edge(self, direction: int) -> None:
        """Go to the start, which may have to be read first; or to the end, and follow it."""
        if direction < 0:
            self._on_top_requested()
        else:
            self.is_following = True
            super().move_to_edge(direction)
            self._on_end_requested()

    def search(self, words: str) -> None:
        """Highlight ``words``, or a regular expression after ``~``; "" ends the search."""
        super().search(words)
        self._search_pattern = search_pattern(words) if words else None

    def line(self, y: int) -> Line:
        """Render a line, or why there is none. Matches of a pattern that takes too long are not highlighted."""
        if not len(self.lines):
            return self._empty_line() if y == 0 else []
        try:
            with time_limit(SLICE_SECONDS / 4):
                return super().line(y)
        except SlowPatternError:
            self._search_pattern = None
            return super().line(y)

    def first_in_view(self) -> tuple[int, str] | None:
        """The chunk and the text of the first visible line, by which it is found again among other lines."""
        line = self.lines.line_at(self.span[0]) if isinstance(self.lines, LogLines) and len(self.lines) else None
        return (line.id, str(line)) if line is not None else None

    def go_to_top(self) -> None:
        """Go to the first loaded line."""
        super().move_to_edge(-1)


class LogScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.LOG
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.LOG)

    def __init__(self) -> None:
        super().__init__()
        self.heading = Bar(id="heading")
        self.text = LogView(
            self._empty_line,
            to_the_top=lambda: self._call_when_complete(self.text.go_to_top),
            to_the_end=lambda: self._request(_END),
        )
        self._attempt_log: AttemptLog | None = None
        self._task_name: str | None = None
        self._pinned_attempt: int | None = None  # the attempt that was asked for; None: the latest
        self._selection: LogSelection | None = None
        self._lines: LogLines | None = None
        self._line_filter = ""
        self._has_match = True
        self._is_searching = False
        self._is_given_up = False  # the search ended with an error
        self._log_being_read: AttemptLog | None = None
        self._requests: set[int] = set()
        self._when_complete: Callable[[], None] | None = None  # as soon as everything has been read
        self._poll_timer: Timer | None = None

    def content(self) -> Iterable[Widget]:
        """Yield the heading and the log."""
        yield self.heading
        yield self.text

    # --- Which attempt --------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Poll a growing log while the screen is visible."""
        self._poll_timer = self.set_interval(POLL_SECONDS, self._poll, pause=True)
        super().on_mount()

    def on_shown(self) -> None:
        """Show the output of the selected task."""
        self.text.focus()
        if self._poll_timer is not None:
            self._poll_timer.resume()
        self._select_attempt()
        self._request(_NEWS)

    def on_screen_suspend(self) -> None:
        """Stop polling."""
        if self._poll_timer is not None:
            self._poll_timer.pause()

    def board_replaced(self, board: Board) -> None:
        """Show the same attempt of the new board, or another run."""
        if self._attempt_log is not None and self._attempt_log.run_id != board.projection.run.run_id:
            self._attempt_log = self._task_name = self._pinned_attempt = None
        elif self._attempt_log is not None:
            self._attempt_log.is_finished = False
        self._refresh_log()

    def on_news(self, news: BoardUpdate) -> None:
        """Refresh if the task changed or the shown time moved."""
        log = self._attempt_log
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
            self._request(_NEWS)

    def tick(self, now_us: int) -> None:
        """Update the age of the attempt, and show or hide the times of lines."""
        self._show_heading()
        if self._lines is not None and self._lines.has_times != self.console.absolute_times:
            self._lines.has_times = self.console.absolute_times
            self.text.lines_changed()
        if not len(self.text.lines):
            self.text.refresh_rows(0)

    def _poll(self) -> None:
        attempt = self._attempt()
        if attempt is not None and attempt.outcome == "running" and self.is_current:
            self._request(_NEWS)

    def _row(self) -> TaskRow | None:
        return self.board.projection.tasks.get(self._task_name) if self._task_name is not None else None

    def _attempt(self) -> AttemptRow | None:
        row = self._row()
        return (
            row.attempts.get(self._attempt_log.attempt) if row is not None and self._attempt_log is not None else None
        )

    def _select_attempt(self) -> None:
        """Show the selected task: its pinned attempt, else the latest."""
        board = self.board
        name = self.console.selected
        if name is None:
            name = (
                self._task_name
                or board.next_problem(None)
                or board.current_task()
                or next(iter(board.projection.tasks), None)
            )
            self.console.selected = name
        if name != self._task_name:
            self._task_name, self._pinned_attempt = name, None
        row = self._row()
        if row is not None:
            self._show_attempt(row)
        self._show_heading()

    def _show_attempt(self, row: TaskRow) -> None:
        """Show the pinned or latest attempt; a log that is not followed stays."""
        shown = self._attempt_log
        same = shown is not None and shown.task == row.name and shown.attempt in row.attempts
        if self._pinned_attempt is not None and self._pinned_attempt in row.attempts:
            number = self._pinned_attempt
        elif same and shown is not None and not self.text.is_following:
            number = shown.attempt
        else:
            number = max(row.attempts, default=0)
        if not number:
            self._attempt_log = None
            self._show_lines()
        elif not same or shown is None or shown.attempt != number or not shown.can_advance_to(self._until_us()):
            run_id = self.board.projection.run.run_id
            self._attempt_log = AttemptLog(self.console.live.session, run_id, row.name, number, self._until_us())
            self._show_lines()

    def _show_lines(self) -> None:
        """Show another log, from its end."""
        self._requests.clear()
        self._when_complete = None
        self.text.is_following = True
        if self._attempt_log is None:
            self._selection = self._lines = None
            self.text.set_lines(())
        else:
            self._show_window(self._attempt_log)

    def _show_window(self, log: AttemptLog) -> None:
        """Show another window of the log."""
        self._selection = LogSelection(log.text)
        if not log.only:
            self._selection.set_filter(parse_line_filter(self._line_filter))
        self._lines = LogLines(self._selection, self.console.glyphs)
        self._lines.has_times = self.console.absolute_times
        self.text.set_lines(self._lines)

    def go_to_attempt(self, step: int) -> None:
        """Show the next attempt, or the previous one."""
        row = self._row()
        if row is None or self._attempt_log is None:
            return
        numbers = sorted(row.attempts)
        place = numbers.index(self._attempt_log.attempt) + step
        if not 0 <= place < len(numbers):
            self.console.show_message(f"this is the {'first' if step < 0 else 'latest'} attempt")
            return
        self.key_bar.clear_message()  # it may say that there is no other attempt
        self._pinned_attempt = numbers[place] if place < len(numbers) - 1 else None
        self.text.is_following = True
        self._select_attempt()
        self._request(_NEWS)

    def compare_attempts(self) -> None:
        """Show the differences from the output of the previous attempt."""
        row, log = self._row(), self._attempt_log
        numbers = sorted(row.attempts) if row is not None else []
        if log is None or row is None or log.attempt == numbers[0]:
            self.console.show_message("there is no attempt before this one to compare with")
            return
        before = numbers[numbers.index(log.attempt) - 1]
        earlier = AttemptLog(self.console.live.session, log.run_id, log.task, before, log.until_us)
        latest = AttemptLog(self.console.live.session, log.run_id, log.task, log.attempt, log.until_us)
        run_latest(self, partial(self._show_comparison, earlier, latest), "comparison")

    def show_tails(self) -> None:
        """Follow the output of this task and of others that run, side by side."""
        from .tails import TailsDialog, tasks_to_tail

        board, live = self.board, self.console.live
        names = tasks_to_tail(board, self._task_name, self.app.size.width)
        rows = [board.row(name) for name in names]
        logs = [
            AttemptLog(live.session, board.projection.run.run_id, row.name, max(row.attempts), self._until_us())
            for row in rows
        ]
        if logs:
            self.app.push_screen(TailsDialog(logs, self.console.glyphs))
        else:
            self.console.show_message("no task has written anything yet")

    async def _show_comparison(self, earlier: AttemptLog, latest: AttemptLog) -> None:
        try:
            for log in (earlier, latest):
                await log.read_end()
        except RedriveError as error:
            self.console.show_message(str(error), Role.WARNING)
            return
        glyphs = self.console.glyphs
        before, after = ([line_text(line, glyphs) for line in log.text.lines] for log in (earlier, latest))
        found = await asyncio.to_thread(compare_output, before, after)
        part = "" if earlier.is_complete and latest.is_complete else ", the end of each"
        title = f"{one_line(latest.task)}: #{earlier.attempt} - , #{latest.attempt} +{part}"
        self.app.push_screen(TextDialog([Piece(title, Role.TITLE)], diff_rows(found, glyphs)))

    # --- Reading --------------------------------------------------------------------------------------------------

    def _request(self, kind: int) -> None:
        """Queue a read; one reader runs at a time."""
        log = self._attempt_log
        if log is None or (kind == _NEWS and (log.is_finished or (log is self._log_being_read and not log.is_started))):
            return
        if kind == _END and (log.is_at_end or not log.is_started):
            return
        self._requests.add(kind)
        if self._log_being_read is not log:
            self._log_being_read = log
            run_latest(self, self._read_requests, "log")

    async def _read_requests(self) -> None:
        log = self._attempt_log
        try:
            while log is not None and log is self._attempt_log and self._requests:
                kind = min(self._requests)
                self._requests.discard(kind)
                await self._read(log, kind)
        except RedriveError as error:
            self._requests.clear()
            self.console.show_message(str(error), Role.WARNING)
        finally:
            if self._log_being_read is log:
                self._log_being_read = None

    async def _read(self, log: AttemptLog, kind: int) -> None:
        attempt = self._attempt()
        over = attempt is not None and attempt.outcome != "running"
        shown, place = log.text, self.text.first_in_view()
        first, added = await self._read_window(log, kind if log.is_started else _NEWS)
        log.is_finished = over and log.is_at_end and (log.is_finished or kind in (_NEWS, _END))
        if log is not self._attempt_log or self._selection is None:
            return
        if log.text is not shown or self._selection.text is not log.text:
            self._show_window(log)
            if kind in (_EARLIER, _LATER) and place is not None:
                self._scroll_back(log, place)
        elif added:
            self.text.lines_changed(dropped=-self._selection.apply_prepended(added))
        else:
            self._selection.update_from(first)
            self.text.lines_changed()
        if kind in (_WHOLE, _ONLY) and self._when_complete is not None:
            step, self._when_complete = self._when_complete, None
            step()
        self._show_heading()

    async def _read_window(self, log: AttemptLog, kind: int) -> tuple[int, int]:
        """Read one window. Return the first line that changed, and how many lines were added at the start."""
        if kind == _NEWS:
            return await log.read_new(), 0
        if kind == _LATER:
            return max(await log.read_later(), 0), 0
        if kind == _END:
            await log.read_end()
        elif kind == _ONLY:
            await log.read_only(self._store_filter())
        else:
            return 0, max(await (log.read_earlier() if kind == _EARLIER else log.read_whole()), 0)
        return 0, 0

    def _scroll_back(self, log: AttemptLog, place: tuple[int, str]) -> None:
        """Scroll so that the previous first line is the first again."""
        self.text.is_following = False
        for number, line in enumerate(log.text.lines):
            if (line.id, line) == place:
                self.text.set_first_line(number)
                return

    def _call_when_complete(self, step: Callable[[], None]) -> None:
        """Call ``step`` once the window begins with the start of the log."""
        if self._attempt_log is None or self._attempt_log.is_complete:
            step()
        else:
            self._when_complete = step
            self._request(_WHOLE)

    def on_lines_view_position_changed(self, message: LinesView.PositionChanged) -> None:
        """Read more output near the start or the end of the loaded lines."""
        log = self._attempt_log
        first, last = self.text.span
        if log is not None and log.is_started and last:
            if not log.is_complete and first < self.text.rows:
                self._request(_EARLIER)
            if not log.is_at_end and last > len(self.text.lines) - self.text.rows:
                self._request(_LATER)
        self._show_heading()

    # --- Words ----------------------------------------------------------------------------------------------------

    def _show_heading(self) -> None:
        row, log = self._row(), self._attempt_log
        if row is None or not self.is_mounted:
            return
        last = self.text.span[1]
        heading = LogHeading(
            count=len(row.attempts),
            written=self._output_bytes(),
            lines=len(self.text.lines),
            last=last,
            last_at=self._lines.line_at(last - 1).at if self._lines is not None and last else 0,
            is_following=self.text.is_following,
            is_complete=log is None or log.is_whole,
            is_searching=self._is_searching,
            is_given_up=self._is_given_up,
            searched=self.filter_text,
            only=self._line_filter,
            has_match=self._has_match,
            dropped_bytes=log.dropped_bytes if log is not None else None,
        )
        now, size = self.console.live.now_us, self.app.size.width
        self.heading.show(*heading_line(row, self._attempt(), heading, now, size, self.console.glyphs))

    def _output_bytes(self) -> int | None:
        attempt, log = self._attempt(), self._attempt_log
        if log is not None and log.output_bytes is not None:
            return log.output_bytes
        return attempt.output_bytes if attempt is not None and attempt.output_bytes else None

    def _empty_line(self) -> Line:
        if self._task_name is None:
            return []
        log = self._attempt_log
        why = self.board.explain(self._task_name, self.console.live.now_us) if log is None else ""
        is_read = log is None or (log.is_started and log.is_whole)
        dropped = log.dropped_bytes if log is not None else None
        return empty_line(self._attempt(), why, self._line_filter, is_read, self.console.glyphs, dropped)

    def hints(self) -> list[KeyHint]:
        """Rename some keys for this screen."""
        row = self._row()
        one = row is None or len(row.attempts) < 2
        label = self.console.keymap.label
        words = {label("filter"): "search", label("output"): "pager"}
        alone = {label("older_attempt"), label("compare_attempts")} if one else set()
        pair = f"{label('older_attempt')} {label('newer_attempt')}"
        named = [(key, words.get(key, word)) for key, word in super().hints() if key not in alone]
        return [(pair, word) if key == label("older_attempt") else (key, word) for key, word in named]

    # --- Finding --------------------------------------------------------------------------------------------------

    def ask_filter(self) -> None:
        """Look for words; the first line that has them comes into view at every key."""
        self.footer_widget.open_prompt("/", self.filter_text, hint="words to search for, or ~regex")

    def ask_only(self) -> None:
        """Show only lines that match."""
        self.footer_widget.open_prompt(
            "&", self._line_filter, hint="words that must match, !word that must not, or ~regex"
        )

    def _apply_filter(self, text: str) -> None:
        if self.footer_widget.prompt.sign == "&":
            self._show_only(text)
        else:
            super()._apply_filter(text)

    def _show_only(self, text: str) -> None:
        if text == self._line_filter:
            return
        self._line_filter = text
        log = self._attempt_log
        if log is None or self._selection is None or self._lines is None:
            return
        if log.is_whole and not log.only and isinstance(parse_line_filter(text), Filter):
            self._selection.set_filter(parse_line_filter(text))
            self.text.set_lines(self._lines)
        else:
            self._request(_ONLY)
        self._show_heading()

    def _store_filter(self) -> str:
        """The filter as a regular expression for the store; empty without a filter."""
        wanted = parse_line_filter(self._line_filter)
        return line_regex(wanted) if self._line_filter and wanted != Filter() else ""

    def filter_changed(self, text: str) -> None:
        """Search for the text."""
        self.text.search(text)
        self._has_match, self._is_searching, self._is_given_up = True, False, False
        if text:
            self._find(1)
        else:
            self.workers.cancel_group(self, "log search")
        self._show_heading()

    def _find(self, step: int) -> None:
        """Go to the next match."""
        wanted = search_pattern(self.filter_text)
        target = LogTarget(wanted.pattern, lambda line: wanted.search(line) is not None)
        self._search(target, step, self.text.search_start(step))

    def _search(self, target: LogTarget, step: int, after: int | None) -> None:
        """Search after a line in memory, or in the store from its start."""
        self._has_match, self._is_searching, self._is_given_up = True, False, False
        run_latest(self, partial(self._show_match, target, step, after), "log search")

    async def _show_match(self, target: LogTarget, step: int, after: int | None) -> None:
        log, found = self._attempt_log, None
        try:
            if after is not None:
                found = await self._find_in_memory(target, step, after)
            if found is None and log is not None and not self._is_whole:
                self._is_searching = True
                self._show_heading()
                found = await self._find_in_store(log, target, step, after is None)
        except RedriveError as error:
            self.text.search("")
            self._is_given_up, self._has_match = True, True
            self.console.show_message(str(error), Role.WARNING)
            target = target._replace(nothing="")
        else:
            self._has_match = found is not None
        if log is self._attempt_log:
            self._is_searching = False
            if found is not None:
                self.text.show_match(found)
            elif target.nothing:
                self.console.show_message(target.nothing)
            self._show_heading()

    @property
    def _is_whole(self) -> bool:
        """Whether all lines that can match are in memory."""
        log = self._attempt_log
        return log is None or log.is_whole or bool(log.only)

    async def _find_in_memory(self, target: LogTarget, step: int, after: int) -> int | None:
        places = places_after(len(self.text.lines), after, step, self._is_whole)
        return await first_match(places, self.text.searched_text, target.matches)

    async def _find_in_store(self, log: AttemptLog, target: LogTarget, step: int, from_start: bool) -> int | None:
        """Show the window with the next match, at last from the other end of the log; return its line."""
        start = 0 if from_start else log.text.last_id if step > 0 else log.text.first_id
        edge = 0 if step > 0 else _AFTER_EVERY_CHUNK
        for first in (start, edge) if start != edge else (edge,):
            place: int | None = first
            while place is not None and log is self._attempt_log:
                place = await log.find(target.pattern, step, place)
                if place is None:
                    break
                await log.read_around(place)
                if log is not self._attempt_log:
                    return None
                self.text.is_following = False
                self._show_window(log)
                line = await self._find_in_chunk(log.text.lines, target, place, step)
                if line is not None:
                    return line
        return None

    async def _find_in_chunk(self, lines: Sequence[LogLine], target: LogTarget, chunk: int, step: int) -> int | None:
        """Return the first match from a chunk on, or with a ``step`` of -1 the last one up to it."""
        places = places_after(len(lines), -1 if step > 0 else len(lines), step, wraps=False)
        near = (place for place in places if (lines[place].id - chunk) * step >= 0)
        return await first_match(near, lines.__getitem__, target.matches)

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
        if self._attempt_log is not None:
            target = LogTarget(ERROR.pattern, is_error_line, self._no_error_words())
            self._search(target, step, after if self._is_whole or after >= 0 else None)

    def _no_error_words(self) -> str:
        log = self._attempt_log
        return f"no line shows an error{unsearched_words(log.dropped_bytes if log is not None else None)}"

    def back(self) -> None:
        """Show all lines; end the search."""
        if self._line_filter:
            self._show_only("")
        elif self.filter_text:
            super()._apply_filter("")
        else:
            super().back()

    # --- Elsewhere ------------------------------------------------------------------------------------------------

    def show_output(self) -> None:
        """Show the whole log in the operator's pager."""
        log = self._attempt_log
        if log is not None:
            run_latest(self, partial(self._open_pager, log), "pager")

    async def _open_pager(self, log: AttemptLog) -> None:
        try:
            with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
                text = LogText()
                async for chunks in log.pages():
                    text.append(chunks)
                    file.writelines(f"{line_text(line, self.console.glyphs)}\n" for line in text.pop_closed_lines())
                file.writelines(f"{line_text(line, self.console.glyphs)}\n" for line in text.lines)
                file.seek(0)
                with self.app.suspend():
                    show_in_pager((line.rstrip("\n") for line in file), f"{log.task}-{log.attempt}")
        except RedriveError as error:
            self.console.show_message(str(error), Role.WARNING)
        except SuspendNotSupported:
            self.console.show_message("there is no terminal for a pager", Role.WARNING)

    def on_resize(self, event: events.Resize) -> None:
        """Render the heading for the new width."""
        super().on_resize(event)
        if self.console.live.board is not None:
            self._show_heading()
