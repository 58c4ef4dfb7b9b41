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


class ExecutorState(NamedTuple):
    """The executor of a state file, as its lock shows it. Instants in microseconds UTC.

    Attributes:
        alive: it owns the file and lives, perhaps without a sign of life.
        age_us: since its last sign of life.
        silent_since: when a living one gave its last sign of life, once that is late.
        gone_at: when it was last alive; None while it lives, or if there was none.
        run_id: its current or last run.
        stopped: it ended in order.
        elsewhere: the other host on which it ran: nobody knows here whether it lives.
        original: of a copy, the file whose executor with this ``pid`` lives.
    """

    alive: bool = False
    age_us: Optional[int] = None
    gone_at: Optional[int] = None
    pid: Optional[int] = None
    run_id: Optional[str] = None
    stopped: bool = False
    elsewhere: Optional[str] = None
    original: Optional[str] = None
    silent_since: Optional[int] = None

    @property
    def silent_seconds(self) -> float:
        """Since the last sign of life of a living one; 0 without one."""
        return (self.age_us or 0) / 1e6 if self.alive else 0.0


NO_EXECUTOR = ExecutorState()
