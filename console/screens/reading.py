"""Lines to be read over the screen: answers of many tasks, the keys that work here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from ..model.filters import parse_filter
from ..present.pieces import Line, Piece, Role, plain
from ..widgets.bars import Bar
from ..widgets.field import TextField
from ..widgets.lines import LinesView

_FRAME_ROWS = 5


class Reading(ModalScreen[None]):
    """A title and lines; ``/`` shows only those that match."""

    DEFAULT_CSS = """
    Reading { align: center middle; background: transparent !important; }
    Reading > Vertical {
        width: 100%;
        max-width: 92;
        height: auto;
        max-height: 100%;
        border: round ansi_default;
        background: ansi_default;
        padding: 0 1;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "leave", show=False),
        Binding("slash", "search", show=False),
    ]

    def __init__(self, title: Line, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title = title
        self._all = list(lines)
        self.view = LinesView(self._all)
        self.field = TextField(" /", hint="words to look for")
        self.field.display = False

    def compose(self) -> ComposeResult:
        """Title, lines, foot."""
        title = Bar()
        title.show(self._title)
        foot = Bar(id="foot")
        foot.show([Piece("/", Role.KEY), Piece(" search  "), Piece("Esc", Role.KEY), Piece(" back")])
        self.view.styles.height = max(min(len(self._all), self.app.size.height - _FRAME_ROWS), 1)
        with Vertical():
            yield title
            yield self.view
            yield self.field
            yield foot

    def on_mount(self) -> None:
        """Keys scroll."""
        self.view.focus()

    def action_search(self) -> None:
        """Type words."""
        self.field.display = True
        self.field.focus()

    def on_text_field_edited(self, message: TextField.Edited) -> None:
        """Only lines that match."""
        wanted = parse_filter(message.text)
        self.view.set_lines([line for line in self._all if wanted.keeps(plain(line).casefold())])

    def on_text_field_entered(self) -> None:
        """Back to the lines that are left."""
        self.field.display = False
        self.view.focus()

    def on_text_field_given_up(self) -> None:
        """All lines again."""
        self.field.text = ""
        self.on_text_field_entered()

    def action_leave(self) -> None:
        """Back."""
        self.dismiss(None)
