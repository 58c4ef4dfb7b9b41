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


class PageRow(NamedTuple):
    """One row of table ``page``, with parsed JSON; ``counted`` is the column ``count``; PAGE_HEADS has no ``body``."""

    id: int
    cause: str
    episode: int
    run_id: Optional[str]
    task: Optional[str]
    severity: str
    title: str
    body: JsonObject
    counted: int
    sent_count: int
    state: str
    rearmed: int
    created_at: int
    updated_at: int
    sent_at: Optional[int]
    send_error: Optional[str]
    snoozed_until: Optional[int]
    acked_by: Optional[str]
    told_by: Optional[str] = None

    @property
    def needs_human(self) -> bool:
        """Whether no operator has acknowledged it."""
        return self.state == "open"

    @property
    def is_idle(self) -> bool:
        return self.state == "resolved"

    @property
    def is_unsent(self) -> bool:
        """Whether a sender has refused its latest message."""
        return self.state == "open" and self.send_error is not None

    @property
    def key(self) -> str:
        """What receivers know the page by."""
        return "{}/{}".format(self.cause, self.episode)
