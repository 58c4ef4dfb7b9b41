"""The screen shown until the first board is loaded, with the connection error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ..keys.actions import ScreenName
from ..text.pieces import Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar, KeyHint
from ..widgets.bindings import bindings
from .base import ConsoleScreen


class LoadingScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.RUNS
    BINDINGS: ClassVar[list[BindingType]] = bindings("back")

    def __init__(self) -> None:
        super().__init__()
        self._error_bar = Bar(2)
        self._error_bar.styles.height = "1fr"

    def content(self) -> Iterable[Widget]:
        """Yield the reason why nothing is shown yet."""
        yield self._error_bar

    def hints(self) -> list[KeyHint]:
        """The only key hint here: to leave."""
        label = self.console.keymap.label
        back = [(label("back"), self.back_label)] if self.back_label else []
        return [*back, (label("quit"), "quit")]

    def show_frame(self) -> None:
        """Update header and sentence."""
        super().show_frame()
        sentence = one_line(self.console.live.error_message or "")
        self._error_bar.show([Piece(f" {sentence}", Role.WARNING)] if sentence else [], row=1)
