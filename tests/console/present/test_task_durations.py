"""How long a task took so far, as one line for all of it and one for each day of which enough is known."""

from __future__ import annotations

from redrive.console.present.evidence import quantile_lines
from redrive.engine.core.advice import PastDuration


def test_a_day_of_which_enough_is_known_has_a_line_of_its_own() -> None:
    past = [*(PastDuration(0, 600.0) for _ in range(4)), PastDuration(0, 600.0, succeeded=False), PastDuration(2, 30.0)]
    assert quantile_lines(past) == [
        "took      p50 10m00, p95 10m00, p99 10m00 in 5 attempts, 1 killed",
        "Monday    p50 10m00, p95 10m00, p99 10m00 in 4 attempts, 1 killed",
    ]


def test_where_there_is_little_room_only_days_that_are_others_have_a_line() -> None:
    past = [PastDuration(day, 600.0 if day == 0 else 60.0) for day in range(7) for _ in range(4)]
    assert [line.split()[0] for line in quantile_lines(past)[:3]] == ["took", "Monday", "Tuesday"]
    assert [line.split()[0] for line in quantile_lines(past, only_other_days=True)] == ["took", "Monday"]


def test_a_task_that_never_ended_has_no_duration() -> None:
    assert quantile_lines([PastDuration(0, 600.0, succeeded=False)]) == []
    assert quantile_lines([]) == []
