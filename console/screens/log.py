"""The output of one attempt of the selected task: read in windows, followed while it runs, searched, filtered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ..actions import Place
from ..widgets.bindings import bindings_of
from ..widgets.lines import LinesView
from .base import ConsoleScreen


class LogScreen(ConsoleScreen):
    """See the module."""

    PLACE = Place.LOG
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.LOG)

    def __init__(self) -> None:
        super().__init__()
        self.text = LinesView(follow=True)

    def content(self) -> Iterable[Widget]:
        """The lines."""
        yield self.text

    def shown(self) -> None:
        """Keys scroll."""
        self.text.focus()
