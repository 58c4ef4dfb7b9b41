"""What the console reads beside the followed run: what running tasks use, and the other runs of the state file."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from ...engine.core.outlook import RunnerStatus
from ...engine.domain.states import TaskState
from ...engine.errors import RedriveError
from ..feed.live_run import LiveRun
from ..feed.other_runs import OtherRuns
from ..keys.actions import ScreenName
from ..model.board import Board
from ..screens.base import ConsoleScreen, run_latest

_SHOWING_USAGE = frozenset({ScreenName.GRAPH, ScreenName.TIMELINE, ScreenName.DETAIL})


class ReadingApp(Protocol):
    """The app, as these reads use it."""

    live: LiveRun
    other_runs: OtherRuns

    @property
    def runner(self) -> RunnerStatus:
        """Who runs the displayed run."""

    @property
    def console_screen(self) -> ConsoleScreen:
        """The visible screen, or the screen below a dialog."""

    def on_other_runs(self) -> None:
        """Show the other runs that need a human."""


def refresh_usage(app: ReadingApp) -> None:
    """Ask the executor what running tasks use, while a screen shows them."""
    board, screen = app.live.board, app.console_screen
    if board is None or app.live.is_past or screen.PLACE not in _SHOWING_USAGE or app.live.status.is_stale:
        return
    if board.counts[TaskState.RUNNING] and app.runner.is_alive:
        run_latest(screen, partial(_read_usage, app.live, board), "usage")
    else:
        board.usage = {}


async def _read_usage(live: LiveRun, board: Board) -> None:
    try:
        board.usage = {one.task: one for one in await live.session.usage()}
    except RedriveError:
        board.usage = {}  # the frame shows what is wrong with the connection


async def read_other_runs(app: ReadingApp) -> None:
    """Read the other runs that need a human, and show them if they have changed."""
    board = app.live.board
    assert board is not None
    if await app.other_runs.refresh(app.live.session, board.projection.run.run_id):
        app.on_other_runs()
