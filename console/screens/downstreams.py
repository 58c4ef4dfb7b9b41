"""What stands between tasks and the world: breakers with whom they hold, pages, and rows that were set aside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.timer import Timer
from textual.widget import Widget

from ...engine.core.ready_queue import spec_of
from ...engine.domain.events import Event, EventKind
from ...engine.errors import RedriveError
from ...engine.statefile import queries
from ..feed.live_run import News
from ..keys.actions import BY_NAME, Action, Place
from ..model.board import Board
from ..model.breaker_view import Guard, holder_of
from ..model.downstreams import (
    Group,
    Page,
    PageBody,
    RowsAct,
    Section,
    Systems,
    SystemsRow,
    body_of,
    chosen_group,
    senders_of,
)
from ..model.filters import parse_filter
from ..present.downstream_page import subject_lines
from ..present.downstreams import group_row, guard_row, head_row, held_row, more_row, page_row, past_row
from ..present.tasks import Scene
from ..text.pieces import Line, Role
from ..widgets.bars import Bar
from ..widgets.bindings import bindings_of
from ..widgets.table import VirtualTable
from .base import ConsoleScreen, run_latest
from .downstream_table import SystemsTable
from .quarantine_rows import RowsScreen
from .refresh import SOON_SECONDS, Rereading
from .text_dialog import Reading

COUNTED_SECONDS = 1.3  # what a breaker only counts is in the file with the executor's next heartbeat
RESTING_SECONDS = 0.15  # the cursor may only be passing by
READING_COLUMNS = 87
_SUBJECT_ROWS = 12
_BODIES_KEPT = 20
_TOLD_BY = {
    EventKind.BREAKER: Section.BREAKERS,
    EventKind.PAGE: Section.PAGES,
    EventKind.QUARANTINE: Section.ROWS,
}

#: What the footer names beside what works everywhere, by what is under the cursor.
_KEYS: Mapping[type, tuple[str, ...]] = {
    Guard: ("force_open", "close_breaker", "probe", "disable_breaker", "open"),
    Page: ("acknowledge_page", "snooze_page", "open", "details"),
    Group: ("requeue_rows", "discard_rows", "open", "details"),
}
_OTHERWISE = ("next", "filter", "help", "quit")


class Subject(Reading):
    """Everything about a breaker or a page."""

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__(lines[0] if lines else [], [[], *lines[1:]])
        self.view.wrapping = True


class SystemsScreen(ConsoleScreen):
    """See the module."""

    PLACE = Place.SYSTEMS
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.SYSTEMS)

    def __init__(self) -> None:
        super().__init__()
        self.systems = Systems(self.board)
        self.table = SystemsTable(self._row, id="systems")
        self.words = Bar(_SUBJECT_ROWS, id="subject")
        self._senders: Sequence[str] = ()
        self._rereading = Rereading(self, self._read)
        self._wanted: set[Section] = set()
        self._moved = False  # who is held has to be looked at again
        self._past = False
        self._painted: dict[SystemsRow, Line] = {}
        self._bodies: OrderedDict[tuple[int, int], PageBody] = OrderedDict()
        self._resting: Timer | None = None
        self._placed = False  # the cursor was put where it is wanted first

    # --- The frame ------------------------------------------------------------------------------------------------

    def content(self) -> Iterable[Widget]:
        """The list."""
        yield self.table

    def below(self) -> Iterable[Widget]:
        """What is selected, in as many lines as there is room for."""
        yield self.words

    def on_resize(self, event: events.Resize) -> None:
        """More of what is selected on a larger screen; none of it on a small one."""
        rows = 0 if event.size.height < 20 else 4 if event.size.height < 32 else _SUBJECT_ROWS
        self.words.display = rows > 0
        self.words.styles.height = max(rows, 1)
        super().on_resize(event)
        self._rest()

    def footer(self) -> Sequence[Action]:
        """What can be done with what is under the cursor."""
        row, thing = self.table.cursor_key, self.subject()
        names = ("details", "output") if row is not None and row.task else _KEYS.get(type(thing), ())
        return [BY_NAME[name] for name in (*names, *_OTHERWISE)]

    # --- The run --------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """What rows need beside what they are about."""
        console = self.console
        return Scene(self.board, console.live.now_us, console.glyphs, console.absolute_times)

    def board_replaced(self, board: Board) -> None:
        """Another picture; what was read is shown until it was read again."""
        self.systems = self.systems.beside(board)
        self.systems.recount(self.console.live.now_us)
        self._senders = senders_of(board.fold.run.options)
        self._past = False
        if self._is_seen:
            self._want(0.0, *Section)
            self._renew_list()

    def shown(self) -> None:
        """The breaker that holds the selected task, if one does; else where one was, or what wants a human."""
        self.table.focus()
        self._turn_to_past()
        self._want(0.0, *Section)
        self._placed = self._placed and self._holder() is None
        self._renew_list()

    @property
    def _is_seen(self) -> bool:
        return self in self.app.screen_stack

    def take(self, news: News) -> None:
        """Events say which list is another one now; what a breaker counts follows a little later."""
        self._moved |= bool(news.delta.moves)
        if not self._is_seen:
            return
        self._turn_to_past()
        for kind in {event.kind for event in news.events} & _TOLD_BY.keys():
            self._want(SOON_SECONDS, _TOLD_BY[kind])
        if any(self._is_call(event) for event in news.events):
            self._want(COUNTED_SECONDS, Section.BREAKERS)

    def _is_call(self, event: Event) -> bool:
        """An attempt that calls something has begun or ended."""
        if event.kind != EventKind.TASK or "RUNNING" not in (event.old, event.new):
            return False
        row = self.board.fold.tasks.get(event.task or "")
        return row is not None and spec_of(row).downstream is not None

    def _turn_to_past(self) -> None:
        """Of another moment the board knows the breakers; pages and rows are only counted."""
        past = self.console.live.is_past
        if past:
            self.systems.learn_moment(self.console.live.now_us)
            self._renew_list()
        elif self._past:
            self._want(0.0, *Section)
        self._past = past

    def tick(self, now_us: int) -> None:
        """Countdowns, ages, what has left the window of a breaker; and who is held, where that may be another one."""
        if self._moved or any(guard.held or not guard.is_quiet for guard in self.systems.guards.values()):
            self._moved = False
            if self.systems.recount(now_us):
                self._renew_list()
        for y, row in enumerate(self.table.in_view()):
            before = self._painted.get(row)
            if before is not None and before != self._row(row, self.table.columns):
                self.table.refresh_rows(y)
        self._show_subject()

    # --- Reading --------------------------------------------------------------------------------------------------

    def _want(self, seconds: float, *sections: Section) -> None:
        if not self.console.live.is_past:
            self._wanted.update(sections)
            self._rereading.want(seconds)

    async def _read(self) -> None:
        wanted, self._wanted = self._wanted, set()
        board = self.board
        try:
            for section in (one for one in Section if one in wanted):
                learn = await self._read_section(section, board.fold.run.run_id)
                if board is not self.board or self.console.live.is_past:
                    return
                learn()
        except RedriveError:
            self._wanted |= wanted  # the header says what is wrong with the door; the next event asks again
            return
        self._renew_list()

    async def _read_section(self, section: Section, run_id: str) -> Callable[[], None]:
        """Read the rows of a section; the answer shows them."""
        session, systems = self.console.live.session, self.systems
        if section is Section.BREAKERS:
            breakers = await session.query(queries.BREAKERS)
            return lambda: systems.learn_breakers(breakers, self.console.live.now_us)
        if section is Section.PAGES:
            return partial(systems.learn_pages, await session.query(queries.PAGE_HEADS))
        return partial(systems.learn_groups, await session.query(queries.QUARANTINE_GROUPS, run_id=run_id))

    # --- The list -------------------------------------------------------------------------------------------------

    def _renew_list(self, by_hand: bool = False) -> None:
        rows = self.systems.rows()
        listed, before = set(rows), self.table.cursor_key
        self._painted = {row: line for row, line in self._painted.items() if row in listed}
        self.table.set_order(rows)
        if self._placed and not by_hand and before is not None and self.table.cursor_key != before:
            self.row_left()
        if not self._placed and self.systems.known:
            self._placed = self._past or len(self.systems.known) == len(Section)
            self._place_cursor()
        self._rest()

    def _place_cursor(self) -> None:
        holder = self._holder()
        wanted = [SystemsRow(Section.BREAKERS, holder)] if holder is not None else self.systems.wanting()
        if wanted:
            self.table.move_to_key(wanted[0])

    def _holder(self) -> str | None:
        selected = self.console.selected
        return holder_of(self.board, selected, self.console.live.now_us) if selected is not None else None

    def _row(self, row: SystemsRow, columns: int) -> Line:
        line = self._line_of(row, columns)
        self._painted[row] = line
        return line

    def _line_of(self, row: SystemsRow, columns: int) -> Line:
        scene, thing = self.scene(), self.systems.thing(row)
        if row.is_head:
            if self._past and row.section is not Section.BREAKERS:
                return past_row(row.section, self.board, columns)
            return head_row(row.section, self.systems, self._senders, columns, scene.glyphs)
        if row.hidden:
            return more_row(row, self.console.keymap.label("open"), scene.glyphs)
        if row.task:
            return held_row(row.task, scene, columns)
        if isinstance(thing, Guard):
            return guard_row(thing, self.systems.is_open(row), scene, columns)
        if isinstance(thing, Page):
            return page_row(thing, scene, columns)
        return group_row(thing, scene, columns) if thing is not None else []

    # --- What is selected -----------------------------------------------------------------------------------------

    def subject(self) -> Guard | Page | Group | None:
        """The breaker, page or group of rows under the cursor."""
        row = self.table.cursor_key
        return self.systems.thing(row) if row is not None else None

    def on_virtual_table_moved(self, message: VirtualTable.Moved) -> None:
        """Another row: the task that it is about is selected everywhere."""
        row = self.table.cursor_key
        names = self.systems.tasks_of(row) if row is not None and self._placed else ()
        if names and self.console.selected not in names:
            self.console.selected = names[0]
        self._rest()

    @property
    def rests(self) -> bool:
        """Whether everything has been read and said."""
        return self._resting is None and self._rereading.rests

    def _rest(self) -> None:
        if self._resting is None and self.is_mounted:
            self._resting = self.set_timer(RESTING_SECONDS, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.show_frame()
        self._show_subject()
        thing = self.subject()
        if isinstance(thing, Page) and (thing.id, thing.changed_at) not in self._bodies:
            run_latest(self, self._read_body, "body")

    async def _read_body(self) -> None:
        page = self.subject()
        if not isinstance(page, Page):
            return
        try:
            found = await self.console.live.session.query(queries.PAGES, id=page.id, limit=1)
        except RedriveError:
            return  # the header says what is wrong with the door
        self._bodies[page.id, page.changed_at] = body_of(found[0].body) if found else PageBody()
        while len(self._bodies) > _BODIES_KEPT:
            self._bodies.popitem(last=False)
        self._show_subject()

    def _subject_lines(self, columns: int) -> list[Line]:
        thing = self.subject()
        if thing is None:
            return []
        body = self._bodies.get((thing.id, thing.changed_at)) if isinstance(thing, Page) else None
        return subject_lines(thing, body, self.scene(), columns)

    def _show_subject(self) -> None:
        lines = self._subject_lines(self.app.size.width) if self.words.display else []
        for place in range(_SUBJECT_ROWS):
            self.words.show(lines[place] if place < len(lines) else [], row=place)

    def chosen(self) -> Sequence[str]:
        """The tasks that the row is about."""
        row = self.table.cursor_key
        return self.systems.tasks_of(row) if row is not None else ()

    # --- Keys: looking --------------------------------------------------------------------------------------------

    def on_virtual_table_opened(self, message: VirtualTable.Opened) -> None:
        """A breaker opens to whom it holds, a page to what it says, rows to each of them, a task to its details."""
        row, thing = self.table.cursor_key, self.subject()
        if row is None:
            return
        if row.hidden or (isinstance(thing, Guard) and thing.held and not row.task):
            self._toggle(row)
        elif row.task:
            self.show_details()
        elif isinstance(thing, Group):
            self.console.push_screen(RowsScreen(thing))
        elif thing is not None:
            room = min(self.app.size.width, READING_COLUMNS)
            self.console.push_screen(Subject(self._subject_lines(room)))

    def decide_rows(self, act: RowsAct) -> None:
        """Requeue or discard the rows of the group under the cursor."""
        group = self.subject()
        if not isinstance(group, Group):
            self.complain("that is for quarantined rows: none are selected")
        elif not group.held:
            self.complain("none of these rows is held any more")
        else:
            self.console.systems_acts.decide_rows(chosen_group(group), act)

    def complain(self, sentence: str) -> None:
        """Say why nothing was done."""
        self.console.show_message(sentence, Role.WARNING)

    def _toggle(self, row: SystemsRow) -> None:
        place = self.table.cursor
        self.systems.toggle(row)
        self._renew_list(by_hand=True)
        if row.hidden:
            self.table.move_to(place)

    def move_columns(self, direction: int) -> None:
        """With 1 show whom the breaker holds, with -1 hide them again."""
        row, wanted = self.table.cursor_key, direction > 0
        if row is None or row.section is not Section.BREAKERS or row.key is None:
            return
        breaker = SystemsRow(row.section, row.key)
        if self.systems.is_open(breaker) != wanted:
            self.systems.toggle(breaker)
            self._renew_list(by_hand=True)
            self.table.move_to_key(breaker)

    def go_on(self, step: int) -> None:
        """To the next thing that wants a human, or the one before."""
        places = [place for row in self.systems.wanting() if (place := self.table.place_of(row)) is not None]
        here = self.table.cursor
        found = [place for place in places[::step] if (place - here) * step > 0] or places[::step]
        if found:
            self.table.move_to(found[0])
        else:
            self.complain("nothing here wants a human")

    def filter_changed(self, text: str) -> None:
        """Only what matches."""
        self.systems.filter = parse_filter(text)
        self._renew_list(by_hand=True)

    def select_task(self) -> bool:
        """The task that the row is about."""
        names = self.chosen()
        if not names:
            self.complain("this row is about no task of this run")
        return self.select_one_of(names)
