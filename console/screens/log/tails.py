"""The ends of several logs side by side, each followed: the selected task and others that run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ....engine.domain.states import TaskState
from ....engine.errors import RedriveError
from ...model.board import Board
from ...model.log import LogSelection
from ...present.log import LogLines
from ...text.glyphs import Glyphs
from ...text.pieces import Line, Piece, Role
from ...text.text import one_line
from ...widgets.bars import Bar
from ...widgets.modal import Modal
from ...widgets.text_view import LinesView
from ..base import run_latest
from .attempt_log import AttemptLog

POLL_SECONDS = 0.5
TAIL_COLUMNS_MIN = 38
_TAILS_MAX = 4
_FRAME_COLUMNS = 4


def tasks_to_tail(board: Board, selected: str | None, columns: int) -> list[str]:
    """Return the selected task, then running tasks, then the latest others, as many as fit side by side."""
    rows = [row for row in board.projection.tasks.values() if row.attempts]
    rows.sort(key=lambda row: (row.name != selected, row.state is not TaskState.RUNNING, -(row.started_at or 0)))
    room = max((columns - _FRAME_COLUMNS) // TAIL_COLUMNS_MIN, 1)
    return [row.name for row in rows[: min(room, _TAILS_MAX)]]


class Tail(Vertical):
    """The end of the log of one attempt, and its name above."""

    DEFAULT_CSS = """
    Tail { width: 1fr; padding: 0 1 0 0; }
    """

    def __init__(self, log: AttemptLog, glyphs: Glyphs) -> None:
        super().__init__()
        self.log_read = log
        self._glyphs = glyphs
        self.heading = Bar()
        self.lines = LinesView(follow=True)

    def compose(self) -> ComposeResult:
        """Yield the name and the lines."""
        yield self.heading
        yield self.lines

    async def update_lines(self) -> None:
        """Read new output. Raises RedriveError."""
        log = self.log_read
        shown = log.text
        before = len(shown.lines)
        first = await log.read_new()
        if log.text is not shown or not before:
            self.lines.set_lines(LogLines(LogSelection(log.text), self._glyphs))
        elif first < before or len(log.text.lines) != before:
            self.lines.lines_changed()
        self.heading.show([Piece(" "), Piece(one_line(log.task), Role.TITLE), Piece(f" #{log.attempt}", Role.DIM)])


class TailsDialog(Modal[None]):
    """The ends of several logs side by side. Keys scroll the focused one, Tab focuses the next."""

    DEFAULT_CSS = """
    TailsDialog > Vertical { max-width: 100%; height: 100%; }
    TailsDialog Horizontal { height: 1fr; }
    """

    def __init__(self, logs: Sequence[AttemptLog], glyphs: Glyphs) -> None:
        title: Line = [Piece("The ends of logs ", Role.TITLE), Piece(" Tab next  Esc back", Role.DIM)]
        super().__init__(title)
        self.tails = [Tail(log, glyphs) for log in logs]
        self._problem = Bar()

    def body(self) -> Iterable[Widget]:
        """Yield the tails, and a line for errors of the connection."""
        yield Horizontal(*self.tails)
        yield self._problem

    def first_focus(self) -> Widget:
        """The first tail."""
        return self.tails[0].lines

    def on_mount(self) -> None:
        """Read at once, then periodically."""
        self._poll()
        self.set_interval(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        if not any(worker.group == "tails" and worker.is_running for worker in self.workers):
            run_latest(self, self._read, "tails")

    async def _read(self) -> None:
        try:
            for tail in self.tails:
                await tail.update_lines()
        except RedriveError as error:
            self._problem.show([Piece(one_line(str(error)), Role.WARNING)])
        else:
            self._problem.show([])
