"""Past durations of a task, in all and by day of the week: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.core.advice import (
    WEEKDAY_DIFFERS,
    WEEKDAYS,
    DurationQuantiles,
    PastDuration,
    duration_stats,
    stats_by_weekday,
)
from ...engine.domain.counting import counted
from ..text.durations import format_seconds


def duration_lines(past: Sequence[PastDuration], *, only_other_days: bool = False) -> list[str]:
    """Quantiles of past durations; empty if no attempt ended. Days with too few attempts are left out.

    ``only_other_days``: also leave out days that are like the others.
    """
    total = duration_stats(past)
    if total is None:
        return []
    days = {day: one for day, one in stats_by_weekday(past).items() if not (only_other_days and _is_alike(one, total))}
    words = ("took", *(WEEKDAYS[day] for day in days))
    return [f"{word:9} {_quantiles(one)}" for word, one in zip(words, (total, *days.values()), strict=True)]


def _is_alike(one: DurationQuantiles, other: DurationQuantiles) -> bool:
    return one.p50 < WEEKDAY_DIFFERS * other.p50 and other.p50 < WEEKDAY_DIFFERS * one.p50


def _quantiles(one: DurationQuantiles) -> str:
    p50, p95, p99 = (format_seconds(seconds) for seconds in (one.p50, one.p95, one.p99))
    killed = f", {one.killed} killed" if one.killed else ""
    return f"p50 {p50}, p95 {p95}, p99 {p99} in {counted(one.count, 'attempt')}{killed}"
