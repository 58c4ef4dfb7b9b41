"""Everything that happened, and who did what: the newest at the end, where it is followed; earlier on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.timer import Timer
from textual.widget import Widget

from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ...engine.statefile.queries import JOURNAL
from ..feed.live_run import News
from ..keys.actions import Place
from ..model.board import Board
from ..model.filters import parse_filter
from ..model.journal import KEPT_MAX, Journal, command_line, event_of
from ..present.journal import Heading, event_lines, event_row, heading_line, name_cells, nothing_line
from ..text.pieces import Line, Piece, Role
from ..text.text import cells, one_line
from ..widgets.bars import Bar
from ..widgets.bindings import bindings, bindings_of
from ..widgets.table import VirtualTable
from ..widgets.text_view import LinesView
from .base import run_latest
from .panes import Side, TwoPanes
from .text_dialog import Reading

WINDOW_ROWS = 200  # what is read at a time
SEARCHED_ROWS = 1000  # what is read at a time while a filter leaves little of it
RESTING_SECONDS = 0.15  # the cursor may only be passing by


class JournalTable(VirtualTable[int]):
    """Events by number, and what is said when there are none."""

    def __init__(self, row: Callable[[int, int], Line], nothing: Callable[[], Line]) -> None:
        super().__init__(row, id="journal")
        self._nothing = nothing

    @property
    def at_the_end(self) -> bool:
        """Whether what comes next is followed."""
        return self.cursor >= len(self.order) - 1

    def line(self, y: int) -> Line:
        """An event."""
        return super().line(y) if self.order or y != 1 else self._nothing()


class EventDetails(Reading):
    """Everything about one event; its command line can be copied."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("copy")

    def __init__(self, title: Line, lines: list[Line]) -> None:
        super().__init__(title, lines)
        self.view.wrapping = True


class JournalScreen(TwoPanes):
    """See the module."""

    PLACE = Place.JOURNAL
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.JOURNAL)
    SIDE = Side(40, 46, 100)

    def __init__(self) -> None:
        super().__init__()
        self.heading = Bar(id="heading")
        self.main = self.table = JournalTable(self._row, self._nothing)
        self.beside = self.event_view = LinesView(wrap=True, id="beside")
        self._resting: Timer | None = None
        self.journal = Journal(self.board.fold.run.run_id)
        self._longest_name = 0
        self._begun = False  # the end has been read
        self._sought: int | None = None  # the event of the past that the board shows: wanted under the cursor
        self._reading = False

    def left(self) -> Iterable[Widget]:
        """One line, the list."""
        yield self.heading
        yield self.table

    # --- The run --------------------------------------------------------------------------------------------------

    def board_replaced(self, board: Board) -> None:
        """Events may be missing between the old picture and the new one: begin again at the end."""
        self._begin_again()

    def shown(self) -> None:
        """Read the end, if that was not done."""
        self.table.focus()
        self._show_order()
        self._read()
        visit = self.console.rewind.visit
        if visit is not None:
            self.turned(visit.seq)

    def take(self, news: News) -> None:
        """More has happened."""
        if self.journal.append(news.events) and self.is_current:
            self._show_order()
        elif self.is_current:
            self._show_heading()

    def _begin_again(self) -> None:
        self.journal = Journal(self.board.fold.run.run_id)
        self.journal.show_only(parse_filter(self.filter_text))
        self._longest_name = max((cells(one_line(name)) for name in self.board.fold.tasks), default=0)
        self._begun = False
        self._show_order()
        if self.is_current:
            self._read()

    # --- Reading --------------------------------------------------------------------------------------------------

    @property
    def _lacks(self) -> bool:
        """Whether somebody looks where events have not been read yet."""
        if self.journal.whole:
            return False
        if self._sought is not None and (self.journal.first or self._sought) > self._sought:
            return True
        room = len(self.journal) < KEPT_MAX or not self.filter_text
        return not self._begun or (room and self.table.first_visible < self.table.rows)

    def _read(self) -> None:
        """One reader at a time: a slow line is not asked twice for the same."""
        if not self._reading and self._lacks:
            self._reading = True
            run_latest(self, self._read_earlier, "journal")

    async def _read_earlier(self) -> None:
        try:
            while self._lacks:
                await self._read_window(self.journal)
        except RedriveError as error:
            self.console.show_message(str(error), Role.WARNING)
        finally:
            self._reading = False

    async def _read_window(self, journal: Journal) -> None:
        is_search = self.filter_text or self._sought is not None
        limit = SEARCHED_ROWS if is_search and self._begun else WINDOW_ROWS
        session = self.console.live.session
        rows = await session.query(JOURNAL, run_id=journal.run_id, before=journal.first, limit=limit)
        if journal is not self.journal:
            return
        first = journal.first
        journal.prepend([event_of(row) for row in rows])
        journal.whole = len(rows) < limit or journal.first == first
        begun, self._begun = self._begun, True
        self._show_order(to_the_end=not begun)
        self._seek()

    def turned(self, seq: int) -> None:
        """The cursor goes to the event that the board shows, which may have to be read first."""
        self._sought = seq
        if self.journal.newer and seq > self.journal.last:
            self._begin_again()
        self._seek()
        self._read()

    def _seek(self) -> None:
        """Only a list that reaches so far knows where it is."""
        first = self.journal.first
        if self._sought is not None and first is not None and (self.journal.whole or first <= self._sought):
            place, self._sought = bisect_right(self.journal.order, self._sought) - 1, None
            self.table.move_to(max(place, 0))

    # --- The list -------------------------------------------------------------------------------------------------

    def _show_order(self, to_the_end: bool = False) -> None:
        """The reader stays at his row; at the end he stays there."""
        follow = to_the_end or (self.table.at_the_end and not self.journal.newer)
        self.table.set_order(list(self.journal.order))
        if follow:
            self.table.move_to(len(self.table.order) - 1)
        self._show_heading()

    def _row(self, number: int, columns: int) -> Line:
        console, started_at = self.console, self.board.fold.run.started_at
        room = name_cells(self._longest_name, columns)
        return event_row(self.journal[number], started_at, console.absolute_times, room, console.glyphs)

    def _nothing(self) -> Line:
        return nothing_line(self.filter_text, self._begun)

    def _show_heading(self) -> None:
        journal, console = self.journal, self.console
        heading = Heading(
            known=len(journal),
            shown=len(journal.order),
            acts=journal.acts,
            whole=journal.whole,
            newer=journal.newer,
            filter_text=self.filter_text,
            started_at=self.board.fold.run.started_at,
            absolute=console.absolute_times,
            following=self.table.at_the_end and bool(journal.order),
        )
        self.heading.show(*heading_line(heading, self.left_columns, console.glyphs))

    def tick(self, now_us: int) -> None:
        """Times do not tick here; they may be of the other kind now."""
        self._show_heading()

    def on_resize(self, event: events.Resize) -> None:
        """The line above is made for a width."""
        super().on_resize(event)
        if self.is_mounted:
            self._show_heading()
            self._read()
            self._rest()

    # --- Keys -----------------------------------------------------------------------------------------------------

    def subject(self) -> Event | None:
        """The event under the cursor."""
        number = self.table.cursor_key
        return self.journal[number] if number is not None else None

    def on_virtual_table_moved(self, message: VirtualTable.Moved) -> None:
        """Towards the beginning: read on. At the end: what was let go comes back. Between: its task is selected."""
        if self.table.at_the_end:
            if self.journal.newer:
                self._begin_again()
        else:
            self._select()
        self._read()
        self._rest()
        self._show_heading()

    def _select(self) -> None:
        event = self.subject()
        if event is not None and event.run_id == self.journal.run_id and event.task in self.board.fold.tasks:
            self.console.selected = event.task

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Everything about the event."""
        event = self.subject()
        if event is not None and self.is_wide:
            self.event_view.focus()
        elif event is not None:
            self.console.push_screen(EventDetails(_title(event), self._lines_of(event)))

    def _lines_of(self, event: Event) -> list[Line]:
        keymap, glyphs = self.console.keymap, self.console.glyphs
        return event_lines(event, self._command(event), keymap.label("copy"), glyphs)

    @property
    def rests(self) -> bool:
        """Whether everything about the event under the cursor has been said."""
        return self._resting is None

    def _rest(self) -> None:
        """Where the cursor rests, tell of the event beside the list."""
        if self._resting is None and self.is_mounted and self.is_wide:
            self._resting = self.set_timer(RESTING_SECONDS, self._rested)

    def _rested(self) -> None:
        self._resting = None
        event = self.subject()
        lines = [_title(event), *self._lines_of(event)] if event is not None else []
        self.event_view.set_lines([[Piece(" "), *line] for line in lines])

    def _command(self, event: Event) -> str | None:
        return command_line(event, self.console.way.state_path or self.console.address)

    def go_on(self, step: int) -> None:
        """To the next act or task that needs a human, or the one before."""
        here = self.table.cursor_key
        found = self.journal.next_notable(here, step) if here is not None else None
        if found is None:
            self.console.show_message("nobody acted, and nothing needs a human, as far as was read")
        else:
            self.table.move_to_key(found)

    def filter_changed(self, text: str) -> None:
        """Only what matches."""
        self.journal.show_only(parse_filter(text))
        self._show_order(to_the_end=not text)
        self._read()

    def select_task(self) -> bool:
        """The task of the event, if it has one."""
        self._select()
        return True


def _title(event: Event) -> Line:
    return [Piece(f"Event {event.seq}", Role.TITLE)]
