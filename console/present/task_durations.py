"""How long a task took so far, in all and by the day of the week: one line for each."""

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
from ..text.durations import brief


def duration_lines(past: Sequence[PastDuration], *, only_other_days: bool = False) -> list[str]:
    """Nothing where none of these attempts ended; days of which too little is known are left out.

    ``only_other_days``: those that are like all the others, too.
    """
    took = duration_stats(past)
    if took is None:
        return []
    days = {day: one for day, one in stats_by_weekday(past).items() if not (only_other_days and _is_alike(one, took))}
    words = ("took", *(WEEKDAYS[day] for day in days))
    return [f"{word:9} {_quantiles(one)}" for word, one in zip(words, (took, *days.values()), strict=True)]


def _is_alike(one: DurationQuantiles, other: DurationQuantiles) -> bool:
    return one.p50 < WEEKDAY_DIFFERS * other.p50 and other.p50 < WEEKDAY_DIFFERS * one.p50


def _quantiles(one: DurationQuantiles) -> str:
    p50, p95, p99 = (brief(round(seconds * 1e6)) for seconds in (one.p50, one.p95, one.p99))
    killed = f", {one.killed} killed" if one.killed else ""
    return f"p50 {p50}, p95 {p95}, p99 {p99} in {one.count} attempt{'' if one.count == 1 else 's'}{killed}"
