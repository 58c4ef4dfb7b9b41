"""A few ways to go on, one above the other; the first is what Enter takes, Esc takes none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from ..present.pieces import Line, Piece, Role
from ..present.text import pad
from ..widgets.bars import Bar
from ..widgets.dialog import READING_SECONDS
from ..widgets.table import VirtualTable

_ROWS_MAX = 16


@dataclass(frozen=True, slots=True)
class Option:
    """``word`` is what it is called, ``help`` what it does; ``value`` is the answer."""

    value: str
    word: str
    help: str = ""


class Choice(ModalScreen[str | None]):
    """Is dismissed with the value of an option, or with None."""

    DEFAULT_CSS = """
    Choice { align: center middle; background: transparent !important; }
    Choice > Vertical {
        width: 100%;
        max-width: 76;
        height: auto;
        max-height: 100%;
        border: round ansi_default;
        background: ansi_default;
        padding: 0 1;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", show=False)]

    def __init__(self, title: Line, options: Sequence[Option]) -> None:
        super().__init__()
        self.guarded_keys = frozenset({"enter"})
        self._title = title
        self._options = list(options)
        self._word_cells = max((len(option.word) for option in options), default=0)
        self._shown_at = float("inf")
        self.table: VirtualTable[int] = VirtualTable(self._row)

    def compose(self) -> ComposeResult:
        """Title and options."""
        title = Bar()
        title.show(self._title)
        self.table.styles.height = min(len(self._options), _ROWS_MAX)
        foot = Bar()
        foot.show([Piece("Enter", Role.KEY), Piece(" takes it  "), Piece("Esc", Role.KEY), Piece(" goes back")])
        with Vertical():
            yield title
            yield Bar()
            yield self.table
            yield Bar()
            yield foot

    def on_mount(self) -> None:
        """The first option is under the cursor."""
        self.table.set_order(range(len(self._options)))
        self.table.focus()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """From now on it can be read."""
        self._shown_at = event.time

    def _row(self, place: int, columns: int) -> Line:
        option = self._options[place]
        return [Piece(f" {pad(option.word, self._word_cells)}  "), Piece(option.help, Role.DIM)]

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Enter."""
        if self.app.is_headless or message.time - self._shown_at >= READING_SECONDS:
            self.dismiss(self._options[self.table.cursor].value)

    def action_cancel(self) -> None:
        """None of them."""
        self.dismiss(None)
