"""The machine as one picture: a row per state file, what hosts and disks need above, the flow under the cursor below.

The keys act on the cause that the row names, with the previews of the views of a run: the run of the row is followed
once the cursor rests on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from textual import events
from textual.containers import Container
from textual.widget import Widget

from ...engine.statefile.state_files import FileRow
from ..keys.actions import Action, ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.graph.drawing import LABEL_SIZES, SIGNS_ALONE, SPREAD_SIZES, TALL_SIZES, LabelSize
from ..model.graph.groups import GRAPH_MAX, ZoomStep
from ..model.graph.view import GROUP_ROWS, Graph, fits
from ..model.inbox import Inbox, InboxCause
from ..model.lists import next_order, parse_filter
from ..model.runs import FleetEntry, FleetOrder, fleet_entries
from ..present import fleet as present
from ..present.fleet_why import alarms_of, why_of
from ..present.graph import GroupDrawing, Highlight, drawing_row, group_drawing, group_map_row, label_width
from ..present.nights import latest_style, night_lines
from ..present.states import RowContext, no_match_line
from ..present.tasks import TaskNames
from ..text.columns import Columns, screen_titles
from ..text.figures import number
from ..text.pieces import Line, Piece, Role, wrap_within
from ..text.text import is_remote, one_line
from ..widgets.bars import Bar, Rule
from ..widgets.line_view import LineView
from ..widgets.table import VirtualTable
from .base import ConsoleScreen
from .console import Console
from .task_pages import TextsView, read_page

_FRAME_ROWS = 6  # heading, titles, the rule with the name of the flow, two rules, keys
_MACHINE_ROWS_MAX = 3  # of what the machine needs
_SHARE_OF_NEED = 12  # a need of the machine has one row of so many of the screen, and two at least
_PANEL_ROWS_MIN = 4
_MARGIN = 1
_WHOLE_SIZES = (*SPREAD_SIZES, *TALL_SIZES, LABEL_SIZES[0])  # the first that fits; with whole names
_SIZES = (*_WHOLE_SIZES, *LABEL_SIZES[1:], SIGNS_ALONE)
_BESIDE_FROM = 160  # columns
_TEXTS_ROWS, _TEXTS_ROWS_MIN = 8, 3  # of what a task wrote: wanted beside a drawing, and worth showing
_NEEDS_SECONDS = 5.0  # after which something may need a human by the clock alone
_GROUPED_MAX = 3000  # tasks: of a larger run only the counts are drawn here


class FleetConsole(Console, Protocol):
    """The app of this screen.

    Attributes:
        place: the machine, for people.
        shown_path: the file whose run is followed; None: none is, or not yet.
    """

    place: str
    shown_path: str | None

    def show_file(self, path: str, run_id: str | None) -> None:
        """Follow a run of another file."""

    def leave_file(self) -> None:
        """Follow no run: the cursor moves."""

    def open_file(self, path: str, run_id: str | None, view: ScreenName) -> None:
        """Open a view of a run of a file."""


class MachineScreen(ConsoleScreen):
    """A list of this machine, and below it what is known of the row under the cursor."""

    def __init__(self, line: Callable[[str, int], Line], nothing: Callable[[], Line], panel_rows: int) -> None:
        super().__init__()
        self.header.set_row_count(1)
        self.titles = Bar(id="titles")
        self.table: VirtualTable[str] = VirtualTable(line, always_lit=True, nothing=nothing, id="fleet")
        self.name_bar = Bar(id="flow")
        self.panel = Bar(panel_rows, id="panel")
        self.below: Widget = self.panel

    @property
    def fleet(self) -> FleetConsole:
        """The app."""
        return cast(FleetConsole, self.app)

    def content(self) -> Iterable[Widget]:
        yield self.titles
        yield self.table
        yield self.name_bar
        yield self.below

    @abstractmethod
    def open_in(self, view: ScreenName) -> None:
        """Open a view of the run that the row under the cursor is about."""

    def show_heading(self, left: Line, right: Line) -> None:
        """Show the heading, and update rules and keys."""
        self.header.show(left, right)
        for rule in (self.upper_rule, self.lower_rule):
            rule.show(self.console.glyphs.rule, self.hidden_row_marks(rule))
        self.show_key_bar()

    def show_key_bar(self) -> None:
        """Show the keys that act on the row."""
        self.key_bar.show(self.hints(), self.console.lock_reason)


class FleetScreen(MachineScreen):
    """See the module."""

    PLACE = ScreenName.FLEET

    def __init__(self) -> None:
        super().__init__(self._row, lambda: no_match_line(self.filter_text), _PANEL_ROWS_MIN)
        self._file_rows: Sequence[FileRow] = ()
        self._shown_at = float("-inf")
        self._is_read = False
        self._all: Sequence[FleetEntry] = ()
        self._entries: dict[str, FleetEntry] = {}
        self._columns: Columns[FleetEntry, RowContext] = present.FLEET_COLUMNS
        self.order = FleetOrder.ATTENTION
        self.before: str | None = None  # the file under the cursor at first
        self._row_at_cursor: str | None = None
        self.problem = ""  # why the list is not that of now
        self._graph: Graph | None = None
        self._grouped: GroupDrawing | None = None
        self._causes: Sequence[InboxCause] = ()
        self._run_problem = ""  # why the run of the row cannot be read
        self.machine_bar = Bar(0, id="machine")
        self.texts = TextsView(self.run_context, id="texts")
        self.texts.can_focus = False
        self.below = Container(self.panel, self.texts, id="below")
        self.below.styles.height = "auto"
        self._rows_below = _PANEL_ROWS_MIN  # of panel and texts
        self._is_beside = False  # the texts stand beside the panel

    def content(self) -> Iterable[Widget]:
        yield self.machine_bar
        yield from super().content()

    # --- The list ---------------------------------------------------------------------------------------------------

    def show_files(self, file_rows: Sequence[FileRow]) -> None:
        """Show these state files."""
        now = self.console.live.monotonic_seconds
        if file_rows != self._file_rows or now - self._shown_at >= _NEEDS_SECONDS:
            self._file_rows, self._shown_at, self._is_read = file_rows, now, True
            self._show_order()

    def _show_order(self) -> None:
        now_us, wanted = self.console.live.clock_us, parse_filter(self.filter_text)
        self._all = fleet_entries(self._file_rows, now_us, self.order)
        rows = [one for one in self._all if present.is_row(one)]
        shown = [one for one in rows if wanted.matches(present.search_text(one, now_us))]
        self._entries = {one.file_row.path: one for one in shown}
        self._columns = present.fleet_columns(shown or rows, self._row_context(), self.app.size.width)
        before, is_new, was_at_top = self.table.cursor_key, not self.table.order, not self.table.first_visible
        self.table.set_order([*self._entries])
        if was_at_top and self.table.cursor < self.table.rows:
            self.table.scroll_rows(-self.table.first_visible)  # what comes in above is in sight
        if self.before in self._entries:
            self.table.move_to_key(self.before)
            self.before = None
        if before is not None and before not in self._entries:
            self.on_row_removed()
        if is_new and self._entries:
            self._follow_cursor()
        self.table.refresh()
        self._lay_out()

    def _lay_out(self) -> None:
        """Divide the rows: the list has what it needs as far as the flow below keeps enough."""
        lines = present.machine_lines(self._all, self.console.live.clock_us, self.console.glyphs)
        if len(lines) > _MACHINE_ROWS_MAX:
            more = f"   {len(lines) - _MACHINE_ROWS_MAX + 1} more"
            lines = [*lines[: _MACHINE_ROWS_MAX - 1], [Piece(more, Role.WARNING)]]
        columns, most = self.app.size.width, max(2, self.app.size.height // _SHARE_OF_NEED)
        lines = [row for line in lines for row in wrap_within(line, columns, most, 3, self.console.glyphs.more)]
        self.machine_bar.set_row_count(len(lines))
        self.machine_bar.show_lines(lines)
        room = self.app.size.height - _FRAME_ROWS - len(lines)
        least = max(_PANEL_ROWS_MIN, room // 4)
        rows = max(room - max(len(self._entries), 1), least)
        if rows != self._rows_below:
            self._rows_below = rows
            self._fit_drawing()
        self.titles.show(screen_titles(self._columns, self.app.size.width))
        self._show_panel()
        self.show_frame()

    def _row_context(self) -> RowContext:
        return RowContext(self.console.live.clock_us, self.console.glyphs, label=shown_key)

    def _row(self, path: str, columns: int) -> Line:
        return present.fleet_row(self._entries[path], self._columns, self._row_context(), columns)

    @property
    def entry(self) -> FleetEntry | None:
        """The state file under the cursor."""
        return self._entries.get(self.table.cursor_key or "")

    # --- The flow under the cursor -----------------------------------------------------------------------------------

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Follow the run of another row once the cursor rests; a message was about the row before."""
        before, self._row_at_cursor = self._row_at_cursor, self.table.cursor_key
        if before not in (None, self._row_at_cursor):
            self.key_bar.clear_message()
        self._follow_cursor()

    def _follow_cursor(self) -> None:
        if self.fleet.shown_path != self.table.cursor_key:
            self._forget()
            self.fleet.leave_file()
            self.rest_timer.start()
        self._show_panel()
        self.show_key_bar()

    def _forget(self) -> None:
        self._graph, self._grouped, self._causes, self._run_problem = None, None, (), ""
        self.texts.show_task(None)

    def on_cursor_rest(self) -> None:
        """Follow the run under the cursor."""
        entry = self.entry
        has_run = entry is not None and entry.file_row.problem is None and entry.run is not None
        if entry is not None and has_run and self.fleet.shown_path != entry.file_row.path:
            self.fleet.show_file(entry.file_row.path, present.run_to_show(entry))

    def show_run_problem(self, path: str, sentence: str) -> None:
        """Say why the run of a row cannot be read."""
        if path == self.table.cursor_key:
            self._run_problem = sentence
            self._show_panel()

    def board_replaced(self, board: Board) -> None:
        """Draw the run under the cursor."""
        self.names = TaskNames(board.projection.tasks)
        self._graph = Graph(board, self._label_width, ZoomStep.DRAWING)
        self._find_causes(board)
        self._fit_drawing()
        self._show_panel()
        self.show_key_bar()

    def _label_width(self, name: str) -> int:
        size = LABEL_SIZES[0] if self._graph is None else self._graph.drawings.label_size
        return label_width(name, self.run_context(), size)

    def _find_causes(self, board: Board) -> None:
        """The causes of the run, the one that the row names first."""
        entry = self.entry
        named = {need.fingerprint for need in alarms_of(entry)[:1]} if entry is not None else set()
        self._causes = sorted(Inbox(board, names_commands=False).causes(), key=lambda one: one.fingerprint not in named)
        self.console.selected = self._causes[0].tasks[0] if self._causes else board.starting_task()
        if self._graph is not None and self.console.selected is not None:
            self._graph.select(self.console.selected)

    def on_news(self, news: BoardUpdate) -> None:
        """Draw what changed."""
        board, graph = self.console.live.board, self._graph
        if board is None or graph is None:
            return
        graph.apply(news.delta)
        if news.delta.are_problems_changed or news.delta.tasks & {*self.target_tasks()}:
            self._find_causes(board)
            self.show_key_bar()
        self._show_panel()

    @property
    def _text_lines(self) -> list[Line]:
        entry, board = self.entry, self.console.live.board
        if entry is None:
            return []
        if board is None or self._graph is None:
            now_us = self.console.live.clock_us + entry.file_row.clock_offset_us
            return present.entry_lines(entry, self._run_problem, now_us, self._panel_columns)
        return present.run_lines(entry, self._causes, self.run_context(), self._panel_columns)

    def _fit_drawing(self) -> None:
        """Choose the largest drawing that leaves room for the cause: of the tasks, else of the groups."""
        self._grouped = None
        if self._graph is not None:
            rows, self._is_beside = self._rows_below - len(self._text_lines) - 1, self.app.size.width >= _BESIDE_FROM
            self._is_beside = self._is_beside and self._choose_drawing(self._graph, rows, _WHOLE_SIZES) != 1
            if not self._is_beside:
                spare = _TEXTS_ROWS if rows > 2 * _TEXTS_ROWS else 0
                rows -= self._choose_drawing(self._graph, rows - spare, _SIZES) + (spare > 0)
            self._divide_below(self._rows_below if self._is_beside else self._rows_below - rows)
        elif self._rows_below != self.panel.row_count + self.texts.rows:
            self._divide_below(self._rows_below)

    def _divide_below(self, panel_rows: int) -> None:
        """Give the rows that the drawing leaves, or the half of the screen beside it, to what the task wrote."""
        rest = self._rows_below - panel_rows * (not self._is_beside)
        self.below.styles.layout = "horizontal" if self._is_beside else "vertical"
        self.panel.styles.width = self._panel_columns
        self.texts.display = rest >= _TEXTS_ROWS_MIN
        self.texts.styles.height = rest
        self.panel.set_row_count(panel_rows if self.texts.display else self._rows_below)

    @property
    def _panel_columns(self) -> int:
        return self.app.size.width // (2 if self._is_beside else 1)

    def _choose_drawing(self, graph: Graph, rows: int, sizes: Sequence[LabelSize]) -> int:
        """Choose what is drawn in ``rows``; return how many it takes. 1: nothing has room."""
        columns, count = self._panel_columns, len(graph.dag)
        if count == 1:
            return 0  # its facts are said, and it has no edge
        if count <= GRAPH_MAX and fits(graph, columns - _MARGIN, rows, sizes):
            return graph.height
        found = group_drawing(graph, self.run_context(), columns) if count <= _GROUPED_MAX else None
        if found is not None and found.drawing.width < columns and found.drawing.height * GROUP_ROWS <= rows:
            self._grouped = found
            return found.drawing.height * GROUP_ROWS
        return 1

    def _drawn_lines(self, rows: int) -> list[Line]:
        graph, grouped, columns, context = self._graph, self._grouped, self._panel_columns, self.run_context()
        assert graph is not None
        if len(graph.dag) == 1:
            return []
        height = graph.height if grouped is None else grouped.drawing.height * GROUP_ROWS
        if height > rows:
            return [present.counts_bar(context, columns)]
        ends = -_MARGIN, columns - _MARGIN
        if grouped is not None:
            return [group_map_row(graph, grouped, y, *ends, context) for y in range(height)]
        return [drawing_row(graph, y, *ends, context, Highlight()) for y in range(height)]

    def _show_panel(self) -> None:
        """Show the run under the cursor: its cause, then its drawing."""
        entry, glyphs, rows = self.entry, self.console.glyphs, self.panel.row_count
        below = self.table.hidden_rows[1]
        more = f" {glyphs.rows_below} {number(below)} more {glyphs.rule * 2}" if below else ""
        self.name_bar.show(
            present.name_line(entry, glyphs, self.app.size.width - len(more) - 1),
            [Piece(more, Role.DIM)] if more else [],
        )
        lines = self._text_lines
        if self._graph is not None and self.console.live.board is not None and rows > len(lines) + 1:
            lines = [*lines, [], *self._drawn_lines(rows - len(lines) - 1)]
        if entry is not None:
            nights, style, free = entry.file_row.nights, latest_style(entry), rows - len(lines)
            lines = [*lines, *night_lines(nights, style, self._panel_columns, free, glyphs)]
        self.panel.show_lines(lines)
        if self.texts.display and self._graph is not None:
            self.texts.show_task(self.console.selected)
            read_page(self, self.texts)

    # --- The frame --------------------------------------------------------------------------------------------------

    def show_frame(self) -> None:
        """Update heading, rules and keys."""
        shown, place, columns = len(self._entries), self.fleet.place, self.app.size.width
        left, right = present.fleet_heading(
            self._all, shown, place, self.filter_text, self.order, self.console.glyphs, columns
        )
        if not self._is_read:
            left, right = [Piece(f" reading the state files of {self.fleet.place} ...", Role.DIM)], []
        if self.problem:
            right = [Piece(f"{one_line(self.problem)} ", Role.WARNING)]
        self.show_heading(left, right)

    def views_beside(self, rule: Rule) -> list[LineView]:
        """The rule with the name of the flow says what is below the rows of the list."""
        return [one for one in super().views_beside(rule) if rule is self.upper_rule or one is not self.table]

    def on_line_view_hidden_rows_changed(self) -> None:  # Textual calls the handler of each class
        self._show_panel()

    @property
    def back_label(self) -> str:
        return ""

    def tick(self, now_us: int) -> None:
        """Update ages and countdowns."""
        self.table.rows_changed([*self._entries])
        self.texts.expire_running()
        self._show_panel()

    def on_shown(self) -> None:
        self.table.focus()

    def on_resize(self, event: events.Resize) -> None:
        """Divide the rows anew."""
        self._show_order()
        self._fit_drawing()
        self._show_panel()

    def legend(self) -> Sequence[Line]:
        """The signs of the list beside those of states."""
        return present.legend(self.console.glyphs)

    # --- Keys -------------------------------------------------------------------------------------------------------

    @property
    def selection_problem(self) -> str:
        entry = self.entry
        if entry is None:
            return "nothing is selected"
        if entry.file_row.problem is not None:
            return one_line(entry.file_row.problem)
        if self._causes:
            return f"it waits for your yes or no: {shown_key('open')} opens it"
        if self._graph is not None:
            return "nothing here failed or waits for a decision"
        return "there is no run of it" if entry.run is None else "its run is being read"

    def target_tasks(self) -> Sequence[str]:
        """The tasks of the cause that the row names; none of an approval, which is answered in its run."""
        names = self._causes[0].tasks if self._causes else ()
        return () if names and names[0] in self.board.asked else names

    @property
    def awaits_answer(self) -> bool:
        """False: ``n`` only moves here, and an approval is answered in its run."""
        return False

    def subject(self) -> object:
        """The run under the cursor."""
        board = self.console.live.board
        return None if board is None else board.summary

    def is_offered(self, action: Action) -> bool:
        """Whether an action can do anything for the row."""
        entry, board = self.entry, self.console.live.board
        if action.name in ("requeue", "skip"):
            names = self.target_tasks()
            return bool(names) and super().is_offered(action)
        if action.name in ("pause", "resume_here", "ack_run", "postpone"):
            mends = why_of(entry, self.console.live.clock_us).mends if entry is not None else ()
            is_running = board is not None and board.projection.run.ended_at is None and self.console.runner.is_alive
            may_act = action.name != "resume_here" or self.console.launch.state_path is not None
            return (action.name in mends and may_act) or (action.name == "pause" and is_running)
        if action.name == "schedule":
            return entry is not None and not is_remote(entry.file_row.path)
        return super().is_offered(action)

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open the run under the cursor."""
        self.open_in(ScreenName.GRAPH)

    def open_in(self, view: ScreenName) -> None:
        """Open a view of the run under the cursor."""
        entry = self.entry
        if entry is not None and entry.file_row.problem is None:
            self.fleet.open_file(entry.file_row.path, present.run_to_show(entry), view)
        elif entry is not None:
            self.console.show_warning(one_line(entry.file_row.problem or ""))

    def change_order(self) -> None:
        """Change to the next order."""
        self.order = next_order(self.order)
        self._show_order()

    async def on_bar_cell_clicked(self, message: Bar.CellClicked) -> None:
        """A click above the list, on the right, is the key of its order."""
        if message.bar is self.header and message.on_right:
            self.change_order()

    def filter_changed(self, text: str) -> None:
        """Show only the files that match."""
        self._show_order()

    def go_to_next(self, step: int) -> None:
        """To the next match, without a filter to the next file that needs a human."""
        needs_human = lambda path: self._entries[path].attention_count > 0  # noqa: E731
        self.go_to_row(self.table, step, needs_human, "no other flow needs a human")
