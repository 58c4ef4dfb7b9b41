"""The console on all state files of a machine: one picture, from which a run is opened or acted on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec
from textual.screen import Screen

from ...engine.clock import Clock, SystemClock
from ...engine.errors import RedriveError, RefusedError, StateFileError
from ...engine.statefile import flow_times, supervisor_file
from ...engine.statefile.start_requests import write_request
from ...engine.statefile.state_files import FileRow
from ...engine.statefile.supervisor_file import ServedSchedule
from ..keys.actions import Action, ActionEffect, ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.launch_context import LaunchContext
from ..model.session_status import OPENED_READ_ONLY, Link, SessionStatus
from ..present.schedules import (
    NO_ACT,
    ScheduleAct,
    decision_sentence,
    missed_times,
    next_times,
    pause_ends,
    require_acts,
)
from ..screens.dialogs import ChoiceOption, choose
from ..screens.fleet import FleetScreen
from ..sessions.live_run import LiveRun
from ..sessions.session import LiveSession, current_actor
from ..sessions.target import is_remote
from ..terminal.tty import Tty
from ..text.pieces import Line, Piece
from ..text.text import one_line
from ..widgets.dialog import Dialog, Question, Reply, ask
from .app import ConsoleApp
from .theme import Theme

if TYPE_CHECKING:
    from ..screens.schedules import SchedulesScreen

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


def _none() -> LiveSession:
    return cast(LiveSession, NoSession())


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
        self._clock = clock or SystemClock()
        super().__init__(_none(), tty=tty, theme=theme, clock=self._clock)
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
        self.live = LiveRun(session, self._clock, self)
        self.live.follow(run_id)

    def leave_file(self) -> None:
        """Follow no run: the cursor moves."""
        self.workers.cancel_group(self, "file")
        if self.shown_path is not None:
            self.run_worker(self._close_live(), group="leave")

    async def _close_live(self) -> None:
        live, self.live = self.live, LiveRun(_none(), self._clock, self)
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
        (screen if isinstance(screen, FleetScreen) else cast("SchedulesScreen", screen)).open_in(view)

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

    def open_schedules(self) -> None:
        """Show the schedules of this machine, that of the row under the cursor first."""
        from ..screens.schedules import SchedulesScreen  # here: the first frame needs none of it

        entry = self.list_screen.entry
        if entry is not None and is_remote(entry.file_row.path):
            self.show_warning(next_times(entry.file_row.supervised, self._clock.now_us()))
        elif self.console_screen is self.list_screen:
            self.push_screen(SchedulesScreen(None if entry is None else entry.flow))

    def _act_on_schedule(self, action: str) -> None:
        """Let the operator do what an action means for the schedule under the cursor."""
        row: ServedSchedule | None = getattr(self.console_screen, "row", None)
        if self._is_read_only or row is None:
            self.show_warning(OPENED_READ_ONLY if self._is_read_only else "nothing is selected")
            return
        try:
            acts = require_acts(row, action, self._clock.now_us())
        except RefusedError as error:
            self.show_warning(str(error))
            return
        if len(acts) > 1:
            options = [ChoiceOption(str(place), act.label, one_line(act.help)) for place, act in enumerate(acts)]
            choose(self, f"Start {row.flow}", options, lambda place: self._act(row, acts[int(place)]))
        else:
            self._act(row, acts[0])

    def _act(self, row: ServedSchedule, act: ScheduleAct) -> None:
        now_us, who = self._clock.now_us(), current_actor()
        match act.name:
            case "pause":
                self._choose_pause(row, act)
            case "start":
                place = row.flow, row.state_path or "", act.logical
                self._confirm(row, act, lambda _: partial(write_request, *place, {}, who, now_us))
            case "unpause":
                self._confirm(row, act, lambda _: partial(supervisor_file.unpause, [row.id], now_us))
            case "skip" | "unskip":
                self._confirm(row, act, lambda _: partial(supervisor_file.skip, row.id, act.logical, who))
            case "dismiss":
                self._confirm(row, act, lambda _: partial(supervisor_file.dismiss, row.id, None, now_us, who))
            case "acknowledge":
                self._decide(row, act, partial(supervisor_file.acknowledge, row.id, now_us))
            case "forget":
                self._confirm(row, act, lambda _: partial(flow_times.forget, row))

    def _confirm(
        self,
        row: ServedSchedule,
        act: ScheduleAct,
        change: Callable[[Reply], Callable[[], object]],
        *,
        facts: Sequence[str] = (),
        at_us: int = 0,
        has_reason: bool = False,
    ) -> None:
        """Ask about an act with what it will do, and write it. ``change``: of the answer."""
        missed: list[Line] = [[Piece(time)] for time in missed_times(row)] if act.name == "dismiss" else []
        title = f"{act.label.capitalize()}: {row.flow}"
        reason: Literal["none", "optional"] = "optional" if has_reason else "none"
        key = shown_key(act.action)
        question = Question(title, act.label, trigger=key, facts=[*facts, act.help], preview=missed, reason=reason)
        ask(self, Dialog(question), lambda reply: self._decide(row, act, change(reply), at_us))

    def _decide(self, row: ServedSchedule, act: ScheduleAct, change: Callable[[], object], at_us: int = 0) -> None:
        """Write what the operator decided, and say what holds now. ``at_us``: the end of a pause."""

        async def write() -> None:
            try:
                await asyncio.to_thread(change)
            except StateFileError as error:
                self.show_warning(str(error))
                return
            name = "start-now" if act.name == "start" and act.logical is None else act.name
            self.show_message(decision_sentence(row, name, at_us or act.logical or 0, row.missed_times))
            if self.console_screen is not self.list_screen:
                await cast("SchedulesScreen", self.console_screen).read_rows()

        self.run_worker(write())

    def _choose_pause(self, row: ServedSchedule, act: ScheduleAct) -> None:
        ends = pause_ends(self._clock.now_us())

        def pause(words: str) -> None:
            change = partial(supervisor_file.pause, [row.id], ends[words], who=current_actor())
            self._confirm(
                row,
                act,
                lambda reply: partial(change, reason=reply.reason),
                facts=[words],
                at_us=ends[words],
                has_reason=True,
            )

        choose(self, f"Start no runs of {row.flow}", [ChoiceOption(words, words) for words in ends], pause)

    # --- Keys --------------------------------------------------------------------------------------------------------

    def console_handler(self, name: str) -> Callable[[], object] | None:
        """The acts of every console, and those on schedules."""
        if name in NO_ACT:
            return partial(self._act_on_schedule, name)
        return self.open_schedules if name == "schedule" else super().console_handler(name)

    def show_exit_hint(self) -> None:
        self.show_message(f"{shown_key('quit')} leaves")

    def reload(self) -> None:
        """Draw everything again."""
        self.redraw()
