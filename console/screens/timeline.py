"""The timeline: one row per task, attempts as bars, kills and backoffs as marks, countdowns after now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.widget import Widget

from ...engine.core.projection import TaskRow
from ...engine.domain.states import TIMED, TaskState
from ..feed.live_run import BoardUpdate
from ..keys.actions import ScreenName
from ..model.activity import Pause, RunActivity, activity_of
from ..model.board import Board
from ..model.eta import critical_path
from ..model.filters import parse_task_filter
from ..model.time_span import SECOND, Span
from ..present.tasks import Scene, duration_of
from ..present.timeline import (
    axis_line,
    bar_line,
    describe_path,
    due_cell,
    label_columns,
    label_line,
    legend_line,
    task_lines,
)
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar
from ..widgets.bindings import bindings_of
from ..widgets.split import STRIP_ROWS, has_room_for_strip
from ..widgets.table import VirtualTable
from ..widgets.timeline import TimelineView
from .base import ConsoleScreen

AHEAD_CELLS = 9  # room for a countdown right of now
TROUBLE_FIRST_TASKS = 60  # of more tasks, a run with problems shows these first, until another order is chosen
_MARGIN = 20  # a fitted task has this part of its span free on both sides
_FRAME_ROWS = 8  # header, tabs, rules, axis and key bar


class TaskOrder(StrEnum):
    """The order of rows; tasks that have not begun come last, in the order of the flow."""

    START = "start"  # as they began
    DURATION = "longest"
    PATH = "path"  # parents before children
    TROUBLE = "trouble"  # what needs a human first, then failures, retries and what runs


#: The state of a task -> its place by trouble; all others come after these, as they began.
_TROUBLE = {
    state: place
    for place, state in enumerate(
        (
            *(TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.RETRYING),
            *(TaskState.RUNNING, TaskState.SENSING, TaskState.READY),
        )
    )
}


class TaskTimeline(TimelineView[str]):
    """Bars of tasks; shows the whole run until the user zooms or pans."""

    def __init__(self, screen: TimelineScreen) -> None:
        super().__init__(screen.label, screen.bar, id="timeline")
        self._timeline_screen = screen
        self.shows_whole_run = True
        self._run_span = (0, SECOND, 0)  # start, end, and free cells after the end

    def set_label_columns(self, columns: int) -> None:
        """Give names more or less room."""
        if columns != self._label_columns:
            self._label_columns = columns
            self._fit_run()
            self.refresh()

    def extend_to(self, start: int, now: int) -> None:
        """Extend the run to ``now`` and scroll to it if it is followed."""
        self._run_span = (start, now, AHEAD_CELLS)
        ahead = now + AHEAD_CELLS * self.span.per_cell
        if self.is_following and not self.shows_whole_run:
            self.set_now(ahead)
        elif self.is_following and not self.span.start <= start < ahead < self.span.end:
            self._fit_run()

    def show_whole_run(self, start: int, end: int, *, live: bool) -> None:
        """Show a whole run; ``live``: it has not ended."""
        self.shows_whole_run = True
        self.is_following = live
        self._run_span = (start, end, AHEAD_CELLS if live else 0)
        self._fit_run()

    def _fit_run(self) -> None:
        self.set_extent(*self._run_span)
        if self.columns:
            self.fit()

    def fit_period(self, start: int, end: int) -> bool:
        """Show a period with a margin. False if it is shown already."""
        before, margin = self.span, max((end - start) // _MARGIN, 1)
        self.shows_whole_run = self.is_following = False
        self.show_period(start - margin, end + margin)
        return self.span != before

    def zoom_anchor(self) -> int:
        """The selected task stays where it is: its latest attempt, or now if it moves."""
        return self._timeline_screen.cursor_instant()

    def row_role(self, y: int) -> str | None:
        """The cursor is on the name alone: bars keep their colours."""
        return None

    def on_resize(self) -> None:
        """Fit the whole run again, if it was shown."""
        if self.shows_whole_run:
            self._fit_run()
        super().on_resize()

    def toggle_follow(self) -> None:
        """The screen knows what now is."""
        self._timeline_screen.toggle_follow()

    def zoom(self, step: int) -> None:
        """A longer or shorter span, no longer the whole run."""
        self.shows_whole_run = False
        self._now = self._run_span[1]  # stays where it is on the screen
        super().zoom(step)

    def _pan(self, cells: int) -> None:
        self.shows_whole_run = False
        super()._pan(cells)


class TimelineScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.TIMELINE
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.TIMELINE)

    def __init__(self) -> None:
        super().__init__()
        self.axis = Bar(id="axis")
        self.timeline = TaskTimeline(self)
        self.words_bar = Bar(STRIP_ROWS, id="words")
        self._sort = TaskOrder.START
        self._is_order_chosen = False
        self._started: list[str] = []
        self._waiting: list[str] = []
        self._critical: frozenset[str] = frozenset()
        self._activity = RunActivity((), 0, True)
        self._now_us = 0

    # --- The frame ------------------------------------------------------------------------------------------------

    def content(self) -> Iterable[Widget]:
        """Axis and bars."""
        yield self.axis
        yield self.timeline

    def widgets_below(self) -> Iterable[Widget]:
        """The selected row in words."""
        yield self.words_bar

    def on_resize(self, event: events.Resize) -> None:
        """Fit labels and words to the new size."""
        self.words_bar.display = has_room_for_strip(event.size.height)
        self._fit_words()
        self.timeline.set_label_columns(label_columns(list(self.board.fold.tasks), event.size.width))
        super().on_resize(event)

    # --- The run --------------------------------------------------------------------------------------------------

    def _scene(self) -> Scene:
        console = self.console
        return Scene(
            self.board, self._now_us, console.glyphs, console.absolute_times, 24, self.board.pools(), console.runner
        )

    @property
    def now(self) -> int | None:
        """The current time; None if the run has ended."""
        return self._now_us if self.board.fold.run.ended_at is None else None

    def board_replaced(self, board: Board) -> None:
        """All of the run."""
        self._now_us = self.console.live.now_us
        self._critical = frozenset()
        if not self._is_order_chosen and len(board.fold.tasks) > TROUBLE_FIRST_TASKS and board.problems:
            self._sort = TaskOrder.TROUBLE
        self._sort_tasks()
        self._find_activity()
        self._show_whole_run()
        self._show_order()

    def on_shown(self) -> None:
        """As of now, with the selection of the other screens."""
        self.timeline.focus()
        self._now_us = self.console.live.now_us
        self._find_activity()
        self._update_span()
        if self.console.selected is not None:
            self.timeline.move_to_key(self.console.selected)
        self.timeline.refresh()
        self._show_axis()
        self._show_words()

    def on_news(self, news: BoardUpdate) -> None:
        """Update the bars of changed tasks."""
        has_state_filter = bool(news.delta.moves) and parse_task_filter(self.filter_text).states is not None
        if self._move_started([name for name in news.delta.tasks if self.board.row(name).attempts]) or has_state_filter:
            self._show_order()
        if self not in self.app.screen_stack:
            return
        live = self.console.live
        self._set_now(live.now_us if live.is_past else max(self._now_us, live.now_us))
        if live.is_past or self._activity.is_active != self._is_active():
            self._find_activity()
        self.timeline.rows_changed(news.delta.tasks)
        if news.delta.is_run_changed:
            self._update_span()
            self.timeline.refresh()
            self._show_axis()
        self._show_words()

    def tick(self, now_us: int) -> None:
        """Advance the line of now and the countdowns."""
        if self.now is None:
            self._now_us = now_us
            return
        self._set_now(now_us)
        self._update_span()
        self._tick_countdowns(self.timeline.span)
        self._show_words()

    def _set_now(self, now_us: int) -> None:
        """Move the line of now and repaint the columns in between; in the past it also moves back."""
        span = self.timeline.span
        first, last = sorted((span.cell(self._now_us), span.cell(now_us)))
        self._now_us = now_us
        if first != last:
            first, last = max(first, 0), min(last, span.cells)
            width = last - first + 1
            self.timeline.refresh_cells(self.timeline.label_columns + first, 0, width, self.timeline.rows)
            self._show_axis()

    def _tick_countdowns(self, span: Span) -> None:
        """Repaint the countdowns of visible rows."""
        for y, name in enumerate(self.timeline.in_view()):
            row = self.board.row(name)
            place = due_cell(row, span, self._now_us, self.console.glyphs)
            if place is not None:
                self.timeline.refresh_cells(self.timeline.label_columns + place - 1, y, span.cells - place + 1)

    def _update_span(self) -> None:
        run = self.board.fold.run
        self._shorten_pauses()
        if run.ended_at is None:
            self.timeline.extend_to(run.started_at, self._now_us)
        elif self.timeline.shows_whole_run:
            self.timeline.show_whole_run(run.started_at, run.ended_at, live=False)

    def _is_active(self) -> bool:
        """Whether a task runs, or has a time to go on."""
        return bool(self.board.active)

    def _find_activity(self) -> None:
        """Find the idle pauses of the run; the last one goes on until now."""
        run = self.board.fold.run
        self._activity = activity_of(self.board.fold.tasks.values(), run.started_at)
        self._shorten_pauses()

    def _shorten_pauses(self) -> None:
        activity, now_us = self._activity, self.now
        waits = now_us is not None and not activity.is_active and now_us > activity.end
        last = [Pause(activity.end, now_us)] if waits and now_us is not None else []
        self.timeline.set_pauses([*activity.pauses, *last])

    def cursor_instant(self) -> int:
        """The instant that zooming keeps in its place: now if the selected task moves, else its latest attempt."""
        name = self.timeline.cursor_key
        row = self.board.row(name) if name is not None else None
        latest = row.attempts.get(row.attempt) if row is not None else None
        if latest is None or latest.ended_at is None or (row is not None and row.state in TIMED):
            return self.now if self.now is not None else self.board.fold.run.started_at
        return (latest.started_at + latest.ended_at) // 2

    def _show_whole_run(self) -> None:
        run = self.board.fold.run
        end = run.ended_at if run.ended_at is not None else self._now_us
        self.timeline.show_whole_run(run.started_at, end, live=run.ended_at is None)

    # --- Rows -----------------------------------------------------------------------------------------------------

    def _sort_tasks(self) -> None:
        tasks = self.board.fold.tasks
        first = sorted((row for row in tasks.values() if row.attempts), key=_SORT_KEYS[self._sort])
        self._started = [row.name for row in first]
        self._waiting = [name for name in self.board.dag.order if not tasks[name].attempts]

    def _move_started(self, names: Sequence[str]) -> bool:
        """Tasks that run for the first time follow those that ran before. False if there are none."""
        first = set(names).intersection(self._waiting) if names else set()
        if first:
            rows = sorted((self.board.row(name) for name in first), key=_start_key)
            self._started += [row.name for row in rows]
            self._waiting = [name for name in self._waiting if name not in first]
        return bool(first)

    def _show_order(self) -> None:
        order = list(self.board.dag.order) if self._sort is TaskOrder.PATH else [*self._started, *self._waiting]
        wanted = parse_task_filter(self.filter_text)
        if wanted:
            states = {name: self.board.row(name).state for name in order}
            order = [name for name in order if wanted.matches_task(f"{name} {states[name]}".casefold(), states[name])]
        self.timeline.set_order(order)
        self._fit_words()

    def label(self, name: str, columns: int) -> Line:
        """The left part of a row."""
        role = Role.CRITICAL if name in self._critical else Role.TEXT
        role = Role.CURSOR if name == self.timeline.cursor_key else role
        return label_line(self.board.row(name), columns, self.console.glyphs, role)

    def bar(self, name: str, span: Span) -> Line:
        """The right part of a row."""
        return bar_line(self.board.row(name), span, self.now, self.console.glyphs, self.console.runner)

    def _show_axis(self) -> None:
        columns = self.timeline.label_columns
        title = f" by {self._sort}" + (f" /{one_line(self.filter_text)}" if self.filter_text else "")
        name = [Piece(title[: columns - 1].ljust(columns), Role.MATCH if self.filter_text else Role.DIM)]
        self.axis.show([*name, *axis_line(self.timeline.span, self.now, self.console.glyphs)])

    def _show_words(self) -> None:
        name, rows = self.timeline.cursor_key, self.words_bar.row_count
        scene, columns = self._scene(), self.app.size.width
        lines = task_lines(self.board.row(name), scene, columns, rows) if name is not None else []
        if len(lines) + 1 < rows:
            lines += [[]] * (rows - 1 - len(lines)) + [legend_line(self.console.glyphs)]
        for place in range(rows):
            self.words_bar.show(lines[place] if place < len(lines) else [], row=place)

    def _fit_words(self) -> None:
        """Give the words below the rows that the tasks do not need."""
        free = self.app.size.height - _FRAME_ROWS - self.board.total
        self.words_bar.set_row_count(max(free, STRIP_ROWS))

    # --- Keys -----------------------------------------------------------------------------------------------------

    def on_timeline_view_span_changed(self, message: TimelineView.SpanChanged) -> None:
        """Another part of time."""
        self._show_axis()

    def on_virtual_table_moved(self, message: VirtualTable.Moved) -> None:
        """Another task."""
        self.console.selected = self.timeline.cursor_key
        self._show_words()

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """Show the time of the task; again: everything about the task."""
        if not self._fit_task():
            self.show_details()

    def _fit_task(self) -> bool:
        """Show the attempts of the selected task over the whole width. False if nothing changes."""
        name = self.timeline.cursor_key
        attempts = list(self.board.row(name).attempts.values()) if name is not None else []
        if not attempts:
            return False
        last = attempts[-1].ended_at
        return self.timeline.fit_period(attempts[0].started_at, self._now_us if last is None else last)

    def show_all(self) -> None:
        """The whole run, from its start to its latest activity."""
        self._show_whole_run()

    def change_order(self) -> None:
        """The next order."""
        orders = list(TaskOrder)
        self._is_order_chosen = True
        self._sort = orders[(orders.index(self._sort) + 1) % len(orders)]
        self._sort_tasks()
        self._show_order()
        self._show_axis()

    def toggle_follow(self) -> None:
        """Switch following the current time on or off."""
        if self.now is None:
            self._show_whole_run()
            return
        self.timeline.is_following = not self.timeline.is_following
        if self.timeline.is_following:
            self._update_span()
        said = "keeps up with now" if self.timeline.is_following else "stands still"
        self.console.show_line([Piece(said, Role.DIM)], 2)

    def toggle_critical_path(self) -> None:
        """Show or hide the critical path."""
        path = () if self._critical else critical_path(self.board, self.console.live.forecast)
        if not self._critical:
            self.console.show_line([Piece(describe_path(self.board, path, self._now_us), Role.DIM)], 6)
        self._critical = frozenset(path)
        self.timeline.refresh()

    def back(self) -> None:
        """All of the run again; then the filter."""
        if self.timeline.shows_whole_run:
            super().back()
        else:
            self._show_whole_run()

    def filter_changed(self, text: str) -> None:
        """Only tasks whose name or state match."""
        self._show_order()
        self._show_axis()

    def go_to_next(self, step: int) -> None:
        """To the next problem or match, or the one before."""
        if self.filter_text:
            self.timeline.move_to(self.timeline.cursor + step)
            return
        name = self.board.next_problem(self.console.selected, step)
        if name is None or not self.timeline.move_to_key(name):
            self.console.show_line([Piece("nothing needs a human", Role.DIM)], 3)


def _start_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: start of the first attempt, position."""
    return next(iter(row.attempts.values())).started_at, row.position


def _duration_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: time of all attempts, the longest first; a running attempt counts as the longest."""
    ended = (attempt for attempt in row.attempts.values() if attempt.ended_at is not None)
    return row.state is not TaskState.RUNNING, -sum(duration_of(attempt, attempt.started_at) for attempt in ended)


def _problem_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: trouble, start of the first attempt."""
    return _TROUBLE.get(row.state, len(_TROUBLE)), _start_key(row)[0]


_SORT_KEYS: dict[TaskOrder, Callable[[TaskRow], tuple[int, int]]] = {
    TaskOrder.START: _start_key,
    TaskOrder.DURATION: _duration_key,
    TaskOrder.PATH: _start_key,
    TaskOrder.TROUBLE: _problem_key,
}
