"""All runs of the state file, and above them the last runs of a flow side by side: a row per task, a column per run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import events
from textual.widget import Widget

from ...engine.core.views import run_code
from ...engine.domain.events import EventKind
from ...engine.domain.rows import RunSummary
from ...engine.domain.states import RunState, TaskState
from ...engine.statefile.lists import ATTENTION_RUNS, DEAD_LETTER_GROUPS, SCHEDULES, ScheduleRow
from ...engine.statefile.supervisor_file import ServedSchedule
from ..keys.actions import Action, ScreenName
from ..keys.keymap import shown_key
from ..model import runs as model
from ..model.board import Board, BoardUpdate
from ..model.lists import next_order, parse_filter
from ..model.session_status import runner_of
from ..present import run_grid as grids
from ..present.header import ReplayPosition
from ..present.needs import need_sentence
from ..present.next_start import StartKind, nearest, start_sentence, starts_of_file
from ..present.runs import ListedRun, heading_line, run_columns
from ..present.states import RowContext, no_match_line
from ..present.tasks import TaskNames
from ..sessions.run_grid_reader import RunGridReader
from ..text.columns import Columns, screen_row, screen_titles
from ..text.glyphs import DOWN, LEFT, UP
from ..text.pieces import Line, Piece, Role, indented, wrap
from ..text.text import one_line, pad
from ..widgets.bars import Bar, DetailShare, Rule
from ..widgets.line_view import LineView
from ..widgets.table import VirtualTable
from .console import run_latest
from .frame import rule_style
from .panes import DetailedList

_REFRESH_SECONDS = 5  # how often runs that are not followed are counted again
_GRID_FROM = 30  # rows of the screen: below it the grid is shown when it is asked for
_FRAME_ROWS = 7  # header, tabs, two rules, heading, titles, keys
_GRID_FRAME_ROWS = 3  # its titles, the runs themselves, a rule
_LIST_ROWS_MIN = 5
_CHART_ROWS = (4, 10)
_CELL_WORDS, _NAME_CELLS_MIN = 40, 12  # cells of a state and a duration behind the name of a task
_CHART_FROM = 3  # runs: of fewer a chart says nothing


class GridTable(VirtualTable[str]):
    """The rows of the grid; the cursor is on the name and on one run, so that states keep their colours."""

    def row_role(self, y: int) -> str | None:
        """None, because the row itself shows the selected cell."""
        return None


class RunsScreen(DetailedList):
    """See the module. The keys act on the list, after ``Tab`` on the grid; each has a filter."""

    PLACE = ScreenName.RUNS
    DETAIL_SHARE = DetailShare(36, from_columns=150)

    def __init__(self) -> None:
        super().__init__()
        self._summaries: dict[str, RunSummary] = {}
        self._waiting: dict[str, model.WaitingRun] = {}
        self._durations: dict[str, list[int]] = {}  # of the successes of a flow
        self._schedules: Sequence[ScheduleRow] = ()
        self._supervised: Sequence[ServedSchedule] = ()
        self._columns: Columns[ListedRun, RowContext] = ()
        self._order = model.RunOrder.LATEST
        self._grid = model.RunGrid()
        self._reader = RunGridReader(self.console.live.session)
        self._tasks: dict[str, model.TaskTrend] = {}
        self._names = TaskNames()
        self._grid_choice: bool | None = None  # of the operator
        self._other_filter = ""  # of the pane without the keys
        self._is_stale = False
        self.heading = Bar(id="heading")
        self.grid_bar = Bar(0, id="runs-bar")
        self.grid = GridTable(self.task_row, nothing=self._empty_grid_line, id="grid")
        self.chart = Bar(0, id="chart")
        self.middle_rule = Rule(self.console.glyphs.rule, id="middle")
        self.titles = Bar(id="titles")
        self.table: VirtualTable[str] = VirtualTable(self._row, always_lit=True, nothing=self._empty_line, id="runs")
        self.main_pane = self.table

    def main_widgets(self) -> Iterable[Widget]:
        yield self.heading
        yield self.grid_bar
        yield self.grid
        yield self.chart
        yield self.middle_rule
        yield self.titles
        yield self.table

    # --- Reading ----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Read the runs that are not followed again every few seconds."""
        self.set_interval(_REFRESH_SECONDS, self._read_again)

    def on_shown(self) -> None:
        (self.grid if self.is_in_grid else self.table).focus()
        self._lay_out()
        self._read()
        if self.console.selected is not None:
            self.grid.move_to_key(self.console.selected)

    def board_replaced(self, board: Board) -> None:
        """Read the list again; the board counts the followed run."""
        self._read()

    def on_news(self, news: BoardUpdate) -> None:
        """Read the list after events of runs; repaint the followed run after changes of tasks."""
        self._is_stale |= bool(news.delta.moves)
        if news.delta.are_problems_changed or any(event.kind == EventKind.RUN for event in news.events):
            self._read()
        elif news.delta.tasks:
            self.table.rows_changed([self.board.projection.run.run_id])
            self.show_row()

    def tick(self, now_us: int) -> None:
        """Update elapsed times."""
        self.table.rows_changed(self._running_runs())
        self._show_runs_of_grid()
        self.show_row()
        if self._schedules:
            self._show_heading()  # what comes next comes nearer

    def past_summary(self, position: ReplayPosition) -> str:
        """Say that only the followed run is shown as of the past."""
        return "the other runs are those of now"

    def _running_runs(self) -> list[str]:
        return [name for name, one in self._summaries.items() if one.run.state == RunState.RUNNING]

    def _read_again(self) -> None:
        if self._is_stale or self._running_runs() or self._schedules:
            self._read()

    def _read(self) -> None:
        if self.is_current:
            run_latest(self, self._read_list, "runs")

    async def _read_list(self) -> None:
        live = self.console.live
        self._is_stale = False
        summaries = await live.session.runs()
        self._schedules = await live.session.rows(SCHEDULES)
        self._supervised = await live.session.supervised() if self._schedules else ()
        rows, groups = await live.session.rows(ATTENTION_RUNS), await live.session.rows(DEAD_LETTER_GROUPS)
        waiting = model.waiting_runs(rows, live.status, live.now_us, groups=groups)
        self._waiting = {one.run.run_id: one for one in waiting}
        self._durations = model.usual_durations(summaries)
        self._summaries = {one.run.run_id: one for one in summaries}
        is_first = not self.table.order
        self._show_order()
        if is_first:  # the cursor starts where a human is needed
            self.table.move_to_key(next((name for name in self.table.order if self._weight(name)), ""))
        self._lay_out()
        await self._read_grid()
        self.show_key_bar()

    async def _read_grid(self) -> None:
        """Read the grid of the flow of the run under the cursor, if it is shown."""
        run = self.selected_run
        if run is None or not self.has_grid:
            return
        self._grid = await self._reader.read([*self._summaries.values()], run.run.dag_name)
        self._tasks = {task.name: task for task in self._grid.tasks}
        self._names = TaskNames(self._tasks)
        is_first = not self.grid.order
        self._show_tasks()
        if is_first and self.console.selected is not None:
            self.grid.move_to_key(self.console.selected)

    # --- The list ---------------------------------------------------------------------------------------------------

    @property
    def selected_run(self) -> RunSummary | None:
        """The run under the cursor."""
        return None if self.table.cursor_key is None else self._summaries.get(self.table.cursor_key)

    def _show_order(self) -> None:
        wanted = parse_filter(self._other_filter if self.is_in_grid else self.filter_text)
        found = [one for name, one in self._summaries.items() if not wanted or wanted.matches(self._searched(name))]
        if self._order is model.RunOrder.NEEDS:
            found.sort(key=lambda one: -self._weight(one.run.run_id))
        elif self._order is model.RunOrder.SLOWEST:
            found.sort(key=self._slowness, reverse=True)
        elif self._order is model.RunOrder.NAME:
            found.sort(key=lambda one: (one.run.dag_name, one.run.run_id))
        self.table.set_order([one.run.run_id for one in found])
        self._fit()
        self.table.refresh()
        self._show_heading()
        self.show_row()

    def _searched(self, run_id: str) -> str:
        """The text that a filter searches: flow, run, and its state as the list has it."""
        one = self._listed(run_id)
        return f"{one.run.dag_name} {run_id} {run_code(one.run, one.runner, one.counts)}".casefold()

    def _weight(self, run_id: str) -> int:
        waiting = self._waiting.get(run_id)
        return 0 if waiting is None else waiting.weight

    def _slowness(self, summary: RunSummary) -> float:
        pace = self._listed(summary.run.run_id).pace(self.console.live.now_us)
        return 0.0 if pace is None else pace.times

    def _fit(self) -> None:
        """Lay out the columns of the list for the width of the screen."""
        place, columns = self._place(), self.main_columns
        self._columns = run_columns([self._listed(name) for name in self.table.order or self._summaries], place)
        self.titles.show(screen_titles(self._columns, columns - 1))

    def _show_heading(self) -> None:
        live, glyphs = self.console.live, self.console.glyphs
        waiting = sum(not one.is_notice for one in self._waiting.values())
        more = list(grids.grid_parts(self._grid, glyphs)) if self.has_grid and self._grid.runs else []
        start = nearest(starts_of_file(self._schedules, self._supervised, live.status.service_pid, live.now_us))
        if start.kind is not StartKind.NONE:
            more.append([Piece(start_sentence(start, live.now_us))])
        shown = len((self.grid if self.is_in_grid else self.table).order)
        known = len(self._summaries)
        left, order = heading_line(shown, known, waiting, self.filter_text, self._order, glyphs, more)
        self.heading.show(left, [] if self.is_in_grid else order)

    def _place(self) -> RowContext:
        return RowContext(self.console.live.now_us, self.console.glyphs)

    def _row(self, run_id: str, columns: int) -> Line:
        return screen_row(self._columns, self._listed(run_id), self._place(), columns - 1, self.console.glyphs.more)

    def _empty_line(self) -> Line:
        return no_match_line(self._other_filter if self.is_in_grid else self.filter_text)

    def _empty_grid_line(self) -> Line:
        return no_match_line(self.filter_text if self.is_in_grid else self._other_filter)

    def _listed(self, run_id: str) -> ListedRun:
        board, console, summary = self.console.live.board, self.console, self._summaries[run_id]
        runner = runner_of(summary.run, console.live.status)
        if board is not None and board.projection.run.run_id == run_id:
            summary, runner = board.summary, console.runner
        return ListedRun(summary, runner, self._durations.get(summary.run.dag_name, ()), self._waiting.get(run_id))

    # --- The grid ---------------------------------------------------------------------------------------------------

    @property
    def has_grid(self) -> bool:
        """Whether the grid is shown: where there is room for it, or as the operator has chosen."""
        if self._grid_choice is not None:
            return self._grid_choice
        return self.screen_rows >= _GRID_FROM and bool(self._summaries)

    @property
    def is_in_grid(self) -> bool:
        """Whether the keys act on the grid."""
        return self.has_grid and self._is_grid_chosen

    _is_grid_chosen = False

    @property
    def place(self) -> int | None:
        """The column of the run under the cursor."""
        return self._grid.place_of(self.table.cursor_key)

    def _show_tasks(self) -> None:
        wanted = parse_filter(self.filter_text if self.is_in_grid else self._other_filter)
        found = [
            task for task in self._grid.tasks if wanted.matches(f"{one_line(task.name)} {_state_of(task)}".casefold())
        ]
        self.grid.set_order([task.name for task in found])
        self._lay_out()

    def _lay_out(self) -> None:
        """Divide the rows of the screen: the list needs some, the grid has a row per task, the chart what is left."""
        has_grid, words = self.has_grid, self.detail_room.rows
        for widget in (self.grid, self.middle_rule):
            widget.display = has_grid
        self.grid_bar.set_row_count(2 if has_grid else 0)
        chart = 0
        if has_grid:
            room = self.screen_rows - _FRAME_ROWS - _GRID_FRAME_ROWS - words
            listed = min(max(len(self.table.order), 1), max(room // 2, _LIST_ROWS_MIN))
            rows = max(min(len(self.grid.order), room - listed), 1)
            chart = min(room - listed - rows, _CHART_ROWS[1])
            chart = chart if chart >= _CHART_ROWS[0] and len(self._grid.runs) >= _CHART_FROM else 0
            self.grid.styles.height = rows
        self._show_grid(chart)
        self._show_heading()
        self.show_row()
        self.call_after_refresh(self.show_frame)  # the divider needs the new position of the rule

    def _show_grid(self, chart_rows: int) -> None:
        columns, glyphs, task = self.main_columns, self.console.glyphs, self._tasks.get(self.grid.cursor_key or "")
        self._show_runs_of_grid()
        self.grid.refresh()
        layout = grids.grid_layout(self._grid, self._names, columns)
        trend = task if task is not None and self.is_in_grid else self._grid.whole
        board = self.console.live.board
        row = board.projection.tasks.get(trend.name) if board is not None and trend is task else None
        timeout_us = grids.timeout_of(row) if row is not None else None
        label_cells, title = 1 + layout.name_cells + grids.MEDIAN_CELLS, f"{one_line(trend.name)} {glyphs.dot} "
        slots = grids.slots_of(layout)
        lines = grids.duration_chart(
            trend, timeout_us, chart_rows, label_cells, slots, glyphs, self.place, title, trend.typical_us
        )
        self.chart.set_row_count(len(lines))
        self.chart.show_lines(lines)

    def _show_runs_of_grid(self) -> None:
        if not self.has_grid or not self._grid.runs or self.grid_bar.row_count < 2:
            return
        context = self._grid_context(self.main_columns)
        self.grid_bar.show(grids.grid_titles(self._grid, context.layout, self.place))
        self.grid_bar.show(grids.grid_row(None, context, self.place, Role.STRONG), row=1)

    def _grid_context(self, columns: int) -> grids.GridContext:
        live, layout = self.console.live, grids.grid_layout(self._grid, self._names, columns)
        return grids.GridContext(self._grid, layout, self.console.glyphs, live.status, live.now_us)

    def task_row(self, name: str, columns: int) -> Line:
        task, context = self._tasks[name], self._grid_context(columns)
        if self.is_in_grid and name == self.grid.cursor_key:
            return grids.grid_row(task, context, self.place, Role.CURSOR)
        return grids.grid_row(task, context)

    # --- Words ------------------------------------------------------------------------------------------------------

    def row_key(self) -> object:
        return self.table.cursor_key, self.is_in_grid and self.grid.cursor_key

    def row_lines(self, columns: int) -> list[Line]:
        """The run under the cursor, what it needs, and its tasks."""
        run, live, glyphs = self.selected_run, self.console.live, self.console.glyphs
        if run is None:
            return [[Piece(" no run yet" if not self._summaries else "", Role.DIM)]]
        waiting, listed = self._waiting.get(run.run.run_id), self._listed(run.run.run_id)
        needs = () if waiting is None else (waiting.need, *waiting.others)
        said = [need_sentence(need, live.now_us) for need in needs] or [listed.usual_sentence(live.now_us)]
        lines = wrap(grids.run_words(listed.run, listed.view(live.now_us), glyphs), columns - 1, 1)
        for sentence in filter(None, said):
            lines += indented(sentence, columns)
        tasks = self._task_lines(columns) if self.has_grid else []
        return [*lines, *([[]] if self.is_wide else []), *tasks]

    def _task_lines(self, columns: int) -> list[Line]:
        """The task under the cursor of the grid; else all of them, what failed or was slow first."""
        task, place, more = self._tasks.get(self.grid.cursor_key or ""), self.place, self.console.glyphs.more
        if place is None or task is None:
            return []
        context = self._grid_context(columns)
        if self.is_in_grid:
            return grids.cell_lines(task, place, context)
        size = max(min(self._names.longest, columns - _CELL_WORDS), _NAME_CELLS_MIN)
        shown = sorted(self._tasks.values(), key=lambda one: not self._is_notable(one.name))
        return [
            grids.cell_line(one, pad(self._names.short(one.name, size, more), size), place, context) for one in shown
        ]

    def show_frame(self) -> None:
        """Update also the rule between the grid and the list, and where it meets the divider."""
        super().show_frame()
        sign, role = rule_style(self.console)
        joint = {self.middle_rule.region.y - self.divider.region.y: self.console.glyphs.lines[UP | DOWN | LEFT]}
        self.divider.show_marks(joint if self.has_grid else {})
        self.middle_rule.show(sign, self.hidden_row_marks(self.middle_rule), role)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out rows and columns for the new size."""
        self._fit()
        self._lay_out()
        if self.has_grid and not self._grid.runs:
            self._read()

    # --- Keys -------------------------------------------------------------------------------------------------------

    def next_pane(self) -> None:
        """Give the keys to the grid, to the details beside, or to the list; grid and list have their own filters."""
        if self.detail_pane.has_focus or (self.is_wide and not self.has_grid):
            super().next_pane()
            return
        if not self.has_grid:
            self.console.show_message(f"{shown_key('unfold')} shows the tasks of the last runs")
            return
        self._is_grid_chosen = not self._is_grid_chosen
        self.filter_text, self._other_filter = self._other_filter, self.filter_text
        (self.grid if self.is_in_grid else self.detail_pane if self.is_wide else self.table).focus()
        self._lay_out()
        self.show_frame()

    def zoom(self, step: int) -> None:
        """Show the grid, or only the list."""
        if self.has_grid is (step > 0):
            self.console.show_message("the tasks of the last runs are shown" if step > 0 else "only the runs are shown")
            return
        if self.is_in_grid:
            self.next_pane()
            self.table.focus()
        self._grid_choice = step > 0
        self._lay_out()
        self._read()

    def move_columns(self, step: int) -> None:
        """Select an earlier or later run of the flow that is listed."""
        place = self.place
        while place is not None and 0 <= place + step < len(self._grid.runs):
            place += step
            if self.table.move_to_key(self._grid.runs[place].run.run_id):
                return

    def row_in(self, view: LineView, task: str) -> int | None:
        return self.grid.place_of(task) if view is self.grid else None

    def filter_changed(self, text: str) -> None:
        """Show only the runs, or in the grid only the tasks, that match."""
        if self.is_in_grid:
            self._show_tasks()
        else:
            self._show_order()

    def change_order(self) -> None:
        """Change to the next order of the runs; the tasks of the grid stand in that of the flow."""
        self._order = next_order(self._order)
        self._show_order()
        self.table.move_to(0)

    def go_to_next(self, step: int) -> None:
        """To the next run that needs a human or ended badly, in the grid to the next such task; else to a match."""
        if self.is_in_grid:
            if not self.grid.move_to_next(step, lambda name: bool(self.filter_text) or self._is_notable(name)):
                self.console.show_message("no task of this run failed or was slow", Role.DIM, 3)
            return
        self.go_to_row(self.table, step, self._waiting.__contains__, "no other run needs a human")

    def _is_notable(self, name: str) -> bool:
        task, place = self._tasks[name], self.place
        return place is not None and (task.is_slow(place) or model.is_bad(task.cells[place]))

    def subject(self) -> object:
        return self.selected_run

    def is_offered(self, action: Action) -> bool:
        """Whether an action can do anything to the selected run: one that has ended is not abandoned."""
        run = self.selected_run
        has_ended = run is not None and run.run.ended_at is not None
        if action.name in ("unfold", "next_pane"):
            return self.has_grid == (action.name == "next_pane")
        return not (action.name == "abandon_run" and has_ended) and super().is_offered(action)

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Show the column of the run, of another flow its grid; select the task on all screens, if their run has it."""
        run, board = self.selected_run, self.console.live.board
        if run is not None and self.has_grid and run.run.dag_name != self._grid.flow:
            run_latest(self, self._read_grid, "runs")
        if self.is_in_grid and board is not None and self.grid.cursor_key in board.projection.tasks:
            self.console.selected = self.grid.cursor_key
        self._lay_out()
        self.show_key_bar()

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open the run, from the grid at the task."""
        run, board, task = self.selected_run, self.console.live.board, self.grid.cursor_key
        if run is None:
            return
        if self.is_in_grid and board is not None and run.run.run_id == board.projection.run.run_id:
            self.console.selected = task
            self.console.open_view(ScreenName.GRAPH)
            return
        self.console.follow(run.run.run_id)
        if self.is_in_grid:
            self.console.selected = task


def _state_of(task: model.TaskTrend) -> TaskState:
    """The state in the latest run."""
    last = task.cells[-1] if task.cells else None
    return TaskState.PENDING if last is None else TaskState(last.state)
