"""The list of all runs in the state file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from textual import events
from textual.widget import Widget

from ...engine.core.projection import RunSummary
from ...engine.core.views import counted_states
from ...engine.domain.events import EventKind
from ...engine.domain.states import RunState
from ...engine.statefile.lists import ATTENTION_RUNS, SCHEDULES, AttentionRun, ScheduleRow
from ..keys.actions import Action, ScreenName
from ..model.board import Board, BoardUpdate, runner_of
from ..model.lists import next_order, parse_filter
from ..model.runs import RunOrder, days_of, waiting_runs
from ..present.header import ReplayPosition
from ..present.history import YEAR_ROWS, calendar_lines
from ..present.runs import RunListEntry, describe_next_run, heading_line, preview_lines, run_name, run_row
from ..present.tasks import Scene
from ..text.figures import local_day
from ..text.pieces import Line
from ..text.text import cells
from ..widgets.bars import Bar
from ..widgets.table import VirtualTable
from .base import ConsoleScreen
from .console import Console, RestTimer, run_latest

_REFRESH_SECONDS = 5  # how often runs that are not followed are counted again
_CALENDAR_FROM, _YEAR_FROM = 20, 30  # rows of the screen
_FRAME_ROWS = 6  # header, tabs, two rules, heading, keys
_PREVIEW_FROM, _PREVIEW_ROWS = 36, 8  # from this height on, a long list leaves so many rows to the selected run
_PREVIEW_ROWS_MIN = 3


class RunsScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.RUNS

    def __init__(self) -> None:
        super().__init__()
        self._summaries: dict[str, RunSummary] = {}
        self._schedules: Sequence[ScheduleRow] = ()
        self._attention: Sequence[AttentionRun] = ()
        self._shown_count = 0
        self._name_cells = 0
        self._order = RunOrder.LATEST
        self.heading = Bar(id="heading")
        self.table: VirtualTable[str] = VirtualTable(self._row, id="runs")
        self.preview = RunPreview()
        self.calendar = Bar(YEAR_ROWS, id="calendar")

    def content(self) -> Iterable[Widget]:
        yield self.heading
        yield self.table

    def widgets_below(self) -> Iterable[Widget]:
        yield self.preview
        yield self.calendar

    def on_mount(self) -> None:
        """Read the runs that are not followed again every few seconds."""
        self.set_interval(_REFRESH_SECONDS, self._read_again)

    def on_shown(self) -> None:
        self.table.focus()
        self._read()

    def board_replaced(self, board: Board) -> None:
        """Read the list again; the board counts the followed run."""
        self._read()

    def on_news(self, news: BoardUpdate) -> None:
        """Read the list after run events; repaint the followed run after task changes."""
        if any(event.kind == EventKind.RUN for event in news.events):
            self._read()
        elif news.delta.tasks:
            self.table.row_changed(self.board.projection.run.run_id)
            self.preview.update_lines()

    def tick(self, now_us: int) -> None:
        """Update elapsed times."""
        self.table.rows_changed(self._running_runs())
        self.preview.update_lines()
        if self._schedules:
            self._show_heading(self._shown_count)  # what comes next comes nearer

    def past_summary(self, position: ReplayPosition) -> str:
        """Say that only the followed run is shown as of the past."""
        return "the other runs are those of now"

    # --- The list -------------------------------------------------------------------------------------------------

    def _running_runs(self) -> list[str]:
        return [name for name, one in self._summaries.items() if one.run.state is RunState.RUNNING]

    def _read_again(self) -> None:
        if self._running_runs() or self._schedules:
            self._read()

    def _read(self) -> None:
        if self.is_current:
            run_latest(self, self._read_list, "runs")

    async def _read_list(self) -> None:
        summaries = await self.console.live.session.runs()
        self._schedules = await self.console.live.session.query(SCHEDULES)
        self._attention = await self.console.live.session.query(ATTENTION_RUNS)
        self._summaries = {one.run.run_id: one for one in summaries}
        self._name_cells = max((cells(run_name(one.run, self.console.glyphs)) for one in summaries), default=0)
        self._show_order()
        self._show_calendar()
        self._show_preview()
        self.table.refresh()
        self.show_key_bar()

    def on_resize(self, event: events.Resize) -> None:
        """Show as much of the calendar as leaves most rows to the list."""
        self._show_calendar()
        self._show_preview()

    def _show_preview(self) -> None:
        """Show the selected run in the rows that the list leaves free; on tall screens at least in a few."""
        rows = self.app.size.height
        calendar = self.calendar.row_count if self.calendar.display else 0
        free = self.screen_rows - _FRAME_ROWS - calendar - max(len(self.table.order), 1)
        free = max(free, _PREVIEW_ROWS if rows >= _PREVIEW_FROM else 0)
        key = self.table.cursor_key
        run = self._summaries.get(key) if key is not None else None
        self.preview.show_run(run, free if free >= _PREVIEW_ROWS_MIN else 0, has_gap=bool(calendar))

    def _show_calendar(self) -> None:
        """Show the worst run of each day of a year, or of the last days; nothing on small screens or of one day."""
        columns, rows = self.app.size
        found = days_of(self._summaries.values(), local_day)
        self.calendar.display = rows >= _CALENDAR_FROM and len(found) > 1
        if not self.calendar.display:
            return
        count = YEAR_ROWS if rows >= _YEAR_FROM else 1
        last = max(*found, local_day(self.console.live.now_us))
        self.calendar.set_row_count(count)
        lines = calendar_lines(found, last, count, columns, self.console.glyphs, self.console.live.status)
        for row, line in enumerate(lines):
            self.calendar.show(line, row=row)

    def _show_order(self) -> None:
        wanted = parse_filter(self.filter_text)
        found = [
            one for one in self._summaries.values() if wanted.matches(f"{one.run.dag_name} {one.run.run_id}".casefold())
        ]
        if self._order is RunOrder.DEAD_LETTERS:
            found.sort(key=lambda one: -one.dead_letters)
        elif self._order is RunOrder.NAME:
            found.sort(key=lambda one: (one.run.dag_name, one.run.run_id))
        self.table.set_order([one.run.run_id for one in found])
        self._show_heading(len(found))

    def _show_heading(self, shown: int) -> None:
        rows = waiting_runs(self._attention, self.console.live.status, self.console.live.now_us)
        waiting = sum(not one.is_notice for one in rows)
        known = len(self._summaries)
        coming, self._shown_count = self._coming(), shown
        self.heading.show(
            *heading_line(shown, known, waiting, self.filter_text, self._order, self.console.glyphs, coming)
        )

    def _coming(self) -> str:
        """The next scheduled run."""
        live = self.console.live
        return describe_next_run(self._schedules, live.now_us, is_served=live.status.service_pid is not None)

    def _row(self, run_id: str, columns: int) -> Line:
        console = self.console
        return run_row(self._view_of(run_id), console.live.now_us, columns, console.glyphs, self._name_cells)

    def _view_of(self, run_id: str) -> RunListEntry:
        board = self.console.live.board
        if board is not None and board.projection.run.run_id == run_id:
            return RunListEntry(board.projection.run, board.counts, self.console.runner)
        summary = self._summaries[run_id]
        runner = runner_of(summary.run, self.console.live.status)
        return RunListEntry(summary.run, counted_states(summary.counts, summary.asked), runner)

    # --- Keys -----------------------------------------------------------------------------------------------------

    def filter_changed(self, text: str) -> None:
        """Show only runs whose flow or name match."""
        self._show_order()

    def change_order(self) -> None:
        """Change to the next order."""
        self._order = next_order(self._order)
        self._show_order()

    def go_to_next(self, step: int) -> None:
        """To the next run that needs a human, or the one before; with a filter, to the next match."""
        before = self.table.cursor
        self.table.move_to_next(step, lambda name: bool(self.filter_text or self._summaries[name].dead_letters))
        if self.table.cursor == before:
            self.console.show_message("no other run matches" if self.filter_text else "no other run has dead letters")

    def subject(self) -> object:
        return None if self.table.cursor_key is None else self._summaries.get(self.table.cursor_key)

    def is_offered(self, action: Action) -> bool:
        """Whether an action can do anything to the selected run: one that has ended is not abandoned."""
        run = self.subject()
        has_ended = isinstance(run, RunSummary) and run.run.ended_at is not None
        return not (action.name == "abandon_run" and has_ended) and super().is_offered(action)

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        self._show_preview()
        self.show_key_bar()

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        self.console.follow(str(message.key))


# --- The selected run in the rows that the list of runs leaves free --------------------------------------------------


TASKS_MAX = 2_000  # of a run that is read for its preview


class RunPreview(Bar):
    """What a run was about: its parameters and the tasks that matter most. Other runs than the followed are read."""

    def __init__(self) -> None:
        super().__init__(0, id="preview")
        self._run: RunSummary | None = None
        self._rows = 0
        self._has_gap = False
        self._read_board: Board | None = None  # of another run than the followed
        self._rest_timer = RestTimer(self, self._start_reading)

    def show_run(self, run: RunSummary | None, rows: int, *, has_gap: bool) -> None:
        """Show a run in at most ``rows`` rows; with ``has_gap`` the last one is empty."""
        self._run, self._rows, self._has_gap = run, rows - has_gap, has_gap
        if self._board() is None and self._is_small and rows > 0:
            self._rest_timer.start()
        self.update_lines()

    def update_lines(self) -> None:
        """Paint the run as of now; a run that has not been read leaves its rows empty."""
        board, console = self._board(), cast(Console, self.app)
        if self._run is None or self._rows < 1 or not self._is_small:
            self.set_row_count(0)
        elif board is not None:
            runner = runner_of(board.projection.run, console.live.status)
            scene = Scene(board, console.live.now_us, console.glyphs, console.absolute_times, runner=runner)
            lines = preview_lines(scene, self.app.size.width, self._rows)
            self.set_row_count(len(lines) + self._has_gap)
            self.show_lines(lines)
        else:
            self.show_lines([])

    @property
    def _is_small(self) -> bool:
        return self._run is not None and sum(self._run.counts.values()) <= TASKS_MAX

    def _board(self) -> Board | None:
        """The board of the run, if it is known."""
        wanted = self._run.run.run_id if self._run is not None else None
        known = (cast(Console, self.app).live.board, self._read_board)
        return next((one for one in known if one is not None and one.projection.run.run_id == wanted), None)

    def _start_reading(self) -> None:
        # the header shows an error; the next move of the cursor reads again
        run_latest(self, self._read, "preview", shows_errors=False)

    async def _read(self) -> None:
        wanted = self._run
        if wanted is None or self._board() is not None:
            return
        self._read_board = Board(await cast(Console, self.app).live.session.snapshot(wanted.run.run_id))
        self.update_lines()
