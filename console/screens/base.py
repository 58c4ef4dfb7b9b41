"""The frame of every screen: header, tabs, rule, content, rule, footer.

How to write a screen
---------------------
Subclass ``ConsoleScreen``, set ``PLACE``, which binds the keys of the place, and implement ``content()``. The app maps
the keys 1 to 7 to screen classes. ``keys/actions.py`` maps each key to a method of the focused widget, else of the
screen, or of a controller of the app.

- **Board**: ``self.board`` is the followed run; ``self.console.live`` follows it (``live.now_us``, ``live.status``,
  ``live.session`` to read logs and lists, ``live.forecast``).
- **Updates**: ``on_news(news)`` is called after each update of the board, also while the screen is hidden: update
  models there and refresh only the rows that changed. ``board_replaced(board)`` is called before it for a new board.
- **Time**: ``tick(now_us)`` is called every second for the visible screen, to update countdowns.
- **Visibility**: ``on_shown()`` is called whenever the screen comes to the front: apply ``console.selected`` there,
  and set it when the cursor moves, because all screens share one selected task.
- **Actions**: ``target_tasks()`` returns the tasks for ``r s x b`` (marked ones, or the selected one), ``subject()``
  another item under the cursor. An action changes nothing on the screen; its event arrives in ``on_news``.
- **Reads**: ``run_latest(self, self._read, "group")``; never block the loop.
- **Rest**: ``rest_timer.start()`` calls ``on_cursor_rest()`` a little later, for what need not follow each move.
- **Past**: ``console.time_travel`` moves the board to another time, with ``on_news``, ``tick`` and then
  ``on_seek(seq)``. Actions are disabled there. ``Esc`` first returns to the present; otherwise it calls ``back()``.
- **Messages**: ``console.show_line(line, seconds)`` in the key bar.
- **Filter**: ``/`` opens the prompt and calls ``filter_changed(text)`` at every key; ``""`` clears the filter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from ...engine.domain import acts
from ...engine.domain.states import ABOUT_TO_START
from ..keys.actions import ANSWERS, BY_NAME, SUSPEND_KEY, VIEWS, Action, ScreenName, footer_of
from ..keys.keymap import guarded_keys, keys_of, shown_key
from ..model.board import Board, BoardUpdate
from ..model.eta import critical_path
from ..model.inbox import COMPARED_MAX
from ..model.preview import refusal_of
from ..model.systems import blocking_downstream
from ..present import header
from ..present.inbox import Mend, mends_of, wait_of
from ..present.tasks import RunContext, TaskNames
from ..present.timeline_text import bar_entries, describe_path
from ..terminal.capabilities import SMALLEST_SIZE
from ..text.figures import number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar, Footer, KeyBar, KeyHint, Rule, TextField, bindings, bindings_of
from ..widgets.dialog import Modal
from ..widgets.line_view import LineView
from ..widgets.table import VirtualTable
from .console import Console, Debouncer
from .frame import TooSmall, TourBar, lock_sentence, past_hints, rule_style, status_texts, tabs_of, top_line

if TYPE_CHECKING:
    from .graph_view import GraphView

_WORDS_MARGIN = 2  # cells of a rule right of the words on it
JUMP_SECONDS = 1.5  # after a row left from under the cursor: within them a key may still be meant for that row


_REDRIVES = frozenset(["requeue", "skip"])


class ConsoleScreen(Screen[None]):
    """See the module."""

    PLACE: ClassVar[ScreenName]
    marked_view: VirtualTable[Any] | GraphView | None = None  # its rows are marked for an act on many
    AUTO_FOCUS = ""  # each screen says where keys go
    DEFAULT_CSS = """
    ConsoleScreen { layout: vertical; overflow: hidden; }
    ConsoleScreen.-small > * { display: none; }
    ConsoleScreen.-small > TooSmall { display: block; }
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Bind what can be done in the place of the screen."""
        if "PLACE" in vars(cls) and "BINDINGS" not in vars(cls):
            cls.BINDINGS = bindings_of(cls.PLACE)
        super().__init_subclass__(**options)

    def __init__(self) -> None:
        super().__init__()
        glyphs = self.console.glyphs
        self.rest_timer = Debouncer(self, self.on_cursor_rest)
        self.header = Bar(2, id="header")
        self.upper_rule = Rule(glyphs.rule, id="upper")
        self.lower_rule = Rule(glyphs.rule, id="lower")
        self.tour_bar = TourBar(0)
        self.footer_widget = Footer(id="foot")
        self.filter_text = ""
        self.names = TaskNames()  # of the tasks, as the rows show them
        self._row_removed_at = float("-inf")
        self._hidden_decisions: dict[LineView, tuple[int, int]] = {}  # of the frame that is rendered

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

    def visible_tasks(self) -> Collection[str]:
        """The tasks that the screen names now, each in a place of its own."""
        return self.target_tasks()

    def task_at_cursor(self) -> str | None:
        """The one task on which the cursor is, in sight; None: it is on none, or on several."""
        names = self.target_tasks()
        return names[0] if len(names) == 1 else None

    def name_at_cursor(self) -> str | None:
        """The name of the one task, breaker or group of rows that an act is about now."""
        name = self.task_at_cursor()
        return name if list(self.target_tasks()) == [name] else None

    def go_to(self, name: str) -> None:
        """Put the cursor on a task, breaker or group of rows, whatever was filtered or marked."""
        if self.filter_text:
            self.use_filter("")
        for marked in self.target_tasks():
            self.handle_task_act(marked)
        if name in self.board.projection.tasks:
            self.console.selected = name
        if self.is_mounted:
            self.on_shown()

    def subject(self) -> object:
        """The item under the cursor if it is not a task: a breaker, a page, a group of rows, an event."""
        return None

    def on_cursor_rest(self) -> None:
        """Update what need not follow each move of the cursor: ``rest_timer`` was started, and is over."""

    def on_row_removed(self) -> None:
        """Note that an update has put another row under the cursor."""
        self._row_removed_at = self.console.live.monotonic_seconds

    def has_cursor_jumped(self) -> bool:
        """Whether the row under the cursor has just changed: a key pressed now was meant for the previous row."""
        return self.console.live.monotonic_seconds - self._row_removed_at < JUMP_SECONDS

    def handle_task_act(self, name: str) -> None:
        """Remove the mark of a task after an act on it."""
        if self.marked_view is not None:
            self.marked_view.unmark(name)

    def filter_changed(self, text: str) -> None:
        """Show only what matches."""

    def next_pane(self) -> None:
        """Switch between panes."""
        self.console.show_message("this screen has one pane")

    @property
    def guarded_keys(self) -> frozenset[str]:
        """The keys that change the run here; the same key may only navigate on another screen."""
        answers = [key for name in ANSWERS for key in keys_of(name)] if self.awaits_answer else ()
        return guarded_keys(self.PLACE) | {SUSPEND_KEY, *answers}

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

    def find_critical_path(self) -> tuple[str, ...]:
        """The tasks that decide when the run ends, which a message describes."""
        live = self.console.live
        path = critical_path(self.board, live.forecast, live.now_us, self.console.runner)
        self.console.show_message(describe_path(path, self.run_context()), Role.DIM, 6)
        return path

    def run_context(self) -> RunContext:
        """The context for rendering tasks, as of now."""
        console = self.console
        return RunContext(
            self.board,
            console.live.now_us,
            console.glyphs,
            runner=console.runner,
            names=self.names,
            columns=self.app.size.width,
        )

    # --- The frame ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Yield header, tabs, rule, content, rule and keys."""
        yield TooSmall()
        yield self.header
        yield self.upper_rule
        yield from self.content()
        yield self.lower_rule
        yield from self.widgets_below()
        yield self.tour_bar
        yield self.footer_widget

    def on_mount(self) -> None:
        """Show the board if it was loaded before the screen was mounted."""
        board = self.console.live.board
        if board is not None:
            self.board_replaced(board)

    def on_screen_suspend(self) -> None:
        """Leave no explanation for the return: what it says is of now."""
        if self.key_bar.about is not None:
            self.key_bar.clear_message()
        self.show_key_bar()

    def on_screen_resume(self) -> None:
        self.show_frame()
        self.on_shown()

    def on_resize(self, event: events.Resize) -> None:
        """Render the frame for the new width."""
        columns, rows = SMALLEST_SIZE
        self.set_class(event.size.width < columns or event.size.height < rows, "-small")
        self.show_frame()

    @property
    def screen_rows(self) -> int:
        """The rows of the terminal that the line of the tour leaves to the screen."""
        return self.app.size.height - self.tour_bar.row_count

    def show_frame(self) -> None:
        """Update header, tabs and key bar; cheap if nothing changed."""
        console, columns = self.console, self.app.size.width
        self.header.show(top_line(console, columns))
        self.header.show(header.tabs_line(self._tabs(), status_texts(console, columns), columns), row=1)
        sign, role = rule_style(console)
        self._hidden_decisions.clear()
        for rule in (self.upper_rule, self.lower_rule):
            rule.show(sign, {**self.rule_marks(upper=rule is self.upper_rule), **self.hidden_row_marks(rule)}, role)
        tour = console.tour_line
        self.tour_bar.set_row_count(1 if tour else 0)
        if tour:
            self.tour_bar.show(tour, [Piece(shown_key("tour"), Role.KEY), Piece(" hides this")])
        self.show_key_bar()

    def _tabs(self) -> list[header.Tab]:
        return tabs_of(self.console, self.view)

    async def on_bar_cell_clicked(self, message: Bar.CellClicked) -> None:
        """Switch to the tab that was clicked, or change the order that was clicked."""
        if message.bar is self.header and message.row == 1:
            place = header.tab_at(self._tabs(), self.app.size.width, message.x)
            if place is not None:
                await self.app.run_action(f"app.handle('view_{VIEWS[place].value}')")
        elif message.bar.id == "heading" and message.row == 0 and message.on_right:
            change_order: Callable[[], None] | None = getattr(self, "change_order", None)
            if change_order is not None:
                change_order()

    @property
    def view(self) -> ScreenName:
        """The active tab."""
        return self.PLACE

    def legend(self) -> Sequence[Line]:
        """The signs of the screen beside those of states, for help."""
        return bar_entries(self.console.glyphs)

    def hidden_row_marks(self, rule: Rule) -> dict[int, str]:
        """The words on a rule about hidden rows of the views to which it is the nearest: column -> sign.

        How many are hidden above and below, and how many of them wait for a decision: ``▴ 3 more``, ``▾ 5 more, ◆1``.
        """
        marks: dict[int, str] = {}
        views = self.views_beside(rule)
        for view in views:
            for words in self._rule_texts(rule, [one for one in views if isinstance(one, Rule)], view):
                end = view.region.right - _WORDS_MARGIN
                while any(column in marks for column in range(end - len(words), end)):
                    end = min(column for column in marks if column >= end - len(words))  # left of what stands there
                if end - len(words) > view.region.x:
                    marks.update(enumerate(words, start=end - len(words)))
        return marks

    def _rule_texts(self, rule: Rule, rules: Sequence[Rule], view: LineView) -> Iterator[str]:
        view.check_hidden_rows()  # a layout that is due changes them: the next paint compares with what is said here
        (above, below), glyphs = view.hidden_rows, self.console.glyphs
        if above and rule is max((one for one in rules if one.region.y < view.region.y), key=_row, default=None):
            decisions, _ = self._decisions_hidden_in(view)
            yield f" {glyphs.rows_above} {number(above)} more{_decisions(decisions, glyphs)} "
        if below and rule is min((one for one in rules if one.region.y >= view.region.bottom), key=_row, default=None):
            _, decisions = self._decisions_hidden_in(view)
            yield f" {glyphs.rows_below} {number(below)} more{_decisions(decisions, glyphs)} "

    def views_beside(self, rule: Rule) -> list[LineView]:
        """The views of whose hidden rows a rule may speak, and the rules."""
        return [one for one in self.walk_children() if isinstance(one, LineView) and one.display]

    def row_in(self, view: LineView, task: str) -> int | None:
        """The row of a task in a view that scrolls; None or negative: the view does not show the task."""
        return None

    def _decisions_hidden_in(self, view: LineView) -> tuple[int, int]:
        """The numbers of rows above and below that wait for a decision; the rules on both sides ask in each frame."""
        if view not in self._hidden_decisions:
            self._hidden_decisions[view] = self._count_decisions_hidden_in(view)
        return self._hidden_decisions[view]

    def _count_decisions_hidden_in(self, view: LineView) -> tuple[int, int]:
        (above, below), board = view.hidden_rows, self.console.live.board
        if board is None or not (above or below):
            return 0, 0
        rows = {self.row_in(view, name) for name in board.undecided}
        places = [row for row in rows if row is not None and row >= 0]
        return sum(row < above for row in places), sum(row >= above + view.rows for row in places)

    def on_line_view_hidden_rows_changed(self) -> None:
        """A view was scrolled, or has more or fewer rows."""
        self.show_frame()

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """Marks on a rule: column -> sign."""
        return {}

    def show_key_bar(self) -> None:
        """Show the keys that act now, or why none does; below a box, which has its own, none."""
        position = self.console.time_travel.position
        if any(isinstance(front, Modal) for front in self.app.screen_stack[-1:]):  # none while the console leaves
            self.key_bar.show(())
        elif position is None:
            self.key_bar.show(self.hints(), lock_sentence(self.console))
        else:
            self.key_bar.show(past_hints(self.console, self.PLACE) or self.hints(), self.past_summary(position))

    def hints(self) -> list[KeyHint]:
        """The key hints of the footer, most important first."""
        footer = self.footer_actions()
        has_redrives = self.console.live.board is not None and any(one.name in _REDRIVES for one in footer)
        useless = _REDRIVES - self._useful_redrives() if has_redrives else ()
        offered = [one for one in footer if one.name not in useless and self.is_offered(one)]
        offered = [*self._ends_of_pause(), *offered]
        hints = [(shown_key(action.name), self._word_of(action)) for action in offered]
        first: dict[str, str] = {}  # in place of the same keys
        if self.awaits_answer:
            first = {shown_key(name): BY_NAME[answer].label for name, answer in ANSWERS.items()}
        elif has_redrives and self.console.lock_reason is None:
            first = {shown_key(mend.action): mend.word for mend in self._mends()}
        hints = [*first.items(), *(hint for hint in hints if hint[0] not in first)]
        if self.back_label:
            hints.insert(0, (shown_key("back"), self.back_label))
        return [(key, word) for key, word in hints if key]

    @property
    def _is_paused(self) -> bool:
        board = self.console.live.board
        return board is not None and board.projection.run.ended_at is None and bool(board.projection.run.paused_since)

    def _word_of(self, action: Action) -> str:
        """The word of an action now: the key that pauses unpauses a paused run."""
        return "unpause" if action.name == "pause" and self._is_paused else action.label

    def _ends_of_pause(self) -> Iterator[Action]:
        """The actions that let a paused run go on, if the footer acts on tasks and does not have them already."""
        names, console = [action.name for action in self.footer_actions()], self.console
        if self._is_paused and "requeue" in names and "pause" not in names and console.lock_reason is None:
            yield BY_NAME["pause"]
            if not console.live.status.executor.alive and console.launch.state_path is not None:
                yield BY_NAME["resume_here"]

    def is_offered(self, action: Action) -> bool:
        """Whether an action can do anything to what is selected; an act can do nothing while changes are locked."""
        if action.act is not None and self.console.lock_reason is not None:
            return False
        if action.name == "undo":
            return self.console.can_undo
        live, name = self.console.live, self.console.selected
        if live.board is None or name not in live.board.projection.tasks or not self.acts_on_one:
            return True
        if action.act is None or acts.BY_NAME[action.act].scope is not acts.Scope.TASKS:
            return True
        return refusal_of(live.board, action.act, name, is_abandoned=not live.status.executor.alive) is None

    def _useful_redrives(self) -> frozenset[str]:
        """The acts, of a requeue and a skip, that end the wait of their targets, which does not end by itself."""
        tasks, names, mends = self.board.projection.tasks, self._first_targets(), self._mends()
        if mends:
            return _REDRIVES & {mend.action for mend in mends}
        goes_on = bool(names) and all(tasks[name].state in ABOUT_TO_START for name in names)
        return frozenset() if goes_on and wait_of(names, self.run_context()) is None else _REDRIVES

    def _first_targets(self) -> Sequence[str]:
        board = self.console.live.board
        return [] if board is None else [n for n in self.target_tasks()[:COMPARED_MAX] if n in board.projection.tasks]

    def _mends(self) -> Sequence[Mend]:
        """The ends of the wait of the tasks that an act applies to, if no failure is behind it."""
        names = self._first_targets()
        return mends_of(names, self.run_context()) if names else ()

    @property
    def awaits_answer(self) -> bool:
        """Whether the tasks that an act applies to wait for an approval; asked in every frame."""
        board = self.console.live.board
        asked = board.asked if board is not None and self.PLACE in BY_NAME["approve"].screens else ()
        return bool(asked) and bool(names := self.target_tasks()) and set(names) <= set(asked)

    @property
    def acts_on_one(self) -> bool:
        """Whether an act now is about the selected task alone; asked in every frame."""
        return True

    def footer_actions(self) -> Sequence[Action]:
        return footer_of(self.PLACE)

    @property
    def back_label(self) -> str:
        """The label of the target of Esc; empty if Esc leads nowhere."""
        if self.app.screen_stack[:1] != [self]:  # there is none while the console leaves
            return "back"
        view = self.console.previous_view
        if view is None:
            return "all state files" if self.console.launch.is_of_fleet else ""
        return f"back to {view.value}"

    def past_summary(self, position: header.ReplayPosition) -> str:
        """Describe the last event at that time; screens without time travel say what they show instead."""
        return header.describe_last_event(position.event, self.app.size.width)

    def go_to_row(self, table: VirtualTable[Any], step: int, is_wanted: Callable[[Any], bool], nothing: str) -> None:
        """To the next row of a list that matches, without a filter to the next that is wanted; else say that."""
        before = table.cursor
        table.move_to_next(step, lambda key: bool(self.filter_text) or is_wanted(key))
        if table.cursor == before:
            self.console.show_message("nothing else matches" if self.filter_text else nothing)

    def on_empty_table_key_pressed(self) -> None:
        """Say why the key did nothing."""
        self.console.show_message(self.nothing_listed)

    @property
    def nothing_listed(self) -> str:
        """Why the list has no row for a key."""
        return "the list is empty"

    # --- The filter -----------------------------------------------------------------------------------------------

    def open_filter_input(self) -> None:
        """Open the filter prompt; the list updates at every key."""
        self.footer_widget.open_prompt("/", self.filter_text, hint="words that must match, !word that must not")

    def on_text_field_changed(self, message: TextField.Changed) -> None:
        if message.field is self.footer_widget.prompt:
            self.use_filter(message.text)

    def on_text_field_submitted(self, message: TextField.Submitted) -> None:
        """Keep the filter and return to the list."""
        if message.field is self.footer_widget.prompt:
            self.use_filter(message.text)
            self.footer_widget.close_prompt()

    def on_text_field_cancelled(self, message: TextField.Cancelled) -> None:
        if message.field is self.footer_widget.prompt:
            self.footer_widget.close_prompt()
            self.use_filter("")

    def use_filter(self, text: str) -> None:
        """Show what matches ``text``, as if it had been typed."""
        if text != self.filter_text:
            self.filter_text = text
            self.filter_changed(text)

    def go_back(self) -> None:
        """Return to the present, else go one step back."""
        self.key_bar.clear_message()
        if not self.console.time_travel.return_to_present():
            self.back()

    def back(self) -> None:
        """Remove the marks; without marks the filter; else go to the previous screen, at last to the list of files."""
        if self.marked_view is not None and self.marked_view.marks:
            self.marked_view.set_marks(())
        elif self.filter_text:
            self.use_filter("")
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
            self.console.show_line(self._explanation(name), seconds=20, about=name)

    def update_explanation(self) -> None:
        """Let the explanation that is shown say what is true now."""
        board, name = self.console.live.board, self.key_bar.about
        if board is not None and name is not None and name in board.projection.tasks:
            self.key_bar.update_message(self._explanation(name))

    def _explanation(self, name: str) -> Line:
        now_us, console = self.console.live.now_us, self.console
        line: Line = [Piece(one_line(f"{name}: {self.board.explain(name, now_us, console.runner)}"))]
        if blocking_downstream(self.board, name, now_us) is not None:
            key = Piece(shown_key("view_systems"), Role.KEY)
            line += [Piece(f" {console.glyphs.dot} ", Role.DIM), key, Piece(" shows it")]
        return line

    def show_details(self) -> None:
        """Show everything about the selected task."""
        if self.select_task() and self.console.selected is not None:
            self.console.show_details(self.console.selected)

    def show_output(self) -> None:
        if self.select_task():
            self.console.open_view(ScreenName.LOG)


def _decisions(count: int, glyphs: Glyphs) -> str:
    return f", {glyphs.dead}{count}" if count else ""


def _row(rule: Rule) -> int:
    return rule.region.y


# --- The screen shown until the first board is loaded, with the connection error -------------------------------------


class LoadingScreen(ConsoleScreen):
    """See the module."""

    PLACE = ScreenName.GRAPH
    BINDINGS = bindings("back")

    def __init__(self) -> None:
        super().__init__()
        self._error_bar = Bar(2)
        self._error_bar.styles.height = "1fr"

    def content(self) -> Iterable[Widget]:
        """Yield the reason why nothing is shown yet."""
        yield self._error_bar

    def hints(self) -> list[KeyHint]:
        """The only key hint here: to leave."""
        back = [(shown_key("back"), self.back_label)] if self.back_label else []
        return [*back, (shown_key("quit"), "quit")]

    def show_frame(self) -> None:
        super().show_frame()
        sentence = one_line(self.console.live.error_message or "")
        self._error_bar.show([Piece(f" {sentence}", Role.WARNING)] if sentence else [], row=1)
