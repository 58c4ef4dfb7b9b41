"""The console on all state files of a machine: a list from which one is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from ...engine.clock import Clock, SystemClock
from ...engine.errors import RedriveError
from ...engine.statefile.state_files import Offer
from ..keys.actions import ConsoleCall, action_named
from ..keys.keymap import DEFAULT_KEYS, KeyMap
from ..model.lists import COLUMNS, FLEET, ColumnChoice
from ..model.runs import FleetEntry, FleetOrder, fleet_entries
from ..present.runs import fleet_heading, fleet_row, fleet_titles, name_cells
from ..screens.dialogs import ColumnDialog
from ..terminal.tty import Tty
from ..text.glyphs import ASCII, UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar, KeyBar, Rule, bindings
from ..widgets.table import VirtualTable
from .base_app import ConsoleBase
from .preferences import save_columns
from .theme import DEFAULT, Theme, load_theme

MESSAGE_SECONDS = 5.0

FleetWatch = Callable[[], AsyncIterator[Sequence[Offer]]]


class FleetTable(VirtualTable[str]):
    """The rows. Keys of the view reach the order through them."""

    def __init__(self, row: Callable[[str, int], Line], change_order: Callable[[], None]) -> None:
        super().__init__(row)
        self.change_order = change_order


class FleetApp(ConsoleBase):
    """The list. ``chosen`` is the path or address of the opened state file; None: the operator left.

    Args:
        watch: yields the state files, again after each change.
        place: the machine, for people.
        before: the file under the cursor at first.
        message: shown at first, as why a file could not be opened.
        columns: the columns of the list.
    """

    TITLE = "redrive"
    CSS = "Screen, LineView { background: $ground; color: $ink; }"
    BINDINGS: ClassVar[list[BindingType]] = bindings("quit", "how_to_leave", "redraw", "sort", "columns")

    def __init__(
        self,
        watch: FleetWatch,
        place: str,
        *,
        tty: Tty | None = None,
        keymap: KeyMap = DEFAULT_KEYS,
        theme: Theme | None = None,
        clock: Clock | None = None,
        before: str | None = None,
        message: str = "",
        columns: ColumnChoice | None = None,
    ) -> None:
        self._look = theme or load_theme(DEFAULT)
        super().__init__(tty, keymap, self._look.palette())
        self.chosen: str | None = None
        self._glyphs = UTF8 if self.capabilities.has_unicode else ASCII
        self._watch = watch
        self._place = place
        self._clock = clock or SystemClock()
        self._before = before
        self._message = message
        self._columns = columns or ColumnChoice()
        self._problem = ""
        self._offers: Sequence[Offer] = ()
        self._order = FleetOrder.ATTENTION
        self._entries: dict[str, FleetEntry] = {}
        self._name_cells = 0
        self.heading = Bar(id="heading")
        self.titles = Bar()
        self.table = FleetTable(self._row, self.change_order)
        self.path_bar = Bar()  # the file under the cursor
        self.key_bar = KeyBar(more=(keymap.label("quit"), "leave"))

    def get_css_variables(self) -> dict[str, str]:
        """The colours of Textual's own backgrounds."""
        ground = {"ground": self._look.background, "ink": self._look.foreground}
        return {**super().get_css_variables(), **ground}

    def compose(self) -> ComposeResult:
        """Yield heading, list, the path of a file, and keys."""
        yield self.heading
        yield Rule(self._glyphs.rule)
        yield self.titles
        yield self.table
        yield Rule(self._glyphs.rule)
        yield self.path_bar
        yield self.key_bar

    def on_mount(self) -> None:
        """Start to read the list."""
        self.table.focus()
        self.key_bar.show([(self.keymap.label(name), action_named(name).label) for name in ("open", "sort", "columns")])
        self.heading.show([Piece(" reading ...")])
        if self._message:
            self._warn(self._message)
        self.set_interval(1.0, self.tick)
        self.run_worker(self._follow(), exclusive=True)

    async def _follow(self) -> None:
        try:
            async for offers in self._watch():
                self._offers = offers
                self._show()
        except RedriveError as error:
            self._problem = str(error)
            self._show()

    def _show(self) -> None:
        entries = fleet_entries(self._offers, self._clock.now_us(), self._order)
        self._entries = {entry.offer.path: entry for entry in entries}
        self._name_cells = name_cells(entries)
        self._show_titles()
        self.table.set_order([*self._entries])
        if self._before in self._entries:
            self.table.move_to([*self._entries].index(self._before))
            self._before = None
        self.heading.show(*fleet_heading(entries, self._place, self._problem, self._order, self._glyphs))
        self._show_path()
        self.table.refresh()

    def _show_titles(self) -> None:
        shown = self._columns.shown_in(FLEET)
        self.titles.show(fleet_titles(self.size.width, self._name_cells, shown))

    def on_resize(self, event: events.Resize) -> None:
        """Fit the titles."""
        self._show_titles()

    def _show_path(self) -> None:
        self.path_bar.show([Piece(f" {one_line(self.table.cursor_key or '')}", Role.DIM)])

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Show the path of the file under the cursor."""
        self._show_path()

    def tick(self) -> None:
        """Update countdowns, once a second."""
        if not self.is_output_busy:
            self.table.rows_changed([*self._entries])

    def _row(self, path: str, columns: int) -> Line:
        shown = self._columns.shown_in(FLEET)
        return fleet_row(self._entries[path], self._clock.now_us(), columns, self._glyphs, self._name_cells, shown)

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open the file under the cursor."""
        entry = self._entries[str(message.key)]
        if entry.offer.problem is not None:
            self._warn(entry.offer.problem)
            return
        self.chosen = entry.offer.path
        self.exit(0)

    def _warn(self, sentence: str) -> None:
        self.key_bar.show_message([Piece(one_line(sentence), Role.WARNING)], MESSAGE_SECONDS)

    # --- Order and columns ------------------------------------------------------------------------------------------

    def change_order(self) -> None:
        """Change to the next order."""
        orders = list(FleetOrder)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._show()

    def choose_columns(self) -> None:
        """Let the operator choose the columns of the list."""
        shown = self._columns.shown_in(FLEET)
        self.push_screen(ColumnDialog("Columns of this list", COLUMNS[FLEET], shown, self._glyphs), self._use_columns)

    def on_bar_cell_clicked(self, message: Bar.CellClicked) -> None:
        """A click above the list is the key of its order, on the right, or of its columns."""
        if message.bar in (self.heading, self.titles):
            (self.change_order if message.on_right else self.choose_columns)()

    def _use_columns(self, chosen: frozenset[str] | None) -> None:
        if chosen is None:
            return
        self._columns.choose(FLEET, chosen)
        self._show_titles()
        self.table.refresh()
        try:
            save_columns(self._columns)
        except OSError as error:
            self._warn(f"the choice could not be saved: {error.strerror}")

    # --- Keys -----------------------------------------------------------------------------------------------------

    def console_handler(self, name: str, call: ConsoleCall) -> Callable[[], object] | None:
        """The methods of this app for the actions that it has a key for."""
        own = {
            "columns": self.choose_columns,
            "quit": self.quit_view,
            "how_to_leave": self.show_exit_hint,
            "redraw": self.reload,
        }
        return own.get(name) or super().console_handler(name, call)

    def quit_view(self) -> None:
        self.exit(0)

    def show_exit_hint(self) -> None:
        self.key_bar.show_message([Piece(f"{self.keymap.label('quit')} leaves")], MESSAGE_SECONDS)

    def reload(self) -> None:
        """Draw everything again."""
        self.redraw()
