"""Tries changes on the past of a run: another class for a cause, another retry policy. The run is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...engine.analysis.policy_change import PolicyChange, parse_change
from ...engine.core.outcome import FailureClass
from ..feed.rule_trial import FAILURE_CLASSES, RuleTrial, trial_rows, try_rule
from ..feed.what_if import WhatIfResult, replay_under_policy
from ..model.board import Board
from ..model.inbox import InboxCause, causes_of
from ..present.what_if import table, title
from ..screens.choice_dialog import ChoiceOption
from ..screens.console import ConsoleHost, errors_shown
from ..screens.text_dialog import TextDialog, columns_within
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, pad
from ..text.wrapping import wrap
from .operator import OperatorActions
from .time_travel import TimeTravel

_LABEL_CELLS = 9
_REPLAYING_SECONDS = 60.0


class Analysis:
    """The controller of rule trials and what-if replays; each console has one."""

    def __init__(self, console: ConsoleHost, actions: OperatorActions, time_travel: TimeTravel) -> None:
        self._console = console
        self._actions = actions
        self._time_travel = time_travel

    # --- Another class --------------------------------------------------------------------------------------------

    def classify(self, names: Sequence[str]) -> None:
        """Derive a rule from the cause of these tasks and show its effect; the operator pastes it into the flow."""
        board = self._console.live.board
        causes = causes_of(board, names) if board is not None else []
        if len(causes) != 1:
            self._console.show_message("a rule is made of one cause: put the cursor on it", Role.WARNING)
            return
        options = [ChoiceOption(name, name, words) for name, words in FAILURE_CLASSES.items()]
        self._actions.choose(f"What is {one_line(causes[0].title)}?", options, partial(self._try, causes[0]))

    def _try(self, cause: InboxCause, name: str) -> None:
        self._console.run_worker(partial(self._try_rule, cause, name), group="classify", exclusive=True)

    async def _try_rule(self, cause: InboxCause, name: str) -> None:
        board = self._console.live.board
        assert board is not None
        session = self._console.live.session
        with errors_shown(self._console):
            found = await try_rule(session, board.projection, cause.fingerprint, FailureClass(name), cause.downstream)
            self._show_trial(found)

    def _show_trial(self, found: RuleTrial) -> None:
        columns = columns_within(self._console.size.width)
        lines: list[Line] = []
        for label, text in trial_rows(found):
            lines += wrap([Piece(pad(label, _LABEL_CELLS), Role.DIM), Piece(text)], columns, _LABEL_CELLS)
        self._console.push_screen(TextDialog([Piece("Nothing is changed: the flow decides", Role.TITLE)], lines))

    # --- Another policy -------------------------------------------------------------------------------------------

    def what_if(self, text: str) -> None:
        """Replay the run under another policy, from the displayed instant; in the present, from the start."""
        board = self._console.live.board
        if board is None:
            return
        try:
            change = parse_change(text)
        except ValueError as error:
            self._console.show_message(str(error), Role.WARNING)
            return
        position = self._time_travel.position
        self._console.show_message("replaying the run ...", Role.WARNING, _REPLAYING_SECONDS)
        work = partial(self._request_what_if, board, change, None if position is None else position.seq)
        self._console.run_worker(work, group="what-if", exclusive=True)

    async def _request_what_if(self, board: Board, change: PolicyChange, seq: int | None) -> None:
        live = self._console.live
        with errors_shown(self._console):
            history = await self._time_travel.load_history()
            # a copy: events change the projection of the board
            projection = await live.session.snapshot(board.projection.run.run_id)
            answer = await replay_under_policy(live.session, projection, history, change, seq)
            if live.board is board:
                self._console.show_message("", seconds=0.1)
                self._show_what_if(answer)

    def _show_what_if(self, answer: WhatIfResult) -> None:
        """Show the comparison of the run with its replay."""
        columns = columns_within(self._console.size.width)
        lines: list[Line] = [[], *([Piece(line)] for line in table(answer.comparison)), []]
        for sentence in answer.sentences():
            lines += wrap([Piece(sentence, Role.DIM)], columns, 2)
        self._console.push_screen(TextDialog([Piece(one_line(title(answer.comparison)), Role.TITLE)], lines))
