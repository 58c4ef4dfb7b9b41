"""The end of a console: its result, and a few lines about the run for the terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from ...engine.core.projection import RunRow
from ...engine.domain.states import TaskState
from ..model.board import Board
from ..present.runs import deadline_note, run_style
from ..text.durations import format_duration
from ..text.text import one_line

if TYPE_CHECKING:
    from .app import ConsoleApp


class ConsoleEnd(NamedTuple):
    """The result of a console.

    Attributes:
        return_code: 128 + the number of the signal that ended it, or ``launch.CRASHED``; 0: the operator left.
        started_run: the run that this console started; None if it started no run.
        stopping: whether the operator stopped the executor.
        returns_to_fleet: whether the operator went back to the list of state files.
    """

    return_code: int = 0
    started_run: RunRow | None = None
    is_stopping: bool = False
    returns_to_fleet: bool = False


def console_end(app: ConsoleApp, return_code: int | None = None) -> ConsoleEnd:
    """The result of a console that was left."""
    board = app.live.board
    started_run = board.projection.run if board is not None and app.launch.started_here else None
    return ConsoleEnd(return_code or 0, started_run, app.is_stopping)


def exit_lines(board: Board | None, is_executor_alive: bool, target: str) -> list[str]:
    """The lines about the run that are printed after the console has closed. ``target``: the state file."""
    if board is None:
        return []
    run = board.projection.run
    elapsed = format_duration((run.ended_at or board.projection.run.started_at) - run.started_at)
    state = run_style(run).word
    lines = [f"{one_line(run.dag_name)} {one_line(run.run_id)}: {state}, {board.finished} of {board.total} done"]
    if run.ended_at is not None:
        lines[0] += f" in {elapsed}"
    lines[0] += deadline_note(run)
    if board.dead_letters:
        letters = f"dead letter{'s' if board.dead_letters != 1 else ''}"
        lines.append(f"{board.dead_letters} {letters} to decide: {_dead_letter_names(board)}")
    if run.ended_at is None:
        lines.append(
            f"{'the run goes on' if is_executor_alive else 'no executor runs it now'}; come back with:"
            f" {shlex.join(['redrive', 'attach', target])}"
        )
        if is_executor_alive:
            lines.append(f"stop its executor with: {shlex.join(['redrive', 'stop', target])}")
    return lines


def _dead_letter_names(board: Board) -> str:
    names = [name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER]
    return ", ".join(one_line(name) for name in names[:3]) + (" ..." if len(names) > 3 else "")
