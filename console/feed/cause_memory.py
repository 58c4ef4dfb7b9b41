"""What came of the causes in the inbox before: asked for all of them at once, and again when it may differ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ...engine.core.cause_history import Memory
from ...engine.domain.events import Event, EventKind
from ...engine.statefile.on_demand.cause_history import CAUSES_MAX
from ..model.inbox import Cause
from ..sessions.session import Session

AGAIN_SECONDS = 5.0  # between two questions while tasks only move; what people do is asked about at once

_BY_PEOPLE = frozenset([EventKind.NOTE, EventKind.OPERATOR])


async def remember(session: Session, run_id: str, causes: Sequence[Cause]) -> dict[str, Memory]:
    """By the key of the cause; of very many the first. Raises RedriveError."""
    asked = causes[:CAUSES_MAX]
    if not asked:
        return {}
    known = await session.memory(run_id, [(cause.fingerprint, cause.downstream) for cause in asked])
    return {cause.key: memory for cause, memory in zip(asked, known, strict=False)}


class Remembering:
    """What was answered last. One for each console."""

    def __init__(self) -> None:
        self._known: dict[str, Memory] = {}
        self._asked: tuple[str, frozenset[str]] | None = None  # run, keys of causes
        self._asked_at = float("-inf")
        self._moved = False
        self._acted = False

    def of(self, key: str) -> Memory | None:
        """What is known of a cause; None while nobody has answered."""
        return self._known.get(key)

    def take(self, events: Iterable[Event], moved: bool) -> None:
        """Something happened. ``moved``: tasks of the run did."""
        self._moved |= moved
        self._acted |= any(event.kind in _BY_PEOPLE for event in events)

    def is_due(self, run_id: str, causes: Sequence[Cause]) -> bool:
        """Whether the answer may be another one by now."""
        if self._acted or self._asked != _question(run_id, causes):
            return True
        return self._moved and time.monotonic() - self._asked_at >= AGAIN_SECONDS

    async def read(self, session: Session, run_id: str, causes: Sequence[Cause]) -> bool:
        """Ask. True: the answer is another one. Raises RedriveError."""
        self._asked, self._asked_at = _question(run_id, causes), time.monotonic()
        self._moved = self._acted = False
        known = await remember(session, run_id, causes)
        changed, self._known = known != self._known, known
        return changed


def _question(run_id: str, causes: Sequence[Cause]) -> tuple[str, frozenset[str]]:
    return run_id, frozenset(cause.key for cause in causes[:CAUSES_MAX])
