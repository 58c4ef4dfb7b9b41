"""The console on all state files of a machine: one picture, from which a run is opened or acted on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
from textual.screen import Screen

from ...engine.clock import Clock
from ...engine.errors import RedriveError
from ...engine.statefile.state_files import FileRow
from ..keys.actions import Action, ActionEffect, ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.launch_context import LaunchContext
from ..model.session_status import Link, SessionStatus
from ..present.schedules import NO_ACT, next_times
from ..screens.fleet import FleetScreen, MachineScreen
from ..sessions.live_run import LiveRun
from ..sessions.session import LiveSession
from ..terminal.tty import Tty
from ..text.text import is_remote
from .app import ConsoleApp
from .theme import Theme

if TYPE_CHECKING:
    from .schedule_operator import ScheduleActions

READ_SECONDS = 2.0  # that a key waits for the run of its row

FleetWatch = Callable[[], AsyncIterator[Sequence[FileRow]]]
OpenFile = Callable[[str], Awaitable[LiveSession]]
_ABOUT_RUN = frozenset({"why", "details", "copy"})  # and all that changes it


class NoSession:
    """A session while the run of no row is followed; nothing is read through it."""

    run_id = None
    address = ""
    ssh_arguments = ()
    status = SessionStatus(Link.LIVE)

    async def close(self) -> None:
        """Do nothing."""


_NO_SESSION = cast(LiveSession, NoSession())


class Opening(msgspec.Struct, frozen=True):
    """A view of a run of a state file, which the operator opens."""

    path: str
    run_id: str | None = None
    view: ScreenName = ScreenName.GRAPH


class FleetApp(ConsoleApp):
    """The list. ``chosen`` is what is opened; None: the operator left.

    Args:
        watch: yields the state files, again after each change.
        place: the machine, for people.
        open_file: opens a session on the path or address of a state file.
        before: the file under the cursor at first.
        message: shown at first, as why a file could not be opened.
        is_read_only: whether acts on schedules are refused.
    """

    DEFAULT_MODE = ScreenName.FLEET.value
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {DEFAULT_MODE: FleetScreen}

    def __init__(
        self,
        watch: FleetWatch,
        place: str,
        open_file: OpenFile,
        *,
        tty: Tty | None = None,
        theme: Theme | None = None,
        clock: Clock | None = None,
        before: str | None = None,
        message: str = "",
        is_read_only: bool = False,
    ) -> None:
        super().__init__(_NO_SESSION, tty=tty, theme=theme, clock=clock)
        self.chosen: Opening | None = None
        self.place = place
        self.shown_path: str | None = None
        self._watch = watch
        self._open = open_file
        self._before = before
        self._message = message
        self._is_read_only = is_read_only
        self._is_shown = asyncio.Event()  # the run of ``shown_path`` has a board

    @property
    def list_screen(self) -> FleetScreen:
        """The list, also below a dialog."""
        screen = self.screen_stack[0]
        assert isinstance(screen, FleetScreen)
        return screen

    def start(self) -> None:
        """Start to read the list."""
        self.list_screen.before = self._before
        if self._message:
            self.show_warning(self._message)
        self.set_interval(1.0, self._tick_alone)
        self.run_worker(self._follow(), name="follow", group="follow", exclusive=True)

    async def _follow(self) -> None:
        try:
            async for file_rows in self._watch():
                self.list_screen.show_files(file_rows)
        except RedriveError as error:
            self.list_screen.problem = str(error)
            self.list_screen.show_frame()

    def _tick_alone(self) -> None:
        if self.live.board is None:  # else its clock ticks
            self.tick(self.live.now_us)

    # --- The run under the cursor -----------------------------------------------------------------------------------

    def show_file(self, path: str, run_id: str | None) -> None:
        """Follow a run of another file."""
        self.run_worker(self._show_file(path, run_id), group="file", exclusive=True)

    async def _show_file(self, path: str, run_id: str | None) -> None:
        try:
            session = await self._open(path)
        except RedriveError as error:
            self.list_screen.show_run_problem(path, str(error))
            return
        await self._close_live()
        self.shown_path = path
        self.launch = LaunchContext(None if is_remote(path) else path)
        self.live = LiveRun(session, self.clock, self)
        self.live.follow(run_id)

    def leave_file(self) -> None:
        """Follow no run: the cursor moves."""
        self.workers.cancel_group(self, "file")
        if self.shown_path is not None:
            self.run_worker(self._close_live(), group="leave")

    async def _close_live(self) -> None:
        live, self.live = self.live, LiveRun(_NO_SESSION, self.clock, self)
        self.shown_path = self.selected = None
        self._is_shown.clear()
        live.close()
        await live.session.close()

    def on_board_replaced(self, board: Board) -> None:
        """Show the run of the row."""
        if self.is_running and self.screen_stack:
            self.operator_actions.on_board_replaced(board)
            for screen in self._mounted_screens():
                screen.board_replaced(board)
            self._is_shown.set()
            self.show_frames()

    def on_board_update(self, update: BoardUpdate) -> None:
        """Show what changed in the run of the row."""
        if self.is_running:
            self.operator_actions.on_events(update.events)
            for screen in self._mounted_screens():
                screen.on_news(update)

    def on_status(self) -> None:
        """The list says who runs what."""

    def show_greyed(self, is_greyed: bool) -> None:
        """The list is not older than it says, whatever a run of it is."""

    # --- Opening -----------------------------------------------------------------------------------------------------

    def open_file(self, path: str, run_id: str | None, view: ScreenName = ScreenName.GRAPH) -> None:
        """Leave the list for a view of a run."""
        self.chosen = Opening(path, run_id, view)
        self.exit(0)

    def switch_view(self, view: ScreenName) -> None:
        """Open a view of the run under the cursor, or of the latest one of the schedule there."""
        screen = self.console_screen
        assert isinstance(screen, MachineScreen)
        screen.open_in(view)

    open_view = switch_view

    def return_to_fleet(self) -> None:
        """Do nothing: this is the list."""

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Call a handler; of what is about a run once the run of the row has been read."""
        if action.name in _ABOUT_RUN or (action.effect is not ActionEffect.NONE and action.act is not None):
            await self._wait_for_run()
        await super().handle(action, handler)

    async def _wait_for_run(self) -> None:
        if self.screen is self.list_screen and self.shown_path != self.list_screen.table.cursor_key:
            self.list_screen.on_cursor_rest()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_shown.wait(), READ_SECONDS)

    # --- Schedules --------------------------------------------------------------------------------------------------

    @cached_property
    def schedule_actions(self) -> ScheduleActions:
        """The acts on schedules."""
        from .schedule_operator import ScheduleActions  # here: the first frame needs none of it

        return ScheduleActions(self, self.clock, is_read_only=self._is_read_only)

    def open_schedules(self) -> None:
        """Show the schedules of this machine, that of the row under the cursor first."""
        entry = self.list_screen.entry
        if entry is not None and is_remote(entry.file_row.path):
            self.show_warning(next_times(entry.file_row.supervised, self.clock.now_us()))
        elif self.console_screen is self.list_screen:
            self.schedule_actions.open_schedules(None if entry is None else entry.flow)

    # --- Keys --------------------------------------------------------------------------------------------------------

    def console_handler(self, name: str) -> Callable[[], object] | None:
        """The acts of every console, and those on schedules."""
        if name in NO_ACT:
            return lambda: self.schedule_actions.act(name)
        return self.open_schedules if name == "schedule" else super().console_handler(name)

    def show_exit_hint(self) -> None:
        self.show_message(f"{shown_key('quit')} leaves")

    def reload(self) -> None:
        """Draw everything again."""
        self.redraw()
