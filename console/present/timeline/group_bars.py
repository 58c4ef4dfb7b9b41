"""A group of tasks as one bar: the taller, the more of them ran at once; failures and dead letters stand in front."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....engine.core.outlook import ALIVE, RunnerStatus
from ....engine.domain.states import TaskState
from ...model.columns import ALL_COLUMNS
from ...model.graph.groups import GraphGroup
from ...model.group_activity import CellActivity, GroupActivity
from ...model.time_span import Span
from ...text.durations import column, number
from ...text.glyphs import Glyphs
from ...text.pieces import Line, Piece, Role, fit, width
from ...text.text import pad
from .. import counts
from ..states import STATE_STYLES, state_sign
from ..task_names import TaskNames
from .bars import FOLD_INDENT, TOOK_CELLS, due_text, fit_label_columns
from .cells import BarCells, CellRank, end_of_past

_FACTS_CELLS = 6  # beside two counts: signs and gaps
_TOOK_FROM = 110  # columns
_LEVELS = 6  # heights of a bar; the tallest is that of a task's bar


def group_bar_line(
    group: GraphGroup,
    activity: GroupActivity,
    axis: Span,
    borders: Sequence[int],
    now_us: int | None,
    glyphs: Glyphs,
    runner: RunnerStatus = ALIVE,
) -> Line:
    """The past of a group as one bar, and what runs now. ``borders``: the instants between the cells of ``axis``."""
    canvas, until = BarCells(axis, now_us, glyphs), end_of_past(axis, now_us, runner)
    past = min(max(axis.cell(until) + 1, 0), axis.cells)
    found = activity.cells(borders[: past + 1]) if past else []
    running_from = axis.cell(activity.oldest_running) if activity.oldest_running is not None else axis.cells
    peak = max((cell.running for cell in found), default=0)
    for place, cell in enumerate(found):
        _paint_cell(canvas, place, cell, peak, Role.RUNNING if place >= running_from else Role.DONE, glyphs)
    if now_us is not None and runner.is_alive:
        _paint_now(canvas, group, activity, now_us, glyphs)
    return canvas.line()


def _paint_cell(canvas: BarCells, place: int, cell: CellActivity, peak: int, role: Role, glyphs: Glyphs) -> None:
    """The worst of what falls into a cell."""
    if cell.dead_letters:
        canvas.put(place, glyphs.dead, Role.HUMAN, CellRank.DECISION)
    elif cell.failures:
        canvas.put(place, glyphs.run_fail, Role.FAILED, CellRank.MARK)
    elif cell.retried:
        canvas.put(place, glyphs.retrying, Role.WAITING, CellRank.MARK)
    elif cell.running:
        level = -(-cell.running * _LEVELS // peak)
        canvas.put(place, glyphs.spark[level - 1], role, CellRank.BAR)
    elif cell.waiting:
        canvas.put(place, glyphs.backoff, Role.WAITING, CellRank.GAP)


def _paint_now(canvas: BarCells, group: GraphGroup, activity: GroupActivity, now_us: int, glyphs: Glyphs) -> None:
    """At now and right of it: how many run, or when the next of the waiting ones continues."""
    now_cell, running = canvas.axis.cell(now_us), group.counts[TaskState.RUNNING]
    if running:
        canvas.put(now_cell, glyphs.running, Role.RUNNING, CellRank.HEAD)
        canvas.write(now_cell + 2, number(running), Role.RUNNING)
    elif activity.next_due is not None:
        canvas.write(now_cell + 1, due_text(activity.next_due, now_us, glyphs), Role.WAITING)


def group_label_line(
    group: GraphGroup,
    columns: int,
    glyphs: Glyphs,
    titles: TaskNames,
    *,
    is_open: bool,
    role: Role = Role.TEXT,
    shown: Collection[str] = ALL_COLUMNS,
    took: str = "",
) -> Line:
    """Whether the group is open, the sign of its worst state, its title, and the columns ``shown``."""
    state = counts.leading_state(group.counts)
    facts = counts.progress(group.counts, glyphs) if "done" in shown else []
    facts = [*facts, Piece(took, Role.DIM)] if took else facts
    lead = [
        Piece(f" {glyphs.open if is_open else glyphs.closed} ", Role.DIM),
        Piece(state_sign(state, glyphs), STATE_STYLES[state].role),
        Piece(" "),
    ]
    room = columns - width(lead) - width(facts) - 1
    title = pad(titles.short(group.title, room, glyphs.more), room)
    return fit([*lead, Piece(f"{title} ", role), *facts], columns, glyphs.more)


def group_duration_text(activity: GroupActivity) -> str:
    """How long all ended attempts of a group ran together; blank before the first has ended."""
    return f" {column(activity.work_us)}" if activity.last_end is not None else " " * TOOK_CELLS


def group_label_columns(
    groups: Sequence[GraphGroup],
    names: TaskNames,
    titles: TaskNames,
    columns: int,
    shown: Collection[str] = ALL_COLUMNS,
) -> int:
    """Width of the labels of groups and tasks, with the columns ``shown``."""
    took = TOOK_CELLS if has_duration_column(columns, shown) else 0
    if not groups:
        return fit_label_columns(names.longest, columns) + took
    most = max(len(number(len(group.members))) for group in groups)
    facts = 2 * most + _FACTS_CELLS if "done" in shown else 0
    name_cells = max(names.longest + 2 * FOLD_INDENT, titles.longest + FOLD_INDENT + facts)
    return fit_label_columns(name_cells, columns) + took


def has_duration_column(columns: int, shown: Collection[str]) -> bool:
    """Whether rows of ``columns`` cells show how long the attempts ran."""
    return "took" in shown and columns >= _TOOK_FROM
