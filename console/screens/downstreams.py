"""Breakers with the tasks that they hold, pages, and quarantined rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.widget import Widget

from ...engine.core.ready_queue import spec_of
from ...engine.domain.events import Event, EventKind
from ...engine.errors import RedriveError
from ...engine.statefile import list_rows
from ..feed.live_run import BoardUpdate
from ..keys.actions import BY_NAME, Action, ScreenName
from ..model.board import Board
from ..model.breaker_view import BreakerStatus, blocking_downstream
from ..model.downstreams import (
    DownstreamOrder,
    DownstreamRow,
    Downstreams,
    Page,
    PageBody,
    RowGroup,
    RowsAct,
    Section,
    held_rows_in,
    parse_body,
    sender_names,
)
from ..model.filters import parse_filter
from ..present import downstreams as present
from ..present.counts import order_line
from ..present.downstream_page import subject_lines
from ..present.tasks import Scene
from ..text.pieces import Line, Role, width
from ..widgets.bars import Bar
from ..widgets.bindings import bindings_of
from ..widgets.split import TALL_SCREEN_ROWS
from ..widgets.table import VirtualTable
from .base import ConsoleScreen, run_latest
from .downstream_table import DownstreamsTable
from .quarantine_rows import RowsScreen
from .refresh import SOON_SECONDS, Refresher, RestTimer
from .text_dialog import TextDialog

CALL_COUNT_SECONDS = 1.3  # the executor writes the call counts of breakers with its next heartbeat
DIALOG_COLUMNS = 87
_SUBJECT_ROWS = 12
_FRAME_ROWS = 5  # header, tabs, two rules, keys
_BODIES_KEPT = 20
_SECTION_OF_EVENT = {
    EventKind.BREAKER: Section.BREAKERS,
    EventKind.PAGE: Section.PAGES,
    EventKind.QUARANTINE: Section.ROWS,
}

#: What the footer names beside what works everywhere, by what is under the cursor.
_KEYS: Mapping[type, tuple[str, ...]] = {
    BreakerStatus: ("force_open", "close_breaker", "probe", "disable_breaker", "open"),
    Page: ("acknowledge_page", "snooze_page", "open", "details"),
    RowGroup: ("requeue_rows", "discard_rows", "open", "details"),
}
_COMMON_KEYS = ("next", "filter", "help", "quit")


class DownstreamsScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.DOWNSTREAMS
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.DOWNSTREAMS)

    def __init__(self) -> None:
        super().__init__()
        self.downstreams = Downstreams(self.board)
        self.table = DownstreamsTable(self._row, id="downstreams")
        self.subject_bar = Bar(_SUBJECT_ROWS, id="subject")
        self._senders: Sequence[str] = ()
        self._refresher = Refresher(self, self._read)
        self._stale_sections: set[Section] = set()
        self._is_recount_due = False  # the held tasks have to be computed again
        self._was_past = False
        self._painted_lines: dict[DownstreamRow, Line] = {}
        self._bodies: OrderedDict[tuple[int, int], PageBody] = OrderedDict()
        self._rest_timer = RestTimer(self, self._on_cursor_rest)
        self._is_cursor_placed = False  # the cursor was put where it is wanted first

    # --- The frame ------------------------------------------------------------------------------------------------

    def content(self) -> Iterable[Widget]:
        """Yield the list."""
        yield self.table

    def widgets_below(self) -> Iterable[Widget]:
        """Yield the details of the selected item."""
        yield self.subject_bar

    def on_resize(self, event: events.Resize) -> None:
        """Show more details on larger screens, none on small ones."""
        rows = 0 if event.size.height < 20 else 4 if event.size.height < 32 else _SUBJECT_ROWS
        self.subject_bar.display = rows > 0
        self.subject_bar.styles.height = max(rows, 1)
        free_rows = event.size.height - _FRAME_ROWS - rows if event.size.height >= TALL_SCREEN_ROWS else 0
        if free_rows != self.downstreams.free_rows:
            self.downstreams.free_rows = free_rows
            self._refresh_list(by_hand=True)
        self._rest_timer.start()

    def footer_actions(self) -> Sequence[Action]:
        """The actions for the item under the cursor."""
        row, item = self.table.cursor_key, self.subject()
        names = ("details", "output") if row is not None and row.task else _KEYS.get(type(item), ())
        return [BY_NAME[name] for name in (*names, *_COMMON_KEYS)]

    # --- The run --------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The context for rendering rows."""
        console = self.console
        return Scene(self.board, console.live.now_us, console.glyphs, console.absolute_times)

    def board_replaced(self, board: Board) -> None:
        """Show the lists read before until they are read again."""
        self.downstreams = self.downstreams.with_board(board)
        self.downstreams.refresh(self.console.live.now_us)
        self._senders = sender_names(board.projection.run.options)
        self._was_past = False
        if self._is_seen:
            self._request_sections(0.0, *Section)
            self._refresh_list()

    def on_shown(self) -> None:
        """Select the breaker that holds the selected task, else the previous row, else the first that needs a human."""
        self.table.focus()
        self._update_past()
        self._request_sections(0.0, *Section)
        self._is_cursor_placed = self._is_cursor_placed and self._blocking_downstream() is None
        self._refresh_list()

    @property
    def _is_seen(self) -> bool:
        return self in self.app.screen_stack

    def on_news(self, news: BoardUpdate) -> None:
        """Read the lists that events changed; the counts of breakers follow a little later."""
        self._is_recount_due |= bool(news.delta.moves)
        if not self._is_seen:
            return
        self._update_past()
        for kind in {event.kind for event in news.events} & _SECTION_OF_EVENT.keys():
            self._request_sections(SOON_SECONDS, _SECTION_OF_EVENT[kind])
        if any(self._is_downstream_call(event) for event in news.events):
            self._request_sections(CALL_COUNT_SECONDS, Section.BREAKERS)

    def _is_downstream_call(self, event: Event) -> bool:
        """Whether an attempt that calls a downstream has started or ended."""
        if event.kind != EventKind.TASK or "RUNNING" not in (event.old, event.new):
            return False
        row = self.board.projection.tasks.get(event.task or "")
        return row is not None and spec_of(row).downstream is not None

    def _update_past(self) -> None:
        """In the past show the breakers of the board; pages and rows are only counted."""
        past = self.console.live.is_past
        if past:
            self.downstreams.load_snapshot(self.console.live.now_us)
            self._refresh_list()
        elif self._was_past:
            self._request_sections(0.0, *Section)
        self._was_past = past

    def tick(self, now_us: int) -> None:
        """Update countdowns, ages, breaker windows and, if tasks changed, the held tasks."""
        if self._is_recount_due or any(guard.held or not guard.is_idle for guard in self.downstreams.breakers.values()):
            self._is_recount_due = False
            if self.downstreams.refresh(now_us):
                self._refresh_list()
        for y, row in enumerate(self.table.in_view()):
            before = self._painted_lines.get(row)
            if before is not None and before != self._row(row, self.table.columns):
                self.table.refresh_rows(y)
        self._show_subject()

    # --- Reading --------------------------------------------------------------------------------------------------

    def _request_sections(self, seconds: float, *sections: Section) -> None:
        if not self.console.live.is_past:
            self._stale_sections.update(sections)
            self._refresher.request(seconds)

    async def _read(self) -> None:
        wanted, self._stale_sections = self._stale_sections, set()
        board = self.board
        try:
            for section in (one for one in Section if one in wanted):
                load_rows = await self._read_section(section, board.projection.run.run_id)
                if board is not self.board or self.console.live.is_past:
                    return
                load_rows()
        except RedriveError:
            self._stale_sections |= wanted  # the header shows the error; the next event reads again
            return
        self._refresh_list()

    async def _read_section(self, section: Section, run_id: str) -> Callable[[], None]:
        """Read the rows of a section; the returned function shows them."""
        session, downstreams = self.console.live.session, self.downstreams
        if section is Section.BREAKERS:
            breakers = await session.query(list_rows.BREAKERS)
            return lambda: downstreams.load_breakers(breakers, self.console.live.now_us)
        if section is Section.PAGES:
            return partial(downstreams.load_pages, await session.query(list_rows.PAGE_HEADS))
        return partial(downstreams.load_row_groups, await session.query(list_rows.QUARANTINE_GROUPS, run_id=run_id))

    # --- The list -------------------------------------------------------------------------------------------------

    def _refresh_list(self, by_hand: bool = False) -> None:
        rows = self.downstreams.rows()
        listed, before = set(rows), self.table.cursor_key
        self._painted_lines = {row: line for row, line in self._painted_lines.items() if row in listed}
        self.table.set_order(rows)
        if self._is_cursor_placed and not by_hand and before is not None and self.table.cursor_key != before:
            self.on_row_removed()
        if not self._is_cursor_placed and self.downstreams.loaded_sections:
            self._is_cursor_placed = self._was_past or len(self.downstreams.loaded_sections) == len(Section)
            self._place_cursor()
        self._rest_timer.start()

    def _place_cursor(self) -> None:
        holder = self._blocking_downstream()
        wanted = (
            [DownstreamRow(Section.BREAKERS, holder)] if holder is not None else self.downstreams.items_needing_human()
        )
        if wanted:
            self.table.move_to_key(wanted[0])

    def _blocking_downstream(self) -> str | None:
        selected = self.console.selected
        return blocking_downstream(self.board, selected, self.console.live.now_us) if selected is not None else None

    def _row(self, row: DownstreamRow, columns: int) -> Line:
        line = self._line_of(row, columns)
        self._painted_lines[row] = line
        return line

    def _line_of(self, row: DownstreamRow, columns: int) -> Line:
        scene, item, shown = self.scene(), self.downstreams.item(row), self.console.columns.shown_in(self.PLACE.value)
        if row.is_head:
            if self._was_past and row.section is not Section.BREAKERS:
                return present.past_section_row(row.section, self.board, columns)
            return present.section_row(row.section, self.downstreams, self._senders, columns, scene.glyphs, shown)
        if row.hidden:
            return present.more_row(row, self.console.keymap.label("open"), scene.glyphs)
        if row.task:
            return present.held_row(row.task, scene, columns)
        if isinstance(item, BreakerStatus):
            return present.breaker_row(item, self.downstreams.is_open(row), scene, columns, shown)
        if isinstance(item, Page):
            return present.page_row(item, scene, columns)
        return present.group_row(item, scene, columns) if item is not None else []

    # --- What is selected -----------------------------------------------------------------------------------------

    def subject(self) -> BreakerStatus | Page | RowGroup | None:
        """The breaker, page or group of rows under the cursor."""
        row = self.table.cursor_key
        return self.downstreams.item(row) if row is not None else None

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Select the task of the row on all screens."""
        row = self.table.cursor_key
        names = self.downstreams.tasks_of(row) if row is not None and self._is_cursor_placed else ()
        if names and self.console.selected not in names:
            self.console.selected = names[0]
        self._rest_timer.start()

    @property
    def is_settled(self) -> bool:
        """Whether no read and no update is pending."""
        return not self._rest_timer.is_waiting and self._refresher.is_idle

    def _on_cursor_rest(self) -> None:
        self.show_frame()
        self._show_subject()
        item = self.subject()
        if isinstance(item, Page) and (item.id, item.updated_at) not in self._bodies:
            run_latest(self, self._read_body, "body", shows_errors=False)

    async def _read_body(self) -> None:
        page = self.subject()
        if not isinstance(page, Page):
            return
        found = await self.console.live.session.query(list_rows.PAGES, id=page.id, limit=1)
        self._bodies[page.id, page.updated_at] = parse_body(found[0].body) if found else PageBody()
        while len(self._bodies) > _BODIES_KEPT:
            self._bodies.popitem(last=False)
        self._show_subject()

    def _subject_lines(self, columns: int) -> list[Line]:
        item = self.subject()
        if item is None:
            return []
        body = self._bodies.get((item.id, item.updated_at)) if isinstance(item, Page) else None
        return subject_lines(item, body, self.scene(), columns)

    def _show_subject(self) -> None:
        lines = self._subject_lines(self.app.size.width) if self.subject_bar.display else []
        self.subject_bar.show_lines(lines)

    def target_tasks(self) -> Sequence[str]:
        """The tasks of the row under the cursor."""
        row = self.table.cursor_key
        return self.downstreams.tasks_of(row) if row is not None else ()

    # --- Keys: looking --------------------------------------------------------------------------------------------

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open held tasks of a breaker, the text of a page, the rows of a group, or the details of a task."""
        row, item = self.table.cursor_key, self.subject()
        if row is None:
            return
        if row.hidden or (isinstance(item, BreakerStatus) and item.held and not row.task):
            self._toggle(row)
        elif row.task:
            self.show_details()
        elif isinstance(item, RowGroup):
            self.console.push_screen(RowsScreen(item))
        elif item is not None:
            room = min(self.app.size.width, DIALOG_COLUMNS)
            title, *lines = self._subject_lines(room)
            self.console.push_screen(TextDialog(title, [[], *lines], wrap=True))
        else:
            self.on_empty_table_key_pressed()

    def decide_rows(self, act: RowsAct) -> None:
        """Requeue or discard the rows of the group under the cursor."""
        group = self.subject()
        if not isinstance(group, RowGroup):
            self.show_warning("that is for quarantined rows: none are selected")
        elif not group.held:
            self.show_warning("none of these rows is held any more")
        else:
            self.console.downstream_actions.decide_rows(held_rows_in(group), act)

    def show_warning(self, sentence: str) -> None:
        """Show why nothing was done."""
        self.console.show_message(sentence, Role.WARNING)

    def _toggle(self, row: DownstreamRow) -> None:
        place = self.table.cursor
        self.downstreams.toggle(row)
        self._refresh_list(by_hand=True)
        if row.hidden:
            self.table.move_to(place)

    def move_columns(self, direction: int) -> None:
        """Show (1) or hide (-1) the tasks that the breaker holds."""
        row, wanted = self.table.cursor_key, direction > 0
        if row is None or row.section is not Section.BREAKERS or row.key is None:
            return
        breaker = DownstreamRow(row.section, row.key)
        if self.downstreams.is_open(breaker) != wanted:
            self.downstreams.toggle(breaker)
            self._refresh_list(by_hand=True)
            self.table.move_to_key(breaker)

    def go_to_next(self, step: int) -> None:
        """Move to the next item that needs a human, or the previous one."""
        places = [
            place for row in self.downstreams.items_needing_human() if (place := self.table.place_of(row)) is not None
        ]
        here = self.table.cursor
        found = [place for place in places[::step] if (place - here) * step > 0] or places[::step]
        if found:
            self.table.move_to(found[0])
        else:
            self.show_warning("nothing here needs a human")

    def change_order(self) -> None:
        """Change to the next order."""
        orders = list(DownstreamOrder)
        self.downstreams.order = orders[(orders.index(self.downstreams.order) + 1) % len(orders)]
        self._refresh_list(by_hand=True)
        self.table.refresh()

    async def on_downstreams_table_head_clicked(self, message: DownstreamsTable.HeadClicked) -> None:
        """A click on the first head is the key of the order or of the columns."""
        if message.head.section is not Section.BREAKERS:
            return
        if message.cells_from_right <= width(order_line(self.downstreams.order, self.console.glyphs)):
            self.change_order()
        else:
            await self.app.run_action("app.handle('columns')")

    def filter_changed(self, text: str) -> None:
        """Show matching rows only."""
        self.downstreams.filter = parse_filter(text)
        self._refresh_list(by_hand=True)

    def select_task(self) -> bool:
        """Select the task of the row."""
        names = self.target_tasks()
        if not names:
            self.show_warning("this row belongs to no task of this run")
        return self.select_one_of(names)
