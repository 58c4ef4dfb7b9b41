"""A list with a detail pane on wide terminals; on narrow ones the details are a separate screen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from textual import events
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ..text.strokes import LEFT, RIGHT, UP
from ..widgets.split import Divider, has_room_for_detail_pane
from .base import ConsoleScreen


class PaneWidth(NamedTuple):
    """Width of the detail pane: per cent of the screen, with a minimum and a maximum in cells."""

    percent: int
    min_cells: int
    max_cells: int


class SplitScreen(ConsoleScreen):
    """Subclasses set ``DETAIL_WIDTH``, ``main_pane`` and ``detail_pane`` and implement ``main_widgets``."""

    DETAIL_WIDTH: ClassVar[PaneWidth]
    DEFAULT_CSS = """
    SplitScreen > Horizontal { height: 1fr; }
    """
    main_pane: Widget
    detail_pane: Widget

    def __init__(self) -> None:
        super().__init__()
        glyphs = self.console.glyphs
        self.divider = Divider(glyphs.divider)

    @abstractmethod
    def main_widgets(self) -> Iterable[Widget]:
        """The widgets of the main pane, from top to bottom."""

    def widgets_above(self) -> Iterable[Widget]:
        """Widgets over the whole width, above both panes."""
        return ()

    def content(self) -> Iterable[Widget]:
        """Yield both panes and the widgets above them."""
        yield from self.widgets_above()
        with Horizontal():
            with Vertical():
                yield from self.main_widgets()
            yield self.divider
            yield self.detail_pane

    @property
    def is_wide(self) -> bool:
        """Whether the detail pane fits next to the list."""
        return has_room_for_detail_pane(self.app.size.width)

    @property
    def main_columns(self) -> int:
        """The width of the list in cells."""
        return self.app.size.width - (self._detail_columns(self.app.size.width) + 1 if self.is_wide else 0)

    def _detail_columns(self, columns: int) -> int:
        percent, least, most = self.DETAIL_WIDTH
        return max(min(columns * percent // 100, most), least)

    def on_resize(self, event: events.Resize) -> None:
        """Show the detail pane only if it fits."""
        self.detail_pane.display = self.divider.display = self.is_wide
        self.detail_pane.styles.width = self._detail_columns(event.size.width)
        self.call_after_refresh(self.show_frame)  # the rules need the new position of the divider

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """The column at which the divider meets the rules."""
        if not self.is_wide or not self.divider.region:
            return {}
        glyphs = self.console.glyphs
        return {self.divider.region.x: glyphs.tee_down if upper else glyphs.lines[LEFT | RIGHT | UP]}

    def next_pane(self) -> None:
        """Switch between list and detail pane."""
        if not self.is_wide:
            super().next_pane()
        elif self.detail_pane.has_focus:
            self.main_pane.focus()
            self.console.show_message("keys move in the list")
        else:
            self.focus_details()

    def focus_details(self) -> None:
        """Give the keys to the details, and say so: most details have no cursor."""
        self.detail_pane.focus()
        key = self.console.keymap.label("next_pane")
        self.console.show_message(f"keys scroll the details; {key} returns to the list")

    def mark(self) -> None:
        """Say that marks are set in the list: the details have the keys."""
        self.focus_details()

    mark_range = mark_all = mark

    def back(self) -> None:
        """Go from the detail pane to the list; from the list as on every screen."""
        if self.detail_pane.has_focus:
            self.main_pane.focus()
        else:
            super().back()
