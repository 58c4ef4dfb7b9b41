"""The base of all our widgets: rows of pieces, painted one by one, refreshed by the cell.

Textual's scroll views bring animation, scroll bars and a layout pass for every change of length. A row here is asked
for when it is painted and never kept, so that a change costs what is seen of it and nothing is ever out of date.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..present.pieces import Line, Piece, crop, fit, width
from .palette import Palette, palette_of


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

    def line(self, y: int) -> Line:
        """The pieces of row ``y`` of the viewport. Too long is cut, too short is padded."""
        raise NotImplementedError  # every view draws its own rows

    def over(self, y: int) -> str | None:
        """The role that lies over the whole of row ``y``, if one does."""
        return None

    def render_line(self, y: int) -> Strip:
        """For Textual."""
        return strip_of(self.line(y), self.columns, palette_of(self.app), self.over(y))

    @property
    def columns(self) -> int:
        """Cells of a row."""
        return self.content_size.width

    @property
    def rows(self) -> int:
        """Rows of the viewport."""
        return self.content_size.height

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
    style = palette.style
    return Strip([Segment(text, style(role, over)) for text, role in pieces if text], columns)


def shifted(line: Line, columns: int, shift: int) -> Line:
    """``columns`` cells of a line from ``shift`` on."""
    return crop(line, shift, shift + columns) if shift else line
