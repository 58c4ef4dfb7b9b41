"""A dialog with a list of options: Enter takes the selected one, Esc takes none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual.widget import Widget

from ..text.pieces import Line, Piece, Role
from ..text.text import pad
from ..widgets.bars import Bar
from ..widgets.modal import Modal, bar_of
from ..widgets.table import VirtualTable

_ROWS_MAX = 16


@dataclass(frozen=True, slots=True)
class ChoiceOption:
    """``label``: its name; ``help``: its effect; ``value``: the answer."""

    value: str
    label: str
    help: str = ""


class ChoiceDialog(Modal[str | None]):
    """Returns the value of the chosen option, or None."""

    guarded_keys = frozenset({"enter"})

    def __init__(self, title: Line, options: Sequence[ChoiceOption]) -> None:
        super().__init__(title)
        self._options = list(options)
        self._word_cells = max((len(option.label) for option in options), default=0)
        self.table: VirtualTable[int] = VirtualTable(self._row)

    def body(self) -> Iterable[Widget]:
        """Yield the options, the first under the cursor."""
        self.table.styles.height = min(len(self._options), _ROWS_MAX)
        self.table.set_order(range(len(self._options)))
        yield Bar()
        yield self.table
        yield Bar()
        yield bar_of([Piece("Enter", Role.KEY), Piece(" takes it  "), Piece("Esc", Role.KEY), Piece(" goes back")])

    def first_focus(self) -> Widget:
        """The options."""
        return self.table

    def _row(self, place: int, columns: int) -> Line:
        option = self._options[place]
        return [Piece(f" {pad(option.label, self._word_cells)}  "), Piece(option.help, Role.DIM)]

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Choose the option under the cursor."""
        if self.was_readable(message.time):
            self.dismiss(self._options[self.table.cursor].value)
