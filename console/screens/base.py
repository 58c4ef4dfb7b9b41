"""The frame that every screen shares: header, tabs, a rule, the content, a rule, and the line of keys.

How to write a screen
---------------------
Subclass ``ConsoleScreen``, set ``PLACE`` and ``BINDINGS = bindings_of(PLACE)``, and give ``content()``; ``app.SCREENS``
says which class is shown by which of the keys 1 to 7 (the name of a view is the value of its ``Place``). ``actions.py``
says what a key calls: a method of the focused widget, else of the screen, or of what the app holds.

- **The board**: ``self.board`` is the run on the screen, ``self.console.live`` follows it (``live.now_us``,
  ``live.status``, ``live.session`` to read logs and lists, ``live.forecast``).
- **News**: ``take(news)`` is called after the board was brought forward, also while the screen is hidden: keep models
  up to date there. Name to widgets the rows that changed; never repaint everything. ``board_replaced(board)`` comes
  first, and whenever another run or a new picture is shown.
- **Time**: ``tick(now_us)`` is called on each whole second, for the screen that is seen alone: countdowns only.
- **Being seen**: ``shown()`` is called whenever the screen comes to the front; take over ``console.selected`` there,
  and set it when the cursor moves: the selected task is the same on every screen.
- **Acts**: ``chosen()`` names the tasks that the keys ``r s x b`` mean (marked ones, or the selected one),
  ``subject()`` what other things are under the cursor. Nothing is changed on the screen by an act: its event comes back
  through ``take``.
- **Reading** through the session: ``run_latest(self, self._read, "group")``; never block, never paint from elsewhere.
- **The past**: ``console.rewind`` turns the board to another moment, told as news like any other, with a ``tick``;
  ``turned(seq)`` follows. Nothing may be acted on there. ``Esc`` returns to the present before it means anything else:
  what a screen does with it is its ``back()``.
- **Words to the operator**: ``console.say(line, seconds)`` in the line of keys.
- **Filter**: ``/`` opens a prompt here and calls ``filter_changed(text)`` at every key; ``""`` when it is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

from ..feed.live_run import BoardUpdate
from ..keys.actions import BY_NAME, SUSPEND_KEY, VIEWS, Action, ScreenName, footer_of
from ..model.board import Board
from ..model.breaker_view import blocking_downstream
from ..present.downstreams import compact
from ..present.header import Tab, executor_gone_line, health_lines, run_line, storage_line, tab_at, tabs_line
from ..present.replay import ReplayPosition, describe_last_event, replay_line
from ..terminal.capabilities import SMALLEST_SIZE
from ..text.pieces import Line, Piece, Role, plain
from ..text.text import one_line
from ..widgets.bars import Bar, KeyBar, KeyHint, Rule
from ..widgets.footer import Footer
from ..widgets.line_view import LineView
from ..widgets.text_input import TextField
from .console import Console

JUMP_SECONDS = 0.7  # after a row left from under the cursor

#: Actions that go through the past, each with the one that goes the other way.
_PAST_PAIRS = (
    ("step_back", "step_forward", "step"),
    ("trouble_back", "trouble_forward", "trouble"),
    ("slower", "faster", "play"),
)


def run_latest(node: DOMNode, work: Callable[[], Awaitable[None]], group: str) -> None:
    """Do something that waits (reads, asks) beside the screen; a later call of the same group takes its place.

    It must handle RedriveError; any other error ends the console.
    """
    node.run_worker(cast(Any, work), group=group, exclusive=True)  # the stubs know only work that returns something


class TooSmall(LineView):
    """What is said where nothing else fits."""

    DEFAULT_CSS = """
    TooSmall { display: none; }
    """

    def line(self, y: int) -> Line:
        """The size that is needed, in the first row."""
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

    def content(self) -> Iterable[Widget]:
        """The widgets between the rules, from top to bottom."""
        raise NotImplementedError  # every screen says what it shows

    def widgets_below(self) -> Iterable[Widget]:
        """What stands between the lower rule and the keys."""
        return ()

    def board_replaced(self, board: Board) -> None:
        """A new picture: another run, the same one read again, or the first one."""

    def on_news(self, news: BoardUpdate) -> None:
        """The board has been brought forward."""

    def tick(self, now_us: int) -> None:
        """A second has passed while the screen is seen."""

    def on_shown(self) -> None:
        """The screen is in front."""

    def on_seek(self, seq: int) -> None:
        """The board shows the moment after the event ``seq`` of the past."""

    def target_tasks(self) -> Sequence[str]:
        """The tasks that an act means."""
        return () if self.console.selected is None else (self.console.selected,)

    def subject(self) -> object:
        """What is under the cursor, if it is no task: a breaker, a page, a group of rows, an event."""
        return None

    def on_row_removed(self) -> None:
        """The row under the cursor has left by itself, and another one is there."""
        self._row_removed_at = asyncio.get_running_loop().time()

    def has_cursor_jumped(self) -> bool:
        """Whether a row has just left from under the cursor: what is typed was meant for it."""
        return asyncio.get_running_loop().time() - self._row_removed_at < JUMP_SECONDS

    def on_task_acted(self, name: str) -> None:
        """An act on a task was done: take its mark away, so that nobody does it twice."""

    def filter_changed(self, text: str) -> None:
        """Show only what matches."""

    @property
    def guarded_keys(self) -> frozenset[str]:
        """The keys that do more than look here: the same key may only look on another screen."""
        return self.console.keymap.guarded_keys(self.PLACE) | {SUSPEND_KEY}

    # --- What is at hand ------------------------------------------------------------------------------------------

    @property
    def key_bar(self) -> KeyBar:
        """The keys at the foot, and words to the operator."""
        return self.footer_widget.key_bar

    @property
    def console(self) -> Console:
        """The app, with everything that screens share."""
        return cast(Console, self.app)

    @property
    def board(self) -> Board:
        """The run that is shown. Only the list of runs is shown without one."""
        board = self.console.live.board
        assert board is not None
        return board

    # --- The frame ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Header, tabs, rule, content, rule, keys."""
        yield TooSmall()
        yield self.header
        yield self.upper_rule
        yield from self.content()
        yield self.lower_rule
        yield from self.widgets_below()
        yield self.footer_widget

    def on_mount(self) -> None:
        """The picture may have come before the screen."""
        board = self.console.live.board
        if board is not None:
            self.board_replaced(board)

    def on_screen_resume(self) -> None:
        """In front again, or for the first time."""
        self.show_frame()
        self.on_shown()

    def on_resize(self, event: events.Resize) -> None:
        """The lines of the frame are made for a width."""
        columns, rows = SMALLEST_SIZE
        self.set_class(event.size.width < columns or event.size.height < rows, "-small")
        self.show_frame()

    def show_frame(self) -> None:
        """Header, tabs and keys, as of now. Cheap, and silent if nothing has changed."""
        console, size = self.console, self.app.size.width
        board, health, now = console.live.board, console.health, console.live.now_us
        visit = console.time_travel.position
        if board is not None and visit is not None:
            key = console.keymap.label("back")
            top = replay_line(visit, board, console.address, key, size, console.glyphs)
        elif board is not None:
            forecast = console.live.forecast
            top = run_line(board, console.address, forecast, now, size, console.glyphs)
        else:
            top = [Piece(" "), Piece(one_line(console.address), Role.TITLE), Piece(f"  {console.loading_message}")]
        self.header.show(top)
        rights = health_lines(board, health, console.armed_seconds, size)
        if visit is not None and not health.is_stale:
            rights = [[]]  # how the executor is by now says nothing of that moment
        self.header.show(tabs_line(self._tabs(), rights, size), row=1)
        self._show_rules(health.is_stale, visit is not None)
        self._show_key_bar()

    def _tabs(self) -> list[Tab]:
        console, board = self.console, self.console.live.board
        dead = board.dead_letters if board is not None else 0
        counts = {ScreenName.INBOX: dead, ScreenName.DOWNSTREAMS: console.attention_count}
        badges = {view: f"{console.glyphs.dead}{compact(count)}" for view, count in counts.items() if count}
        return [
            Tab(
                console.keymap.label(f"view_{view.value}"),
                view.value.capitalize(),
                view is self.view,
                badges.get(view, ""),
            )
            for view in VIEWS
        ]

    def on_bar_clicked(self, message: Bar.Clicked) -> None:
        """A click on a tab is its key."""
        if message.bar is self.header and message.row == 1:
            place = tab_at(self.header.line(1), self._tabs(), message.x)
            if place is not None:
                self.console.switch_view(VIEWS[place])

    @property
    def view(self) -> ScreenName:
        """Which tab it belongs to."""
        return self.PLACE

    def _show_rules(self, stale: bool, past: bool) -> None:
        glyphs = self.console.glyphs
        sign = glyphs.rule_past if past else glyphs.rule_stale if stale else glyphs.rule
        role = Role.NOW if past else Role.WARNING if stale else Role.RULE
        self.upper_rule.show(sign, self.rule_marks(upper=True), role)
        self.lower_rule.show(sign, self.rule_marks(upper=False), role)

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """Where something hangs from a rule: column -> sign."""
        return {}

    def _show_key_bar(self) -> None:
        console = self.console
        visit = console.time_travel.position
        if visit is not None:
            self.key_bar.show(self._past_hints() or self.hints(), self.past_summary(visit))
            return
        locked = console.lock_reason
        board = console.live.board
        if locked is None and board is not None:
            key = console.keymap.label("resume_here") if console.launch.state_path is not None else ""
            health = console.health
            locked = plain(storage_line(health, console.address) or executor_gone_line(board, health, key)) or None
        self.key_bar.show(self.hints(), locked)

    def hints(self) -> list[KeyHint]:
        """The keys at the foot, the most wanted first."""
        label = self.console.keymap.label
        hints = [(label(action.name), action.label) for action in self.footer_actions()]
        if self._back_label:
            hints.insert(0, (label("back"), self._back_label))
        return [(key, word) for key, word in hints if key]

    def footer_actions(self) -> Sequence[Action]:
        """What can be done here, as the foot names it."""
        return footer_of(self.PLACE)

    @property
    def _back_label(self) -> str:
        """Where Esc leads to."""
        if self.app.screen_stack[0] is not self:
            return "back"
        view = self.console.previous_view
        return f"back to {view.value}" if view is not None else ""

    def _past_hints(self) -> list[KeyHint]:
        label = self.console.keymap.label
        here = [pair for pair in _PAST_PAIRS if self.PLACE in BY_NAME[pair[0]].screens]
        return [(f"{label(one)} {label(other)}", word) for one, other, word in here if label(one) and label(other)]

    def past_summary(self, visit: ReplayPosition) -> str:
        """What happened last by then; of a screen that does not go there, what it shows instead."""
        return describe_last_event(visit.event, self.app.size.width)

    # --- The filter -----------------------------------------------------------------------------------------------

    def ask_filter(self) -> None:
        """Type words; the list follows at every key."""
        self.footer_widget.open_prompt("/", self.filter_text, hint="words that must match, !word that must not")

    def on_text_field_changed(self, message: TextField.Changed) -> None:
        """The list follows."""
        if message.field is self.footer_widget.prompt:
            self._apply_filter(message.text)

    def on_text_field_submitted(self, message: TextField.Submitted) -> None:
        """Keep the filter, go back to the list."""
        if message.field is self.footer_widget.prompt:
            self._apply_filter(message.text)
            self.footer_widget.close_prompt()

    def on_text_field_cancelled(self, message: TextField.Cancelled) -> None:
        """No filter."""
        if message.field is self.footer_widget.prompt:
            self.footer_widget.close_prompt()
            self._apply_filter("")

    def _apply_filter(self, text: str) -> None:
        if text != self.filter_text:
            self.filter_text = text
            self.filter_changed(text)

    def go_back(self) -> None:
        """Back to the present, else one step back."""
        if self.console.time_travel.return_to_present():
            self.key_bar.clear_message()
        else:
            self.back()

    def back(self) -> None:
        """Clear the filter; then go back to where one came from."""
        if self.filter_text:
            self._apply_filter("")
        else:
            self.console.go_back()

    # --- The selected task ----------------------------------------------------------------------------------------

    def select_task(self) -> bool:
        """Select the task that the row under the cursor is about, to show more of it. False: it is about none."""
        return True

    def select_one_of(self, names: Sequence[str]) -> bool:
        """Select the first of these, unless one of them is selected. False: there are none."""
        if names and self.console.selected not in names:
            self.console.selected = names[0]
        return bool(names)

    def show_why(self) -> None:
        """Say in one sentence why the selected task is not running."""
        name = self.console.selected if self.select_task() else None
        if name is not None:
            now_us, console = self.console.live.now_us, self.console
            line: Line = [Piece(one_line(f"{name}: {self.board.explain(name, now_us, console.executor_gone_at)}"))]
            if blocking_downstream(self.board, name, now_us) is not None:
                key = Piece(console.keymap.label("view_systems"), Role.KEY)
                line += [Piece(f" {console.glyphs.dot} ", Role.DIM), key, Piece(" shows it")]
            console.show_line(line, seconds=20)

    def show_details(self) -> None:
        """Show everything about the selected task."""
        if self.select_task() and self.console.selected is not None:
            self.console.show_details()

    def show_output(self) -> None:
        """Show the log of the selected task."""
        if self.select_task():
            self.console.open_view(ScreenName.LOG)
