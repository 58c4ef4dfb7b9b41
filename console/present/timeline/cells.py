"""The cells of one bar.

Several things may fall into one cell: the higher ``CellRank`` wins, so that the bar of the next attempt never covers a
failure, at any zoom.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import groupby

from ....engine.core.outlook import RunnerStatus
from ...model.time_span import Span
from ...text.glyphs import Glyphs
from ...text.pieces import Line, Piece, Role


class CellRank(IntEnum):
    """Which content wins a cell: the highest rank."""

    NOTHING = 0
    NOW = 1
    GAP = 2
    BAR = 3
    AHEAD = 4  # a future deadline
    MARK = 5
    DECISION = 6  # the mark of the task's state: it covers marks of its attempts
    HEAD = 7
    WORDS = 8


def end_of_past(axis: Span, now_us: int | None, runner: RunnerStatus) -> int:
    """Until when anything ran: now, the end of the axis if the run is over, or when the executor ended."""
    until = now_us if now_us is not None else axis.end
    return until if runner.gone_at is None else min(until, runner.gone_at)


class BarCells:
    """One row of cells, with the line of the present. ``now_us``: None if the run is over."""

    def __init__(self, axis: Span, now_us: int | None, glyphs: Glyphs) -> None:
        self.axis = axis
        self._cells: list[tuple[CellRank, str, Role]] = [(CellRank.NOTHING, " ", Role.TEXT)] * axis.cells
        if now_us is not None:
            self.put(axis.cell(now_us), glyphs.now, Role.NOW, CellRank.NOW)

    def put(self, cell: int, character: str, role: Role, rank: CellRank) -> None:
        """Set one cell if it is visible and has no content of a higher rank."""
        if 0 <= cell < len(self._cells) and self._cells[cell][0] <= rank:
            self._cells[cell] = (rank, character, role)

    def fill(self, first: int, last: int, character: str, role: Role, rank: CellRank) -> None:
        """Set the cells from ``first`` to ``last``, both included."""
        for cell in range(max(first, 0), min(last + 1, len(self._cells))):
            self.put(cell, character, role, rank)

    def write(self, cell: int, text: str, role: Role) -> None:
        """Write a text from ``cell`` on."""
        for place, character in enumerate(text):
            self.put(cell + place, character, role, CellRank.WORDS)

    def line(self) -> Line:
        """The cells, grouped into pieces."""
        return [
            Piece("".join(character for _, character, _ in group), role)
            for role, group in groupby(self._cells, key=lambda cell: cell[2])
        ]
