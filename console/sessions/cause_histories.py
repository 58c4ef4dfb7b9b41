"""The earlier incidents of the causes in the inbox: one query for all, repeated when the answer may have changed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ...engine.core.causes import CauseHistory
from ...engine.domain.events import Event, EventKind
from ...engine.statefile.causes import CAUSES_MAX
from ..model.inbox import InboxCause
from .session import Session

AGAIN_SECONDS = 5.0  # between two queries while only tasks change; notes and acts of operators need no delay

_BY_PEOPLE = frozenset([EventKind.NOTE, EventKind.OPERATOR])


class CauseHistories:
    """The latest histories of causes; each console has one."""

    def __init__(self) -> None:
        self._known: dict[str, CauseHistory] = {}
        self._query: tuple[str, frozenset[str]] | None = None  # run, keys of causes
        self._queried_at = float("-inf")
        self._tasks_changed = False
        self._people_acted = False

    def get(self, key: str) -> CauseHistory | None:
        """The history of a cause; None before it was loaded."""
        return self._known.get(key)

    def on_events(self, events: Iterable[Event], tasks_changed: bool) -> None:
        """Note events that may change histories. ``tasks_changed``: whether tasks of the run changed."""
        self._tasks_changed |= tasks_changed
        self._people_acted |= any(event.kind in _BY_PEOPLE for event in events)

    def is_due(self, run_id: str, causes: Sequence[InboxCause]) -> bool:
        """Whether the histories may have changed."""
        if self._people_acted or self._query != _query_of(run_id, causes):
            return True
        return self._tasks_changed and time.monotonic() - self._queried_at >= AGAIN_SECONDS

    async def refresh(self, session: Session, run_id: str, causes: Sequence[InboxCause]) -> bool:
        """Load the histories again. Return whether they changed. Raises RedriveError."""
        self._query, self._queried_at = _query_of(run_id, causes), time.monotonic()
        self._tasks_changed = self._people_acted = False
        known = await load_cause_histories(session, run_id, causes)
        changed, self._known = known != self._known, known
        return changed


def _query_of(run_id: str, causes: Sequence[InboxCause]) -> tuple[str, frozenset[str]]:
    return run_id, frozenset(cause.key for cause in causes[:CAUSES_MAX])


async def load_cause_histories(
    session: Session, run_id: str | None, causes: Sequence[InboxCause], *, are_all: bool = False
) -> dict[str, CauseHistory]:
    """Load the histories of the first ``CAUSES_MAX`` causes. Return each by the key of its cause. Raises RedriveError.

    ``are_all``: the causes are all of the inbox of a run; then the query can be sent ahead of it.
    """
    asked = causes[:CAUSES_MAX]
    if not asked:
        return {}
    pairs = [(cause.fingerprint, cause.downstream) for cause in asked]
    known = await session.cause_histories(run_id, None if are_all else pairs)
    by_pair = {(history.fingerprint, history.downstream): history for history in known}
    return {cause.key: by_pair.get(pair) or CauseHistory(*pair) for cause, pair in zip(asked, pairs, strict=True)}
