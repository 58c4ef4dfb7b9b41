"""The number of breakers, pages and tasks that need a human, for the tab line of every screen."""

from __future__ import annotations

from collections.abc import Iterable

from ...engine.core.breaker import SHUT
from .board import Board
from .breaker_view import downstream_specs
from .run_snapshot import OPEN_NOTES


class BadgeCounts:
    """Counts from the board alone, without reading a list."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._downstreams = frozenset(downstream_specs(board))
        self._with_bad_rows = {name for name, row in board.projection.tasks.items() if row.bad_rows}

    def update(self, names: Iterable[str]) -> None:
        """Update the counts for tasks that have changed."""
        for name in names:
            if self._board.row(name).bad_rows:
                self._with_bad_rows.add(name)
            else:
                self._with_bad_rows.discard(name)

    @property
    def count(self) -> int:
        """Blocking breakers, unacknowledged pages, and tasks with quarantined rows."""
        snapshot = self._board.snapshot
        shut = sum(1 for name in self._downstreams & snapshot.breakers.keys() if snapshot.breakers[name].state in SHUT)
        pages = sum(1 for note in snapshot.page_notes.values() if note in OPEN_NOTES)
        return shut + pages + len(self._with_bad_rows)
