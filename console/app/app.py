"""The console app: connects a session, the board that follows it, the screens and the controllers.

Views are Textual modes with the names of ``ScreenName``; each is created when first shown. ``screens/base.py``
has the protocols by which screens and controllers use the app.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from textual.screen import Screen

from ...engine.clock import Clock, SystemClock
from ...engine.core.projection import RunRow
from ...engine.core.views import run_style
from ...engine.core.waiting import ALIVE, RunnerKind, RunnerStatus
from ...engine.domain.states import TaskState
from ...engine.domain.text import format_duration, shell_command
from ...engine.errors import RedriveError
from ..keys.actions import ANSWERS, VIEWS, Action, ScreenName, action_named
from ..keys.keymap import DEFAULT_KEYS, KeyMap, Refusal
from ..model.board import SHELL_REMEDY, Board, BoardUpdate, runner_of
from ..model.lists import ColumnChoice
from ..model.runs import WaitingRun
from ..model.systems import BadgeCounts
from ..present.header import lock_reason
from ..present.runs import deadline_note
from ..present.tour import advance, tour_line
from ..screens.base import MESSAGE_SECONDS, ConsoleScreen, LoadingScreen, run_latest
from ..sessions.live_run import CauseMemory, LiveRun, OtherRuns
from ..sessions.session import Session
from ..sessions.target import LaunchContext
from ..terminal.capabilities import detect_capabilities
from ..terminal.driver import TerminalBell
from ..terminal.tty import Tty
from ..text.glyphs import ASCII, UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import bindings
from .base_app import ThemedConsole
from .commands import CommandMenu, Copying, save_screen
from .confirmations import named
from .downstream_operator import DownstreamActions
from .operator import OperatorActions, RunControl
from .preferences import Preferences
from .theme import DEFAULT, Theme, load_theme
from .time_travel import Analysis, TimeTravel

# --- The navigation history: the views that ``Esc`` and ``q`` return to, with their selected tasks -------------------
#
# A view that is opened by its key or tab is a top level and clears the history; a view that is opened from a task or a
# run adds an entry.


STOPS_MAX = 50


class Stop(NamedTuple):
    """A view, and the task that was selected in it."""

    view: ScreenName
    selected: str | None


class NavigationHistory:
    """A stack of views, at most ``STOPS_MAX``."""

    def __init__(self) -> None:
        self._stops: deque[Stop] = deque(maxlen=STOPS_MAX)

    @property
    def last(self) -> Stop | None:
        """The view to which ``pop`` returns; None at the top level."""
        return self._stops[-1] if self._stops else None

    def push(self, view: ScreenName, selected: str | None) -> None:
        """Record a view that the operator leaves."""
        self._stops.append(Stop(view, selected))

    def pop(self) -> Stop | None:
        """Remove and return the latest view; None at the top level."""
        return self._stops.pop() if self._stops else None

    def clear(self) -> None:
        """Make the current view a top level."""
        self._stops.clear()


# --- The views of the console, each imported when it is first shown --------------------------------------------------


#: View -> module and class; imported when the view is first shown, so that the first frame comes early.
SCREENS: dict[ScreenName, tuple[str, str]] = {
    ScreenName.RUNS: ("..screens.runs", "RunsScreen"),
    ScreenName.GRAPH: ("..screens.graph", "GraphScreen"),
    ScreenName.TIMELINE: ("..screens.timeline", "TimelineScreen"),
    ScreenName.INBOX: ("..screens.inbox", "InboxScreen"),
    ScreenName.LOG: ("..screens.log", "LogScreen"),
    ScreenName.JOURNAL: ("..screens.journal", "JournalScreen"),
    ScreenName.SYSTEMS: ("..screens.systems", "SystemsScreen"),
    ScreenName.HISTORY: ("..screens.history", "HistoryScreen"),
}


def screen_maker(view: ScreenName) -> Callable[[], ConsoleScreen]:
    def make() -> ConsoleScreen:
        module, name = SCREENS[view]
        screen: ConsoleScreen = getattr(import_module(module, __package__), name)()
        return screen

    return make


# --- Reads beside the run --------------------------------------------------------------------------------------------
#
# What the console reads beside the followed run: what running tasks use, and the other runs of the state file.


_SHOWING_USAGE = frozenset({ScreenName.GRAPH, ScreenName.TIMELINE, ScreenName.DETAIL})


class ReadingApp(Protocol):
    """The app, as these reads use it."""

    live: LiveRun
    other_runs: OtherRuns

    @property
    def runner(self) -> RunnerStatus:
        """Who runs the displayed run."""

    @property
    def console_screen(self) -> ConsoleScreen:
        """The visible screen, or the screen below a dialog."""

    def on_other_runs(self) -> None:
        """Show the other runs that need a human."""


def refresh_usage(app: ReadingApp) -> None:
    """Ask the executor what running tasks use, while a screen shows them."""
    board, screen = app.live.board, app.console_screen
    if board is None or app.live.is_past or screen.PLACE not in _SHOWING_USAGE or app.live.status.is_stale:
        return
    if board.counts[TaskState.RUNNING] and app.runner.is_alive:
        run_latest(screen, partial(_read_usage, app.live, board), "usage")
    else:
        board.usage = {}


async def _read_usage(live: LiveRun, board: Board) -> None:
    try:
        board.usage = {one.task: one for one in await live.session.usage()}
    except RedriveError:
        board.usage = {}  # the frame shows what is wrong with the connection


async def read_other_runs(app: ReadingApp) -> None:
    """Read the other runs that need a human, and show them if they have changed."""
    board = app.live.board
    assert board is not None
    if await app.other_runs.refresh(app.live.session, board.projection.run.run_id):
        app.on_other_runs()


# --- The app ---------------------------------------------------------------------------------------------------------
#


REFUSAL_SECONDS = 3.0
_TIMES_SECONDS = 1.5

#: Actions that the app handles on every screen.
_COMMANDS = (
    *("quit", "redraw", "undo", "pause", "postpone", "resume_here", "arm", "reload", "stop_run", "reset_breaker"),
    *("help", "palette", "keys", "copy", "theme", "mouse", "bell", "times", "how_to_leave", "tour"),
)


class ConsoleApp(ThemedConsole):
    """The console on one session. ``run_id`` None: the latest run of the file."""

    TITLE = "redrive"
    DEFAULT_MODE = "opening"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        DEFAULT_MODE: LoadingScreen,
        **{view.value: screen_maker(view) for view in SCREENS},
    }
    BINDINGS = bindings(*(f"view_{view.value}" for view in SCREENS), *_COMMANDS)

    def __init__(
        self,
        session: Session,
        run_id: str | None = None,
        *,
        tty: Tty | None = None,
        keymap: KeyMap = DEFAULT_KEYS,
        theme: Theme | None = None,
        clock: Clock | None = None,
        launch: LaunchContext | None = None,
        columns: ColumnChoice | None = None,
    ) -> None:
        tty = tty or Tty(detect_capabilities())
        super().__init__(tty, keymap, theme or load_theme(DEFAULT))
        self.launch = launch or LaunchContext()
        self.glyphs = UTF8 if self.capabilities.has_unicode else ASCII
        self.live = LiveRun(session, clock or SystemClock(), self)
        self.memory = CauseMemory()
        self.other_runs = OtherRuns()
        self.page_bell = TerminalBell(self.ring)
        self.acting_session: Session | None = None  # for acts while a read-only console is armed
        self.operator_actions = OperatorActions(self)
        self.downstream_actions = DownstreamActions(self, self.operator_actions)
        self.time_travel = TimeTravel(self)
        self.run_control = RunControl(self, self.operator_actions)
        self.copying = Copying(self, self.operator_actions)
        self.analysis = Analysis(self, self.operator_actions, self.time_travel)
        self.preferences = Preferences(self, self.operator_actions)
        self.commands = CommandMenu(self, self._argument_commands())
        self._selected: str | None = None
        self._line_about: str | None = None  # the task that the latest message is about
        self.history = NavigationHistory()
        self.absolute_times = False
        self.columns = columns or ColumnChoice()
        self._badge_counts: BadgeCounts | None = None
        self.returns_to_fleet = False
        self.is_stopping = False  # leave as soon as the executor has gone
        self._run_id = run_id
        self._tour_stage = 0
        self._shows_tour = self.launch.has_tour
        self._is_new_run = True  # show a view of it when its first snapshot arrives
        self._first_view = ScreenName.GRAPH
        self._missed_frames = False  # the terminal was busy: draw everything when it is ready

    # --- For screens ----------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address of the state file, for the header."""
        return self.live.session.address

    @property
    def loading_message(self) -> str:
        """The message that is shown until the first snapshot arrives."""
        return self.live.error_message or "reading ..."

    @property
    def runner(self) -> RunnerStatus:
        """Who runs the displayed run; a run of the past had its executor then."""
        board = self.live.board
        if board is None or self.live.is_past:
            return ALIVE
        key = self.keymap.label("resume_here") if self.launch.state_path is not None else ""
        return runner_of(board.projection.run, self.live.status, f"{key} starts an executor" if key else SHELL_REMEDY)

    @property
    def redrive_line(self) -> Line:
        """The progress of a redrive that is under way; empty if there is none."""
        return self.operator_actions.redrive_line()

    @property
    def waiting_runs(self) -> Sequence[WaitingRun]:
        """The other unfinished runs of the state file that need a human."""
        return self.other_runs.waiting

    @property
    def selection_problem(self) -> str:
        """Why an act on the selection of the visible screen has no target."""
        return self.console_screen.selection_problem

    @property
    def tour_line(self) -> Line:
        """The line of the demo's tour; empty if it is hidden or there is none."""
        board = self.live.board
        return tour_line(self._tour_stage, board, self.keymap) if self._shows_tour and board is not None else []

    @property
    def attention_count(self) -> int:
        """The number of breakers, pages and groups of rows that need a human."""
        return self._badge_counts.count if self._badge_counts is not None else 0

    @property
    def lock_reason(self) -> str | None:
        """The reason why changes are not allowed; None if they are."""
        if self.live.is_past:
            return self.time_travel.lock_reason
        status = self.live.status
        return lock_reason(replace(status, read_only=None) if self.armed_seconds else status)

    @property
    def armed_seconds(self) -> int:
        """For how many seconds a read-only console still allows changes; 0: it allows none."""
        return self.run_control.armed_seconds

    @property
    def previous_view(self) -> ScreenName | None:
        """The view to which ``go_back`` returns; None at the top level."""
        stop = self.history.last
        return None if stop is None else stop.view

    @property
    def console_screen(self) -> ConsoleScreen:
        """The visible screen, or the screen below a dialog."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, ConsoleScreen))

    @property
    def screen_name(self) -> ScreenName:
        """The name of the visible screen, or of the screen below a dialog."""
        return self.console_screen.PLACE

    @property
    def selected(self) -> str | None:
        """The task that is selected, the same on every screen."""
        return self._selected

    @selected.setter
    def selected(self, name: str | None) -> None:
        if name == self._selected:
            return
        self._selected = name
        if self._line_about not in (None, name):
            self._line_about = None
            self.console_screen.key_bar.clear_message()
        for screen in self._visible_screens():
            screen.show_key_bar()  # which keys act depends on the task

    def show_line(self, line: Line, seconds: float | None = None, about: str | None = None) -> None:
        """Show a line in place of the keys of the visible screen, for ``seconds``.

        ``about``: the task that it explains; the line goes when another one is selected.
        """
        self._line_about = about
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ConsoleScreen):
                screen.key_bar.show_message(line, seconds)
                return

    def show_message(self, sentence: str, role: Role = Role.TEXT, seconds: float = MESSAGE_SECONDS) -> None:
        """Show a sentence in place of the keys of the visible screen."""
        self.show_line([Piece(one_line(sentence), role)], seconds)

    def on_task_acted(self, name: str) -> None:
        """Update the screens after an act on a task."""
        for screen in self._console_screens():
            screen.on_task_acted(name)

    def follow(self, run_id: str, view: ScreenName = ScreenName.GRAPH) -> None:
        """Show a view of another run of the state file."""
        self.selected = None
        self._is_new_run = True
        self._first_view = view
        self.live.follow(run_id)

    def show_details(self) -> None:
        """Show the details of the selected task over the current view."""
        from ..screens.panes import DetailScreen

        self.push_screen(
            DetailScreen(ScreenName(self.screen.view if isinstance(self.screen, ConsoleScreen) else ScreenName.GRAPH))
        )

    def toggle_mouse(self) -> bool:
        """Turn the mouse on or off. Return whether it is on."""
        driver = self.console_driver
        if driver is None:
            return False
        driver.set_mouse(not driver.captures_mouse)
        return driver.captures_mouse

    def _console_screens(self) -> Iterator[ConsoleScreen]:
        """Every existing screen, also hidden ones."""
        for screen in self.all_screens():
            if isinstance(screen, ConsoleScreen):
                yield screen

    # --- The run ---------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.live.follow(self._run_id)

    def on_board_replaced(self, board: Board) -> None:
        """Give the board to every screen; show the graph for the first board of a run."""
        if not self.screen_stack:
            return  # the console ends
        self.time_travel.reset()
        self._badge_counts = BadgeCounts(board)
        self.operator_actions.on_board_replaced(board)
        if self.selected not in board.projection.tasks:
            self.selected = None
        for screen in self._console_screens():
            if screen.is_mounted:
                screen.board_replaced(board)
        if self._is_new_run:
            self._is_new_run = False
            self.history.clear()
            (self.open_view if self.current_mode == ScreenName.RUNS.value else self._switch_to)(self._first_view)
        self._refresh_other_runs()
        self.show_frames()
        self.freeze_gc()

    def on_board_update(self, update: BoardUpdate) -> None:
        """Update every screen, and redraw the visible one."""
        self.page_bell.ring_for(update.events, self.live.clock_us)
        self.operator_actions.on_events(update.events)
        if self._badge_counts is not None:
            self._badge_counts.update(update.delta.tasks)
        if self.live.board is not None:
            self.other_runs.on_events(update.events, self.live.board.projection.run.run_id)
            self._refresh_other_runs()
        for screen in self._console_screens():
            if screen.is_mounted:
                screen.on_news(update)
        if self.is_untouched and update.delta.are_problems_changed:
            self._select_problem()
        self._advance_tour()
        self.show_frames()

    def _select_problem(self) -> None:
        """Select a task that needs a human, unless one is selected; only for an operator who has touched nothing."""
        board = self.live.board
        if board is not None and board.problems and self.selected not in board.problems:
            self.selected = board.starting_task()
            self.console_screen.on_shown()

    def tick(self, now_us: int) -> None:
        """Update countdowns and ages, once a second."""
        if self.is_output_busy:
            self._missed_frames = True
            return
        if not self.live.is_past:
            self.operator_actions.tick(now_us)
        screens = [screen for screen in self.screen_stack if isinstance(screen, ConsoleScreen)]
        for screen in screens:
            screen.tick(now_us)
        self.show_frames()
        if screens:  # none while the first one is made, and while the console ends
            refresh_usage(self)

    def on_seek(self, seq: int, task: str | None) -> None:
        """The board shows the instant after the event ``seq``; select ``task`` if the run has it."""
        has_task = self.live.board is not None and task in self.live.board.projection.tasks
        if has_task:
            self.selected = task
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                if has_task:
                    screen.on_shown()
                screen.on_seek(seq)

    def on_status(self) -> None:
        """Redraw the header; leave if the operator stopped the executor and it is gone."""
        if self.is_stopping and not self.live.status.executor_alive:
            self.exit(0)
        self._refresh_other_runs()
        self.show_frames()

    def _refresh_other_runs(self) -> None:
        """Read the other runs that need a human, if they may have changed."""
        board = self.live.board
        if board is not None and self.other_runs.is_due(board.projection.run.run_id, self.live.status):
            # the header shows a broken connection; the next event reads again
            run_latest(self, partial(read_other_runs, self), "other runs", shows_errors=False)

    def on_other_runs(self) -> None:
        """Show the other runs that need a human."""
        for screen in self._console_screens():
            if screen.is_mounted:
                screen.on_other_runs()
        self.show_frames()

    def on_error(self, error: Exception) -> None:
        """End the console with a crash report."""
        self.crash(error)

    def output_drained(self) -> None:
        """Draw what was skipped while the terminal was busy."""
        if self._missed_frames:
            self._missed_frames = False
            self.tick(self.live.now_us)

    def show_frames(self) -> None:
        """Draw header, tabs and keys of visible screens, greyed while the data is stale."""
        self.show_greyed(self.live.status.is_stale)
        for screen in self._visible_screens():
            screen.show_frame()

    def _visible_screens(self) -> list[ConsoleScreen]:
        return [screen for screen in self.screen_stack if isinstance(screen, ConsoleScreen) and screen.is_mounted]

    # --- Keys ------------------------------------------------------------------------------------------------------

    def _switch_to(self, view: ScreenName) -> None:
        """Show a view, and close what is open over it."""
        self.switch_mode(view.value)
        while len(self.screen_stack) > 1 and isinstance(self.screen, ConsoleScreen):
            self.pop_screen()

    def switch_view(self, view: ScreenName) -> None:
        """Go to a view as a top level, from which ``go_back`` does not return."""
        if self.live.board is None and view is not ScreenName.RUNS:
            self._first_view = view
            words = f"there is no run to show yet; {action_named(f'view_{view.value}').label} opens with it"
            self.show_line([Piece(words, Role.WARNING)], REFUSAL_SECONDS)
        else:
            self.history.clear()
            self._switch_to(view)

    def open_view(self, view: ScreenName) -> None:
        """Go to a view from which ``go_back`` returns to the current one."""
        if self.current_mode != view.value:
            self.history.push(ScreenName(self.current_mode), self.selected)
        self._switch_to(view)

    def go_back(self) -> bool:
        """Go to the screen below, else to the previous view and its selection. False: this is the top level."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
            return True
        stop = self.history.pop()
        if stop is None:
            return False
        if self.live.board is not None and stop.selected in self.live.board.projection.tasks:
            self.selected = stop.selected
        self.switch_mode(stop.view.value)
        return True

    def return_to_fleet(self) -> None:
        """Leave for the list of state files, if the console was opened from it."""
        if self.launch.is_of_fleet:
            self.returns_to_fleet = True
            self.exit(0)

    def quit_view(self) -> None:
        """Go back; at the top level return to the present, else quit."""
        if not self.go_back() and not self.time_travel.return_to_present():
            self.run_control.quit()

    def reload(self) -> None:
        """Load and draw everything again."""
        self.live.reload()
        self.redraw()

    def toggle_times(self) -> None:
        """Switch between clock times and ages."""
        self.absolute_times = not self.absolute_times
        self.tick(self.live.now_us)
        self.repaint()
        self.show_message("clock times" if self.absolute_times else "ages", seconds=_TIMES_SECONDS)

    def _advance_tour(self, action: str | None = None) -> None:
        if self.launch.has_tour and self.live.board is not None and not self.live.is_past:
            self._tour_stage = advance(self._tour_stage, self.live.board, action)

    def toggle_tour(self) -> None:
        """Hide or show the line of the demo's tour."""
        if not self.launch.has_tour:
            self.show_message("there is a tour in the demo: redrive demo")
        else:
            self._shows_tour = not self._shows_tour
            self.show_frames()

    def show_exit_hint(self) -> None:
        """Show the key that leaves: people press Ctrl-C by reflex, and here it ends nothing."""
        self.show_line([Piece(f"{self.keymap.label('quit')} leaves; the run goes on")], REFUSAL_SECONDS)

    def _argument_commands(self) -> Mapping[str, Callable[[str], None]]:
        """Commands of the palette that take an argument."""
        return {
            "theme": self.preferences.use_theme,
            "at": self.time_travel.to_time,
            "manual": lambda topic: self.commands.manual(topic),
            "replay": lambda speed: self.time_travel.play(int(speed)),
            "what-if": self.analysis.what_if,
            "save-filter": self.preferences.save_filter,
            "shot": lambda _: save_screen(self),
        }

    def handler_of(self, action: Action) -> Callable[[], object] | None:
        """The handler of an action on the visible screen, also below a dialog; None if it has none."""
        return self.handler(action, self.console_screen)

    def meaning_of(self, name: str) -> str:
        """On a task that waits for an approval, ``y`` and ``n`` answer it."""
        is_asked = name in ANSWERS and self.screen is self.console_screen and self.console_screen.asks_for_answer
        return ANSWERS[name] if is_asked else name

    def console_handler(self, name: str) -> Callable[[], object] | None:
        return self.calls.get(name) or super().console_handler(name)

    @cached_property
    def calls(self) -> Mapping[str, Callable[[], object]]:
        """Name of an action -> what its key calls; for the others, ``VIEW_CALLS`` has a method of a view."""
        operator, run, downstream = self.operator_actions, self.run_control, self.downstream_actions
        commands, preferences, time_travel = self.commands, self.preferences, self.time_travel
        on_tasks, on_item = self._on_tasks, self._on_item
        return {
            # the run
            "requeue": on_tasks(operator.requeue),
            "skip": on_tasks(operator.skip),
            "approve": on_tasks(partial(operator.answer, "approve")),
            "reject": on_tasks(partial(operator.answer, "reject")),
            "note": on_tasks(operator.note),
            "stop_task": on_tasks(operator.stop),
            "extend": on_tasks(operator.extend),
            "hurry": on_tasks(operator.hurry),
            "acknowledge": on_tasks(operator.acknowledge),
            "snooze": on_tasks(operator.snooze),
            "undo": operator.undo,
            "pause": operator.pause,
            "postpone": operator.postpone,
            "reload": operator.reload_code,
            "resume_here": run.resume,
            "arm": run.arm,
            "stop_run": run.stop_run,
            "abandon_run": on_item(run.abandon),
            "ack_run": on_item(run.acknowledge),
            # breakers and pages
            "reset_breaker": on_item(downstream.reset_breaker),
            "force_open": on_item(partial(downstream.set_breaker, how="open")),
            "close_breaker": on_item(partial(downstream.set_breaker, how="close")),
            "probe": on_item(partial(downstream.set_breaker, how="probe")),
            "disable_breaker": on_item(partial(downstream.set_breaker, how="disable")),
            "acknowledge_page": on_item(downstream.acknowledge),
            "snooze_page": on_item(downstream.snooze),
            # views, menus and preferences
            **{f"view_{view.value}": partial(self.switch_view, view) for view in VIEWS},
            "quit": self.quit_view,
            "how_to_leave": self.show_exit_hint,
            "redraw": self.reload,
            "times": self.toggle_times,
            "tour": self.toggle_tour,
            "classify": on_tasks(self.analysis.classify),
            "copy": lambda: self.copying.copy(self.console_screen.subject(), self.console_screen.target_tasks()),
            "palette": commands.palette,
            "help": commands.help,
            "manual": commands.manual,
            "keys": commands.list_keys,
            "filters": preferences.choose_filter,
            "columns": preferences.choose_columns,
            "theme": preferences.choose_theme,
            "mouse": preferences.toggle_mouse,
            "bell": preferences.toggle_bell,
            # time travel
            "step_back": partial(time_travel.step, -1),
            "step_forward": partial(time_travel.step, 1),
            "problem_back": partial(time_travel.to_problem, -1),
            "problem_forward": partial(time_travel.to_problem, 1),
            "first_problem": time_travel.to_first_problem,
            "faster": time_travel.faster,
            "slower": time_travel.slower,
            "at_time": partial(commands.palette, "at "),
            "at_event": on_item(time_travel.to_cursor_event),
        }

    def _on_tasks(self, act: Callable[[Sequence[str]], object]) -> Callable[[], object]:
        return lambda: act(self.console_screen.target_tasks())

    def _on_item(self, act: Callable[[object], object]) -> Callable[[], object]:
        return lambda: act(self.console_screen.subject())

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Call a handler, unless the row under the cursor has just changed and the action acts on it."""
        if action.needs_stable_cursor and self.console_screen.has_cursor_jumped():
            names = self.console_screen.target_tasks()
            there = named(names) if names else "another row"
            words = f"nothing was done: the cursor has just moved to {there}; press again"
            self.show_line([Piece(words, Role.WARNING)], REFUSAL_SECONDS)
        else:
            await super().handle(action, handler)
            if self.launch.has_tour:
                self._advance_tour(action.name)
                self.show_frames()

    def key_refused(self, refusal: Refusal) -> None:
        """Show why a key was ignored."""
        self.show_line([Piece(refusal.value, Role.WARNING)], REFUSAL_SECONDS)


# --- The end ---------------------------------------------------------------------------------------------------------
#
# The end of a console: its result, and a few lines about the run for the terminal.


class ConsoleEnd(NamedTuple):
    """The result of a console.

    Attributes:
        return_code: 128 + the number of the signal that ended it, or ``launch.CRASHED``; 0: the operator left.
        started_run: the run that this console started; None if it started no run.
        stopping: whether the operator stopped the executor.
        returns_to_fleet: whether the operator went back to the list of state files.
    """

    return_code: int = 0
    started_run: RunRow | None = None
    is_stopping: bool = False
    returns_to_fleet: bool = False


def console_end(app: ConsoleApp, return_code: int | None = None) -> ConsoleEnd:
    """The result of a console that was left."""
    board = app.live.board
    started_run = board.projection.run if board is not None and app.launch.started_here else None
    return ConsoleEnd(return_code or 0, started_run, app.is_stopping)


def exit_lines(board: Board | None, is_executor_alive: bool, target: str) -> list[str]:
    """The lines about the run that are printed after the console has closed. ``target``: the state file."""
    if board is None:
        return []
    run = board.projection.run
    elapsed = format_duration((run.ended_at or board.projection.run.started_at) - run.started_at)
    state = run_style(run, ALIVE if is_executor_alive else RunnerStatus(RunnerKind.GONE)).word
    lines = [f"{one_line(run.dag_name)} {one_line(run.run_id)}: {state}, {board.finished} of {board.total} done"]
    if run.ended_at is not None:
        lines[0] += f" in {elapsed}"
    lines[0] += deadline_note(run)
    if board.dead_letters:
        letters = f"dead letter{'s' if board.dead_letters != 1 else ''}"
        lines.append(f"{board.dead_letters} {letters} to decide: {_dead_letter_names(board)}")
    if run.ended_at is None:
        lines.append(
            f"{'the run goes on' if is_executor_alive else 'no executor runs it now'}; come back with:"
            f" {shell_command(['redrive', 'attach', target])}"
        )
        if is_executor_alive:
            lines.append(f"stop its executor with: {shell_command(['redrive', 'stop', target])}")
    return lines


def _dead_letter_names(board: Board) -> str:
    names = [name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER]
    return ", ".join(one_line(name) for name in names[:3]) + (" ..." if len(names) > 3 else "")
