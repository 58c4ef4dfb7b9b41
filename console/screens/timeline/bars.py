"""The bars of the timeline: they show the whole run until the operator zooms or pans, and follow its end."""

from __future__ import annotations

from typing import Protocol

from textual import events

from ...model.time_span import SECOND, Span
from ...model.timeline_rows import RowKey
from ...present.timeline.bars import FOLD_CELLS
from ...text.pieces import Line
from ...widgets.timeline import TimelineView

AHEAD_CELLS = 9  # room for a countdown right of now
_MARGIN = 20  # a fitted task has this part of its span free on both sides


class TimelineRowsHost(Protocol):
    """The screen of the rows, as the bars use it."""

    def label(self, key: RowKey, columns: int) -> Line:
        """Render the left part of a row."""

    def bar(self, key: RowKey, span: Span) -> Line:
        """Render the right part of a row."""

    def cursor_instant(self) -> int:
        """The instant that zooming keeps in its place."""

    def toggle_follow(self) -> None:
        """Switch following the current time on or off."""

    def on_zoom_end(self, step: int) -> None:
        """The span is the shortest (1) or the longest that can be shown."""

    def toggle_group(self) -> bool:
        """Open or close the group under the cursor. False if the cursor is on a task."""

    def fold_group(self, opens: bool) -> bool:
        """Open or close the group of the row under the cursor. False if that changes nothing."""


class TaskTimeline(TimelineView[RowKey]):
    """Bars of tasks and groups; shows the whole run until the user zooms or pans."""

    def __init__(self, screen: TimelineRowsHost) -> None:
        super().__init__(screen.label, screen.bar, id="timeline")
        self._timeline_screen = screen
        self.shows_whole_run = True
        self._run_span = (0, SECOND, 0)  # start, end, and free cells after the end

    def set_label_columns(self, columns: int) -> None:
        """Set the width of the names."""
        if columns != self.label_columns:
            self.label_columns = columns
            self._fit_run()
            self.refresh()

    def extend_to(self, start: int, now: int) -> None:
        """Extend the run to ``now`` and scroll to it if it is followed."""
        self._run_span = (start, now, AHEAD_CELLS)
        ahead = now + AHEAD_CELLS * self.span.per_cell
        if self.is_following and not self.shows_whole_run:
            self.set_now(ahead)
        elif self.is_following and not self.span.start <= start < ahead < self.span.end:
            self._fit_run()

    def show_whole_run(self, start: int, end: int, *, live: bool) -> None:
        """Show a whole run; ``live``: it has not ended."""
        self.shows_whole_run = True
        self.is_following = live
        self._run_span = (start, end, AHEAD_CELLS if live else 0)
        self._fit_run()

    def _fit_run(self) -> None:
        self.set_extent(*self._run_span)
        if self.columns:
            self.fit()

    def fit_period(self, start: int, end: int) -> bool:
        """Show a period with a margin. False if it is shown already."""
        before, margin = self.span, max((end - start) // _MARGIN, 1)
        self.shows_whole_run = self.is_following = False
        self.show_period(start - margin, end + margin)
        return self.span != before

    def zoom_anchor(self) -> int:
        """The instant that stays in place: the end of the latest attempt, or now if the task is unfinished."""
        return self._timeline_screen.cursor_instant()

    def row_role(self, y: int) -> str | None:
        """None, because the cursor is drawn on the name only, and bars keep their colours."""
        return None

    def on_resize(self) -> None:
        """Fit the whole run again, if it was shown."""
        if self.shows_whole_run:
            self._fit_run()

    def toggle_follow(self) -> None:
        """Switch following on the screen, which knows the current time."""
        self._timeline_screen.toggle_follow()

    def move_columns(self, direction: int) -> None:
        """Open or close the group under the cursor, else scroll in time."""
        if not self._timeline_screen.fold_group(direction > 0):
            super().move_columns(direction)

    def on_click(self, event: events.Click) -> None:
        """Open or close the group whose sign was clicked."""
        event.prevent_default()  # Textual calls the handler of each class
        super().on_click(event)
        if event.chain == 1 and event.x < FOLD_CELLS and self.first_visible + event.y == self.cursor:
            self._timeline_screen.toggle_group()

    def zoom(self, step: int) -> None:
        """Show a longer or shorter span instead of the whole run. Stop following if now is outside it."""
        before, self.shows_whole_run = self.span, False
        self._now = now = self._run_span[1]  # stays where it is on the screen
        super().zoom(step)
        if self.span == before:
            self._timeline_screen.on_zoom_end(step)
        self.is_following = self.is_following and self.span.start <= now < self.span.end

    def _pan(self, cells: int) -> None:
        self.shows_whole_run = False
        super()._pan(cells)
