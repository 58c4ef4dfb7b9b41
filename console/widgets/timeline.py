"""A list whose rows share a time axis: zoom, pan, follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from ..model.time_span import SECOND, STEPS, Span, fitting_span
from ..text.pieces import Line, Piece, fit
from .bindings import bindings
from .table import Key, VirtualTable

_NOW_AT = 0.75  # where now stands after a step, as a part of the width; it walks to the edge before the next step


class TimelineView(VirtualTable[Key]):
    """Rows of a label and a bar.

    Args:
        label: ``(key, columns)`` -> the fixed part on the left.
        bar: ``(key, span)`` -> what happened in the span, one cell per ``span.per_cell``.
        label_columns: how wide the label is, with the gap behind it.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings("left", "right", "fold", "unfold", "follow")

    @dataclass
    class SpanChanged(Message):
        """The visible span changed."""

        span: Span

    def __init__(
        self,
        label: Callable[[Key, int], Line],
        bar: Callable[[Key, Span], Line],
        *,
        label_columns: int = 22,
        id: str | None = None,
    ) -> None:
        super().__init__(self._labelled_row, id=id)
        self._label = label
        self._bar = bar
        self.label_columns = label_columns
        self._extent = (0, SECOND, 0)
        self._now: int | None = None
        self.span = Span(0, SECOND, 1)
        self.is_following = True

    def set_extent(self, start: int, end: int, ahead: int = 0) -> None:
        """Set what there is to see, microseconds UTC, with ``ahead`` free cells after it; ``fit`` shows it."""
        self._extent = (start, max(end, start + 1), ahead)

    def set_pauses(self, pauses: Sequence[tuple[int, int]]) -> None:
        """Shorten these pauses, in order, microseconds UTC."""
        before, span = self.span, replace(self.span, pauses=tuple(pauses))
        last_grows = len(span.shortened) == len(before.shortened) > 0 and span.pauses[:-1] == before.pauses[:-1]
        if last_grows and span.pauses[-1][0] == before.pauses[-1][0]:
            self.span = span  # bars stay in their cells
            self.post_message(self.SpanChanged(span))
        else:
            self._show(span)

    def fit(self) -> None:
        """Show the whole extent."""
        self.show_period(*self._extent)

    def show_period(self, start: int, end: int, ahead: int = 0) -> None:
        """Show a period by the finest step that can, with ``ahead`` free cells after it."""
        self._show(self._fitting(start, end, ahead))

    def _fitting(self, start: int, end: int, ahead: int = 0) -> Span:
        return fitting_span(start, end, self._bar_cells(), ahead, self.span.pauses)

    def set_now(self, now: int) -> None:
        """Set the current time. Scrolls only if it leaves a followed view; the caller refreshes changed rows."""
        self._now = now
        start, end, ahead = self._extent
        self._extent = (start, max(end, now), ahead)
        if self.is_following and not self.span.start <= now < self.span.end:
            self._scroll_to_now()

    def move_columns(self, direction: int) -> None:
        """A quarter of the span earlier, or with 1 later."""
        self._pan(direction * (self.span.cells // 4))

    def toggle_follow(self) -> None:
        """Switch following the current time on or off."""
        self.is_following = not self.is_following
        if self.is_following:
            self._scroll_to_now()
        else:
            self.post_message(self.SpanChanged(self.span))

    def on_resize(self) -> None:
        """Show as many cells as there is room for, from the same instant."""
        self._show(replace(self.span, cells=self._bar_cells()))

    def _bar_cells(self) -> int:
        return max(self.columns - self.label_columns, 1)

    def _pan(self, cells: int) -> None:
        self.is_following = False
        self._show(replace(self.span, start=self.span.instant(cells)))

    def zoom(self, step: int) -> None:
        """Show a shorter (1) or longer (-1) span: at most one step beyond the whole extent."""
        coarsest = _coarser(self._fitting(*self._extent).per_cell)
        per_cell = _finer(self.span.per_cell) if step > 0 else _coarser(self.span.per_cell)
        per_cell = min(per_cell, max(coarsest, self.span.per_cell))
        anchor = self.zoom_anchor()
        cell = self.span.cell(anchor)
        place = cell if 0 <= cell < self.span.cells else self.span.cells // 2
        zoomed = replace(self.span, start=anchor, per_cell=per_cell)
        self._show(replace(zoomed, start=zoomed.instant(-place)))

    def zoom_anchor(self) -> int:
        """The instant that stays in its cell: now if it is followed, else the middle."""
        if self.is_following and self._now is not None:
            return self._now
        return self.span.instant(self.span.cells // 2)

    def _scroll_to_now(self) -> None:
        if self._now is not None:
            before = replace(self.span, start=self._now).instant(-round(self.span.cells * _NOW_AT))
            self._show(replace(self.span, start=max(before, min(self._extent[0], self._now))))

    def _show(self, span: Span) -> None:
        span = replace(span, start=span.start - span.start % span.per_cell)
        if span != self.span:
            self.span = span
            self.refresh()
            self.post_message(self.SpanChanged(span))

    def _labelled_row(self, key: Key, columns: int) -> Line:
        label = fit(self._label(key, self.label_columns - 1), self.label_columns - 1)
        return [*label, Piece(" "), *self._bar(key, self.span)]


def _finer(per_cell: int) -> int:
    return max((step for step in STEPS if step < per_cell), default=STEPS[0])


def _coarser(per_cell: int) -> int:
    return min((step for step in STEPS if step > per_cell), default=STEPS[-1])
