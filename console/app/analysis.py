"""What may be tried on the past of a run without changing it: another class of a cause, another policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...engine.analysis.policy_change import Change, parse_change
from ...engine.core.outcome import FailureClass
from ...engine.errors import RedriveError
from ..feed.rule_trial import CLASSES, told, try_rule
from ..feed.what_if import Answer, ask
from ..model.board import Board
from ..model.inbox import Cause, causes_of
from ..present.what_if import table, title
from ..screens.choice_dialog import Option
from ..screens.console import ConsoleHost
from ..screens.text_dialog import Reading, columns_within
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, pad
from ..text.wrapping import folded
from .operator import Acts
from .time_travel import Rewind

_LABEL_CELLS = 9  # of what is told of a rule
_REPLAYING_SECONDS = 60.0


class Analysis:
    """One for each console."""

    def __init__(self, console: ConsoleHost, acts: Acts, rewind: Rewind) -> None:
        self._console = console
        self._acts = acts
        self._rewind = rewind

    # --- Another class --------------------------------------------------------------------------------------------

    def classify(self, names: Sequence[str]) -> None:
        """Make a rule of a cause and show what it would have done; into the flow it goes by hand."""
        board = self._console.live.board
        causes = causes_of(board, names) if board is not None else []
        if len(causes) != 1:
            self._console.show_message("a rule is made of one cause: put the cursor on it", Role.WARNING)
            return
        options = [Option(name, name, words) for name, words in CLASSES.items()]
        self._acts.choose(f"What is {one_line(causes[0].title)}?", options, partial(self._try, causes[0]))

    def _try(self, cause: Cause, name: str) -> None:
        self._console.run_worker(partial(self._try_rule, cause, name), group="classify", exclusive=True)

    async def _try_rule(self, cause: Cause, name: str) -> None:
        board = self._console.live.board
        assert board is not None
        session = self._console.live.session
        try:
            found = await try_rule(session, board.fold, cause.fingerprint, FailureClass(name), cause.downstream)
        except RedriveError as error:
            self._console.show_message(str(error), Role.WARNING)
            return
        columns = columns_within(self._console.size.width)
        lines: list[Line] = []
        for label, text in told(found):
            lines += folded([Piece(pad(label, _LABEL_CELLS), Role.DIM), Piece(text)], columns, _LABEL_CELLS)
        self._console.push_screen(Reading([Piece("Nothing is changed: the flow decides", Role.TITLE)], lines))

    # --- Another policy -------------------------------------------------------------------------------------------

    def what_if(self, text: str) -> None:
        """The run under another policy, from the moment that is shown; in the present, from its start."""
        board = self._console.live.board
        if board is None:
            return
        try:
            change = parse_change(text)
        except ValueError as error:
            self._console.show_message(str(error), Role.WARNING)
            return
        visit = self._rewind.visit
        self._console.show_message("replaying the night ...", Role.WARNING, _REPLAYING_SECONDS)
        work = partial(self._ask_what_if, board, change, None if visit is None else visit.seq)
        self._console.run_worker(work, group="what-if", exclusive=True)

    async def _ask_what_if(self, board: Board, change: Change, seq: int | None) -> None:
        live = self._console.live
        try:
            night = await self._rewind.read_night()
            fold = await live.session.snapshot(board.fold.run.run_id)  # its own: events move that of the board
            answer = await ask(live.session, fold, night, change, seq)
        except RedriveError as error:
            self._console.show_message(str(error), Role.WARNING)
            return
        if live.board is board:
            self._console.show_message("", seconds=0.1)
            self._show_what_if(answer)

    def _show_what_if(self, answer: Answer) -> None:
        """The run beside itself."""
        columns = columns_within(self._console.size.width)
        lines: list[Line] = [[], *([Piece(line)] for line in table(answer.comparison)), []]
        for sentence in answer.sentences():
            lines += folded([Piece(sentence, Role.DIM)], columns, 2)
        self._console.push_screen(Reading([Piece(one_line(title(answer.comparison)), Role.TITLE)], lines))
