"""The columns of a list: Space or a click shows or hides one, Enter takes the choice, Esc leaves it as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from textual import events
from textual.widget import Widget

from ..model.columns import Column
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role
from ..text.text import pad
from ..widgets.bars import Bar
from ..widgets.modal import Modal, bar_of
from ..widgets.table import VirtualTable


class _ColumnTable(VirtualTable[str]):
    def on_click(self, event: events.Click) -> None:
        """Show or hide the column."""
        if event.y < len(self.order):
            self.move_to(event.y)
            self.mark()


class ColumnDialog(Modal[frozenset[str] | None]):
    """Returns the names of the chosen columns, or None."""

    def __init__(self, title: str, columns: Sequence[Column], shown: Collection[str], glyphs: Glyphs) -> None:
        super().__init__([Piece(title, Role.TITLE)])
        self._help = {column.name: column.help for column in columns}
        self._shown = shown
        self._glyphs = glyphs
        self._name_cells = max(len(column.name) for column in columns)
        self.table = _ColumnTable(self._row, mark_sign=" ")
        self._take_bar = bar_of([Piece("Enter", Role.KEY), Piece(" takes them")])

    def body(self) -> Iterable[Widget]:
        """The columns, those marked that are shown."""
        self.table.styles.height = len(self._help)
        self.table.set_order([*self._help])
        self.table.set_marks(self._shown)
        yield Bar()
        yield self.table
        yield Bar()
        yield bar_of([Piece("Space", Role.KEY), Piece(" shows or hides a column")])
        yield self._take_bar
        yield bar_of([Piece("Esc", Role.KEY), Piece(" leaves them as they were")])

    def first_focus(self) -> Widget:
        """The columns."""
        return self.table

    def _row(self, name: str, columns: int) -> Line:
        sign = self._glyphs.done if name in self.table.marks else " "
        return [Piece(f"{sign} {pad(name, self._name_cells)}  "), Piece(self._help[name], Role.DIM)]

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Enter."""
        message.stop()  # the table below has rows of another kind
        if self.was_readable(message.time):
            self.dismiss(frozenset(self.table.marks))

    def on_bar_cell_clicked(self, message: Bar.CellClicked) -> None:
        """A click on the hint of Enter is Enter."""
        if message.bar is self._take_bar:
            self.dismiss(frozenset(self.table.marks))
