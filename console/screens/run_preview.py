"""The selected run in the rows that the list of runs leaves free."""

from __future__ import annotations

from typing import cast

from ..model.board import Board
from ..model.runner import runner_of
from ..present.run_preview import preview_lines
from ..present.tasks import Scene
from ..sessions.session import RunSummary
from ..widgets.bars import Bar
from .base import run_latest
from .console import Console
from .refresh import RestTimer

TASKS_MAX = 2_000  # of a run that is read for its preview


class RunPreview(Bar):
    """What a run was about: its parameters and the tasks that matter most. Other runs than the followed are read."""

    def __init__(self) -> None:
        super().__init__(0, id="preview")
        self._run: RunSummary | None = None
        self._rows = 0
        self._has_gap = False
        self._read_board: Board | None = None  # of another run than the followed
        self._rest_timer = RestTimer(self, self._start_reading)

    def show_run(self, run: RunSummary | None, rows: int, *, has_gap: bool) -> None:
        """Show a run in at most ``rows`` rows; with ``has_gap`` the last one is empty."""
        self._run, self._rows, self._has_gap = run, rows - has_gap, has_gap
        if self._board() is None and self._is_small and rows > 0:
            self._rest_timer.start()
        self.update_lines()

    def update_lines(self) -> None:
        """Paint the run as of now; a run that has not been read leaves its rows empty."""
        board, console = self._board(), cast(Console, self.app)
        if self._run is None or self._rows < 1 or not self._is_small:
            self.set_row_count(0)
        elif board is not None:
            runner = runner_of(board.projection.run, console.live.status)
            scene = Scene(board, console.live.now_us, console.glyphs, console.absolute_times, runner=runner)
            lines = preview_lines(scene, self.app.size.width, self._rows)
            self.set_row_count(len(lines) + self._has_gap)
            self.show_lines(lines)
        else:
            self.show_lines([])

    @property
    def is_settled(self) -> bool:
        """Whether no run is about to be read."""
        return not self._rest_timer.is_waiting

    @property
    def _is_small(self) -> bool:
        return self._run is not None and sum(self._run.counts.values()) <= TASKS_MAX

    def _board(self) -> Board | None:
        """The board of the run, if it is known."""
        wanted = self._run.run.run_id if self._run is not None else None
        known = (cast(Console, self.app).live.board, self._read_board)
        return next((one for one in known if one is not None and one.projection.run.run_id == wanted), None)

    def _start_reading(self) -> None:
        # the header shows an error; the next move of the cursor reads again
        run_latest(self, self._read, "preview", shows_errors=False)

    async def _read(self) -> None:
        wanted = self._run
        if wanted is None or self._board() is not None:
            return
        self._read_board = Board(await cast(Console, self.app).live.session.snapshot(wanted.run.run_id))
        self.update_lines()
