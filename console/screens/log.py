"""The output of one attempt of the selected task: its end first, followed while it runs, searched, filtered, paged.

Nothing is read while the screen is not seen, and nothing earlier than its end before somebody looks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events
from textual.app import SuspendNotSupported
from textual.binding import BindingType
from textual.timer import Timer
from textual.widget import Widget

from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.errors import RedriveError
from ..feed.live_run import News
from ..keys.actions import Place
from ..model.board import Board
from ..model.filters import parse_filter
from ..model.log import GAP, Selection
from ..present.log import Heading, LogLines, gap_words, heading_line, nothing_line
from ..terminal.pager import page
from ..text.pieces import Line, Role
from ..widgets.bars import Bar, KeyHint
from ..widgets.bindings import bindings_of
from ..widgets.text_view import LinesView
from .attempt_log import AttemptLog
from .base import ConsoleScreen, run_latest

LOOK_SECONDS = 0.5  # between two looks at a log that grows
_NEWS, _EARLIER, _REST = range(3)  # what can be wished for, in the order in which it is read


class LogView(LinesView):
    """Lines that say what is to be said when there are none, and whose beginning may still have to be read."""

    def __init__(self, nothing: Callable[[], Line], to_the_top: Callable[[], None]) -> None:
        super().__init__(follow=True, id="log")
        self._nothing = nothing
        self._to_the_top = to_the_top

    @property
    def stands_at(self) -> int:
        """The line that was found last, else the one before the first in view."""
        return self._found if self._found is not None else self.span[0] - 1

    def stand_at(self, line: int) -> None:
        """Show a line and set it off."""
        self._found = line
        self.following = False
        self.show_line(line)
        self.refresh()

    def move_to_edge(self, direction: int) -> None:
        """To the start, which may have to be read first; or to the end, and stay there."""
        if direction < 0:
            self._to_the_top()
        else:
            self.following = True
            super().move_to_edge(direction)

    def go_to_top(self) -> None:
        """To the first line that is known."""
        super().move_to_edge(-1)

    def line(self, y: int) -> Line:
        """A line, or why there are none."""
        if not len(self.lines):
            return self._nothing() if y == 0 else []
        return super().line(y)


class LogScreen(ConsoleScreen):
    """See the module."""

    PLACE = Place.LOG
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.LOG)

    def __init__(self) -> None:
        super().__init__()
        self.heading = Bar(id="heading")
        self.text = LogView(self._nothing, lambda: self._when_whole(self.text.go_to_top))
        self._attempt_log: AttemptLog | None = None
        self._subject: str | None = None
        self._pinned: int | None = None  # the attempt that was asked for; None: the latest
        self._selection: Selection | None = None
        self._lines: LogLines | None = None
        self._only = ""
        self._found = True
        self._serving: AttemptLog | None = None
        self._wishes: set[int] = set()
        self._then: Callable[[], None] | None = None  # as soon as everything has been read
        self._looking: Timer | None = None

    def content(self) -> Iterable[Widget]:
        """One line, the log."""
        yield self.heading
        yield self.text

    # --- Which attempt --------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Look at what grows, while it is seen."""
        self._looking = self.set_interval(LOOK_SECONDS, self._look, pause=True)
        super().on_mount()

    def shown(self) -> None:
        """The output of the selected task."""
        self.text.focus()
        if self._looking is not None:
            self._looking.resume()
        self._choose()
        self._wish(_NEWS)

    def on_screen_suspend(self) -> None:
        """Nobody looks."""
        if self._looking is not None:
            self._looking.pause()

    def board_replaced(self, board: Board) -> None:
        """The same of a new picture, or another run."""
        if self._attempt_log is not None and self._attempt_log.run_id != board.fold.run.run_id:
            self._attempt_log = self._subject = self._pinned = None
        elif self._attempt_log is not None:
            self._attempt_log.over = False
        self._seen()

    def take(self, news: News) -> None:
        """The attempt may have ended, or another one begun; or the present is another moment than was shown."""
        log = self._attempt_log
        if self._subject is None or self._subject in news.delta.tasks or (log and log.until != self._until()):
            self._seen()

    def turned(self, seq: int) -> None:
        """Only what was written by then."""
        self._seen()

    def _until(self) -> int | None:
        live = self.console.live
        return live.now_us if live.is_past else None

    def _seen(self) -> None:
        if self.is_current:
            self._choose()
            self._wish(_NEWS)

    def tick(self, now_us: int) -> None:
        """How long it has been running."""
        self._show_heading()
        if not len(self.text.lines):
            self.text.refresh_rows(0)

    def _look(self) -> None:
        attempt = self._attempt()
        if attempt is not None and attempt.outcome == "running" and self.is_current:
            self._wish(_NEWS)

    def _row(self) -> TaskRow | None:
        return self.board.fold.tasks.get(self._subject) if self._subject is not None else None

    def _attempt(self) -> AttemptRow | None:
        row = self._row()
        return (
            row.attempts.get(self._attempt_log.attempt) if row is not None and self._attempt_log is not None else None
        )

    def _choose(self) -> None:
        """The task that is selected; its attempt that was asked for, or the latest."""
        board = self.board
        name = self.console.selected
        if name is None:
            name = self._subject or board.next_problem(None) or board.front() or next(iter(board.fold.tasks), None)
            self.console.selected = name
        if name != self._subject:
            self._subject, self._pinned = name, None
        row = self._row()
        if row is not None:
            self._show_attempt(row)
        self._show_heading()

    def _show_attempt(self, row: TaskRow) -> None:
        """Where the end of one attempt is followed, the next one takes its place."""
        shown = self._attempt_log
        same = shown is not None and shown.task == row.name and shown.attempt in row.attempts
        if self._pinned is not None and self._pinned in row.attempts:
            number = self._pinned
        elif same and shown is not None and not self.text.following:
            number = shown.attempt
        else:
            number = max(row.attempts, default=0)
        if not number:
            self._attempt_log = None
            self._show_lines()
        elif not same or shown is None or shown.attempt != number or not shown.reaches(self._until()):
            run_id = self.board.fold.run.run_id
            self._attempt_log = AttemptLog(self.console.live.session, run_id, row.name, number, self._until())
            self._show_lines()

    def _show_lines(self) -> None:
        """Another log, from its end."""
        self._wishes.clear()
        self._then = None
        self.text.following = True
        if self._attempt_log is None:
            self._selection = self._lines = None
            self.text.set_lines(())
            return
        self._selection = Selection(self._attempt_log.text)
        self._selection.show_only(parse_filter(self._only))
        self._lines = LogLines(self._selection, self.console.glyphs)
        self.text.set_lines(self._lines)

    def go_to_attempt(self, step: int) -> None:
        """To the attempt after this, or the one before."""
        row = self._row()
        if row is None or self._attempt_log is None:
            return
        numbers = sorted(row.attempts)
        place = numbers.index(self._attempt_log.attempt) + step
        if not 0 <= place < len(numbers):
            self.console.show_message(f"this is the {'first' if step < 0 else 'latest'} attempt")
            return
        self._pinned = numbers[place] if place < len(numbers) - 1 else None
        self.text.following = True
        self._choose()
        self._wish(_NEWS)

    # --- Reading --------------------------------------------------------------------------------------------------

    def _wish(self, wish: int) -> None:
        """Have something read; one reader at a time, so that a slow line is not asked twice."""
        log = self._attempt_log
        if log is None or (wish == _NEWS and (log.over or (log is self._serving and not log.begun))):
            return
        self._wishes.add(wish)
        if self._serving is not log:
            self._serving = log
            run_latest(self, self._serve, "log")

    async def _serve(self) -> None:
        log = self._attempt_log
        try:
            while log is not None and log is self._attempt_log and self._wishes:
                wish = min(self._wishes)
                self._wishes.discard(wish)
                await self._read(log, wish)
        except RedriveError as error:
            self._wishes.clear()
            self.console.show_message(str(error), Role.WARNING)
        finally:
            if self._serving is log:
                self._serving = None

    async def _read(self, log: AttemptLog, wish: int) -> None:
        attempt = self._attempt()
        over = attempt is not None and attempt.outcome != "running"
        first = added = 0
        if wish == _NEWS or not log.begun:
            first = await log.go_on()
            log.over = over
        else:
            added = await (log.earlier() if wish == _EARLIER else log.rest())
        if log is not self._attempt_log or self._selection is None or self._lines is None:
            return
        self._lines.dropped_bytes = log.dropped
        if added:
            self.text.lines_changed(dropped=-self._selection.grown_in_front(added))
        else:
            self._selection.changed(first)
            self.text.lines_changed()
        if log.whole and self._then is not None:
            step, self._then = self._then, None
            step()
        self._show_heading()

    def _when_whole(self, step: Callable[[], None]) -> None:
        """Do something that needs everything to have been read."""
        if self._attempt_log is None or self._attempt_log.whole:
            step()
        else:
            self._then = step
            self._wish(_REST)

    def on_lines_view_moved(self, message: LinesView.Moved) -> None:
        """Towards the beginning of what has been read: read on."""
        log = self._attempt_log
        first, last = self.text.span
        if log is not None and log.begun and not log.whole and first < self.text.rows and last:
            self._wish(_EARLIER)
        self._show_heading()

    # --- Words ----------------------------------------------------------------------------------------------------

    def _show_heading(self) -> None:
        row, log = self._row(), self._attempt_log
        if row is None or not self.is_mounted:
            return
        heading = Heading(
            count=len(row.attempts),
            written=self._written(),
            lines=len(self.text.lines),
            last=self.text.span[1],
            following=self.text.following,
            whole=log is None or log.whole,
            searched=self.filter_text,
            only=self._only,
            found=self._found,
        )
        now, size = self.console.live.now_us, self.app.size.width
        self.heading.show(*heading_line(row, self._attempt(), heading, now, size, self.console.glyphs))

    def _written(self) -> int | None:
        attempt, log = self._attempt(), self._attempt_log
        if log is not None and log.written is not None:
            return log.written
        return attempt.output_bytes if attempt is not None and attempt.output_bytes else None

    def _nothing(self) -> Line:
        if self._subject is None:
            return []
        log = self._attempt_log
        why = self.board.why(self._subject, self.console.live.now_us) if log is None else ""
        return nothing_line(self._attempt(), why, self._only, log is None or log.begun, self.console.glyphs)

    def hints(self) -> list[KeyHint]:
        """Some keys have another name here."""
        row = self._row()
        one = row is None or len(row.attempts) < 2
        label = self.console.keymap.label
        words = {label("filter"): "search", label("output"): "pager"}
        alone = label("older_attempt") if one else None
        pair = f"{label('older_attempt')} {label('newer_attempt')}"
        named = [(key, words.get(key, word)) for key, word in super().hints() if key != alone]
        return [(pair, word) if key == label("older_attempt") else (key, word) for key, word in named]

    # --- Finding --------------------------------------------------------------------------------------------------

    def ask_filter(self) -> None:
        """Look for words; the first line that has them comes into view at every key."""
        self.last_line.ask("/", self.filter_text, hint="words to look for")

    def ask_only(self) -> None:
        """Show only lines that match."""
        self.last_line.ask("&", self._only, hint="words that must match, !word that must not")

    def _filter_by(self, text: str) -> None:
        if self.last_line.prompt.sign == "&":
            self._show_only(text)
        else:
            super()._filter_by(text)

    def _show_only(self, text: str) -> None:
        if text == self._only:
            return
        self._only = text
        if self._selection is not None and self._lines is not None:
            self._selection.show_only(parse_filter(text))
            self.text.set_lines(self._lines)
        if text:
            self._when_whole(self._show_heading)
        self._show_heading()

    def filter_changed(self, text: str) -> None:
        """Search."""
        self.text.search(text)
        self._found = True
        if text:
            self._find(1)
        self._show_heading()

    def _find(self, step: int) -> None:
        """The next match; what was not read yet is read before it is said that there is none."""
        self._found = self.text.find_next(forward=step > 0) is not None
        if not self._found and self._attempt_log is not None and not self._attempt_log.whole:
            self._found = True
            self._when_whole(lambda: self._find(step))
        self._show_heading()

    def go_on(self, step: int) -> None:
        """To the next match or the one before; without a search, to a line that tells of an error."""
        if self.filter_text:
            self._find(step)
        else:
            first = -1 if step > 0 else 0
            self._when_whole(lambda: self._go_to_error(max(self.text.stands_at, first), step))

    def go_to_first_error(self) -> None:
        """The first line that tells of an error."""
        self._when_whole(lambda: self._go_to_error(-1))

    def _go_to_error(self, after: int, step: int = 1) -> None:
        place = self._selection.next_error(after, step) if self._selection is not None else None
        if place is None:
            self.console.show_message("no line tells of an error")
        else:
            self.text.stand_at(place)

    def back(self) -> None:
        """Show all lines; end the search."""
        if self._only:
            self._show_only("")
        elif self.filter_text:
            super()._filter_by("")
        else:
            super().back()

    # --- Elsewhere ------------------------------------------------------------------------------------------------

    def show_output(self) -> None:
        """All of it in the operator's own pager."""
        self._when_whole(self._page)

    def _page(self) -> None:
        log = self._attempt_log
        if log is None:
            return
        gap = gap_words(log.dropped, self.console.glyphs)
        lines = (gap if line == GAP else line for line in log.text.lines)
        try:
            with self.app.suspend():
                page(lines, f"{log.task}-{log.attempt}")
        except RedriveError as error:
            self.console.show_message(str(error), Role.WARNING)
        except SuspendNotSupported:
            self.console.show_message("there is no terminal for a pager", Role.WARNING)

    def on_resize(self, event: events.Resize) -> None:
        """The line above is made for a width."""
        super().on_resize(event)
        if self.console.live.board is not None:
            self._show_heading()
