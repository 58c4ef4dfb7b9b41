"""What on the screen of systems wants a human, counted along the way for the tab line of every screen."""

from __future__ import annotations

from collections.abc import Iterable

from ...engine.core.breaker import SHUT
from .board import Board
from .breaker_view import specs_of


class Attention:
    """Told by the board alone: no list is read for it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._downstreams = frozenset(specs_of(board))
        self._holding = {name for name, row in board.fold.tasks.items() if row.bad_rows}

    def take(self, names: Iterable[str]) -> None:
        """These tasks have changed."""
        for name in names:
            (self._holding.add if self._board.row(name).bad_rows else self._holding.discard)(name)

    @property
    def count(self) -> int:
        """Breakers that let nobody through, pages that nobody has acknowledged, tasks whose rows wait."""
        moment = self._board.moment
        shut = sum(1 for name in self._downstreams & moment.breakers.keys() if moment.breakers[name].state in SHUT)
        pages = sum(1 for note in moment.page_notes.values() if note == "page open")
        return shut + pages + len(self._holding)
