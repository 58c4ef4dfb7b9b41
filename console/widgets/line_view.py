"""The base of all our widgets: rows of pieces, painted one by one, refreshed by the cell.

Textual's scroll views bring animation, scroll bars and a layout pass for every change of length. A row here is asked
for when it is painted and never kept, so that a change costs what is seen of it and nothing is ever out of date.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..text.pieces import Line, Piece, crop, fit, width
from .role_styles import Palette, palette_of


class LineView(Widget):
    """A widget of rows. Subclasses give ``line``."""

    DEFAULT_CSS = """
    LineView {
        width: 1fr;
        height: 1fr;
        background: ansi_default;
        color: ansi_default;
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        self._painted: dict[int, Strip] = {}  # rows in view that have not changed since
        self._painted_columns = 0
        super().__init__(id=id, classes=classes)

    def line(self, y: int) -> Line:
        """The pieces of row ``y`` of the viewport. Too long is cut, too short is padded."""
        raise NotImplementedError  # every view draws its own rows

    def over(self, y: int) -> str | None:
        """The role that lies over the whole of row ``y``, if one does."""
        return None

    def render_line(self, y: int) -> Strip:
        """For Textual."""
        return strip_of(self.line(y), self.columns, palette_of(self.app), self.over(y))

    def render_lines(self, crop: Region) -> list[Strip]:
        """For Textual, whose own looks at borders, padding, opacity and tints of every row: a view has none."""
        if self._painted_columns != self.columns:
            self._painted.clear()
            self._painted_columns = self.columns
        strips = []
        for y in crop.line_range:
            strip = self._painted.get(y)
            if strip is None:
                strip = self._painted[y] = self.render_line(y)
            strips.append(strip)
        if crop.column_span == (0, self.columns):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Paint these regions of the viewport again, or all of it."""
        if not regions:
            self._painted.clear()
        for region in regions:
            for y in region.line_range:
                self._painted.pop(y, None)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    @property
    def columns(self) -> int:
        """Cells of a row. Asked for several times a row, so it must not look the widget up in the layout as
        ``content_size`` does; a view has neither border nor padding, so both are the same."""
        return self.outer_size.width

    @property
    def rows(self) -> int:
        """Rows of the viewport."""
        return self.outer_size.height

    def refresh_rows(self, first: int, count: int = 1) -> None:
        """Paint these rows of the viewport again, as far as they are in it."""
        self.refresh_cells(0, first, self.columns, count)

    def refresh_cells(self, x: int, y: int, columns: int, rows: int = 1) -> None:
        """Paint a part of the viewport again, as far as it is in it."""
        region = Region(x, y, columns, rows).intersection(Region(0, 0, self.columns, self.rows))
        if region:
            self.refresh(region)


def strip_of(line: Iterable[Piece], columns: int, palette: Palette, over: str | None = None) -> Strip:
    """Exactly ``columns`` cells of pieces, in the looks of their roles."""
    pieces = list(line)
    taken = width(pieces)
    if taken > columns:
        pieces = fit(pieces, columns)
    elif taken < columns:
        pieces.append(Piece(" " * (columns - taken)))
    looks = palette.looks(over)
    return Strip([Segment(text, looks[role]) for text, role in pieces if text], columns)


def shifted(line: Line, columns: int, shift: int) -> Line:
    """``columns`` cells of a line from ``shift`` on."""
    return crop(line, shift, shift + columns) if shift else line
