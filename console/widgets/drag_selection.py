"""Copies the text over which the mouse is dragged, within one view."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widget import Widget

from ..text.pieces import Line, Piece, Role, crop, fit, plain

_Cell = tuple[int, int]  # row, column


class DragSelection(Widget):
    """A view whose text is copied by dragging: from the first cell to the last, whole rows in between.

    Subclasses have the rows of the view. A drag is not a click: it moves no cursor.
    """

    @dataclass
    class Copied(Message):
        """A text was sent to the terminal's clipboard."""

        text: str

    _drag_start: _Cell | None = None
    _drag_end: _Cell | None = None
    _has_dragged = False  # the click that ends a drag is none

    @abstractmethod
    def line(self, y: int) -> Line:
        """The pieces of row ``y`` of the viewport."""

    async def on_event(self, event: events.Event) -> None:
        """Drop the click that ends a drag."""
        if not (isinstance(event, events.Click) and self._has_dragged):
            await super().on_event(event)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """A drag may begin here."""
        self._has_dragged = False
        self._drag_start = (event.y, event.x) if event.button == 1 else None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Extend the selection; the view gets the mouse also beyond its edges."""
        if self._drag_start is None or not event.button:
            return
        size = self.outer_size
        end = (min(max(event.y, 0), size.height - 1), min(max(event.x, 0), size.width - 1))
        if end != (self._drag_end or self._drag_start):
            if self._drag_end is None:
                self.capture_mouse()
            self._drag_end, self._has_dragged = end, True
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Copy the selected text."""
        rows, self._drag_start = self._selected_rows(), None
        if self._drag_end is None:
            return
        lines = [plain(crop(self.line(y), first, last)).rstrip() for y, first, last in rows]
        self._drag_end = None
        self.release_mouse()
        self.refresh()
        text = "\n".join(lines).strip("\n")
        if text:
            self.app.copy_to_clipboard(text)
            self.post_message(self.Copied(text))

    def with_selection(self, y: int, line: Line) -> Line:
        """A row with its selected part set off."""
        for row, first, last in self._selected_rows():
            if row == y:
                size = self.outer_size.width
                whole = fit(line, size)
                middle = Piece(plain(crop(whole, first, last)), Role.CURSOR)
                return [*crop(whole, 0, first), middle, *crop(whole, last, size)]
        return line

    def _selected_rows(self) -> Iterable[tuple[int, int, int]]:
        """Yield row, first column and the column after the last one of each selected row."""
        if self._drag_start is None or self._drag_end is None:
            return []
        (top, left), (bottom, right) = sorted((self._drag_start, self._drag_end))
        size = self.outer_size.width
        return [(y, left if y == top else 0, right + 1 if y == bottom else size) for y in range(top, bottom + 1)]
