"""The texts, the history and the rows of a task that a page of evidence shows, read through a session."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.statefile import lists
from ..model.inbox import AttemptTexts, EvidenceData
from .session import Session, listed_events

TEXTS_OF = 2  # attempts whose long texts are compared
_HISTORY_ATTEMPTS = 200
_ROWS = 50


async def read_evidence(session: Session, run_id: str, name: str, attempts: Sequence[int]) -> EvidenceData:
    """Read the texts of ``attempts`` of a task, its attempts in all runs and its quarantined rows."""
    import asyncio  # here: a command that reads a local file does without

    history, rows, texts = await asyncio.gather(
        past_attempts(session, name),
        session.rows(lists.QUARANTINE, run_id=run_id, task=name, limit=_ROWS),
        asyncio.gather(*(session.attempt_text(run_id, name, attempt) for attempt in attempts)),
    )
    return EvidenceData([*map(AttemptTexts, attempts, texts)], history, rows)


async def past_attempts(session: Session, name: str) -> Sequence[lists.PastAttemptRow]:
    """Read the latest attempts of a task in all runs of the file."""
    return await session.rows(lists.HISTORY, task=name, limit=_HISTORY_ATTEMPTS)


async def past_answers(session: Session, name: str) -> list[Event]:
    """Read the latest acts that answered an approval, in all runs of the file."""
    acts = await listed_events(session, lists.OPERATOR_ACTS)
    return [one for one in acts if isinstance(one.payload, OperatorActed) and name in _answered(one.payload)]


def _answered(act: OperatorActed) -> Collection[str]:
    return act.was if act.act in ("approve", "reject") else ()
