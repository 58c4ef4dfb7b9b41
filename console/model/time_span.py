"""The visible span of a time axis: which cell an instant falls into. Long pauses are shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SECOND = 1_000_000
#: Microseconds per cell; each step is readable as a round number on the axis.
STEPS = tuple(
    round(seconds * SECOND)
    for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
)
#: Steps between those of zooming, so that a fitted period fills the width.
_FIT_STEPS = tuple(step * quarters // 4 for step in STEPS for quarters in (4, 5, 6, 7))
PAUSE_CELLS = 9  # a shortened pause: room for its length


@dataclass(frozen=True, slots=True)
class Span:
    """The visible time span. Instants are microseconds UTC; long ``pauses`` take ``PAUSE_CELLS`` cells each."""

    start: int
    per_cell: int
    cells: int
    pauses: tuple[tuple[int, int], ...] = ()  # start and end of each, in order

    @property
    def end(self) -> int:
        """The instant behind the last cell."""
        return self.instant(self.cells)

    @property
    def shortened(self) -> list[tuple[int, int]]:
        """The pauses that are shortened at this scale: those of at least twice ``PAUSE_CELLS``."""
        return [pause for pause in self.pauses if pause[1] - pause[0] >= 2 * PAUSE_CELLS * self.per_cell]

    def cell(self, at: int) -> int:
        """The cell that holds an instant; outside of 0 to ``cells`` if it is not shown."""
        return (self._position(at) - self._position(self.start)) // self.per_cell

    def instant(self, cell: int) -> int:
        """The instant at which a cell begins; the inverse of ``cell``."""
        position = self._position(self.start) + cell * self.per_cell
        removed = 0
        shown = PAUSE_CELLS * self.per_cell
        for start, end in self.shortened:
            if position <= start - removed:
                break
            inside = position - (start - removed)
            if inside < shown:
                return start + (end - start) * inside // shown
            removed += end - start - shown
        return position + removed

    def _position(self, at: int) -> int:
        """Microseconds of shown time before an instant, from an arbitrary zero."""
        removed = 0
        shown = PAUSE_CELLS * self.per_cell
        for start, end in self.shortened:
            if at <= start:
                break
            removed += (min(at, end) - start) * (end - start - shown) // (end - start)
        return at - removed


def fitting_span(start: int, end: int, cells: int, ahead: int = 0, pauses: Sequence[tuple[int, int]] = ()) -> Span:
    """The span of the finest step that shows a period, with ``ahead`` free cells after it."""
    spans = (Span(start - start % step, step, cells, tuple(pauses)) for step in _FIT_STEPS)
    fitting = (span for span in spans if span.cell(max(end - 1, start)) + ahead < cells)
    return next(fitting, Span(start, STEPS[-1], cells, tuple(pauses)))
