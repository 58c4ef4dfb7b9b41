"""Breakers with the tasks that they hold, pages, and quarantined rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from textual import events
from textual.widget import Widget

from ...engine.core.breaker import BreakerStatus
from ...engine.core.causes import PageBody, parse_body
from ...engine.core.ready_queue import spec_of
from ...engine.domain.events import Event, EventKind
from ...engine.domain.rows import PageRow
from ...engine.errors import RedriveError
from ...engine.statefile import lists
from ..keys.actions import BY_NAME, Action, ScreenName
from ..model import systems as model
from ..model.board import Board, BoardUpdate
from ..model.lists import parse_filter
from ..present import systems as present
from ..present.systems_detail import subject_lines
from ..sessions.session import listed_events
from ..text.event_text import event_subject
from ..text.pieces import Line, Role
from ..widgets.bars import PAGING, TALL_SCREEN_ROWS, Bar, DetailShare, bindings
from ..widgets.table import VirtualTable
from .console import SOON_SECONDS, Refresher, run_latest
from .dialogs import TextDialog
from .panes import DetailedList, LastNights
from .rows import RowsScreen

_MORE_KEPT = 20
_ROWS_NAMED = 20
CALL_COUNT_SECONDS = 1.3  # the executor writes the call counts of breakers with its next heartbeat
DIALOG_COLUMNS = 87
_FRAME_ROWS = 5  # header, tabs, two rules, keys
_SECTIONS_OF_EVENT = {
    EventKind.BREAKER: [model.Section.BREAKERS],
    EventKind.PAGE: [model.Section.PAGES],
    EventKind.QUARANTINE: [model.Section.ROWS],
    EventKind.CLOCK: [model.Section.BREAKERS, model.Section.PAGES],
}

#: What the footer names beside what works everywhere, by what is under the cursor.
_KEYS: Mapping[type, tuple[str, ...]] = {
    BreakerStatus: ("force_open", "close_breaker", "probe", "disable_breaker", "open"),
    PageRow: ("acknowledge_page", "snooze_page", "open", "details"),
    lists.QuarantineGroup: ("requeue_rows", "discard_rows", "open", "details"),
}
_COMMON_KEYS = ("next", "filter", "help", "quit")


class SystemsScreen(DetailedList):
    """See the module."""

    PLACE = ScreenName.SYSTEMS
    DETAIL_SHARE = DetailShare(35, 41)

    def __init__(self) -> None:
        super().__init__()
        self.systems = model.Systems(self.board)
        self.main_pane = self.table = SystemsTable(self._row, always_lit=True, id="systems")
        self.nights, self.nights_below = LastNights(self), Bar(0, id="nights")
        self._senders: Sequence[str] = ()
        self._refresher = Refresher(self, self._read)
        self._stale_sections: set[model.Section] = set()
        self._is_recount_due = False  # the held tasks have to be computed again
        self._was_past = False
        self._more: OrderedDict[object, PageBody | Sequence[Event] | Sequence[lists.QuarantineRow]] = OrderedDict()
        self._opened: set[str] = set()  # breakers that were opened because they fit: closed ones stay closed
        self._is_cursor_placed = False  # the cursor was put where it is wanted first
        self._wanted_name: str | None = None

    # --- The frame ------------------------------------------------------------------------------------------------

    def main_widgets(self) -> Iterable[Widget]:
        yield self.table
        yield self.nights_below

    def on_resize(self, event: events.Resize) -> None:
        """List more of what is idle on tall screens."""
        rows = self.detail_room.rows
        free_rows = event.size.height - _FRAME_ROWS - rows if event.size.height >= TALL_SCREEN_ROWS else 0
        if free_rows != self.systems.free_rows:
            self.systems.free_rows = free_rows
            self._refresh_list(by_hand=True)
        self.rest_timer.start()

    @property
    def free_rows(self) -> int:
        return self.screen_rows - _FRAME_ROWS - self.detail_room.rows - len(self.table.order)

    def footer_actions(self) -> Sequence[Action]:
        row, item = self.table.cursor_key, self.subject()
        names = ("details", "output") if row is not None and row.task else _KEYS.get(type(item), ())
        names = tuple(name for name in names if name != "open" or not self._is_all_shown)
        return [BY_NAME[name] for name in (*names, *_COMMON_KEYS)]

    # --- The run --------------------------------------------------------------------------------------------------

    def board_replaced(self, board: Board) -> None:
        """Show the lists read before until they are read again."""
        self.systems = self.systems.with_board(board)
        self.systems.refresh(self.console.live.now_us)
        self._senders = model.sender_names(board.projection.run.options)
        self._was_past = False
        if self._is_seen:
            self._request_sections(0.0, *model.Section)
            self._refresh_list()

    def on_shown(self) -> None:
        """Select the breaker that holds the selected task, else the previous row, else the first that needs a human."""
        self.table.focus()
        self._update_past()
        self._request_sections(0.0, *model.Section)
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
        for kind in {event.kind for event in news.events} & _SECTIONS_OF_EVENT.keys():
            self._request_sections(SOON_SECONDS, *_SECTIONS_OF_EVENT[kind])
        if any(self._is_downstream_call(event) for event in news.events):
            self._request_sections(CALL_COUNT_SECONDS, model.Section.BREAKERS)

    def _is_downstream_call(self, event: Event) -> bool:
        """Whether an attempt that calls a downstream has started or ended."""
        if event.kind != EventKind.TASK or "RUNNING" not in (event.old, event.new):
            return False
        row = self.board.projection.tasks.get(event.task or "")
        return row is not None and spec_of(row).downstream is not None

    @property
    def nothing_listed(self) -> str:
        return super().nothing_listed if self.systems.loaded_sections else "its lists are being read"

    def _update_past(self) -> None:
        """Show the breakers of the board in the past; pages and rows are only counted."""
        past = self.console.live.is_past
        if past:
            self.systems.load_snapshot(self.console.live.now_us)
            self._refresh_list()
        elif self._was_past:
            self._request_sections(0.0, *model.Section)
        self._was_past = past

    def tick(self, now_us: int) -> None:
        """Update countdowns, ages, breaker windows and, if tasks changed, the held tasks."""
        if self._is_recount_due or any(status.held or not status.is_idle for status in self.systems.breakers.values()):
            self._is_recount_due = False
            if self.systems.refresh(now_us):
                self._refresh_list()
        self.table.update_rows()
        self.show_row()

    # --- Reading --------------------------------------------------------------------------------------------------

    def _request_sections(self, seconds: float, *sections: model.Section) -> None:
        if not self.console.live.is_past:
            self._stale_sections.update(sections)
            self._refresher.request(seconds)

    async def _read(self) -> None:
        wanted, self._stale_sections = self._stale_sections, set()
        board = self.board
        try:
            for section in (one for one in model.Section if one in wanted):
                load_rows = await self._read_section(section, board.projection.run.run_id)
                if board is not self.board or self.console.live.is_past:
                    return
                load_rows()
        except RedriveError:
            self._stale_sections |= wanted  # the next event reads again
            raise
        self._refresh_list()

    async def _read_section(self, section: model.Section, run_id: str) -> Callable[[], None]:
        """Read the rows of a section; the returned function shows them."""
        session, systems = self.console.live.session, self.systems
        if section is model.Section.BREAKERS:
            breakers = await session.rows(lists.BREAKERS)
            return lambda: systems.load_breakers(breakers, self.console.live.now_us)
        if section is model.Section.PAGES:
            return partial(systems.load_pages, await session.rows(lists.PAGE_HEADS))
        return partial(systems.load_row_groups, await session.rows(lists.QUARANTINE_GROUPS, run_id=run_id))

    # --- The list -------------------------------------------------------------------------------------------------

    def _open_what_fits(self) -> None:
        """Show once the tasks that a breaker holds, if the list beside the details has rows for all."""
        room = self.screen_rows - _FRAME_ROWS if self.is_wide else 0
        for name, status in self.systems.breakers.items():
            row = model.SystemsRow(model.Section.BREAKERS, name)
            if status.held and name not in self._opened and len(self.systems.rows()) + len(status.held) <= room:
                self._opened.add(name)
                if not self.systems.is_open(row):
                    self.systems.toggle(row)

    def _refresh_list(self, by_hand: bool = False) -> None:
        if len(self.systems.loaded_sections) == len(model.Section):
            self._open_what_fits()
        rows = self.systems.rows()
        before = self.table.cursor_key
        self.table.set_order(rows)
        if self._is_cursor_placed and not by_hand and before is not None and self.table.cursor_key != before:
            self.on_row_removed()
        if not self._is_cursor_placed and self.systems.loaded_sections:
            self._is_cursor_placed = self._was_past or len(self.systems.loaded_sections) == len(model.Section)
            self._place_cursor()
        self.rest_timer.start()

    def name_at_cursor(self) -> str | None:
        return getattr(self.subject(), "name", None)

    def go_to(self, name: str) -> None:
        self._wanted_name, self._is_cursor_placed = name, False
        super().go_to(name)

    def _place_cursor(self) -> None:
        holder = self._blocking_downstream()
        wanted = (
            [model.SystemsRow(model.Section.BREAKERS, holder)]
            if holder is not None
            else self.systems.items_needing_human()
        )
        named = [
            row for row in self.systems.rows() if getattr(self.systems.item(row), "name", None) == self._wanted_name
        ]
        if wanted := named if self._wanted_name is not None and named else wanted:
            self.table.move_to_key(wanted[0])
        if self._is_cursor_placed:
            self._wanted_name = None

    def _blocking_downstream(self) -> str | None:
        selected = self.console.selected
        return (
            model.blocking_downstream(self.board, selected, self.console.live.now_us) if selected is not None else None
        )

    def _row(self, row: model.SystemsRow, columns: int) -> Line:
        context, item = self.run_context(), self.systems.item(row)
        if row.is_head:
            if self._was_past and row.section is not model.Section.BREAKERS:
                return present.past_section_row(row.section, self.board, columns)
            return present.section_row(row.section, self.systems, self._senders, columns, context.glyphs)
        if row.hidden:
            return present.more_row(row, context.glyphs)
        if row.task:
            return present.held_row(row.task, context, columns)
        if isinstance(item, BreakerStatus):
            return present.breaker_row(item, self.systems.is_open(row), context, columns)
        if isinstance(item, PageRow):
            return present.page_row(item, context, columns)
        return present.group_row(item, self.systems.longest_name, context, columns) if item is not None else []

    # --- What is selected -----------------------------------------------------------------------------------------

    def subject(self) -> BreakerStatus | PageRow | lists.QuarantineGroup | None:
        row = self.table.cursor_key
        return self.systems.item(row) if row is not None else None

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Select the task of the row on all screens."""
        row = self.table.cursor_key
        names = self.systems.tasks_of(row) if row is not None and self._is_cursor_placed else ()
        self.select_one_of(names)
        self.rest_timer.start()

    def show_row(self) -> None:
        """Update the details, and the nights below a list that leaves rows free."""
        super().show_row()
        free_rows = self.free_rows if self.is_wide else 0
        lines = self.nights.lines(self.main_columns, free_rows)
        self.nights_below.set_row_count(free_rows if lines else 0)
        self.nights_below.show_lines(lines)

    def on_cursor_rest(self) -> None:
        self.show_row()
        self.show_frame()
        run_latest(self, self._read_nights, "nights", shows_errors=False)
        item = self.subject()
        if item is not None and _version(item) not in self._more and not self._was_past:
            run_latest(self, partial(self._read_more, item), "more", shows_errors=False)

    async def _read_nights(self) -> None:
        await self.nights.read()
        self.show_row()

    async def _read_more(self, item: model.Item) -> None:
        """Read the text of a page, the changes of a breaker, or the first rows of a group."""
        session, run_id = self.console.live.session, self.board.projection.run.run_id
        if isinstance(item, PageRow):
            found = await session.rows(lists.PAGES, id=item.id, limit=1)
            self._more[_version(item)] = parse_body(found[0].body) if found else PageBody()
        elif isinstance(item, BreakerStatus):
            changes = await listed_events(session, lists.EVENTS_OF_KIND, run_id=run_id, kind=EventKind.BREAKER)
            self._more[_version(item)] = [one for one in changes if event_subject(one) == item.name]
        else:
            task, fingerprint = item.key
            self._more[_version(item)] = await session.rows(
                lists.QUARANTINE_ROWS, run_id=run_id, task=task, fingerprint=fingerprint, skip=0, limit=_ROWS_NAMED
            )
        while len(self._more) > _MORE_KEPT:
            self._more.popitem(last=False)
        self.show_row()
        self.show_key_bar()  # whether Enter has more to open depends on the lines

    def row_key(self) -> object:
        row = self.table.cursor_key
        return row and (row.section, row.key)

    def row_lines(self, columns: int) -> list[Line]:
        item = self.subject()
        return [] if item is None else subject_lines(item, self._more.get(_version(item)), self.run_context(), columns)

    @property
    def _is_all_shown(self) -> bool:
        """Whether the screen says all that a dialog would, so that Enter has nothing to open."""
        item, row = self.subject(), self.table.cursor_key
        has_more = isinstance(item, lists.QuarantineGroup) or (isinstance(item, BreakerStatus) and bool(item.held))
        if item is None or row is None or row.hidden or row.task or has_more:
            return False
        return not self.is_wide and len(self.row_lines(self.app.size.width)) <= self.below.row_count

    def target_tasks(self) -> Sequence[str]:
        row = self.table.cursor_key
        return self.systems.tasks_of(row) if row is not None else ()

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
        elif isinstance(item, lists.QuarantineGroup):
            self.console.push_screen(RowsScreen(item))
        elif self._is_all_shown:
            self.console.show_message("all that is known of it is shown", Role.DIM, 3)
        elif item is not None and self.is_wide:
            self.focus_details()
        elif item is not None:
            room = min(self.app.size.width, DIALOG_COLUMNS)
            title, *lines = self.row_lines(room)
            self.console.push_screen(TextDialog(title, [[], *lines], wrap=True))
        else:
            self.on_empty_table_key_pressed()

    def decide_rows(self, act: model.RowsAct) -> None:
        """Requeue or discard the rows of the group under the cursor."""
        group = self.subject()
        if not isinstance(group, lists.QuarantineGroup):
            self.console.show_warning("that is for quarantined rows: none are selected")
        elif not group.held:
            self.console.show_warning("none of these rows is held any more")
        else:
            self.console.systems_actions.decide_rows(model.held_rows_in(group), act)

    def _toggle(self, row: model.SystemsRow) -> None:
        place = self.table.cursor
        self.systems.toggle(row)
        self._refresh_list(by_hand=True)
        if row.hidden:
            self.table.move_to(place)

    def move_columns(self, direction: int) -> None:
        """Show (1) or hide (-1) the tasks that the breaker holds."""
        row, wanted = self.table.cursor_key, direction > 0
        if row is None or row.section is not model.Section.BREAKERS or row.key is None:
            return
        breaker = model.SystemsRow(row.section, row.key)
        if self.systems.is_open(breaker) != wanted:
            self.systems.toggle(breaker)
            self._refresh_list(by_hand=True)
            self.table.move_to_key(breaker)

    def go_to_next(self, step: int) -> None:
        """Move to the next item that needs a human, or the previous one."""
        if not self.table.move_to_next(step, set(self.systems.items_needing_human()).__contains__):
            self.console.show_warning("nothing here needs a human")

    def filter_changed(self, text: str) -> None:
        """Show matching rows only."""
        self.systems.filter = parse_filter(text)
        self._refresh_list(by_hand=True)

    def select_task(self) -> bool:
        names = self.target_tasks()
        if not names:
            self.console.show_warning("this row belongs to no task of this run")
        return self.select_one_of(names)


def _version(item: model.Item) -> object:
    """An item as it is now: what was read of it belongs to this."""
    if isinstance(item, PageRow):
        return item.id, item.updated_at
    if isinstance(item, BreakerStatus):
        return item.name, item.state, item.breaker.episode
    return item.key, *item.counts.items()


# --- The list of breakers, pages and rows, with section heads --------------------------------------------------------


class SystemsTable(VirtualTable[model.SystemsRow], inherit_bindings=False):
    """The cursor skips section heads, and the head above the cursor stays visible.

    Rows cannot be marked: the mark keys act on pages and breakers here.
    """

    BINDINGS = bindings(*PAGING, "open")

    def _clamp(self, place: int) -> int:
        place = super()._clamp(place)
        step = 1 if place >= self.cursor else -1
        for direction in (step, -step):
            found = place
            while 0 <= found < len(self.order) and self.order[found].is_head:
                found += direction
            if 0 <= found < len(self.order):
                return found
        return place

    def row_role(self, y: int) -> str | None:
        """The role of a row; heads never show the cursor."""
        place = self.first_visible + y
        return None if place < len(self.order) and self.order[place].is_head else super().row_role(y)

    def on_click(self, event: events.Click) -> None:
        """A head is no row; other rows as in every list."""
        place = self.first_visible + event.y
        if place < len(self.order) and self.order[place].is_head:
            event.prevent_default()

    def _scroll_into_view(self) -> None:
        super()._scroll_into_view()
        above = self.cursor - 1
        if 0 <= above < len(self.order) and self.order[above].is_head:
            self.first_visible = min(self.first_visible, above)
