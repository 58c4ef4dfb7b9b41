"""What is drawn above the rows of the graph: all tasks, all groups, or what surrounds the selected task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from .components import is_chain
from .drawing import Drawing
from .task_drawings import LABEL_SIZES, LabelSize
from .view import Graph
from .zoom import GRAPH_MAX, Step, Zoom

DEPTH = 2  # edges from the selected task to what is drawn around it at least, unless the operator wants fewer
DEPTH_MAX = 9
_AROUND_ROWS_MIN = 9
_AROUND_SIZES = tuple(LabelSize(cells) for cells in (32, 26, 22, 18, 14))
_AROUND_SCREEN_ROWS = 26
_LIST_ROWS_MIN = 6
_OTHER_ROWS = 2  # the rule below the drawing, and the heading of the list
GROUP_ROWS = 2  # text rows of each group in the drawing


def fitting_depth(graph: Graph, columns: int, rows: int) -> int:
    """The edges around the selected task whose drawing fits: so many that more add nothing; at least DEPTH."""
    drawings, name = graph.drawings, graph.selected
    fitting, drawn_tasks = DEPTH, 0
    for depth in range(DEPTH, DEPTH_MAX + 1):
        drawing = drawings.around(name, depth) if drawings.may_fit_around(name, depth, columns, rows) else None
        if drawing is None or drawing.width >= columns or drawing.height > rows or len(drawing.dag) == drawn_tasks:
            break
        fitting, drawn_tasks = depth, len(drawing.dag)
    return fitting


class Overview(Enum):
    """What is drawn above the rows."""

    NOTHING = 0
    TASKS = 1
    GROUPS = 2
    AROUND = 3


def around_rows(rows: int) -> int:
    """Rows of the drawing around a task, of ``rows`` in all: the same for all tasks, so that the list does not move."""
    return max(_AROUND_ROWS_MIN, rows // 3 - 2)


def draw_around(graph: Graph, columns: int, rows: int, depth: int | None) -> None:
    """Draw what is ``depth`` edges around the selected task, else as much as fits, and its siblings if they fit too."""
    drawings, name = graph.drawings, graph.selected
    for size in _AROUND_SIZES:
        drawings.set_label_size(size)
        least = drawings.around(name, depth or DEPTH)
        if least is None or least.width < columns:
            break
    depth = depth or fitting_depth(graph, columns, rows)
    drawn = drawings.around(name, depth)
    has_room = drawn is not None and drawn.height <= rows * 2 // 3
    has_room = has_room and drawings.may_fit_around(name, depth, columns, rows, siblings=True)
    more = drawings.around(name, depth, siblings=True) if has_room else None
    drawings.set_depth(depth, siblings=more is not None and more.width < columns and more.height <= rows)


def _fits_whole(graph: Graph, columns: int, rows: int, sizes: Sequence[LabelSize]) -> bool:
    """Whether all tasks can be drawn; sets the first of these sizes of labels with which they can."""
    for size in sizes:
        graph.drawings.set_label_size(size)
        if graph.drawing.width < columns and graph.drawing.height <= rows:
            return True
    return False


def choose_overview(
    graph: Graph, drawn: Graph, groups: Callable[[], Drawing | None], columns: int, rows: int
) -> Overview:
    """Choose what to draw in ``columns`` cells above a list, ``rows`` rows in all. A chain is a list anyway.

    ``drawn``: the graph that is drawn above the rows of ``graph``.
    """
    dag = graph.dag
    if graph.step is Step.DRAWING or is_chain(dag) or not any(dag.child_numbers):
        return Overview.NOTHING
    room = rows - _OTHER_ROWS - _LIST_ROWS_MIN
    if len(dag) <= GRAPH_MAX:
        sizes = LABEL_SIZES if rows >= _AROUND_SCREEN_ROWS else LABEL_SIZES[:1]  # few rows need the names in full
        if _fits_whole(drawn, columns, room, sizes):
            return Overview.TASKS
    elif graph.zoom is Zoom.GROUPS:
        drawing = groups()
        if drawing is not None and drawing.width < columns and drawing.height * GROUP_ROWS <= room:
            return Overview.GROUPS
    return Overview.AROUND if rows >= _AROUND_SCREEN_ROWS else Overview.NOTHING
