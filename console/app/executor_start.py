"""The executor that an act or the operator needs: whether it can be started here, with which code, and its start."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...engine.domain.acts import STARTS_WORK, Command
from ...engine.errors import RedriveError
from .views import ViewConsole

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan


class ExecutorStarter:
    """The start of an executor for the run that is followed.

    ``expected_run_id``: the run of the latest act that was confirmed with an executor, until that gives a sign of life.
    """

    def __init__(self, console: ViewConsole) -> None:
        self._console = console
        self.expected_run_id: str | None = None

    @property
    def is_expected(self) -> bool:
        """Whether an executor of the run that is followed starts."""
        board = self._console.live.board
        return board is not None and board.projection.run.run_id == self.expected_run_id

    @property
    def can_be_started(self) -> bool:
        """Whether nobody runs the run, or would by himself, and an executor can be started here."""
        console = self._console
        is_here = console.launch.state_path is not None and not console.launch.started_here
        return is_here and console.runner.has_ended

    @property
    def is_trusted(self) -> bool:
        """Whether the operator has said that code which others may have written is imported."""
        return bool(self._console.launch.run_options.get("trust"))

    async def plan(self, *, trusted: bool, run_again: Collection[str] = ()) -> ResumePlan:
        """Find the code with which an executor would go on, and what changed in the flow. Raises RedriveError.

        ``run_again``: tasks that an act lets run again before.
        """
        from ...engine.executor.resume_plan import plan_resume

        console, board = self._console, self._console.live.board
        assert board is not None and console.launch.state_path is not None
        console.show_message("reading the flow ...")
        run_id = board.projection.run.run_id
        return await plan_resume(console.launch.state_path, run_id, trusted=trusted, run_again=run_again)

    async def start_after(self, command: Command, *, is_confirmed: bool) -> str:
        """Start the executor that was confirmed with an act, or that the run of this console needs after it.

        Return why it could not be started; empty if it was, or if none is needed.
        """
        if not (is_confirmed or self._is_due_after(command)):
            return ""
        try:
            await self.start(command.run_id or "", has_seen_code=is_confirmed)
        except RedriveError as error:
            self.expected_run_id = None
            return f"but no executor could be started: {error}"
        return ""

    def _is_due_after(self, command: Command) -> bool:
        """Whether the act has made work for the run that this console started, and its executor has ended."""
        launch = self._console.launch
        is_here = launch.started_here and launch.state_path is not None
        return is_here and command.act in STARTS_WORK and not self._console.live.session.has_executor()

    async def start(self, run_id: str, *, has_seen_code: bool) -> None:
        """Start an executor here. Raises the error that kept it from starting.

        ``has_seen_code``: the operator has seen the code, and what changed in the flow.
        """
        from ..sessions.local import resume

        console = self._console
        assert console.launch.state_path is not None
        accepted = {"accept_changes": True, "trust": True} if has_seen_code else {}
        await resume(console.launch.state_path, run_id, {**console.launch.run_options, **accepted})
        console.live.session.has_executor()  # the header need not wait for the next look at it
