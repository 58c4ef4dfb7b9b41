"""Read a drawing back: draw it as text, follow its lines cell by cell, and say which tasks they connect.

The reader knows the signs and the rules of ``model/graph/drawing.py``, but not how the drawing was made.
"""

from __future__ import annotations

from redrive.console.model.graph.drawing import Drawing
from redrive.console.text.glyphs import DOWN, LEFT, RIGHT, UP, UTF8

ARMS = {sign: arms for arms, sign in enumerate(UTF8.lines) if sign != " "}


def picture(drawing: Drawing, x0: int = 0, x1: int | None = None) -> list[str]:
    """The whole drawing as text; a task is ``@`` and dots."""
    end = drawing.width if x1 is None else x1
    lines = []
    for y in range(drawing.height):
        row = [" "] * (end - x0)
        for run in drawing.segments(y, x0, end):
            sign = UTF8.lines[run.arms]
            text = "@".ljust(run.width, ".") if run.task >= 0 else sign * run.width
            for offset, character in enumerate(text):
                if 0 <= run.x - x0 + offset < len(row):
                    assert row[run.x - x0 + offset] == " ", "two pieces in one cell"
                    row[run.x - x0 + offset] = character
        lines.append("".join(row))
    return lines


class Tracer:
    """Follows the lines that leave one task."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._grid = picture(drawing)
        self._found: set[str] = set()
        self._last_events: set[tuple[int, int, int]] = set()

    def children(self, name: str) -> set[str]:
        """The tasks that the lines from ``name`` lead to."""
        self._found, self._last_events = set(), set()
        x, y, width = self._drawing.place(name)
        column_end = max(sum(self._drawing.place(other)[::2]) for other in self._drawing.column_of(name))
        assert set(self._grid[y][x + width : column_end]) <= {" ", UTF8.lines[LEFT | RIGHT]}
        self._right(column_end, y)
        return self._found

    def _cell(self, x: int, y: int) -> str:
        inside = 0 <= y < len(self._grid) and 0 <= x < len(self._grid[y])
        return self._grid[y][x] if inside else " "

    def _right(self, x: int, y: int) -> None:
        while True:
            sign = self._cell(x, y)
            if sign == "@":
                self._found.add(self._drawing.at(x, y) or "")
                return
            arms = ARMS.get(sign, 0)
            if not arms or (arms & RIGHT and not arms & LEFT):
                return
            if arms & LEFT and arms & (UP | DOWN):
                self._switch(x, y, arms)
            x += 1

    def _switch(self, x: int, y: int, arms: int) -> None:
        for arm, step in ((UP, -1), (DOWN, 1)):
            if arms & arm:
                self._along(x, y + step, step)

    def _along(self, x: int, y: int, step: int) -> None:
        onward, back = (DOWN, UP) if step > 0 else (UP, DOWN)
        while (x, y, step) not in self._last_events:
            self._last_events.add((x, y, step))
            arms = ARMS[self._cell(x, y)]
            assert arms & back, f"a line ends in nothing at {x}, {y}"
            if arms & RIGHT:
                self._right(x + 1, y)
            if not arms & onward:
                return
            y += step


def traced_edges(drawing: Drawing) -> set[tuple[str, str]]:
    """(parent, child) for everything that the lines connect."""
    tracer = Tracer(drawing)
    return {(name, child) for name in drawing.dag.names for child in tracer.children(name)}
