"""Text to be read: a page of it that fits nowhere, or a log that grows. Follow, search, fold or cut long lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message

from ..text.pieces import Line, Piece, Role, crop, plain, width
from ..text.wrapping import fold, fold_count
from .bindings import PAGING, bindings
from .line_view import LineView

_WHEEL_ROWS = 3


class LinesView(LineView, can_focus=True):
    """Lines of pieces, from a sequence that its owner may grow at the end and shorten at the start.

    After a change call ``lines_changed``. Where the reader stands is kept: at the end if he follows it, else at the
    line that he sees.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(*PAGING, "left", "right", "wrap", "follow", "scroll")

    class Moved(Message):
        """Other lines are in view, or the end is followed, or not any more."""

        def __init__(self, view: LinesView) -> None:
            super().__init__()
            self.view = view

    def __init__(
        self,
        lines: Sequence[Line] = (),
        *,
        follow: bool = False,
        wrap: bool = False,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._lines = lines
        self._top = (0, 0)  # line, and which of the rows that it is folded into
        self._rows_in_view: list[tuple[int, int]] | None = None
        self._paged_for = Size(0, 0)
        self._shift = 0
        self._needle: re.Pattern[str] | None = None
        self._found: int | None = None
        self.following = follow
        self.wrapping = wrap

    # --- what is in it --------------------------------------------------------------------------------------------

    @property
    def lines(self) -> Sequence[Line]:
        """What can be read."""
        return self._lines

    @property
    def span(self) -> tuple[int, int]:
        """The first line in view, and the first after those in view."""
        page = self._page()
        return (page[0][0], page[-1][0] + 1) if page else (0, 0)

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Other lines, from their start, or from their end if it is followed."""
        self._lines = lines
        self._top = (0, 0)
        self._shift = 0
        self._found = None
        self.lines_changed()

    def lines_changed(self, dropped: int = 0) -> None:
        """The sequence grew at its end, after ``dropped`` lines were taken from its start."""
        line, row = self._top
        self._top = (max(line - dropped, 0), row if line >= dropped else 0)
        if self._found is not None:
            self._found = self._found - dropped if self._found >= dropped else None
        before = self._top
        self._rows_in_view = None
        self._top = self._last_page() if self.following else min(self._top, self._last_page())
        if dropped or self._top != before or self.span[1] >= len(self._lines):
            self.refresh()
        self.post_message(self.Moved(self))

    # --- moving ---------------------------------------------------------------------------------------------------

    def show_line(self, line: int) -> None:
        """Have a line in view, a third from the top if it was not."""
        first, last = self.span
        if not first <= line < last:
            self._stand_at(self._moved((max(min(line, len(self._lines) - 1), 0), 0), -(self.rows // 3)))

    def move_rows(self, rows: int) -> None:
        """So many rows down."""
        if rows < 0:
            self.following = False
        self._stand_at(self._moved(self._top, rows))

    def move_pages(self, pages: float) -> None:
        """So many pages down; of whole pages a row stays in view."""
        whole = abs(pages) == 1
        rows = max(self.rows - 1, 1) if whole else int(self.rows * abs(pages))
        self.move_rows(rows if pages > 0 else -rows)

    def move_to_edge(self, direction: int) -> None:
        """To the start, or with 1 to the end."""
        if direction < 0:
            self.following = False
        self._stand_at((0, 0) if direction < 0 else self._last_page())

    def toggle_follow(self) -> None:
        """Stay at the end while it grows; or stand still."""
        self.following = not self.following
        self._stand_at(self._last_page() if self.following else self._top)

    def toggle_wrap(self) -> None:
        """Fold long lines, or cut them."""
        self.wrapping = not self.wrapping
        self._shift = 0
        self._stand_at((self._top[0], 0))

    def move_columns(self, direction: int) -> None:
        """Half a width to the left or right, in lines that are cut."""
        self._shift_to(self._shift + direction * (self.columns // 2))

    def _shift_to(self, shift: int) -> None:
        if not self.wrapping:
            widest = max((width(self._lines[line]) for line, _ in self._page()), default=0)
            self._shift = max(min(shift, widest - self.columns), 0)
            self.refresh()

    def _stand_at(self, top: tuple[int, int]) -> None:
        self._top = max(min(top, self._last_page()), (0, 0))
        self._rows_in_view = None
        self.refresh()
        self.post_message(self.Moved(self))

    # --- rows of folded lines -------------------------------------------------------------------------------------

    def _height(self, line: int) -> int:
        if not self.wrapping or self.columns <= 0:
            return 1
        return fold_count(self._lines[line], self.columns)

    def _moved(self, position: tuple[int, int], rows: int) -> tuple[int, int]:
        """The position so many rows further on, or back."""
        line, row = position[0], position[1] + rows
        while row < 0 and line > 0:
            line -= 1
            row += self._height(line)
        while line < len(self._lines) and row >= (height := self._height(line)):
            line += 1
            row -= height
        return line, max(row, 0)

    def _last_page(self) -> tuple[int, int]:
        """The position from which the end of the last line is at the foot of the view."""
        return self._moved((len(self._lines), 0), -self.rows)

    def _page(self) -> list[tuple[int, int]]:
        """The rows in view: line, and which of its folds; for the size of now, which may be a newer one than the reader
        has been placed for."""
        if self._rows_in_view is None or self._paged_for != self.outer_size:
            self._rows_in_view = list(self._rows_from(self._top, self.rows))
            self._paged_for = self.outer_size
        return self._rows_in_view

    def _rows_from(self, position: tuple[int, int], count: int) -> Iterator[tuple[int, int]]:
        line, row = position
        while count > 0 and line < len(self._lines):
            height = self._height(line)
            yield line, min(row, height - 1)
            count -= 1
            row += 1
            if row >= height:
                line, row = line + 1, 0

    # --- searching ------------------------------------------------------------------------------------------------

    def search(self, words: str) -> None:
        """Highlight these words wherever they are, whatever their case; "" ends that."""
        self._needle = re.compile(re.escape(words), re.IGNORECASE) if words else None
        self._found = None
        self.refresh()

    def find_next(self, forward: bool = True) -> int | None:
        """Go to the next line with the words, around the end if need be. Returns it; None if there is none."""
        if self._needle is None or not self._lines:
            return None
        count = len(self._lines)
        step = 1 if forward else -1
        start = self._found if self._found is not None else self._top[0] - step
        for distance in range(1, count + 1):
            line = (start + step * distance) % count
            if self._needle.search(plain(self._lines[line])):
                self._found = line
                self.following = False
                self.show_line(line)
                self.refresh()
                return line
        return None

    # --- drawing --------------------------------------------------------------------------------------------------

    def line(self, y: int) -> Line:
        """A line, or a fold of one, with what was searched for set off."""
        page = self._page()
        if y >= len(page) or page[y][0] >= len(self._lines):
            return []
        line, row = page[y]
        pieces = self._lines[line]
        if self._needle is not None:
            pieces = highlighted(pieces, self._needle)
        if self.wrapping:
            return fold(pieces, self.columns, row)
        return crop(pieces, self._shift, width(pieces)) if self._shift else pieces

    def over(self, y: int) -> str | None:
        """The line that the search stands at."""
        page = self._page()
        return Role.CURSOR if self._found is not None and y < len(page) and page[y][0] == self._found else None

    def on_resize(self) -> None:
        """The end stays at the foot, the reader at his line."""
        self._top = self._last_page() if self.following else min((self._top[0], 0), self._last_page())
        self._rows_in_view = None
        self.refresh()
        self.post_message(self.Moved(self))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self.move_rows(_WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self.move_rows(-_WHEEL_ROWS)


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
