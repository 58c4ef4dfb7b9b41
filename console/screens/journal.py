"""Everything that happened, and who did what: the newest at the end, earlier on demand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ..actions import Place
from ..widgets.bindings import bindings_of
from ..widgets.lines import LinesView
from .base import ConsoleScreen


class JournalScreen(ConsoleScreen):
    """See the module."""

    PLACE = Place.JOURNAL
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.JOURNAL)

    def __init__(self) -> None:
        super().__init__()
        self.text = LinesView(follow=True)

    def content(self) -> Iterable[Widget]:
        """The lines."""
        yield self.text

    def shown(self) -> None:
        """Keys scroll."""
        self.text.focus()
