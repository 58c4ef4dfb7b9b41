"""The interface of the app for screens and controllers.

``ConsoleApp`` is both protocols; screens and controllers import this module, and the app imports them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer

from ...engine.core.outlook import RunnerStatus
from ...engine.errors import RedriveError
from ..feed.cause_memory import CauseMemory
from ..feed.live_run import LiveRun
from ..keys.actions import Action, ScreenName
from ..keys.keymap import KeyMap
from ..model.columns import ColumnChoice
from ..model.downstreams import ChosenRows, RowsAct
from ..model.waiting_runs import WaitingRun
from ..present.replay import ReplayPosition
from ..sessions.session import Session
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Role

MESSAGE_SECONDS = 5.0


@contextmanager
def errors_shown(console: Console) -> Iterator[None]:
    """Show an error of the session as a message, and go on behind the block."""
    try:
        yield
    except RedriveError as error:
        console.show_message(str(error), Role.WARNING)


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """How the console was started.

    Attributes:
        state_path: the state file, where an executor can be started from here.
        started_here: whether this console started the run; leaving then asks whether to stop it.
        run_options: for executors that are started later, fields of RunOptions.
        open_for_changes: opens a session for changes once a read-only console is armed.
        is_of_fleet: whether Esc at the top level returns to the list of state files.
    """

    state_path: str | None = None
    started_here: bool = False
    run_options: Mapping[str, object] = field(default_factory=dict)
    open_for_changes: Callable[[], Awaitable[Session]] | None = None
    is_of_fleet: bool = False


class TimeControl(Protocol):
    """The time travel controller, as screens use it."""

    @property
    def position(self) -> ReplayPosition | None:
        """The position in the past; None in the present."""

    def return_to_present(self) -> bool:
        """Return to the present. False if the board shows it already."""


class RowDecisions(Protocol):
    """The controller of breakers, pages and rows, as screens use it."""

    def decide_rows(self, chosen: ChosenRows, act: RowsAct) -> None:
        """Requeue or discard quarantined rows, after a question."""


class Console(Protocol):
    """The app, as screens use it.

    Attributes:
        live: the run that is followed, with its board, its clock and the session to read through.
        memory: the history of causes.
        selected: the task that is selected, the same on every screen.
        absolute_times: whether times are clock times; else ages.
        columns: the columns of the lists.
    """

    live: LiveRun
    memory: CauseMemory
    launch: LaunchContext
    glyphs: Glyphs
    keymap: KeyMap
    selected: str | None
    absolute_times: bool
    columns: ColumnChoice

    @property
    def size(self) -> Size:
        """The size of the terminal, in cells."""

    @property
    def time_travel(self) -> TimeControl:
        """The controller of the past."""

    @property
    def downstream_actions(self) -> RowDecisions:
        """Acts on quarantined rows."""

    @property
    def address(self) -> str:
        """The address of the state file, for the header."""

    @property
    def loading_message(self) -> str:
        """The message shown until the first board is loaded."""

    @property
    def runner(self) -> RunnerStatus:
        """Who runs the displayed run."""

    @property
    def redrive_line(self) -> Line:
        """The progress of a redrive that is under way; empty if there is none."""

    @property
    def waiting_runs(self) -> Sequence[WaitingRun]:
        """The other unfinished runs of the state file that need a human."""

    @property
    def attention_count(self) -> int:
        """The number of breakers, pages and groups of rows that need a human."""

    @property
    def lock_reason(self) -> str | None:
        """Why changes are refused now; None if they are allowed."""

    @property
    def armed_seconds(self) -> int:
        """For how many more seconds a read-only console accepts changes; 0: it accepts none."""

    @property
    def previous_view(self) -> ScreenName | None:
        """The view to which ``go_back`` returns; None at the top level."""

    def show_line(self, line: Line, seconds: float | None = None, about: str | None = None) -> None:
        """Show a line in place of the keys."""

    def show_message(self, sentence: str, role: Role = Role.TEXT, seconds: float = MESSAGE_SECONDS) -> None:
        """Show a sentence in place of the keys."""

    def switch_view(self, view: ScreenName) -> None:
        """Go to a view as to a top level."""

    def open_view(self, view: ScreenName) -> None:
        """Open a view; going back returns to the current screen."""

    def go_back(self) -> bool:
        """Close the top screen, else go to the previous view. False at the top level."""

    def return_to_fleet(self) -> None:
        """Go back to the list of state files, if the console was opened from it."""

    def follow(self, run_id: str, view: ScreenName = ScreenName.GRAPH) -> None:
        """Show a view of another run of the file."""

    def show_details(self) -> None:
        """Show everything about the selected task."""

    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None] | None = None) -> object:
        """Show a screen or a dialog over the visible one."""


class ConsoleHost(Console, Protocol):
    """The app, as controllers use it.

    Attributes:
        acting_session: the session for changes of a read-only console; None until it is armed.
        stopping: whether the console ends as soon as the executor has gone.
    """

    acting_session: Session | None
    is_stopping: bool

    @property
    def screen_name(self) -> ScreenName:
        """The name of the visible screen, or of the screen below a dialog."""

    @property
    def selection_problem(self) -> str:
        """Why an act on the selection of that screen has no target."""

    def handler_of(self, action: Action) -> Callable[[], object] | None:
        """The handler of an action on that screen; None if it has none."""

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Call a handler."""

    def run_worker(self, work: Any, *, group: str = "default", exclusive: bool = False) -> object:
        """Run ``work`` in the background; exclusive work replaces other work of its group."""

    def set_timer(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` after ``delay`` seconds."""

    def exit(self, result: object = None) -> None:
        """End the console."""

    def copy_to_clipboard(self, text: str) -> None:
        """Have the terminal copy a text."""

    def show_frames(self) -> None:
        """Show header, tabs and keys as of now."""

    def on_task_acted(self, name: str) -> None:
        """Update the screens after an act on a task."""

    def on_seek(self, seq: int, task: str | None) -> None:
        """Show the board as of the past event ``seq`` and select ``task``."""

    def freeze_gc(self) -> None:
        """Exclude all current objects from garbage collection."""
