"""What is left of a console: how it ended, and a few lines on where the run stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...engine.core.projection import RunRow
from ...engine.domain.states import TaskState
from ..model.board import Board
from ..present.runs import look_of
from ..text.durations import clock
from ..text.text import one_line

if TYPE_CHECKING:
    from .app import ConsoleApp


class ConsoleEnd(NamedTuple):
    """How a console ended.

    Attributes:
        return_code: 128 + the number of the signal that ended it, or ``visit.CRASHED``; 0: the operator left.
        started_run: the run that was started here; None: it was only shown, or never began.
        stopping: whether the operator stopped its executor.
    """

    return_code: int = 0
    started_run: RunRow | None = None
    stopping: bool = False


def console_end(app: ConsoleApp, return_code: int | None = None) -> ConsoleEnd:
    """How a console that has been left ended."""
    board = app.live.board
    started_run = board.fold.run if board is not None and app.way.started_here else None
    return ConsoleEnd(return_code or 0, started_run, app.stopping)


def last_words(board: Board | None, alive: bool, way_back: str) -> list[str]:
    """A few lines for the terminal that was given back."""
    if board is None:
        return []
    run = board.fold.run
    took = clock((run.ended_at or board.fold.run.started_at) - run.started_at).strip()
    look = look_of(run).word
    lines = [f"{one_line(run.dag_name)} {one_line(run.run_id)}: {look}, {board.finished} of {board.total} done"]
    if run.ended_at is not None:
        lines[0] += f" in {took}"
    if board.dead_letters:
        lines.append(
            f"{board.dead_letters} dead letter{'s' if board.dead_letters != 1 else ''} to decide: {_some(board)}"
        )
    if run.ended_at is None:
        lines.append(f"{'the run goes on' if alive else 'no executor runs it now'}; come back with: {way_back}")
    return lines


def _some(board: Board) -> str:
    names = [name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER]
    return ", ".join(one_line(name) for name in names[:3]) + (" ..." if len(names) > 3 else "")
