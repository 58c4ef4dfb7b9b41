"""Split layout: when a screen has room for a detail pane or for a strip, and the divider."""

from __future__ import annotations

from ..text.pieces import Line, Piece, Role
from .line_view import LineView

DETAIL_PANE_MIN_COLUMNS = 118  # from this width on, the details of the selected row stand beside the list
STRIP_ROWS = 4
TALL_SCREEN_ROWS = 50  # from this height on, lists open by themselves what fits
_STRIP_SCREEN_ROWS = 20


def has_room_for_detail_pane(columns: int) -> bool:
    """Whether a second pane stands beside the first."""
    return columns >= DETAIL_PANE_MIN_COLUMNS


def has_room_for_strip(rows: int) -> bool:
    """Whether a screen so high has room for a strip."""
    return rows >= _STRIP_SCREEN_ROWS


class Divider(LineView):
    """The line between two panes."""

    DEFAULT_CSS = """
    Divider { width: 1; }
    """

    def __init__(self, sign: str) -> None:
        super().__init__()
        self._sign = sign

    def line(self, y: int) -> Line:
        """Render one sign a row."""
        return [Piece(self._sign, Role.RULE)]
