"""The graph widget: viewport, cursor, marks, and minimal repaints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from textual import events
from textual.message import Message

from ...engine.domain.states import NEEDS_HUMAN
from ..model.graph.groups import ZoomStep
from ..model.graph.rows import Silhouette
from ..model.graph.view import GROUP_ROWS, Graph
from ..present import graph as present
from ..present.silhouette import (
    MARKS_ROW,
    CriticalPath,
    critical_path_with_times,
    silhouette_lines,
    silhouette_marks,
)
from ..present.tasks import RunContext
from ..text.pieces import Line, Piece, Role
from ..widgets.bars import PAGING, Bar, bindings
from ..widgets.line_view import WheelView

# --- A drawing of any size; only the cells of the viewport are rendered, row by row ----------------------------------


class Canvas(WheelView, can_focus=True):
    """A window on a drawing. Subclasses draw rows and handle clicks."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.extent = (0, 0)
        self._x = 0
        self._y = 0

    @abstractmethod
    def drawn_row(self, y: int, x0: int, x1: int) -> Line:
        """The pieces of row ``y`` from column ``x0`` to before ``x1``, that many cells at most."""

    @abstractmethod
    def click_cell(self, x: int, y: int, chain: int) -> None:
        """Handle a click on a cell of the drawing; ``chain`` counts quick clicks on it."""

    @property
    def hidden_rows(self) -> tuple[int, int]:
        """The numbers of rows above and below the viewport."""
        return self._y, max(self.extent[1] - self._y - self.rows, 0)

    @property
    def origin(self) -> tuple[int, int]:
        """The cell of the drawing in the upper left corner of the viewport."""
        return self._x, self._y

    def set_extent(self, columns: int, rows: int) -> None:
        """Set the size of the drawing and repaint."""
        self.extent = (columns, rows)
        self._clamp_origin(self._x, self._y)
        self.refresh()

    def refresh_drawing_cells(self, x: int, y: int, columns: int, rows: int = 1) -> None:
        """Repaint the visible part of these cells of the drawing."""
        self.refresh_cells(x - self._x, y - self._y, columns, rows)

    def scroll_to_cell(self, x: int, y: int) -> None:
        """Put this cell in the upper left corner, as far as the drawing reaches."""
        if self._clamp_origin(x, y):
            self.refresh()

    def scroll_by(self, columns: int, rows: int) -> None:
        """Move the viewport."""
        self.scroll_to_cell(self._x + columns, self._y + rows)

    def scroll_into_view(self, x: int, y: int, columns: int = 1, margin: int = 2) -> None:
        """Scroll as little as needed to show these cells of row ``y``, with some room around them.

        Cells that are farther away than a page come to the middle of the viewport.
        """
        self.scroll_to_cell(
            _nearest(self._x, self.columns, x - margin, x + columns + margin),
            _nearest(self._y, self.rows, y - min(margin, 1), y + 1 + min(margin, 1)),
        )

    def line(self, y: int) -> Line:
        """The cells of the drawing that stand in line ``y`` of the viewport."""
        row = self._y + y
        return self.drawn_row(row, self._x, self._x + self.columns) if row < self.extent[1] else []

    def _clamp_origin(self, x: int, y: int) -> bool:
        columns, rows = self.extent
        x = max(min(x, columns - self.columns), 0)
        y = max(min(y, rows - self.rows), 0)
        moved = (x, y) != (self._x, self._y)
        self._x, self._y = x, y
        return moved

    def on_resize(self) -> None:
        """Clamp the viewport to the drawing."""
        self._clamp_origin(self._x, self._y)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        self.click_cell(self._x + event.x, self._y + event.y, event.chain)

    def move_by_wheel(self, rows: int, *, is_shifted: bool) -> None:
        self.scroll_by(*((2 * rows, 0) if is_shifted else (0, rows)))


def _nearest(origin: int, size: int, first: int, last: int) -> int:
    """The origin closest to ``origin`` from which ``first`` to before ``last`` are in view; the first wins."""
    if not origin - size <= first < origin + 2 * size:
        return (first + last - size) // 2
    return min(max(origin, last - size), first)


# --- Graph view ------------------------------------------------------------------------------------------------------
#


_HIGHLIGHTED_TASKS_MAX = 600  # tasks: of larger graphs only the selected task is set off
_MARGIN = 1  # cells left of a drawing, as of everything else
_LIT_STEPS = frozenset({ZoomStep.ROWS, ZoomStep.DRAWING, ZoomStep.FOUND})


class GraphView(Canvas):
    """A window on a ``Graph``.

    ``context`` returns the context for rendering rows. ``selected`` is called at once when another task is selected, so
    that its details are painted in the same frame as the cursor.
    """

    BINDINGS = bindings(*PAGING, "left", "right", "open", "mark", "mark_all")

    class TaskOpened(Message):
        """A task was opened with Enter."""

    class TaskMarksChanged(Message):
        """Other tasks are marked than before."""

    def __init__(
        self, graph: Graph, context: Callable[[], RunContext], selected: Callable[[str | None], None], *, id: str
    ) -> None:
        super().__init__(id=id)
        self._run_context = context
        self._on_selected = selected
        self.graph = graph
        self.marks: dict[str, None] = {}
        self.highlight = present.Highlight()
        self.critical_path: tuple[str, ...] = ()
        self.matches: dict[str, None] = {}
        self._cursor_row = 0  # at the last paint

    # --- What is shown ------------------------------------------------------------------------------------------------

    def set_graph(self, graph: Graph) -> None:
        self.graph = graph
        self.marks = {name: None for name in self.marks if name in graph.board.projection.tasks}
        graph.resize(self.columns, self.rows)
        self.step_changed()

    def step_changed(self) -> None:
        """Update after a change of zoom or rows."""
        if not self.columns or not self.display:
            return
        self._update_highlight()
        self.set_extent(
            _MARGIN + self.graph.drawing.width if self.graph.is_drawing else self.columns, self.graph.height
        )
        self.show_cursor()
        self._cursor_row = self.graph.cursor_row

    def tasks_changed(self, names: Iterable[str]) -> None:
        """Repaint the visible rows of these tasks."""
        is_drawing = self.graph.is_drawing
        rows = self.graph.drawings.label_size.rows if is_drawing else 1
        for y in {y for name in names for y in self._rows_of(name)}:
            self.refresh_drawing_cells(self.origin[0] if is_drawing else 0, y, self.columns, rows)

    def tick(self) -> None:
        """Repaint the visible rows with running times."""
        self.tasks_changed(self.graph.board.timed & self.visible_tasks())

    def visible_tasks(self) -> set[str]:
        """The tasks of which the viewport shows a row or a box; none of a folded group."""
        graph = self.graph
        (left, top), bottom = self.origin, min(self.origin[1] + self.rows, graph.height)
        if graph.step is ZoomStep.GROUPS:
            rows = (graph.groups.rows[y] for y in range(top, bottom))
            return {graph.dag.names[row.task] for row in rows if row.task is not None and not row.hidden}
        if graph.lists_tasks:
            return {graph.task_at_row(y) for y in range(top, bottom)}
        drawing, size, found = graph.drawing, graph.drawings.label_size, set[str]()
        for name in drawing.dag.order:
            x, y, columns = drawing.place(name)
            if top <= y * size.rows < bottom and left < _MARGIN + x + columns and _MARGIN + x < left + self.columns:
                found.add(name)
        return found

    def _rows_of(self, name: str) -> tuple[int, ...]:
        graph = self.graph
        if graph.step is ZoomStep.GROUPS:
            group = graph.groups.group_of[graph.dag.number[name]]
            return graph.groups.row_of_group(group), graph.groups.row_of(name)
        return (graph.row_of(name),)

    # --- The cursor -----------------------------------------------------------------------------------------------

    def show_cursor(self) -> None:
        """Scroll to the selected task."""
        graph = self.graph
        if graph.selected is None or not self.columns:
            return
        if graph.is_drawing:
            x, _, columns = graph.drawing.place(graph.selected)
            self.scroll_into_view(_MARGIN + x, graph.cursor_row, columns)
        else:
            self.scroll_into_view(0, graph.cursor_row, 1, margin=1)

    def select(self, name: str) -> None:
        if name != self.graph.selected:
            self.graph.select(name)
            self._cursor_moved()

    def select_problem(self, step: int) -> bool:
        """Select the next task that needs a human. False if there is none."""
        if not self.graph.to_problem(step):
            return False
        self.step_changed()
        self._cursor_moved()
        return True

    def _cursor_moved(self) -> None:
        """Repaint what the cursor move changed: two rows if highlight and viewport stay."""
        graph, lit, origin, row = self.graph, self.highlight, self.origin, self._cursor_row
        self._update_highlight()
        self.show_cursor()
        self._cursor_row = graph.cursor_row
        if graph.is_drawing:
            self.refresh()
        elif self.highlight == lit and self.origin == origin:
            self.refresh_rows(row - origin[1])
            self.refresh_rows(self._cursor_row - origin[1])
        else:
            self.refresh_rows(0, min(graph.height - self.origin[1], self.rows))
        self._on_selected(graph.selected)

    def _update_highlight(self) -> None:
        """Choose the highlighted tasks and lines."""
        graph = self.graph
        self.highlight = present.Highlight(critical=self.critical_path, marked=self.marks, matched=self.matches)
        if graph.selected is None or graph.step not in _LIT_STEPS or len(graph.dag) > _HIGHLIGHTED_TASKS_MAX:
            return
        path = self.critical_path
        edges = set(pairwise(path)) if path else graph.board.related_edges(graph.selected)
        related = {name for edge in edges for name in edge} if not path else set()
        if len(related) == len(graph.dag):
            return  # none stands out
        self.highlight.related = related
        self.highlight.line_role = Role.CRITICAL if path else Role.RELATED
        if not graph.lists_tasks:
            self.highlight.lines = graph.drawing.highlight(edges)

    def _move(self, dx: int, dy: int) -> None:
        graph = self.graph
        height = graph.height
        moved = graph.move(dx, dy)
        if graph.height != height:  # a group was opened or closed
            self.step_changed()
            moved = True
        if moved:
            self._cursor_moved()

    def move_rows(self, rows: int) -> None:
        """Move the selection ``rows`` down; in a drawing along its lines."""
        self._move(0, rows)

    def move_columns(self, direction: int) -> None:
        """Select a parent, or with 1 a child; in other views move a column to the left or right."""
        self._move(direction, 0)

    def move_pages(self, pages: float) -> None:
        """Move ``pages`` pages down; whole pages overlap by one row."""
        rows = self.rows - 1 if abs(pages) == 1 else int(self.rows * abs(pages))
        self._move_far(max(rows, 1) if pages > 0 else -max(rows, 1))

    def move_to_edge(self, direction: int) -> None:
        """Select the first row, or with 1 the last."""
        self._move_far(direction * self.extent[1])

    def go_to_row(self, row: int) -> None:
        """Put the cursor on a row of a list."""
        self.graph.select_row(row)
        self._cursor_moved()

    def _move_far(self, rows: int) -> None:
        graph = self.graph
        before = graph.selected, graph.on_group
        if graph.is_drawing:
            for _ in range(abs(rows)):
                graph.move(0, 1 if rows > 0 else -1)
        else:
            graph.select_row(graph.cursor_row + rows)
        if (graph.selected, graph.on_group) != before:
            self._cursor_moved()

    # --- Marks ----------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Mark or unmark the selected task or group, and select the next."""
        names = self.graph.tasks_at_cursor
        if names and self.marks.keys() >= set(names):
            self.set_marks(name for name in self.marks if name not in names)
        else:
            self.set_marks((*self.marks, *names))
        self._move(0, 1)

    def mark_all(self) -> None:
        """Mark all tasks that match the filter, without a filter all that need a human; again: none."""
        names = self.graph.found if self.graph.found is not None else self.graph.board.problems
        self.set_marks(() if self.marks.keys() == set(names) else names)

    def set_marks(self, items: Iterable[str]) -> None:
        """Mark these tasks and no others."""
        self.marks = dict.fromkeys(items)
        self._update_highlight()
        self.refresh()
        self.post_message(self.TaskMarksChanged())

    def unmark(self, item: str) -> None:
        """Remove one mark."""
        if item in self.marks:
            del self.marks[item]
            self.refresh()
            self.post_message(self.TaskMarksChanged())

    # --- Drawing --------------------------------------------------------------------------------------------------

    def drawn_row(self, y: int, x0: int, x1: int) -> Line:
        if self.graph.is_drawing:
            return present.drawing_row(self.graph, y, x0 - _MARGIN, x1 - _MARGIN, self._run_context(), self.highlight)
        self.highlight.cursor_role = self._cursor_role
        return present.graph_row(self.graph, y, x1 - x0, self._run_context(), self.highlight)

    def row_role(self, y: int) -> str | None:
        """The cursor's row, where rows are tasks."""
        graph = self.graph
        if graph.is_drawing or graph.is_on_many:
            return None
        return self._cursor_role if self.origin[1] + y == graph.cursor_row and graph.height > 0 else None

    @property
    def _cursor_role(self) -> Role:
        return Role.CURSOR if self.has_focus else Role.STRONG

    def on_resize(self) -> None:
        """Scroll so that the selected task stays visible."""
        self.graph.resize(self.columns, self.rows)
        self.step_changed()

    def click_cell(self, x: int, y: int, chain: int) -> None:
        """A click selects, a second one opens."""
        graph = self.graph
        if graph.select_at(x - _MARGIN if graph.is_drawing else x, y):
            self._cursor_moved()
            if chain > 1:
                self.drill_in()

    def drill_in(self) -> None:
        """Open what is folded; a task shows its details."""
        graph = self.graph
        if graph.on_group:
            if graph.toggle():
                self._cursor_moved()
                self.step_changed()
        elif graph.selected is not None:
            self.post_message(self.TaskOpened())


# --- Above the list of groups: their drawing, or the silhouette of all tasks -----------------------------------------


class GroupMap(Canvas):
    """All groups of a graph. ``clicked`` gets the index of the group that was clicked."""

    def __init__(self, context: Callable[[], RunContext], clicked: Callable[[int], None]) -> None:
        super().__init__(id="groups")
        self.can_focus = False
        self._run_context = context
        self._on_group = clicked
        self._graph: Graph | None = None
        self._drawn: present.GroupDrawing | None = None

    def show(self, graph: Graph, drawn: present.GroupDrawing) -> None:
        if graph is not self._graph or drawn is not self._drawn:
            self._graph, self._drawn = graph, drawn
            self.set_extent(_MARGIN + drawn.drawing.width, GROUP_ROWS * drawn.drawing.height)

    def tasks_changed(self, names: Iterable[str]) -> None:
        """Repaint the groups of these tasks."""
        if self._graph is not None and self._drawn is not None:
            groups, number = self._graph.groups, self._graph.dag.number
            for index in {groups.group_of[number[name]] for name in names}:
                y = GROUP_ROWS * self._drawn.drawing.place(str(index))[1]
                self.refresh_rows(y - self.origin[1], GROUP_ROWS)

    def drawn_row(self, y: int, x0: int, x1: int) -> Line:
        assert self._graph is not None
        assert self._drawn is not None
        return present.group_map_row(self._graph, self._drawn, y, x0 - _MARGIN, x1 - _MARGIN, self._run_context())

    def click_cell(self, x: int, y: int, chain: int) -> None:
        drawing = self._drawn.drawing if self._drawn is not None else None
        found = drawing.at(x - _MARGIN, y // GROUP_ROWS) if drawing is not None else None
        if found is not None:
            self._on_group(int(found))


class SilhouetteView(Bar):
    """All tasks of a graph by level. A click selects a task of the level, preferably one that needs a human."""

    def __init__(self, context: Callable[[], RunContext], clicked: Callable[[str | None], None]) -> None:
        super().__init__(id="silhouette")
        self._run_context = context
        self._on_task = clicked
        self._graph: Graph | None = None
        self._path = CriticalPath()
        self._lines: list[Line] = []
        self._lines_key: object = None  # what they were made of

    def show_graph(self, graph: Graph, path: Sequence[str] | None = None, left_us: int | None = None) -> None:
        """Show a graph, or the same one in another state. ``path``: the critical one, if it changed; its end."""
        if path is not None:
            self._path = critical_path_with_times(path, self._run_context(), left_us)
        self._graph = graph
        if self.columns <= _MARGIN:
            return
        context, silhouette = self._run_context(), self._silhouette(graph)
        key = silhouette, silhouette.moves, self._path, self.row_count, context.runner
        if key != self._lines_key:
            self._lines_key = key
            self._lines = silhouette_lines(silhouette, self._path, self.row_count, context)
        lines = [*self._lines]
        lines[MARKS_ROW] = silhouette_marks(silhouette, graph.selected, context.glyphs)
        self.show_lines([[Piece(" " * _MARGIN), *line] for line in lines])

    def _silhouette(self, graph: Graph) -> Silhouette:
        return graph.silhouette(self.columns - 2 * _MARGIN)

    def on_resize(self) -> None:
        """Spread the levels over another width."""
        if self._graph is not None:
            self.show_graph(self._graph)

    def on_click(self, event: events.Click) -> None:
        """Select a task of the level that was clicked."""
        graph = self._graph
        if graph is not None:
            board = graph.board
            needs_human = lambda name: board.row(name).state in NEEDS_HUMAN  # noqa: E731
            self._on_task(self._silhouette(graph).task_at(event.x - _MARGIN, needs_human))
