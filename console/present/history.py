"""The grid of the last runs of a flow in rows, and the calendar of its days."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from ...engine.core.projection import RunRow, RunSummary, TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.views import RunView, Sign, Signed, counted_states, run_style, run_view, state_style
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.states import TaskState
from ...engine.domain.text import counted, format_duration
from ...engine.statefile.lists import quantile
from ..model.board import SessionStatus, runner_of
from ..model.runs import HistoryCell, HistoryOrder, RunDay, RunGrid, TaskTrend, is_bad, weeks_until
from ..text.figures import CLOCK_CELLS, SECOND, column, column_chart, local_day, number, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, join
from ..text.text import cells, one_line, pad, pad_left, shorten_middle
from .states import order_line, sign_and_word

_NAME_CELLS = (12, 40)
_WIDE_CELLS = 2 + CLOCK_CELLS + 1  # sign, mark, duration, gap
_MEDIAN_CELLS = CLOCK_CELLS + 2
_DATE_CELLS = 5
_DATE_STEP = 8  # cells from one date above the heat map to the next
_WHOLE_RUN = "the whole run"
_CHART_ROWS_MIN = 4
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

#: Up to which multiple of the usual duration a cell of the heat map has which of the shades.
_SHADES = (0.67, 1.5, 2.5)


class GridLayout(NamedTuple):
    """The widths of the grid. ``first``: the first run of the heat map, which has a cell for each run from it on;
    ``first_wide``: the first one with a duration.

    ``heat_cells``: with a blank behind them; 0 without a heat map.
    """

    name_cells: int
    median_cells: int
    heat_cells: int
    first: int
    first_wide: int
    runs: int

    @property
    def places(self) -> range:
        """The runs that can be selected."""
        return range(min(self.first, self.first_wide), self.runs)


def grid_layout(grid: RunGrid, columns: int) -> GridLayout:
    """A heat map of as many of the latest runs as have room beside the names, then durations of the last of them."""
    count, (low, high) = len(grid.runs), _NAME_CELLS
    longest = max((cells(one_line(task.name)) for task in grid.tasks), default=low)
    name_cells = max(min(longest, high), min(len(_WHOLE_RUN), columns // 4), low)
    median_cells = _MEDIAN_CELLS
    wanted = count + 1 if count else 0
    name_cells = max(min(name_cells, columns - 1 - median_cells - wanted - _WIDE_CELLS), low)
    room = columns - 1 - name_cells - median_cells
    heat_cells = min(wanted, max(room - _WIDE_CELLS, 0))
    wide = max(min(count, (room - heat_cells) // _WIDE_CELLS), 0)
    return GridLayout(name_cells, median_cells, heat_cells, count - max(heat_cells - 1, 0), count - wide, count)


def title_line(grid: RunGrid, layout: GridLayout, place: int | None = None) -> Line:
    """The names of the columns: the day of each run, or its time if all runs are of one day."""
    days = {local_day(one.run.started_at) for one in grid.runs}
    line: Line = [Piece(f" {pad('task', layout.name_cells)}{_median_cell('usual', layout)}", Role.DIM)]

    def when(at: int) -> str:
        started_at = grid.runs[at].run.started_at
        return wall_day(started_at)[:_DATE_CELLS] if len(days) > 1 else wall(started_at)[:_DATE_CELLS]

    if layout.heat_cells:
        last = layout.first + layout.heat_cells - _DATE_CELLS  # a date that is cut would be another one
        dates = "".join(f"{when(at):{_DATE_STEP}}" for at in range(layout.first, layout.runs, _DATE_STEP) if at <= last)
        line.append(Piece(pad(dates.rstrip(), layout.heat_cells)[: layout.heat_cells], Role.DIM))
    for at in range(layout.first_wide, layout.runs):
        line.append(Piece(f"{when(at):>{_WIDE_CELLS - 1}} ", Role.STRONG if at == place else Role.DIM))
    return line


def _median_cell(text: str, layout: GridLayout) -> str:
    return f"{pad_left(text, layout.median_cells - 1)} " if layout.median_cells > 1 else " "


def runs_line(grid: RunGrid, layout: GridLayout, glyphs: Glyphs, now_us: int, status: SessionStatus) -> Line:
    """The runs themselves: state and duration."""
    durations = [_duration_us(one.run) for one in grid.runs]
    ended = sorted(lasts for lasts in durations if lasts is not None)
    usual = quantile(ended, 0.5) if ended else None
    line: Line = [
        Piece(f" {pad(_WHOLE_RUN, layout.name_cells)}", Role.STRONG),
        Piece(_median_cell("" if usual is None else format_duration(usual), layout), Role.DIM),
    ]
    views = [_view_of(one, status, now_us) for one in grid.runs]
    if layout.heat_cells:
        found = zip(views, durations, strict=True)
        heat = [
            _heat_piece(view, lasts if view.sign is Sign.DONE else None, usual, False, glyphs) for view, lasts in found
        ]
        line += [*heat[layout.first :], Piece(" ")]
    for at in range(layout.first_wide, layout.runs):
        line += _wide_cell(views[at], views[at].clock, False, False, glyphs)
    return line


def _view_of(one: RunSummary, status: SessionStatus, now_us: int) -> RunView:
    """What is true of a run; its tasks decide whether it works or waits."""
    return run_view(one.run, runner_of(one.run, status), now_us, counted_states(one.counts, one.asked))


def _duration_us(run: RunRow) -> int | None:
    """How long a run lasted, until it was blocked if it is; None while it can go on."""
    end = run.ended_at if run.ended_at is not None else run.blocked_since
    return None if end is None else max(end - run.started_at - run.waited_us, 0)


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
    if layout.heat_cells:
        line += [
            *(_heat_cell(task, at, grid, glyphs, status, place) for at in range(layout.first, layout.runs)),
            Piece(" "),
        ]
    for at in range(layout.first_wide, layout.runs):
        cell = task.cells[at]
        if cell is None:
            line.append(Piece(" " * _WIDE_CELLS, _under(Role.DIM, at == place)))
        else:
            style = state_style(cell.state, runner_of(grid.runs[at].run, status))
            line += _wide_cell(style, cell.duration_us, task.is_slow(at), at == place, glyphs)
    return line


def _heat_cell(
    task: TaskTrend, at: int, grid: RunGrid, glyphs: Glyphs, status: SessionStatus, place: int | None
) -> Piece:
    cell = task.cells[at]
    if cell is None:
        return Piece(" ", _under(Role.DIM, at == place))
    style = state_style(cell.state, runner_of(grid.runs[at].run, status))
    piece = _heat_piece(style, cell.ok_us, task.typical_us, task.is_slow(at), glyphs)
    return piece._replace(role=_under(piece.role, at == place))


def _heat_piece(style: Signed, ok_us: int | None, usual_us: int | None, is_slow: bool, glyphs: Glyphs) -> Piece:
    """One cell: the darker, the longer a success took beside what is usual; anything else has its own sign."""
    if ok_us is None or not usual_us:
        return Piece(glyphs.of(style.sign), style.role)
    shade = glyphs.heat[bisect_left(_SHADES, ok_us / usual_us)]
    return Piece(shade, Role.WARNING if is_slow else Role.DONE)


def _wide_cell(style: Signed, lasts: int | None, is_slow: bool, is_selected: bool, glyphs: Glyphs) -> Iterator[Piece]:
    yield Piece(glyphs.of(style.sign), _under(style.role, is_selected))
    yield Piece(glyphs.up if is_slow else " ", _under(Role.WARNING, is_selected))
    text = column(lasts) if lasts is not None else " " * CLOCK_CELLS
    yield Piece(text, _under(Role.WARNING if is_slow else Role.TEXT, is_selected))
    yield Piece(" ")


def _under(role: str, is_selected: bool) -> str:
    return Role.CURSOR if is_selected else role


# --- How long a task took in each run, beside its timeout ------------------------------------------------------------


_CHART_LABEL_CELLS = CLOCK_CELLS + 2
_COLUMN_CELLS_MAX = 4  # of a run, with a gap
_TIMEOUT_SHOWN = 4.0  # at most so many times the longest duration; a higher timeout would make all columns flat


def duration_lines(
    task: TaskTrend,
    timeout_us: int | None,
    rows: int,
    columns: int,
    glyphs: Glyphs,
    place: int | None = None,
    each: str = "run",
) -> list[Line]:
    """A column per run, or what ``each`` cell is, as high as it took long, with the timeout as a line across.

    Failures have their colour. The first of the ``rows`` lines says what is shown; ``place``: the run under the
    cursor. Empty if the task never ended, or without room.
    """
    found = [(at, cell.duration_us) for at, cell in enumerate(task.cells) if cell is not None and cell.duration_us]
    if rows < _CHART_ROWS_MIN or not found:
        return []
    longest, height, room = max(lasts for _, lasts in found), rows - 1, columns - _CHART_LABEL_CELLS
    limit_us = timeout_us if timeout_us is not None and timeout_us <= _TIMEOUT_SHOWN * longest else None
    most = max(longest, limit_us or 0)
    limit_row = height - max(-(-limit_us * height // most), 1) if limit_us is not None else -1
    size = max(min(room // len(found), _COLUMN_CELLS_MAX), 1)
    shown = found[-(room // size) :]
    roles = [_column_role(task, at, place) for at, _ in shown]
    lines: list[Line] = [[Piece(f" {_describe_durations(task, timeout_us, longest, each, glyphs)}", Role.DIM)]]
    for row, text in enumerate(column_chart([lasts for _, lasts in shown], most, height, glyphs)):
        label = most if row == 0 else limit_us if row == limit_row else None
        line: Line = [Piece(f" {' ' * CLOCK_CELLS if label is None else column(label)} ", Role.DIM)]
        for sign, role in zip(text.ljust(len(shown)), roles, strict=True):
            line += _chart_cells(sign, role, size, row == limit_row, glyphs)
        if row == limit_row:
            line.append(Piece(f"{glyphs.backoff} timeout", Role.WARNING))
        lines.append(line)
    return lines


def timeout_of(row: TaskRow) -> int | None:
    """The timeout of a task in microseconds; None without one."""
    limit = spec_of(row).timeout
    return None if limit is None else round(limit * SECOND)


def _column_role(task: TaskTrend, at: int, place: int | None) -> Role:
    if at == place:
        return Role.STRONG
    return Role.FAILED if is_bad(task.cells[at]) else Role.WARNING if task.is_slow(at) else Role.DONE


def _chart_cells(sign: str, role: Role, size: int, is_limit: bool, glyphs: Glyphs) -> Iterator[Piece]:
    """``size`` cells of a column, the last of them a gap; where there is no column the timeout shows through."""
    across, bar_cells = glyphs.backoff if is_limit else " ", max(size - 1, 1)
    yield Piece(across * bar_cells, Role.WARNING) if sign == " " else Piece(sign * bar_cells, role)
    yield Piece(across * (size - bar_cells), Role.WARNING)


def _describe_durations(task: TaskTrend, timeout_us: int | None, longest: int, each: str, glyphs: Glyphs) -> str:
    """What a timeout is chosen by: how long is usual, the longest, and the timeout beside it."""
    parts = [f"{one_line(task.name)} in each {each}"]
    if (typical := task.typical_us) is not None:
        parts.append(f"usually {format_duration(typical)}")
    parts.append(f"at most {format_duration(longest)}")
    times = "" if timeout_us is None else f" ({timeout_us / longest:.1f} times that)"
    parts.append("no timeout" if timeout_us is None else f"timeout {format_duration(timeout_us)}{times}")
    return f" {glyphs.dot} ".join(parts)


# --- What is said above and below the grid ---------------------------------------------------------------------------


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
    runner, view = runner_of(run, status), _view_of(grid.runs[place], status, now_us)
    first: Line = [
        Piece(f" {one_line(run.run_id)}", Role.TITLE),
        Piece(f"  {wall_day(run.started_at)}  ", Role.DIM),
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


YEAR_ROWS = 8  # of the calendar: the months, and the days of the week
_YEAR_WEEKS, _WEEKS_MIN = 53, 12
_WEEKDAY_CELLS = 5


def calendar_lines(
    days: Mapping[date, RunDay], last: date, rows: int, columns: int, glyphs: Glyphs, status: SessionStatus
) -> list[Line]:
    """The sign of the worst run of each day: a column per week of a year, or in fewer rows the last days in one.

    The weeks begin with that of the first run.
    """
    if rows >= YEAR_ROWS:
        return _year_lines(days, last, columns, glyphs, status)
    heading = " last days  "
    shown = [last - timedelta(days=back) for back in reversed(range(columns - len(heading) - 1))]
    return [[Piece(heading, Role.DIM), *(_day_piece(days.get(day), glyphs, status) for day in shown)]]


def _year_lines(
    days: Mapping[date, RunDay], last: date, columns: int, glyphs: Glyphs, status: SessionStatus
) -> list[Line]:
    room = columns - _WEEKDAY_CELLS - 1
    size = 2 if room >= 2 * _YEAR_WEEKS else 1  # cells of a week
    since_first = (last - min(days, default=last)).days // len(_WEEKDAYS) + 2
    weeks = weeks_until(last, min(_YEAR_WEEKS, room // size, max(since_first, _WEEKS_MIN)))
    lines: list[Line] = [[Piece(" " * _WEEKDAY_CELLS + _month_names(weeks, size), Role.DIM)]]
    for place, name in enumerate(_WEEKDAYS):
        line: Line = [Piece(f" {name} ", Role.DIM)]
        for week in weeks:
            is_ahead = week[place] > last
            line.append(Piece(" ") if is_ahead else _day_piece(days.get(week[place]), glyphs, status))
            line.append(Piece(" " * (size - 1)))
        lines.append(line)
    return lines


def _month_names(weeks: Sequence[Sequence[date]], size: int) -> str:
    """The name of each month above the week in which it begins, if it does not touch the name before."""
    text = ""
    for place, week in enumerate(weeks):
        begins = next((day for day in week if day.day == 1), None)
        if begins is not None and (not text or place * size > len(text)):
            text = f"{text:{place * size}}{begins:%b}"
    return text


def _day_piece(found: RunDay | None, glyphs: Glyphs, status: SessionStatus) -> Piece:
    if found is None:
        return Piece(glyphs.dot, Role.DIM)
    counts = counted_states(found.worst.counts, found.worst.asked)
    style = run_style(found.worst.run, runner_of(found.worst.run, status), counts)
    return Piece(glyphs.of(style.sign), style.role)


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
