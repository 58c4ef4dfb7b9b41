"""The journal: all events, newest last and followed; earlier events on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace
from textual import events
from textual.widget import Widget

from ...engine.domain.events import Event
from ...engine.statefile.lists import JOURNAL
from ..keys.actions import Action, ScreenName
from ..model.board import Board, BoardUpdate
from ..model.lists import parse_filter
from ..model.repeats import Tries, fold_tries
from ..model.replay import EVENTS_MAX, IS_PROBLEM, EventJournal, command_line
from ..present.journal import empty_line, event_lines, event_row, heading_line
from ..sessions.session import listed_events
from ..text.pieces import Line, Piece, Role
from ..text.text import cells, one_line
from ..widgets.bars import Bar, bindings
from ..widgets.table import VirtualTable
from .console import run_latest
from .dialogs import TextDialog
from .panes import DetailedList

WINDOW_ROWS = 200  # what is read at a time
SEARCHED_ROWS = 1000  # what is read at a time while a filter leaves little of it


class EventDialog(TextDialog):
    """A dialog with everything about one event; its command line can be copied."""

    BINDINGS = bindings("copy")


class JournalScreen(DetailedList):
    """See the module."""

    PLACE = ScreenName.JOURNAL
    HAS_STRIP = False  # an event is whole in its row, but for what a dialog has

    def __init__(self) -> None:
        super().__init__()
        self.heading = Bar(id="heading")
        self.table: VirtualTable[int] = VirtualTable(self._row, nothing=self._empty_line, always_lit=True, id="journal")
        self.main_pane = self.table
        self.journal = EventJournal(self.board.projection.run.run_id)
        self._tries: Mapping[int, Tries] = {}  # by row: what it stands for
        self._opened: set[int] = set()  # the first of tries that are listed each
        self._longest_name = 0
        self._has_read_end = False  # the end has been read
        self._seek_seq: int | None = None  # the event of the past that the board shows: wanted under the cursor
        self._is_reading = False

    def main_widgets(self) -> Iterable[Widget]:
        yield self.heading
        yield self.table

    # --- The run --------------------------------------------------------------------------------------------------

    def board_replaced(self, board: Board) -> None:
        """Reload from the end: events may be missing between the old board and the new one."""
        self._reload()

    def on_shown(self) -> None:
        """Read the end of the journal, if necessary."""
        self.table.focus()
        self._show_order()
        self._read()
        position = self.console.time_travel.position
        if position is not None:
            self.on_seek(position.seq)

    def on_news(self, news: BoardUpdate) -> None:
        if self.journal.append(news.events) and self.is_current:
            self._show_order()
        elif self.is_current:
            self._show_heading()

    def _reload(self) -> None:
        self.journal = EventJournal(self.board.projection.run.run_id)
        self.journal.set_filter(parse_filter(self.filter_text))
        self._longest_name = max((cells(one_line(name)) for name in self.board.projection.tasks), default=0)
        self._has_read_end = False
        self._show_order()
        if self.is_current:
            self._read()

    # --- Reading --------------------------------------------------------------------------------------------------

    @property
    def _needs_earlier(self) -> bool:
        """Whether the viewport or a seek needs events that are not loaded."""
        if self.journal.is_complete:
            return False
        if self._seek_seq is not None and (self.journal.first or self._seek_seq) > self._seek_seq:
            return True
        room = len(self.journal) < EVENTS_MAX or not self.filter_text
        return not self._has_read_end or (room and self.table.first_visible < self.table.rows)

    def _read(self) -> None:
        """Start a read unless one is running."""
        if not self._is_reading and self._needs_earlier:
            self._is_reading = True
            run_latest(self, self._read_earlier, "journal")

    async def _read_earlier(self) -> None:
        try:
            while self._needs_earlier:
                await self._read_window(self.journal)
        finally:
            self._is_reading = False

    async def _read_window(self, journal: EventJournal) -> None:
        is_search = self.filter_text or self._seek_seq is not None
        limit = SEARCHED_ROWS if is_search and self._has_read_end else WINDOW_ROWS
        session = self.console.live.session
        events = await listed_events(session, JOURNAL, run_id=journal.run_id, before=journal.first, limit=limit)
        if journal is not self.journal:
            return
        first = journal.first
        journal.prepend(events)
        journal.is_complete = len(events) < limit or journal.first == first
        begun, self._has_read_end = self._has_read_end, True
        self._show_order(to_the_end=not begun)
        self._seek()

    def on_seek(self, seq: int) -> None:
        """Move the cursor to the event, which may have to be read first."""
        self._seek_seq = seq
        if self.journal.newer_dropped and seq > self.journal.last:
            self._reload()
        self._seek()
        self._read()

    def _seek(self) -> None:
        """Move to the sought event if it is loaded."""
        first = self.journal.first
        if self._seek_seq is not None and first is not None and (self.journal.is_complete or first <= self._seek_seq):
            place, self._seek_seq = bisect_right(self.table.order, self._seek_seq) - 1, None
            self.table.move_to(max(place, 0))
            self.table.refresh()  # what has happened by then is lit

    # --- The list -------------------------------------------------------------------------------------------------

    def _show_order(self, to_the_end: bool = False) -> None:
        """Keep the cursor on its row, or at the end; a row for several tries goes on as that of the latest."""
        follow = to_the_end or (self._is_at_end and not self.journal.newer_dropped)
        tries = self._tries_at_cursor
        order, self._tries = list(self.journal.order), {}
        if not self.filter_text:
            order, self._tries = fold_tries(map(self.journal.__getitem__, order), self._opened)
        self.table.set_order(order)
        if tries is not None and not follow:
            self.table.move_to_key(next((row for row, one in self._tries.items() if one.first == tries.first), 0))
        if follow:
            self.table.move_to(len(self.table.order) - 1)
        self.rest_timer.start()
        self._show_heading()

    @property
    def _is_at_end(self) -> bool:
        """Whether new events are followed."""
        return self.table.cursor >= len(self.table.order) - 1

    @property
    def _tries_at_cursor(self) -> Tries | None:
        row = self.table.cursor_key
        return self._tries.get(row) if row is not None else None

    def _row(self, number: int, columns: int) -> Line:
        console, started_at = self.console, self.board.projection.run.started_at
        event, longest, tries = self.journal[number], self._longest_name, self._tries.get(number)
        line = event_row(event, started_at, console.absolute_times, columns, longest, console.glyphs, tries)
        position = console.time_travel.position
        is_later = position is not None and number > position.seq
        return [piece._replace(role=Role.DIM) for piece in line] if is_later else line

    def _empty_line(self) -> Line:
        return empty_line(self.filter_text, self._has_read_end)

    def _show_heading(self) -> None:
        journal, console = self.journal, self.console
        times_since = None if console.absolute_times else self.board.projection.run.started_at
        is_following = self._is_at_end and bool(journal.order)
        columns, glyphs = self.main_columns, console.glyphs
        self.heading.show(
            *heading_line(journal, self.filter_text, times_since, columns, glyphs, is_following=is_following)
        )

    def tick(self, now_us: int) -> None:
        """Redraw if the user switched between times since the start and clock times."""
        self._show_heading()

    def on_resize(self, event: events.Resize) -> None:
        """Render the heading for the new width."""
        if self.is_mounted:
            self._show_heading()
            self._read()
            self.rest_timer.start()

    # --- Keys -----------------------------------------------------------------------------------------------------

    def subject(self) -> Event | None:
        number = self.table.cursor_key
        return self.journal[number] if number is not None else None

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Select the task of the event; near the start read earlier events, at the end reload dropped ones."""
        if self._is_at_end:
            if self.journal.newer_dropped:
                self._reload()
        else:
            self._select_task_of_event()
        self._read()
        self.rest_timer.start()
        self._show_heading()

    def _select_task_of_event(self) -> None:
        event = self.subject()
        if event is not None and event.run_id == self.journal.run_id and event.task in self.board.projection.tasks:
            self.console.selected = event.task

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """List the tries of a row each; of an event open a dialog with everything about it."""
        event, tries = self.subject(), self._tries_at_cursor
        if tries is not None:
            self._opened.add(tries.first)
            self._show_order()
            self.table.move_to_key(tries.first)
            return
        if event is not None and self.is_wide:
            self.focus_details()
        elif event is not None:
            self.console.push_screen(EventDialog(_title(event), self._lines_of(event), wrap=True))

    def _lines_of(self, event: Event) -> list[Line]:
        return event_lines(event, self._command(event), self.console.glyphs)

    def on_cursor_rest(self) -> None:
        """Show the event in the detail pane."""
        self.show_row()

    def row_key(self) -> object:
        return self.table.cursor_key

    def row_lines(self, columns: int) -> list[Line]:
        event = self.subject()
        lines = [_title(event), *self._lines_of(event)] if event is not None else []
        return [[Piece(" "), *line] for line in lines]

    def _command(self, event: Event) -> str | None:
        console = self.console
        return command_line(
            event, console.launch.state_path or console.live.session.address, console.live.session.ssh_arguments
        )

    def go_to_next(self, step: int) -> None:
        """Move to the next action or task that needs a human, or the previous one."""
        here = self.table.cursor_key
        found = self.journal.next_notable(here, step) if here is not None else None
        if found is None:
            self.console.show_message("no act and no problem among the events that were read")
        else:
            self.table.move_to_key(found)

    def back(self) -> None:
        """Fold the tries that were listed each; then as on every screen."""
        if self._opened and not self.detail_pane.has_focus and not self.filter_text:
            self._opened.clear()
            self._show_order()
        else:
            super().back()

    def footer_actions(self) -> Sequence[Action]:
        shown = "everything" if IS_PROBLEM in self.filter_text else "only failures and acts"
        return [replace(one, label=shown) if one.name == "filter_states" else one for one in super().footer_actions()]

    def cycle_state_filter(self) -> None:
        """Show only failures, hangs, open breakers and acts; again: everything."""
        words = self.filter_text.split(" ")
        others = " ".join(word for word in words if word != IS_PROBLEM)
        self.use_filter(others if IS_PROBLEM in words else f"{IS_PROBLEM} {others}".strip())

    def filter_changed(self, text: str) -> None:
        """Show matching rows only."""
        self.journal.set_filter(parse_filter(text))
        self._show_order(to_the_end=not text)
        self._read()

    def select_task(self) -> bool:
        """The task of the event, if it has one."""
        self._select_task_of_event()
        return True


def _title(event: Event) -> Line:
    return [Piece(f"Event {event.seq}", Role.TITLE)]
