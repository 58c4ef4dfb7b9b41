"""The quarantined rows of one task with the same error; only visible rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from textual.widget import Widget

from ...engine.domain.events import EventKind
from ...engine.statefile import lists
from ..keys.actions import ScreenName
from ..model import systems as model
from ..model.board import Board, BoardUpdate
from ..present.systems import quarantined_row, rows_heading
from ..present.systems_detail import row_lines
from ..text.pieces import Line
from ..widgets.bars import Bar
from ..widgets.table import VirtualTable
from .base import ConsoleScreen
from .console import Refresher, run_latest
from .dialogs import TextDialog

MARKED_ROWS_MAX = 2_000  # more than these are meant as the whole group


class RowsTable(VirtualTable[int]):
    """A table of rows whose keys are their places."""

    def place_of(self, key: int) -> int | None:
        return key if 0 <= key < len(self.order) else None


class RowsScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.ROWS

    def __init__(self, group: lists.QuarantineGroup) -> None:
        super().__init__()
        self.key: lists.GroupKey = group.key
        self.group = group
        self.heading = Bar(id="heading")
        self.window = model.RowWindow(group.total)
        self.marked_view = self.table = RowsTable(self._row, mark_sign=self.console.glyphs.mark, id="rows")
        self._refresher = Refresher(self, self._refresh_group)
        self._is_reading = False

    @property
    def view(self) -> ScreenName:
        """The tab of the screen below."""
        return ScreenName.SYSTEMS

    def content(self) -> Iterable[Widget]:
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

    def target_tasks(self) -> Sequence[str]:
        return (self.key.task,)

    # --- Reading --------------------------------------------------------------------------------------------------

    async def _refresh_group(self) -> None:
        """Read the current count and invalidate the visible rows."""
        run_id = self.board.projection.run.run_id
        systems = model.Systems(self.board)
        systems.load_row_groups(await self.console.live.session.rows(lists.QUARANTINE_GROUPS, run_id=run_id))
        self.group = systems.groups.get(self.key, self.group)
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

    async def _query(self, page: int) -> Sequence[lists.QuarantineRow]:
        task, fingerprint = self.key
        return await self.console.live.session.rows(
            lists.QUARANTINE_ROWS,
            run_id=self.board.projection.run.run_id,
            task=task,
            fingerprint=fingerprint,
            skip=page * model.PAGE_ROWS,
            limit=model.PAGE_ROWS,
        )

    # --- The list -------------------------------------------------------------------------------------------------

    def _row(self, place: int, columns: int) -> Line:
        row = self.window.row(place)
        if row is None:
            self.call_later(self._read)
        return quarantined_row(row, self.group.error, columns, self.run_context().row_context)

    def _show_heading(self) -> None:
        place = self.table.cursor + 1 if self.table.order else 0
        marked = len(self.table.marks)
        self.heading.show(*rows_heading(self.group, place, marked, self.app.size.width, self.console.glyphs))

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
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
        found = await session.rows(lists.QUARANTINE, run_id=run_id, task=self.key.task, after=row_id - 1, limit=1)
        if found:
            self.console.push_screen(TextDialog(f"Row {found[0].row_key}", partial(row_lines, found[0]), wrap=True))

    # --- Keys -----------------------------------------------------------------------------------------------------

    def decide_rows(self, act: model.RowsAct) -> None:
        """Requeue or discard the marked rows, or the one under the cursor."""
        run_latest(self, partial(self._decide, act), "choosing")

    async def _decide(self, act: model.RowsAct) -> None:
        places = self.table.marks or ([self.table.cursor] if self.table.order else [])
        if len(places) == self.window.total > 1:
            chosen = model.held_rows_in(self.group)
        elif len(places) > MARKED_ROWS_MAX:
            self.console.show_warning(f"mark up to {MARKED_ROWS_MAX:,} rows, or all of them")
            return
        else:
            rows = await self._rows_at(places)
            chosen = self._chosen_rows([row for row in rows if row.state == "held"])
        if chosen.count:
            self.console.systems_actions.decide_rows(chosen, act)
        else:
            self.console.show_warning("none of these rows is held: there is nothing to decide")

    async def _rows_at(self, places: Sequence[int]) -> list[lists.QuarantineRow]:
        """Read rows by place; marked rows may be out of view."""
        pages: dict[int, Sequence[lists.QuarantineRow]] = {}
        for page in dict.fromkeys(place // model.PAGE_ROWS for place in places):
            pages[page] = await self._query(page)
        return [
            pages[place // model.PAGE_ROWS][place % model.PAGE_ROWS]
            for place in places
            if place % model.PAGE_ROWS < len(pages[place // model.PAGE_ROWS])
        ]

    def _chosen_rows(self, rows: Sequence[lists.QuarantineRow]) -> model.ChosenRows:
        lines = [quarantined_row(row, self.group.error, 70, self.run_context().row_context) for row in rows]
        return model.ChosenRows(self.key.task, len(rows), {"rows": [row.id for row in rows]}, lines)

    def handle_task_act(self, name: str) -> None:
        """Remove the mark."""
        if name == self.key.task:
            self.table.set_marks(())

    def select_task(self) -> bool:
        self.console.selected = self.key.task
        return True
