"""A run as a report: its facts, the drawn graph, the timeline, causes with evidence, acts, and slow tasks, as lines.

``report_html`` below makes a file of it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from importlib import resources
from itertools import groupby
from typing import NamedTuple, NewType

from msgspec.structs import replace
from rich.style import Style

from ...engine.analysis.slot_seconds import SlotSeconds, slot_seconds
from ...engine.core.advice import advise_limits, is_near_limit
from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.views import RunView, describe_run, run_view
from ...engine.core.waiting import ALIVE, RunnerStatus
from ...engine.domain.events import Event
from ...engine.domain.text import counted, format_duration
from ...engine.statefile.lists import PastAttemptRow
from ..model.board import Board
from ..model.graph.groups import ZoomStep
from ..model.graph.view import Graph
from ..model.inbox import EvidenceData, InboxCause
from ..model.overdue import is_overdue
from ..model.time_axis import activity_of, fitting_span
from ..model.timeline import TimelineRows
from ..text.columns import FILL
from ..text.figures import SECOND, number, wall_day
from ..text.glyphs import UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, sanitize
from . import timeline
from .detail import detail_page
from .evidence import cause_page, past_durations
from .graph import Highlight, drawing_row, graph_row, label_width
from .journal import event_row
from .runs import deadline_note
from .states import counts_text
from .tasks import RunContext, TaskNames
from .timeline_text import bar_legend

CAUSES_MAX = 10
_ACTS_MAX = 200
_SLOW_MAX = 20
_DRAWN_MAX = 300  # tasks; a run with more lists its groups
_ROWS_MAX = 300  # of tasks within groups, together
_COLUMNS = 76  # of text that does not wrap
_BAR_CELLS = 96
_NAME_CELLS_MAX = 32


class CauseEvidence(NamedTuple):
    """A cause in the inbox, and what was read about its first task."""

    cause: InboxCause
    evidence: EvidenceData


@dataclass(frozen=True)
class ReportData:
    """The data of a report.

    ``causes``: the first CAUSES_MAX of ``causes_total``; ``acts``: acts of operators and their notes, in order.
    ``runner``: who runs the run. ``near_limits``: earlier attempts of the tasks of ``tasks_near_limits``.
    """

    board: Board
    address: str
    now_us: int
    causes: Sequence[CauseEvidence] = ()
    causes_total: int = 0
    acts: Sequence[Event] = ()
    runner: RunnerStatus = ALIVE
    near_limits: Mapping[str, Sequence[PastAttemptRow]] = field(default_factory=dict)

    @property
    def run_view(self) -> RunView:
        """The run at the instant of the report."""
        return run_view(self.board.projection.run, self.runner, self.now_us, self.board.counts)

    @cached_property
    def run_context(self) -> RunContext:
        """The context of all lines, of which there are hundreds."""
        return RunContext(self.board, self.now_us, UTF8, runner=self.runner)


class ReportRow(NamedTuple):
    """A line of the timeline. ``members``: the rows of the tasks of a group, shown when it is opened."""

    line: Line
    members: Sequence[ReportRow] = ()


def headline(data: ReportData) -> str:
    run = data.board.projection.run
    sentence = f"{describe_run(data.run_view)}{deadline_note(run)}"
    return f"{one_line(run.dag_name)} {UTF8.dot} {one_line(run.run_id)}: {sentence}"


def fact_lines(data: ReportData) -> list[str]:
    """The time and place of the run, and the number of tasks in each state."""
    board, run = data.board, data.board.projection.run
    ended = f" to {wall_day(run.ended_at)}" if run.ended_at is not None else ", not ended"
    counts, took = counts_text(board.counts, data.runner), format_duration(data.run_view.clock)
    spent = [slots_line(spent)] if (spent := slot_seconds(board.projection)) else []
    return [
        f"{wall_day(run.started_at)}{ended}, {took}; in {one_line(data.address)}",
        f"{number(board.finished)} of {number(board.total)} done ({counts}), as of {wall_day(data.now_us)}",
        *spent,
    ]


def slots_line(spent: Mapping[str, SlotSeconds]) -> str:
    """The cost of the ended attempts, the dearest way to end first."""
    costs = sorted(spent.items(), key=lambda item: -item[1].seconds)
    parts = [f"{one_line(how)} {cost.seconds:,.1f} in {number(cost.attempts)}" for how, cost in costs]
    wasted = sum(cost.wasted_seconds for cost in spent.values())
    again = f"; {wasted:,.1f} of them repeated an earlier failure" if wasted else ""
    return f"slot seconds of attempts: {', '.join(parts)}{again}"


# --- The graph -----------------------------------------------------------------------------------------------------


def graph_lines(data: ReportData) -> list[Line]:
    """The drawing; of a large graph its groups."""
    context, graph = data.run_context, Graph(data.board, lambda name: label_width(name, data.run_context))
    graph.selected = None
    if len(graph.dag) > _DRAWN_MAX:
        graph.zoom = ZoomStep.GROUPS
        return [graph_row(graph, y, _COLUMNS, context, Highlight()) for y in range(graph.height)]
    graph.zoom = ZoomStep.DRAWING
    columns, highlight = graph.drawing.width, Highlight(has_bars=False)
    return [drawing_row(graph, y, 0, columns, context, highlight) for y in range(graph.height)]


# --- The timeline --------------------------------------------------------------------------------------------------


def timeline_rows(data: ReportData) -> list[ReportRow]:
    """All attempts from the first start to the last activity, in the rows of the console's timeline."""
    board, run = data.board, data.board.projection.run
    activity = activity_of(board.projection.tasks.values(), run.started_at, data.runner)
    is_live = run.ended_at is None and activity.is_active and data.runner.is_alive
    end = data.now_us if is_live else max(activity.end, run.started_at + 1)
    span = fitting_span(run.started_at, end, _BAR_CELLS, pauses=activity.pauses)
    listed = TimelineRows(board)
    titles = TaskNames((group.title for group in listed.groups), prefix="")
    names = TaskNames(board.projection.tasks, prefix="")
    context = replace(data.run_context, names=names, titles=titles, has_durations=False)
    columns = timeline.group_label_columns(listed.groups, context, 3 * _NAME_CELLS_MAX)
    now_us = data.now_us if is_live else None
    lanes = _Lanes(data, listed, context, columns, timeline.BarContext(span, now_us, UTF8, data.runner))
    axis = ReportRow([Piece(" " * columns), *timeline.axis_line(span, now_us, UTF8)])
    rows = [*_lanes(lanes)]
    painted = (row.line for row in rows)
    (legend,) = bar_legend(painted, UTF8, columns + span.cells, has_groups=bool(listed.groups))
    return [axis, *rows, ReportRow(legend)]


class _Lanes(NamedTuple):
    """The parts of the rows of the timeline."""

    data: ReportData
    listed: TimelineRows
    context: RunContext
    columns: int
    bars: timeline.BarContext


def _lanes(lanes: _Lanes) -> Iterator[ReportRow]:
    """The rows of the console's timeline: groups with their tasks, and tasks beside groups."""
    listed, members_max = lanes.listed, _ROWS_MAX // max(len(lanes.listed.groups), 1)
    for key in listed.rows():
        if isinstance(key, str):
            yield _task_lane(key, lanes, timeline.FOLD_INDENT if listed.groups else 0)
            continue
        worst = sorted((lanes.data.board.row(name) for name in listed.worst_tasks(key, members_max)), key=_first_start)
        members = [_task_lane(row.name, lanes, 2 * timeline.FOLD_INDENT) for row in worst]
        left_out = len(listed.members(key)) - len(members)
        if left_out:
            members.append(ReportRow([Piece(f"    {number(left_out)} more tasks", Role.DIM)]))
        yield _group_lane(key, lanes, members)


def _task_lane(name: str, lanes: _Lanes, indent: int) -> ReportRow:
    row = lanes.data.board.row(name)
    label = timeline.label_line(row, lanes.columns - 1, lanes.context, indent=indent)
    bar = timeline.bar_line(row, lanes.bars, lanes.data.run_context.view(name).instant)
    return ReportRow([*label, Piece(" "), *bar])


def _group_lane(index: int, lanes: _Lanes, members: Sequence[ReportRow]) -> ReportRow:
    group = lanes.listed.group(index)
    label = timeline.group_label_line(group, lanes.columns - 1, lanes.context, is_open=False)
    bar = timeline.group_bar_line(group, lanes.listed.activity(index), lanes.bars)
    return ReportRow([*label, Piece(" "), *bar], members)


def _first_start(row: TaskRow) -> tuple[bool, int, int]:
    first = next(iter(row.attempts.values()), None)
    return first is None, 0 if first is None else first.started_at, row.position


def _duration_us(name: str, data: ReportData) -> int:
    attempt = data.board.row(name).latest
    return 0 if attempt is None else data.run_context.attempt(attempt).clock


# --- Causes, acts, slow tasks --------------------------------------------------------------------------------------


def cause_lines(cause_evidence: CauseEvidence, data: ReportData) -> list[Line]:
    """The page of evidence on a cause; the first line names it."""
    if cause_evidence.cause.count == 1:
        return detail_page(
            data.board.row(cause_evidence.cause.tasks[0]), data.run_context, cause_evidence.evidence, _COLUMNS
        )
    return cause_page(cause_evidence.cause, data.run_context, cause_evidence.evidence, _COLUMNS)


def left_out_causes(data: ReportData) -> str:
    """The number of causes without a page; empty if all have one."""
    left_out = data.causes_total - len(data.causes)
    if not data.causes_total:
        return "Nothing needs a human."
    return f"{counted(left_out, 'more cause')}." if left_out > 0 else ""


def act_lines(data: ReportData) -> list[Line]:
    """The acts and notes of operators, the latest ones of many."""
    started_at, shown = data.board.projection.run.started_at, data.acts[-_ACTS_MAX:]
    earlier = len(data.acts) - len(shown)
    lines: list[Line] = [[Piece(f"{number(earlier)} earlier acts", Role.DIM)]] if earlier else []
    lines += [event_row(event, started_at, True, FILL, _NAME_CELLS_MAX // 2, UTF8) for event in shown]
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


def tasks_near_limits(board: Board) -> list[str]:
    """The tasks that took nearly their timeout or more, or held much memory: the first of them."""
    found = []
    for name, row in board.projection.tasks.items():
        spec = spec_of(row)
        for one in row.attempts.values():
            if is_near_limit((one.duration_us or 0) / SECOND, spec.timeout, (one.max_rss_kb or 0) * 1024, spec.memory):
                found.append(name)
                break
    return found[:_SLOW_MAX]


def limit_lines(data: ReportData) -> list[str]:
    """The limits that their earlier attempts speak for, as `check --state` proposes them."""
    lines = []
    for name, attempts in data.near_limits.items():
        spec, past = spec_of(data.board.row(name)), past_durations(attempts)
        lines += [f"{one_line(name)}: {advice}" for advice in advise_limits(past, spec.timeout, spec.memory)]
    return lines or ["No task came near its limits, or there are too few attempts to know better ones."]


# --- A report as one HTML file ---------------------------------------------------------------------------------------
#
# No network, no script, and one style sheet, which its Content-Security-Policy knows.
#
# Every text of the report becomes part of the page in ``_escaped``, and nowhere else: another text is no ``Html``.


Html = NewType("Html", str)

_OPEN_CAUSES = 3  # the others are folded


class PageColours(NamedTuple):
    """Colours of the page, as ``#rrggbb``, and the styles of roles."""

    background: str
    foreground: str
    styles: Mapping[str, Style]


def report_html(data: ReportData, light: PageColours, dark: PageColours) -> str:
    """The page, with light or dark colours by the reader's preference."""
    sheet = (resources.files(__package__) / "report.css").read_text("utf-8")
    style = f"{sheet}{_colour_rules(light)}@media(prefers-color-scheme:dark){{{_colour_rules(dark)}}}"
    return _html(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>{title}</title><style>{style}</style></head><body>"
        "<h1>{title}</h1>{facts}"
        '<h2>Graph</h2><div class="wide"><pre id="graph">{graph}</pre></div>'
        '<h2>Timeline</h2><div class="wide"><div id="lanes">{lanes}</div></div>'
        "<h2>Causes</h2>{causes}{more_causes}"
        "<h2>Acts and notes</h2>{acts}"
        "<h2>Slower than usual</h2>{slow}"
        "<h2>Limits</h2>{limits}"
        "</body></html>\n",
        policy=_policy(style),
        title=_escaped(headline(data)),
        style=Html(style),
        facts=_paragraphs(fact_lines(data)),
        graph=_lines(graph_lines(data)),
        lanes=_html_lanes(timeline_rows(data)),
        causes=_joined(_cause(one, data, place < _OPEN_CAUSES) for place, one in enumerate(data.causes)),
        more_causes=_paragraphs(filter(None, [left_out_causes(data)])),
        acts=_joined(_html('<p class="line">{line}</p>', line=_line(line)) for line in act_lines(data)),
        slow=_paragraphs(slow_lines(data)),
        limits=_paragraphs(limit_lines(data)),
    )


def _html(template: str, **parts: Html | int) -> Html:
    """A part of the page. ``template``: a literal of this module; ``parts`` in its braces are numbers or HTML."""
    return Html(template.format_map(parts))


def _joined(parts: Iterable[Html], between: str = "") -> Html:
    return Html(between.join(parts))


def _escaped(text: str) -> Html:
    """Text of the report as text of the page: without control characters, tags and quotes."""
    return Html(escape(sanitize(text), quote=True))


def _policy(style: str) -> Html:
    """The Content-Security-Policy: nothing but this style sheet."""
    return Html(f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'")


def _paragraphs(texts: Iterable[str]) -> Html:
    return _joined(_html("<p>{text}</p>", text=_escaped(text)) for text in texts)


def _line(line: Line) -> Html:
    return _joined(map(_piece, line))


def _piece(piece: Piece) -> Html:
    text = _escaped(piece.text)
    if piece.role is Role.TEXT or not piece.text.strip():
        return text
    return _html('<b class="{role}">{text}</b>', role=_escaped(piece.role), text=text)


def _lines(lines: Iterable[Line]) -> Html:
    return _joined((Html(_line(line).rstrip()) for line in lines), "\n")


def _html_lanes(rows: Iterable[ReportRow]) -> Html:
    """Rows of groups open to those of their tasks; the rows between are blocks."""
    parts: list[Html] = []
    for is_group, block in groupby(rows, lambda row: bool(row.members)):
        if is_group:
            parts += map(_group, block)
        else:
            parts.append(_html("<pre>{rows}</pre>", rows=_lines(row.line for row in block)))
    return _joined(parts)


def _group(row: ReportRow) -> Html:
    """A group; the sign that it can be opened is that of the style sheet, which knows whether it is open."""
    return _html(
        "<details><summary>{summary}</summary><pre>{rows}</pre></details>",
        summary=_lines([row.line[1:]]),
        rows=_lines(member.line for member in row.members),
    )


def _cause(cause_evidence: CauseEvidence, data: ReportData, is_open: bool) -> Html:
    first, *rest = cause_lines(cause_evidence, data)
    return _html(
        '<details{open}><summary>{summary}</summary><div class="wide"><pre>{text}</pre></div></details>',
        open=Html(" open" if is_open else ""),
        summary=Html(_line(first).strip()),
        text=_lines(rest),
    )


def _colour_rules(colours: PageColours) -> str:
    page = f"body{{background:{colours.background};color:{colours.foreground}}}"
    styles = sorted(colours.styles.items())  # the same page in every process
    rules = (f".{role}{{{css}}}" for role, style in styles if (css := style.get_html_style()))
    return "".join([page, *rules])


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
