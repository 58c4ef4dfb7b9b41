"""A drawing of any size; only the cells of the viewport are rendered, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from textual import events
from textual.message import Message

from ..text.pieces import Line, Piece
from .line_view import WheelView


class Canvas(WheelView, can_focus=True):
    """A window on a drawing.

    Args:
        runs: ``(y, x0, x1)`` -> the pieces of row ``y`` from column ``x0`` to before ``x1``, that many cells at most.
    """

    @dataclass
    class PointClicked(Message):
        """A click on a cell of the drawing; ``chain`` counts quick clicks on it."""

        x: int
        y: int
        chain: int

    class Scrolled(Message):
        """The viewport moved."""

    def __init__(self, runs: Callable[[int, int, int], Iterable[Piece]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._runs = runs
        self.extent = (0, 0)
        self._x = 0
        self._y = 0

    @property
    def hidden_rows(self) -> tuple[int, int]:
        """How many rows are above the viewport, and how many below it."""
        return self._y, max(self.extent[1] - self._y - self.rows, 0)

    @property
    def origin(self) -> tuple[int, int]:
        """The cell of the drawing in the upper left corner of the viewport."""
        return self._x, self._y

    def set_extent(self, columns: int, rows: int) -> None:
        """Set the size of the drawing and repaint."""
        self.extent = (columns, rows)
        self._clamp_origin(self._x, self._y)
        self.refresh()

    def refresh_drawing_cells(self, x: int, y: int, columns: int, rows: int = 1) -> None:
        """Repaint the visible part of these cells of the drawing."""
        self.refresh_cells(x - self._x, y - self._y, columns, rows)

    def scroll_to_cell(self, x: int, y: int) -> None:
        """Put this cell in the upper left corner, as far as the drawing reaches."""
        if self._clamp_origin(x, y):
            self.refresh()
            self.post_message(self.Scrolled())

    def scroll_by(self, columns: int, rows: int) -> None:
        """Move the viewport."""
        self.scroll_to_cell(self._x + columns, self._y + rows)

    def scroll_into_view(self, x: int, y: int, columns: int = 1, margin: int = 2) -> None:
        """Scroll as little as needed to show these cells of row ``y``, with some room around them.

        Cells that are farther away than a page come to the middle of the viewport.
        """
        self.scroll_to_cell(
            _nearest(self._x, self.columns, x - margin, x + columns + margin),
            _nearest(self._y, self.rows, y - min(margin, 1), y + 1 + min(margin, 1)),
        )

    def line(self, y: int) -> Line:
        """The cells of the drawing that stand in line ``y`` of the viewport."""
        row = self._y + y
        if row >= self.extent[1]:
            return []
        return list(self._runs(row, self._x, self._x + self.columns))

    def _clamp_origin(self, x: int, y: int) -> bool:
        columns, rows = self.extent
        x = max(min(x, columns - self.columns), 0)
        y = max(min(y, rows - self.rows), 0)
        moved = (x, y) != (self._x, self._y)
        self._x, self._y = x, y
        return moved

    def on_resize(self) -> None:
        """Clamp the viewport to the drawing."""
        self._clamp_origin(self._x, self._y)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Post the clicked cell of the drawing."""
        self.post_message(self.PointClicked(self._x + event.x, self._y + event.y, event.chain))

    def move_by_wheel(self, rows: int, *, is_shifted: bool) -> None:
        self.scroll_by(*((2 * rows, 0) if is_shifted else (0, rows)))


def _nearest(origin: int, size: int, first: int, last: int) -> int:
    """The origin closest to ``origin`` from which ``first`` to before ``last`` are in view; the first wins."""
    if not origin - size <= first < origin + 2 * size:
        return (first + last - size) // 2
    return min(max(origin, last - size), first)
