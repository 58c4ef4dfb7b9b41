"""A time axis: which cell an instant falls into, and the idle pauses of a run that it shortens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ...engine.core.projection import TaskRow
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.states import UNDER_WAY

SECOND = 1_000_000
#: Microseconds per cell; each step is readable as a round number on the axis.
STEPS = tuple(
    round(seconds * SECOND)
    for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
)
#: Steps between those of zooming, so that a fitted period fills the width: of one that grows, and of one that is over.
_FIT_STEPS = tuple(step * quarters // 4 for step in STEPS for quarters in (4, 5, 6, 7))
_FINE_STEPS = tuple(step * parts // 16 for step in STEPS for parts in range(16, 32))
PAUSE_CELLS = 9  # a shortened pause: room for its length


class Span(msgspec.Struct, frozen=True):
    """The visible time span. Instants are microseconds UTC; long ``pauses`` take ``PAUSE_CELLS`` cells each.

    ``wait_cells``: those of the last pause, if it lasts until now.
    """

    start: int
    per_cell: int
    cells: int
    pauses: tuple[tuple[int, int], ...] = ()  # start and end of each, in order
    wait_cells: int = PAUSE_CELLS

    @property
    def end(self) -> int:
        """The instant behind the last cell."""
        return self.instant(self.cells)

    @property
    def shortened(self) -> list[tuple[int, int]]:
        """The pauses that are shortened at this scale: those of at least twice ``PAUSE_CELLS``."""
        return [pause for pause in self.pauses if pause[1] - pause[0] >= 2 * PAUSE_CELLS * self.per_cell]

    @property
    def shape(self) -> tuple[int, ...]:
        """What decides into which cells the past falls; a pause that lasts until now grows without changing it."""
        bounds = [at for pause in self.shortened for at in pause]
        return self.start, self.per_cell, self.cells, self.wait_cells, *bounds[:-1]

    def cell(self, at: int) -> int:
        """The cell that holds an instant; outside of 0 to ``cells`` if it is not shown."""
        return (self._position(at) - self._position(self.start)) // self.per_cell

    def instant(self, cell: int) -> int:
        """The instant at which a cell begins; the inverse of ``cell``."""
        position = self._position(self.start) + cell * self.per_cell
        removed = 0
        for start, end, shown in self._lengths():
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
        for start, end, shown in self._lengths():
            if at <= start:
                break
            removed += (min(at, end) - start) * (end - start - shown) // (end - start)
        return at - removed

    def _lengths(self) -> Iterator[tuple[int, int, int]]:
        """Yield the start, the end, and the shown time of each shortened pause."""
        for start, end in self.shortened:
            cells = self.wait_cells if (start, end) == self.pauses[-1] else PAUSE_CELLS
            yield start, end, cells * self.per_cell


def fitting_span(start: int, end: int, cells: int, ahead: int = 0, pauses: Sequence[tuple[int, int]] = ()) -> Span:
    """The span of the finest step that shows a period, with ``ahead`` free cells after it.

    A pause at its end, in which everything waits, has the cells that the bars leave.
    """
    spans = (Span(start - start % step, step, cells, tuple(pauses)) for step in (_FIT_STEPS if ahead else _FINE_STEPS))
    fitting = (span for span in spans if span.cell(max(end - 1, start)) + ahead < cells)
    span = next(fitting, Span(start, STEPS[-1], cells, tuple(pauses)))
    if not pauses or span.shortened[-1:] != [pauses[-1]] or pauses[-1][1] < end:
        return span
    free = max(cells - ahead - 1 - span.cell(end), 0)
    return replace(span, wait_cells=min(PAUSE_CELLS + free, (end - pauses[-1][0]) // span.per_cell))


# --- When a run did something, and the idle pauses between: a time axis shortens them --------------------------------


PAUSES_MAX = 20  # the longest of a run; more would leave no room for bars


class Pause(NamedTuple):
    """A time without activity, in microseconds UTC."""

    start: int
    end: int


class RunActivity(NamedTuple):
    """``pauses``: between two activities, in order. ``end``: of the latest activity; ``is_active``: it goes on."""

    pauses: tuple[Pause, ...]
    end: int
    is_active: bool


def activity_of(rows: Iterable[TaskRow], start: int, runner: RunnerStatus) -> RunActivity:
    """The activity of a run that began at ``start``: attempts, and the waits between attempts of one generation.

    Without an executor nothing goes on: what was under way ended with it.
    """
    pauses: list[Pause] = []
    end, is_active = start, False
    for begin, until in sorted((period for row in rows for period in _periods(row, runner)), key=itemgetter(0)):
        if begin > end and not is_active:
            pauses.append(Pause(end, begin))
        is_active = is_active or until is None
        end = max(end, begin, until or begin)  # an attempt ends before its start if the clock was set back
    longest = nlargest(PAUSES_MAX, pauses, key=lambda pause: pause.end - pause.start)
    return RunActivity(tuple(sorted(longest)), end, is_active)


def _periods(row: TaskRow, runner: RunnerStatus) -> Iterator[tuple[int, int | None]]:
    """Start and end of each generation of a task. The last has no end while the task runs or has a time to go on."""
    start: int | None = None
    end: int | None = None
    generation = 0
    for attempt in row.attempts.values():
        if start is not None and attempt.generation != generation:
            yield start, end
            start = None
        start = attempt.started_at if start is None else start
        end, generation = attempt.ended_at, attempt.generation
    if start is not None:
        moves = row.state in UNDER_WAY and generation == row.generation
        gone_at = runner.gone_at if moves and not runner.is_alive else None
        yield start, (gone_at if gone_at is not None else None if moves and runner.is_alive else end or start)
