"""The inbox: one row per cause, which opens to its tasks and their evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace
from textual import events
from textual.widget import Widget

from ...engine.domain.events import EventKind
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need
from ..keys.actions import BY_NAME, Action, ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.inbox import Inbox, InboxCause, InboxRow
from ..model.lists import next_order, parse_filter
from ..model.preview import preview_requeue, preview_skip
from ..model.runs import WaitingRun
from ..present import inbox as present
from ..present.detail import approval_line
from ..present.tasks import TaskNames
from ..text.columns import measured
from ..text.glyphs import DOWN, LEFT, UP
from ..text.pieces import Line, Piece, Role
from ..widgets.bars import Bar, DetailShare, has_room_for_strip
from ..widgets.table import VirtualTable
from .console import run_latest
from .task_pages import DetailView, Subject, TaskScreen

_FRAME_ROWS = 6  # header, tabs, rules, heading, keys
_WHO_ROWS, _ACT_ROWS = 3, 2
_TEXTS_ROWS_MIN, _EMPTY_ROWS = 3, 1  # of texts that are worth showing; of a list without rows
_PREVIEWED_MAX = 2_000  # tasks whose acts are tried out while the cursor rests on them


class InboxScreen(TaskScreen):
    """See the module."""

    PLACE = ScreenName.INBOX
    DETAIL_SHARE = DetailShare(47, 56)

    def __init__(self) -> None:
        super().__init__(self._lines_of_run)
        self.inbox = Inbox(self.board, names_commands=False)
        self.heading = Bar(id="heading")
        self.main_pane = self.marked_view = self.table = InboxTable(self)
        self.detail = self.detail_pane = self.evidence = DetailView(
            self.run_context, self.console.cause_histories.get, self._lines_of_run, id="beside"
        )
        self.texts.details = self.evidence
        self.evidence.fill, self.texts.fill = self.texts.fill, self.evidence.fill
        self.who_bar = Bar(_WHO_ROWS, id="who")
        self.consequences_bar = Bar(_ACT_ROWS, id="consequences")
        self._opened: set[str] = set()  # the causes that were opened because they fit: closed ones stay closed
        self.names = TaskNames(self.board.projection.tasks)
        self._causes: dict[str, InboxCause] = {}  # what is listed, by its key
        self._others: dict[str, WaitingRun] = {}  # other runs that need a human, by their name
        self._is_recount_due = False  # what is held has to be counted again

    # --- The frame ------------------------------------------------------------------------------------------------

    def widgets_below(self) -> Iterable[Widget]:
        """The selected tasks, their history, and the effects of requeue and skip."""
        yield self.who_bar
        yield self.consequences_bar

    def on_resize(self, event: events.Resize) -> None:
        """Place the evidence next to the list or on a separate screen."""
        self._place_texts()
        self.rest_timer.start()

    @property
    def _list_rows(self) -> int:
        """The rows between the heading and the lower rule."""
        below = self.who_bar.row_count * bool(self.who_bar.display) + _ACT_ROWS * bool(self.consequences_bar.display)
        return self.screen_rows - _FRAME_ROWS - below

    def _place_texts(self) -> None:
        """Give the rows that a short list leaves free to the texts of the failure under the cursor.

        Where no task is, and nothing stands beside the list, they have what the run needs.
        """
        names, rows = self._tasks_at_cursor(), len(self.table.order) or _EMPTY_ROWS
        self.who_bar.display = self.detail_room.rows > 0 and bool(names)
        self.consequences_bar.display = has_room_for_strip(self.app.size.height) and bool(self.table.order)
        if self.texts.subject is None:
            is_known = (bool(names) or not self.is_wide) and bool(self._lines_of_run(self.app.size.width))
        else:
            is_known = not names or (self._has_texts(names[0]) and not self.texts.is_blank)
        has_texts = is_known and self._list_rows - rows - 1 >= _TEXTS_ROWS_MIN
        self.divide_rows(rows if has_texts else None)

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """The column of the divider; the divider has the row of the rule of the texts."""
        at = self.texts_rule.region.y - self.divider.region.y
        self.divider.show_marks({at: self.console.glyphs.lines[LEFT | UP | DOWN]} if self.texts_rule.display else {})
        return super().rule_marks(upper)

    # --- The run --------------------------------------------------------------------------------------------------

    def board_replaced(self, board: Board) -> None:
        """Rebuild the list; keep open causes, order and filter."""
        before = self.inbox
        self.inbox = Inbox(board, names_commands=False)
        self.inbox.order_by(before.sort)
        self.inbox.set_filter(before.filter)
        for cause in before.causes():
            if before.is_open(cause.key):
                self.inbox.toggle(InboxRow(cause.key))
        self.names = TaskNames(board.projection.tasks)
        self._refresh_list()
        if before.board.projection.run.run_id != board.projection.run.run_id:
            self._opened.clear()
            self.table.move_to(0)

    def on_shown(self) -> None:
        """Select the task selected on the other screens, if it is listed."""
        if self.focused is None:
            self.table.focus()
        self._open_causes_that_fit()
        self._refresh_list()
        name = self.console.selected
        if name is not None and name not in self._tasks_at_cursor():
            self._go_to_task(name)
        self._request_cause_histories()
        self.rest_timer.start()

    def _open_causes_that_fit(self) -> None:
        """Open each cause once, if the screen has rows for all tasks."""
        causes = self.inbox.causes()
        if sum(1 + cause.count for cause in causes) > self._list_rows:
            return
        for cause in causes:
            if cause.key not in self._opened and not self.inbox.is_open(cause.key):
                self.inbox.toggle(InboxRow(cause.key))
            self._opened.add(cause.key)

    @property
    def acts_on_one(self) -> bool:
        """False, because whatever is listed can be skipped."""
        return False

    def on_news(self, news: BoardUpdate) -> None:
        """Update the list for changed tasks."""
        self._is_recount_due |= bool(news.delta.moves)
        changed = self.inbox.apply(news.delta) or news.delta.is_run_changed
        self.console.cause_histories.on_events(news.events, bool(news.delta.moves))
        if self not in self.app.screen_stack:
            return
        if changed:
            self._open_causes_that_fit()
            self._refresh_list()
        if EventKind.QUARANTINE in news.delta.other_kinds:
            self.page_of_texts.expire()
        if changed or news.delta.moves or self.page_of_texts.needs_reading:
            self.rest_timer.start()

    def tick(self, now_us: int) -> None:
        """Update ages and, once a second, held tasks."""
        if self._is_recount_due:
            self._is_recount_due = False
            self.inbox.refresh()
            self._refresh_list()
        self._show_heading()
        self._request_cause_histories()
        self.table.update_rows()
        if self.evidence.display:
            self.evidence.tick()
        if self.texts.display:
            self.texts.tick()
            self.texts.expire_running()
            if self.texts.needs_reading:
                self.read_texts()

    def _request_cause_histories(self) -> None:
        """Read the history of these causes if it may have changed."""
        if self.console.cause_histories.is_due(self.board.projection.run.run_id, self.inbox.causes()):
            # the inbox works without history; the next event reads again
            run_latest(self, self._read_cause_histories, "cause histories", shows_errors=False)

    async def _read_cause_histories(self) -> None:
        session, run_id = self.console.live.session, self.board.projection.run.run_id
        if await self.console.cause_histories.refresh(session, run_id, self.inbox.causes()):
            self.rest_timer.start()
            if self.evidence.display:
                self.evidence.update_page()

    # --- The list -------------------------------------------------------------------------------------------------

    def _refresh_list(self, by_hand: bool = False) -> None:
        """Show the current rows. If only counts changed, repaint causes only."""
        self._causes = {cause.key: cause for cause in self.inbox.causes()}
        self._cause_columns = measured(present.CAUSE_COLUMNS, [*self._causes.values()], self.run_context())
        self._others = {one.run.run_id: one for one in self.console.other_runs.waiting}
        wanted = self.inbox.filter
        others = [
            one for one in self._others.values() if wanted.matches(f"{one.run.dag_name} {one.run.run_id}".casefold())
        ]
        rows = [*self.inbox.rows(), *(InboxRow("", run=one.run.run_id) for one in others)]
        before = self.table.cursor_key
        if rows == self.table.order == []:
            self.table.update_rows()
        elif rows == self.table.order:
            self.table.rows_changed({row for row in self.table.in_view() if row.task is None})
        else:
            self.table.set_order(rows)
            if not by_hand and before is not None and self.table.cursor_key != before:
                self.on_row_removed()
        self.table.retain_marks()
        self._place_texts()
        self._show_heading()

    def _show_heading(self) -> None:
        marked, others = len(self.table.marks), len(self._others)
        context, columns = self.run_context(), self.main_columns
        left, right = present.heading_line(self.inbox, marked, self.filter_text, context, columns, others)
        if not left and self._others:
            left = present.run_line(self._need, context)
        elif not left and self._need is not None:
            left = [Piece(" the run needs a human; none of its tasks does", Role.DIM)]
        self.heading.show(left, right)

    def row(self, row: InboxRow, columns: int) -> Line:
        """Render a cause, a task or another run."""
        context = self.run_context()
        if row.task is not None:
            if not self.inbox.needs_human(row.task):
                return []  # it left while another view was in front; the list is read again once this one is shown
            entry = self.inbox.entry(row.task)
            listed = self._causes.get(row.cause)
            return present.task_row(entry, self.board.row(row.task), context, columns, listed)
        if row.run is not None:
            other = self._others.get(row.run)
            return [] if other is None else present.other_run_row(other, context, columns)
        if row.hidden:
            return present.more_row(row.hidden, context.glyphs)
        cause = self._causes.get(row.cause)
        if cause is None:
            return []
        return present.cause_row(cause, self.inbox.is_open(row.cause), context, columns, self._cause_columns)

    def tasks_of(self, row: InboxRow) -> Sequence[str]:
        """The tasks that a row stands for."""
        if row.task is not None:
            return (row.task,)
        cause = self._causes.get(row.cause)
        if cause is None:
            return ()
        return cause.tasks[-row.hidden :] if row.hidden else cause.tasks

    @property
    def _need(self) -> Need | None:
        return next((one for one in self.console.needs_of_run if not one.is_notice), None)

    def empty_line(self) -> Line:
        """The message of an empty list."""
        return present.empty_line(self.inbox.total, self.filter_text, self._need, self.run_context())

    def _lines_of_run(self, columns: int) -> list[Line]:
        """The needs of the run and of the other run under the cursor; for a task the tasks that it holds up."""
        if names := self._tasks_at_cursor():
            return present.waiting_lines(names, self.run_context(), has_details=self.is_wide and len(names) == 1)
        need, other, context = self._need, self._other_at_cursor(), self.run_context()
        lines: list[Line] = []
        if need is not None and not self.inbox.total:
            can_resume = self.console.launch.state_path is not None and self.console.runner.has_ended
            lines = [*present.need_lines(need, context, columns, can_resume=can_resume, is_brief=not self.is_wide), []]
        return lines if other is None else [*lines, *present.other_run_page(other, context, columns)]

    # --- What is selected -----------------------------------------------------------------------------------------

    def _tasks_at_cursor(self) -> Sequence[str]:
        row = self.table.cursor_key
        return self.tasks_of(row) if row is not None else ()

    def _subject(self) -> Subject | None:
        """The cause or task that the evidence pane shows."""
        row = self.table.cursor_key
        if row is None:
            return None
        cause = self._causes.get(row.cause)
        if row.task is not None or cause is None:
            return row.task
        return cause if cause.count > 1 else cause.tasks[0]

    def _has_texts(self, name: str) -> bool:
        """Whether a task wrote something, or asks about what others wrote."""
        return bool(self.board.row(name).attempts) or name in self.board.asked

    def _writer(self, subject: Subject | None) -> Subject | None:
        """The subject whose texts help to decide: of a task itself if it has some; without a task what runs."""
        names = self._tasks_at_cursor()
        if names:
            return subject if self._has_texts(names[0]) or not present.wait_of(names, self.run_context()) else None
        return self.board.current_task() if self._need is not None and not self.inbox.total else None

    def target_tasks(self) -> Sequence[str]:
        """The marked tasks; without marks what is under the cursor."""
        return self.table.marks or self._tasks_at_cursor()

    def visible_tasks(self) -> Collection[str]:
        """The tasks of the rows in view; of a folded cause only a single one, which its row describes."""
        rows = [row for row in self.table.in_view() if not row.hidden]
        named = [self.tasks_of(row) for row in rows if row.task is not None or len(self.tasks_of(row)) == 1]
        return {name for names in named for name in names}

    def task_at_cursor(self) -> str | None:
        """The task of the row under the cursor, or of its cause if that is the only one."""
        names = self._tasks_at_cursor()
        row = self.table.cursor_key
        return names[0] if len(names) == 1 and row is not None and not row.hidden else None

    def handle_task_act(self, name: str) -> None:
        super().handle_task_act(name)
        self.rest_timer.start()

    def go_to(self, name: str) -> None:
        super().go_to(name)
        self._go_to_task(name)

    def _go_to_task(self, name: str) -> None:
        for cause in self._causes.values():
            if name in cause.tasks:
                row = InboxRow(cause.key, name)
                self.table.move_to_key(row) or self.table.move_to_key(InboxRow(cause.key))
                return

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Select the task of the row on all screens."""
        self.select_one_of(self._tasks_at_cursor())
        self.rest_timer.start()

    def on_virtual_table_row_marks_changed(self, message: VirtualTable.RowMarksChanged) -> None:
        """Update after a change of marks."""
        self._show_heading()
        self.rest_timer.start()

    def on_cursor_rest(self) -> None:
        """Preview the actions."""
        self._show_heading()
        self._show_consequences([name for name in self.target_tasks() if name in self.board.projection.tasks])
        subject = self._subject()
        self.texts.cursor = subject if isinstance(subject, str) else ""  # of a cause they are of its first task
        self.texts.has_nothing_above = subject is None and not self.is_wide
        self.texts.show_subject(self._writer(subject))
        self.evidence.show_subject(subject)
        self._place_texts()
        if self.page_of_texts.display:
            self.read_texts()

    def texts_read(self) -> None:
        """Show what was read, and beside it what has come from the same rows."""
        self._place_texts()
        self.evidence.update_page()

    def _show_consequences(self, names: Sequence[str]) -> None:
        columns = self.app.size.width
        who: list[Line] = (
            [*present.selection_lines(names, self.run_context(), columns), self._cause_history_line()] if names else []
        )
        other = self._other_at_cursor()
        acts = present.mend_lines(names, self.run_context(), columns) if names else []
        if other is not None and not names:
            acts = present.other_run_lines(other)
        elif acts or not names:
            pass
        elif len(names) > _PREVIEWED_MAX:
            acts = present.estimate_lines(len(names), self.board.waiting_below(*names))
        else:
            acts = present.consequence_lines(preview_requeue(self.board, names), preview_skip(self.board, names))
        self.who_bar.set_row_count(max(_WHO_ROWS, len(who)))  # one more for a long error
        self.who_bar.show_lines(who)
        self.consequences_bar.show_lines(acts)

    def _other_at_cursor(self) -> WaitingRun | None:
        row = self.table.cursor_key
        return None if row is None or row.run is None else self._others.get(row.run)

    @property
    def selection_problem(self) -> str:
        """Say that tasks of another run are changed in that run."""
        other = self._other_at_cursor()
        if other is None:
            return super().selection_problem
        return f"{shown_key('open')} opens run {other.run.run_id}: act on its tasks there"

    def on_other_runs(self) -> None:
        """List the other runs that need a human."""
        self._refresh_list()
        self.rest_timer.start()

    def _cause_history_line(self) -> Line:
        row = self.table.cursor_key
        if row is None or self.table.marks:
            return []
        if present.wait_of(self._tasks_at_cursor(), self.run_context()) is not None:  # nothing failed
            texts = self.page_of_texts.texts
            return approval_line(texts.answers[-1]) if texts is not None and texts.answers else []
        columns = self.app.size.width
        return present.cause_history_line(
            self.console.cause_histories.get(row.cause), self.console.live.now_us, columns, self.console.glyphs
        )

    # --- Keys -----------------------------------------------------------------------------------------------------

    def footer_actions(self) -> Sequence[Action]:
        """On an open cause the key that opens closes it; where there is no task only the keys that need none."""
        row, actions = self.table.cursor_key, super().footer_actions()
        if row is None or row.run is not None:
            needless = ("undo", "help", "quit") if row is None else ("open", "undo", "help", "quit")
            is_late = row is None and self._need is not None and self._need.kind is NeedKind.LATE
            return [*([BY_NAME["postpone"]] * is_late), *(one for one in actions if one.name in needless)]
        if row != InboxRow(row.cause) or not self.inbox.is_open(row.cause):
            return actions
        return [replace(action, label="close") if action.name == "open" else action for action in actions]

    def has_cursor_jumped(self) -> bool:
        """Whether the row under the cursor has just changed; marked tasks do not depend on it."""
        return super().has_cursor_jumped() and not self.table.marks

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """A cause opens to its tasks, a task to its evidence."""
        row = self.table.cursor_key
        if row is not None and row.run is not None:
            self.console.follow(row.run, ScreenName.INBOX)
        elif row is not None and row.task is not None:
            self.focus_details() if self.is_wide else self.show_details()
        elif row is not None:
            self._toggle(row)

    def _toggle(self, row: InboxRow) -> None:
        place = self.table.cursor
        self.inbox.toggle(row)
        self._refresh_list(by_hand=True)
        if row.hidden:
            self.table.move_to(place)

    def _set_open(self, wanted: bool, causes: Iterable[InboxCause]) -> None:
        cause_of_cursor = self.table.cursor_key
        for cause in causes:
            if self.inbox.is_open(cause.key) != wanted:
                self.inbox.toggle(InboxRow(cause.key))
        self._refresh_list(by_hand=True)
        if cause_of_cursor is not None and self.table.cursor_key != cause_of_cursor:
            self.table.move_to_key(InboxRow(cause_of_cursor.cause))

    def zoom(self, step: int) -> None:
        """Open every cause (1), or close every cause (-1)."""
        causes = self.inbox.causes()
        if all(self.inbox.is_open(cause.key) == (step > 0) for cause in causes):
            self.console.show_message(f"every cause is {'open' if step > 0 else 'closed'}")
        self._set_open(step > 0, causes)

    def move_columns(self, direction: int) -> None:
        """Open (1) or close (-1) the cause under the cursor."""
        self._set_open(direction > 0, self._cause_at_cursor())

    def _cause_at_cursor(self) -> list[InboxCause]:
        row = self.table.cursor_key
        cause = self._causes.get(row.cause) if row is not None else None
        return [cause] if cause is not None else []

    def go_to_next(self, step: int) -> None:
        """Go to the next or previous cause or run."""
        rows = [row for row in self.table.order if row.task is None and not row.hidden]
        row = self.table.cursor_key
        if row is not None:
            here = rows.index(InboxRow(row.cause, run=row.run))
            self.table.move_to_key(rows[(here + step) % len(rows)])
        if self.table.cursor_key == row:
            self.console.show_message("there is no other cause")

    def change_order(self) -> None:
        """The next order."""
        self.inbox.order_by(next_order(self.inbox.sort))
        self._refresh_list()

    def filter_changed(self, text: str) -> None:
        """Show only tasks that match."""
        self.inbox.set_filter(parse_filter(text))
        self._refresh_list(by_hand=True)
        self.rest_timer.start()

    def show_details(self) -> None:
        """Show everything about the task under the cursor, or about the first task of a cause."""
        if self.select_one_of(self._tasks_at_cursor()):
            super().show_details()


# --- The list of the inbox: causes and their tasks, with marks that belong to tasks and not to rows ------------------
#
# Marking a closed cause marks all of its tasks; opening it shows them marked, and any of them can be unmarked again.


class InboxTable(VirtualTable[InboxRow]):
    """See the module."""

    UNMARKED = Role.TEXT

    def __init__(self, screen: InboxScreen) -> None:
        super().__init__(
            screen.row, mark_sign=screen.console.glyphs.mark, nothing=screen.empty_line, always_lit=True, id="inbox"
        )
        self._inbox_screen = screen

    def items_of(self, key: InboxRow) -> Sequence[str]:
        return self._inbox_screen.tasks_of(key)

    def all_items(self) -> Sequence[str]:
        """The tasks that match the filter."""
        return self._inbox_screen.inbox.matching()
