"""Trials on the past of a run in dialogs: another class for a cause, another retry policy. The run is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...engine.analysis.trials import PolicyChange, parse_change
from ...engine.core.outcome import FailureClass
from ..model.board import Board
from ..model.inbox import InboxCause, causes_of
from ..sessions.trials import FAILURE_CLASSES, comparison_table, replay_under_policy, trial_rows, try_rule
from ..text.pieces import Line, Piece, Role, wrap
from ..text.text import one_line, pad
from .base import ConsoleScreen
from .console import run_latest
from .dialogs import ChoiceOption, LinesWithin, TextDialog, choose

_LABEL_CELLS = 9
_REPLAYING_SECONDS = 60.0


def classify(screen: ConsoleScreen) -> None:
    """Derive a rule from the cause of the selected tasks and show its effect; the operator pastes it into the flow."""
    board = screen.console.live.board
    causes = causes_of(board, screen.target_tasks()) if board is not None else []
    if board is None or len(causes) != 1:
        screen.console.show_message("a rule is made of one cause: put the cursor on it", Role.WARNING)
        return

    def try_class(name: str) -> None:
        run_latest(screen.app, partial(_try_rule, screen, board, causes[0], name), "classify")

    options = [ChoiceOption(name, name, words) for name, words in FAILURE_CLASSES.items()]
    choose(screen.app, f"What is {one_line(causes[0].title)}?", options, try_class)


async def _try_rule(screen: ConsoleScreen, board: Board, cause: InboxCause, name: str) -> None:
    session = screen.console.live.session
    found = await try_rule(session, board.projection, cause.fingerprint, FailureClass(name), cause.downstream)

    def lines(columns: int) -> Sequence[Line]:
        rows = [[Piece(pad(label, _LABEL_CELLS), Role.DIM), Piece(text)] for label, text in trial_rows(found)]
        return [line for row in rows for line in wrap(row, columns, _LABEL_CELLS)]

    _show(screen, "Nothing is changed: the flow decides", lines)


def what_if(screen: ConsoleScreen, text: str) -> None:
    """Replay the run under another policy, from the displayed instant; in the present, from the start."""
    console = screen.console
    board, position = console.live.board, console.time_travel.position
    if board is None:
        return
    try:
        change = parse_change(text)
    except ValueError as error:
        console.show_message(str(error), Role.WARNING)
        return
    console.show_message("replaying the run ...", Role.WARNING, _REPLAYING_SECONDS)
    seq = None if position is None else position.seq
    run_latest(screen.app, partial(_replay, screen, board, change, seq), "what-if")


async def _replay(screen: ConsoleScreen, board: Board, change: PolicyChange, seq: int | None) -> None:
    live = screen.console.live
    history = await screen.console.time_travel.load_history()
    # a copy: events change the projection of the board
    projection = await live.session.snapshot(board.projection.run.run_id)
    found = await replay_under_policy(live.session, projection, history, change, seq)
    if live.board is not board:
        return
    screen.console.show_message("", seconds=0.1)

    def lines(columns: int) -> Sequence[Line]:
        table: list[Line] = [[Piece(line)] for line in comparison_table(found.comparison)]
        sentences = [wrap([Piece(sentence, Role.DIM)], columns, 2) for sentence in found.sentences()]
        return [[], *table, [], *(line for one in sentences for line in one)]

    _show(screen, one_line(found.title), lines)


def _show(screen: ConsoleScreen, heading: str, lines: LinesWithin) -> None:
    screen.app.push_screen(TextDialog([Piece(heading, Role.TITLE)], lines))
