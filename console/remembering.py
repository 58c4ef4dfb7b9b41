"""Asks a door what is remembered of the causes of an inbox, once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.core.episode import Memory, memory_of
from ..engine.store.memory import CAUSES_MAX
from .model.inbox import Cause
from .sessions.session import Session


async def remember(session: Session, run_id: str, causes: Sequence[Cause]) -> dict[str, Memory]:
    """By the key of the cause; of very many the first. Raises RedriveError."""
    asked = causes[:CAUSES_MAX]
    if not asked:
        return {}
    marks = [[cause.fingerprint, cause.downstream] for cause in asked]
    rows = await session.query("memory", run_id=run_id, causes=marks)
    return {cause.key: memory_of(row) for cause, row in zip(asked, rows, strict=True)}
