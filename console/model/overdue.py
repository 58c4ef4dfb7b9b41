"""Whether something takes longer than it usually does."""

from __future__ import annotations

from ...engine.core.projection import TaskRow
from ...engine.statefile.durations import DurationStats

_SECOND = 1_000_000
_OVERDUE_FACTOR = 1.5  # times the 95th percentile of past attempts, and
_OVERDUE_US = 10 * _SECOND  # at least this much longer
_ATTEMPTS_MIN = 3  # past attempts that a comparison needs
_STALLED_US = 60 * _SECOND  # without progress,
_STALLED_PACES = 3  # and this many times as long as one part took so far


def is_overdue(elapsed_us: int, stats: DurationStats) -> bool:
    """Whether an attempt runs far longer than 95 % of past attempts."""
    return stats.attempts >= _ATTEMPTS_MIN and is_far_over(elapsed_us, stats.p95_us)


def is_far_over(elapsed_us: int, most_us: int) -> bool:
    """Whether a duration is far above the one that most have at most."""
    return elapsed_us > _OVERDUE_FACTOR * most_us and elapsed_us - most_us > _OVERDUE_US


def stalled_for_us(row: TaskRow, now_us: int) -> int | None:
    """Return how long a running task has reported no progress; None if that is not long for it."""
    if not row.progress_total or row.started_at is None:
        return None
    pace_us = (row.changed_at - row.started_at) // max(row.progress_done or 0, 1)
    silent_us = now_us - row.changed_at
    return silent_us if silent_us > max(_STALLED_US, _STALLED_PACES * pace_us) else None
