"""A row of the graph at each zoom step, as pieces: rails with facts, groups, signs, bands, or the drawing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from ...engine.domain.states import NEEDS_HUMAN, UNDER_WAY, TaskState
from ..model.graph.drawing import LABEL_SIZES, Drawing, EdgeHighlight, LabelSize, Segment, is_chain
from ..model.graph.groups import GraphGroup, GraphOrder, Step
from ..model.graph.rails import RailHighlight, RailRow
from ..model.graph.view import GROUP_ROWS, MATRIX_MARGIN, Graph
from ..text.figures import clock, number
from ..text.glyphs import ACROSS, Glyphs
from ..text.pieces import Line, Piece, Role, crop, fit, join, width
from ..text.text import cells, one_line, pad, pad_left, shorten_middle
from . import states
from .states import row_sign, state_sign
from .tasks import ATTEMPT_CELLS, Scene, attempts_text, state_facts

LEVEL_CELLS = 5  # the column of levels left of the matrix
_FACTS_CELLS_MIN = 38
_TRIES_FROM = 56  # columns: narrower rows leave out the attempts
_BARS_FROM = 47  # cells for facts: narrower rows leave out bars
_NAME_CELLS_MIN = 12
_GROUP_FACTS_CELLS = 40
_RAILS_MAX = 8  # more are hard to follow
_GROUP_BAR_CELLS = 12
_BAND_BAR_CELLS = 40
_CLOCK_CELLS = 6
_LOUD_NAMES = {TaskState.FAILED: Role.FAILED, TaskState.DEAD_LETTER: Role.STRONG}
_QUIET = states.DONE | {TaskState.PENDING}


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
    cursor_role: Role = Role.CURSOR  # of the row under the cursor, where that is not the whole row


def label_width(name: str, scene: Scene, size: LabelSize = LABEL_SIZES[0]) -> int:
    """Width of a task in the drawing: sign, name and clock."""
    name_cells = cells(scene.names.short(name, size.name_cells, scene.glyphs.more))
    return 2 + name_cells + (_CLOCK_CELLS if size.has_time else 0)


def heading_line(
    graph: Graph, scene: Scene, size: int, fold_key: str, filter_text: str, marks: int
) -> tuple[Line, Line]:
    """The step among all steps; beside it what is left out: by the filter, of names, of the order, of the drawing."""
    drawn, around = _drawing_status(graph, fold_key, scene.glyphs)
    if drawn:
        return drawn, around
    right: list[Line] = []
    if graph.found is not None:
        count = f"{number(len(graph.found))} of {number(len(graph.dag))} match"
        right.append([Piece(f"/{one_line(filter_text)}", Role.MATCH), Piece(f"  {count}")])
    elif graph.order is not GraphOrder.FLOW and graph.is_ordered:
        right.append([Piece(str(graph.order), Role.DIM)])
    if marks:
        right.append([Piece(f"{number(marks)} marked", Role.MARK)])
    if scene.names.prefix:
        right.append([Piece(f"all begin with {scene.names.prefix}", Role.DIM)])
    others = [*join(right), Piece(" ")]
    steps = _steps(graph, scene.glyphs, is_long=True)
    return (steps if width(steps) + 2 + width(others) <= size else _steps(graph, scene.glyphs, is_long=False)), others


def _steps(graph: Graph, glyphs: Glyphs, is_long: bool) -> Line:
    """All steps, the current one set off; while a filter lists tasks, the list is the only one."""
    if graph.step is Step.FOUND:
        return [Piece(" "), Piece("matches", Role.STRONG)]
    steps = [step for step in Step if step is graph.step or (is_long and step is not Step.FOUND)]
    dot = f" {glyphs.dot} "
    return [Piece(" "), *join([[Piece(step, Role.STRONG if step is graph.step else Role.DIM)] for step in steps], dot)]


def graph_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    """Row ``y`` of the current zoom step, for steps that are lists."""
    return _ROWS[graph.step](graph, y, size, scene, lit)


# --- Rows of tasks -------------------------------------------------------------------------------------------------


def _rails_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    name, glyphs = graph.rails.name_at(y), scene.glyphs
    rails: Line = []
    if "lines" in scene.shown and has_rails(graph, size):
        row, columns = graph.rails.line(y, lit.rails), 2 * graph.rails.columns
        rails = [
            *_strokes(row, 0, row.at, scene, lit),
            Piece(glyphs.nodes[row.arms], lit.line_role if row.at in row.lit else Role.DIM),
            *_strokes(row, row.at + 1, len(row.cells), scene, lit),
        ]
        rails.append(Piece(" " * (columns - width(rails))))
    return _task_row(name, size, rails, scene, lit)


def _found_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    return _task_row(graph.task_at_row(y), size, [], scene, lit)


def has_rails(graph: Graph, size: int) -> bool:
    """Whether rows of ``size`` cells show the edges: where nothing is drawn above, and all rails leave room."""
    if graph.is_drawn_above or not any(graph.dag.child_numbers) or is_chain(graph.dag):
        return False
    return graph.rails.columns <= min(_RAILS_MAX, (size - _FACTS_CELLS_MIN - ATTEMPT_CELLS - _NAME_CELLS_MIN) // 2)


def _strokes(row: RailRow, first: int, end: int, scene: Scene, lit: Highlight) -> Line:
    """The rails in these cells; equal neighbours are one piece."""
    signs = scene.glyphs.lines
    return [
        Piece("".join([signs[row.cells[x]] for x in cells]), lit.line_role if is_lit else Role.RULE)
        for is_lit, cells in groupby(range(first, end), row.lit.__contains__)
    ]


def _task_row(name: str, size: int, rails: Line, scene: Scene, lit: Highlight, indent: int = 0) -> Line:
    """Mark, state and name, each in its column, then the facts."""
    lead = [_mark(name, scene, lit), Piece(" " * indent), _sign(name, scene), Piece(" "), *rails]
    at = width(lead)
    row = scene.board.row(name)
    has_attempts = size >= _TRIES_FROM and "attempts" in scene.shown
    room = _name_cells(scene.names.longest, size - at)
    shown = scene.names.short(name, room, scene.glyphs.more)
    tried = Piece(f"{pad_left(attempts_text(row), ATTEMPT_CELLS)}  " if has_attempts else " ", Role.DIM)
    facts_at = at + room + width([tried])
    line = [
        *lead,
        Piece(shown, _name_role(name, row.state, lit)),
        Piece(" " * (room - cells(shown))),
        tried,
        *state_facts(row, scene, has_room=size - facts_at >= _BARS_FROM),
    ]
    return fit(line, max(size, 0), scene.glyphs.more)


def _name_cells(longest: int, size: int) -> int:
    """Cells of names in rows of ``size`` cells: what the longest needs, as far as facts have their room."""
    facts = max(_FACTS_CELLS_MIN, size * 2 // 5) + ATTEMPT_CELLS
    return max(min(longest, size - facts), _NAME_CELLS_MIN)


def _name_role(name: str, state: TaskState, lit: Highlight) -> Role:
    if name in lit.matched:
        return Role.MATCH
    if name in lit.critical:
        return Role.CRITICAL
    if name in lit.related:
        return Role.RELATED
    return _LOUD_NAMES.get(state, Role.DIM if state in _QUIET else Role.TEXT)


def _sign(name: str, scene: Scene) -> Piece:
    return row_sign(scene.board.row(name), scene.glyphs, scene.runner)


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
        return _task_row(graph.dag.names[row.task], size, [], scene, lit, indent=2 if group.is_single else 4)
    is_open = groups.is_open(row.group) or groups.shows_problems(row.group)
    room = max(min(groups.longest_title, size - _GROUP_FACTS_CELLS), _NAME_CELLS_MIN)
    title = group_title(group, room, scene)
    cursor = lit.cursor_role if y == graph.cursor_row else None  # not on the bar, whose colours have a meaning
    line = [
        Piece(f" {glyphs.open if is_open else glyphs.closed} ", cursor or Role.DIM),
        Piece(pad(title, room), cursor or Role.TEXT),
        Piece(f" {number(len(group.members)):>6} ", cursor or Role.DIM),
        Piece(" "),
        *([*states.bar(group.counts, glyphs, _GROUP_BAR_CELLS), Piece("  ")] if "bars" in scene.shown else ()),
    ]
    return [
        *line,
        *states.counts_within(
            group.counts, glyphs, size - width(line), without=(TaskState.PENDING,), runner=scene.runner
        ),
    ]


def group_title(group: GraphGroup, room: int, scene: Scene) -> str:
    """The title of a group in at most ``room`` cells."""
    names = scene.names if group.is_single else scene.titles
    return names.short(group.title, room, scene.glyphs.more)


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
        sign = _sign(name, scene)
        role = Role.CURSOR if name == graph.selected else Role.MARK if name in lit.marked else sign.role
        line.append(Piece(sign.text, role))
    line.append(Piece(" " * (matrix.width - len(row.tasks) + 1)))
    return [*line, *states.counts_signs(found, glyphs, MATRIX_MARGIN - LEVEL_CELLS - 1, scene.runner)]


def _band_row(graph: Graph, y: int, size: int, scene: Scene, lit: Highlight) -> Line:
    bands, glyphs = graph.bands, scene.glyphs
    band = bands.bands[y]
    levels = f"L{band.first}" if band.first == band.last else f"L{band.first}-{band.last}"
    most = max(min(_BAND_BAR_CELLS, size - 40), 8)
    length = max(len(band.tasks) * most // max(bands.widest, 1), 1)
    return [
        Piece(f" {levels:<9}", lit.cursor_role if y == graph.cursor_row else Role.DIM),
        Piece(" "),
        *states.bar(band.counts, glyphs, length),
        Piece(" " * (most - length + 1)),
        Piece(f"{number(len(band.tasks)):>7}  "),
        *states.counts_signs(band.counts, glyphs, size - most - 22, scene.runner),
    ]


_ROWS: dict[Step, Callable[[Graph, int, int, Scene, Highlight], Line]] = {
    Step.ROWS: _rails_row,
    Step.FOUND: _found_row,
    Step.GROUPS: _group_row,
    Step.SIGNS: _matrix_row,
    Step.BANDS: _band_row,
}


# --- The drawing ---------------------------------------------------------------------------------------------------


def drawing_row(graph: Graph, y: int, x0: int, x1: int, scene: Scene, lit: Highlight) -> Line:
    """The cells from ``x0`` to before ``x1`` of row ``y`` of the drawing; signs mark the sides where it goes on."""
    names = graph.drawing.dag.names
    segments = graph.drawing.segments(y, x0, x1, lit.lines)
    line = segments_line(
        segments, x0, x1, scene.glyphs, lit.line_role, lambda run: _label(graph, names[run.task], run, scene, lit)
    )
    return with_cut_marks(line, graph.drawing, y, x0, x1, scene.glyphs)


def segments_line(
    segments: Iterable[Segment], x0: int, x1: int, glyphs: Glyphs, lit_role: Role, label: Callable[[Segment], Line]
) -> Line:
    """The pieces of segments in the cells from ``x0`` to before ``x1``."""
    line: Line = []
    at = x0
    for run in segments:
        if run.x > at:
            line.append(Piece(" " * (run.x - at)))
            at = run.x
        if run.task >= 0:
            shown = crop(label(run), at - run.x, x1 - run.x)
            line.extend(shown)
            at += width(shown)
        else:
            line.append(Piece(glyphs.lines[run.arms] * run.width, lit_role if run.lit else Role.RULE))
            at += run.width
    return line


def with_cut_marks(line: Line, drawing: Drawing, y: int, x0: int, x1: int, glyphs: Glyphs) -> Line:
    """``line`` of row ``y``, with a sign at each side beyond which the row goes on."""
    first, end = drawing.spans[y]
    if first < x0 < end:
        line = [Piece(glyphs.cut_left, Role.WARNING), *crop(line, 1, x1 - x0)]
    if first < x1 < end:
        line = [*fit(crop(line, 0, x1 - x0 - 1), x1 - x0 - 1), Piece(glyphs.cut_right, Role.WARNING)]
    return line


def _drawing_status(graph: Graph, fold_key: str, glyphs: Glyphs) -> tuple[Line, Line]:
    """How much of the graph is drawn, and around which task. Empty if all of it is drawn."""
    if graph.step is not Step.DRAWING or graph.drawn_around is None:
        return [], []
    dot = f" {glyphs.dot} "
    counted = f" {number(len(graph.drawing.dag))} of {number(len(graph.dag))} tasks drawn"
    left = [Piece(counted, Role.WARNING), Piece(f"{dot}arrows go on")]
    if fold_key:
        left += [Piece(dot), Piece(fold_key, Role.KEY), Piece(" lists all")]
    name = shorten_middle(one_line(graph.drawn_around), graph.drawings.label_size.name_cells, glyphs.more)
    return left, [Piece("around ", Role.DIM), Piece(f"{name} ")]


def _label(graph: Graph, name: str, run: Segment, scene: Scene, lit: Highlight) -> Line:
    """Sign, name and time of a task, and from there the line that leaves it."""
    state = scene.board.row(name).state
    size = graph.drawings.label_size
    shown = scene.names.short(name, size.name_cells, scene.glyphs.more)
    selected = name == graph.selected
    name_role = Role.CURSOR if selected else Role.MARK if name in lit.marked else _name_role(name, state, lit)
    line = [_sign(name, scene), Piece(" "), Piece(shown, name_role)]
    beside = _hidden_relatives(graph, name, scene.glyphs) if size.has_time else ""
    if beside:
        line.append(Piece(f" {beside}", Role.DIM))
    elif size.has_time and (time := _time(name, scene)):
        line += [Piece(" "), Piece(time, line[0].role)]
    rest = run.width - width(line)
    if run.arms and rest > 1:
        line += [Piece(" "), Piece(scene.glyphs.lines[ACROSS] * (rest - 1), lit.line_role if run.lit else Role.RULE)]
    return fit(line, run.width, scene.glyphs.more)


def _hidden_relatives(graph: Graph, name: str, glyphs: Glyphs) -> str:
    """How many parents and children of a task the drawing leaves out: ``‹2›14``."""
    drawn = graph.drawing.dag
    if len(drawn) == len(graph.dag):
        return ""
    parents = len(graph.dag.parents(name)) - len(drawn.parents(name))
    children = len(graph.dag.children(name)) - len(drawn.children(name))
    shown = [(glyphs.cut_left, parents), (glyphs.cut_right, children)]
    return "".join(f"{sign}{min(count, 99)}" for sign, count in shown if count)[: _CLOCK_CELLS - 1]


def _time(name: str, scene: Scene) -> str:
    """The running clock or the countdown of a task: five cells or nothing."""
    if scene.board.row(name).state not in UNDER_WAY:
        return ""
    view = scene.view(name)
    if view.clock is not None:
        return clock(view.clock)
    return "" if view.instant is None else clock(max(view.instant - scene.now_us + 999_999, 0))


# --- The drawing of the groups: each with its name, and below it a thin bar and counts -------------------------------


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
    state = states.leading_state(group.counts)
    is_selected = graph.selected is not None and graph.groups.group_of[graph.dag.number[graph.selected]] == group.index
    role = Role.CURSOR if is_selected else Role.STRONG if state in NEEDS_HUMAN else Role.TEXT
    if not is_selected and not any(group.counts[other] for other in states.LIVELY):
        role = Role.DIM
    line = [
        state_sign(state, scene.glyphs, scene.runner),
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
    facts = states.progress(group.counts, scene.glyphs)
    if width(facts) + 1 + _BAR_CELLS_MIN > run.width:
        facts = [facts[0], facts[-1]]  # of several states the most severe
    bar = states.bar(group.counts, scene.glyphs, max(run.width - 1 - width(facts), 1))
    return fit([*bar, Piece(" "), *facts], run.width, scene.glyphs.more)
