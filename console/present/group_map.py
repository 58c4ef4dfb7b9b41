"""The drawing of the groups: each with its name, and below it a thin bar and counts."""

from __future__ import annotations

from ...engine.domain.states import NEEDS_HUMAN
from ..model.graph.drawing import Drawing, Segment
from ..model.graph.groups import GraphGroup
from ..model.graph.overview import GROUP_ROWS
from ..model.graph.view import Graph
from ..text.durations import number
from ..text.pieces import Line, Piece, Role, fit, width
from ..text.strokes import ACROSS
from ..text.text import cells
from . import counts
from .graph import group_title, segments_line, with_cut_marks
from .states import STATE_STYLES, state_sign
from .tasks import Scene

_TITLE_CELLS_MAX = 24
_BAR_CELLS_MIN = 3


def group_drawing(graph: Graph, scene: Scene) -> Drawing | None:
    """The layout of the groups; None if they cannot be drawn."""
    dag = graph.groups.dag
    return None if dag is None else Drawing(dag, [_label_cells(group, scene) for group in graph.groups.groups])


def _label_cells(group: GraphGroup, scene: Scene) -> int:
    title = 2 + cells(group_title(group, _TITLE_CELLS_MAX, scene))
    most = 2 * len(number(len(group.members))) + 1
    return title if group.is_single else max(title, _BAR_CELLS_MIN + 1 + most)


def group_map_row(graph: Graph, drawing: Drawing, y: int, x0: int, x1: int, scene: Scene) -> Line:
    """The cells from ``x0`` to before ``x1`` of text row ``y``."""
    row, is_second = divmod(y, GROUP_ROWS)
    segments = drawing.below(row, x0, x1) if is_second else drawing.segments(row, x0, x1)
    show = _facts if is_second else _title

    def label(run: Segment) -> Line:
        return show(graph, graph.groups.groups[run.task], run, scene)

    line = segments_line(segments, x0, x1, scene.glyphs, Role.RELATED, label)
    return line if is_second else with_cut_marks(line, drawing, row, x0, x1, scene.glyphs)


def _title(graph: Graph, group: GraphGroup, run: Segment, scene: Scene) -> Line:
    state = counts.leading_state(group.counts)
    is_selected = graph.selected is not None and graph.groups.group_of[graph.dag.number[graph.selected]] == group.index
    role = Role.CURSOR if is_selected else Role.STRONG if state in NEEDS_HUMAN else Role.TEXT
    if not is_selected and not any(group.counts[other] for other in counts.LIVELY):
        role = Role.DIM
    line = [
        Piece(state_sign(state, scene.glyphs), STATE_STYLES[state].role),
        Piece(" "),
        Piece(group_title(group, _TITLE_CELLS_MAX, scene), role),
    ]
    rest = run.width - width(line)
    if run.arms and rest > 1:
        line += [Piece(" "), Piece(scene.glyphs.lines[ACROSS] * (rest - 1), Role.RULE)]
    return fit(line, run.width, scene.glyphs.more)


def _facts(graph: Graph, group: GraphGroup, run: Segment, scene: Scene) -> Line:
    """Bar and counts: of the tasks that need a human, or of finished ones, and of all."""
    if group.is_single:
        return [Piece(" " * run.width)]
    facts = counts.progress(group.counts, scene.glyphs)
    if width(facts) + 1 + _BAR_CELLS_MIN > run.width:
        facts = [facts[0], facts[-1]]  # of several states the most severe
    bar = counts.bar(group.counts, scene.glyphs, max(run.width - 1 - width(facts), 1))
    return fit([*bar, Piece(" "), *facts], run.width, scene.glyphs.more)
