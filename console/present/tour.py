"""The tour of ``redrive demo``: one line that says what has just happened, and the key that shows it.

``STAGES`` is the table. A stage begins when its tasks have failed as often as it says, and ends when the operator has
pressed its key or decided its task; an operator who was faster than the tour skips the decision.
"""

from __future__ import annotations

from typing import NamedTuple

from ...engine.domain.states import FAILED_OUTCOMES, TaskState
from ...engine.domain.text import counted
from ..keys.keymap import KeyMap
from ..model.board import Board
from ..text.pieces import Line, Piece, Role


class Stage(NamedTuple):
    """``failures``: task -> failed attempts with which the stage begins; ``happened``: what the line says then;
    empty: what runs now.

    ``action``: whose key the line names, and which ends the stage; ``decides``: the task whose decision ends it
    instead.
    """

    failures: tuple[tuple[str, int], ...]
    happened: str
    action: str
    decides: str | None = None


_QUOTES = (("quote_USD", 1), ("quote_GBP", 1), ("quote_JPY", 1))
STAGES = (
    Stage((), "", "details"),
    Stage(_QUOTES, "rates-api refused 3 calls, its breaker opened", "view_systems"),
    Stage((("fetch_calendar", 1),), "fetch_calendar hung and had to be killed", "view_timeline"),
    Stage((("settle", 2),), "settle failed twice alike: no third try", "view_inbox"),
    Stage((("settle", 2),), "the data of settle is mended now: select settle", "requeue", "settle"),
    Stage((("fetch_invoices", 1),), "fetch_invoices stays forbidden: select it", "skip", "fetch_invoices"),
)


def advance(place: int, board: Board, action: str | None = None) -> int:
    """The stage that is current after an ``action`` of the operator; ``len(STAGES)``: all have ended."""
    while is_offered(place, board) and _has_ended(STAGES[place], board, action):
        place, action = place + 1, None  # a key ends one stage
    return place


def tour_line(place: int, board: Board, keymap: KeyMap) -> Line:
    """The line of a stage; at most 80 cells with the default keys."""
    total, key = len(STAGES), keymap.label
    if place == total:
        words = [Piece(key("help"), Role.KEY), Piece(" has all keys, "), Piece(key("quit"), Role.KEY), Piece(" leaves")]
        return [Piece(f" {total} of {total} done: ", Role.STRONG), Piece("what was held runs; "), *words]
    stage = STAGES[place]
    if not is_offered(place, board):
        return [Piece(f" {place} of {total} done: ", Role.STRONG), Piece("the next one comes by itself")]
    sentence = [Piece(f"{stage.happened or _what_runs(board)}; press "), Piece(key(stage.action), Role.KEY)]
    return [Piece(f" {place + 1} of {total}: ", Role.STRONG), *sentence]


def _what_runs(board: Board) -> str:
    """How many tasks run now: the first stage may be looked at when none does."""
    running = board.counts[TaskState.RUNNING]
    return f"{counted(running, 'task')} at work, others say why not" if running else "no task runs, and each says why"


def is_offered(place: int, board: Board) -> bool:
    """Whether the line names the key of a stage."""
    return place < len(STAGES) and _has_begun(STAGES[place], board)


def _has_begun(stage: Stage, board: Board) -> bool:
    tasks = board.projection.tasks
    return all(name in tasks and _failed_attempts(board, name) >= count for name, count in stage.failures)


def _failed_attempts(board: Board, name: str) -> int:
    return sum(one.outcome in FAILED_OUTCOMES for one in board.row(name).attempts.values())


def _has_ended(stage: Stage, board: Board, action: str | None) -> bool:
    if stage.decides is None:
        return stage.action == action
    return board.row(stage.decides).state is not TaskState.DEAD_LETTER
