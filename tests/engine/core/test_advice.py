"""What a timeout should be, by what the task took: a number with its reason, or none (SPEC part 4, 6)."""

from __future__ import annotations

import pytest
from redrive.engine.core.advice import (
    PastDuration,
    Progress,
    TimeoutVerdict,
    advise_memory,
    advise_timeout,
    duration_literal,
    duration_stats,
    judge_timeout,
    round_up_duration,
    stats_by_weekday,
)
from redrive.engine.core.option_types import parse_duration
from support.marks import for_each

MINUTE = 60.0
MONDAY_MINUTES = (9, 9.5, 10, 10, 10.2, 10.5, 10.7, 11, 9.1, 9.9, 10.1, 10.9)
MONDAYS = [PastDuration(0, minutes * MINUTE) for minutes in MONDAY_MINUTES]
OTHER_DAYS = [PastDuration(day, (4 + day / 5) * MINUTE) for day in range(1, 7) for _ in range(5)]
KILLED = PastDuration(0, 10 * MINUTE, succeeded=False)


def test_a_day_that_needs_more_than_the_others_is_distinguished_and_gets_a_number() -> None:
    advice = advise_timeout([*MONDAYS, *OTHER_DAYS, KILLED], 10 * MINUTE)
    assert advice == "12 of 13 Mondays took 9m00 to 11m00: timeout=15m would have let all but one end for certain"


def test_another_day_is_compared_without_the_one_that_needs_more() -> None:
    killed = PastDuration(2, 600, succeeded=False)
    judged = judge_timeout([*MONDAYS, *OTHER_DAYS, killed], 25 * MINUTE)
    assert judged.verdict is TimeoutVerdict.AMPLE
    assert judged.reason == "30 of 31 attempts on other days than Monday took 4m00 to 5m00: more time would not help"


def test_a_hang_far_beyond_what_it_ever_took_needs_no_other_timeout() -> None:
    """000.42 the other way round: a hang is not cured by waiting longer."""
    past = [PastDuration(day, 40.0) for day in range(7)] + [PastDuration(1, 600, succeeded=False)]
    assert advise_timeout(past, 600.0) is None
    assert judge_timeout(past, 600.0).reason == "7 of 8 attempts took about 40s: more time would not help"


def test_seconds_are_reported_to_the_tenth_where_that_matters() -> None:
    """ "About 1 s" under a timeout of 2 s hides how near it was."""
    advice = advise_timeout([PastDuration(0, seconds) for seconds in (1.62, 1.7, 1.75, 1.8, 1.88)], 2.0)
    assert advice == "5 of 5 attempts took 1.6s to 1.9s: timeout=3s would have let all of them end"


def test_a_timeout_that_has_room_is_not_to_be_changed() -> None:
    assert advise_timeout([PastDuration(0, seconds) for seconds in (85.0, 86, 87, 88, 89)], 120.0) is None


@for_each("count", range(5))
def test_a_few_attempts_say_nothing(count: int) -> None:
    assert advise_timeout([PastDuration(0, 90.0)] * count, 100.0) is None


def test_the_suggestion_is_read_by_the_flow_as_it_was_meant() -> None:
    for seconds in (0.3, 1, 44, 46, 61, 89, 91, 200, 3599, 3601, 5000, 90_000, 10_000_000):
        suggested = round_up_duration(seconds)
        assert suggested >= seconds
        assert parse_duration(duration_literal(suggested)) == suggested


def test_quantiles_are_of_those_that_ended_and_the_killed_are_counted() -> None:
    seen = duration_stats([*(PastDuration(0, float(number)) for number in range(1, 101)), KILLED, KILLED])
    assert seen is not None
    assert (seen.p50, seen.p95, seen.p99, seen.count, seen.killed) == (51, 95, 99, 100, 2)
    assert duration_stats([KILLED]) is None


def test_a_day_is_reported_when_enough_is_known_of_it() -> None:
    days = stats_by_weekday([*MONDAYS, *OTHER_DAYS[:3], KILLED])
    assert list(days) == [0]
    assert (days[0].count, days[0].killed) == (12, 1)


@for_each(
    "progress, words, needs",
    [
        (
            Progress(910, 1000, 600.0, 599.0, 300),
            "91 % done by its own progress (910 of 1,000), at that pace it needed 11m00",
            pytest.approx(659.3, abs=0.1),
        ),
        (Progress(455, 1000, 600.0, 560.0, 300), "no progress since 40s, at 455 of 1,000", None),
        (Progress(455, None, 600.0, 560.0, 300), "no progress since 40s, at 455", None),
        (Progress(455, None, 600.0, 599.5, 300), "still moving, at 455", None),
        (Progress(1, 2, 600.0, 300.0, 1), "50 % done by its own progress (1 of 2), at that pace it needed 20m00", 1200),
        (Progress(0, 10, 5.0, 0.1, 1), "no progress since 4.9s, at 0 of 10", None),
    ],
)
def test_progress_distinguishes_slow_from_stuck(progress: Progress, words: str, needs: float | None) -> None:
    """A killed task that was nearly done needs another timeout; one that stood still needs another look."""
    assert (str(progress), progress.needed_seconds) == (words, needs)


@for_each(
    "megabytes, limit, said",
    [
        (800, None, 'its attempts held up to 800 MB: memory="1GB"'),
        (400, None, None),  # small
        (1_900, 2 * 10**9, 'its attempts held up to 1.9 GB of 2.0 GB allowed: memory="3GB"'),
        (100, 120_000_000, 'its attempts held up to 100 MB of 120 MB allowed: memory="200MB"'),
        (100, 2 * 10**9, None),
    ],
)
def test_a_limit_of_memory_is_proposed_from_what_attempts_held(megabytes: int, limit: int | None, said: str | None):
    past = [PastDuration(0, 1.0, memory=one * 1_000_000) for one in (10, 50, megabytes, 30, 20)]
    assert advise_memory(past, limit) == said
    assert advise_memory(past[:4], limit) is None  # too few
    killed = PastDuration(0, 1.0, succeeded=False, memory=9 * 10**9)
    assert advise_memory([*past, killed], limit) == said
