"""The tour of ``redrive demo``: one line that names a job of an operator, and the key that comes next.

``STAGES`` is the table. What a line says is read in each frame from the board and from what is on the screen; no stage
depends on a clock. A stage ends by its key, an act when the board shows it. A stage that the board shows to be done, or
no longer possible, is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from ...engine.domain.states import FAILED_OUTCOMES, NOT_STARTED, TaskState
from ...engine.domain.text import counted
from ..keys.actions import Action, ScreenName
from ..keys.keymap import KeyMap, key_label
from ..model.board import Board
from ..text.pieces import Line, Piece, Role, width
from ..text.text import shorten


class Phase(Enum):
    """Whether what a stage is about is still to come, is so, or is over."""

    COMING = "coming"
    NOW = "now"
    OVER = "over"


class Sight(NamedTuple):
    """What is on the screen.

    Attributes:
        place: the visible view.
        name: of the task, breaker or group of rows under the cursor; None: there is none.
        asked_by: Textual's name of the key that opened the question on the screen; None: nothing is asked.
        is_covered: whether a box or a prompt gets the keys.
        is_past: whether the run is shown as it was.
        columns: of the terminal; a sentence is cut, its key never.
    """

    place: ScreenName
    name: str | None
    asked_by: str | None = None
    is_covered: bool = False
    is_past: bool = False
    columns: int = 80


class Stage(NamedTuple):
    """One job. The sentences may contain the names of ``_facts``.

    Attributes:
        abouts: where the cursor is put: on the first that is a dead letter, else on the first.
        phase: read from the board.
        view: where the key works; None: everywhere.
        says: what is so; the key of ``view`` follows.
        action: whose key ends the stage.
        asks: what this key does, with the cursor in its place.
        answer: in the box that it opens: a sentence, and Textual's name of the key that says yes.
        comes: what is still to happen.
    """

    abouts: tuple[str, ...]
    phase: Callable[[Board], Phase]
    view: ScreenName | None
    says: str
    action: str
    asks: str
    answer: tuple[str, str] = ("", "")
    comes: str = ""

    def about(self, board: Board) -> str:
        """The name that the cursor is to be on now."""
        return next((name for name in self.abouts if _is_dead(board, name)), self.abouts[0])

    def is_reached(self, board: Board, sight: Sight) -> bool:
        """Whether the key of ``action`` does now what the line says."""
        is_there = self.view is None or (sight.place is self.view and sight.name == self.about(board))
        return is_there and not sight.is_covered and not sight.is_past


# --- What the board says ---------------------------------------------------------------------------------------------


def _is_dead(board: Board, name: str) -> bool:
    return name in board.projection.tasks and board.row(name).state is TaskState.DEAD_LETTER


def _has_failed(board: Board, name: str) -> bool:
    return any(one.outcome in FAILED_OUTCOMES for one in board.row(name).attempts.values())


def _is_blocking(board: Board) -> bool:
    breaker = board.snapshot.breakers.get("rates-api")
    return breaker is not None and breaker.is_blocking


def _if(is_now: bool, otherwise: Phase = Phase.OVER) -> Phase:
    return Phase.NOW if is_now else otherwise


def _once(board: Board, name: str, is_now: bool) -> Phase:
    """The phase of what the first generation of a task shows."""
    row = board.row(name)
    is_over = row.generation > 0 or row.state in (TaskState.SUCCESS, TaskState.SKIPPED, TaskState.CANCELLED)
    return _if(is_now, Phase.OVER if is_over else Phase.COMING)


def _has_opened(board: Board) -> Phase:
    refused = all(_has_failed(board, name) for name in ("quote_USD", "quote_GBP", "quote_JPY"))
    return _once(board, "quote_JPY", refused or _is_blocking(board))


def _is_skipped(board: Board) -> Phase:
    is_skipped = board.row("fetch_invoices").state is TaskState.SKIPPED
    return _if(is_skipped and board.row("revenue_report").state in NOT_STARTED)


def _facts(stage: Stage, board: Board) -> Mapping[str, str]:
    return {
        "about": stage.about(board),
        "holds": "holds" if _is_blocking(board) else "held",
        "rows": counted(board.row("import_customers").bad_rows, "row"),
        "letters": counted(board.dead_letters, "dead letter"),
    }


# --- The stages ------------------------------------------------------------------------------------------------------

STAGES = (
    Stage(
        ("notify",),
        lambda board: _if(board.row("notify").state in NOT_STARTED),
        ScreenName.GRAPH,
        "notify has not started, see the graph",
        "why",
        "why notify has not started",
    ),
    Stage(
        ("rates-api",),
        _has_opened,
        ScreenName.SYSTEMS,
        "rates-api failed, and its breaker {holds} calls",
        "open",
        "all about this breaker",
        comes="calls of rates-api fail",
    ),
    Stage(
        ("fetch_calendar",),
        lambda board: _once(board, "fetch_calendar", _has_failed(board, "fetch_calendar")),
        ScreenName.TIMELINE,
        "fetch_calendar hung and was killed, see when",
        "details",
        "below its bar is where it hung; all about it",
        comes="fetch_calendar is killed",
    ),
    Stage(
        ("settle",),
        lambda board: _once(board, "settle", _is_dead(board, "settle")),
        ScreenName.INBOX,
        "settle failed twice alike, there is no third try",
        "output",
        "division by zero; what settle printed",
        comes="settle has failed twice",
    ),
    Stage(
        ("fetch_invoices",),
        lambda board: _once(board, "fetch_invoices", _is_dead(board, "fetch_invoices")),
        ScreenName.INBOX,
        "fetch_invoices was refused, 403 forbidden",
        "skip",
        "to go on without fetch_invoices",
        ("write why, and then", "enter"),
        comes="fetch_invoices is refused",
    ),
    Stage(
        ("fetch_invoices",),
        _is_skipped,
        None,
        "",
        "undo",
        "fetch_invoices is skipped; to take that back",
        ("fetch_invoices waits for a decision again", "a"),
    ),
    Stage(
        ("import_customers",),
        lambda board: _once(board, "import_customers", board.row("import_customers").bad_rows > 0),
        ScreenName.SYSTEMS,
        "import_customers has set {rows} aside",
        "requeue_rows",
        "they are mended; to run only them again",
        ("only {rows} run again", "enter"),
        comes="import_customers sets rows aside",
    ),
    Stage(
        ("settle", "fetch_invoices"),
        lambda board: _if(_is_dead(board, "settle") or _is_dead(board, "fetch_invoices")),
        ScreenName.INBOX,
        "{letters} can run again now",
        "requeue",
        "{about} is mended; to run it again",
    ),
)


def advance(place: int, board: Board, action: Action | None = None) -> int:
    """The stage that is current after an ``action`` that did what its line says; ``len(STAGES)``: all have ended."""
    while place < len(STAGES):
        phase = STAGES[place].phase(board)
        is_shown = action is not None and action.act is None  # an act has ended when the board shows it
        if phase is Phase.COMING or (phase is Phase.NOW and not is_shown):
            break
        place, action = place + 1, None  # a key ends one stage
    return place


def tour_line(place: int, board: Board, keymap: KeyMap, sight: Sight) -> Line:
    """The line of a stage. Until all have ended, its key is its last word."""
    total = len(STAGES)
    if place == total:
        keys = [Piece(keymap.label("help"), Role.KEY), Piece(" has all keys, "), Piece(keymap.label("quit"), Role.KEY)]
        words = f"{board.finished} of {board.total} tasks are done; "
        return [*_head(f"{total} of {total} done"), Piece(words), *keys, Piece(" leaves")]
    stage = STAGES[place]
    if stage.phase(board) is Phase.COMING:
        return [*_head(f"{place} of {total} done"), Piece(f"the next when {stage.comes}")]
    words, key = _next_step(stage, board, keymap, sight)
    head, press = _head(f"{place + 1} of {total}"), [Piece(": press "), Piece(key, Role.KEY)]
    sentence = shorten(words.format(**_facts(stage, board)), sight.columns - width([*head, *press]))
    return [*head, Piece(sentence), *press]


def _head(words: str) -> Line:
    return [Piece(f" {words}: ", Role.STRONG)]


def _next_step(stage: Stage, board: Board, keymap: KeyMap, sight: Sight) -> tuple[str, str]:
    """A sentence, and the label of the key that comes next."""
    if sight.is_past:
        return "this is the past; to leave it", keymap.label("back")
    if sight.asked_by is not None and sight.asked_by in keymap.keys_of(stage.action) and stage.answer[0]:
        return stage.answer[0], key_label(stage.answer[1])
    if sight.is_covered:
        return "to go on with the tour", key_label("escape")
    if stage.view is None or stage.is_reached(board, sight):
        return stage.asks, keymap.label(stage.action)
    return stage.says, keymap.label(f"view_{stage.view.value}")
