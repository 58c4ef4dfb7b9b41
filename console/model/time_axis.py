"""A time axis: which cell an instant falls into, and the pauses of a run that it shortens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import nlargest
from itertools import zip_longest
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


class Pause(NamedTuple):
    """A time without activity, or with ``is_busy`` one in which tasks run and none starts or ends; microseconds UTC."""

    start: int
    end: int
    is_busy: bool = False


class Span(msgspec.Struct, frozen=True):
    """The visible time span. Instants are microseconds UTC.

    A long pause takes ``PAUSE_CELLS``, a busy one half of the width: a bar that crosses it stays the longest.

    ``wait_cells``: those of the last pause, if it lasts until now.
    """

    start: int
    per_cell: int
    cells: int
    pauses: tuple[Pause, ...] = ()  # in order
    wait_cells: int = PAUSE_CELLS

    @property
    def end(self) -> int:
        """The instant behind the last cell."""
        return self.instant(self.cells)

    @property
    def shortened(self) -> list[Pause]:
        """The pauses that are shortened at this scale: those of at least twice the cells that they then have."""
        return [one for one in self.pauses if one.end - one.start >= 2 * self.least_cells(one) * self.per_cell]

    def least_cells(self, pause: Pause) -> int:
        """The cells of a shortened pause; the last one may have more."""
        return self.cells // 2 if pause.is_busy else PAUSE_CELLS

    @property
    def shape(self) -> tuple[int, ...]:
        """The values that place the past in cells; a pause that lasts until now grows without changing them."""
        bounds = [at for pause in self.shortened for at in (pause.start, pause.end)]
        return self.start, self.per_cell, self.cells, self.wait_cells, len(self.pauses), *bounds[:-1]

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
        for pause in self.shortened:
            cells = max(self.least_cells(pause), self.wait_cells if pause == self.pauses[-1] else 0)
            yield pause.start, pause.end, cells * self.per_cell


def fitting_span(start: int, end: int, cells: int, ahead: int = 0, pauses: Sequence[Pause] = ()) -> Span:
    """The span of the finest step that shows a period, with ``ahead`` free cells after it.

    A pause at its end, in which everything waits, has the cells that the bars leave.
    """
    spans = (Span(start - start % step, step, cells, tuple(pauses)) for step in (_FIT_STEPS if ahead else _FINE_STEPS))
    fitting = (span for span in spans if span.cell(max(end - 1, start)) + ahead < cells)
    span = next(fitting, Span(start, STEPS[-1], cells, tuple(pauses)))
    if not pauses or span.shortened[-1:] != [pauses[-1]] or pauses[-1].end < end:
        return span
    free = max(cells - ahead - 1 - span.cell(end), 0)
    return replace(span, wait_cells=min(span.least_cells(pauses[-1]) + free, (end - pauses[-1].start) // span.per_cell))


# --- When a run did something, and the pauses between: a time axis shortens them -------------------------------------


PAUSES_MAX = 20  # the longest of a run; more would leave no room for bars
_TASKS_MIN = 20  # from which a busy time is a pause: the bars of fewer have room beside it


class RunActivity(NamedTuple):
    """``pauses``: between two activities, in order. ``end``: of the latest activity; ``is_active``: it goes on.

    ``start``: of the run, if busy pauses are looked for.
    """

    pauses: tuple[Pause, ...]
    end: int
    is_active: bool
    start: int | None = None

    def pauses_until(self, now: int | None) -> tuple[Pause, ...]:
        """The pauses, and the one that lasts until now; None if the run is over."""
        return (*self.pauses, *_pause(self.end, now or 0, self.start, is_busy=self.is_active))


def _pause(end: int, at: int, start: int | None, *, is_busy: bool) -> Iterator[Pause]:
    """Yield the pause from the end of an activity to the next; a busy one if it is as long as all before it."""
    if at > end and (not is_busy or (start is not None and at - end >= end - start)):
        yield Pause(end, at, is_busy)


def activity_of(rows: Collection[TaskRow], start: int, runner: RunnerStatus) -> RunActivity:
    """The activity of a run that began at ``start``: attempts, and the waits between attempts of one generation.

    Without an executor nothing goes on: what was under way ended with it.
    """
    pauses: list[Pause] = []
    end, under_way, started_at = start, 0, start if len(rows) >= _TASKS_MIN else None
    for at, change in sorted(edge for row in rows for edge in _edges(row, runner)):
        if at > end:
            pauses += _pause(end, at, started_at, is_busy=under_way > 0)
            end = at
        under_way += change
    longest = nlargest(PAUSES_MAX, pauses, key=lambda pause: pause.end - pause.start)
    return RunActivity(tuple(sorted(longest)), end, under_way > 0, started_at)


def _edges(row: TaskRow, runner: RunnerStatus) -> Iterator[tuple[int, int]]:
    """Yield each start and end, with 1 where the task goes on from and -1 where it no longer does.

    It goes on between attempts of one generation, and after the last one if it has a time to do so.
    """
    attempts = list(row.attempts.values())
    for attempt, later in zip_longest(attempts, attempts[1:]):
        start, until = attempt.started_at, attempt.ended_at or attempt.started_at
        yield from ((start, 1), (max(start, until), 0))  # an attempt ends before its start if the clock was set back
        if later is not None and later.generation == attempt.generation:
            until = later.started_at
        elif later is None and row.state in UNDER_WAY and attempt.generation == row.generation:
            if runner.is_alive:
                return
            until = until if runner.gone_at is None else runner.gone_at
        yield max(start, until), -1
