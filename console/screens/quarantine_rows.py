"""The quarantined rows of one task with the same error; only visible rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ...engine.domain.events import EventKind
from ...engine.errors import RedriveError
from ...engine.statefile import list_rows
from ..feed.live_run import BoardUpdate
from ..keys.actions import ScreenName
from ..model.board import Board
from ..model.downstreams import ChosenRows, Downstreams, GroupKey, RowGroup, RowsAct, held_rows_in
from ..model.row_window import PAGE_ROWS, RowWindow
from ..present.downstream_page import row_lines
from ..present.downstreams import quarantined_row, rows_heading
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar
from ..widgets.bindings import bindings_of
from ..widgets.table import VirtualTable
from .base import ConsoleScreen, run_latest
from .refresh import Refresher
from .text_dialog import TextDialog, columns_within

MARKED_ROWS_MAX = 2_000  # more than these are meant as the whole group


class RowsTable(VirtualTable[int]):
    """A table of rows whose keys are their places."""

    def place_of(self, key: int) -> int | None:
        """Return the place of a row: its key."""
        return key if 0 <= key < len(self.order) else None


class RowsScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.ROWS
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.ROWS)

    def __init__(self, group: RowGroup) -> None:
        super().__init__()
        self.key: GroupKey = group.key
        self.group = group
        self.heading = Bar(id="heading")
        self.window = RowWindow(group.total)
        self.table = RowsTable(self._row, mark_sign=self.console.glyphs.mark, id="rows")
        self._refresher = Refresher(self, self._refresh_group)
        self._is_reading = False

    @property
    def view(self) -> ScreenName:
        """The tab of the screen below."""
        return ScreenName.DOWNSTREAMS

    def content(self) -> Iterable[Widget]:
        """Yield the heading and the list."""
        yield self.heading
        yield self.table

    def on_shown(self) -> None:
        """Start at the first row, or keep the cursor."""
        self.table.focus()
        if not self.table.order:
            self.table.set_order(range(self.window.total))
        self._show_heading()
        self._read()

    def board_replaced(self, board: Board) -> None:
        """Count the rows again; close if the new run lacks the task."""
        if self.key.task not in board.projection.tasks:
            self.dismiss()
        elif self.table.order:
            self._refresher.request()

    def on_news(self, news: BoardUpdate) -> None:
        """Count again after events about rows of this task."""
        if any(event.kind == EventKind.QUARANTINE and event.task == self.key.task for event in news.events):
            self._refresher.request()

    def tick(self, now_us: int) -> None:
        """Redraw if the user switched between ages and clock times."""
        self._show_heading()

    def target_tasks(self) -> Sequence[str]:
        """The task whose rows are shown."""
        return (self.key.task,)

    # --- Reading --------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether no read is pending."""
        return self._refresher.is_idle and not self._is_reading

    async def _refresh_group(self) -> None:
        """Read the current count and invalidate the visible rows."""
        run_id = self.board.projection.run.run_id
        downstreams = Downstreams(self.board)
        try:
            downstreams.load_row_groups(
                await self.console.live.session.query(list_rows.QUARANTINE_GROUPS, run_id=run_id)
            )
        except RedriveError:
            return  # the header shows the error; the next event reads again
        self.group = downstreams.groups.get(self.key, self.group)
        grown = self.group.total != self.window.total
        self.window.invalidate(self.group.total)
        if grown:
            marks = self.table.marks
            self.table.set_order(range(self.window.total))
            self.table.set_marks(marks)
        self._show_heading()
        self._read()

    def _missing_pages(self) -> list[int]:
        first = self.table.first_visible
        return self.window.missing(first, first + self.table.rows)

    def _read(self) -> None:
        if not self._is_reading and self.is_mounted and self._missing_pages():
            self._is_reading = True
            run_latest(self, self._read_pages, "rows")

    async def _read_pages(self) -> None:
        try:
            while missing := self._missing_pages():
                self.window.store(missing[0], await self._query(missing[0]))
                self.table.refresh()
        finally:
            self._is_reading = False

    async def _query(self, page: int) -> Sequence[list_rows.QuarantineRow]:
        task, fingerprint = self.key
        return await self.console.live.session.query(
            list_rows.QUARANTINE_ROWS,
            run_id=self.board.projection.run.run_id,
            task=task,
            fingerprint=fingerprint,
            skip=page * PAGE_ROWS,
            limit=PAGE_ROWS,
        )

    # --- The list -------------------------------------------------------------------------------------------------

    def _row(self, place: int, columns: int) -> Line:
        row = self.window.row(place)
        if row is None:
            self.call_later(self._read)
        return quarantined_row(row, self.group.error, columns, self.console.glyphs)

    def _show_heading(self) -> None:
        place = self.table.cursor + 1 if self.table.order else 0
        marked = len(self.table.marks)
        self.heading.show(*rows_heading(self.group, place, marked, self.app.size.width, self.console.glyphs))

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Show the row under the cursor."""
        self._show_heading()
        self._read()

    def on_virtual_table_row_marks_changed(self, message: VirtualTable.RowMarksChanged) -> None:
        """Update after a change of marks."""
        self._show_heading()

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open a dialog with everything about the row."""
        row = self.window.row(self.table.cursor)
        if row is not None:
            run_latest(self, partial(self._open, row.id), "row")

    async def _open(self, row_id: int) -> None:
        run_id, session = self.board.projection.run.run_id, self.console.live.session
        found = await session.query(list_rows.QUARANTINE, run_id=run_id, task=self.key.task, after=row_id - 1, limit=1)
        if found:
            title = [Piece(f"Row {one_line(found[0].row_key)}", Role.TITLE)]
            lines = row_lines(found[0], columns_within(self.app.size.width))
            self.console.push_screen(TextDialog(title, lines, wrap=True))

    # --- Keys -----------------------------------------------------------------------------------------------------

    def decide_rows(self, act: RowsAct) -> None:
        """Requeue or discard the marked rows, or the one under the cursor."""
        run_latest(self, partial(self._decide, act), "choosing")

    async def _decide(self, act: RowsAct) -> None:
        places = self.table.marks or ([self.table.cursor] if self.table.order else [])
        if len(places) == self.window.total > 1:
            chosen = held_rows_in(self.group)
        elif len(places) > MARKED_ROWS_MAX:
            self.console.show_message(f"mark up to {MARKED_ROWS_MAX:,} rows, or all of them", Role.WARNING)
            return
        else:
            rows = await self._rows_at(places)
            chosen = self._chosen_rows([row for row in rows if row.state == "held"])
        if chosen.count:
            self.console.downstream_actions.decide_rows(chosen, act)
        else:
            self.console.show_message("none of these rows is held: there is nothing to decide", Role.WARNING)

    async def _rows_at(self, places: Sequence[int]) -> list[list_rows.QuarantineRow]:
        """Read rows by place; marked rows may be out of view."""
        pages: dict[int, Sequence[list_rows.QuarantineRow]] = {}
        for page in dict.fromkeys(place // PAGE_ROWS for place in places):
            pages[page] = await self._query(page)
        return [
            pages[place // PAGE_ROWS][place % PAGE_ROWS]
            for place in places
            if place % PAGE_ROWS < len(pages[place // PAGE_ROWS])
        ]

    def _chosen_rows(self, rows: Sequence[list_rows.QuarantineRow]) -> ChosenRows:
        lines = [quarantined_row(row, self.group.error, 70, self.console.glyphs) for row in rows]
        return ChosenRows(self.key.task, len(rows), {"rows": [row.id for row in rows]}, lines)

    def on_task_acted(self, name: str) -> None:
        """Remove the mark."""
        if name == self.key.task:
            self.table.set_marks(())

    def select_task(self) -> bool:
        """The task whose rows are shown."""
        self.console.selected = self.key.task
        return True

    def back(self) -> None:
        """Remove the marks; without marks return to the groups."""
        if self.table.marks:
            self.table.set_marks(())
        else:
            super().back()
