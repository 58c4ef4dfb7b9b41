"""The console without its controllers: the followed run, its views with the task that is selected, and messages.

Views are Textual modes with the names of ``ScreenName``; each is created when first shown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace
from textual import events
from textual.screen import Screen

from ...engine.core.waiting import ALIVE, RunnerStatus
from ..keys.actions import BY_NAME, VIEWS, Action, ScreenName
from ..keys.habits import hint_for
from ..keys.keymap import Refusal, shown_key
from ..model.launch_context import LaunchContext
from ..model.session_status import SHELL_REMEDY, runner_of
from ..screens.base import ConsoleScreen, LoadingScreen
from ..screens.console import MESSAGE_SECONDS
from ..sessions.cause_histories import CauseHistories
from ..sessions.live_run import LiveRun
from ..sessions.other_runs import OtherRuns
from ..terminal.capabilities import Colours, TerminalCapabilities
from ..terminal.tty import Tty
from ..text.glyphs import ASCII, UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from .base_app import ConsoleBase
from .theme import DEFAULT, Theme, load_theme

REFUSAL_SECONDS = 3.0
_TIMES_SECONDS = 1.5
STOPS_MAX = 50


class Stop(NamedTuple):
    """A view that ``Esc`` and ``q`` return to, and the task that was selected in it."""

    view: ScreenName
    selected: str | None


def screen_maker(view: ScreenName) -> Callable[[], ConsoleScreen]:
    """Makes ``RunsScreen`` of ``screens/runs.py`` for the view ``runs``: imported when the view is first shown, so that
    the first frame comes early."""

    def make() -> ConsoleScreen:
        module = import_module(f"..screens.{view.value}", __package__)
        screen: ConsoleScreen = getattr(module, f"{view.value.capitalize()}Screen")()
        return screen

    return make


class ViewConsole(ConsoleBase):
    """The console as its controllers use it.

    Attributes:
        live: the run that is followed, with its board, its clock and the session to read through.
        history: the views to return to. A view that is opened by its key or tab is a top level and clears the history;
            a view that is opened from a task or a run adds an entry.
        is_stopping: whether the console ends as soon as the executor has gone.
        returns_to_fleet: whether the operator goes back to the list of state files.
    """

    live: LiveRun
    DEFAULT_MODE = "opening"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        DEFAULT_MODE: LoadingScreen,
        **{view.value: screen_maker(view) for view in VIEWS},
    }
    CSS = """
    ConsoleScreen, LineView { background: $ground; color: $ink; }
    Modal > Vertical { background: $ground; border: round $ink; }
    CommandPalette > Vertical { border: none; border-top: solid $ink; }
    """

    def __init__(self, tty: Tty, theme: Theme, launch: LaunchContext | None) -> None:
        self._console_theme = self._for_terminal(theme, tty.capabilities)
        super().__init__(tty, self._console_theme.palette())
        self.launch = launch or LaunchContext()
        self.glyphs = UTF8 if self.capabilities.has_unicode else ASCII
        self.cause_histories = CauseHistories()
        self.other_runs = OtherRuns()
        self.history: deque[Stop] = deque(maxlen=STOPS_MAX)
        self.absolute_times = False
        self.is_stopping = False
        self.returns_to_fleet = False
        self._selected: str | None = None
        self._is_new_run = True  # show a view of it when its first snapshot arrives
        self._first_view = ScreenName.GRAPH
        self._is_greyed = False

    # --- The run --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def lock_reason(self) -> str | None:
        """The reason why changes are not allowed; None if they are."""

    @abstractmethod
    def tick(self, now_us: int) -> None:
        """Update countdowns and ages."""

    @property
    def runner(self) -> RunnerStatus:
        """The runner of the displayed run; a run of the past had its executor then."""
        board = self.live.board
        if board is None or self.live.is_past:
            return ALIVE
        key = shown_key("resume_here") if self.launch.state_path is not None else ""
        found = runner_of(board.projection.run, self.live.status, f"{key} starts an executor" if key else SHELL_REMEDY)
        return replace(found, answers=f"{shown_key('copy')} approves, {shown_key('next')} rejects")

    def follow(self, run_id: str, view: ScreenName = ScreenName.GRAPH) -> None:
        """Show a view of another run of the state file."""
        self.selected = None
        self._is_new_run = True
        self._first_view = view
        self.live.follow(run_id)

    # --- Screens --------------------------------------------------------------------------------------------------

    @property
    def console_screen(self) -> ConsoleScreen:
        """The visible screen, or the screen below a dialog."""
        return self._stacked_screens()[-1]

    def _stacked_screens(self) -> list[ConsoleScreen]:
        """The visible screen and those below it; none while the first one is made, and while the console ends."""
        return [screen for screen in self.screen_stack if isinstance(screen, ConsoleScreen)]

    def _mounted_screens(self) -> Iterator[ConsoleScreen]:
        """Every screen that was shown, also hidden ones."""
        for screen in self.all_screens():
            if isinstance(screen, ConsoleScreen) and screen.is_mounted:
                yield screen

    def show_frames(self) -> None:
        """Draw header, tabs and keys of visible screens, greyed while the data is stale."""
        self.show_greyed(self.live.status.is_stale)
        for screen in self._stacked_screens():
            if screen.is_mounted:
                screen.show_frame()

    def handle_task_act(self, name: str) -> None:
        """Update the screens after an act on a task."""
        for screen in self._mounted_screens():
            screen.handle_task_act(name)

    def on_seek(self, seq: int, task: str | None) -> None:
        """The board shows the instant after the event ``seq``; select ``task`` if the run has it."""
        has_task = self.live.board is not None and task in self.live.board.projection.tasks
        if has_task:
            self.selected = task
        for screen in self._stacked_screens():
            if has_task:
                screen.on_shown()
            screen.on_seek(seq)

    # --- The selection and messages -------------------------------------------------------------------------------

    @property
    def selected(self) -> str | None:
        """The task that is selected, the same on every screen."""
        return self._selected

    @selected.setter
    def selected(self, name: str | None) -> None:
        if name == self._selected:
            return
        self._selected = name
        for screen in self._stacked_screens():
            if screen.key_bar.about not in (None, name):
                screen.key_bar.clear_message()
            if screen.is_mounted:
                screen.show_key_bar()  # which keys act depends on the task

    def show_line(
        self, line: Line, seconds: float | None = None, about: str | None = None, *, yields: bool = False
    ) -> None:
        """Show a line in place of the keys of the visible screen, for ``seconds``.

        ``about``: the task that it explains; the line goes when another one is selected. ``yields``: as in the bar.
        """
        for screen in self._stacked_screens()[-1:]:
            screen.key_bar.show_message(line, seconds, about, yields=yields)

    def show_message(self, sentence: str, role: Role = Role.TEXT, seconds: float = MESSAGE_SECONDS) -> None:
        """Show a sentence in place of the keys of the visible screen."""
        self.show_line([Piece(one_line(sentence), role)], seconds)

    def show_warning(self, sentence: str, seconds: float = MESSAGE_SECONDS) -> None:
        """Show why nothing was done."""
        self.show_message(sentence, Role.WARNING, seconds)

    # --- Views ----------------------------------------------------------------------------------------------------

    @property
    def previous_view(self) -> ScreenName | None:
        """The view to which ``go_back`` returns; None at the top level."""
        return self.history[-1].view if self.history else None

    def _switch_to(self, view: ScreenName) -> None:
        """Show a view, and close what is open over it."""
        self.switch_mode(view.value)
        while len(self.screen_stack) > 1 and isinstance(self.screen, ConsoleScreen):
            self.pop_screen()

    def switch_view(self, view: ScreenName) -> None:
        """Go to a view as a top level, from which ``go_back`` does not return."""
        if self.live.board is None and view is not ScreenName.RUNS:
            self._first_view = view
            words = f"there is no run to show yet; {BY_NAME[f'view_{view.value}'].label} opens with it"
            self.show_warning(words, REFUSAL_SECONDS)
        else:
            self.history.clear()
            self._switch_to(view)

    def open_view(self, view: ScreenName) -> None:
        """Go to a view from which ``go_back`` returns to the current one."""
        if self.current_mode != view.value:
            self.history.append(Stop(ScreenName(self.current_mode), self.selected))
        self._switch_to(view)

    def go_back(self) -> bool:
        """Go to the screen below, else to the previous view and its selection. False: this is the top level."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
            return True
        if not self.history:
            return False
        stop = self.history.pop()
        if self.live.board is not None and stop.selected in self.live.board.projection.tasks:
            self.selected = stop.selected
        self.switch_mode(stop.view.value)
        return True

    def return_to_fleet(self) -> None:
        """Leave for the list of state files, if the console was opened from it."""
        if self.launch.is_of_fleet:
            self.returns_to_fleet = True
            self.exit(0)

    def show_details(self, task: str) -> None:
        """Show the details of a task over the current view."""
        from ..screens.task_pages import DetailScreen

        self.push_screen(DetailScreen(self.console_screen.view, task))

    # --- Keys -----------------------------------------------------------------------------------------------------

    def handler_of(self, action: Action) -> Callable[[], object] | None:
        """The handler of an action on the visible screen, also below a dialog; None if it has none."""
        return self.handler(action, self.console_screen)

    def key_refused(self, refusal: Refusal) -> None:
        """Show why a key was ignored."""
        self.show_warning(refusal.value, REFUSAL_SECONDS)

    async def on_key(self, event: events.Key) -> None:
        """Say what a key that does nothing here might have meant."""
        if isinstance(screen := self.screen, ConsoleScreen):

            def acts(action: Action) -> bool:
                return screen.PLACE in action.screens and self.handler_of(action) is not None

            if hint := hint_for(event.key, screen.PLACE, acts):
                self.show_message(hint, seconds=REFUSAL_SECONDS)

    def toggle_times(self) -> None:
        """Show clock times of events and of lines of a log, or no longer."""
        self.absolute_times = not self.absolute_times
        self.tick(self.live.now_us)
        self.repaint()
        self.show_message("clock times" if self.absolute_times else "no clock times", seconds=_TIMES_SECONDS)

    def toggle_mouse(self) -> None:
        """Turn the mouse on, or leave it to the terminal."""
        if (driver := self.console_driver) is not None:
            driver.set_mouse(not driver.captures_mouse)
            self.show_message("clicks come here" if driver.captures_mouse else "the terminal selects text")

    # --- Colours --------------------------------------------------------------------------------------------------

    def use_theme(self, theme: Theme) -> None:
        """Use another theme."""
        self._console_theme = self._for_terminal(theme, self.capabilities)
        self._show_colours()
        self.refresh_css(animate=False)
        for screen in self.all_screens():
            screen.refresh()

    @staticmethod
    def _for_terminal(theme: Theme, terminal: TerminalCapabilities) -> Theme:
        """The theme itself, or the default theme without colours: other themes need a background colour."""
        return theme if terminal.colours is not Colours.NONE else load_theme(DEFAULT).without_colours()

    def get_css_variables(self) -> dict[str, str]:
        """The colours of Textual's own backgrounds."""
        ground = {"ground": self._console_theme.background, "ink": self._console_theme.foreground}
        return {**super().get_css_variables(), **ground}

    def show_greyed(self, is_greyed: bool) -> None:
        """Grey the colours while the data is stale, or show them again."""
        if is_greyed != self._is_greyed:
            self._is_greyed = is_greyed
            self._show_colours()

    def _show_colours(self) -> None:
        theme = self._console_theme
        self.palette = theme.stale_palette() if self._is_greyed else theme.palette()
        self.repaint()
