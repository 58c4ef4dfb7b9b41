"""The model of the graph screen: two zoom levels of one graph, with one selection for both.

From far to near: *groups* of tasks with similar names, and the *graph* itself, as a list or as a drawing.
Layouts depend on the edges alone and are cached at first use; a change of state only updates counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from ....engine.core.views import counted_state
from ....engine.domain.states import NEEDS_HUMAN
from ..board import Board, Delta
from .drawing import (
    LABEL_SIZES,
    SIGNS_ALONE,
    SPREAD_SIZES,
    TALL_SIZES,
    WHOLE_SCREEN_SIZES,
    Drawing,
    LabelSize,
    TaskDrawings,
    fits_whole,
    is_chain,
)
from .groups import GRAPH_MAX, Groups, ZoomStep, first_zoom, groups_of, has_map
from .rows import Silhouette, TaskRows


class Graph:
    """Zoom, selection and layouts of the graph of a run.

    ``label_width`` returns the cells of a task's text in the drawing, including its sign. ``zoom``: the initial one, if
    it does not depend on the size of the graph.
    """

    def __init__(self, board: Board, label_width: Callable[[str], int], zoom: ZoomStep | None = None) -> None:
        self.board = board
        self.dag = board.dag
        self._height = 24  # rows on the screen
        self.drawings = TaskDrawings(self.dag, label_width)
        self._groups: Groups | None = None
        self.zoom = zoom or (ZoomStep.GROUPS if has_map(board) else first_zoom(self.dag))
        self.selected: str | None = board.starting_task()
        self.on_group = False  # groups: the cursor is on the group's own row
        self.found: tuple[str, ...] | None = None  # with a filter: the tasks that are listed instead
        self.found_rows: dict[str, int] = {}
        self._rows: TaskRows | None = None
        self._silhouette: Silhouette | None = None

    @property
    def groups(self) -> Groups:
        """The tasks by group; made when first needed, because a large run has many names to compare."""
        if self._groups is None:
            self._groups = groups_of(self.board)
            self._groups.set_height(self._height)
            self._groups.set_problems(self.board.problems)
        return self._groups

    # --- Updates ---------------------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> bool:
        """Apply a change of the board. True if rows were added or removed."""
        if delta.is_graph_changed:
            return False  # this graph was made after the change
        for name, before, after in delta.moves:
            if self._groups is not None:
                self._groups.apply_move(name, before, after)
            if self._silhouette is not None:
                self._silhouette.apply_move(name, before, after)
        if self._groups is None:
            return delta.are_problems_changed and self.step is ZoomStep.GROUPS
        if delta.are_problems_changed:
            rows = self._groups.rows
            self._groups.set_problems(self.board.problems)
            return self.step is ZoomStep.GROUPS and self._groups.rows != rows
        return False

    def show_only(self, names: Iterable[str] | None) -> None:
        """List these tasks instead of the current zoom level; None: the zoom level again."""
        self.found = tuple(names) if names is not None else None
        self.found_rows = {name: row for row, name in enumerate(self.found or ())}
        if self.selected is not None:
            self.select(self.selected)

    @property
    def step(self) -> ZoomStep:
        """The step of the zoom that is shown."""
        return self.zoom if self.found is None else ZoomStep.FOUND

    @property
    def steps(self) -> Sequence[ZoomStep]:
        """The steps that the operator can choose; a drawing only of a graph that is laid out in little time."""
        least = (ZoomStep.GROUPS, ZoomStep.ROWS)
        return (*least, ZoomStep.DRAWING) if fits_whole(self.dag) else least

    @property
    def is_drawing(self) -> bool:
        """Whether tasks are drawn; else each row of the step stands for itself, and the cursor is a row."""
        return self.step is ZoomStep.DRAWING

    @property
    def lists_tasks(self) -> bool:
        """Whether each row is one task."""
        return self.step in (ZoomStep.ROWS, ZoomStep.FOUND)

    def task_at_row(self, row: int) -> str:
        """Return the task of a row, where rows are tasks."""
        return self.found[row] if self.found is not None else self.rows.name_at(row)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the viewport."""
        self._height = height
        if self._groups is not None:
            self._groups.set_height(height)
        self.drawings.set_ribbon_columns(width - 2 if is_chain(self.dag) else 0)

    # --- Layouts, cached at first use ----------------------------------------------------------------------------

    @property
    def rows(self) -> TaskRows:
        """A row per task."""
        if self._rows is None:
            self._rows = TaskRows(self.dag)
        return self._rows

    @property
    def drawing(self) -> Drawing:
        """The drawing from left to right."""
        return self.drawings.current

    def silhouette(self, columns: int) -> Silhouette:
        """The tasks by level, over ``columns`` cells."""
        if self._silhouette is None or self._silhouette.size != columns:
            states = {name: counted_state(row) for name, row in self.board.projection.tasks.items()}
            self._silhouette = Silhouette(self.dag, columns, states)
        return self._silhouette

    # --- Rows and selection ------------------------------------------------------------------------------------------

    @property
    def height(self) -> int:
        """The number of rows of the current step."""
        if self.step is ZoomStep.GROUPS:
            return len(self.groups.rows)
        if self.is_drawing:
            return self.drawing.height * self.drawings.label_size.rows
        return self.rows.height if self.found is None else len(self.found)

    @property
    def cursor_row(self) -> int:
        """The row of the selection; -1 if it has none."""
        group = self.selected_group
        if group is not None:
            return self.groups.row_of_group(group)
        return self.row_of(self.selected) if self.selected is not None else 0

    def row_of(self, name: str) -> int:
        """Return the row of a task in the current zoom level; -1 if a filter hides it."""
        if self.step is ZoomStep.GROUPS:
            return self.groups.row_of(name)
        if self.is_drawing:
            return self.drawing.place(name)[1] * self.drawings.label_size.rows
        return self.rows.row_of(name) if self.found is None else self.found_rows.get(name, -1)

    def _task_at(self, x: int, y: int) -> str | None:
        if self.is_drawing:
            return self.drawing.at(x, y // self.drawings.label_size.rows)
        if not 0 <= y < self.height:
            return None
        return self.groups.task_for(y) if self.step is ZoomStep.GROUPS else self.task_at_row(y)

    def select_at(self, x: int, y: int) -> bool:
        """Select the task at a cell. False if there is none."""
        found = self._task_at(x, y)
        if found is None:
            return False
        if self.step is ZoomStep.GROUPS and self.groups.rows[y].hidden:
            self.groups.toggle(self.groups.rows[y].group)
            self.select(found)
            return True
        self.on_group = self.step is ZoomStep.GROUPS and self.groups.rows[y].task is None
        self.selected = found
        return True

    def select(self, name: str) -> None:
        """Select a task by name. Raises KeyError for an unknown one."""
        _ = self.dag.number[name]
        self.selected = name
        self.on_group = self.step is ZoomStep.GROUPS and self.groups.rows[self.groups.row_of(name)].task is None

    @property
    def selected_group(self) -> int | None:
        """The group under the cursor, or None."""
        if self.step is not ZoomStep.GROUPS or not self.on_group or self.selected is None:
            return None
        return self.groups.group_of[self.dag.number[self.selected]]

    @property
    def is_on_many(self) -> bool:
        """Whether the row under the cursor stands for several tasks: a group."""
        return self.selected_group is not None

    @property
    def tasks_at_cursor(self) -> tuple[str, ...]:
        """The tasks of the row under the cursor: one, or all of a group."""
        if self.selected is None:
            return ()
        group = self.selected_group
        return (self.selected,) if group is None else self.dag.names_of(self.groups.groups[group].members)

    def is_at_cursor(self, name: str) -> bool:
        """Whether a task is one of ``tasks_at_cursor``."""
        group = self.selected_group
        return name == self.selected if group is None else self.groups.group_of[self.dag.number[name]] == group

    # --- Moving ----------------------------------------------------------------------------------------------------

    def zoom_by(self, step: int) -> bool:
        """Zoom in (1) or out (-1) and keep the selection. False at the last step."""
        place = self.steps.index(self.zoom) + step
        if not 0 <= place < len(self.steps):
            return False
        self.zoom = self.steps[place]
        if self.selected is not None:
            self.select(self.selected)
        return True

    def move(self, dx: int, dy: int) -> bool:
        """Move the cursor; in views without columns, sideways to a parent or child. False if it did not move."""
        if self.selected is None:
            return False
        before = self.selected, self.on_group
        if self.step is ZoomStep.GROUPS:
            _move_in_groups(self, dx, dy)
        elif self.is_drawing:
            _move_in_drawing(self, dx, dy)
        elif dy:
            self.select_row(self.cursor_row + dy)
        else:
            self.to_relative(dx)
        return before != (self.selected, self.on_group)

    def toggle(self) -> bool:
        """Expand or collapse the group under the cursor. False if there is none."""
        if self.step is not ZoomStep.GROUPS or self.selected is None:
            return False
        index = self.groups.group_of[self.dag.number[self.selected]]
        if self.groups.groups[index].is_single:
            return False
        self.groups.toggle(index)
        self.select_row(self.groups.row_of_group(index))
        return True

    def to_problem(self, step: int = 1) -> bool:
        """Select the next task that needs a human. False if there is none."""
        found = self.board.next_problem(self.selected, step)
        if found is None:
            return False
        if self.step is ZoomStep.GROUPS:
            self._reveal_in_groups(found)
        self.select(found)
        return True

    def _reveal_in_groups(self, name: str) -> None:
        """Expand the group of a task that it does not list."""
        index = self.groups.group_of[self.dag.number[name]]
        if self.groups.rows[self.groups.row_of(name)].task is None and not self.groups.is_open(index):
            self.groups.toggle(index)

    def select_row(self, row: int) -> None:
        """Put the cursor on a row of the current zoom level, or on the nearest one."""
        if self.height:
            row = min(max(row, 0), self.height - 1)
            if not (self.step is ZoomStep.GROUPS and self.groups.rows[row].hidden):
                self.select_at(0, row)

    def to_relative(self, step: int) -> bool:
        """Select the first parent (-1) or child (1), preferably one that needs a human. False if there is none."""
        if self.selected is None:
            return False
        names = self.dag.parents(self.selected) if step < 0 else self.dag.children(self.selected)
        if not names:
            return False
        self.select(next((name for name in names if self.board.row(name).state in NEEDS_HUMAN), names[0]))
        return True


def _move_in_groups(graph: Graph, dx: int, dy: int) -> None:
    """Move up and down by rows; right expands a group; left collapses it, or moves up to it."""
    row = graph.cursor_row
    if dy:
        graph.select_row(_skip_hidden_rows(graph.groups, row + dy, 1 if dy > 0 else -1))
    elif not graph.on_group and dx < 0:
        graph.select_row(graph.groups.row_of_group(graph.groups.group_at(row)))
    elif graph.on_group and graph.groups.is_open(graph.groups.group_at(row)) != (dx > 0):
        graph.toggle()


def _skip_hidden_rows(groups: Groups, row: int, step: int) -> int:
    """Skip rows that only count hidden tasks, except for the last row."""
    rows = groups.rows
    while 0 <= row < len(rows) - 1 and rows[row].hidden:
        row += step
    return row


def _move_in_drawing(graph: Graph, dx: int, dy: int) -> None:
    """Move up and down within the column; sideways along a line, to the neighbour in the nearest row."""
    assert graph.selected is not None
    if dx:
        _move_along_line(graph, dx)
        return
    column = graph.drawing.column_of(graph.selected)
    index = column.index(graph.selected) + dy
    graph.selected = column[min(max(index, 0), len(column) - 1)]


def _move_along_line(graph: Graph, dx: int) -> None:
    assert graph.selected is not None
    drawing = graph.drawing
    names = drawing.dag.parents(graph.selected) if dx < 0 else drawing.dag.children(graph.selected)
    if names:
        _, y, _ = drawing.place(graph.selected)
        graph.selected = min(names, key=lambda name: abs(drawing.place(name)[1] - y))


# --- What is drawn above the rows of the graph: all tasks, or the part in view; all groups; the silhouette -----------


_PART_ROWS_MIN = 9
_PART_SCREEN_ROWS = 26
_TEXT_ROWS_MAX = 4  # of each task
_LIST_ROWS_MIN = 6
_CHAIN_ROWS_MIN = 4  # of the list below a chain, which says little more than the drawing
_SHORT_CHAIN = 12  # tasks
_SILHOUETTE_ROWS_MIN = 6
_BELOW_GROUPS_MAX = 16
_LEVELS_MIN = 16  # fewer look like the groups above
_OTHER_ROWS = 2  # the rule below the drawing, and the heading of the list
GROUP_ROWS = 2  # text rows of each group in the drawing


class Overview(Enum):
    """The drawing above the rows. BESIDE: all tasks, above the list alone, so that details are beside both;
    PART: of the same drawing what is near the selected task, where it has no room."""

    NOTHING = 0
    TASKS = 1
    BESIDE = 2
    GROUPS = 3
    PART = 4
    SILHOUETTE = 5


def part_rows(rows: int) -> int:
    """Rows for a part of the drawing, of ``rows`` in all."""
    return max(_PART_ROWS_MIN, rows // 3 - 2)


def silhouette_rows(rows: int, listed: int | None = None) -> int:
    """Rows of the silhouette, of ``rows`` in all; the same as for a part of a drawing.

    ``listed``: rows of the list, which leaves the others to the silhouette; None above a list that has more.
    """
    least = part_rows(rows) if rows >= _PART_SCREEN_ROWS else _SILHOUETTE_ROWS_MIN
    return least if listed is None else max(min(rows - _OTHER_ROWS - listed, rows // 2), least)


def draw_part(graph: Graph, rows: int) -> None:
    """Draw with names of a width that leaves room for neighbours, and with facts where they fit below the names."""
    size = LABEL_SIZES[1]
    graph.drawings.set_label_size(size)
    text_rows = min(rows // max(graph.drawing.height, 1), _TEXT_ROWS_MAX)
    if text_rows > 1:
        graph.drawings.set_label_size(size._replace(rows=text_rows, fact_cells=size.name_cells))


def fits(graph: Graph, columns: int, rows: int, sizes: Sequence[LabelSize]) -> bool:
    """Whether what is drawn fits; sets the first of these sizes of labels with which it does."""
    chain = is_chain(graph.dag)
    graph.drawings.set_ribbon_columns(columns - 2 if chain else 0)
    lines = _lines_of_chain(graph) if chain and len(graph.dag) <= _SHORT_CHAIN else rows
    for size in sizes:
        graph.drawings.set_label_size(size)
        height = graph.drawing.height
        if graph.drawing.width < columns and height * size.rows <= rows and height <= lines:
            if not chain:
                graph.drawings.widen(columns)
            return True
    return False


def fits_screen(graph: Graph, columns: int, rows: int) -> bool:
    """Whether a small graph can be drawn as a whole; with names as short as that needs, else with whole ones."""
    if len(graph.dag) <= GRAPH_MAX and fits(graph, columns, rows, WHOLE_SCREEN_SIZES):
        return True
    graph.drawings.set_label_size(LABEL_SIZES[0])
    return False


def _lines_of_chain(graph: Graph) -> int:
    """The fewest lines on which a chain lies with its names: what goes on below is harder to read than a short name."""
    lines = 1
    for size in LABEL_SIZES:
        graph.drawings.set_label_size(size)
        lines = graph.drawing.height
    return lines


class OverviewRoom(NamedTuple):
    """The room for a drawing and the list below it: cells of the screen and of the list alone, and rows of both."""

    columns: int
    list_columns: int
    rows: int

    @property
    def most_rows(self) -> int:
        """Rows of a drawing that leaves some for the list."""
        return self.rows - _OTHER_ROWS - _LIST_ROWS_MIN


def choose_overview(
    graph: Graph, drawn: Graph, groups: Callable[[int], Drawing | None], room: OverviewRoom
) -> Overview:
    """Choose what to draw above a list.

    ``drawn``: the graph that is drawn above the rows of ``graph``. ``groups``: the drawing of the groups, of at most so
    many cells.
    """
    dag = graph.dag
    if graph.is_drawing or not any(dag.child_numbers):
        return Overview.NOTHING
    if (len(dag) <= GRAPH_MAX and not (graph.zoom is ZoomStep.GROUPS and has_map(graph.board))) or is_chain(dag):
        found = _choose_for_tasks(drawn, room)
        if found is not Overview.NOTHING or is_chain(dag):
            return found
    if graph.zoom is ZoomStep.GROUPS:
        drawing = groups(room.columns)
        if drawing is not None and drawing.width < room.columns and drawing.height * GROUP_ROWS <= room.most_rows:
            return Overview.GROUPS
        return Overview.SILHOUETTE if room.most_rows >= _SILHOUETTE_ROWS_MIN else Overview.NOTHING
    if room.rows < _PART_SCREEN_ROWS:
        return Overview.NOTHING
    return Overview.PART if len(dag) <= GRAPH_MAX else Overview.SILHOUETTE


def _choose_for_tasks(drawn: Graph, room: OverviewRoom) -> Overview:
    """Choose a drawing of all tasks: with facts if the list keeps its rows, else beside the details, or as it fits."""
    free = min(room.most_rows, room.rows - _OTHER_ROWS - len(drawn.dag))
    is_wide = room.list_columns < room.columns
    if is_wide and fits(drawn, room.list_columns, free, (*SPREAD_SIZES, *TALL_SIZES)):
        return Overview.BESIDE
    if fits(drawn, room.columns, free, TALL_SIZES):
        return Overview.TASKS
    if is_wide and fits(drawn, room.list_columns, free, LABEL_SIZES[:1]):
        return Overview.BESIDE
    rows, sizes = room.most_rows, LABEL_SIZES
    if is_chain(drawn.dag):
        rows, sizes = room.rows - _OTHER_ROWS - _CHAIN_ROWS_MIN, (*LABEL_SIZES, SIGNS_ALONE)
    return Overview.TASKS if fits(drawn, room.columns, rows, sizes) else Overview.NOTHING


def rows_below_groups(graph: Graph, drawing: Drawing, rows: int) -> int:
    """Rows for a silhouette below the drawing of the groups, of ``rows`` in all: those that the list leaves empty."""
    spare = rows - _OTHER_ROWS - GROUP_ROWS * drawing.height - graph.groups.least_rows
    return min(spare, _BELOW_GROUPS_MAX) if spare >= _PART_ROWS_MIN and graph.dag.depth >= _LEVELS_MIN else 0
