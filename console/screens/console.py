"""What screens and controllers may ask of the app that holds them: the only way from them to it.

``ConsoleApp`` is both protocols; screens and controllers import this module, and the app imports them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer

from ..feed.cause_memory import CauseMemory
from ..feed.live_run import LiveRun
from ..keys.actions import Action, ScreenName
from ..keys.keymap import KeyMap
from ..model.downstreams import ChosenRows, RowsAct
from ..present.header import SessionHealth
from ..present.replay import ReplayPosition
from ..sessions.session import Session
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Role

MESSAGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """How the console came to its run.

    Attributes:
        state_path: the state file, where an executor can be started from here.
        started_here: whether this console started the run: leaving asks what shall become of it.
        run_options: for executors that are started later, fields of RunOptions.
        open_to_act: of a console that was opened to look: a door through which acts may go once it is armed.
    """

    state_path: str | None = None
    started_here: bool = False
    run_options: Mapping[str, Any] = field(default_factory=dict)
    open_for_changes: Callable[[], Awaitable[Session]] | None = None


class TimeControl(Protocol):
    """What screens ask of the controller of the past."""

    @property
    def position(self) -> ReplayPosition | None:
        """Where in the past the board is; None: in the present."""

    def return_to_present(self) -> bool:
        """Back to the present. False: the board shows it already."""


class RowDecisions(Protocol):
    """What screens ask of the controller of breakers, pages and rows."""

    def decide_rows(self, chosen: ChosenRows, act: RowsAct) -> None:
        """Requeue or discard quarantined rows, after a question."""


class Console(Protocol):
    """What screens ask of the app.

    Attributes:
        live: the run that is followed, with its board, its clock and the session to read through.
        memory: what came of causes before.
        selected: the task that is selected, the same on every screen.
        absolute_times: whether times are clock times; else ages.
    """

    live: LiveRun
    memory: CauseMemory
    launch: LaunchContext
    glyphs: Glyphs
    keymap: KeyMap
    selected: str | None
    absolute_times: bool

    @property
    def time_travel(self) -> TimeControl:
        """The past."""

    @property
    def downstream_actions(self) -> RowDecisions:
        """Acts on quarantined rows."""

    @property
    def address(self) -> str:
        """Where the run is, for the header."""

    @property
    def loading_message(self) -> str:
        """What is said while there is no picture yet."""

    @property
    def health(self) -> SessionHealth:
        """How old the picture is, and whether an executor is alive."""

    @property
    def executor_gone_at(self) -> int | None:
        """Since when the run that is shown has no executor (microseconds UTC); None while it has one."""

    @property
    def attention_count(self) -> int:
        """How many breakers, pages and groups of rows need a human."""

    @property
    def lock_reason(self) -> str | None:
        """Why nothing may be changed now; None if it may."""

    @property
    def armed_seconds(self) -> int:
        """How much longer a console that was opened to look may change something; 0: not at all."""

    @property
    def previous_view(self) -> ScreenName | None:
        """The view that going back leads to; None at the top level."""

    def show_line(self, line: Line, seconds: float | None = None) -> None:
        """Show a line in place of the keys."""

    def show_message(self, sentence: str, role: Role = Role.TEXT, seconds: float = MESSAGE_SECONDS) -> None:
        """Show a sentence in place of the keys."""

    def switch_view(self, view: ScreenName) -> None:
        """Go to a view as to a top level."""

    def open_view(self, view: ScreenName) -> None:
        """Go on to a view from which going back returns to what is seen now."""

    def go_back(self) -> bool:
        """Go to what lies below, else to the view before. False: this is the top level."""

    def follow(self, run_id: str) -> None:
        """Show another run of the file."""

    def show_details(self) -> None:
        """Show everything about the selected task."""

    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None] | None = None) -> object:
        """Show a screen or a box over what is seen."""


class ConsoleHost(Console, Protocol):
    """What controllers ask of the app beside that.

    Attributes:
        acting_session: the door for acts of a console that was opened to look; None as long as it is not armed.
        stopping: whether the console ends as soon as the executor has gone.
    """

    acting_session: Session | None
    is_stopping: bool

    @property
    def size(self) -> Size:
        """Of the terminal, in cells."""

    @property
    def screen_name(self) -> ScreenName:
        """The place of the screen that is seen, or that lies below the box that is seen."""

    def handler_of(self, action: Action) -> Callable[[], object] | None:
        """What an action calls on that screen; None if nothing there handles it."""

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Make such a call."""

    def run_worker(self, work: Any, *, group: str = "default", exclusive: bool = False) -> object:
        """Do something that waits, beside the screen; an exclusive one takes the place of others of its group."""

    def set_timer(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call something after so many seconds."""

    def exit(self, result: object = None) -> None:
        """Leave."""

    def copy_to_clipboard(self, text: str) -> None:
        """Have the terminal copy a text."""

    def show_frames(self) -> None:
        """Show header, tabs and keys as of now."""

    def on_task_acted(self, name: str) -> None:
        """Take note that an act on a task was done."""

    def on_seek(self, seq: int, task: str | None) -> None:
        """Show the board at the moment after the event ``seq`` of the past; ``task`` comes under the cursor."""

    def freeze_gc(self) -> None:
        """Count what is in memory by now as no garbage."""
