"""The console: wires a session, the board that follows it, the screens and the controllers. Decides nothing itself.

Views are Textual modes, named as their ``Place``; each is made when it is first asked for and stays. ``console.py``
says what screens and controllers may ask of the app; ``actions.Receiver`` names the controllers, which are attributes
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.screen import Screen

from ...engine.clock import Clock, SystemClock
from ..feed.cause_memory import Remembering
from ..feed.live_run import LiveRun, News
from ..keys.actions import Action, Call, Passed, Place, Receiver
from ..keys.keymap import DEFAULT_KEYS, KeyMap, Refusal
from ..model.badge_counts import Attention
from ..model.board import Board
from ..present.header import Health
from ..screens.base import ConsoleScreen
from ..screens.console import MESSAGE_SECONDS, Way
from ..screens.loading import OpeningScreen
from ..sessions.session import Link, Session, SessionStatus
from ..terminal.bell import Bell
from ..terminal.capabilities import Colours, Terminal, survey
from ..terminal.driver import ConsoleDriver
from ..terminal.tty import Hold
from ..text.glyphs import ASCII, UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bindings import bindings
from .analysis import Analysis
from .base_app import ConsoleBase
from .commands import Commands
from .copying import Copying
from .downstream_operator import SystemsActs
from .navigation import Trail
from .operator import Acts
from .preferences import Preferences
from .run_control import RunControl
from .theme import DEFAULT, Theme, load_theme
from .time_travel import Rewind

#: Which class shows which view; imported when it is first shown, so that the first picture does not wait for the rest.
SCREENS: dict[Place, tuple[str, str]] = {
    Place.RUNS: ("..screens.runs", "RunsScreen"),
    Place.GRAPH: ("..screens.graph", "GraphScreen"),
    Place.TIMELINE: ("..screens.timeline", "TimelineScreen"),
    Place.INBOX: ("..screens.inbox", "InboxScreen"),
    Place.LOG: ("..screens.log", "LogScreen"),
    Place.JOURNAL: ("..screens.journal", "JournalScreen"),
    Place.SYSTEMS: ("..screens.downstreams", "SystemsScreen"),
}
REFUSAL_SECONDS = 3.0

#: Keys that work on every screen and belong to none.
_COMMANDS = (
    *("quit", "redraw", "undo", "pause", "resume_here", "arm", "stop_run", "reset_breaker"),
    *("help", "palette", "keys", "copy", "theme", "mouse", "bell", "times", "how_to_leave"),
)


def _screen_maker(view: Place) -> Callable[[], Screen[Any]]:
    def make() -> Screen[Any]:
        module, name = SCREENS[view]
        screen: Screen[Any] = getattr(import_module(module, __package__), name)()
        return screen

    return make


class ConsoleApp(ConsoleBase):
    """The console on one session. ``run_id`` None: the latest run of the file."""

    TITLE = "redrive"
    CSS = """
    ConsoleScreen, LineView { background: $ground; color: $ink; }
    Modal > Vertical { background: $ground; border: round $ink; }
    CommandPalette > Vertical { border: none; border-top: solid $ink; }
    """
    DEFAULT_MODE = "opening"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        DEFAULT_MODE: OpeningScreen,
        **{view.value: _screen_maker(view) for view in SCREENS},
    }
    BINDINGS: ClassVar[list[BindingType]] = bindings(*(f"view_{view.value}" for view in SCREENS), *_COMMANDS)

    def __init__(
        self,
        session: Session,
        run_id: str | None = None,
        *,
        hold: Hold | None = None,
        keymap: KeyMap = DEFAULT_KEYS,
        look: Theme | None = None,
        clock: Clock | None = None,
        way: Way | None = None,
    ) -> None:
        hold = hold or Hold(survey())
        self._look = self._allowed(look or load_theme(DEFAULT), hold.terminal)
        super().__init__(hold, keymap, self._look.palette())
        self.way = way or Way()
        self.glyphs = UTF8 if self.terminal.unicode else ASCII
        self.live = LiveRun(session, clock or SystemClock(), self)
        self.memory = Remembering()
        self.bell_of_pages = Bell(self.ring)
        self.acting_session: Session | None = None  # beside one that was opened to look
        self.acts = Acts(self)
        self.systems_acts = SystemsActs(self, self.acts)
        self.rewind = Rewind(self)
        self.run_control = RunControl(self, self.acts)
        self.copying = Copying(self, self.acts)
        self.analysis = Analysis(self, self.acts, self.rewind)
        self.preferences = Preferences(self, self.acts)
        self.commands = Commands(self, self._worded_commands())
        self.selected: str | None = None
        self.trail = Trail()
        self.absolute_times = False
        self._attention: Attention | None = None
        self.stopping = False  # leave as soon as the executor has gone
        self._run_id = run_id
        self._is_new_run = True  # its first picture will be shown as a graph
        self._greyed = False
        self._behind = False  # the terminal did not take a frame: paint everything when it does

    # --- What screens ask -----------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the run is, for the header."""
        return self.live.session.address

    @property
    def waiting_for(self) -> str:
        """What is said while there is no picture yet."""
        return self.live.trouble or "reading ..."

    @property
    def health(self) -> Health:
        """How the picture is."""
        return health_of(self.live.status)

    @property
    def gone_at(self) -> int | None:
        """Since when nobody runs the run that is shown (microseconds UTC); None while somebody does."""
        return None if self.health.executor_alive or self.live.is_past else self.health.gone_at

    @property
    def wanting(self) -> int:
        """How much of what stands between tasks and the world wants a human."""
        return self._attention.count if self._attention is not None else 0

    @property
    def locked(self) -> str | None:
        """Why nothing may be changed now; None if it may."""
        if self.live.is_past:
            return self.rewind.locked
        health = self.health
        if self.armed_seconds:
            health = replace(health, read_only=None)
        return health.locked

    @property
    def armed_seconds(self) -> int:
        """How much longer a console that was opened to look may change something; 0: not at all."""
        return self.run_control.armed_seconds

    @property
    def came_from(self) -> Place | None:
        """The view that going back leads to; None at the top level."""
        stop = self.trail.last
        return None if stop is None else stop.view

    @property
    def console_screen(self) -> ConsoleScreen:
        """The screen that is seen, or that lies below the box that is seen."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, ConsoleScreen))

    @property
    def place(self) -> Place:
        """The place of that screen."""
        return self.console_screen.PLACE

    def say(self, line: Line, seconds: float | None = None) -> None:
        """Words to the operator, in the line of keys of the screen that is seen."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ConsoleScreen):
                screen.keys.say(line, seconds)
                return

    def show_message(self, sentence: str, role: Role = Role.TEXT, seconds: float = MESSAGE_SECONDS) -> None:
        """A sentence to the operator."""
        self.say([Piece(one_line(sentence), role)], seconds)

    def acted(self, name: str) -> None:
        """An act on a task was done."""
        for screen in self._console_screens():
            screen.acted(name)

    def follow(self, run_id: str) -> None:
        """Show another run of the file, as its graph."""
        self.selected = None
        self._is_new_run = True
        self.live.follow(run_id)

    def show_details(self) -> None:
        """Everything about the selected task, over the screen."""
        from ..screens.detail import DetailScreen

        self.push_screen(
            DetailScreen(Place(self.screen.view if isinstance(self.screen, ConsoleScreen) else Place.GRAPH))
        )

    def use_theme(self, look: Theme) -> None:
        """Other colours from now on."""
        self._look = look = self._allowed(look, self.terminal)
        self.palette = look.stale_palette() if self._greyed else look.palette()
        self.refresh_css(animate=False)
        for screen in self._console_screens():
            screen.refresh()

    @staticmethod
    def _allowed(look: Theme, terminal: Terminal) -> Theme:
        """Without colours only the default tells by reverse video what others tell by a colour of the ground."""
        return look if terminal.colours is not Colours.NONE else load_theme(DEFAULT).without_colours()

    def get_css_variables(self) -> dict[str, str]:
        """The ground of everything that is not made of pieces."""
        ground = {"ground": self._look.background, "ink": self._look.foreground}
        return {**super().get_css_variables(), **ground}

    def toggle_mouse(self) -> bool:
        """Whether clicks come here from now on."""
        driver = self._driver
        if not isinstance(driver, ConsoleDriver):
            return False
        driver.set_mouse(not driver.mouse_on)
        return driver.mouse_on

    def _console_screens(self) -> Iterator[ConsoleScreen]:
        """Every screen that exists, seen or not."""
        for stack in self._screen_stacks.values():
            for screen in stack:
                if isinstance(screen, ConsoleScreen):
                    yield screen

    # --- The run ---------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Begin to follow."""
        self.live.follow(self._run_id)

    def board_replaced(self, board: Board) -> None:
        """Show it: the first picture, and that of a run that was asked for, as a graph."""
        self.rewind.forget()
        self._attention = Attention(board)
        if self.selected not in board.fold.tasks:
            self.selected = None
        for screen in self._console_screens():
            if screen.is_mounted:
                screen.board_replaced(board)
        if self._is_new_run:
            self._is_new_run = False
            self.trail.forget()
            (self.lead_to if self.current_mode == Place.RUNS.value else self._view)(Place.GRAPH)
        self.show_frames()
        self.keep()

    def take(self, news: News) -> None:
        """Models on every screen, the frame on the one that is seen."""
        self.bell_of_pages.hear(news.events, self.live.clock_us)
        if self._attention is not None:
            self._attention.take(news.delta.tasks)
        for screen in self._console_screens():
            if screen.is_mounted:
                screen.take(news)
        self.show_frames()

    def tick(self, now_us: int) -> None:
        """A second has passed."""
        if self.output_busy:
            self._behind = True
            return
        if not self.live.is_past:
            self.acts.tick(now_us)
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                screen.tick(now_us)
        self.show_frames()

    def turned(self, seq: int, task: str | None) -> None:
        """The board shows the moment after the event ``seq`` of the past; ``task`` is wanted under the cursor."""
        is_wanted = self.live.board is not None and task in self.live.board.fold.tasks
        if is_wanted:
            self.selected = task
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                if is_wanted:
                    screen.shown()
                screen.turned(seq)

    def heard(self) -> None:
        """The status may be another one."""
        if self.stopping and not self.live.status.executor_alive:
            self.exit(0)
        self.show_frames()

    def failed(self, error: Exception) -> None:
        """Something is broken in here: end as any other crash does."""
        self._handle_exception(error)

    def frame_shown(self) -> None:
        """The terminal reads again: show it what it has missed."""
        if self._behind:
            self._behind = False
            self.tick(self.live.now_us)

    def show_frames(self) -> None:
        """Header, tabs and keys of what is seen; greyed while the picture is old."""
        stale = self.health.stale
        if stale != self._greyed:
            self._greyed = stale
            self.palette = self._look.stale_palette() if stale else self._look.palette()
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen) and screen.is_mounted:
                screen.show_frame()

    # --- Keys ------------------------------------------------------------------------------------------------------

    def _view(self, view: Place) -> None:
        """Show a view itself, without what was opened over it."""
        self.switch_mode(view.value)
        while len(self.screen_stack) > 1 and isinstance(self.screen, ConsoleScreen):
            self.pop_screen()

    def view(self, view: Place) -> None:
        """Go to a view as to a top level."""
        if self.live.board is None and view is not Place.RUNS:
            self.say([Piece("there is no run to show yet", Role.WARNING)], REFUSAL_SECONDS)
        else:
            self.trail.forget()
            self._view(view)

    def lead_to(self, view: Place) -> None:
        """Go on to a view from which ``go_back`` returns to what is seen now."""
        if self.current_mode != view.value:
            self.trail.leave(Place(self.current_mode), self.selected)
        self._view(view)

    def go_back(self) -> bool:
        """To what lies below, else to the view before, as it was. False: this is the top level."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
            return True
        stop = self.trail.back()
        if stop is None:
            return False
        if self.live.board is not None and stop.selected in self.live.board.fold.tasks:
            self.selected = stop.selected
        self.switch_mode(stop.view.value)
        return True

    def leave(self) -> None:
        """Back; at the top level leave."""
        if not self.go_back() and not self.rewind.leave():
            self.run_control.quit()

    def read_and_redraw(self) -> None:
        """Draw and read everything again."""
        self.live.read_again()
        self.redraw()

    def toggle_times(self) -> None:
        """Clock times or ages."""
        self.absolute_times = not self.absolute_times
        self.tick(self.live.now_us)
        self.repaint()

    def say_how_to_leave(self) -> None:
        """Ctrl-C is pressed by reflex; it ends nothing here."""
        self.say([Piece(f"{self.keymap.label('quit')} leaves; the run goes on")], REFUSAL_SECONDS)

    def _worded_commands(self) -> Mapping[str, Callable[[str], None]]:
        """Commands of the palette that end in a word of the operator's own."""
        return {
            "theme": self.preferences.use_theme,
            "at": self.rewind.to_time,
            "replay": lambda speed: self.rewind.play(int(speed)),
            "what-if": self.analysis.what_if,
        }

    def handler_of(self, action: Action) -> Callable[[], object] | None:
        """What an action calls on the screen that is seen, whatever box lies over it."""
        return self.handler(action, self.console_screen)

    def receiver(self, receiver: Receiver) -> object:
        """The controllers are attributes that have the names of receivers."""
        return self if receiver is Receiver.CONSOLE else getattr(self, receiver.value)

    def passed(self, call: Call) -> tuple[object, ...]:
        """The tasks that are meant, or what is under the cursor."""
        screen = self.console_screen
        if call.passes is Passed.NOTHING:
            return ()
        return (screen.chosen() if call.passes is Passed.CHOSEN else screen.subject(),)

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Do nothing to a row that has just come under the cursor."""
        if action.needs_rest and self.console_screen.has_jumped():
            words = "the row under the cursor has just left: nothing was done, look and press again"
            self.say([Piece(words, Role.WARNING)], REFUSAL_SECONDS)
        else:
            await super().handle(action, handler)

    def key_refused(self, refusal: Refusal) -> None:
        """Say why a key did nothing."""
        self.say([Piece(refusal.value, Role.WARNING)], REFUSAL_SECONDS)


def health_of(status: SessionStatus) -> Health:
    """What the header says of a session."""
    down = None if status.link is Link.LIVE else status.trouble or str(status.link)
    return Health(
        executor_alive=status.executor_alive,
        heartbeat_age=status.heartbeat_age_seconds,
        gone_at=status.executor_gone_at,
        dead_pid=None if status.executor_alive or status.executor_stopped else status.executor_pid,
        service_pid=status.service_pid,
        storage_trouble=status.storage_trouble,
        picture_age=status.picture_age_seconds,
        line_down=down,
        retry_in_seconds=status.retry_in_seconds,
        read_only=status.read_only,
        others=status.others,
        clock_offset=status.clock_offset_seconds,
    )
