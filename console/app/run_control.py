"""Leaves the console, stops and resumes the executor, abandons a run, and arms a read-only console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...engine.core.causes import DEFAULT_REASON
from ...engine.core.waiting import RunnerKind
from ...engine.domain.acts import act_refusal
from ...engine.domain.rows import RunSummary
from ...engine.domain.states import TaskState
from ...engine.domain.text import first_names
from ..model.board import Board
from ..present.executors import executor_loss
from ..screens.console import run_latest
from ..screens.dialogs import ChoiceOption, choose
from ..text.figures import wall
from . import confirmations
from .operator import OperatorActions
from .views import ViewConsole

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan


_UNANSWERED = (
    ChoiceOption("wait", "Wait for the answer"),
    ChoiceOption("leave", "Leave", "it may be done; how to ask again is printed"),
)
_LEAVING = ChoiceOption("leave", "Leave it running", "redrive attach comes back to it")
_STOPPING = (
    ChoiceOption("drain", "Stop after the running tasks", "resume goes on from there"),
    ChoiceOption("now", "Stop now", "running tasks end, and run again later"),
)
_STOPPING_IDLE = (ChoiceOption("drain", "Stop its executor", "no task runs now; resume goes on from there"),)


def _ways_to_stop(board: Board) -> Sequence[ChoiceOption]:
    """The choices; those that differ only for running tasks are offered only if there are some."""
    rows = board.projection.tasks.values()
    return _STOPPING if any(row.state is TaskState.RUNNING for row in rows) else _STOPPING_IDLE


class RunControl:
    """The controller of the executor; each console has one."""

    def __init__(self, console: ViewConsole, actions: OperatorActions) -> None:
        self._console = console
        self._actions = actions

    # --- Leaving --------------------------------------------------------------------------------------------------

    def quit(self) -> None:
        """Leave; first ask about acts without an answer, and about a run that this console started."""
        self.leave(self._quit)

    def leave(self, leave: Callable[[], None]) -> None:
        """Call ``leave``; while acts have no answer, only after a question."""
        sent = self._actions.unanswered
        if not sent:
            leave()
            return
        choose(
            self._console,
            f"No answer yet: {first_names(sent, 1, lambda one: one.words)}",
            _UNANSWERED,
            lambda how: leave() if how == "leave" else None,
        )

    def _quit(self) -> None:
        """If a run that this console started is not over, ask whether to leave it running."""
        console = self._console
        board = console.live.board
        is_running = board is not None and board.projection.run.ended_at is None and console.live.status.executor.alive
        if not is_running or not console.launch.started_here or console.is_stopping or console.lock_reason is not None:
            console.exit(0)
        else:
            assert board is not None
            choose(console, "The run is not over", (_LEAVING, *_ways_to_stop(board)), self._leave)

    def _leave(self, how: str) -> None:
        if how == "leave":
            self._console.exit(0)
        else:
            self._console.is_stopping = True
            self._actions.stop_run(how)

    def stop_run(self) -> None:
        """Stop the executor, and stay in the console."""
        board = self._console.live.board
        ways = _STOPPING if board is None else _ways_to_stop(board)
        choose(self._console, "Stop the run", ways, self._actions.stop_run)

    # --- The executor ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start an executor here if the last one is gone."""
        console, board = self._console, self._console.live.board
        if board is None or board.projection.run.ended_at is not None:
            console.show_warning("there is nothing to resume")
        elif console.runner.is_alive:
            console.show_warning("its executor is alive")
        elif console.runner.kind in (RunnerKind.BUSY, RunnerKind.COPY):
            console.show_warning(executor_loss(console.runner, console.live.now_us).clause)
        elif console.launch.state_path is None:
            console.show_warning("resume it on its own machine: an executor runs beside its state file")
        elif console.lock_reason is not None:
            console.show_warning(console.lock_reason)
        else:
            self._plan_resume(trusted=self._actions.executor.is_trusted)

    def _plan_resume(self, *, trusted: bool) -> None:
        run_latest(self._console, partial(self._confirm_resume, trusted), "resume")

    async def _confirm_resume(self, trusted: bool) -> None:
        """Ask before an executor is started, with the code that it runs and what changed in the flow."""
        console, board = self._console, self._console.live.board
        assert board is not None
        plan = await self._actions.executor.plan(trusted=trusted)
        gone_at = console.live.status.executor.gone_at
        since = f" since {wall(gone_at)}" if gone_at is not None else ""
        question = confirmations.resume_question(board, since, plan)
        self._actions.confirm("resume_here", question, lambda reply: self._accept_plan(plan))

    def _accept_plan(self, plan: ResumePlan) -> None:
        """Resume; if the operator only trusts the code now, import it first and ask about the changes."""
        if plan.doubts:
            self._plan_resume(trusted=True)
        else:
            run_latest(self._console, self._resume, "resume")

    async def _resume(self) -> None:
        console, board = self._console, self._console.live.board
        assert board is not None
        console.show_message("starting an executor ...")
        await self._actions.executor.start(board.projection.run.run_id, has_seen_code=True)
        console.show_message("resumed here")

    def abandon(self, subject: object) -> None:
        """End the unfinished run ``subject`` for good, after a question."""
        summary = self._actionable_run(subject, "abandon")
        if summary is not None:
            run_id = summary.run.run_id
            self._actions.confirm(
                "abandon_run",
                confirmations.abandon_question(summary),
                lambda reply: self._actions.send("abandon", (), reply.reason, run_id=run_id),
            )

    def acknowledge(self, subject: object) -> None:
        """Take note of how the run ``subject`` ended."""
        summary = self._actionable_run(subject, "ack-run")
        if summary is not None:
            self._actions.send("ack-run", (), DEFAULT_REASON, run_id=summary.run.run_id)

    def _actionable_run(self, subject: object, act: str) -> RunSummary | None:
        return self._actions.actionable_item(subject, RunSummary, "run", lambda one: act_refusal(act, one.run.state))
