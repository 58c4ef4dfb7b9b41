"""A run as a report: its facts, the drawn graph, the timeline, causes with evidence, acts, and slow tasks, as lines.

``report_html.py`` and ``report_markdown`` below make files of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from ...engine.core.projection import TaskRow
from ...engine.domain.counting import counted
from ...engine.domain.events import Event
from ...engine.domain.states import TaskState
from ..model.activity import activity_of
from ..model.board import Board
from ..model.eta import is_overdue
from ..model.graph.view import Graph
from ..model.graph.zoom import GraphForm, Zoom
from ..model.inbox import InboxCause
from ..model.time_span import Span, fitting_span
from ..model.timeline_rows import TimelineRows
from ..text.durations import format_duration, number, wall_day
from ..text.glyphs import UTF8
from ..text.pieces import Line, Piece, Role, plain
from ..text.text import cells, one_line
from .evidence import EvidenceData, cause_page, evidence_page
from .graph import Highlight, drawing_row, graph_row, label_width
from .journal import event_row
from .runs import deadline_note, run_style
from .states import SEVERITY, STATE_STYLES
from .task_names import TaskNames
from .tasks import Scene, attempt_of, duration_of
from .timeline.axis import axis_line
from .timeline.bars import FOLD_INDENT, bar_line, label_line
from .timeline.group_bars import group_bar_line, group_label_columns, group_label_line
from .timeline.task_texts import legend_line

CAUSES_MAX = 10
_ACTS_MAX = 200
_SLOW_MAX = 20
_DRAWN_MAX = 300  # tasks; a run with more lists its groups
_ROWS_MAX = 300  # of tasks within groups, together
_GROUP_CONSTANT = (0, 2, 3)  # pieces of a group's label that are true at any instant: fold sign, gap, title
_COLUMNS = 76  # of text that does not wrap
_BAR_CELLS = 96
_NAME_CELLS_MAX = 32
_TIME_AFTER_SIGN = 4  # pieces from the sign of a drawn task to its time
_TIME_CELLS_MAX = 6


class Move(NamedTuple):
    """A task's change of state. ``at``: microseconds UTC."""

    at: int
    task: str
    state: TaskState


class CauseEvidence(NamedTuple):
    """A cause in the inbox, and what was read about its first task."""

    cause: InboxCause
    found: EvidenceData


@dataclass(frozen=True, slots=True)
class ReportData:
    """What a report is made of. ``moves``: in order; empty if the file no longer has the start of the run.

    ``causes``: the first CAUSES_MAX of ``causes_total``; ``acts``: acts of operators and their notes, in order.
    """

    board: Board
    address: str
    now_us: int
    moves: Sequence[Move] = ()
    causes: Sequence[CauseEvidence] = ()
    causes_total: int = 0
    acts: Sequence[Event] = ()

    @property
    def end_us(self) -> int:
        """The end of the run, or now."""
        ended_at = self.board.projection.run.ended_at
        return self.now_us if ended_at is None else ended_at

    @property
    def scene(self) -> Scene:
        """The context of all lines."""
        longest = max((cells(one_line(name)) for name in self.board.projection.tasks), default=0)
        return Scene(self.board, self.now_us, UTF8, True, min(longest, _NAME_CELLS_MAX), self.board.pools())


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A line of the report.

    ``signs``: the place of a piece that is the sign of a task -> its name; ``times``: pieces that are true only at the
    end of the report; ``members``: the rows of the tasks of a group, shown when it is opened.
    """

    line: Line
    signs: Mapping[int, str] = field(default_factory=dict)
    times: frozenset[int] = frozenset()
    members: Sequence[ReportRow] = ()


def headline(data: ReportData) -> str:
    """Flow, run and state."""
    run = data.board.projection.run
    return f"{one_line(run.dag_name)} {UTF8.dot} {one_line(run.run_id)}: {run_style(run).word}{deadline_note(run)}"


def fact_lines(data: ReportData) -> list[str]:
    """When and where the run was, and how many tasks are in which state."""
    board, run = data.board, data.board.projection.run
    ended = f" to {wall_day(run.ended_at, None)}" if run.ended_at is not None else ", not ended"
    counts = ", ".join(
        f"{number(board.counts[state])} {STATE_STYLES[state].word}" for state in SEVERITY if board.counts[state]
    )
    took = format_duration(data.end_us - run.started_at)
    return [
        f"{wall_day(run.started_at, None)}{ended}, {took}; in {one_line(data.address)}",
        f"{number(board.finished)} of {number(board.total)} done ({counts}), as of {wall_day(data.now_us, None)}",
    ]


# --- The graph -----------------------------------------------------------------------------------------------------


def graph_rows(data: ReportData) -> list[ReportRow]:
    """The drawing; of a large graph its groups."""
    scene, graph = data.scene, Graph(data.board, lambda name: label_width(name, data.scene))
    graph.selected = None
    if len(graph.dag) > _DRAWN_MAX:
        graph.zoom = Zoom.GROUPS
        return [ReportRow(graph_row(graph, y, _COLUMNS, scene, Highlight())) for y in range(graph.height)]
    graph.zoom, graph.form = Zoom.GRAPH, GraphForm.DRAWING
    tasks = {graph.drawing.place(name)[:2]: name for name in graph.dag.names}
    return [_drawn_row(graph, y, scene, tasks) for y in range(graph.height)]


def _drawn_row(graph: Graph, y: int, scene: Scene, tasks: Mapping[tuple[int, int], str]) -> ReportRow:
    line = drawing_row(graph, y, 0, graph.drawing.width, scene, Highlight())
    starts = accumulate((cells(piece.text) for piece in line), initial=0)
    signs = {place: tasks[x, y] for place, x in enumerate(starts) if (x, y) in tasks}
    times = (place + _TIME_AFTER_SIGN for place in signs)
    return ReportRow(line, signs, frozenset(place for place in times if _is_time(line, place)))


def _is_time(line: Line, place: int) -> bool:
    return place < len(line) and line[place].role is not Role.RULE and cells(line[place].text) <= _TIME_CELLS_MAX


# --- The timeline --------------------------------------------------------------------------------------------------


class Timeline(NamedTuple):
    """``rows``: of axis, groups and tasks; ``label_columns``: cells before the bars; ``span``: the axis of the bars."""

    rows: Sequence[ReportRow]
    label_columns: int
    span: Span


def timeline_of(data: ReportData) -> Timeline:
    """All attempts from the first start to the last activity, in the rows of the console's timeline."""
    board, run = data.board, data.board.projection.run
    activity = activity_of(board.projection.tasks.values(), run.started_at)
    is_live = run.ended_at is None and activity.is_active
    end = data.now_us if is_live else max(activity.end, run.started_at + 1)
    span = fitting_span(run.started_at, end, _BAR_CELLS, pauses=activity.pauses)
    listed = TimelineRows(board)
    titles = TaskNames((group.title for group in listed.groups), prefix="")
    names = TaskNames(board.projection.tasks, prefix="")
    columns = group_label_columns(listed.groups, names, titles, 3 * _NAME_CELLS_MAX, ("done",))
    lanes = _Lanes(data, listed, names, titles, columns, span, data.now_us if is_live else None)
    axis = ReportRow([Piece(" " * columns), *axis_line(span, lanes.now_us, UTF8)])
    legend = ReportRow(legend_line(UTF8, columns + span.cells, has_groups=bool(listed.groups)))
    return Timeline([axis, *_lanes(lanes), legend], columns, span)


class _Lanes(NamedTuple):
    """What the rows of the timeline are made of."""

    data: ReportData
    listed: TimelineRows
    names: TaskNames
    titles: TaskNames
    columns: int
    span: Span
    now_us: int | None


def _lanes(lanes: _Lanes) -> Iterator[ReportRow]:
    """The rows of the console's timeline: groups with their tasks, and tasks beside groups."""
    listed, members_max = lanes.listed, _ROWS_MAX // max(len(lanes.listed.groups), 1)
    for key in listed.rows():
        if isinstance(key, str):
            yield _task_lane(key, lanes, FOLD_INDENT if listed.groups else 0)
            continue
        worst = sorted((lanes.data.board.row(name) for name in listed.worst_tasks(key, members_max)), key=_first_start)
        members = [_task_lane(row.name, lanes, 2 * FOLD_INDENT) for row in worst]
        left_out = len(listed.members(key)) - len(members)
        if left_out:
            members.append(ReportRow([Piece(f"    {number(left_out)} more tasks", Role.DIM)]))
        yield _group_lane(key, lanes, members)


def _task_lane(name: str, lanes: _Lanes, indent: int) -> ReportRow:
    row = lanes.data.board.row(name)
    label = label_line(row, lanes.columns - 1, UTF8, names=lanes.names, indent=indent)
    return ReportRow([*label, Piece(" "), *bar_line(row, lanes.span, lanes.now_us, UTF8)], {1: name})


def _group_lane(index: int, lanes: _Lanes, members: Sequence[ReportRow]) -> ReportRow:
    group, span = lanes.listed.group(index), lanes.span
    label = group_label_line(group, lanes.columns - 1, UTF8, lanes.titles, is_open=False)
    borders = [span.instant(cell) for cell in range(span.cells + 1)]
    bar = group_bar_line(group, lanes.listed.activity(index), span, borders, lanes.now_us, UTF8)
    is_of_end = (place for place in range(len(label)) if place not in _GROUP_CONSTANT)
    return ReportRow([*label, Piece(" "), *bar], times=frozenset(is_of_end), members=members)


def _first_start(row: TaskRow) -> tuple[bool, int, int]:
    first = next(iter(row.attempts.values()), None)
    return first is None, 0 if first is None else first.started_at, row.position


def _duration_us(name: str, data: ReportData) -> int:
    attempt = attempt_of(data.board.row(name))
    return 0 if attempt is None else duration_of(attempt, data.end_us)


# --- Causes, acts, slow tasks --------------------------------------------------------------------------------------


def cause_lines(one: CauseEvidence, data: ReportData) -> list[Line]:
    """The page of evidence on a cause; the first line names it."""
    if one.cause.count == 1:
        return evidence_page(data.board.row(one.cause.tasks[0]), data.scene, one.found, _COLUMNS)
    return cause_page(one.cause, data.scene, one.found, _COLUMNS)


def left_out_causes(data: ReportData) -> str:
    """How many causes have no page; empty if all have one."""
    left_out = data.causes_total - len(data.causes)
    if not data.causes_total:
        return "Nothing needs a human."
    return f"{counted(left_out, 'more cause')}." if left_out > 0 else ""


def act_lines(data: ReportData) -> list[Line]:
    """What operators did and noted, the latest ones of many."""
    started_at, shown = data.board.projection.run.started_at, data.acts[-_ACTS_MAX:]
    earlier = len(data.acts) - len(shown)
    lines: list[Line] = [[Piece(f"{number(earlier)} earlier acts", Role.DIM)]] if earlier else []
    lines += [event_row(event, started_at, True, _NAME_CELLS_MAX // 2, UTF8) for event in shown]
    return lines or [[Piece("Nobody changed anything.", Role.DIM)]]


def slow_lines(data: ReportData) -> list[str]:
    """The tasks that took far longer than in earlier runs, the longest first."""
    usual = data.board.duration_stats
    if not usual:
        return ["No earlier run to compare with."]
    took = {name: _duration_us(name, data) for name in data.board.projection.tasks if name in usual}
    slow = sorted((name for name in took if is_overdue(took[name], usual[name])), key=took.__getitem__, reverse=True)
    lines = [
        f"{one_line(name)}: {format_duration(took[name])}, usually {format_duration(usual[name].p50_us)}"
        f" (95 of 100 within {format_duration(usual[name].p95_us)})"
        for name in slow[:_SLOW_MAX]
    ]
    more = [f"{number(len(slow) - _SLOW_MAX)} more"] if len(slow) > _SLOW_MAX else []
    return [*lines, *more] or ["Nothing took much longer than in earlier runs."]


# --- Markdown ------------------------------------------------------------------------------------------------------


def report_markdown(data: ReportData) -> str:
    """The report as Markdown: everything that tasks have written stands in blocks of code."""
    causes = [line for one in data.causes for line in (*map(plain, cause_lines(one, data)), "")]
    sections: Sequence[tuple[str, Iterable[str]]] = (
        ("", (headline(data), *fact_lines(data))),
        ("Graph", (plain(row.line) for row in graph_rows(data))),
        ("Timeline", (plain(row.line) for row in timeline_of(data).rows)),
        ("Causes", filter(None, (*causes, left_out_causes(data)))),
        ("Acts and notes", map(plain, act_lines(data))),
        ("Slower than usual", slow_lines(data)),
    )
    return "\n".join(line for title, lines in sections for line in _section(title, lines))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    if title:
        yield f"## {title}"
        yield ""
    yield "```text"
    yield from (line.rstrip().replace("`", "'") for line in lines)
    yield "```"
    yield ""
