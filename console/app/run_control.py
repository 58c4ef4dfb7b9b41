"""Leaving the console, stopping and resuming the run, and arming a read-only console."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..screens.choice_dialog import ChoiceOption
from ..screens.console import ConsoleHost, errors_shown
from ..sessions.session import RunSummary
from ..text.durations import wall
from ..text.pieces import Role
from . import confirmations
from .operator import OperatorActions

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan

ARMED_SECONDS = 600

_QUITTING = (
    ChoiceOption("leave", "Leave it running", "redrive attach comes back to it"),
    ChoiceOption("drain", "Stop after the running tasks", "resume goes on from there"),
    ChoiceOption("now", "Stop now", "running tasks end, and run again later"),
)
_STOPPING = _QUITTING[1:]


class RunControl:
    """The controller of the executor and of arming; each console has one."""

    def __init__(self, console: ConsoleHost, actions: OperatorActions) -> None:
        self._console = console
        self._actions = actions
        self._armed_until = 0.0  # monotonic seconds

    # --- Leaving --------------------------------------------------------------------------------------------------

    def quit(self) -> None:
        """Leave; if a run that this console started is not over, ask whether to leave it running."""
        console = self._console
        board = console.live.board
        is_running = board is not None and board.projection.run.ended_at is None and console.live.status.executor_alive
        if not is_running or not console.launch.started_here or console.is_stopping or console.lock_reason is not None:
            console.exit(0)
        else:
            self._actions.choose("The run is not over", _QUITTING, self._leave)

    def _leave(self, how: str) -> None:
        if how == "leave":
            self._console.exit(0)
        else:
            self._console.is_stopping = True
            self._actions.stop_run(how)

    def stop_run(self) -> None:
        """Stop the executor, and stay in the console."""
        self._actions.choose("Stop the run", _STOPPING, self._actions.stop_run)

    # --- The executor ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start an executor here if the last one is gone."""
        console, board = self._console, self._console.live.board
        if board is None or board.projection.run.ended_at is not None:
            console.show_message("there is nothing to resume", Role.WARNING)
        elif console.live.status.executor_alive:
            console.show_message("its executor is alive", Role.WARNING)
        elif console.launch.state_path is None:
            console.show_message("resume it on its own machine: an executor runs beside its state file", Role.WARNING)
        elif console.lock_reason is not None:
            console.show_message(console.lock_reason, Role.WARNING)
        else:
            self._plan_resume(trusted=bool(console.launch.run_options.get("trust")))

    def _plan_resume(self, *, trusted: bool) -> None:
        self._console.show_message("reading the flow ...")
        self._console.run_worker(self._confirm_resume(trusted), group="resume", exclusive=True)

    async def _confirm_resume(self, trusted: bool) -> None:
        """Ask before an executor is started, with the code that it runs and what changed in the flow."""
        from ..sessions import embedded

        console, board = self._console, self._console.live.board
        assert board is not None and console.launch.state_path is not None
        with errors_shown(console):
            plan = await embedded.plan(console.launch.state_path, board.projection.run.run_id, trusted=trusted)
            gone_at = console.live.status.executor_gone_at
            since = f" since {wall(gone_at, None)}" if gone_at is not None else ""
            question = confirmations.resume_question(board, since, self._actions.key_for("resume_here"), plan)
            self._actions.confirm(question, lambda reply: self._accept_plan(plan))

    def _accept_plan(self, plan: ResumePlan) -> None:
        """Resume; if the operator only trusts the code now, import it first and ask about the changes."""
        if plan.doubts:
            self._plan_resume(trusted=True)
        else:
            self._console.run_worker(self._resume, group="resume", exclusive=True)

    async def _resume(self) -> None:
        from ..sessions import embedded

        console, board = self._console, self._console.live.board
        assert board is not None and console.launch.state_path is not None
        console.show_message("starting an executor ...")
        options = {**console.launch.run_options, "accept_changes": True, "trust": True}  # the operator has seen both
        with errors_shown(console):
            await embedded.resume(console.launch.state_path, board.projection.run.run_id, options)
            console.show_message("resumed here")

    def abandon(self, subject: object) -> None:
        """End the unfinished run ``subject`` for good, after a question."""
        console = self._console
        if not isinstance(subject, RunSummary) or subject.run.ended_at is not None:
            console.show_message("only an unfinished run can be abandoned", Role.WARNING)
        elif self._actions.actionable_board(None) is not None:
            question = confirmations.abandon_question(subject, self._actions.key_for("abandon_run"))
            run_id = subject.run.run_id
            self._actions.confirm(
                question, lambda reply: self._actions.send("abandon", (), reply.reason, run_id=run_id)
            )

    # --- Arming ---------------------------------------------------------------------------------------------------

    @property
    def armed_seconds(self) -> int:
        """For how many seconds a read-only console still allows changes; 0: it allows none."""
        return max(round(self._armed_until - time.monotonic()), 0) if self._console.acting_session is not None else 0

    def arm(self) -> None:
        """Allow changes for ``ARMED_SECONDS``, or forbid them again."""
        console = self._console
        if self.armed_seconds:
            self._armed_until = 0.0
            console.show_message("changes are forbidden again")
        elif console.launch.open_for_changes is None:
            why = console.live.status.read_only
            console.show_message(why or "changes are allowed already", Role.WARNING if why else Role.TEXT)
        else:
            question = confirmations.arming_question(
                ARMED_SECONDS // 60, "opened read-only", self._actions.key_for("arm")
            )
            self._actions.confirm(question, lambda reply: console.run_worker(self._arm, group="arm", exclusive=True))

    async def _arm(self) -> None:
        console = self._console
        assert console.launch.open_for_changes is not None
        with errors_shown(console):
            if console.acting_session is None:
                console.acting_session = await console.launch.open_for_changes()
            self._armed_until = time.monotonic() + ARMED_SECONDS
            console.show_frames()
            console.show_message(f"armed: changes are allowed for {ARMED_SECONDS // 60} minutes", Role.WARNING)
