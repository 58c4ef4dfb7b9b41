"""A list whose rows share a time axis: zoom, pan, follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec.structs import replace
from textual import events
from textual.message import Message

from ..model.board import Board
from ..model.time_axis import PAUSE_CELLS, SECOND, STEPS, Pause, Span, fitting_span
from ..model.timeline import HangRow, RowKey, TimelineRows
from ..present import timeline as present
from ..present.tasks import RunContext, TaskNames
from ..text.pieces import Line, Piece, Role, fit
from ..widgets.bars import bindings
from ..widgets.table import VirtualTable

_NOW_AT = 0.75  # where now stands after a step, as a part of the width; it walks to the edge before the next step


AHEAD_CELLS = 9  # room for a countdown right of now
_MARGIN = 20  # a fitted task has this part of its span free on both sides


class TimelineRowsHost(Protocol):
    """The screen of the rows, as the bars use it."""

    def label(self, key: RowKey, columns: int) -> Line:
        """Render the left part of a row."""

    def bar(self, key: RowKey | HangRow, span: Span) -> Line:
        """Render the right part of a row, one cell per ``span.per_cell``."""

    def cursor_instant(self) -> int:
        """The instant that zooming keeps in its place."""

    def show_all(self) -> None:
        """Show the whole run."""

    def on_zoom_end(self) -> None:
        """The span is the shortest that can be shown."""

    def toggle_group(self) -> bool:
        """Open or close the group under the cursor. False if the cursor is on a task."""

    def fold_group(self, opens: bool) -> bool:
        """Open or close the group of the row under the cursor. False if that changes nothing."""


class TimelineView(VirtualTable[RowKey | HangRow]):
    """Tasks and groups, each with a label and a bar. The whole run is shown until the operator zooms or pans."""

    BINDINGS = bindings("left", "right", "fold", "unfold")

    class SpanChanged(Message):
        """The visible span changed."""

    def __init__(self, screen: TimelineRowsHost) -> None:
        super().__init__(self._labelled_row, id="timeline")
        self._timeline_screen = screen
        self.label_columns = 22  # with the gap behind the label
        self.span = Span(0, SECOND, 1)
        self.is_following = True
        self.shows_whole_run = True
        self._run_span = (0, SECOND, 0)  # start, end, and free cells after the end
        self._painted: dict[int, Line] = {}  # by row of the view

    @property
    def cursor_key(self) -> RowKey | None:
        """The row under the cursor; of the row where a task hung, the task."""
        key = super().cursor_key
        return key.task if isinstance(key, HangRow) else key

    def move_to(self, place: int) -> None:
        """Move the cursor to a place; it passes over the rows where tasks hung."""
        step = 1 if place > self.cursor else -1
        place = self._clamp(place)
        if self.order and isinstance(self.order[place], HangRow):
            place = place + step if 0 <= place + step < len(self.order) else place - 1
        super().move_to(place)

    def set_label_columns(self, columns: int) -> None:
        """Set the width of the labels."""
        if columns != self.label_columns:
            self.label_columns = columns
            self._fit_run()
            self.refresh()

    def set_pauses(self, pauses: Sequence[Pause]) -> None:
        """Shorten these pauses, in order."""
        before, span = self.span, replace(self.span, pauses=tuple(pauses))
        if span.shape != before.shape:
            self._show(replace(span, wait_cells=PAUSE_CELLS))
        elif span != before:
            self.span = span  # bars stay in their cells
            self.post_message(self.SpanChanged())

    # --- The run --------------------------------------------------------------------------------------------------

    def extend_to(self, start: int, now: int, *, is_due: bool = True, is_past: bool = False) -> None:
        """Extend the run to ``now``. Scrolls only if that leaves a followed view; the caller refreshes changed rows.

        ``is_due``: something comes after now, which needs room; ``is_past``: the axis stays, and now walks on it.
        """
        self._run_span = (start, now, AHEAD_CELLS if is_due else 0)
        ahead = now + AHEAD_CELLS * self.span.per_cell
        is_shown = self.span.start <= (start if self.shows_whole_run else ahead) <= ahead < self.span.end
        if not self.is_following or (is_shown and is_past):
            return
        if self.shows_whole_run:
            self._fit_run()  # also a finer scale, once a pause is shortened
        elif not is_shown:
            first = replace(self.span, start=ahead).instant(-round(self.span.cells * _NOW_AT))
            self._show(replace(self.span, start=max(first, start)))

    def show_whole_run(self, start: int, end: int, *, live: bool, is_due: bool = True) -> None:
        """Show a whole run; ``live``: it has not ended; ``is_due``: of such a run, that something comes after now."""
        self.shows_whole_run = True
        self.is_following = live
        self._run_span = (start, end, AHEAD_CELLS if live and is_due else 0)
        self._fit_run()

    def _fit_run(self) -> None:
        if self.columns:
            self._show(self._fitting(*self._run_span))

    def fit_period(self, start: int, end: int) -> bool:
        """Show a period with a margin. False if it is shown already."""
        before, margin = self.span, max((end - start) // _MARGIN, 1)
        self.shows_whole_run = self.is_following = False
        self._show(self._fitting(start - margin, end + margin))
        return self.span != before

    def _fitting(self, start: int, end: int, ahead: int = 0) -> Span:
        """The span of the finest step that shows a period, with ``ahead`` free cells after it."""
        return fitting_span(start, end, self._bar_cells(), ahead, self.span.pauses)

    def _show(self, span: Span) -> None:
        span = replace(span, start=span.start - span.start % span.per_cell)
        if span != self.span:
            self.span = span
            self.refresh()
            self.post_message(self.SpanChanged())

    # --- Keys and mouse -------------------------------------------------------------------------------------------

    def move_columns(self, direction: int) -> None:
        """Open or close the group under the cursor, else go a quarter of the span earlier, or with 1 later."""
        if not self._timeline_screen.fold_group(direction > 0):
            self.shows_whole_run = self.is_following = False
            self._show(replace(self.span, start=self.span.instant(direction * (self.span.cells // 4))))

    def zoom(self, step: int) -> None:
        """Show a shorter (1) or longer (-1) span: at most the whole run.

        The end of the latest attempt stays in its cell, or now if the task is unfinished. Following ends if now is
        outside the span.
        """
        before, host = self.span, self._timeline_screen
        per_cell = _finer(before.per_cell) if step > 0 else _coarser(before.per_cell)
        if step < 0 and per_cell >= self._fitting(*self._run_span).per_cell:
            host.show_all()
            return
        anchor, self.shows_whole_run = host.cursor_instant(), False
        cell = before.cell(anchor)
        place = cell if 0 <= cell < before.cells else before.cells // 2
        zoomed = replace(before, start=anchor, per_cell=per_cell, wait_cells=PAUSE_CELLS)
        self._show(replace(zoomed, start=zoomed.instant(-place)))
        if self.span == before:
            host.on_zoom_end()
        self.is_following = self.is_following and self.span.start <= self._run_span[1] < self.span.end

    def on_click(self, event: events.Click) -> None:
        """Open or close the group whose sign was clicked."""
        event.prevent_default()  # Textual calls the handler of each class
        super().on_click(event)
        if event.chain == 1 and event.x < present.FOLD_CELLS and self.first_visible + event.y == self.cursor:
            self._timeline_screen.toggle_group()

    # --- Drawing --------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Fit the whole run again, if it was shown; else show as many cells as have room, from the same instant."""
        if self.shows_whole_run:
            self._fit_run()
        else:
            self._show(replace(self.span, cells=self._bar_cells()))

    def _bar_cells(self) -> int:
        return max(self.columns - self.label_columns, 1)

    def _labelled_row(self, key: RowKey | HangRow, columns: int) -> Line:
        screen, room = self._timeline_screen, self.label_columns - 1
        if isinstance(key, HangRow):
            return [Piece(" " * self.label_columns), *screen.bar(key, self.span)]
        return [*fit(screen.label(key, room), room), Piece(" "), *screen.bar(key, self.span)]

    def line(self, y: int) -> Line:
        self._painted[y] = super().line(y)
        return self._painted[y]

    @property
    def painted(self) -> Sequence[Line]:
        """The rows in view as they were painted last."""
        return [self._painted.get(y, []) for y in range(self.rows)]

    def row_role(self, y: int) -> str | None:
        """None, because the cursor is drawn on the name only, and bars keep their colours."""
        return None


def _finer(per_cell: int) -> int:
    return max((step for step in STEPS if step < per_cell), default=STEPS[0])


def _coarser(per_cell: int) -> int:
    return min((step for step in STEPS if step > per_cell), default=STEPS[-1])


# --- The labels left of the bars of the timeline: a state, a name, and how long its attempts ran ---------------------


class TimelineLabels:
    """The labels of the rows of one board. ``critical``: the tasks of the critical path, if it is shown.

    ``names``, ``titles``: of tasks and of groups, as rows show them.
    """

    def __init__(self, board: Board, rows: TimelineRows, context: Callable[[], RunContext]) -> None:
        self.critical: Collection[str] = ()
        self._board = board
        self._rows = rows
        self._run_context = context
        self.names = TaskNames(board.projection.tasks)
        self.titles = TaskNames((group.title for group in rows.groups), prefix="")

    @property
    def columns(self) -> int:
        """The width of the labels in cells."""
        context = self._run_context()
        return present.group_label_columns(self._rows.groups, context, context.columns)

    @property
    def _has_duration_column(self) -> bool:
        context = self._run_context()
        return present.has_duration_column(context.columns, context)

    def ticks(self, key: RowKey) -> bool:
        """Whether the label shows a running time, which has to be redrawn each second."""
        if not self._has_duration_column:
            return False
        if isinstance(key, int):
            return self._rows.activity(key).is_active
        view = self._run_context().view(key)
        return view.is_moving and view.clock is not None

    def name_at_bar(self, key: RowKey) -> str:
        """The name that stands before a bar that begins far from its label."""
        names, name = (self.titles, self._rows.group(key).title) if isinstance(key, int) else (self.names, key)
        return names.short(name, present.NAME_AT_BAR_CELLS, self._run_context().glyphs.more)

    def heading(self, title: str, columns: int, role: Role) -> Line:
        """A title above the names, and that of the column beside them."""
        took = "took ".rjust(present.TOOK_CELLS + 1) if self._has_duration_column else ""
        room = columns - len(took)
        return [Piece(title[: room - 1].ljust(room), role), Piece(took, Role.DIM)]

    def line(self, key: RowKey, columns: int, *, is_cursor: bool, is_filtered: bool) -> Line:
        """The label of a row. ``is_filtered``: matches are listed without groups."""
        context, role, has_took = (
            self._run_context(),
            Role.CURSOR if is_cursor else Role.TEXT,
            self._has_duration_column,
        )
        if isinstance(key, str):
            row = self._board.row(key)
            role = Role.CRITICAL if key in self.critical and not is_cursor else role
            took = present.duration_text(row, context) if has_took else ""
            return present.label_line(row, columns, context, role, 0 if is_filtered else self._indent(key), took)
        group, is_open = self._rows.group(key), self._rows.shows_tasks(key)
        took = present.group_duration_text(self._rows.activity(key), context.now_us) if has_took else ""
        return present.group_label_line(group, columns, context, is_open=is_open, role=role, took=took)

    def _indent(self, name: str) -> int:
        """The indent of a task: below its group, or beside groups."""
        if not self._rows.groups:
            return 0
        return present.FOLD_INDENT if self._rows.group_of(name) is None else 2 * present.FOLD_INDENT
