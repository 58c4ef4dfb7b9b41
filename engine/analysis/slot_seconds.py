"""Sums the slot seconds of the attempts of a run by how they ended (000.04, 000.06)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..core.outcome import FailureMode
from ..core.projection import AttemptRow, RunProjection, TaskRow
from ..core.views import failure_word
from ..domain.states import FAILED_OUTCOMES


class SlotSeconds(msgspec.Struct):
    """``wasted_seconds``: of attempts that repeated an earlier failure of the same generation."""

    attempts: int = 0
    seconds: float = 0.0
    wasted_seconds: float = 0.0


def slot_seconds(projection: RunProjection) -> dict[str, SlotSeconds]:
    """Sum by the word of the failure (``failure_word``), else by the outcome; running attempts do not count."""
    found: dict[str, SlotSeconds] = {}
    for row in projection.tasks.values():
        for attempt, seen_before in _ended_attempts(row):
            spent = found.setdefault(_outcome_key(attempt), SlotSeconds())
            spent.attempts += 1
            seconds = _seconds(attempt)
            spent.seconds += seconds
            spent.wasted_seconds += seconds if seen_before else 0.0
    return found


def _ended_attempts(row: TaskRow) -> Iterator[tuple[AttemptRow, bool]]:
    """Ended attempts in order, each with whether the generation had the same failure before."""
    seen: set[tuple[int, str]] = set()
    for number in sorted(row.attempts):
        attempt = row.attempts[number]
        if attempt.ended_at is None:
            continue
        failure = (attempt.generation, attempt.fingerprint or "")
        yield attempt, bool(attempt.fingerprint) and failure in seen
        seen.add(failure)


def _outcome_key(attempt: AttemptRow) -> str:
    if attempt.outcome in FAILED_OUTCOMES:
        return failure_word(attempt) or str(FailureMode.OTHER)
    return attempt.outcome


def _seconds(attempt: AttemptRow) -> float:
    if attempt.duration_us is not None:
        return attempt.duration_us / 1e6
    return max(0, (attempt.ended_at or attempt.started_at) - attempt.started_at) / 1e6
