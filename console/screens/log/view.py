"""The lines of a log in view, with what was found in them."""

from __future__ import annotations

from collections.abc import Callable

from ....engine.statefile.changes.log_search import SlowPatternError, time_limit
from ...model.filters import search_pattern
from ...present.log import LogLines
from ...text.pieces import Line
from ...widgets.text_view import LinesView
from .line_search import SLICE_SECONDS


class LogView(LinesView):
    """The lines of a log, or a message if there are none; it loads the start on demand."""

    def __init__(
        self,
        nothing: Callable[[], Line],
        to_the_top: Callable[[], None],
        to_the_end: Callable[[], None],
        toggle_follow: Callable[[], None],
    ) -> None:
        super().__init__(follow=True, id="log")
        self._empty_line = nothing
        self._on_top_requested = to_the_top
        self._on_end_requested = to_the_end
        self._on_follow_requested = toggle_follow

    def searched_text(self, line: int) -> str:
        """The text of a line, for the search."""
        return self.lines.text(line) if isinstance(self.lines, LogLines) else super().searched_text(line)

    def move_to_edge(self, direction: int) -> None:
        """Go to the start, which may have to be read first; or to the end, and follow it."""
        if direction < 0:
            self._on_top_requested()
        else:
            self.is_following = True
            super().move_to_edge(direction)
            self._on_end_requested()

    def toggle_follow(self) -> None:
        """Follow the end or not, as far as the attempt writes any more."""
        self._on_follow_requested()

    def toggle_follow_of_end(self) -> None:
        """Follow the end, or stand still."""
        super().toggle_follow()

    def search(self, words: str) -> None:
        """Highlight ``words``, or a regular expression after ``~``; "" ends the search."""
        super().search(words)
        self._search_pattern = search_pattern(words) if words else None

    def line(self, y: int) -> Line:
        """Render a line, or why there is none. Matches of a pattern that takes too long are not highlighted."""
        if not len(self.lines):
            return self._empty_line() if y == 0 else []
        try:
            with time_limit(SLICE_SECONDS / 4):
                return super().line(y)
        except SlowPatternError:
            self._search_pattern = None
            return super().line(y)

    def first_in_view(self) -> tuple[int, str] | None:
        """The chunk and the text of the first visible line, by which it is found again among other lines."""
        line = self.lines.line_at(self.span[0]) if isinstance(self.lines, LogLines) and len(self.lines) else None
        return (line.id, str(line)) if line is not None else None

    def go_to_top(self) -> None:
        """Go to the first loaded line."""
        super().move_to_edge(-1)
