"""The grid of the last runs of a flow: each task in each run, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.views import RunView, StateStyle, counted_states, describe_span, run_view, state_style
from ...engine.domain.rows import RunRow, RunSummary
from ...engine.domain.states import TaskState
from ...engine.domain.text import counted, format_duration
from ...engine.statefile.lists import RunTaskRow
from ..model.runs import WHOLE_RUN, RunGrid, TaskTrend, is_bad, is_comparable, pace_beside
from ..model.session_status import SessionStatus, runner_of
from ..text.figures import CLOCK_CELLS, SECOND, column, column_chart, number, times_text, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, join
from ..text.text import one_line, pad, pad_left
from .runs import describe_params
from .states import shade, sign_and_word
from .tasks import TaskNames

_NAME_CELLS = (12, 40)
_WIDE_CELLS = 1 + CLOCK_CELLS + 2  # gap, duration, mark, sign
MEDIAN_CELLS = CLOCK_CELLS + 2  # of what is usual, with a blank behind it
_DATE_CELLS = 5
_DATE_STEP = 8  # cells of the heat map for a date above it
_CHART_ROWS_MIN = 4


class GridLayout(NamedTuple):
    """The widths of the grid. ``first``: the first run of the heat map, which has a cell for each run up to
    ``first_wide``, the first one with a duration.

    ``heat_cells``: with a blank behind them; ``names``: of the tasks, as the grid shows them.
    """

    names: TaskNames
    name_cells: int
    heat_cells: int
    first: int
    first_wide: int
    runs: int

    @property
    def places(self) -> range:
        """The runs that can be selected."""
        return range(self.first, self.runs)


def grid_layout(grid: RunGrid, names: TaskNames, columns: int) -> GridLayout:
    """The latest runs with their durations, and before them a heat map of as many earlier ones as have room."""
    count, (low, high) = len(grid.runs), _NAME_CELLS
    name_cells = max(min(names.longest, high), min(len(WHOLE_RUN), columns // 4), low)
    name_cells = max(min(name_cells, columns - 2 - MEDIAN_CELLS - count - _WIDE_CELLS), low)
    room = columns - 1 - name_cells - MEDIAN_CELLS
    wide = max(min(count, (room - 1) // _WIDE_CELLS), 0)
    if wide < count:  # a cell for each run before them
        wide = max(min(wide, (room - 1 - count) // (_WIDE_CELLS - 1)), min(wide, 1))
    heat_cells = min(count - wide, max(room - 1 - wide * _WIDE_CELLS, 0)) + 1
    return GridLayout(names, name_cells, heat_cells, count - wide - heat_cells + 1, count - wide, count)


class GridContext(NamedTuple):
    """The grid as it is drawn: its runs and tasks, their widths, the signs of the terminal, and who runs what now."""

    grid: RunGrid
    layout: GridLayout
    glyphs: Glyphs
    status: SessionStatus
    now_us: int


def grid_titles(grid: RunGrid, layout: GridLayout, place: int | None = None) -> Line:
    """The names of the columns: the day of each run, or its time if all runs are of one day."""
    days = {wall_day(one.run.started_at)[:_DATE_CELLS] for one in grid.runs}
    line: Line = [Piece(f" {pad('task', layout.name_cells)}{_median_cell('usual')}", Role.DIM)]

    def when(at: int) -> str:
        started_at = grid.runs[at].run.started_at
        return wall_day(started_at)[:_DATE_CELLS] if len(days) > 1 else wall(started_at)[:_DATE_CELLS]

    earlier = (layout.first, layout.first_wide - 1)[: layout.heat_cells // _DATE_STEP]  # a cut date would be another
    line.append(Piece(pad(" to ".join(map(when, earlier)), layout.heat_cells), Role.DIM))
    for at in range(layout.first_wide, layout.runs):
        line.append(Piece(f"{when(at):>{_WIDE_CELLS - 1}} ", Role.STRONG if at == place else Role.DIM))
    return line


def _median_cell(text: str) -> str:
    return f"{pad_left(text, MEDIAN_CELLS - 1)} "


class _ShownCell(NamedTuple):
    """A cell as it is shown. ``ok_us``: of a success; ``is_slow``: far beyond the other runs."""

    style: StateStyle
    lasts_us: int | None
    ok_us: int | None
    is_slow: bool


def _cells(task: TaskTrend | None, context: GridContext) -> Iterator[_ShownCell | None]:
    """The cells of a task, or of the runs themselves."""
    grid, status = context.grid, context.status
    trend = grid.whole if task is None else task
    durations = trend.durations
    for one, cell in zip(grid.runs, trend.cells, strict=True):
        if cell is None:
            yield None
            continue
        view = view_of(one, status, context.now_us) if task is None else None
        is_standing = view is not None and not is_comparable(one.run, view.is_moving)
        pace = None if is_standing else pace_beside(cell, durations)
        runner = runner_of(one.run, status)
        style = state_style(TaskState(cell.state), runner, trend.name) if view is None else view.style
        lasts_us = cell.duration_us if view is None else view.clock
        yield _ShownCell(style, lasts_us, cell.ok_us, pace is not None and pace.is_slow)


def view_of(summary: RunSummary, status: SessionStatus, now_us: int) -> RunView:
    """The view of a run; its tasks decide whether it works or waits."""
    return run_view(summary.run, runner_of(summary.run, status), now_us, counted_states(summary.counts, summary.asked))


def grid_row(
    task: TaskTrend | None, context: GridContext, place: int | None = None, name_role: Role = Role.TEXT
) -> Line:
    """A task in each run; None: the runs themselves. ``place``: the run under the cursor, if that is shown."""
    grid, layout, glyphs = context.grid, context.layout, context.glyphs
    trend = grid.whole if task is None else task
    typical_us, found = trend.typical_us, [*_cells(task, context)]
    line: Line = [
        Piece(" "),
        Piece(pad(layout.names.short(trend.name, layout.name_cells, glyphs.more), layout.name_cells), name_role),
        Piece(_median_cell("" if typical_us is None else format_duration(typical_us)), Role.DIM),
    ]
    heat = range(layout.first, layout.first_wide)
    line += [*(_heat_cell(found[at], typical_us, glyphs, at == place) for at in heat), Piece(" ")]
    for at in range(layout.first_wide, layout.runs):
        line += _wide_cell(found[at], glyphs, at == place)
    return line


def _heat_cell(cell: _ShownCell | None, usual_us: int | None, glyphs: Glyphs, is_selected: bool) -> Piece:
    """One cell: the darker, the longer a success took beside what is usual; anything else has its own sign."""
    if cell is None:
        return Piece(" ", _under(Role.DIM, is_selected))
    if cell.ok_us is None or not usual_us:
        return Piece(glyphs.of(cell.style.sign), _under(cell.style.role, is_selected))
    return Piece(
        shade(cell.ok_us / usual_us, glyphs),
        Role.WARNING if cell.is_slow else Role.STRONG if is_selected else Role.DONE,
    )


def _wide_cell(cell: _ShownCell | None, glyphs: Glyphs, is_selected: bool) -> Iterator[Piece]:
    if cell is None:
        yield Piece(" " * _WIDE_CELLS, _under(Role.DIM, is_selected))
        return
    is_slow, lasts_us = cell.is_slow, cell.lasts_us
    text = column(lasts_us) if lasts_us is not None else " " * CLOCK_CELLS
    mark = glyphs.up if is_slow else " "
    yield Piece(" ")
    yield Piece(f"{text}{mark}", _under(Role.WARNING if is_slow else Role.TEXT, is_selected))
    yield Piece(glyphs.of(cell.style.sign), _under(cell.style.role, is_selected))


def _under(role: str, is_selected: bool) -> str:
    return Role.CURSOR if is_selected else role


# --- How long a task took in each run, beside its timeout ------------------------------------------------------------


CHART_LABEL_CELLS = CLOCK_CELLS + 2
_BAR_CELLS = 3  # under a duration
_COLUMN_CELLS_MAX = 4  # of a run, with a gap
_TIMEOUT_SHOWN = 4.0  # at most so many times the longest duration; a higher timeout would make all columns flat


class Slot(NamedTuple):
    """The place of a column: ``lead`` blanks, then as many ``cells``. ``at``: the place of the cell."""

    at: int
    lead: int
    cells: int


def slots_of(layout: GridLayout) -> list[Slot]:
    """Each column under its run."""
    heat = range(layout.first, layout.first_wide)
    wide = range(layout.first_wide, layout.runs)
    return [*(Slot(at, 0, 1) for at in heat), *(Slot(at, _WIDE_CELLS - _BAR_CELLS, _BAR_CELLS) for at in wide)]


def even_slots(task: TaskTrend, room: int) -> list[Slot]:
    """The last ended cells of a task side by side."""
    found = [at for at, cell in enumerate(task.cells) if cell is not None and cell.duration_us]
    size = max(min(room // max(len(found), 1), _COLUMN_CELLS_MAX), 1)
    return [Slot(at, size > 1, max(size - 1, 1)) for at in found[-(room // size) :]]


def duration_chart(
    task: TaskTrend,
    timeout_us: int | None,
    rows: int,
    label_cells: int,
    slots: Sequence[Slot],
    glyphs: Glyphs,
    place: int | None = None,
    title: str = "",
    typical_us: int | None = None,
) -> list[Line]:
    """A column per slot, as high as it took long, with the timeout as a line across.

    Failures have their colour. The first of the ``rows`` lines says what is shown, after ``title``; ``place``: the run
    under the cursor. Empty if nothing has ended, or without room.
    """
    lasted = [(cell.duration_us or 0) if cell is not None else 0 for cell in task.cells]
    ended = [lasts for lasts, cell in zip(lasted, task.cells, strict=True) if not _runs(cell)]
    longest, height = max(ended, default=0), rows - 1
    if rows < _CHART_ROWS_MIN or not longest:
        return []
    limit_us = timeout_us if timeout_us is not None and timeout_us <= _TIMEOUT_SHOWN * longest else None
    most = max(*lasted, limit_us or 0)
    limit_row = height - max(-(-limit_us * height // most), 1) if limit_us is not None else -1
    roles = [_column_role(task, slot.at, place) for slot in slots]
    is_narrow = label_cells < len(f" timeout {format_duration(limit_us or 0)} ")
    lines: list[Line] = [[Piece(f" {title}{_describe_durations(typical_us, timeout_us, longest, glyphs)}", Role.DIM)]]
    for row, text in enumerate(column_chart([lasted[slot.at] for slot in slots], most, height, glyphs)):
        label = format_duration(most) if row == 0 else ""
        if limit_us is not None and row == limit_row:
            label = format_duration(limit_us) if is_narrow else f"timeout {format_duration(limit_us)}"
        line: Line = [Piece(f"{pad_left(label, label_cells - 1)} ", Role.DIM)]
        across = glyphs.backoff if row == limit_row else " "
        for sign, role, slot in zip(text.ljust(len(slots)), roles, slots, strict=True):
            line.append(Piece(across * slot.lead, Role.WARNING))
            line.append(Piece((across if sign == " " else sign) * slot.cells, Role.WARNING if sign == " " else role))
        lines.append(line)
    return lines


def timeout_of(row: TaskRow) -> int | None:
    """The timeout of a task in microseconds; None without one."""
    limit = spec_of(row).timeout
    return None if limit is None else round(limit * SECOND)


def _column_role(task: TaskTrend, at: int, place: int | None) -> Role:
    if at == place:
        return Role.STRONG
    if _runs(task.cells[at]):
        return Role.RUNNING
    return Role.FAILED if is_bad(task.cells[at]) else Role.WARNING if task.is_slow(at) else Role.DONE


def _runs(cell: RunTaskRow | None) -> bool:
    return cell is not None and cell.state is TaskState.RUNNING


def _describe_durations(typical_us: int | None, timeout_us: int | None, longest: int, glyphs: Glyphs) -> str:
    """The figures by which a timeout is chosen: the usual duration, the longest, and the timeout beside them."""
    parts = [f"usually {format_duration(typical_us)}"] if typical_us is not None else []
    parts.append(f"at most {format_duration(longest)}")
    if timeout_us is not None:
        parts.append(f"timeout {format_duration(timeout_us)} ({times_text(timeout_us / longest)} times that)")
    return f" {glyphs.dot} ".join(parts)


# --- What is said above and below the grid ---------------------------------------------------------------------------


def grid_parts(grid: RunGrid, glyphs: Glyphs) -> list[Line]:
    """The parts of a grid's heading."""
    parts: list[Line] = [[Piece(counted(len(grid.tasks), "task"))]]
    if grid.left_out:
        parts.append([Piece(f"{number(grid.left_out)} more not listed", Role.WARNING)])
    if slow := slow_count(grid):
        parts.append([Piece(f"{number(slow)} slower than usual {glyphs.up}", Role.WARNING)])
    return parts


def slow_count(grid: RunGrid) -> int:
    """The number of tasks of the latest run that took far longer than in the runs before."""
    last = len(grid.runs) - 1
    return sum(task.is_slow(last) for task in grid.tasks) if last >= 0 else 0


def run_words(run: RunRow, view: RunView, glyphs: Glyphs) -> Line:
    """The run under the cursor, in words, with its parameters."""
    return [
        Piece(f" {one_line(run.run_id)}", Role.TITLE),
        Piece(f"  {wall_day(run.started_at)}  ", Role.DIM),
        sign_and_word(view.style, glyphs),
        Piece("" if view.is_moving else f"{' and paused' if view.is_paused else ''} {describe_span(view)}"),
        Piece(f"  {describe_params(run)}", Role.DIM),
    ]


def cell_lines(task: TaskTrend, place: int, context: GridContext) -> list[Line]:
    """The task under the cursor, in the run at ``place`` and in all of them, in words."""
    return [cell_line(task, one_line(task.name), place, context), _task_line(task, context.glyphs)]


def cell_line(task: TaskTrend, shown: str, place: int, context: GridContext) -> Line:
    """A task, behind its name as it is ``shown``, in one run."""
    glyphs, runner = context.glyphs, runner_of(context.grid.runs[place].run, context.status)
    cell, name = task.cells[place], Piece(f" {shown}", Role.TITLE)
    if cell is None:
        return [name, Piece("  this run did not have it", Role.DIM)]
    duration = "" if cell.duration_us is None else f" {format_duration(cell.duration_us)}"
    tries = f", the last of {cell.attempt} attempts" if cell.attempt > 1 else ""
    state = sign_and_word(state_style(TaskState(cell.state), runner, task.name), glyphs)
    line = [name, Piece("  "), state, Piece(f"{duration}{tries}")]
    pace = pace_beside(cell, task.durations)
    if pace is not None and pace.is_slow:
        line.append(Piece(f" {glyphs.dot} {glyphs.up} {pace.times:.1f} times the usual", Role.WARNING))
    return line


def _task_line(task: TaskTrend, glyphs: Glyphs) -> Line:
    durations, bad = task.durations, sum(map(is_bad, task.cells))
    known = sum(cell is not None and cell.state != TaskState.PENDING for cell in task.cells)
    parts = [f"failed in {bad} of {known} runs" if bad else f"never failed in {counted(known, 'run')}"]
    if durations:
        low, high = format_duration(durations[0]), format_duration(durations[-1])
        parts.append(f"took {low} to {high}" if low != high else f"took {low}")
    return [Piece(f" {f' {glyphs.dot} '.join(parts)}", Role.DIM)]


def grid_lines(grid: RunGrid, columns: int, now_us: int, glyphs: Glyphs, status: SessionStatus) -> list[Line]:
    """The whole grid, as the shell prints it."""
    layout = grid_layout(grid, TaskNames([task.name for task in grid.tasks], prefix=""), columns)
    context = GridContext(grid, layout, glyphs, status, now_us)
    rows = (grid_row(task, context) for task in (None, *grid.tasks))
    count = [Piece(f" {counted(len(grid.runs), 'run')}", Role.STRONG)]
    return [join([count, *grid_parts(grid, glyphs)], f" {glyphs.dot} "), grid_titles(grid, layout), *rows]


def history_value(task: TaskTrend, grid: RunGrid) -> dict[str, object]:
    """A task with its runs, for JSON."""
    runs = [_cell_value(task, place, cell, grid) for place, cell in enumerate(task.cells) if cell is not None]
    return {"task": task.name, "usual_us": task.typical_us, "runs": runs}


def _cell_value(task: TaskTrend, place: int, cell: RunTaskRow, grid: RunGrid) -> dict[str, object]:
    return {
        "run_id": grid.runs[place].run.run_id,
        "state": cell.state,
        "attempts": cell.attempt,
        "duration_us": cell.duration_us,
        "slow": task.is_slow(place),
    }
