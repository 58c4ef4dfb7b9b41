"""The app as screens use it, and their work in the background: reads after events, and after the cursor rests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

from textual.dom import DOMNode
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from ...engine.core.waiting import RunnerStatus
from ...engine.errors import RedriveError
from ...engine.statefile.needs import Need
from ..keys.actions import ScreenName
from ..model.launch_context import LaunchContext
from ..model.systems import ChosenRows, RowsAct
from ..present.header import ReplayPosition
from ..sessions.cause_histories import CauseHistories
from ..sessions.live_run import LiveRun
from ..sessions.other_runs import OtherRuns
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Role

MESSAGE_SECONDS = 5.0


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
        cause_histories: what became of causes before.
        other_runs: the other unfinished runs of the state file that need a human.
        selected: the task that is selected, the same on every screen.
        absolute_times: whether events have clock times, and lines of a log one.
    """

    live: LiveRun
    cause_histories: CauseHistories
    other_runs: OtherRuns
    launch: LaunchContext
    glyphs: Glyphs
    selected: str | None
    absolute_times: bool

    @property
    def time_travel(self) -> TimeControl:
        """The controller of the past."""

    @property
    def systems_actions(self) -> RowDecisions:
        """Acts on quarantined rows."""

    @property
    def runner(self) -> RunnerStatus:
        """The runner of the displayed run."""

    @property
    def redrive_line(self) -> Line:
        """The progress of a redrive that is under way; empty if there is none."""

    @property
    def can_undo(self) -> bool:
        """Whether an act of the run can be taken back."""

    @property
    def tour_line(self) -> Line:
        """The line of the demo's tour; empty if it is hidden or there is none."""

    @property
    def needs_of_run(self) -> Sequence[Need]:
        """The needs of the followed run."""

    @property
    def attention_count(self) -> int:
        """The number of breakers, pages and groups of rows that need a human."""

    @property
    def lock_reason(self) -> str | None:
        """Why changes are refused now; None if they are allowed."""

    @property
    def previous_view(self) -> ScreenName | None:
        """The view to which ``go_back`` returns; None at the top level."""

    def show_line(
        self, line: Line, seconds: float | None = None, about: str | None = None, *, yields: bool = False
    ) -> None:
        """Show a line in place of the keys."""

    def show_message(self, sentence: str, role: Role = Role.TEXT, seconds: float = MESSAGE_SECONDS) -> None:
        """Show a sentence in place of the keys."""

    def show_warning(self, sentence: str, seconds: float = MESSAGE_SECONDS) -> None:
        """Show why nothing was done."""

    def open_view(self, view: ScreenName) -> None:
        """Open a view; going back returns to the current screen."""

    def go_back(self) -> bool:
        """Close the top screen, else go to the previous view. False at the top level."""

    def return_to_fleet(self) -> None:
        """Go back to the list of state files, if the console was opened from it."""

    def follow(self, run_id: str, view: ScreenName = ScreenName.GRAPH) -> None:
        """Show a view of another run of the file."""

    def show_details(self, task: str) -> None:
        """Show everything about a task."""

    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None] | None = None) -> object:
        """Show a screen or a dialog over the visible one."""


# --- Work in the background ------------------------------------------------------------------------------------------


SOON_SECONDS = 0.2  # events within this time share one read
_RESTING_SECONDS = 0.15  # the cursor may be moving on
_REST_FACTOR = 4.0  # pause after a read, as a multiple of its duration


@contextmanager
def errors_shown(show_warning: Callable[[str], None]) -> Iterator[None]:
    """Show an error of the session as a message, and go on behind the block."""
    try:
        yield
    except RedriveError as error:
        show_warning(str(error))


def run_latest(node: DOMNode, work: Callable[[], Awaitable[None]], group: str, *, shows_errors: bool = True) -> None:
    """Run ``work`` in the background; a later call of the same group replaces it.

    A RedriveError is shown as a message, or left to the header; any other error ends the console.
    """

    async def guarded() -> None:
        with errors_shown(cast(Console, node.app).show_warning) if shows_errors else suppress(RedriveError):
            await work()

    node.run_worker(cast(Any, guarded), group=group, exclusive=True)  # the stubs know only work that returns something


class Debouncer:
    """Calls ``on_rest`` once the cursor rests; a start while it waits changes nothing."""

    def __init__(self, widget: Widget, on_rest: Callable[[], None]) -> None:
        self._widget = widget
        self._on_rest = on_rest
        self.is_waiting = False

    def start(self) -> None:
        """Wait from now on, unless the timer waits already."""
        if not self.is_waiting and self._widget.is_mounted:
            self.is_waiting = True
            self._widget.set_timer(_RESTING_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self.is_waiting = False
        self._on_rest()


class Refresher:
    """Calls ``read`` in the background; a request during a read starts one more read afterwards.

    A RedriveError is left to the header: the next event reads again. Any other error ends the console.
    """

    def __init__(self, node: DOMNode, read: Callable[[], Awaitable[None]]) -> None:
        self._node = node
        self._read = read
        self._timer: Timer | None = None
        self._due_at = float("inf")
        self._reading = False
        self._not_before = float("-inf")

    def request(self, seconds: float = SOON_SECONDS) -> None:
        """Read within ``seconds``, or after the pause that follows a slow read."""
        now = asyncio.get_running_loop().time()
        due_at = max(now + seconds, self._not_before)
        if due_at >= self._due_at:
            return
        self._due_at = due_at
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._node.set_timer(max(due_at - now, 0.001), self._start_read)

    def _start_read(self) -> None:
        self._timer = None
        self._due_at = float("inf")
        if self._reading:
            self.request()
        else:
            self._reading = True
            self._node.run_worker(cast(Any, self._run))  # the stubs know only work that returns something

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with suppress(RedriveError):
                await self._read()
        finally:
            self._reading = False
            self._not_before = loop.time() + _REST_FACTOR * (loop.time() - began)
