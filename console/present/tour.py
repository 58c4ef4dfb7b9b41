"""The tour of ``redrive demo``: one line that names a job of an operator, and the key that comes next.

``STAGES`` is the table. What a line says is read in each frame from the board and from what is on the screen; no stage
depends on a clock. A stage ends by its key, an act when the board shows it. A stage that the board shows to be done, or
no longer possible, is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ...engine.domain.states import FAILED_OUTCOMES, NOT_STARTED, TaskState
from ...engine.domain.text import counted
from ..keys.actions import Action, ScreenName
from ..keys.keymap import keys_of, shown_key
from ..model.board import Board
from ..text.pieces import Line, Piece, Role, width
from ..text.text import shorten


class Phase(Enum):
    """Whether what a stage is about is still to come, is so, or is over."""

    COMING = "coming"
    NOW = "now"
    OVER = "over"


class ScreenState(NamedTuple):
    """The state of the screen.

    Attributes:
        place: the visible view.
        name: of the task, breaker or group of rows under the cursor; None: there is none.
        columns: of the terminal; a sentence is cut, its key never.
        leave: the label of the key that leaves a box, a prompt or the past; empty: there is none of them.
        asked_by: Textual's name of the key that opened the question on the screen; None: nothing is asked.
    """

    place: ScreenName
    name: str | None
    columns: int = 80
    leave: str = ""
    asked_by: str | None = None


class TourStage(NamedTuple):
    """A job of the tour. In sentences, ``{about}``, ``{dead}``, ``{holds}`` and ``{rows}`` are read from the board.

    Attributes:
        abouts: where the cursor is put: on the first that is a dead letter, else on the first.
        phase: read from the board.
        view: where the key works; None: everywhere.
        action: whose key ends the stage.
        says: what is so; the key of ``view`` follows.
        asks: what the key of ``action`` does, with the cursor in its place.
        answer: in the box that it opens: a sentence, and the label of the key that says yes.
    """

    abouts: tuple[str, ...]
    phase: Callable[[Board], Phase]
    view: ScreenName | None
    action: str
    says: str
    asks: str
    answer: tuple[str, str] = ("", "")

    def about(self, board: Board) -> str:
        """The name that the cursor is to be on now."""
        return next((name for name in self.abouts if _is_dead(board, name)), self.abouts[0])

    def is_reached(self, board: Board, sight: ScreenState) -> bool:
        """Whether the key of ``action`` does now what the line says."""
        is_there = self.view is None or (sight.place is self.view and sight.name == self.about(board))
        return is_there and not sight.leave


# --- What the board says ---------------------------------------------------------------------------------------------


def _is_dead(board: Board, name: str) -> bool:
    return name in board.projection.tasks and board.row(name).state is TaskState.DEAD_LETTER


def _has_failed(board: Board, name: str) -> bool:
    return any(one.outcome in FAILED_OUTCOMES for one in board.row(name).attempts.values())


def _is_blocking(board: Board) -> bool:
    breaker = board.snapshot.breakers.get("rates-api")
    return breaker is not None and breaker.is_blocking


def _has_opened(board: Board, name: str) -> bool:
    return _is_blocking(board) or all(_has_failed(board, one) for one in ("quote_USD", "quote_GBP", name))


def _has_bad_rows(board: Board, name: str) -> bool:
    return board.row(name).bad_rows > 0


def _can_be_taken_back(board: Board, name: str) -> bool:
    is_skipped = board.row(name).state is TaskState.SKIPPED
    return is_skipped and board.row("report").state in NOT_STARTED


def _once(name: str, is_now: Callable[[Board, str], bool]) -> Callable[[Board], Phase]:
    """The phase of what the first generation of a task shows."""

    def phase(board: Board) -> Phase:
        row = board.row(name)
        is_over = row.generation > 0 or row.state in (TaskState.SUCCESS, TaskState.SKIPPED, TaskState.CANCELLED)
        return Phase.NOW if is_now(board, name) else Phase.OVER if is_over else Phase.COMING

    return phase


def _while(is_now: Callable[[Board], bool]) -> Callable[[Board], Phase]:
    return lambda board: Phase.NOW if is_now(board) else Phase.OVER


# --- The stages ------------------------------------------------------------------------------------------------------

_GRAPH, _TIMELINE, _INBOX = ScreenName.GRAPH, ScreenName.TIMELINE, ScreenName.INBOX
_SYSTEMS, _INVOICES, _ROWS = ScreenName.SYSTEMS, "fetch_invoices", "load_customers"
_notify_waits = _while(lambda board: board.row("notify").state in NOT_STARTED)
_is_skipped = _while(lambda board: _can_be_taken_back(board, _INVOICES))
_is_undecided = _while(lambda board: _is_dead(board, "settle") or _is_dead(board, _INVOICES))

# fmt: off
STAGES = (
    TourStage(("notify",), _notify_waits, _GRAPH, "why",
          "notify waits{dead}, see the graph", "why notify waits{dead}"),
    TourStage(("rates-api",), _once("quote_JPY", _has_opened), _SYSTEMS, "view_timeline",
          "rates-api failed, and its breaker {holds} calls", "read when it held them; next, a task that hung"),
    TourStage(("fetch_calendar",), _once("fetch_calendar", _has_failed), _TIMELINE, "details",
          "fetch_calendar hung and was killed, see when", "below its bar is where it hung; all about it"),
    TourStage(("settle",), _once("settle", _is_dead), _INBOX, "output",
          "settle failed twice alike, there is no third try", "division by zero; what settle printed"),
    TourStage((_INVOICES,), _once(_INVOICES, _is_dead), _INBOX, "skip",
          "fetch_invoices was refused, 403 forbidden", "to go on without fetch_invoices",
          ("write why, and then", "Enter")),
    TourStage((_INVOICES,), _is_skipped, None, "undo",
          "", "fetch_invoices is skipped; to take that back",
          ("fetch_invoices waits for a decision again", "a")),
    TourStage((_ROWS,), _once(_ROWS, _has_bad_rows), _SYSTEMS, "requeue_rows",
          "load_customers has set {rows} aside", "they are mended; to run only them again",
          ("only {rows} run again", "Enter")),
    TourStage(("settle", _INVOICES), _is_undecided, _INBOX, "requeue",
          "what was dead is mended now", "{about} is mended; to run it again"),
)
# fmt: on


def advance(place: int, board: Board, action: Action | None = None) -> int:
    """The stage that is current after an ``action`` that did what its line says; ``len(STAGES)``: all have ended."""
    while place < len(STAGES):
        phase = STAGES[place].phase(board)
        is_shown = action is not None and action.act is None  # an act has ended when the board shows it
        if phase is Phase.COMING or (phase is Phase.NOW and not is_shown):
            break
        place, action = place + 1, None  # a key ends one stage
    return place


def tour_line(place: int, board: Board, sight: ScreenState) -> Line:
    """The line of a stage. Until all have ended, its key is its last word."""
    total = len(STAGES)
    if place == total:
        words = f"{board.finished} of {board.total} tasks are done; "
        keys = [Piece(shown_key("help"), Role.KEY), Piece(" has all keys, "), Piece(shown_key("quit"), Role.KEY)]
        return [_head(f"{total} of {total} done"), Piece(words), *keys, Piece(" leaves")]
    stage = STAGES[place]
    about = stage.about(board)
    if stage.phase(board) is Phase.COMING:
        return [_head(f"{place} of {total} done"), Piece(f"the next waits for {about}")]
    words, key = _next_step(stage, board, sight)
    rows = counted(board.row(_ROWS).bad_rows, "row")
    dead = sum(_is_dead(board, name) for name in ("settle", _INVOICES))
    waits_on = f" on {counted(dead, 'dead letter')}" if dead else ""
    words = words.format(about=about, dead=waits_on, rows=rows, holds="holds" if _is_blocking(board) else "held")
    head, press = _head(f"{place + 1} of {total}"), [Piece(": press "), Piece(key, Role.KEY)]
    return [head, Piece(shorten(words, sight.columns - width([head, *press]))), *press]


def _head(words: str) -> Piece:
    return Piece(f" {words}: ", Role.STRONG)


def _next_step(stage: TourStage, board: Board, sight: ScreenState) -> tuple[str, str]:
    """A sentence, and the label of the key that comes next."""
    if sight.asked_by in keys_of(stage.action) and stage.answer[0]:
        return stage.answer
    if sight.leave:
        return "to go on with the tour", sight.leave
    if stage.is_reached(board, sight):
        return stage.asks, shown_key(stage.action)
    return stage.says, shown_key(f"view_{stage.view.value}" if stage.view is not None else stage.action)
