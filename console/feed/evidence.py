"""Reads what a page of evidence needs besides the board."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.core.cause_history import CauseHistory
from ...engine.statefile import list_rows
from ..present.detail import AttemptTexts
from ..present.evidence import EvidenceData
from ..sessions.session import Session

TEXTS_OF = 2  # attempts whose long texts are compared
_HISTORY_ATTEMPTS = 200
_ROWS = 50


async def read_evidence(
    session: Session, run_id: str, name: str, attempts: Sequence[int], memory: CauseHistory | None = None
) -> EvidenceData:
    """Read the texts of ``attempts`` of a task, its attempts in all runs and its quarantined rows.

    ``memory``: the history of its cause, if it was read already.
    """
    texts = [await _texts(session, run_id, name, attempt) for attempt in attempts]
    history = await session.query(list_rows.HISTORY, task=name, limit=_HISTORY_ATTEMPTS)
    rows = await session.query(list_rows.QUARANTINE, run_id=run_id, task=name, limit=_ROWS)
    return EvidenceData(texts, history, rows, memory)


async def _texts(session: Session, run_id: str, name: str, attempt: int) -> AttemptTexts:
    read = await session.attempt_text(run_id, name, attempt)
    detail = read.fingerprint_detail
    return AttemptTexts(attempt, read.traceback, read.stack, read.diagnostic, fingerprint_detail=detail)
