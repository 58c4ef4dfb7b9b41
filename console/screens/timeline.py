"""The timeline: one row per task or group, attempts as bars, kills and backoffs as marks, countdowns after now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace
from textual import events
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ...engine.core.failures.hang import cpu_by_second
from ...engine.core.views import TaskView
from ...engine.domain.events import EventKind
from ...engine.domain.states import TIMED
from ...engine.statefile.lists import EVENTS_OF_KIND
from ..keys.actions import ScreenName
from ..model.board import Board, BoardUpdate
from ..model.time_axis import RunActivity, Span, activity_of
from ..model.timeline import BreakerPeriods, HangRow, RowKey, TimelineRows, killed_attempts
from ..present import timeline as present
from ..present.detail import static_lines
from ..present.tasks import RunContext
from ..present.timeline_text import bar_legend, group_lines, task_lines
from ..sessions.session import listed_events
from ..text.pieces import Line, Role, crop, width
from ..text.text import one_line
from ..widgets import bars
from ..widgets.line_view import LineView
from ..widgets.table import VirtualTable
from .console import run_latest
from .task_pages import TEXTS_ROWS_MIN, TaskScreen
from .timeline_bars import TimelineLabels, TimelineView

_WORDS_BEFORE_BANDS = 8  # rows of words before the breakers have any
_FRAME_ROWS = 8  # header, tabs, rules, axis and key bar
_DETAIL_ROWS_MIN = 12  # below the bars, from which the details of the task have room
_BANDS_FROM = 30  # rows of the screen, from which a large run always has its breakers


AttemptKey = tuple[str, int]  # a task, and the number of its attempt


class TimelineScreen(TaskScreen):
    """See the module."""

    PLACE = ScreenName.TIMELINE
    DEFAULT_CSS = "TimelineScreen #below, TimelineScreen #below > Vertical { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self.detail.fill, self.texts.fill = self.texts.fill, self.detail.fill  # beside, as in the inbox
        self.axis = bars.Bar(id="axis")
        self.main_pane = self.timeline = TimelineView(self)
        self.breaker_bands = bars.Bar(id="bands")
        self.words_bar = bars.Bar(bars.STRIP_ROWS, id="words")
        self._rows: TimelineRows | None = None
        self._labels: TimelineLabels | None = None
        self._activity = RunActivity((), 0, True)
        self._breakers = BreakerPeriods()
        self._cpu: dict[AttemptKey, Sequence[int]] = {}  # of each second before the timeout
        self._now_us = 0
        self._legend: list[Line] = [[]]
        self._text_rows = bars.STRIP_ROWS  # below the bars

    # --- The frame ------------------------------------------------------------------------------------------------

    def main_widgets(self) -> Iterable[Widget]:
        """Yield the axis, the bars, and when breakers were open."""
        yield self.axis
        yield self.timeline
        yield self.breaker_bands

    content = main_widgets

    def widgets_below(self) -> Iterable[Widget]:
        """Yield the selected task in sentences; where the rows leave room, what it wrote beside its details."""
        with Horizontal(id="below"):
            with Vertical():
                yield self.texts
                yield self.words_bar
            yield self.divider
            yield self.detail

    @property
    def detail_room(self) -> bars.DetailRoom:
        """Half of the width below the bars, where their rows leave room."""
        columns = self.app.size.width
        has_room = self._text_rows >= _DETAIL_ROWS_MIN and bars.detail_room(*self.app.size).columns > 0
        return bars.DetailRoom(columns // 2 if has_room else 0)

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """The column at which the divider begins: below the bars."""
        return {} if upper else super().rule_marks(upper=True)

    def on_resize(self, event: events.Resize) -> None:
        """Fit labels and words to the new size."""
        self.words_bar.display = bars.has_room_for_strip(event.size.height)
        self._fit_text()
        self.timeline.set_label_columns(self.labels.columns)

    # --- The run --------------------------------------------------------------------------------------------------

    def run_context(self) -> RunContext:
        """The context for rendering tasks, as of the line of now."""
        context, labels = replace(super().run_context(), now_us=self._now_us), self._labels
        return context if labels is None else replace(context, names=labels.names, titles=labels.titles)

    @property
    def now(self) -> int | None:
        """The current time; None if the run has ended."""
        return self._now_us if self.board.projection.run.ended_at is None else None

    def board_replaced(self, board: Board) -> None:
        """Show the whole run of the new board."""
        self._now_us = self.console.live.now_us
        self._rows = TimelineRows(board)
        self._labels = TimelineLabels(board, self._rows, self.run_context)
        self._breakers, self._cpu = BreakerPeriods(), {}
        if board.snapshot.downstreams:
            run_latest(self, self._read_breakers, "breakers", shows_errors=False)
        self._find_activity()
        self.timeline.set_label_columns(self.labels.columns)
        self._show_whole_run()
        self._show_order()

    async def _read_breakers(self) -> None:
        run_id = self.board.projection.run.run_id
        events = await listed_events(self.console.live.session, EVENTS_OF_KIND, run_id=run_id, kind=EventKind.BREAKER)
        self._breakers = BreakerPeriods(events)
        self._fit_text()

    def _killed(self, key: HangRow) -> AttemptKey:
        return key.task, max((one.attempt for one in killed_attempts(self.board.row(key.task))), default=0)

    async def _read_hangs(self) -> None:
        run_id = self.board.projection.run.run_id
        for key in {self._killed(key) for key in self.timeline.order if isinstance(key, HangRow)} - self._cpu.keys():
            self._cpu[key] = cpu_by_second((await self.console.live.session.attempt_text(run_id, *key)).stack)
        self.timeline.refresh()

    @property
    def rows(self) -> TimelineRows:
        assert self._rows is not None
        return self._rows

    @property
    def labels(self) -> TimelineLabels:
        assert self._labels is not None
        return self._labels

    def on_shown(self) -> None:
        """Update to the current time and to the selection of the other screens."""
        self.timeline.focus()
        self._now_us = self.console.live.now_us
        self._find_activity()
        self._update_span()
        self._select(self.console.selected)
        self.timeline.refresh()
        self._show_axis()
        self._show_text()

    def on_news(self, news: BoardUpdate) -> None:
        """Update the bars of changed tasks."""
        new_hangs = any(self.timeline.place_of(HangRow(name)) is None for name in self._hung(news.delta.tasks))
        if self.rows.apply(news.delta) or new_hangs or (news.delta.moves and self.filter_text):
            self._show_order()
        if EventKind.BREAKER in news.delta.other_kinds:
            self._breakers.add(news.events)
            self._fit_text()
        if self not in self.app.screen_stack:
            return
        live = self.console.live
        self._set_now(live.now_us if live.is_past else max(self._now_us, live.now_us))
        activity, moves, is_active = self._activity, news.delta.moves, self._is_active()
        is_active = is_active and activity.is_active and not live.is_past
        if moves and is_active and activity.pauses_until(self._now_us) == activity.pauses:
            self._activity = activity._replace(end=self._now_us)
        elif moves or live.is_past or activity.is_active != is_active:  # one batch may begin and end an activity
            self._find_activity()
        self.timeline.rows_changed({*self.rows.rows_of(news.delta.tasks), *map(HangRow, news.delta.tasks)})
        if news.delta.is_run_changed:
            self._update_span()
            self.timeline.refresh()
            self._show_axis()
        self._show_breakers()
        self._show_text()

    def tick(self, now_us: int) -> None:
        """Advance the line of now and the countdowns."""
        if self._rows is None:
            return  # not mounted yet
        if self.now is None:
            self._now_us = now_us
            return
        if self._activity.is_active and not self.console.runner.is_alive:
            self._find_activity()  # the executor ended: from here on the axis is broken
            self.timeline.refresh()
        self._set_now(now_us)
        self._update_span()
        self._tick_countdowns(self.timeline.span)
        self._show_breakers()
        self.page_of_texts.expire_running()
        self._show_text()

    def _set_now(self, now_us: int) -> None:
        """Move the line of now and repaint the columns in between; in the past it also moves back."""
        before, self._now_us = self.timeline.span.cell(self._now_us), now_us
        self.timeline.set_pauses(self._activity.pauses_until(self.now))  # in a pause now stays in its cell
        span = self.timeline.span
        first, last = sorted((before, span.cell(now_us)))
        if first != last:
            first, last = max(first, 0), min(last, span.cells)
            width = last - first + 1
            self.timeline.refresh_cells(self.timeline.label_columns + first, 0, width, self.timeline.rows)
            self._show_axis()

    def _tick_countdowns(self, span: Span) -> None:
        """Repaint the countdowns of visible rows."""
        for y, key in enumerate(self.timeline.in_view()):
            if isinstance(key, HangRow):
                continue
            if self.labels.ticks(key):
                self.timeline.refresh_cells(self.timeline.label_columns - present.TOOK_CELLS, y, present.TOOK_CELLS)
            if isinstance(key, int):
                due = self.rows.activity(key).next_due
                place = span.cell(self._now_us) + 1 if due is not None else None
            else:
                view = self._view(key)
                place = present.due_cell(view.instant, span, self._now_us, self.console.glyphs)
                place = 1 if present.wait_words(self.board.row(key), view) else place
            if place is not None:
                self.timeline.refresh_cells(self.timeline.label_columns + place - 1, y, span.cells - place + 1)

    def _update_span(self) -> None:
        run = self.board.projection.run
        if run.ended_at is None:
            is_past = self.console.live.is_past
            self.timeline.extend_to(run.started_at, self._now_us, is_due=self._is_active(), is_past=is_past)
        elif self.timeline.shows_whole_run:
            self.timeline.show_whole_run(run.started_at, run.ended_at, live=False)

    def _is_active(self) -> bool:
        """Whether a task runs, or has a time to go on."""
        return bool(self.board.active) and self.console.runner.is_alive

    def _find_activity(self) -> None:
        """Find the pauses of the run; the last one goes on until now."""
        run = self.board.projection.run
        self._activity = activity_of(self.board.projection.tasks.values(), run.started_at, self.console.runner)
        self.timeline.set_pauses(self._activity.pauses_until(self.now))

    def cursor_instant(self) -> int:
        """The instant that zooming keeps in its place: now if the row goes on, else the middle of its attempt."""
        key = self.timeline.cursor_key
        period = self._latest_period(key) if key is not None else None
        if period is None:
            return self.now if self.now is not None else self.board.projection.run.started_at
        return sum(period) // 2

    def _latest_period(self, key: RowKey) -> tuple[int, int] | None:
        """The latest attempt of a task, or all of a group; None if it goes on or has not begun."""
        if isinstance(key, int):
            activity = self.rows.activity(key)
            start, end = activity.first_start, activity.last_end
            return (start, end) if start is not None and end is not None and not activity.is_active else None
        row = self.board.row(key)
        latest = row.latest
        if latest is None or latest.ended_at is None or row.state in TIMED:
            return None
        return latest.started_at, latest.ended_at

    def _show_whole_run(self) -> None:
        run = self.board.projection.run
        end, live = run.ended_at if run.ended_at is not None else self._now_us, run.ended_at is None
        self.timeline.show_whole_run(run.started_at, end, live=live, is_due=self._is_active())

    # --- Rows -----------------------------------------------------------------------------------------------------

    def _show_order(self) -> None:
        is_tall = self.app.size.height >= bars.TALL_SCREEN_ROWS
        room = self.app.size.height // 2 - len(self.rows.groups)
        self.rows.lists_problems = is_tall and 0 < len(self.board.problems) <= room
        self.timeline.set_order([*self.rows.with_hangs(self.filter_text)])
        if any(isinstance(key, HangRow) and self._killed(key) not in self._cpu for key in self.timeline.order):
            run_latest(self, self._read_hangs, "hangs", shows_errors=False)
        if not self.filter_text:  # else the words would move while a filter is typed
            self._fit_text()

    def _hung(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if not self.filter_text and self.rows.has_hung(name))

    def label(self, key: RowKey, columns: int) -> Line:
        """Render the left part of a row."""
        is_cursor = key == self.timeline.cursor_key
        return self.labels.line(key, columns, is_cursor=is_cursor, is_filtered=bool(self.filter_text))

    def bar(self, key: RowKey | HangRow, span: Span) -> Line:
        """Render the right part of a row."""
        context = self._bar_context(span)
        if isinstance(key, HangRow):
            return present.hang_line(self.board.row(key.task), context, self._cpu.get(self._killed(key), ()))
        if not isinstance(key, int):
            row, view = self.board.row(key), self._view(key)
            name, wait = self.labels.name_at_bar(key), present.wait_words(row, view)
            return present.bar_line(row, context, view.instant, name, wait)
        group, activity, name = self.rows.group(key), self.rows.activity(key), self.labels.name_at_bar(key)
        return present.group_bar_line(group, activity, context, name)

    def _bar_context(self, span: Span) -> present.BarContext:
        return present.BarContext(span, self.now, self.console.glyphs, self.console.runner)

    def _view(self, name: str) -> TaskView:
        return self.board.view(name, self._now_us, self.console.runner)

    def _show_axis(self) -> None:
        columns = self.timeline.label_columns
        title = f" task /{one_line(self.filter_text)}" if self.filter_text else " task"
        name = self.labels.heading(title, columns, Role.MATCH if self.filter_text else Role.DIM)
        self.axis.show([*name, *present.axis_line(self.timeline.span, self.now, self.console.glyphs)])

    def _show_text(self) -> None:
        key, rows, columns = self.timeline.cursor_key, self._text_rows, self.app.size.width
        is_beside = self.detail.display
        columns = (columns - 1) // 2 if is_beside else columns
        has_texts = self._show_written(key)
        lines = [] if is_beside and has_texts else self._text_lines(key, columns, rows)
        has_texts = has_texts and rows - len(lines) - len(self._legend) > TEXTS_ROWS_MIN
        self.texts.display = has_texts
        self.detail.texts_view = self.texts if has_texts else None
        if is_beside:
            self.detail.show_task(self.console.selected)
        self.request_texts()
        if isinstance(key, str) and not has_texts and not is_beside:
            lines += static_lines(self.board.row(key), self.run_context(), rows - len(lines) - len(self._legend) - 1)
        if (free := rows - len(lines) - len(self._legend)) > 0:
            blanks = 0 if is_beside else 1
            lines = [*[[]] * blanks, *lines, *self._legend] if has_texts else [*lines, *[[]] * free, *self._legend]
            self.call_after_refresh(self._update_legend, columns, 2 if is_beside else 1)
        self.words_bar.set_row_count(len(lines) if has_texts else rows)
        self.texts.styles.height = rows - self.words_bar.row_count
        self.words_bar.show_lines(lines)

    def _show_written(self, key: RowKey | None) -> bool:
        """Show what the task of the cursor wrote, or the one that it waits for. Whether that is anything."""
        name = self.writer_of(key) if isinstance(key, str) else None
        self.texts.cursor = self.console.selected
        self.texts.show_task(name)
        return name is not None and bool(self.board.row(name).attempts) and not self.texts.is_blank

    def _update_legend(self, columns: int, rows: int) -> None:
        """Name the signs of the bars that have been painted, within ``columns`` cells and ``rows`` rows."""
        painted = [crop(line, self.timeline.label_columns, width(line)) for line in self.timeline.painted]
        legend = bar_legend(painted, self.console.glyphs, columns, rows, has_groups=bool(self.rows.groups))
        if legend != self._legend:
            self._legend = legend
            self._show_text()

    def _text_lines(self, key: RowKey | None, columns: int, rows: int) -> list[Line]:
        if key is None:
            return []
        if not isinstance(key, int):
            return task_lines(self.board.row(key), self.run_context(), columns, rows)
        worst = self.rows.worst_tasks(key, rows - 1)
        return group_lines(self.rows.group(key), self.rows.activity(key), worst, self.run_context(), columns, rows)

    def texts_read(self) -> None:
        self._show_text()

    def _fit_text(self) -> None:
        """Give the breakers and the words the rows that the tasks do not need."""
        height, breakers = self.app.size.height, len(self._breakers.downstreams)
        free = height - _FRAME_ROWS - len(self.timeline.order)
        has_half = bool(self.rows.groups) and height >= _BANDS_FROM  # then the rows of the groups scroll
        self.breaker_bands.display = (
            0 < breakers <= (max(free, height // 2) if has_half else free) - _WORDS_BEFORE_BANDS
        )
        if self.breaker_bands.display:
            self.breaker_bands.set_row_count(breakers)
            free -= breakers
        self._text_rows = rows = max(free, bars.STRIP_ROWS)
        if self.detail.has_focus and not self.is_wide:
            self.timeline.focus()
        self.place_details()
        self.detail.styles.height = self.divider.styles.height = rows
        self._show_breakers()
        self._show_text()

    def _show_breakers(self) -> None:
        """Show when breakers were open, where the rows leave room."""
        if self.breaker_bands.display:
            context, columns = self._bar_context(self.timeline.span), self.timeline.label_columns
            self.breaker_bands.show_lines(present.breaker_lines(self._breakers, context, columns))

    # --- Keys and mouse ---------------------------------------------------------------------------------------------

    def on_timeline_view_span_changed(self, message: TimelineView.SpanChanged) -> None:
        """Update what depends on the visible span."""
        self._show_axis()
        self._show_breakers()

    def row_in(self, view: LineView, task: str) -> int | None:
        return self.timeline.place_of(task) if view is self.timeline else None

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Select the task of the row, or the worst task of its group, on all screens."""
        key = self.timeline.cursor_key
        self.console.selected = self.rows.worst_tasks(key, 1)[0] if isinstance(key, int) else key
        self._show_text()

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open or close the group, or show the time of the task; again: everything about the task."""
        if not self.toggle_group() and not self._fit_task():
            self.show_details()

    def _fit_task(self) -> bool:
        """Show the attempts of the selected task over the whole width. False if nothing changes."""
        name = self.timeline.cursor_key
        attempts = list(self.board.row(name).attempts.values()) if isinstance(name, str) else []
        if not attempts:
            return False
        last = attempts[-1].ended_at
        return self.timeline.fit_period(attempts[0].started_at, self._now_us if last is None else last)

    # --- Groups ---------------------------------------------------------------------------------------------------

    def target_tasks(self) -> Sequence[str]:
        """The task under the cursor; of a group those that need a human."""
        key = self.timeline.cursor_key
        return self.rows.problems(key) if isinstance(key, int) else super().target_tasks()

    def visible_tasks(self) -> Collection[str]:
        """The tasks of the rows in view."""
        return {key for key in self.timeline.in_view() if isinstance(key, str)}

    def task_at_cursor(self) -> str | None:
        """The task of the row under the cursor; None on a group and in an empty list."""
        key = self.timeline.cursor_key
        return key if isinstance(key, str) and key in self.timeline.in_view() else None

    @property
    def acts_on_one(self) -> bool:
        """Whether the row is no group."""
        return not isinstance(self.timeline.cursor_key, int)

    @property
    def selection_problem(self) -> str:
        """Why an act has no target."""
        if isinstance(self.timeline.cursor_key, int):
            return "nothing in this group needs a human: open it and select a task"
        return super().selection_problem

    def toggle_group(self) -> bool:
        """Open the group under the cursor, or close it. False if the cursor is on a task."""
        key = self.timeline.cursor_key
        return isinstance(key, int) and self.fold_group(not self.rows.is_open(key))

    def fold_group(self, opens: bool) -> bool:
        """Open the group under the cursor, or close that of the row under the cursor. False if that changes nothing."""
        key = self.timeline.cursor_key
        index = self._group_to_fold(key, opens) if key is not None else None
        if index is None:
            return False
        (self.rows.open if opens else self.rows.close)(index)
        self.timeline.move_to_key(index)
        self._show_order()
        return True

    def _group_to_fold(self, key: RowKey, opens: bool) -> int | None:
        if isinstance(key, int):
            can_fold = not self.rows.is_open(key) if opens else self.rows.shows_tasks(key)
            return key if can_fold else None
        is_member = not opens and not self.filter_text and self.timeline.shows_whole_run
        return self.rows.group_of(key) if is_member else None  # zoomed in, left is earlier

    def _select(self, name: str | None) -> bool:
        """Put the cursor on a task, below its group if that is closed. False if it is not listed."""
        if name is None or (self._is_selected_by_group(name)):
            return name is not None
        if self.rows.show_task(name):
            self._show_order()
        return self.timeline.move_to_key(name)

    def _is_selected_by_group(self, name: str) -> bool:
        """Whether the row under the cursor is a group that stands for a task."""
        key = self.timeline.cursor_key
        return isinstance(key, int) and key == self.rows.group_of(name) and self.rows.worst_tasks(key, 1) == [name]

    # --- The span -------------------------------------------------------------------------------------------------

    def show_all(self) -> None:
        """Show the whole run, from its start to its latest activity."""
        before = self.timeline.span
        self._show_whole_run()
        if self.timeline.span == before:
            self.console.show_message("the whole run is shown")

    def on_zoom_end(self) -> None:
        """The span is the shortest that can be shown."""
        self.console.show_message("there is no shorter span")

    def toggle_follow(self) -> None:
        """Switch following the current time on or off."""
        if self.now is None:
            self._show_whole_run()
            self.console.show_message("the run has ended: all of it is shown")
            return
        self.timeline.is_following = not self.timeline.is_following
        if self.timeline.is_following:
            self._update_span()
        words = "follows the present" if self.timeline.is_following else "stands still"
        self.console.show_message(words, Role.DIM, 2)

    def toggle_critical_path(self) -> None:
        """Show or hide the critical path."""
        self.labels.critical = frozenset(() if self.labels.critical else self.find_critical_path())
        self.timeline.refresh()

    def back(self) -> None:
        """Leave the details; show the whole run again; if it is shown, clear the filter."""
        if self.detail.has_focus or self.timeline.shows_whole_run:
            super().back()
        else:
            self._show_whole_run()

    def filter_changed(self, text: str) -> None:
        """Show only tasks whose name or state match."""
        self._show_order()
        self._show_axis()

    def go_to_next(self, step: int) -> None:
        """Go to the next or previous problem or match."""
        if self.filter_text:
            self.timeline.move_to(self.timeline.cursor + step)
            return
        before = self.timeline.cursor_key
        if not self._select_problem(step):
            self.console.show_message("nothing needs a human", Role.DIM, 3)
        elif self.timeline.cursor_key == before:
            self.console.show_message("no other task needs a human", Role.DIM, 3)

    def _select_problem(self, step: int) -> bool:
        """Select the next problem; from the row of a group its own first one. False if there is none."""
        key, selected = self.timeline.cursor_key, self.console.selected
        if isinstance(key, int) and step > 0 and selected in self.rows.problems(key):
            name = selected
        else:
            name = self.board.next_problem(selected, step)
        if name is None:
            return False
        if self.rows.show_task(name):
            self._show_order()
        return self.timeline.move_to_key(name)
