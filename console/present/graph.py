"""A row of the graph at each zoom step, as pieces: rails with facts, groups, signs, bands, or the drawing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import groupby

from ...engine.domain.states import TIMED, TaskState
from ..model.graph.drawing import EdgeHighlight
from ..model.graph.rails import RailHighlight, RailRow
from ..model.graph.view import MATRIX_MARGIN, Graph, GraphForm, Zoom
from ..text.durations import clock, number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, crop, fit, width
from ..text.text import cells, one_line, pad, pad_left, shorten_middle
from . import counts
from .states import STATE_STYLES, state_sign
from .tasks import ATTEMPT_CELLS, Scene, attempt_of, attempts_text, state_facts

LEVEL_CELLS = 5  # the column of levels left of the matrix
_FACTS_CELLS_MIN = 38
_TRIES_FROM = 56  # columns: narrower rows leave out the attempts
_BARS_FROM = 47  # cells for facts: narrower rows leave out bars
_NAME_CELLS = (12, 36)
_RAILS_MAX = 8  # more are hard to follow
_GROUP_BAR_CELLS = 12
_BAND_BAR_CELLS = 40
_CLOCK_CELLS = 6
LABEL_CELLS_MAX = 32


@dataclass(slots=True)
class Highlight:
    """What is highlighted: sets of tasks; ``rails`` and ``lines`` are the edges between them."""

    related: Collection[str] = ()
    critical: Collection[str] = ()
    marked: Collection[str] = ()
    matched: Collection[str] = ()
    rails: RailHighlight = field(default_factory=RailHighlight)
    lines: EdgeHighlight = field(default_factory=EdgeHighlight)
    line_role: Role = Role.RELATED


def label_width(name: str) -> int:
    """Width of a task in the drawing: sign, name and clock."""
    return 2 + min(cells(one_line(name)), LABEL_CELLS_MAX) + _CLOCK_CELLS


def graph_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    """Row ``y`` of the current zoom step, for steps that are lists."""
    return _ROWS[graph.zoom](graph, y, size, scene, lit)


# --- Rails ---------------------------------------------------------------------------------------------------------


def _rails_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    rails = graph.rails
    name = rails.name_at(y)
    limit = _rails_limit(size, scene)
    row = rails.line(y, limit, lit.rails)
    size_of_rails = len(row.cells)
    line: Line = [_mark(name, scene, lit), *_strokes(row, 0, min(row.at, size_of_rails), scene, lit)]
    line += [Piece(" " * (row.at - size_of_rails)), _sign(name, scene)]
    line += _strokes(row, row.at + 1, size_of_rails, scene, lit)
    if row.elided:
        line.append(Piece(scene.glyphs.elided, Role.DIM))
    return [
        *line,
        Piece(" "),
        *_task_facts(name, size, width(line) + 1, _left_cells(graph, size, scene), scene, lit),
    ]


def _strokes(row: RailRow, first: int, end: int, scene: Scene, lit: Highlight) -> Line:
    """The rails in these cells; equal neighbours are one piece."""
    signs = scene.glyphs.lines
    return [
        Piece("".join([signs[row.cells[x]] for x in cells]), lit.line_role if is_lit else Role.RULE)
        for is_lit, cells in groupby(range(first, end), row.lit.__contains__)
    ]


def _rails_limit(size: int, scene: Scene) -> int:
    """Number of columns of rails that names and facts leave room for."""
    return min(max((size - _FACTS_CELLS_MIN - ATTEMPT_CELLS - 2 - _name_room(scene)) // 2, 2), _RAILS_MAX)


def _name_room(scene: Scene) -> int:
    low, high = _NAME_CELLS
    return min(max(scene.name_cells, low), high)


def _left_cells(graph: Graph, size: int, scene: Scene) -> int:
    """The column where facts begin, the same in every row."""
    rails = 2 * min(graph.rails.columns, _rails_limit(size, scene) + 1)
    return rails + min(_name_room(scene) + 2, max(size - rails - _FACTS_CELLS_MIN - ATTEMPT_CELLS, _NAME_CELLS[0]))


def _task_facts(name: str, size: int, at: int, facts_at: int, scene: Scene, lit: Highlight) -> Line:
    row = scene.board.row(name)
    room = max(facts_at - at, 6)
    shown = shorten_middle(one_line(name), room, scene.glyphs.more)
    tried = Piece(f"{pad_left(attempts_text(row), ATTEMPT_CELLS)}  " if size >= _TRIES_FROM else " ", Role.DIM)
    line = [
        Piece(shown, _name_role(name, row.state, lit)),
        Piece(" " * (room - cells(shown))),
        tried,
        *state_facts(row, scene, bars=size - facts_at - ATTEMPT_CELLS - 2 >= _BARS_FROM),
    ]
    return fit(line, max(size - at, 0), scene.glyphs.more)


def _name_role(name: str, state: TaskState, lit: Highlight) -> Role:
    if name in lit.matched:
        return Role.MATCH
    if name in lit.critical:
        return Role.CRITICAL
    if name in lit.related:
        return Role.RELATED
    return Role.PENDING if state is TaskState.PENDING else Role.TEXT


def _sign(name: str, scene: Scene) -> Piece:
    state = scene.board.row(name).state
    return Piece(state_sign(state, scene.glyphs), STATE_STYLES[state].role)


def _mark(name: str, scene: Scene, lit: Highlight) -> Piece:
    return Piece(scene.glyphs.mark, Role.MARK) if name in lit.marked else Piece(" ")


# --- Groups --------------------------------------------------------------------------------------------------------


def _group_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    groups, row = graph.groups, graph.groups.rows[y]
    group = groups.groups[row.group]
    glyphs = scene.glyphs
    if row.hidden:
        return [Piece(f"      {glyphs.more} {number(row.hidden)} more (Enter)", Role.DIM)]
    if row.task is not None:
        name = graph.dag.names[row.task]
        indent = "" if group.is_single else "  "
        lead = [_mark(name, scene, lit), Piece(f"  {indent}"), _sign(name, scene), Piece(" ")]
        return [*lead, *_task_facts(name, size, width(lead), _title_cells(scene, size) + 5, scene, lit)]
    is_open = groups.is_open(row.group) or groups.shows_problems(row.group)
    title = shorten_middle(one_line(group.title), _title_cells(scene, size), glyphs.more)
    return [
        Piece(f" {glyphs.open if is_open else glyphs.closed} ", Role.DIM),
        Piece(pad(title, _title_cells(scene, size)), Role.TEXT),
        Piece(f" {number(len(group.members)):>6}  ", Role.DIM),
        *counts.bar(group.counts, glyphs, _GROUP_BAR_CELLS),
        Piece(" "),
        *counts.counts_line(group.counts, glyphs, without=(TaskState.PENDING,)),
    ]


def _title_cells(scene: Scene, size: int) -> int:
    low, high = _NAME_CELLS
    return max(min(scene.name_cells, high, size - 50), low)


# --- Signs and bands -----------------------------------------------------------------------------------------------


def _matrix_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    matrix, glyphs = graph.matrix, scene.glyphs
    row = matrix.rows[y]
    line: Line = [Piece(pad(f" L{row.level}" if row.first else "", LEVEL_CELLS), Role.DIM)]
    found: dict[TaskState, int] = {}
    for task in row.tasks:
        name = graph.dag.names[task]
        state = scene.board.row(name).state
        found[state] = found.get(state, 0) + 1
        role = Role.CURSOR if name == graph.selected else Role.MARK if name in lit.marked else STATE_STYLES[state].role
        line.append(Piece(state_sign(state, glyphs), role))
    line.append(Piece(" " * (matrix.width - len(row.tasks) + 1)))
    return [*line, *counts.counts_signs(found, glyphs, MATRIX_MARGIN - LEVEL_CELLS - 1)]


def _band_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    bands, glyphs = graph.bands, scene.glyphs
    band = bands.bands[y]
    levels = f"L{band.first}" if band.first == band.last else f"L{band.first}-{band.last}"
    most = max(min(_BAND_BAR_CELLS, size - 40), 8)
    length = max(len(band.tasks) * most // max(bands.widest, 1), 1)
    return [
        Piece(f" {levels:<9}", Role.DIM),
        *counts.bar(band.counts, glyphs, length),
        Piece(" " * (most - length)),
        Piece(f"{number(len(band.tasks)):>7}  "),
        *counts.counts_signs(band.counts, glyphs, size - most - 22),
    ]


_ROWS: dict[Zoom, Callable[[Graph, int, int, Scene, Highlight], Line]] = {
    Zoom.GRAPH: _rails_row,
    Zoom.GROUPS: _group_row,
    Zoom.MATRIX: _matrix_row,
    Zoom.BANDS: _band_row,
}


# --- The drawing ---------------------------------------------------------------------------------------------------


def drawing_row(graph: Graph, y: int, x0: int, x1: int, scene: Scene, lit: Highlight) -> Line:
    """The cells from ``x0`` to before ``x1`` of row ``y`` of the drawing."""
    line: Line = []
    at = x0
    for run in graph.drawing.segments(y, x0, x1, lit.lines):
        if run.x > at:
            line.append(Piece(" " * (run.x - at)))
            at = run.x
        if run.task >= 0:
            label = _label(graph, graph.drawing.dag.names[run.task], run.width, scene, lit)
            shown = crop(label, at - run.x, x1 - run.x)
            line.extend(shown)
            at += width(shown)
        else:
            text = scene.glyphs.stub if run.stub else scene.glyphs.lines[run.arms] * run.width
            line.append(Piece(text, lit.line_role if run.lit else Role.RULE))
            at += run.width
    return line


def drawing_status(graph: Graph, fold_key: str, glyphs: Glyphs) -> tuple[Line, Line]:
    """How much of the graph is drawn, and around which task. Empty if all of it is drawn."""
    if not is_drawing(graph) or graph.drawn_around is None:
        return [], []
    dot = f" {glyphs.dot} "
    counted = f" {number(len(graph.drawing.dag))} of {number(len(graph.dag))} tasks drawn"
    left = [Piece(counted, Role.WARNING), Piece(f"{dot}arrows go on")]
    if fold_key:
        left += [Piece(dot), Piece(fold_key, Role.KEY), Piece(" lists all")]
    name = shorten_middle(one_line(graph.drawn_around), LABEL_CELLS_MAX, glyphs.more)
    return left, [Piece("around ", Role.DIM), Piece(f"{name} ")]


def _label(graph: Graph, name: str, size: int, scene: Scene, lit: Highlight) -> Line:
    state = scene.board.row(name).state
    shown = shorten_middle(one_line(name), LABEL_CELLS_MAX, scene.glyphs.more)
    selected = name == graph.selected
    name_role = Role.CURSOR if selected else Role.MARK if name in lit.marked else _name_role(name, state, lit)
    time_role = Role.DIM if state is TaskState.SUCCESS else STATE_STYLES[state].role
    line = [_sign(name, scene), Piece(" "), Piece(shown, name_role), Piece(" "), Piece(_time(name, scene), time_role)]
    return fit(line, size, scene.glyphs.more)


def _time(name: str, scene: Scene) -> str:
    """The running clock, the countdown or the duration of a task: five cells or nothing."""
    row = scene.board.row(name)
    if row.state is TaskState.RUNNING and row.started_at is not None:
        return clock(scene.now_us - row.started_at)
    if row.state in TIMED and row.next_retry_at is not None:
        return clock(max(row.next_retry_at - scene.now_us + 999_999, 0))
    attempt = attempt_of(row)
    if row.state is TaskState.SUCCESS and attempt is not None and attempt.duration_us is not None:
        return clock(attempt.duration_us)
    return ""


def is_drawing(graph: Graph) -> bool:
    """Whether the current zoom step is the drawing, which scrolls both ways; all others are lists."""
    return graph.zoom is Zoom.GRAPH and graph.form is GraphForm.DRAWING
