"""The list of breakers, pages and rows, with section heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from ..model.downstreams import DownstreamRow
from ..widgets.bindings import PAGING, bindings
from ..widgets.table import VirtualTable


class DownstreamsTable(VirtualTable[DownstreamRow], inherit_bindings=False):
    """The cursor skips section heads, and the head above the cursor stays visible.

    Rows cannot be marked: the mark keys act on pages and breakers here.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(*PAGING, "open")

    @dataclass
    class HeadClicked(Message):
        """A click on the head of a section. ``cells_from_right``: of the cell that was clicked."""

        head: DownstreamRow
        cells_from_right: int

    def _clamp(self, place: int) -> int:
        place = super()._clamp(place)
        step = 1 if place >= self.cursor else -1
        for direction in (step, -step):
            found = place
            while 0 <= found < len(self.order) and self.order[found].is_head:
                found += direction
            if 0 <= found < len(self.order):
                return found
        return place

    def row_role(self, y: int) -> str | None:
        """The role of a row; heads never show the cursor."""
        place = self.first_visible + y
        return None if place < len(self.order) and self.order[place].is_head else super().row_role(y)

    def on_click(self, event: events.Click) -> None:
        """Post a click on a head; other rows as in every list."""
        place = self.first_visible + event.y
        if place < len(self.order) and self.order[place].is_head:
            event.prevent_default()
            self.post_message(self.HeadClicked(self.order[place], self.columns - event.x))

    def _scroll_into_view(self) -> None:
        super()._scroll_into_view()
        above = self.cursor - 1
        if 0 <= above < len(self.order) and self.order[above].is_head:
            self.first_visible = min(self.first_visible, above)
