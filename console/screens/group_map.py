"""The drawing of the groups above their list."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..model.graph.drawing import Drawing
from ..model.graph.overview import GROUP_ROWS
from ..model.graph.view import Graph
from ..present.group_map import group_map_row
from ..present.tasks import Scene
from ..text.pieces import Line
from ..widgets.canvas import Canvas

_MARGIN = 1


class GroupMap(Canvas):
    """All groups of a graph. A click posts the index of the group."""

    def __init__(self, scene: Callable[[], Scene], clicked: Callable[[int], None]) -> None:
        super().__init__(self._row_pieces, id="groups")
        self.can_focus = False
        self._scene = scene
        self._on_group = clicked
        self._graph: Graph | None = None
        self._drawing: Drawing | None = None

    def show(self, graph: Graph, drawing: Drawing) -> None:
        """Show these groups."""
        if graph is not self._graph or drawing is not self._drawing:
            self._graph, self._drawing = graph, drawing
            self.set_extent(_MARGIN + drawing.width, GROUP_ROWS * drawing.height)

    def tasks_changed(self, names: Iterable[str]) -> None:
        """Repaint the groups of these tasks."""
        if self._graph is not None and self._drawing is not None:
            groups, number = self._graph.groups, self._graph.dag.number
            for index in {groups.group_of[number[name]] for name in names}:
                self.refresh_rows(GROUP_ROWS * self._drawing.place(str(index))[1] - self.origin[1], GROUP_ROWS)

    def _row_pieces(self, y: int, x0: int, x1: int) -> Line:
        assert self._graph is not None
        assert self._drawing is not None
        return group_map_row(self._graph, self._drawing, y, x0 - _MARGIN, x1 - _MARGIN, self._scene())

    def on_canvas_point_clicked(self, message: Canvas.PointClicked) -> None:
        """Post the index of the group that was clicked."""
        message.stop()
        found = self._drawing.at(message.x - _MARGIN, message.y // GROUP_ROWS) if self._drawing is not None else None
        if found is not None:
            self._on_group(int(found))
