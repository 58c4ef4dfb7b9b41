"""The strip below the graph of a narrow terminal: the selected task in a few rows."""

from __future__ import annotations

from collections.abc import Callable

from ..present.detail import summary_lines
from ..present.tasks import Scene
from ..text.pieces import Line
from ..widgets.line_view import LineView
from ..widgets.split import STRIP_ROWS


class StripView(LineView):
    """The rows of one task."""

    def __init__(self, scene: Callable[[], Scene]) -> None:
        super().__init__()
        self._scene_of = scene
        self._name: str | None = None
        self.styles.height = STRIP_ROWS
        self.lines: list[Line] = []

    def show_task(self, name: str | None) -> None:
        """Update the rows and repaint changed ones."""
        self._name, scene = name, self._scene_of()
        row = scene.board.projection.tasks.get(name) if name is not None else None
        lines = summary_lines(row, scene, self.columns, STRIP_ROWS) if row is not None and self.columns else []
        for y in range(STRIP_ROWS):
            if lines[y : y + 1] != self.lines[y : y + 1]:
                self.refresh_rows(y)
        self.lines = lines

    def line(self, y: int) -> Line:
        """One row of the strip."""
        return self.lines[y] if y < len(self.lines) else []

    def on_resize(self) -> None:
        """Render the rows for another width."""
        self.show_task(self._name)
