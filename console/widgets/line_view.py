"""Base of all widgets: rows of pieces, in the styles of their roles, painted and refreshed by the cell.

Textual's scroll views bring animation, scroll bars and a layout pass for every change of length. Here a row is
rendered when it is painted, so a change costs only the visible part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from itertools import takewhile
from typing import Self

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ..text.pieces import Line, Piece, fit, width
from ..text.role_styles import RoleStyles, role_styles_of

_WHEEL_ROWS = 3


class LineView(Widget):
    """A widget of rows. Subclasses implement ``line``."""

    DEFAULT_CSS = """
    LineView {
        width: 1fr;
        height: 1fr;
        background: ansi_default;
        color: ansi_default;
    }
    """

    class HiddenRowsChanged(Message):
        """Other rows are hidden above or below than before."""

    def __init__(self, *, id: str | None = None) -> None:
        self._hidden_rows = (0, 0)
        self._strips: dict[int, Strip] = {}  # rows in view that have not changed since
        self._strips_columns = 0
        super().__init__(id=id)

    @abstractmethod
    def line(self, y: int) -> Line:
        """The pieces of row ``y`` of the viewport. Too long is cut, too short is padded."""

    def row_role(self, y: int) -> str | None:
        """The role of the whole row ``y`` (cursor, mark), if it has one."""
        return None

    @property
    def hidden_rows(self) -> tuple[int, int]:
        """The number of rows above the viewport, and below it."""
        return 0, 0

    def check_hidden_rows(self) -> None:
        """Post a message if other rows are hidden than before; each paint does."""
        if self.hidden_rows != self._hidden_rows:
            self._hidden_rows = self.hidden_rows
            self.post_message(self.HiddenRowsChanged())

    def render_line(self, y: int) -> Strip:
        return strip_of(self.line(y), self.columns, role_styles_of(self.app), self.row_role(y))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return cached rows, without Textual's handling of borders, padding, opacity and tints, which a view lacks."""
        self.check_hidden_rows()
        if self._strips_columns != self.columns:
            self._strips.clear()
            self._strips_columns = self.columns
        strips = []
        for y in crop.line_range:
            strip = self._strips.get(y)
            if strip is None:
                strip = self._strips[y] = self.render_line(y)
            strips.append(strip)
        if crop.column_span == (0, self.columns):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Repaint these regions of the viewport, or all of it."""
        if not regions:
            self._strips.clear()
        for region in regions:
            for y in region.line_range:
                self._strips.pop(y, None)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    @property
    def columns(self) -> int:
        """Cells of a row. Asked for several times a row, so it must not look the widget up in the layout as
        ``content_size`` does; a view has neither border nor padding, so both are the same."""
        return self.outer_size.width

    @property
    def rows(self) -> int:
        return self.outer_size.height

    def refresh_rows(self, first: int, count: int = 1) -> None:
        """Repaint these rows of the viewport."""
        self.refresh_cells(0, first, self.columns, count)

    def update_rows(self) -> None:
        """Repaint the rows in view that read otherwise than when they were painted, from the first such piece on."""
        for y, painted in [*self._strips.items()]:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(painted, self.render_line(y), strict=False))
            x = sum(segment.cell_length for segment, _ in same)
            self.refresh_cells(x, y, self.columns - x)

    def refresh_cells(self, x: int, y: int, columns: int, rows: int = 1) -> None:
        """Repaint a part of the viewport."""
        region = Region(x, y, columns, rows).intersection(Region(0, 0, self.columns, self.rows))
        if region:
            self.refresh(region)


class WheelView(LineView):
    """A view that the mouse wheel moves."""

    @abstractmethod
    def move_by_wheel(self, rows: int, *, is_shifted: bool) -> None:
        """Move ``rows`` rows down. ``is_shifted``: with the Shift key, which turns the wheel sideways."""

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move_by_wheel(_WHEEL_ROWS, is_shifted=event.shift)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move_by_wheel(-_WHEEL_ROWS, is_shifted=event.shift)


def strip_of(line: Iterable[Piece], columns: int, role_styles: RoleStyles, over: str | None = None) -> Strip:
    """Render exactly ``columns`` cells of pieces, in the styles of their roles."""
    pieces = list(line)
    used = width(pieces)
    if used > columns:
        pieces = fit(pieces, columns)
    elif used < columns:
        pieces.append(Piece(" " * (columns - used)))
    styles = role_styles.styles_under(over)
    return Strip([Segment(text, styles[role]) for text, role in pieces if text], columns)
