"""The screen shown until the first board is loaded, with the connection error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ..keys.actions import ScreenName
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import KeyHint
from ..widgets.bindings import bindings
from ..widgets.line_view import LineView
from .base import ConsoleScreen


class _ErrorView(LineView):
    """A sentence about an error, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._sentence = ""

    def show(self, sentence: str) -> None:
        if sentence != self._sentence:
            self._sentence = sentence
            self.refresh()

    def line(self, y: int) -> Line:
        return [Piece(f" {self._sentence}", Role.WARNING)] if y == 1 and self._sentence else []


class LoadingScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.RUNS
    BINDINGS: ClassVar[list[BindingType]] = bindings("back")

    def __init__(self) -> None:
        super().__init__()
        self._error_view = _ErrorView()

    def content(self) -> Iterable[Widget]:
        """Yield the reason why nothing is shown yet."""
        yield self._error_view

    def hints(self) -> list[KeyHint]:
        """The only key hint here: to leave."""
        label = self.console.keymap.label
        back = [(label("back"), self.back_label)] if self.back_label else []
        return [*back, (label("quit"), "quit")]

    def show_frame(self) -> None:
        """Update header and sentence."""
        super().show_frame()
        self._error_view.show(one_line(self.console.live.error_message or ""))
