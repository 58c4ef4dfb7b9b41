"""What the shell learns when the console is left: an exit code, and where the run stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.core.states import RunState, TaskState
from .cli import ExitCode
from .model.board import Board
from .present.durations import clock
from .present.runs import look_of
from .present.text import one_line

if TYPE_CHECKING:
    from .app import ConsoleApp


def exit_code(app: ConsoleApp) -> int:
    """As DESIGN 6 has it for a run that was started here; whoever only looked leaves with 0."""
    board = app.live.board
    if board is None or not app.way.started_here:
        return ExitCode.SUCCESS
    run = board.fold.run
    if run.state is not RunState.RUNNING:
        return _CODES[run.state]
    if app.stopping:
        return ExitCode.INTERRUPTED
    return ExitCode.PARTIAL_OR_BLOCKED if run.blocked_since is not None else ExitCode.SUCCESS


_CODES = {
    RunState.SUCCESS: ExitCode.SUCCESS,
    RunState.FAILED: ExitCode.FAILED,
    RunState.PARTIAL: ExitCode.PARTIAL_OR_BLOCKED,
}


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
