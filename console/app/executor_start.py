"""The executor that an act or the operator needs: whether it can be started here, with which code, and its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    async def plan(self, *, trusted: bool) -> ResumePlan:
        """Find the code with which an executor would go on, and what changed in the flow. Raises RedriveError."""
        from ...engine.executor.resume_plan import plan_resume

        console, board = self._console, self._console.live.board
        assert board is not None and console.launch.state_path is not None
        console.show_message("reading the flow ...")
        return await plan_resume(console.launch.state_path, board.projection.run.run_id, trusted=trusted)

    async def start(self, run_id: str) -> None:
        """Start an executor here. Raises the error that kept it from starting."""
        from ..sessions.local import resume

        console = self._console
        assert console.launch.state_path is not None
        options = {**console.launch.run_options, "accept_changes": True, "trust": True}  # the operator has seen both
        await resume(console.launch.state_path, run_id, options)
