"""A group of tasks: its bar, its page, and its members with how long they took."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from heapq import nlargest
from operator import itemgetter
from statistics import median

from ...engine.core.projection import TaskRow
from ...engine.core.views import state_style, work_us
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from ...engine.domain.text import counted, format_duration
from ..model.graph.groups import GraphGroup
from ..model.graph.view import Graph
from ..text.figures import CLOCK_CELLS, clock, column, column_chart, number
from ..text.pieces import Line, Piece, Role, two_sided, wrap
from ..text.text import cells, one_line, pad, pad_left, shorten_middle
from . import states, tasks
from .states import counts_within, leading_state, progress, row_sign, sign_of
from .tasks import RunContext

# --- How long the tasks of a finished group took ----------------------------------------------------------------------


def _work_of(graph: Graph, group: GraphGroup, context: RunContext) -> Sequence[int]:
    """The duration of each task of a finished group; empty for one that goes on."""
    if any(count and state not in states.DONE for state, count in group.counts.items()):
        return ()
    if group.work_us is None:
        rows = map(context.board.row, graph.dag.names_of(group.members))
        group.work_us = [work_us(row, context.now_us, context.runner) for row in rows]
    return group.work_us


def _usual_of(graph: Graph, group: GraphGroup, context: RunContext) -> Sequence[int]:
    """The usual duration of each task; empty if one is unknown."""
    found = [context.board.duration_stats.get(name) for name in graph.dag.names_of(group.members)]
    return [one.p50_us for one in found if one is not None] if all(found) else ()


def group_bar(graph: Graph, group: GraphGroup, context: RunContext, size: int) -> Line:
    """Progress of a group; of a finished one, the durations of its tasks in the order of the flow.

    Two eighths of a cell are as long as usual, or where nobody knows as long as the tasks took on average.
    """
    work = _work_of(graph, group, context)
    if not sum(work):
        return states.state_bar(group.counts, context.glyphs, size)
    count, mean = len(work), max(sum(work) // len(work), 1)
    usual = _usual_of(graph, group, context) or [mean] * count
    parts = [(cell * count // size, max((cell + 1) * count // size, cell * count // size + 1)) for cell in range(size)]
    times = [sum(work[first:last]) / max(sum(usual[first:last]), 1) for first, last in parts]
    return [Piece("".join(states.height(one, context.glyphs) for one in times), Role.DONE)]


def work_text(graph: Graph, group: GraphGroup, context: RunContext) -> Line:
    """The total duration of a finished group's tasks, beside the usual one; empty for a group that goes on."""
    work = _work_of(graph, group, context)
    if not work:
        return []
    line, usual = [Piece(f"{format_duration(sum(work))} of work", Role.DIM)], sum(_usual_of(graph, group, context))
    return [*line, Piece(" "), states.pace_piece(tasks.pace(sum(work), usual), context.glyphs)] if usual else line


# --- The page of a group ----------------------------------------------------------------------------------------------


def group_state(graph: Graph, index: int, context: RunContext) -> Hashable:
    """The state on which the pages of a group depend: equal states have equal pages. A group may have 100,000 tasks."""
    board, number = context.board, graph.dag.number
    is_timed = any(graph.groups.group_of[number[name]] == index for name in board.timed)
    now_us = context.now_us if is_timed else None
    return id(board.projection), board.projection.seq, len(board.duration_stats), context.runner, now_us


_NAME_CELLS_MIN = 8
_LISTED_MIN = 8  # tasks of each kind
_OTHER_LINES = 12  # of the page


def group_page(graph: Graph, index: int, context: RunContext, columns: int, rows: int = 0) -> list[Line]:
    """A group: how far it is, the failures of its tasks by cause, what runs, what took longest, and its neighbours.

    As many tasks as fill a page of ``rows`` rows.
    """
    most = max((rows - _OTHER_LINES) // 2, _LISTED_MIN)
    group = graph.groups.groups[index]
    members = _counted_members(graph, group, context)
    worst = state_style(leading_state(group.counts), context.runner)
    title = Piece(shorten_middle(one_line(group.title), max(columns - 24, _NAME_CELLS_MIN), context.glyphs.more))
    right = [sign_of(worst, context.glyphs), Piece(f" {counted(group.counts.total(), 'task')} ")]
    return [
        two_sided([Piece(" "), title._replace(role=Role.TITLE)], right, columns),
        [Piece(" "), *group_bar(graph, group, context, max(columns - 2, 1))],
        [
            Piece(" "),
            *counts_within(group.counts, context.glyphs, columns - 2, (), context.runner_among(group.members)),
        ],
        *_group_failures(members, context, columns),
        *_running_members(members, most, context),
        *_slowest_members(members, most, context),
        *_group_neighbours(graph, index, context),
    ]


def _counted_members(graph: Graph, group: GraphGroup, context: RunContext) -> list[TaskRow]:
    rows = map(context.board.row, graph.dag.names_of(group.members))
    return [row for row in rows if group.counts_in(row.name, row.state)]


def _group_failures(rows: Sequence[TaskRow], context: RunContext, columns: int) -> Iterator[Line]:
    found: dict[str, list[TaskRow]] = {}
    for row in rows:
        if row.state in NEEDS_HUMAN:
            found.setdefault(one_line(context.view(row.name).fact), []).append(row)
    if found:
        yield from tasks.section("Need a human", str(sum(map(len, found.values()))))
    for cause, failed in sorted(found.items(), key=lambda item: -len(item[1]))[:_LISTED_MIN]:
        sign = row_sign(failed[0], context.glyphs, context.runner)
        names = ", ".join(context.names.short(row.name, 24, context.glyphs.more) for row in failed[:_LISTED_MIN])
        yield [Piece("   "), sign._replace(text=f"{sign.text}{number(len(failed))}"), Piece(f" {cause}")]
        yield from wrap([Piece("     "), Piece(names, Role.DIM)], columns - 1, 5)


def _running_members(rows: Sequence[TaskRow], most: int, context: RunContext) -> Iterator[Line]:
    running = sorted((row for row in rows if row.state is TaskState.RUNNING), key=lambda row: row.started_at or 0)
    if running:
        yield from tasks.section("Running", f"{number(len(running))}, the longest first")
    for row in running[:most]:
        since = Piece(f"  {clock(context.view(row.name).clock or 0)}", Role.RUNNING)
        yield [*_member(row, context), since, Piece("  "), *tasks.node_facts(row.name, context)[0]]


def _slowest_members(rows: Sequence[TaskRow], most: int, context: RunContext) -> Iterator[Line]:
    took = [(one.duration_us, row) for row in rows if (one := row.latest) is not None and one.duration_us is not None]
    if not took:
        return
    middle = format_duration(round(median([lasted for lasted, _ in took])))
    yield from tasks.section("Took", f"{middle} median, the longest first")
    for lasted, row in nlargest(most, took, key=itemgetter(0)):
        yield [*_member(row, context), Piece(f"  {column(lasted)}", Role.DIM)]


def _member(row: TaskRow, context: RunContext) -> Line:
    sign = row_sign(row, context.glyphs, context.runner)
    return [Piece("   "), sign, Piece(f" {pad(context.names.short(row.name, 24, context.glyphs.more), 24)}")]


def _group_neighbours(graph: Graph, index: int, context: RunContext) -> Iterator[Line]:
    """The groups directly before and after it; nothing where groups depend on each other both ways."""
    dag = graph.groups.dag
    if dag is None:
        return
    for heading, names in (("Waits for", dag.parents(str(index))), ("Followed by", dag.children(str(index)))):
        if names:
            yield from tasks.section(heading, counted(len(names), "group"))
        for group in (graph.groups.groups[int(name)] for name in names):
            style = state_style(leading_state(group.counts), context.runner)
            title = (
                context.names.short(group.title, 40, context.glyphs.more) if group.is_single else one_line(group.title)
            )
            shown = progress(group.counts, context.glyphs)
            yield [Piece("   "), sign_of(style, context.glyphs), Piece(f" {title}  "), *shown]


# --- The members of a group, for the rows that a short list of groups leaves free -------------------------------------


_CHART_ROWS = 5
_MEMBER_NAME_CELLS_MAX = 40


def members_page(graph: Graph, index: int, context: RunContext, columns: int, rows: int) -> list[Line]:
    """The tasks of a group in columns, as many as fill ``rows`` rows; before them how many took how long."""
    group = graph.groups.groups[index]
    members = _counted_members(graph, group, context)
    names = [row.name for row in members]
    rank = {name: place for place, name in enumerate(context.board.problems)}
    first = sorted(names, key=lambda name: (rank.get(name, len(rank)), name not in context.board.active))
    chart = list(_duration_chart(members, context, columns))
    size = min(max(cells(context.names.short(name, 999, "")) for name in names), _MEMBER_NAME_CELLS_MAX)
    beside = max(columns // (size + CLOCK_CELLS + 6), 1)
    height = min(max(rows - len(chart) - 3, 1), -(-len(names) // beside))
    shown = [_member_cells(name, size, context) for name in first[: height * beside]]
    left = len(names) - len(shown)
    more = [[Piece(f"   {context.glyphs.more} {number(left)} more (Enter)", Role.DIM)]] if left else []
    heading = [*tasks.section(one_line(group.title), counted(len(names), "task"))][not chart :]
    return [*chart, *heading, *([piece for one in shown[y::height] for piece in one] for y in range(height)), *more]


def _member_cells(name: str, size: int, context: RunContext) -> Line:
    row = context.board.row(name)
    found = tasks.task_pace(row, context)
    shown = pad(context.names.short(name, size, context.glyphs.more), size)
    took = tasks.took_text(name, context) or (
        clock(context.view(name).clock or 0) if row.state is TaskState.RUNNING else ""
    )
    return [
        Piece(" "),
        row_sign(row, context.glyphs, context.runner),
        Piece(f" {shown}", tasks.name_role(row, context)),
        Piece(f" {pad_left(took.strip(), CLOCK_CELLS)} ", Role.DIM),
        Piece(" ") if found is None else Piece(states.shade(found.times, context.glyphs), states.pace_role(found)),
    ]


def _duration_chart(rows: Sequence[TaskRow], context: RunContext, columns: int) -> Iterator[Line]:
    """Counts of tasks by duration, from the shortest to the longest; empty if few have ended."""
    took = [one.duration_us for row in rows if (one := row.latest) is not None and one.duration_us is not None]
    if len(took) <= _LISTED_MIN:
        return
    least, most, size = min(took), max(took), min(columns - 2, 2 * len(took), 100)
    counts = [0] * size
    for lasted in took:
        counts[(lasted - least) * (size - 1) // max(most - least, 1)] += 1
    yield [
        Piece(" How long they took", Role.STRONG),
        Piece(f"  {format_duration(round(median(took)))} median", Role.DIM),
    ]
    yield from (
        [Piece(f" {line}", Role.DONE)] for line in column_chart(counts, max(counts), _CHART_ROWS, context.glyphs)
    )
    first, last = map(format_duration, (least, most))
    if first == last:
        first, last = (f"{number(lasted // 1000)}ms" for lasted in (least, most))
    yield two_sided([Piece(f" {first}", Role.DIM)], [Piece(last, Role.DIM)], size + 1)
