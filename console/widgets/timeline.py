"""A list whose rows share a time axis: zoom, pan, follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from ..text.pieces import Line, Piece, fit
from .bindings import bindings
from .table import Key, VirtualTable

SECOND = 1_000_000
#: Microseconds per cell; each step is readable as a round number on the axis.
STEPS = tuple(
    round(seconds * SECOND)
    for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
)
_NOW_AT = 0.75  # where now stands after a step, as a part of the width; it walks to the edge before the next step


@dataclass(frozen=True, slots=True)
class Span:
    """The visible time span. Microseconds UTC."""

    start: int
    per_cell: int
    cells: int

    @property
    def end(self) -> int:
        """The instant behind the last cell."""
        return self.start + self.per_cell * self.cells

    def cell(self, at: int) -> int:
        """The cell that holds an instant; outside of 0 to ``cells`` if it is not shown."""
        return (at - self.start) // self.per_cell


class TimelineView(VirtualTable[Key]):
    """Rows of a label and a bar.

    Args:
        label: ``(key, columns)`` -> the fixed part on the left.
        bar: ``(key, span)`` -> what happened in the span, one cell per ``span.per_cell``.
        label_columns: how wide the label is, with the gap behind it.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings("left", "right", "fold", "unfold", "follow")

    class SpanChanged(Message):
        """The visible span changed."""

        def __init__(self, timeline: TimelineView[Key], span: Span) -> None:
            super().__init__()
            self.timeline = timeline
            self.span = span

    def __init__(
        self,
        label: Callable[[Key, int], Line],
        bar: Callable[[Key, Span], Line],
        *,
        label_columns: int = 22,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(self._labelled_row, id=id, classes=classes)
        self._label = label
        self._bar = bar
        self._label_columns = label_columns
        self._extent = (0, SECOND)
        self._now: int | None = None
        self._span = Span(0, SECOND, 1)
        self.is_following = True

    @property
    def span(self) -> Span:
        """What is shown."""
        return self._span

    @property
    def label_columns(self) -> int:
        """Where the bars begin."""
        return self._label_columns

    def set_extent(self, start: int, end: int) -> None:
        """The whole of what there is to see, microseconds UTC; ``fit`` shows it."""
        self._extent = (start, max(end, start + 1))

    def fit(self) -> None:
        """Show all of it, by the finest step that can."""
        start, end = self._extent
        per_cell = next((step for step in STEPS if step * self._bar_cells() >= end - start), STEPS[-1])
        self._show(Span(start, per_cell, self._bar_cells()))

    def set_now(self, now: int) -> None:
        """Set the current time. Scrolls only if it leaves a followed view; the caller refreshes changed rows."""
        self._now = now
        self._extent = (self._extent[0], max(self._extent[1], now))
        if self.is_following and not self._span.start <= now < self._span.end:
            self._scroll_to_now()

    def move_columns(self, direction: int) -> None:
        """A quarter of the span earlier, or with 1 later."""
        self._pan(direction * (self._span.cells // 4))

    def toggle_follow(self) -> None:
        """Switch following the current time on or off."""
        self.is_following = not self.is_following
        if self.is_following:
            self._scroll_to_now()
        else:
            self.post_message(self.SpanChanged(self, self._span))

    def on_resize(self) -> None:
        """As many cells as there is room for, from the same instant."""
        super().on_resize()
        self._show(replace(self._span, cells=self._bar_cells()))

    def _bar_cells(self) -> int:
        return max(self.columns - self._label_columns, 1)

    def _pan(self, cells: int) -> None:
        self.is_following = False
        self._show(replace(self._span, start=self._span.start + cells * self._span.per_cell))

    def zoom(self, step: int) -> None:
        """With 1 a shorter span, with -1 a longer one: around now if it is followed, else around the middle."""
        at = min(range(len(STEPS)), key=lambda index: abs(STEPS[index] - self._span.per_cell))
        per_cell = STEPS[max(min(at - step, len(STEPS) - 1), 0)]
        middle = self._now if self.is_following and self._now is not None else (self._span.start + self._span.end) // 2
        part = (middle - self._span.start) / (self._span.end - self._span.start)
        start = middle - round(part * per_cell * self._span.cells)
        self._show(replace(self._span, start=start, per_cell=per_cell))

    def _scroll_to_now(self) -> None:
        if self._now is not None:
            before = round(self._span.cells * _NOW_AT) * self._span.per_cell
            self._show(replace(self._span, start=max(self._now - before, min(self._extent[0], self._now))))

    def _show(self, span: Span) -> None:
        span = replace(span, start=span.start - span.start % span.per_cell)
        if span != self._span:
            self._span = span
            self.refresh()
            self.post_message(self.SpanChanged(self, span))

    def _labelled_row(self, key: Key, columns: int) -> Line:
        label = fit(self._label(key, self._label_columns - 1), self._label_columns - 1)
        return [*label, Piece(" "), *self._bar(key, self._span)]
