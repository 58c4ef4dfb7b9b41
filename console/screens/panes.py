"""A list with details beside it on wide terminals, and pages of text that are updated in place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ...engine.core.views import run_style
from ...engine.statefile.state_files import FileRow
from ..keys.keymap import shown_key
from ..model.runs import FleetEntry
from ..present.nights import latest_style, night_lines
from ..present.tasks import RunContext
from ..text.glyphs import LEFT, RIGHT, UP
from ..text.pieces import Line
from ..widgets.bars import PAGING, SHARE, Bar, DetailRoom, Divider, KeyHint, bindings, detail_room
from ..widgets.text_view import LinesView
from .base import ConsoleScreen


class SplitScreen(ConsoleScreen):
    """Subclasses set ``main_pane`` and ``detail_pane`` and implement ``main_widgets``."""

    DETAIL_SHARE: ClassVar = SHARE
    DEFAULT_CSS = "SplitScreen > Horizontal { height: 1fr; }"
    main_pane: Widget
    detail_pane: Widget

    def __init__(self) -> None:
        super().__init__()
        glyphs = self.console.glyphs
        self.divider = Divider(glyphs.divider)

    @abstractmethod
    def main_widgets(self) -> Iterable[Widget]:
        """The widgets of the main pane, from top to bottom."""

    def content(self) -> Iterable[Widget]:
        """Yield both panes."""
        with Horizontal():
            with Vertical():
                yield from self.main_widgets()
            yield self.divider
            yield self.detail_pane

    @property
    def detail_room(self) -> DetailRoom:
        """The room of the details."""
        return detail_room(*self.app.size, self.DETAIL_SHARE)

    @property
    def is_wide(self) -> bool:
        """Whether the detail pane fits next to the list."""
        return self.detail_room.columns > 0

    @property
    def main_columns(self) -> int:
        """The width of the list in cells."""
        beside = self.detail_room.columns
        return self.app.size.width - (beside + 1 if beside else 0)

    def on_resize(self, event: events.Resize) -> None:
        """Show the detail pane only if it fits."""
        self.place_details()
        self.call_after_refresh(self.show_frame)  # the rules need the new position of the divider

    def place_details(self) -> None:
        """Show the detail pane and the divider where they have room."""
        self.detail_pane.display = self.divider.display = self.is_wide
        self.detail_pane.styles.width = self.detail_room.columns

    def on_descendant_focus(self) -> None:
        """Show which pane has the keys."""
        self.show_frame()

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """The column at which the divider meets the rules; above details that have the keys the rule is lit."""
        if not self.is_wide or not self.divider.region:
            return {}
        glyphs, at = self.console.glyphs, self.divider.region.x
        lit = range(at + 1, self.app.size.width) if upper and self.detail_pane.has_focus else ()
        return {
            **dict.fromkeys(lit, glyphs.rule_lit),
            at: glyphs.tee_down if upper else glyphs.lines[LEFT | RIGHT | UP],
        }

    def hints(self) -> list[KeyHint]:
        """The hints; while the details have the keys, first the one that returns to the list."""
        hints = super().hints()
        return [(shown_key("next_pane"), "list"), *hints] if self.detail_pane.has_focus else hints

    def next_pane(self) -> None:
        """Switch between list and detail pane."""
        if not self.is_wide:
            super().next_pane()
        elif self.detail_pane.has_focus:
            self.main_pane.focus()
        else:
            self.focus_details()

    def focus_details(self) -> None:
        """Give the keys to the details."""
        self.detail_pane.focus()

    def mark(self) -> None:
        """Say that marks are set in the list: the details have the keys."""
        key = shown_key("next_pane")
        self.console.show_message(f"keys scroll the details; {key} returns to the list")

    mark_all = mark

    def back(self) -> None:
        """Go from the detail pane to the list; from the list as on every screen."""
        if self.detail_pane.has_focus:
            self.main_pane.focus()
        else:
            super().back()


_NIGHTS_FROM = 36  # rows of a terminal that may have some free


class LastNights:
    """The last nights of the flow, in rows that a list and its details leave free."""

    def __init__(self, screen: SplitScreen) -> None:
        self._screen = screen
        self._row: FileRow | None = None
        self._read_for: object = None

    async def read(self) -> None:
        """Read them once for a run that goes on, and once when it has ended."""
        screen, run = self._screen, self._screen.board.projection.run
        key = run.run_id, run.ended_at
        if screen.is_wide and self._read_for != key and screen.app.size.height >= _NIGHTS_FROM:
            self._read_for, self._row = key, await screen.console.live.session.file_row()

    def lines(self, columns: int, rows: int) -> list[Line]:
        """The nights, in at most ``rows`` lines."""
        row, console, board = self._row, self._screen.console, self._screen.board
        run = board.projection.run
        if row is None or console.live.is_past:  # nights that came later
            return []
        is_latest = row.latest is None or row.latest.run_id == run.run_id
        now = run_style(run, console.runner, board.counts) if is_latest else latest_style(FleetEntry(row, ()))
        return night_lines(row.nights, now, columns, rows, console.glyphs)


# --- A text page about one subject, updated in place ------------------------------------------------------------------


class PageView(LinesView, inherit_bindings=False):
    """A page of lines. Subclasses render it."""

    BINDINGS = bindings(*PAGING, "left", "right", "follow", "scroll")  # always folded: the key is that of notes

    def __init__(self, context: Callable[[], RunContext], *, id: str) -> None:
        self._page_lines: list[Line] = []
        super().__init__(self._page_lines, wrap=True, id=id)
        self.run_context = context

    @abstractmethod
    def render_page(self) -> list[Line]:
        """The page as of now."""

    def reset(self) -> None:
        """Prepare for another subject: from the first line."""
        self._page_lines.clear()
        self.move_to_edge(-1)

    def update_page(self) -> None:
        """Render the page and repaint changed rows."""
        lines = self.render_page() if self.columns else []
        if lines == self._page_lines:
            return
        self._page_lines[:] = lines
        self._rows_in_view = None
        self._top = max(min(self._top, self._last_page()), (0, 0))
        self.update_rows()
        self.check_hidden_rows()  # lines may have been added below, where nothing is painted

    def on_resize(self) -> None:
        """Wrap sentences to the new width."""
        self.update_page()


class RowDetails(PageView):
    """The details of the row under the cursor of a list. ``lines``: of the row, for a width."""

    def __init__(self, context: Callable[[], RunContext], lines: Callable[[int], list[Line]]) -> None:
        super().__init__(context, id="beside")
        self._lines_of_row = lines
        self._row: object = None

    def show_row(self, row: object) -> None:
        """Show another row from its first line, or update the same one."""
        if row != self._row:
            self._row = row
            self.reset()
        self.update_page()

    def render_page(self) -> list[Line]:
        return self._lines_of_row(self.columns)


class DetailedList(SplitScreen):
    """A list with what is known of the row under its cursor: beside it, or as many rows as there are below it."""

    HAS_STRIP: ClassVar = True  # below the list, where nothing stands beside it

    def __init__(self) -> None:
        super().__init__()
        self.detail_pane = self.beside = RowDetails(self.run_context, self.row_lines)
        self.below = Bar(0, id="below")

    @abstractmethod
    def row_lines(self, columns: int) -> list[Line]:
        """The details of the row under the cursor."""

    @abstractmethod
    def row_key(self) -> object:
        """The subject of the lines: those of another one are shown from the first."""

    def widgets_below(self) -> Iterable[Widget]:
        """Yield the first of the lines, for a screen without room beside the list."""
        yield self.below

    def on_resize(self, event: events.Resize) -> None:
        """Show the lines where there is room for them."""
        self.show_row()

    @property
    def free_rows(self) -> int:
        """The rows that a short list leaves to the lines below it."""
        return 0

    def show_row(self) -> None:
        """Update the lines."""
        rows = self.detail_room.rows if self.HAS_STRIP else 0
        self.below.set_row_count(rows + max(self.free_rows, 0) if rows else 0)
        if self.is_wide:
            self.beside.show_row(self.row_key())
        elif rows:
            self.below.show_lines(self.row_lines(self.app.size.width))
