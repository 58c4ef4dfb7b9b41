"""A dialog with scrollable, searchable lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ..model.filters import parse_filter
from ..text.pieces import Line, Piece, Role, plain
from ..widgets.bindings import bindings
from ..widgets.modal import Modal, bar_of
from ..widgets.text_input import TextField
from ..widgets.text_view import LinesView

_FRAME_ROWS = 5
_COLUMNS_MAX = 92
_FRAME_COLUMNS = 5
_FOOT: Line = [Piece("/", Role.KEY), Piece(" search  "), Piece("Esc", Role.KEY), Piece(" back")]


def columns_within(columns: int) -> int:
    """Cells of a line in the dialog, on a screen of ``columns``."""
    return min(columns, _COLUMNS_MAX) - _FRAME_COLUMNS


class TextDialog(Modal[None]):
    """A title and lines; ``/`` shows only those that match."""

    DEFAULT_CSS = f"""
    TextDialog > Vertical {{ max-width: {_COLUMNS_MAX}; }}
    """

    ASKS: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("close_reading", "search")

    def __init__(self, title: Line, lines: Sequence[Line], *, wrap: bool = False) -> None:
        super().__init__(title)
        self._all_lines = list(lines)
        self.view = LinesView(self._all_lines, wrap=wrap)
        self.field = TextField(" /", hint="words to search for")
        self.field.display = False
        self.foot = bar_of(_FOOT, id="foot")

    def body(self) -> Iterable[Widget]:
        """Yield the lines and the search field."""
        self.view.styles.height = max(min(len(self._all_lines), self.app.size.height - _FRAME_ROWS), 1)
        yield self.view
        yield self.field
        yield self.foot

    def first_focus(self) -> Widget:
        """The lines, so that keys scroll."""
        return self.view

    def on_lines_view_position_changed(self) -> None:
        """Say how many lines are below the last visible one."""
        below = len(self.view.lines) - self.view.span[1]
        self.foot.show(_FOOT, [Piece(f"{below} more below ", Role.DIM)] if below > 0 else [])

    def open_search_input(self) -> None:
        """Open the search field."""
        self.field.display = True
        self.field.focus()

    def on_text_field_changed(self, message: TextField.Changed) -> None:
        """Show only lines that match."""
        wanted = parse_filter(message.text)
        self.view.set_lines([line for line in self._all_lines if wanted.matches(plain(line).casefold())])

    def on_text_field_submitted(self) -> None:
        """Focus the lines that match."""
        self.field.display = False
        self.view.focus()

    def on_text_field_cancelled(self) -> None:
        """Show all lines again."""
        self.field.text = ""
        self.on_text_field_submitted()
