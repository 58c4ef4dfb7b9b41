"""The frame of every screen: header, tabs, rule, content, rule, footer.

How to write a screen
---------------------
Subclass ``ConsoleScreen``, set ``PLACE`` and ``BINDINGS = bindings_of(PLACE)``, and implement ``content()``. The app
maps the keys 1 to 8 to screen classes. ``keys/actions.py`` maps each key to a method of the focused widget, else of the
screen, or of a controller of the app.

- **Board**: ``self.board`` is the followed run; ``self.console.live`` follows it (``live.now_us``, ``live.status``,
  ``live.session`` to read logs and lists, ``live.forecast``).
- **Updates**: ``on_news(news)`` is called after each update of the board, also while the screen is hidden: update
  models there and refresh only the rows that changed. ``board_replaced(board)`` is called before it for a new board.
- **Time**: ``tick(now_us)`` is called every second for the visible screen, to update countdowns.
- **Visibility**: ``on_shown()`` is called whenever the screen comes to the front: apply ``console.selected`` there, and
  set it when the cursor moves, because all screens share one selected task.
- **Actions**: ``target_tasks()`` returns the tasks for ``r s x b`` (marked ones, or the selected one), ``subject()``
  another item under the cursor. An action changes nothing on the screen; its event arrives in ``on_news``.
- **Reads**: ``run_latest(self, self._read, "group")``; never block the loop.
- **Past**: ``console.time_travel`` moves the board to another time, with ``on_news``, ``tick`` and then
  ``on_seek(seq)``. Actions are disabled there. ``Esc`` first returns to the present; otherwise it calls ``back()``.
- **Messages**: ``console.show_line(line, seconds)`` in the key bar.
- **Filter**: ``/`` opens the prompt and calls ``filter_changed(text)`` at every key; ``""`` clears the filter.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

from ...engine.domain.acts import act_refusal
from ...engine.domain.states import TaskState
from ...engine.errors import RedriveError
from ..feed.live_run import BoardUpdate
from ..keys.actions import SUSPEND_KEY, VIEWS, Action, ScreenName, footer_of
from ..model.board import Board
from ..model.breaker_view import blocking_downstream
from ..model.columns import COLUMNS
from ..model.filters import describe_state_filter, next_state_filter
from ..present.header import (
    Tab,
    tab_at,
    tabs_line,
)
from ..present.replay import ReplayPosition, describe_last_event
from ..terminal.capabilities import SMALLEST_SIZE
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar, KeyBar, KeyHint, Rule
from ..widgets.drag_selection import DragSelection
from ..widgets.footer import Footer
from ..widgets.line_view import LineView
from ..widgets.table import MarkRangeToggled, VirtualTable
from ..widgets.text_input import TextField
from . import frame
from .console import Console, errors_shown

JUMP_SECONDS = 0.7  # after a row left from under the cursor


def run_latest(node: DOMNode, work: Callable[[], Awaitable[None]], group: str, *, shows_errors: bool = True) -> None:
    """Run ``work`` in the background; a later call of the same group replaces it.

    A RedriveError is shown as a message, or left to the header; any other error ends the console.
    """

    async def guarded() -> None:
        with errors_shown(cast(Console, node.app)) if shows_errors else suppress(RedriveError):
            await work()

    node.run_worker(cast(Any, guarded), group=group, exclusive=True)  # the stubs know only work that returns something


class TooSmall(LineView):
    """The message of a terminal that is too small."""

    DEFAULT_CSS = """
    TooSmall { display: none; }
    """

    def line(self, y: int) -> Line:
        """Say in the first row which size is needed."""
        columns, rows = SMALLEST_SIZE
        return [Piece(f"needs {columns}x{rows}, has {self.app.size.width}x{self.app.size.height}")] if y == 0 else []


class ConsoleScreen(Screen[None]):
    """See the module."""

    PLACE: ClassVar[ScreenName]
    AUTO_FOCUS = ""  # each screen says where keys go
    DEFAULT_CSS = """
    ConsoleScreen { layout: vertical; overflow: hidden; }
    ConsoleScreen.-small > * { display: none; }
    ConsoleScreen.-small > TooSmall { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        glyphs = self.console.glyphs
        self.header = Bar(2, id="header")
        self.upper_rule = Rule(glyphs.rule, id="upper")
        self.lower_rule = Rule(glyphs.rule, id="lower")
        self.footer_widget = Footer(id="foot")
        self.filter_text = ""
        self._row_removed_at = float("-inf")

    # --- For subclasses -------------------------------------------------------------------------------------------

    @abstractmethod
    def content(self) -> Iterable[Widget]:
        """Yield the widgets between the rules, from top to bottom."""

    def widgets_below(self) -> Iterable[Widget]:
        """Yield the widgets between the lower rule and the footer."""
        return ()

    def board_replaced(self, board: Board) -> None:
        """Show a new board: of another run, of the same run read again, or the first one."""

    def on_news(self, news: BoardUpdate) -> None:
        """Update the models after a change of the board; also called while the screen is hidden."""

    def tick(self, now_us: int) -> None:
        """Update ages and countdowns, once a second; called for the visible screen only."""

    def on_shown(self) -> None:
        """Show the selection of the other screens; called when the screen comes to the front."""

    def on_other_runs(self) -> None:
        """Update what shows the other runs that need a human."""

    @property
    def selection_problem(self) -> str:
        """The message for an act without a selected target."""
        return "nothing is selected"

    def on_seek(self, seq: int) -> None:
        """Show the run as of the past event ``seq``, which the board has now."""

    def target_tasks(self) -> Sequence[str]:
        """The tasks that an action applies to."""
        return () if self.console.selected is None else (self.console.selected,)

    def subject(self) -> object:
        """The item under the cursor if it is not a task: a breaker, a page, a group of rows, an event."""
        return None

    def on_row_removed(self) -> None:
        """Note that an update has put another row under the cursor."""
        self._row_removed_at = asyncio.get_running_loop().time()

    def has_cursor_jumped(self) -> bool:
        """Whether the row under the cursor has just changed: a key pressed now was meant for the previous row."""
        return asyncio.get_running_loop().time() - self._row_removed_at < JUMP_SECONDS

    def on_task_acted(self, name: str) -> None:
        """Remove the mark of a task after an act on it."""

    def filter_changed(self, text: str) -> None:
        """Show only what matches."""

    def next_pane(self) -> None:
        """Switch between panes."""
        self.console.show_message("this screen has one pane")

    def columns_changed(self) -> None:
        """Show the chosen columns of the list."""
        for table in self.query(VirtualTable):
            table.refresh()

    @property
    def guarded_keys(self) -> frozenset[str]:
        """The keys that change the run here; the same key may only navigate on another screen."""
        return self.console.keymap.guarded_keys(self.PLACE) | {SUSPEND_KEY}

    # --- What is at hand ------------------------------------------------------------------------------------------

    @property
    def key_bar(self) -> KeyBar:
        """The key bar, which also shows messages."""
        return self.footer_widget.key_bar

    @property
    def console(self) -> Console:
        """The app, with the state that screens share."""
        return cast(Console, self.app)

    @property
    def board(self) -> Board:
        """The board of the followed run. Only the list of runs works without one."""
        board = self.console.live.board
        assert board is not None
        return board

    # --- The frame ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Yield header, tabs, rule, content, rule and keys."""
        yield TooSmall()
        yield self.header
        yield self.upper_rule
        yield from self.content()
        yield self.lower_rule
        yield from self.widgets_below()
        yield self.footer_widget

    def on_mount(self) -> None:
        """Show the board if it was loaded before the screen was mounted."""
        board = self.console.live.board
        if board is not None:
            self.board_replaced(board)

    def on_screen_resume(self) -> None:
        """Update the frame and call ``on_shown``."""
        self.show_frame()
        self.on_shown()

    def on_resize(self, event: events.Resize) -> None:
        """Render the frame for the new width."""
        columns, rows = SMALLEST_SIZE
        self.set_class(event.size.width < columns or event.size.height < rows, "-small")
        self.show_frame()

    def show_frame(self) -> None:
        """Update header, tabs and key bar; cheap if nothing changed."""
        console, columns = self.console, self.app.size.width
        self.header.show(frame.top_line(console, columns))
        self.header.show(tabs_line(self._tabs(), frame.status_texts(console, columns), columns), row=1)
        sign, role = frame.rule_style(console)
        for rule in (self.upper_rule, self.lower_rule):
            rule.show(sign, {**self.hidden_row_marks(rule), **self.rule_marks(upper=rule is self.upper_rule)}, role)
        self.show_key_bar()

    def _tabs(self) -> list[Tab]:
        return frame.tabs_of(self.console, self.view)

    def on_drag_selection_copied(self, message: DragSelection.Copied) -> None:
        """Say that a text was copied by dragging over it."""
        lines = message.text.count("\n") + 1
        what = one_line(message.text) if lines == 1 else f"{lines} lines"
        self.console.show_message(f"sent to the terminal's clipboard: {what}")

    async def on_bar_cell_clicked(self, message: Bar.CellClicked) -> None:
        """Switch to the tab that was clicked, or change the order or the columns that were clicked."""
        if message.bar is self.header and message.row == 1:
            place = tab_at(self.header.line(1), self._tabs(), message.x)
            if place is not None:
                self.console.switch_view(VIEWS[place])
        elif message.bar.id == "heading" and message.row == 0 and message.on_right:
            change_order: Callable[[], None] | None = getattr(self, "change_order", None)
            if change_order is not None:
                change_order()
        elif message.bar.id == "heading" and message.row == 0 and self.PLACE.value in COLUMNS:
            await self.app.run_action("app.handle('columns')")

    @property
    def view(self) -> ScreenName:
        """The active tab."""
        return self.PLACE

    def hidden_row_marks(self, rule: Rule) -> dict[int, str]:
        """What a rule says about hidden rows of the views beside it."""
        views = [one for one in self.walk_children() if isinstance(one, LineView) and one.display]
        rules = [one for one in views if isinstance(one, Rule)]
        return frame.hidden_row_marks(rule, rules, views, self.console.glyphs)

    def on_line_view_hidden_rows_changed(self) -> None:
        """A view was scrolled, or has more or fewer rows."""
        self.show_frame()

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """Marks on a rule: column -> sign."""
        return {}

    def show_key_bar(self) -> None:
        """Show the keys that act now, or why none does."""
        position = self.console.time_travel.position
        if position is None:
            self.key_bar.show(self.hints(), frame.lock_sentence(self.console))
        else:
            self.key_bar.show(frame.past_hints(self.console, self.PLACE) or self.hints(), self.past_summary(position))

    def hints(self) -> list[KeyHint]:
        """The key hints of the footer, most important first."""
        label = self.console.keymap.label
        hints = [(label(action.name), action.label) for action in self.footer_actions() if self.is_offered(action)]
        if self.back_label:
            hints.insert(0, (label("back"), self.back_label))
        return [(key, word) for key, word in hints if key]

    def is_offered(self, action: Action) -> bool:
        """Whether an action can do anything to what is selected."""
        board, name = self.console.live.board, self.console.selected
        row = board.projection.tasks.get(name) if board is not None and name is not None else None
        if action.name != "skip" or row is None or not self.acts_on_one:
            return True
        is_lost = row.state is TaskState.RUNNING and not self.console.runner.is_alive
        return is_lost or act_refusal("skip", row.state) is None

    @property
    def acts_on_one(self) -> bool:
        """Whether an act now is about the selected task alone; asked in every frame."""
        return True

    def footer_actions(self) -> Sequence[Action]:
        """The actions that the footer lists."""
        return footer_of(self.PLACE)

    @property
    def back_label(self) -> str:
        """The label of the target of Esc; empty if Esc leads nowhere."""
        bottom = self.app.screen_stack[:1]  # none while the console leaves
        return frame.back_label(self.console, is_top_level=bottom == [self])

    def past_summary(self, position: ReplayPosition) -> str:
        """Describe the last event at that time; screens without time travel say what they show instead."""
        return describe_last_event(position.event, self.app.size.width)

    def on_empty_table_key_pressed(self) -> None:
        """Say why the key did nothing."""
        self.console.show_message("the list is empty")

    def on_mark_range_toggled(self, message: MarkRangeToggled) -> None:
        """Say what the next moves mark."""
        key = self.console.keymap.label("mark_range")
        words = f"moves mark rows from here on; {key} ends the range" if message.is_begun else "the range ends here"
        self.console.show_message(words)

    # --- The filter -----------------------------------------------------------------------------------------------

    def open_filter_input(self) -> None:
        """Open the filter prompt; the list updates at every key."""
        self.footer_widget.open_prompt("/", self.filter_text, hint="words that must match, !word that must not")

    def use_filter(self, text: str) -> None:
        """Set the filter, as if it had been typed."""
        self._apply_filter(text)

    def cycle_state_filter(self) -> None:
        """Show only problems, then only what runs, then only what waits, then everything."""
        self._apply_filter(next_state_filter(self.filter_text))
        self.console.show_message(describe_state_filter(self.filter_text))

    def on_text_field_changed(self, message: TextField.Changed) -> None:
        """Update the list."""
        if message.field is self.footer_widget.prompt:
            self._apply_filter(message.text)

    def on_text_field_submitted(self, message: TextField.Submitted) -> None:
        """Keep the filter and return to the list."""
        if message.field is self.footer_widget.prompt:
            self._apply_filter(message.text)
            self.footer_widget.close_prompt()

    def on_text_field_cancelled(self, message: TextField.Cancelled) -> None:
        """Clear the filter."""
        if message.field is self.footer_widget.prompt:
            self.footer_widget.close_prompt()
            self._apply_filter("")

    def _apply_filter(self, text: str) -> None:
        if text != self.filter_text:
            self.filter_text = text
            self.filter_changed(text)

    def go_back(self) -> None:
        """Return to the present, else go one step back."""
        if self.console.time_travel.return_to_present():
            self.key_bar.clear_message()
        else:
            self.back()

    def back(self) -> None:
        """Clear the filter; without a filter go to the previous screen, from the top level to the list of files."""
        if self.filter_text:
            self._apply_filter("")
        elif not self.console.go_back():
            self.console.return_to_fleet()

    # --- The selected task ----------------------------------------------------------------------------------------

    def select_task(self) -> bool:
        """Select the task of the row under the cursor. False if the row has no task."""
        return True

    def select_one_of(self, names: Sequence[str]) -> bool:
        """Select the first of ``names``, unless one of them is selected. False if ``names`` is empty."""
        if names and self.console.selected not in names:
            self.console.selected = names[0]
        return bool(names)

    def show_explanation(self) -> None:
        """Say in one sentence why the selected task is not running."""
        name = self.console.selected if self.select_task() else None
        if name is not None:
            now_us, console = self.console.live.now_us, self.console
            line: Line = [Piece(one_line(f"{name}: {self.board.explain(name, now_us, console.runner)}"))]
            if blocking_downstream(self.board, name, now_us) is not None:
                key = Piece(console.keymap.label("view_systems"), Role.KEY)
                line += [Piece(f" {console.glyphs.dot} ", Role.DIM), key, Piece(" shows it")]
            console.show_line(line, seconds=20, about=name)

    def show_details(self) -> None:
        """Show everything about the selected task."""
        if self.select_task() and self.console.selected is not None:
            self.console.show_details()

    def show_output(self) -> None:
        """Show the log of the selected task."""
        if self.select_task():
            self.console.open_view(ScreenName.LOG)
