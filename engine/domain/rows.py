"""Rows of the state file of which rules of ``core`` and lists of ``statefile`` both speak: one form for both sides.

Columns as ``store/schema.sql`` explains them, with parsed JSON; instants in microseconds UTC. Carried over ssh to old
interpreters: Python 3.6 syntax, standard library only.
"""

from typing import NamedTuple, Optional, Sequence

from .events import JsonObject


class BreakerRow(NamedTuple):
    """One row of table ``breaker``. ``opened_at``: since when calls are held, whatever probes have found."""

    downstream: str
    state: str
    reopens_at: Optional[int]
    window: Sequence[Sequence[int]]
    tokens: Optional[float]
    detail: JsonObject
    changed_at: int
    opened_at: Optional[int] = None

    @property
    def since(self) -> int:
        """Since when calls are held; else since when it is in its state."""
        return self.opened_at or self.changed_at
