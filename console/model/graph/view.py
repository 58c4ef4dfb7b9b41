"""The graph screen without a screen: four steps of zoom over one graph, one selection that survives all of them.

From afar to near: *bands* of levels, *groups* of one family, a *matrix* of one sign per task, and the *graph* itself,
as rails beside a table or, where there is room, as a drawing. Layouts depend on the edges alone, are made when first
looked at, and stay; a change of state only moves a count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from ....engine.core.dag import Dag
from ....engine.domain.states import NEEDS_HUMAN, UNDER_WAY, TaskState
from ..board import Board, Delta
from .components import PART_MAX, around, fits_whole, leading_to
from .drawing import Drawing
from .groups import Groups, TaskGroup
from .matrix import Bands, Matrix
from .rails import Rails

GRAPH_MAX = 60  # tasks that are shown one by one without being asked
GROUPS_MAX = 120  # rows of groups that are still a list to read
MATRIX_MAX = 2_000


class Zoom(IntEnum):
    """From afar to near."""

    BANDS = 0
    GROUPS = 1
    MATRIX = 2
    GRAPH = 3


class GraphForm(IntEnum):
    """How the nearest step looks."""

    RAILS = 0
    DRAWING = 1


class GraphOrder(StrEnum):
    """What comes first, as far as the flow leaves a choice."""

    FLOW = "as the flow goes"
    PROBLEMS = "trouble first"  # as of the moment when it was asked for: nothing moves under the cursor


@dataclass(frozen=True, slots=True)
class Viewport:
    """Cells that the graph has on the screen."""

    width: int = 80
    height: int = 24


def first_zoom(dag: Dag, group_rows: int) -> Zoom:
    """Where to begin: near for small graphs, by groups where families make the rest small, from afar otherwise."""
    if len(dag) <= GRAPH_MAX:
        return Zoom.GRAPH
    if group_rows <= GROUPS_MAX:
        return Zoom.GROUPS
    return Zoom.MATRIX if len(dag) <= MATRIX_MAX else Zoom.BANDS


class Graph:
    """Zoom, selection and layouts of one run's graph.

    ``label_width`` answers with the cells that a task's text takes in the drawing, its sign included.
    """

    def __init__(self, board: Board, label_width: Callable[[str], int], viewport: Viewport | None = None) -> None:
        self.board = board
        self.dag = board.dag
        self.viewport = viewport or Viewport()
        self._label_width = label_width
        self.groups = Groups(self.dag, _states_of(board))
        self.groups.set_problems(board.problems)
        self.zoom = first_zoom(self.dag, len(self.groups.groups))
        self.form = GraphForm.RAILS
        self.order = GraphOrder.FLOW
        self._trouble: list[int] | None = None  # of each task: 0 for those that lead to what needs a human
        self.selected: str | None = board.next_problem(None) or next(iter(self.dag.order), None)
        self.on_group = False  # groups: the cursor is on the group's own row
        self._rails: Rails | None = None
        self._drawing: Drawing | None = None
        self._drawn_around: str | None = None
        self._matrix: Matrix | None = None
        self._bands: Bands | None = None

    # --- Told ------------------------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> bool:
        """Take what the board answered. True: rows came or went, and everything below them moved."""
        for name, before, after in delta.moves:
            self.groups.apply_move(name, before, after)
            if self._bands is not None:
                self._bands.apply_move(name, before, after)
        if delta.are_problems_changed:
            rows = self.groups.rows
            self.groups.set_problems(self.board.problems)
            return self.zoom is Zoom.GROUPS and self.groups.rows != rows
        return False

    @property
    def is_ordered(self) -> bool:
        """Whether the current step can be put in another order: bands and the drawing follow the levels."""
        return self.zoom in (Zoom.GROUPS, Zoom.MATRIX) or (self.zoom is Zoom.GRAPH and self.form is GraphForm.RAILS)

    def order_by(self, order: GraphOrder) -> None:
        """Put every list in another order."""
        self.order = order
        self._trouble = leading_to(self.dag, self.board.problems) if order is GraphOrder.PROBLEMS else None
        self.groups.order_by(_trouble_of if order is GraphOrder.PROBLEMS else None)
        self._rails = self._matrix = None

    def resize(self, width: int, height: int) -> None:
        """The room on the screen changed."""
        if (width, height) != (self.viewport.width, self.viewport.height):
            self.viewport = Viewport(width, height)
            self._matrix = None
            self._bands = None

    # --- Layouts, made when looked at ------------------------------------------------------------------------------

    @property
    def rails(self) -> Rails:
        """One row per task."""
        if self._rails is None:
            self._rails = Rails(self.dag, self._trouble)
        return self._rails

    @property
    def drawing(self) -> Drawing:
        """Left to right. Of a graph that is too large, the tasks around one that was selected."""
        if self._drawing is None or not self._is_drawn_whole(self._drawing.dag):
            drawn = around(self.dag, self.selected, len(self.dag) if fits_whole(self.dag) else PART_MAX)
            self._drawing = Drawing(drawn, [self._label_width(name) for name in drawn.names])
            self._drawn_around = self.selected
        return self._drawing

    @property
    def drawn_around(self) -> str | None:
        """The task whose surroundings are drawn; None where the drawing is of the whole graph."""
        return None if len(self.drawing.dag) == len(self.dag) else self._drawn_around

    def _is_drawn_whole(self, drawn: Dag) -> bool:
        """Whether the selected task is drawn with all of its parents and children, as far as that can be."""
        name = self.selected
        if len(drawn) == len(self.dag) or name is None or name == self._drawn_around:
            return True
        if name not in drawn:
            return False
        shown = len(drawn.parents(name)) + len(drawn.children(name))
        return shown == len(self.dag.parents(name)) + len(self.dag.children(name))

    @property
    def matrix(self) -> Matrix:
        """One sign per task."""
        if self._matrix is None:
            self._matrix = Matrix(self.dag, max(self.viewport.width - MATRIX_MARGIN, 8), self._trouble)
        return self._matrix

    @property
    def bands(self) -> Bands:
        """One bar per band of levels."""
        if self._bands is None:
            self._bands = Bands(self.dag, self.viewport.height, _states_of(self.board))
        return self._bands

    # --- What is shown ---------------------------------------------------------------------------------------------

    @property
    def height(self) -> int:
        """Rows of the current step."""
        return self._current.height(self)

    @property
    def cursor_row(self) -> int:
        """The row of the selection."""
        return self._current.row_of(self, self.selected) if self.selected is not None else 0

    def select_at(self, x: int, y: int) -> bool:
        """Select what stands in a cell. False: nothing does."""
        found = self._current.at(self, x, y)
        if found is None:
            return False
        if self.zoom is Zoom.GROUPS and self.groups.rows[y].hidden:
            self.groups.toggle(self.groups.rows[y].group)
            self.select(found)
            return True
        self.on_group = self.zoom is Zoom.GROUPS and self.groups.rows[y].task is None
        self.selected = found
        return True

    def select(self, name: str) -> None:
        """Select a task by name. Raises KeyError for an unknown one."""
        _ = self.dag.number[name]
        self.selected = name
        self.on_group = self.zoom is Zoom.GROUPS and self.groups.rows[self.groups.row_of(name)].task is None

    @property
    def selected_group(self) -> int | None:
        """The group that the cursor is on, if it is on a group."""
        if self.zoom is not Zoom.GROUPS or not self.on_group or self.selected is None:
            return None
        return self.groups.group_of[self.dag.number[self.selected]]

    # --- Moving ----------------------------------------------------------------------------------------------------

    def zoom_by(self, step: int) -> bool:
        """Nearer (1) or farther (-1). False: there is no such step. The selection stays."""
        wanted = self.zoom + step
        if wanted not in list(Zoom):
            return False
        self.zoom = Zoom(wanted)
        if self.selected is not None:
            self.select(self.selected)
        return True

    def move(self, dx: int, dy: int) -> bool:
        """Move the cursor; sideways means to a parent or a child where rows have no columns. False: no way there."""
        if self.selected is None:
            return False
        before = self.selected, self.on_group
        self._current.move(self, dx, dy)
        return before != (self.selected, self.on_group)

    def toggle(self) -> bool:
        """Open or close the group under the cursor, or go into the band or the matrix. False: nothing to open."""
        if self.zoom in (Zoom.BANDS, Zoom.MATRIX):
            return self.zoom_by(1)
        if self.zoom is not Zoom.GROUPS or self.selected is None:
            return False
        index = self.groups.group_of[self.dag.number[self.selected]]
        if self.groups.groups[index].is_single:
            return False
        self.groups.toggle(index)
        self.select_row(self.groups.row_of_group(index))
        return True

    def to_problem(self, step: int = 1) -> bool:
        """To the next task that needs a human. False: there is none."""
        found = self.board.next_problem(self.selected, step)
        if found is None:
            return False
        if self.zoom is Zoom.GROUPS:
            self._show_in_groups(found)
        self.select(found)
        return True

    def _show_in_groups(self, name: str) -> None:
        """A problem that its group does not list is looked for by opening it."""
        index = self.groups.group_of[self.dag.number[name]]
        if self.groups.rows[self.groups.row_of(name)].task is None and not self.groups.is_open(index):
            self.groups.toggle(index)

    def select_row(self, row: int) -> None:
        """Put the cursor on a row of the current step, or on the nearest one."""
        if self.height:
            row = min(max(row, 0), self.height - 1)
            if not (self.zoom is Zoom.GROUPS and self.groups.rows[row].hidden):
                self.select_at(0, row)

    def to_relative(self, step: int) -> bool:
        """To the first parent (-1) or child (1), or the one that needs a human. False: there is none."""
        if self.selected is None:
            return False
        names = self.dag.parents(self.selected) if step < 0 else self.dag.children(self.selected)
        if not names:
            return False
        self.select(next((name for name in names if self.board.row(name).state in NEEDS_HUMAN), names[0]))
        return True

    @property
    def _current(self) -> _Step:
        return _STEPS[self.zoom, self.form if self.zoom is Zoom.GRAPH else GraphForm.RAILS]


MATRIX_MARGIN = 26  # cells beside the signs: the level, and its counts


@dataclass(frozen=True, slots=True)
class _Step:
    """What differs between the steps: how high, where a task is, what stands in a cell, where the cursor goes."""

    height: Callable[[Graph], int]
    row_of: Callable[[Graph, str], int]
    at: Callable[[Graph, int, int], str | None]
    move: Callable[[Graph, int, int], None]


def _row_name(graph: Graph, y: int) -> str | None:
    return graph.rails.name_at(y) if 0 <= y < graph.rails.height else None


def _group_name(graph: Graph, y: int) -> str | None:
    return graph.groups.task_for(y) if 0 <= y < len(graph.groups.rows) else None


def _band_name(graph: Graph, y: int) -> str | None:
    if not 0 <= y < len(graph.bands.bands):
        return None
    return graph.bands.task_for(y, lambda name: graph.board.row(name).state in NEEDS_HUMAN)


def _move_by_rows(graph: Graph, dx: int, dy: int) -> None:
    if dy:
        graph.select_row(graph.cursor_row + dy)
    else:
        graph.to_relative(dx)


def _move_in_groups(graph: Graph, dx: int, dy: int) -> None:
    """Up and down by rows; right opens a group; left closes it, or goes up to it."""
    row = graph.cursor_row
    if dy:
        graph.select_row(_past_counts(graph.groups, row + dy, 1 if dy > 0 else -1))
    elif not graph.on_group and dx < 0:
        graph.select_row(graph.groups.row_of_group(graph.groups.group_at(row)))
    elif graph.on_group and graph.groups.is_open(graph.groups.group_at(row)) != (dx > 0):
        graph.toggle()


def _past_counts(groups: Groups, row: int, step: int) -> int:
    """The cursor does not stay on a row that only says how many more there are, unless it is the last one."""
    rows = groups.rows
    while 0 <= row < len(rows) - 1 and rows[row].hidden:
        row += step
    return row


def _move_in_matrix(graph: Graph, dx: int, dy: int) -> None:
    assert graph.selected is not None
    graph.selected = graph.matrix.step(graph.selected, dx, dy)


def _move_in_drawing(graph: Graph, dx: int, dy: int) -> None:
    """Up and down within the column; sideways along a line, to the neighbour in the nearest row."""
    assert graph.selected is not None
    if dx:
        _follow_line(graph, dx)
        return
    column = graph.drawing.column_of(graph.selected)
    index = column.index(graph.selected) + dy
    graph.selected = column[min(max(index, 0), len(column) - 1)]


def _follow_line(graph: Graph, dx: int) -> None:
    assert graph.selected is not None
    drawing = graph.drawing
    names = drawing.dag.parents(graph.selected) if dx < 0 else drawing.dag.children(graph.selected)
    if names:
        _, y, _ = drawing.place(graph.selected)
        graph.selected = min(names, key=lambda name: abs(drawing.place(name)[1] - y))


_STEPS: dict[tuple[Zoom, GraphForm], _Step] = {
    (Zoom.BANDS, GraphForm.RAILS): _Step(
        lambda graph: len(graph.bands.bands),
        lambda graph, name: graph.bands.row_of(name),
        lambda graph, x, y: _band_name(graph, y),
        _move_by_rows,
    ),
    (Zoom.GROUPS, GraphForm.RAILS): _Step(
        lambda graph: len(graph.groups.rows),
        lambda graph, name: _cursor_in_groups(graph, name),
        lambda graph, x, y: _group_name(graph, y),
        _move_in_groups,
    ),
    (Zoom.MATRIX, GraphForm.RAILS): _Step(
        lambda graph: len(graph.matrix.rows),
        lambda graph, name: graph.matrix.place(name)[1],
        lambda graph, x, y: graph.matrix.at(x, y),
        _move_in_matrix,
    ),
    (Zoom.GRAPH, GraphForm.RAILS): _Step(
        lambda graph: graph.rails.height,
        lambda graph, name: graph.rails.row_of(name),
        lambda graph, x, y: _row_name(graph, y),
        _move_by_rows,
    ),
    (Zoom.GRAPH, GraphForm.DRAWING): _Step(
        lambda graph: graph.drawing.height,
        lambda graph, name: graph.drawing.place(name)[1],
        lambda graph, x, y: graph.drawing.at(x, y),
        _move_in_drawing,
    ),
}


def _cursor_in_groups(graph: Graph, name: str) -> int:
    if graph.on_group:
        return graph.groups.row_of_group(graph.groups.group_of[graph.dag.number[name]])
    return graph.groups.row_of(name)


def _trouble_of(group: TaskGroup) -> tuple[int, int, int]:
    """What needs a human first, then what is being worked on, then the rest; each as the flow goes."""
    counts = group.counts
    dead = sum(counts[state] for state in NEEDS_HUMAN)
    busy = any(counts[state] for state in UNDER_WAY)
    return -dead, not busy, group.index


def _states_of(board: Board) -> dict[str, TaskState]:
    return {name: row.state for name, row in board.fold.tasks.items()}
