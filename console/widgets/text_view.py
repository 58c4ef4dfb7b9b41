"""Scrollable text, such as a growing log: follow, search, wrap or cut long lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from textual.geometry import Size
from textual.message import Message

from ..model.lists import places_after, search_pattern
from ..text.pieces import Line, Piece, Role, count_rows, crop, plain, width, wrapped_row
from .bars import PAGING, bindings
from .line_view import WheelView


class LinesView(WheelView, can_focus=True):
    """Lines from a sequence that its owner may extend at the end and shorten at the start.

    Call ``lines_changed`` after a change. The scroll position is kept: at the end if it is followed, else at the first
    visible line.
    """

    BINDINGS = bindings(*PAGING, "left", "right", "wrap", "follow", "scroll")

    @dataclass
    class PositionChanged(Message):
        """The scroll position or the follow mode changed."""

        view: LinesView

    class WrapToggled(Message):
        """Long lines are wrapped from now on, or cut."""

    def __init__(
        self, lines: Sequence[Line] = (), *, follow: bool = False, wrap: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.lines = lines
        self._top = (0, 0)  # line, and which of the rows that it is folded into
        self._rows_in_view: list[tuple[int, int]] | None = None
        self._page_size = Size(0, 0)
        self._left_column = 0
        self._search_pattern: re.Pattern[str] | None = None
        self._match_line: int | None = None
        self.is_following = follow
        self.is_wrapping = wrap

    # --- what is in it --------------------------------------------------------------------------------------------

    @property
    def span(self) -> tuple[int, int]:
        """The first visible line, and the line after the last visible one."""
        page = self._page()
        return (page[0][0], page[-1][0] + 1) if page else (0, 0)

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Replace the lines; start at the first, or at the end if it is followed."""
        self.lines = lines
        self._top = (0, 0)
        self._left_column = 0
        self._match_line = None
        self.refresh()
        self.lines_changed()

    def lines_changed(self, dropped: int = 0) -> None:
        """Update after lines were appended, and ``dropped`` lines removed from the start."""
        line, row = self._top
        self._top = (max(line - dropped, 0), row if line >= dropped else 0)
        if self._match_line is not None:
            self._match_line = self._match_line - dropped if self._match_line >= dropped else None
        before = self._top
        had_room = len(self._rows_in_view or ()) < self.rows
        self._rows_in_view = None
        self._top = self._last_page() if self.is_following else min(self._top, self._last_page())
        if dropped or had_room or self._top != before or self.span[1] >= len(self.lines):
            self.refresh()
        self.check_hidden_rows()  # lines may have been added below, where nothing is painted
        self.post_message(self.PositionChanged(self))

    @property
    def hidden_rows(self) -> tuple[int, int]:
        """The number of lines above the viewport, and below it."""
        first, end = self.span
        return first, len(self.lines) - end if end else 0

    # --- moving ---------------------------------------------------------------------------------------------------

    def show_line(self, line: int) -> None:
        """Scroll to a line if it is not visible, to a third from the top."""
        first, last = self.span
        if not first <= line < last:
            self._set_top(self._position_after((max(min(line, len(self.lines) - 1), 0), 0), -(self.rows // 3)))

    def set_first_line(self, line: int) -> None:
        """Make a line the first in view."""
        self._set_top((line, 0))

    def move_rows(self, rows: int) -> None:
        """Move ``rows`` rows down."""
        if rows < 0:
            self.is_following = False
        self._set_top(self._position_after(self._top, rows))

    def move_pages(self, pages: float) -> None:
        """Move ``pages`` pages down; whole pages overlap by one row."""
        whole = abs(pages) == 1
        rows = max(self.rows - 1, 1) if whole else int(self.rows * abs(pages))
        self.move_rows(rows if pages > 0 else -rows)

    def move_to_edge(self, direction: int) -> None:
        """Scroll to the start, or with 1 to the end."""
        if direction < 0:
            self.is_following = False
        self._set_top((0, 0) if direction < 0 else self._last_page())

    def toggle_follow(self) -> None:
        """Switch following the end on or off."""
        self.is_following = not self.is_following
        self._set_top(self._last_page() if self.is_following else self._top)

    def toggle_wrap(self) -> None:
        """Switch between wrapped and cut long lines."""
        self.is_wrapping = not self.is_wrapping
        self._left_column = 0
        self._set_top((self._top[0], 0))
        self.post_message(self.WrapToggled())

    def move_columns(self, direction: int) -> None:
        """Scroll half a width to the left or right, in lines that are cut."""
        if not self.is_wrapping:
            widest = max((width(self.lines[line]) for line, _ in self._page()), default=0)
            column = self._left_column + direction * (self.columns // 2)
            self._left_column = max(min(column, widest - self.columns), 0)
            self.refresh()

    def _set_top(self, top: tuple[int, int]) -> None:
        self._top = max(min(top, self._last_page()), (0, 0))
        self._rows_in_view = None
        self.refresh()
        self.post_message(self.PositionChanged(self))

    # --- rows of folded lines -------------------------------------------------------------------------------------

    def _height(self, line: int) -> int:
        if not self.is_wrapping or self.columns <= 0:
            return 1
        return count_rows(self.lines[line], self.columns)

    def _position_after(self, position: tuple[int, int], rows: int) -> tuple[int, int]:
        """The position ``rows`` rows after ``position``, or before it."""
        line, row = position[0], position[1] + rows
        while row < 0 and line > 0:
            line -= 1
            row += self._height(line)
        while line < len(self.lines) and row >= (height := self._height(line)):
            line += 1
            row -= height
        return line, max(row, 0)

    def _last_page(self) -> tuple[int, int]:
        """The position from which the end of the last line is at the foot of the view."""
        return self._position_after((len(self.lines), 0), -self.rows)

    def _page(self) -> list[tuple[int, int]]:
        """The rows in view: line, and which of its folds; for the size of now, which may be a newer one than the reader
        has been placed for."""
        if self._rows_in_view is None or self._page_size != self.outer_size:
            self._rows_in_view = list(self._rows_from(self._top, self.rows))
            self._page_size = self.outer_size
        return self._rows_in_view

    def _rows_from(self, position: tuple[int, int], count: int) -> Iterator[tuple[int, int]]:
        line, row = position
        while count > 0 and line < len(self.lines):
            height = self._height(line)
            yield line, min(row, height - 1)
            count -= 1
            row += 1
            if row >= height:
                line, row = line + 1, 0

    # --- searching ------------------------------------------------------------------------------------------------

    def search(self, words: str) -> None:
        """Highlight ``words``, ignoring case; "" ends the search."""
        self._search_pattern = search_pattern(words) if words else None
        self._match_line = None
        self.refresh()

    def searched_text(self, line: int) -> str:
        return plain(self.lines[line])

    def find_next(self, forward: bool = True) -> int | None:
        """Go to the next matching line, beyond the end to the first, and return its number; None if no line matches."""
        if self._search_pattern is None:
            return None
        step = 1 if forward else -1
        for line in places_after(len(self.lines), self.search_start(step), step):
            if self._search_pattern.search(self.searched_text(line)):
                self.show_match(line)
                return line
        return None

    def search_start(self, step: int) -> int:
        """The line where a search in the direction of ``step`` begins: the last match, or the viewport."""
        return self._match_line if self._match_line is not None else self.span[0] - step

    def show_match(self, line: int) -> None:
        """Show a line and set it off."""
        self._match_line = line
        self.is_following = False
        self.show_line(line)
        self.refresh()

    # --- drawing --------------------------------------------------------------------------------------------------

    def line(self, y: int) -> Line:
        """A line, or a fold of one, with what was searched for set off."""
        page = self._page()
        if y >= len(page) or page[y][0] >= len(self.lines):
            return []
        line, row = page[y]
        pieces = self.lines[line]
        if self._search_pattern is not None:
            pieces = highlighted(pieces, self._search_pattern)
        if self.is_wrapping:
            return wrapped_row(pieces, self.columns, row)
        return crop(pieces, self._left_column, width(pieces)) if self._left_column else pieces

    def row_role(self, y: int) -> str | None:
        page = self._page()
        return (
            Role.CURSOR if self._match_line is not None and y < len(page) and page[y][0] == self._match_line else None
        )

    def on_resize(self) -> None:
        """Keep the followed end, or the first visible line."""
        self._set_top(self._last_page() if self.is_following else (self._top[0], 0))

    def move_by_wheel(self, rows: int, *, is_shifted: bool) -> None:
        self.move_rows(rows)


def highlighted(line: Line, needle: re.Pattern[str]) -> Line:
    """The line with every occurrence of ``needle`` in the role of a match, also across pieces."""
    edges = [(match.start(), match.end()) for match in needle.finditer(plain(line)) if match.end() > match.start()]
    if not edges:
        return line
    pieces: Line = []
    at = 0
    for text, role in line:
        cuts = {0, len(text)}
        for start, end in edges:
            cuts.update(edge - at for edge in (start, end) if at < edge < at + len(text))
        ordered = sorted(cuts)
        for low, high in pairwise(ordered):
            inside = any(start <= at + low < end for start, end in edges)
            pieces.append(Piece(text[low:high], Role.MATCH if inside else role))
        at += len(text)
    return pieces
