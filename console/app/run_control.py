"""Whether the run goes on, and whether it may be changed: leaving, stopping, resuming, arming."""

from __future__ import annotations

import time

from ...engine.errors import RedriveError
from ..screens.choice_dialog import Option
from ..screens.console import ConsoleHost
from ..text.durations import wall
from ..text.pieces import Role
from . import confirmations
from .operator import Acts

ARMED_SECONDS = 600

_QUITTING = (
    Option("leave", "Leave it running", "redrive attach comes back to it"),
    Option("drain", "Stop after the running tasks", "resume goes on from there"),
    Option("now", "Stop now", "what runs is ended, and runs again later"),
)
_STOPPING = _QUITTING[1:]


class RunControl:
    """One for each console."""

    def __init__(self, console: ConsoleHost, acts: Acts) -> None:
        self._console = console
        self._acts = acts
        self._armed_until = 0.0  # monotonic seconds

    # --- Leaving --------------------------------------------------------------------------------------------------

    def quit(self) -> None:
        """Leave; while a run that was started here lives, ask what shall become of it."""
        console = self._console
        board = console.live.board
        lives = board is not None and board.fold.run.ended_at is None and console.health.executor_alive
        if not lives or not console.way.started_here or console.stopping or console.locked is not None:
            console.exit(0)
        else:
            self._acts.choose("The run is not over", _QUITTING, self._leave)

    def _leave(self, how: str) -> None:
        if how == "leave":
            self._console.exit(0)
        else:
            self._console.stopping = True
            self._acts.stop_run(how)

    def stop_run(self) -> None:
        """End the executor, and stay to see it."""
        self._acts.choose("Stop the run", _STOPPING, self._acts.stop_run)

    # --- The executor ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start an executor here, when the last one is gone."""
        console, board = self._console, self._console.live.board
        if board is None or board.fold.run.ended_at is not None:
            console.show_message("there is nothing to resume", Role.WARNING)
        elif console.health.executor_alive:
            console.show_message("its executor is alive", Role.WARNING)
        elif console.way.state_path is None:
            console.show_message("resume it over there: an executor runs beside its state file", Role.WARNING)
        elif console.locked is not None:
            console.show_message(console.locked, Role.WARNING)
        else:
            gone_at = console.health.gone_at
            since = f" since {wall(gone_at, None)}" if gone_at is not None else ""
            question = confirmations.of_resume(board, since, self._acts.key_of("resume_here"))
            self._acts.ask(question, lambda reply: console.run_worker(self._resume, group="resume", exclusive=True))

    async def _resume(self) -> None:
        from ..sessions.embedded import resume

        console, board = self._console, self._console.live.board
        assert board is not None and console.way.state_path is not None
        console.show_message("starting an executor ...")
        try:
            await resume(console.way.state_path, board.fold.run.run_id, console.way.run_options)
        except RedriveError as error:
            console.show_message(str(error), Role.WARNING)
        else:
            console.show_message("resumed here")

    # --- Arming ---------------------------------------------------------------------------------------------------

    @property
    def armed_seconds(self) -> int:
        """How much longer a console that was opened to look may change something; 0: not at all."""
        return max(round(self._armed_until - time.monotonic()), 0) if self._console.acting_session is not None else 0

    def arm(self) -> None:
        """Allow changes for a while, or forbid them again."""
        console = self._console
        if self.armed_seconds:
            self._armed_until = 0.0
            console.show_message("changes are forbidden again")
        elif console.way.open_to_act is None:
            why = console.health.read_only
            console.show_message(why or "changes are allowed already", Role.WARNING if why else Role.TEXT)
        else:
            question = confirmations.of_arming(ARMED_SECONDS // 60, "opened read-only", self._acts.key_of("arm"))
            self._acts.ask(question, lambda reply: console.run_worker(self._arm, group="arm", exclusive=True))

    async def _arm(self) -> None:
        console = self._console
        assert console.way.open_to_act is not None
        try:
            if console.acting_session is None:
                console.acting_session = await console.way.open_to_act()
        except RedriveError as error:
            console.show_message(str(error), Role.WARNING)
            return
        self._armed_until = time.monotonic() + ARMED_SECONDS
        console.show_frames()
        console.show_message(f"armed: changes are allowed for {ARMED_SECONDS // 60} minutes", Role.WARNING)
