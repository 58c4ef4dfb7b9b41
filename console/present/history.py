"""The grid of the last runs of a flow in rows, and the calendar of its days."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from ...engine.core.projection import RunRow
from ...engine.core.views import Signed, run_style, run_view, state_style
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.states import TaskState
from ...engine.domain.text import counted, format_duration
from ...engine.statefile.lists import quantile
from ..model.board import runner_of
from ..model.lists import ALL_COLUMNS
from ..model.runs import HistoryCell, HistoryOrder, RunDay, RunGrid, TaskTrend, is_bad, weeks_until
from ..sessions.session import SessionStatus
from ..text.figures import CLOCK_CELLS, column, local_day, number, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join
from ..text.text import cells, one_line, pad, pad_left, shorten_middle
from .states import order_line, sign_and_word

_NAME_CELLS = (12, 40)
_NARROW_CELLS = 3  # sign, mark, gap
_WIDE_CELLS = _NARROW_CELLS - 1 + CLOCK_CELLS + 1
_MEDIAN_CELLS = CLOCK_CELLS + 2
_TREND_FROM = 66  # columns
_WHOLE_RUN = "the whole run"
_DAY_CELLS = 7
_WEEK_CELLS = 14
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class GridLayout(NamedTuple):
    """The widths of the grid. ``first``: the first run that has room; ``first_wide``: the first one with durations.

    ``trend_cells``: with a blank on either side; 0 if the trend is not shown.
    """

    name_cells: int
    median_cells: int
    trend_cells: int
    first: int
    first_wide: int
    runs: int

    @property
    def places(self) -> range:
        return range(self.first, self.runs)


def grid_layout(grid: RunGrid, columns: int, chosen: Collection[str] = ALL_COLUMNS) -> GridLayout:
    """Durations for as many of the latest runs as have room beside the names; signs for those before.

    ``chosen``: the columns beside the runs.
    """
    count, (low, high) = len(grid.runs), _NAME_CELLS
    longest = max((cells(one_line(task.name)) for task in grid.tasks), default=low)
    name_cells = max(min(longest, high), min(len(_WHOLE_RUN), columns // 4), low)
    median_cells = _MEDIAN_CELLS if "usual" in chosen else 1
    trend_cells = max(count, len("trend")) + 2 if columns >= _TREND_FROM and "trend" in chosen else 0
    side_cells = 1 + median_cells + trend_cells
    name_cells = max(min(name_cells, columns - side_cells - count * _NARROW_CELLS), low)
    room = columns - name_cells - side_cells
    shown = max(min(count, room // _NARROW_CELLS), 0)
    wide = max(min(shown, (room - shown * _NARROW_CELLS) // (_WIDE_CELLS - _NARROW_CELLS)), 0)
    return GridLayout(name_cells, median_cells, trend_cells, count - shown, count - wide, count)


def title_line(grid: RunGrid, layout: GridLayout, place: int | None = None) -> Line:
    """The names of the columns: the day of each run, or its time if all runs are of one day."""
    days = {local_day(one.run.started_at) for one in grid.runs}
    line: Line = [Piece(f" {pad('task', layout.name_cells)}{_median_cell('usual', layout)}", Role.DIM)]
    if layout.trend_cells:
        line.append(Piece(pad(" trend", layout.trend_cells), Role.DIM))
    for at in layout.places:
        started_at = grid.runs[at].run.started_at
        when = wall_day(started_at, None)[:5] if len(days) > 1 else wall(started_at, None)[:5]
        narrow = when[3:] if len(days) > 1 else when[:2]
        label = f"{when:>{_WIDE_CELLS - 1}} " if at >= layout.first_wide else f"{narrow:<{_NARROW_CELLS}}"
        line.append(Piece(label, Role.STRONG if at == place else Role.DIM))
    return line


def _median_cell(text: str, layout: GridLayout) -> str:
    return f"{pad_left(text, layout.median_cells - 1)} " if layout.median_cells > 1 else " "


def runs_line(grid: RunGrid, layout: GridLayout, glyphs: Glyphs, now_us: int, status: SessionStatus) -> Line:
    """The runs themselves: state and duration."""
    durations = [_duration_us(one.run) for one in grid.runs]
    ended = sorted(lasts for lasts in durations if lasts is not None)
    median = format_duration(quantile(ended, 0.5)) if ended else ""
    line: Line = [
        Piece(f" {pad(_WHOLE_RUN, layout.name_cells)}", Role.STRONG),
        Piece(_median_cell(median, layout), Role.DIM),
    ]
    line += _trend(durations, [False] * len(durations), layout.trend_cells, glyphs)
    for at in layout.places:
        run = grid.runs[at].run
        view = run_view(run, runner_of(run, status), now_us)
        line += _cell(view, view.clock, False, at >= layout.first_wide, False, glyphs)
    return line


def _duration_us(run: RunRow) -> int | None:
    """How long a run lasted, until it was blocked if it is; None while it can go on."""
    end = run.ended_at if run.ended_at is not None else run.blocked_since
    return None if end is None else end - run.started_at


def task_line(
    task: TaskTrend, grid: RunGrid, layout: GridLayout, glyphs: Glyphs, status: SessionStatus, place: int | None = None
) -> Line:
    """A task in each run. ``place``: the run under the cursor, if the cursor is on this row."""
    typical = task.typical_us
    name = pad(shorten_middle(one_line(task.name), layout.name_cells, glyphs.more), layout.name_cells)
    line: Line = [
        Piece(" "),
        Piece(name, Role.TEXT if place is None else Role.CURSOR),
        Piece(_median_cell("" if typical is None else format_duration(typical), layout), Role.DIM),
    ]
    durations = [None if cell is None else cell.duration_us for cell in task.cells]
    line += _trend(durations, [is_bad(cell) for cell in task.cells], layout.trend_cells, glyphs)
    for at in layout.places:
        cell, is_wide = task.cells[at], at >= layout.first_wide
        if cell is None:
            line.append(Piece(" " * (_WIDE_CELLS if is_wide else _NARROW_CELLS), _under(Role.DIM, at == place)))
        else:
            style = state_style(cell.state, runner_of(grid.runs[at].run, status))
            line += _cell(style, cell.duration_us, task.is_slow(at), is_wide, at == place, glyphs)
    return line


def _cell(
    style: Signed, lasts: int | None, is_slow: bool, is_wide: bool, is_selected: bool, glyphs: Glyphs
) -> Iterator[Piece]:
    yield Piece(glyphs.of(style.sign), _under(style.role, is_selected))
    yield Piece(glyphs.up if is_slow else " ", _under(Role.WARNING, is_selected))
    if is_wide:
        text = column(lasts) if lasts is not None else " " * CLOCK_CELLS
        yield Piece(text, _under(Role.WARNING if is_slow else Role.TEXT, is_selected))
    yield Piece(" ")


def _under(role: str, is_selected: bool) -> str:
    return Role.CURSOR if is_selected else role


def _trend(durations: Sequence[int | None], failed: Sequence[bool], trend_cells: int, glyphs: Glyphs) -> Line:
    """A column per run, as high as the task took long, usually half of the row; failed ones in their colour."""
    if not trend_cells:
        return []
    known = sorted(lasts for lasts in durations if lasts is not None)
    most = max(known[-1], 2 * quantile(known, 0.5)) if known else 0
    steps, line = len(glyphs.spark), [Piece(" ")]
    for lasts, is_failed in zip(durations, failed, strict=True):
        if lasts is None or most == 0:
            line.append(Piece(glyphs.dot, Role.DIM))
        else:
            height = min(max(round(lasts / most * steps), 1), steps)
            line.append(Piece(glyphs.spark[height - 1], Role.FAILED if is_failed else Role.DONE))
    line.append(Piece(" " * (trend_cells - len(line))))
    return line


def heading_line(grid: RunGrid, shown: int, filter_text: str, order: HistoryOrder, glyphs: Glyphs) -> tuple[Line, Line]:
    """Left and right side of the line above the grid."""
    slow = slow_count(grid)
    parts: list[Line] = [
        [Piece(counted(len(grid.runs), "run"), Role.STRONG)],
        [Piece(counted(len(grid.tasks), "task"))],
    ]
    if grid.left_out:
        parts.append([Piece(f"{number(grid.left_out)} more not listed", Role.WARNING)])
    if filter_text:
        parts.append([Piece(f"/{one_line(filter_text)}: {number(shown)}", Role.MATCH)])
    if slow:
        parts.append([Piece(f"{number(slow)} slower than usual {glyphs.up}", Role.WARNING)])
    dot = f" {glyphs.dot} "
    return [Piece(" "), *join(parts, dot)], order_line(order, glyphs)


def slow_count(grid: RunGrid) -> int:
    """How many tasks of the latest run took far longer than in the runs before."""
    last = len(grid.runs) - 1
    return sum(task.is_slow(last) for task in grid.tasks) if last >= 0 else 0


def cell_lines(
    grid: RunGrid, task: TaskTrend | None, place: int, glyphs: Glyphs, now_us: int, status: SessionStatus
) -> list[Line]:
    """The run and the task under the cursor, in words."""
    if not grid.runs:
        return [[Piece(" no run yet", Role.DIM)]]
    run = grid.runs[place].run
    runner = runner_of(run, status)
    view = run_view(run, runner, now_us)
    first: Line = [
        Piece(f" {one_line(run.run_id)}", Role.TITLE),
        Piece(f"  {wall_day(run.started_at, None)}  ", Role.DIM),
        sign_and_word(view, glyphs),
        Piece("" if view.is_moving else f" after {', '.join(filter(None, (format_duration(view.clock), view.fact)))}"),
    ]
    if task is None:
        return [first]
    return [first, _cell_line(task, place, runner, glyphs), _task_line(task, glyphs)]


def _cell_line(task: TaskTrend, place: int, runner: RunnerStatus, glyphs: Glyphs) -> Line:
    cell = task.cells[place]
    name = Piece(f" {one_line(task.name)}", Role.TITLE)
    if cell is None:
        return [name, Piece("  this run did not have it", Role.DIM)]
    duration = "" if cell.duration_us is None else f" {format_duration(cell.duration_us)}"
    tries = f" {glyphs.dot} {cell.attempts} attempts" if cell.attempts > 1 else ""
    line = [name, Piece("  "), sign_and_word(state_style(cell.state, runner), glyphs), Piece(f"{duration}{tries}")]
    if task.is_slow(place) and cell.duration_us is not None and task.typical_us:
        times = cell.duration_us / task.typical_us
        line.append(Piece(f" {glyphs.dot} {glyphs.up} {times:.1f} times the usual", Role.WARNING))
    return line


def _task_line(task: TaskTrend, glyphs: Glyphs) -> Line:
    durations, bad = task.durations, sum(map(is_bad, task.cells))
    known = sum(cell is not None and cell.state is not TaskState.PENDING for cell in task.cells)
    parts = [f"failed in {bad} of {known} runs" if bad else f"never failed in {counted(known, 'run')}"]
    if durations:
        low, high = format_duration(durations[0]), format_duration(durations[-1])
        parts.append(f"took {low} to {high}" if low != high else f"took {low}")
    return [Piece(f" {f' {glyphs.dot} '.join(parts)}", Role.DIM)]


def grid_lines(
    grid: RunGrid, tasks: Sequence[TaskTrend], columns: int, now_us: int, glyphs: Glyphs, status: SessionStatus
) -> list[Line]:
    """The whole grid, as the shell prints it."""
    layout = grid_layout(grid, columns)
    lines = [title_line(grid, layout), runs_line(grid, layout, glyphs, now_us, status)]
    return [*lines, *(task_line(task, grid, layout, glyphs, status) for task in tasks)]


# --- The calendar --------------------------------------------------------------------------------------------------


def calendar_lines(
    days: Mapping[date, RunDay], last: date, weeks: int, columns: int, glyphs: Glyphs, status: SessionStatus
) -> list[Line]:
    """A row per week, Monday first: of each day the worst run and how many there were."""
    heading: Line = [Piece(" " * _WEEK_CELLS), *(Piece(f"{day:<{_DAY_CELLS}}", Role.DIM) for day in _WEEKDAYS)]
    lines = [heading]
    for week in weeks_until(last, weeks):
        line: Line = [Piece(f" {week[0]:%d %b}".ljust(_WEEK_CELLS), Role.DIM)]
        for day in week:
            line += _day_cell(days.get(day), day, last, glyphs, status)
        lines.append(line)
    return [fit(line, columns, glyphs.more) for line in lines]


def _day_cell(found: RunDay | None, day: date, last: date, glyphs: Glyphs, status: SessionStatus) -> Line:
    if found is None:
        return [Piece(f"{glyphs.dot if day <= last else ' ':<{_DAY_CELLS}}", Role.DIM)]
    style = run_style(found.worst.run, runner_of(found.worst.run, status))
    count = f" {number(found.runs)}" if found.runs > 1 else ""
    sign = glyphs.of(style.sign)
    return [Piece(f"{sign}{count}", style.role), Piece(" " * (_DAY_CELLS - len(sign + count)))]


def history_value(task: TaskTrend, grid: RunGrid) -> dict[str, object]:
    """A task with its runs, for JSON."""
    runs = [_cell_value(task, place, cell, grid) for place, cell in enumerate(task.cells) if cell is not None]
    return {"task": task.name, "usual_us": task.typical_us, "runs": runs}


def _cell_value(task: TaskTrend, place: int, cell: HistoryCell, grid: RunGrid) -> dict[str, object]:
    return {
        "run_id": grid.runs[place].run.run_id,
        "state": str(cell.state),
        "attempts": cell.attempts,
        "duration_us": cell.duration_us,
        "slow": task.is_slow(place),
    }
