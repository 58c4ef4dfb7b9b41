"""A row of the graph at each zoom step, as pieces: tasks with facts, groups, the drawing, or the silhouette."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product, repeat, zip_longest
from typing import NamedTuple

import msgspec

from ...engine.core.projection import TaskRow
from ...engine.core.views import PROBLEMS
from ...engine.domain.states import UNDER_WAY, TaskState
from ..model.graph.drawing import LABEL_SIZES, Drawing, EdgeHighlight, LabelSize, Segment
from ..model.graph.groups import GraphGroup, ZoomStep
from ..model.graph.view import GROUP_ROWS, Graph
from ..text.columns import FILL, Width, row_line
from ..text.figures import clock, number
from ..text.glyphs import ACROSS, Glyphs
from ..text.pieces import Line, Piece, Role, crop, first_that_fits, fit, join, width
from ..text.text import cells, one_line, pad, shorten_middle, two_lines
from . import states
from .group import group_bar, work_text
from .states import row_sign, state_sign
from .tasks import RunContext, attempts_text, name_role, node_facts, part_over, state_facts, took_text

_TRIES_FROM = 56  # cells beside the sign: narrower rows leave out the attempts
_NAME_CELLS_MIN = 12
_GROUP_FACTS_CELLS = 40
_GROUP_BAR_CELLS, _GROUP_BAR_CELLS_MAX = 12, 60
_CLOCK_CELLS = 6
_LOUD_NAMES = {TaskState.FAILED: Role.FAILED, TaskState.DEAD_LETTER: Role.STRONG}


class Highlight(msgspec.Struct):
    """Highlighted tasks, in sets; ``lines`` are the edges between them."""

    related: Collection[str] = ()
    critical: Collection[str] = ()
    marked: Collection[str] = ()
    matched: Collection[str] = ()
    lines: EdgeHighlight = msgspec.field(default_factory=EdgeHighlight)
    line_role: Role = Role.RELATED
    cursor_role: Role = Role.CURSOR  # of the row under the cursor, where that is not the whole row
    has_bars: bool = True  # in the drawing: the name of a running task fills, and ended tasks say how long they took


def label_width(name: str, context: RunContext, size: LabelSize = LABEL_SIZES[0]) -> int:
    """Width of a task in the drawing: sign, name and clock, and the fact below them."""
    if not size.name_cells:
        return 1
    name_cells = cells(context.names.short(name, size.name_cells, context.glyphs.more))
    return 2 + max(name_cells + (_CLOCK_CELLS if size.has_time else 0), size.fact_cells)


def heading_line(
    graph: Graph, context: RunContext, size: int, filter_text: str, marks: int, hidden_marks: int
) -> tuple[Line, Line]:
    """The step among all steps; beside it what is left out: by the filter, of names.

    ``hidden_marks``: of the ``marks``, those that the filter leaves out.
    """
    right: list[Line] = []
    if graph.found is not None:
        count = f"{number(len(graph.found))} of {number(len(graph.dag))} match"
        right.append([Piece(f"/{one_line(filter_text)}", Role.MATCH), Piece(f"  {count}")])
    if marks:
        hidden = f", {number(hidden_marks)} not shown" if hidden_marks else ""
        right.append([Piece(f"{number(marks)} marked{hidden}", Role.MARK)])
    if context.names.prefix:
        right.append([Piece(f"all begin with {context.names.prefix}", Role.DIM)])
    others = [*join(right), Piece(" ")]
    steps = _steps(graph, context.glyphs, is_long=True)
    return (steps if width(steps) + 2 + width(others) <= size else _steps(graph, context.glyphs, is_long=False)), others


def _steps(graph: Graph, glyphs: Glyphs, is_long: bool) -> Line:
    """All steps, the current one set off; while a filter lists tasks, the list is the only one."""
    if graph.step is ZoomStep.FOUND:
        return [Piece(" "), Piece("matches", Role.STRONG)]
    steps = [step for step in ZoomStep if step is graph.step or (is_long and step in graph.steps)]
    dot = f" {glyphs.dot} "
    return [Piece(" "), *join([[Piece(step, Role.STRONG if step is graph.step else Role.DIM)] for step in steps], dot)]


def graph_row(graph: Graph, y: int, size: int, context: RunContext, lit: Highlight) -> Line:
    """Row ``y`` of the current zoom step, for steps that are lists."""
    if graph.step is ZoomStep.GROUPS:
        return _group_row(graph, y, size, context, lit)
    return _task_row(graph.task_at_row(y), size, context, lit)


# --- Rows of tasks -------------------------------------------------------------------------------------------------


def _task_row(name: str, size: int, context: RunContext, lit: Highlight, indent: int = 0) -> Line:
    """Mark, state and name, each in its column, then the facts."""
    row, more, has_attempts = context.board.row(name), context.glyphs.more, size - 3 - indent >= _TRIES_FROM
    tried = Width(5, gap=0, is_right=True), Piece(attempts_text(row), Role.DIM)
    facts = 36 if context.board.problems else 28  # without a failure to tell, names have more room

    def named(room: int) -> Piece:
        return Piece(context.names.short(name, room, more), _name_role(row, context, lit))

    return row_line(
        max(size, 0),
        (Width(1, gap=0), Piece(context.glyphs.mark, Role.MARK) if name in lit.marked else Piece(" ")),
        (Width(1, gap=indent), row_sign(row, context.glyphs, context.runner)),
        (Width(12, max(min(context.names.longest, size * 2 // 5), 12)), named),
        *([tried] if has_attempts else ()),
        (
            Width(max(facts, (size - 3 - indent) * 2 // 5 - 2), FILL, gap=2 if size >= _TRIES_FROM else 1),
            lambda room: state_facts(row, context, room),
        ),
        more=more,
    )


def _name_role(row: TaskRow, context: RunContext, lit: Highlight) -> Role:
    for names, role in ((lit.matched, Role.MATCH), (lit.critical, Role.CRITICAL), (lit.related, Role.RELATED)):
        if row.name in names:
            return role
    return _LOUD_NAMES.get(row.state) or name_role(row, context)


def _sign(name: str, context: RunContext) -> Piece:
    return row_sign(context.board.row(name), context.glyphs, context.runner)


# --- Groups --------------------------------------------------------------------------------------------------------


def _group_row(graph: Graph, y: int, size: int, context: RunContext, lit: Highlight) -> Line:
    groups, row = graph.groups, graph.groups.rows[y]
    group = groups.groups[row.group]
    glyphs = context.glyphs
    if row.hidden:
        return [Piece(f"      {glyphs.more} {number(row.hidden)} more (Enter)", Role.DIM)]
    if row.task is not None:
        return _task_row(graph.dag.names[row.task], size, context, lit, indent=2 if group.is_single else 4)
    is_open = groups.is_open(row.group) or groups.shows_problems(row.group)
    room = max(min(groups.longest_title, size - _GROUP_FACTS_CELLS), _NAME_CELLS_MIN)
    title = group_title(group, room, context)
    cursor = lit.cursor_role if y == graph.cursor_row else None  # not on the bar, whose colours have a meaning
    bar_cells = min(max(size - room - 2 * _GROUP_FACTS_CELLS, _GROUP_BAR_CELLS), _GROUP_BAR_CELLS_MAX)
    line = [
        Piece(f" {glyphs.open if is_open else glyphs.closed} ", cursor or Role.DIM),
        Piece(pad(title, room), cursor or Role.TEXT),
        Piece(f" {number(group.counts.total()):>6} ", cursor or Role.DIM),
        Piece(" "),
        *group_bar(graph, group, context, bar_cells),
        Piece("  "),
    ]
    room = size - width(line)
    counts = states.counts_within(group.counts, glyphs, room, (TaskState.PENDING,), context.runner_among(group.members))
    took = [Piece("  "), *work_text(graph, group, context)]
    return [*line, *first_that_fits([[*counts, *took], [*counts, *took[:2]], counts], room)]


def group_title(group: GraphGroup, room: int, context: RunContext) -> str:
    """The title of a group in at most ``room`` cells."""
    names = context.names if group.is_single else context.titles
    return names.short(group.title, room, context.glyphs.more)


# --- The drawing ---------------------------------------------------------------------------------------------------


def drawing_row(graph: Graph, y: int, x0: int, x1: int, context: RunContext, lit: Highlight) -> Line:
    """The cells from ``x0`` to before ``x1`` of text row ``y``; signs mark the sides where the drawing goes on."""
    drawing, names = graph.drawing, graph.drawing.dag.names
    row, below = divmod(y, graph.drawings.label_size.rows)
    segments = (drawing.below if below else drawing.segments)(row, x0, x1, lit.lines)

    def label(run: Segment) -> Line:
        name = names[run.task]
        return _fact(name, below - 1, run.width, context) if below else _label(graph, name, run, context, lit)

    line = segments_line(segments, x0, x1, context.glyphs, lit.line_role, label)
    return line if below else with_cut_marks(line, drawing, row, x0, x1, context.glyphs)


def _fact(name: str, place: int, size: int, context: RunContext) -> Line:
    """A fact below the name of a task, the most important one at place 0."""
    facts = node_facts(name, context)
    return fit([Piece("  "), *(facts[place] if place < len(facts) else ())], size, context.glyphs.more)


def segments_line(
    segments: Iterable[Segment], x0: int, x1: int, glyphs: Glyphs, lit_role: Role, label: Callable[[Segment], Line]
) -> Line:
    """The pieces of segments in the cells from ``x0`` to before ``x1``; a blank sets a name off from a longer line."""
    line: Line = []
    at = x0
    is_name_last = False
    for run in segments:
        if run.x > at:
            line.append(Piece(" " * (run.x - at)))
            at = run.x
        if run.task >= 0:
            shown = crop(label(run), at - run.x, x1 - run.x)
            line.extend(shown)
            at += width(shown)
        else:
            gap = " " if is_name_last and run.width > 1 else ""
            drawn = gap + glyphs.lines[run.arms] * (run.width - len(gap))
            line.append(Piece(drawn, lit_role if run.lit else Role.RULE))
            at += run.width
        is_name_last = run.task >= 0 and not line[-1].text.endswith(glyphs.lines[ACROSS])
    return line


def with_cut_marks(line: Line, drawing: Drawing, y: int, x0: int, x1: int, glyphs: Glyphs) -> Line:
    """``line`` of row ``y``, with a sign at each side beyond which the row goes on."""
    first, end = drawing.spans[y]
    if first < x0 < end:
        line = [Piece(glyphs.cut_left, Role.WARNING), *crop(line, 1, x1 - x0)]
    if first < x1 < end:
        line = [*fit(crop(line, 0, x1 - x0 - 1), x1 - x0 - 1), Piece(glyphs.cut_right, Role.WARNING)]
    return line


def _label(graph: Graph, name: str, run: Segment, context: RunContext, lit: Highlight) -> Line:
    """Sign, name and time of a task, and from there the line that leaves it."""
    row, size = context.board.row(name), graph.drawings.label_size
    if not size.name_cells:
        sign = _sign(name, context)
        return [Piece(sign.text, Role.CURSOR) if name == graph.selected else sign]
    room = run.width - 2 - (_CLOCK_CELLS if size.has_time else 0)  # a level may have more than each name
    shown = context.names.short(name, max(room, size.name_cells), context.glyphs.more)
    selected = name == graph.selected
    label_role = Role.CURSOR if selected else Role.MARK if name in lit.marked else _name_role(row, context, lit)
    is_running = row.state is TaskState.RUNNING and context.runner.is_alive
    is_filled = lit.has_bars and not size.fact_cells and label_role == Role.TEXT and is_running
    line = [
        _sign(name, context),
        Piece(" "),
        *(_filled(shown, name, context) if is_filled else [Piece(shown, label_role)]),
    ]
    if size.has_time and (time := _time(name, context)):
        line.append(Piece(time if time.startswith(" ") else f" {time}", line[0].role))  # a gap before the leaving line
    elif size.has_time and lit.has_bars and not size.fact_cells and (took := took_text(name, context)):
        role = name_role(row, context)
        slow = context.glyphs.up if role in (Role.TEXT, Role.WARNING) else ""
        line.append(Piece(f"{slow}{took}".rjust(_CLOCK_CELLS) if slow else f" {took}", role))
    return _with_leaving_line(line, run, lit.line_role if run.lit else Role.RULE, context.glyphs)


def _with_leaving_line(line: Line, run: Segment, role: Role, glyphs: Glyphs) -> Line:
    """A label, and from its end the line that leaves it."""
    rest = run.width - width(line)
    if run.arms and rest > 1:
        line = [*line, Piece(" "), Piece(glyphs.lines[ACROSS] * (rest - 1), role)]
    return fit(line, run.width, glyphs.more)


def _filled(shown: str, name: str, context: RunContext) -> Line:
    """The name of a running task as a bar that fills."""
    full = round(cells(shown) * (part_over(name, context) or 0.0))
    return [*crop([Piece(shown, Role.PROGRESS)], 0, full), *crop([Piece(shown)], full, cells(shown))]


def _time(name: str, context: RunContext) -> str:
    """The running clock, or the countdown of a task with its sign: five cells or nothing."""
    if context.board.row(name).state not in UNDER_WAY:
        return ""
    view = context.view(name)
    if view.clock is not None:
        return clock(view.clock)
    left = "" if view.instant is None else clock(max(view.instant - context.now_us + 999_999, 0))
    return f"{context.glyphs.due}{left[1:]}" if left.startswith(" ") else left


# --- The drawing of the groups: each with its name, and below it a thin bar and counts -------------------------------


#: The most cells of a line of a title, and whether counts have room beside its second line.
_ROOMS = [(room, True) for room in range(32, 11, -1)] + [(room, False) for room in range(20, 7, -1)]
_BAR_CELLS_MIN = 3
_BAR_CELLS = (60, 40, 24, 16, 10)  # of bars below the names, where there is room


class GroupDrawing(NamedTuple):
    """The layout of the groups, and the title of each on two lines, the second often empty."""

    drawing: Drawing
    titles: Sequence[tuple[str, str]]


def group_drawing(graph: Graph, context: RunContext, columns: int) -> GroupDrawing | None:
    """The layout of the groups in less than ``columns`` cells if that is possible; None if they cannot be drawn."""
    dag, groups = graph.groups.dag, graph.groups.groups
    if dag is None:
        return None
    drawing = Drawing(dag, [1] * len(groups))
    names = [
        context.names.short(group.title, 999, "") if group.is_single else one_line(group.title) for group in groups
    ]

    def laid_out(rooms: Sequence[int], has_counts: bool, bar: int = _BAR_CELLS_MIN) -> GroupDrawing:
        titles = [*map(two_lines, names, rooms, repeat(context.glyphs.more))]
        times = Counter(titles)
        for group, room in zip(groups, rooms, strict=True):
            if times[titles[group.index]] > 1:  # no two are alike
                titles[group.index] = group_title(group, room, context), ""
        return GroupDrawing(
            drawing.resized([*map(_label_cells, groups, titles, repeat(has_counts), repeat(bar))]), titles
        )

    for room, has_counts in _ROOMS:
        rooms = [room] * len(groups)
        found = laid_out(rooms, has_counts)
        if found.drawing.width < columns:
            break
    for more, level in product(range(room + 1, _ROOMS[0][0]), range(dag.depth)):  # a level may have names made whole
        tried = [more if place == level else one for place, one in zip(dag.levels, rooms, strict=True)]
        wider = laid_out(tried, has_counts)
        if wider.drawing.width < columns and _whole(wider, names) > _whole(found, names):
            rooms, found = tried, wider
    bars = (laid_out(rooms, has_counts, cells) for cells in _BAR_CELLS if has_counts)
    return next((wider for wider in bars if wider.drawing.width < columns), found)


def _whole(drawn: GroupDrawing, names: Sequence[str]) -> int:
    """The number of names that are not shortened."""
    return sum("".join(title) == name for title, name in zip(drawn.titles, names, strict=True))


def _label_cells(group: GraphGroup, title: tuple[str, str], has_counts: bool, bar: int = _BAR_CELLS_MIN) -> int:
    first, second = map(cells, title)
    most = len(f"{len(group.members):,}") * 2 + len("/ ◆1")
    if group.is_single or (second and not has_counts):
        return 3 + max(first, second)
    return max(3 + first, 3 + second + most if second else bar + 1 + most)


def group_map_row(graph: Graph, drawn: GroupDrawing, y: int, x0: int, x1: int, context: RunContext) -> Line:
    """The cells from ``x0`` to before ``x1`` of text row ``y``."""
    drawing, titles = drawn
    row, is_second = divmod(y, GROUP_ROWS)
    segments = drawing.segments(row, x0, x1)
    if is_second:
        segments = [*_with_room_for_counts(drawing.below(row, x0, x1), graph, titles, x1)]

    def label(run: Segment) -> Line:
        group, title = graph.groups.groups[run.task], titles[run.task]
        name = Piece(title[is_second], _title_role(graph, group))
        return _facts(graph, group, name, run, context) if is_second else _title(group, name, run, context)

    line = segments_line(segments, x0, x1, context.glyphs, Role.RELATED, label)
    return line if is_second else with_cut_marks(line, drawing, row, x0, x1, context.glyphs)


def _with_room_for_counts(
    segments: Sequence[Segment], graph: Graph, titles: Sequence[tuple[str, str]], end: int
) -> Iterator[Segment]:
    """Groups as wide as their counts beside the second line of a name, as far as the cells behind them are free."""
    for run, following in zip_longest(segments, segments[1:]):
        wanted = _label_cells(graph.groups.groups[run.task], titles[run.task], True) if run.task >= 0 else 0
        free = (following.x - 1 if following is not None else end) - run.x
        yield run._replace(width=max(run.width, min(wanted, free)))


def _title_role(graph: Graph, group: GraphGroup) -> Role:
    if graph.selected is not None and graph.groups.group_of[graph.dag.number[graph.selected]] == group.index:
        return Role.CURSOR
    if states.leading_state(group.counts) in PROBLEMS:
        return Role.STRONG
    return Role.TEXT if any(group.counts[other] for other in states.LIVELY) else Role.DIM


def _title(group: GraphGroup, name: Piece, run: Segment, context: RunContext) -> Line:
    sign = state_sign(states.leading_state(group.counts), context.glyphs, context.runner)
    return _with_leaving_line([sign, Piece(" "), name], run, Role.RULE, context.glyphs)


def _facts(graph: Graph, group: GraphGroup, name: Piece, run: Segment, context: RunContext) -> Line:
    """The rest of a long name; bar and counts: of the tasks that need a human, or of finished ones, and of all."""
    whole, more = states.progress(group.counts, context.glyphs), context.glyphs.more
    if not group.is_single and name.text:  # a name gives way to what needs a human
        name = name._replace(text=shorten_middle(name.text, run.width - 3 - width(whole[2:3]), more))
    lead = [Piece("  "), name, Piece(" ")] if name.text else []
    if group.is_single:
        return fit(lead, run.width)
    room = run.width - width(lead)
    brief = whole[2:] or whole, whole[2:3]  # what needs a human, of several states the most severe
    facts = next((one for one in (whole, *brief) if width(one) <= room), [])
    bar_cells = room - 1 - width(facts)
    bar = [*group_bar(graph, group, context, bar_cells), Piece(" ")] if bar_cells >= _BAR_CELLS_MIN else []
    return fit([*lead, *bar, *facts], run.width, more)
