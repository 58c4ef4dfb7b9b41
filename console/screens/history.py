"""The last runs of the flow side by side: a row per task, a column per run."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual.widget import Widget

from ...engine.domain.events import EventKind
from ...engine.domain.states import TaskState
from ..keys.actions import ScreenName
from ..model.board import Board, BoardUpdate
from ..model.lists import next_order, parse_task_filter
from ..model.runs import HistoryOrder, RunGrid, TaskTrend, is_bad
from ..present import history as present
from ..present.header import ReplayPosition
from ..sessions.reads import HistoryReader
from ..text.pieces import Line, Role
from ..text.text import one_line
from ..widgets.bars import Bar
from ..widgets.line_view import LineView
from ..widgets.table import VirtualTable
from .base import ConsoleScreen
from .console import run_latest

_REFRESH_SECONDS = 5
_WORDS_ROWS = 3
_FRAME_ROWS = 8 + _WORDS_ROWS  # header, tabs, rules, heading, runs and key bar
_CHART_ROWS_MAX = 16


class GridTable(VirtualTable[str]):
    """The rows of the grid; the cursor is on the name and on one run, so that states keep their colours."""

    def row_role(self, y: int) -> str | None:
        """None, because the row itself shows the selected cell."""
        return None


class HistoryScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.HISTORY

    def __init__(self) -> None:
        super().__init__()
        self.heading = Bar(2, id="heading")
        self.runs_bar = Bar(id="runs-bar")
        self.table = GridTable(self.task_row, id="grid")
        self.chart = Bar(0, id="chart")
        self.words_bar = Bar(_WORDS_ROWS, id="words")
        self._grid = RunGrid()
        self._reader: HistoryReader | None = None
        self._tasks: dict[str, TaskTrend] = {}
        self._order = HistoryOrder.FLOW
        self._place = -1  # the run under the cursor; -1: the latest
        self._is_stale = True

    def content(self) -> Iterable[Widget]:
        yield self.heading
        yield self.runs_bar
        yield self.table
        yield self.chart

    def widgets_below(self) -> Iterable[Widget]:
        """Yield the words for the cell under the cursor."""
        yield self.words_bar

    # --- Reading ----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Read again every few seconds, if something has changed."""
        self.set_interval(_REFRESH_SECONDS, self._read_changes)

    def on_shown(self) -> None:
        """Read the runs; select the task that is selected on the other screens."""
        self.table.focus()
        self._read()
        self._select_shared_task()

    def _select_shared_task(self) -> None:
        if self.console.selected is not None:
            self.table.move_to_key(self.console.selected)

    def board_replaced(self, board: Board) -> None:
        """Read the runs again, perhaps of another flow."""
        self._place = -1
        self._read()

    def on_news(self, news: BoardUpdate) -> None:
        """Read again soon after a task has moved, at once after a run has."""
        self._is_stale |= bool(news.delta.moves)
        if any(event.kind == EventKind.RUN for event in news.events):
            self._read()

    def tick(self, now_us: int) -> None:
        """Update the ages of the runs."""
        self._show_runs()

    def past_summary(self, position: ReplayPosition) -> str:
        """The past has no grid of its own."""
        return "the runs are those of now"

    def _read_changes(self) -> None:
        if self._is_stale:
            self._read()

    def _read(self) -> None:
        if self.is_current:
            run_latest(self, self._read_grid, "history")

    async def _read_grid(self) -> None:
        session, flow = self.console.live.session, self.board.projection.run.dag_name
        if self._reader is None:
            self._reader = HistoryReader(session)
        self._is_stale = False
        self._grid = await self._reader.read(flow)
        self._tasks = {task.name: task for task in self._grid.tasks}
        is_first = not self.table.order
        self._show_order()
        if is_first:
            self._select_shared_task()

    # --- What is shown ----------------------------------------------------------------------------------------------

    @property
    def place(self) -> int:
        return self._place % max(len(self._grid.runs), 1)

    def _show_order(self) -> None:
        wanted = parse_task_filter(self.filter_text)
        found = [
            task
            for task in self._grid.in_order(self._order)
            if wanted.matches_task(one_line(task.name).casefold(), _state_of(task))
        ]
        self.table.set_order([task.name for task in found])
        self._show_all()

    def _layout(self, columns: int) -> present.GridLayout:
        return present.grid_layout(self._grid, columns)

    def _show_all(self) -> None:
        glyphs = self.console.glyphs
        shown = len(self.table.order)
        self.heading.show(*present.heading_line(self._grid, shown, self.filter_text, self._order, glyphs))
        layout = self._layout(self.app.size.width)
        self.heading.show(present.title_line(self._grid, layout, self.place), row=1)
        self._show_runs()
        self._show_lines()
        self.table.refresh()

    def _show_runs(self) -> None:
        layout = self._layout(self.app.size.width)
        line = present.runs_line(
            self._grid, layout, self.console.glyphs, self.console.live.now_us, self.console.live.status
        )
        self.runs_bar.show(line if self._grid.runs else [])

    def _show_lines(self) -> None:
        task = self._tasks.get(self.table.cursor_key or "")
        lines = present.cell_lines(
            self._grid, task, self.place, self.console.glyphs, self.console.live.now_us, self.console.live.status
        )
        self.words_bar.show_lines(lines)
        self._show_chart(task)

    def _show_chart(self, task: TaskTrend | None) -> None:
        """Show how long the selected task took in each run, beside its timeout, in the rows that the grid leaves."""
        columns = self.app.size.width
        room = self.screen_rows - _FRAME_ROWS - len(self.table.order)
        known = self.board.projection.tasks.get(task.name) if task is not None else None
        timeout_us = present.timeout_of(known) if known is not None else None
        height = min(room - 1, _CHART_ROWS_MAX)
        found = (
            present.duration_lines(task, timeout_us, height, columns, self.console.glyphs, self.place) if task else []
        )
        self.table.styles.height = len(self.table.order) if found else "1fr"
        self.chart.set_row_count(room if found else 0)
        self.chart.show_lines([[], *found] if found else [])

    def task_row(self, name: str, columns: int) -> Line:
        place = self.place if name == self.table.cursor_key else None
        layout = self._layout(columns)
        status = self.console.live.status
        return present.task_line(self._tasks[name], self._grid, layout, self.console.glyphs, status, place)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out the columns for the new width."""
        if self._grid.runs:
            self._show_all()

    # --- Keys -------------------------------------------------------------------------------------------------------

    def move_columns(self, step: int) -> None:
        """Select an earlier or later run, as far as there are columns."""
        layout = self._layout(self.app.size.width)
        self._place = min(max(self.place + step, layout.places.start), len(self._grid.runs) - 1)
        self._show_all()

    def row_in(self, view: LineView, task: str) -> int | None:
        return self.table.place_of(task) if view is self.table else None

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Select the task of the row on all screens, if their run has it."""
        name = self.table.cursor_key
        if name in self.board.projection.tasks:
            self.console.selected = name
        self._show_lines()

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        if not self._grid.runs:
            return
        run_id, name = self._grid.runs[self.place].run.run_id, self.table.cursor_key
        if run_id == self.board.projection.run.run_id:
            self.console.selected = name
            self.console.open_view(ScreenName.GRAPH)
        else:
            self.console.follow(run_id)
            self.console.selected = name

    def filter_changed(self, text: str) -> None:
        """Show only tasks that match."""
        self._show_order()

    def change_order(self) -> None:
        """Change to the next order."""
        self._order = next_order(self._order)
        self._show_order()
        self.table.move_to(0)

    def go_to_next(self, step: int) -> None:
        """Go to the next or previous task that failed or was slow in the run under the cursor."""
        if not self.table.move_to_next(step, lambda name: bool(self.filter_text) or self._is_notable(name)):
            self.console.show_message("no task of this run failed or was slow", Role.DIM, 3)

    def _is_notable(self, name: str) -> bool:
        task = self._tasks[name]
        return task.is_slow(self.place) or is_bad(task.cells[self.place])


def _state_of(task: TaskTrend) -> TaskState:
    """The state in the latest run."""
    last = task.cells[-1] if task.cells else None
    return TaskState.PENDING if last is None else last.state
