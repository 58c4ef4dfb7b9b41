"""Logical times and what becomes of them, through changes of the clocks in zones that know such and one that does not.

003.35, 004.43, SPEC 4.10.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.core.schedule import (
    LISTED_MAX,
    Schedule,
    build_schedule,
    daylight_note,
    expected_at,
    iso_time,
    logical_name,
    parse_recurrence,
    to_microseconds,
)
from redrive.engine.core.spec import ExpectedBy, ScheduleSpec
from redrive.engine.core.supervision import decide_schedule, late_starts
from support.marks import for_each

MINUTE, HOUR = 60 * 1_000_000, 3600 * 1_000_000
BERLIN, NEW_YORK, KOLKATA = "Europe/Berlin", "America/New_York", "Asia/Kolkata"


def at(text: str) -> int:
    return to_microseconds(datetime.fromisoformat(text))


def schedule(expression: str, zone: str = "UTC", **options) -> Schedule:
    return build_schedule(ScheduleSpec(expression, zone, **options), "f", ZoneInfo(zone))


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    rhythm = parse_recurrence(expression, ZoneInfo(zone))
    return [iso_time(instant, ZoneInfo(zone)) for instant in islice(rhythm.after(at(after)), count)]


# --- Changes of the clocks -----------------------------------------------------------------------------------------

FIXED_TIMES = [
    # A gap: at its first valid instant, and once, however many of the named times it swallows.
    ("30 2 * * *", BERLIN, "2026-03-28T00:00+01:00", ["03-28T02:30+01:00", "03-29T03:00+02:00", "03-30T02:30+02:00"]),
    ("15,45 2 * * *", BERLIN, "2026-03-28T12:00+01:00", ["03-29T03:00+02:00", "03-30T02:15+02:00"]),
    ("0 2,3 * * *", BERLIN, "2026-03-28T12:00+01:00", ["03-29T03:00+02:00", "03-30T02:00+02:00", "03-30T03:00+02:00"]),
    ("30 2 * * *", NEW_YORK, "2026-03-07T12:00-05:00", ["03-08T03:00-04:00", "03-09T02:30-04:00"]),
    ("30 2 * * *", KOLKATA, "2026-03-28T12:00+05:30", ["03-29T02:30+05:30", "03-30T02:30+05:30"]),
    # An hour that comes twice: in the first of the two alone.
    ("30 2 * * *", BERLIN, "2026-10-24T12:00+02:00", ["10-25T02:30+02:00", "10-26T02:30+01:00"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31T12:00-04:00", ["11-01T01:30-04:00", "11-02T01:30-05:00"]),
    # Asked from within the second of the two: not once more, and not in the past.
    ("30 2 * * *", BERLIN, "2026-10-25T02:10+01:00", ["10-26T02:30+01:00"]),
    ("30 2 * * *", BERLIN, "2026-10-25T02:30+02:00", ["10-26T02:30+01:00"]),
    # The zone's own midnight and its own half hour.
    ("0 0 * * *", KOLKATA, "2026-11-21T00:00+00:00", ["11-22T00:00+05:30", "11-23T00:00+05:30"]),
    ("0 9 * * 1-5", NEW_YORK, "2026-10-30T12:00-04:00", ["11-02T09:00-05:00", "11-03T09:00-05:00"]),
]


@for_each(
    "name, expected",
    [
        ("@hourly", "11-21T09:00"),
        ("@daily", "11-22T00:00"),
        ("@midnight", "11-22T00:00"),
        ("@Weekly", "11-22T00:00"),
        ("@monthly", "12-01T00:00"),
        ("@yearly", "01-01T00:00"),
    ],
)
def test_a_name_of_crontab_is_its_five_fields(name: str, expected: str) -> None:
    assert [text[5:16] for text in times(name, KOLKATA, "2026-11-21T08:10+05:30", 1)] == [expected]


@for_each("expression, zone, after, expected", FIXED_TIMES)
def test_a_fixed_time_comes_once_whatever_the_clocks_do(expression, zone, after, expected):
    found = times(expression, zone, after, len(expected))
    assert expected == [f"{text[5:16]}{text[19:]}" for text in found]


def test_a_holiday_is_a_day_of_the_zone_and_no_missed_run() -> None:
    daily = schedule("30 0 * * *", KOLKATA, holidays=("2026-12-25", "2026-12-26"))
    found = [iso_time(one, daily.zone)[5:10] for one in islice(daily.after(at("2026-12-23T12:00+05:30")), 3)]
    assert found == ["12-24", "12-27", "12-28"]
    decision = decide_schedule(daily, at("2026-12-24T12:00+05:30"), (), at("2026-12-26T12:00+05:30"))
    assert (decision.run, decision.missed) == (None, ())


INTERVALS = [
    ("*/30 * * * *", BERLIN, "2026-03-29T01:00+01:00", 30),
    ("*/30 * * * *", BERLIN, "2026-10-25T01:30+02:00", 30),
    ("30 * * * *", NEW_YORK, "2026-11-01T00:00-04:00", 60),
    ("0 * * * *", NEW_YORK, "2026-03-08T00:00-05:00", 60),
    ("*/15 * * * *", KOLKATA, "2026-03-29T00:00+05:30", 15),
    ("every 15m", BERLIN, "2026-03-29T00:00+01:00", 15),
    ("every 15m", BERLIN, "2026-10-25T00:00+02:00", 15),
    ("every 25h", NEW_YORK, "2026-10-31T00:00-04:00", 25 * 60),
]


@for_each("expression, zone, after, minutes", INTERVALS)
def test_an_interval_stays_what_it_is_whatever_the_clocks_do(expression, zone, after, minutes):
    found = list(islice(parse_recurrence(expression, ZoneInfo(zone)).after(at(after)), 12))
    assert {minutes * MINUTE} == {later - earlier for earlier, later in pairwise(found)}


@given(
    st.sampled_from(["30 2 * * *", "*/20 2 * * *", "15,45 1-3 * * *", "0 */2 * * *", "5 1 * * 0", "every 7m"]),
    st.sampled_from([BERLIN, NEW_YORK, KOLKATA, "Australia/Lord_Howe", "UTC"]),
    st.integers(at("2026-01-01T00:00+00:00"), at("2027-12-31T00:00+00:00")),
)
def test_logical_times_only_ever_go_forward(expression, zone, start):
    found = [start, *islice(parse_recurrence(expression, ZoneInfo(zone)).after(start), 20)]
    assert all(earlier < later for earlier, later in pairwise(found))


@given(
    st.sampled_from(["30 2 * * *", "15,45 1-3 * * *", "*/30 * * * *", "every 20m"]),
    st.sampled_from([BERLIN, NEW_YORK]),
    st.integers(at("2026-10-20T00:00+00:00"), at("2026-11-03T00:00+00:00")),
    st.integers(0, 200 * HOUR),
)
def test_from_wherever_they_are_asked_for_they_are_the_same(expression, zone, start, later):
    """A restart in any minute of a night in which the clocks change finds the very times that were promised."""
    rhythm = parse_recurrence(expression, ZoneInfo(zone))
    promised = (instant for instant in rhythm.after(start) if instant > start + later)
    assert list(islice(promised, 20)) == list(islice(rhythm.after(start + later), 20))


# --- What is refused -----------------------------------------------------------------------------------------------


@for_each(
    "expression, why",
    [
        ("0 2 * *", "five fields"),
        ("0 0 2 * * *", "five fields"),
        ("@reboot", "five fields"),
        ("@daily 5", "five fields"),
        ("", "five fields"),
        ("61 2 * * *", "bad minute"),
        ("0 2 * * XYZ", "bad day-of-week"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 */31 * MON#2", "never comes"),
        ("every 0s", "too often"),
        ("every 900ms", "too often"),
        ("every now and then", "not a duration"),
    ],
)
def test_what_is_no_schedule_is_refused_in_a_sentence(expression, why):
    with pytest.raises(ValueError, match=why):
        parse_recurrence(expression, ZoneInfo("UTC"))


# --- What is to be done --------------------------------------------------------------------------------------------

SIX = at("2026-11-21T06:00+00:00")
HOURS = [SIX + hour * HOUR for hour in range(1, 5)]  # 07:00 to 10:00

MISFIRES = [
    # misfire, minutes after the last of four, what runs, how many are given up
    ("one", 0, HOURS[3], 3),
    ("one", 59, HOURS[3], 3),
    ("skip", 0, HOURS[3], 3),
    ("skip", 1, HOURS[3], 3),
    ("skip", 2, None, 4),
    ("all", 59, HOURS[0], 0),
]


@for_each("misfire, minutes, runs, missed", MISFIRES)
def test_missed_starts_are_treated_as_the_flow_says(misfire, minutes, runs, missed):
    decision = decide_schedule(schedule("0 * * * *", misfire=misfire), SIX, (), HOURS[3] + minutes * MINUTE)
    assert (runs, missed) == (decision.run, len(decision.missed))
    assert decision.is_all


def test_with_all_each_is_run_in_its_turn_and_none_is_given_up():
    until, ran = SIX, []
    while (decision := decide_schedule(schedule("0 * * * *", misfire="all"), until, (), HOURS[3])).run is not None:
        assert not decision.missed
        ran.append(decision.run)
        until = decision.run
    assert HOURS == ran


@pytest.mark.parametrize("misfire", ["one", "skip", "all"])
def test_on_time_there_is_nothing_to_decide(misfire):
    """Not before it is due, then once, then not again."""
    hourly = schedule("0 * * * *", misfire=misfire)
    assert decide_schedule(hourly, SIX, (), HOURS[0] - 1).run is None
    assert HOURS[0] == decide_schedule(hourly, SIX, (), HOURS[0]).run
    assert decide_schedule(hourly, HOURS[0], (), HOURS[0]).run is None


@pytest.mark.parametrize(("misfire", "runs"), [("one", None), ("skip", None), ("all", HOURS[1])])
def test_what_has_run_already_does_not_run_again(misfire, runs):
    """As by a backfill, meanwhile."""
    decision = decide_schedule(schedule("0 * * * *", misfire=misfire), SIX, {HOURS[0], HOURS[3]}, HOURS[3])
    assert runs == decision.run
    assert not {HOURS[0], HOURS[3]} & {decision.run, *decision.missed}


def test_a_run_that_took_longer_than_its_interval_leaves_the_latest_to_run():
    decision = decide_schedule(schedule("every 1s"), SIX, (), SIX + 10 * 1_000_000 + 1)
    assert SIX + 10 * 1_000_000 == decision.run
    assert 9 == len(decision.missed) and decision.decided_until == SIX + 9 * 1_000_000


def test_a_year_in_which_nobody_served_a_minutes_schedule_is_decided_about_at_once():
    decision = decide_schedule(schedule("* * * * *", BERLIN), SIX - 365 * 24 * HOUR, (), SIX)
    assert SIX == decision.run and LISTED_MAX == len(decision.missed) and not decision.is_all
    assert SIX - MINUTE == decision.missed[-1] == decision.decided_until


@given(st.integers(0, 40), st.sampled_from(["one", "skip", "all"]), st.sets(st.integers(1, 20), max_size=5))
def test_every_time_is_run_or_missed_or_still_to_come_and_none_is_two_of_these(minutes, misfire, others):
    every = schedule("every 1m", misfire=misfire)
    fired = {SIX + number * MINUTE for number in others}
    now, until, ran, missed = SIX + minutes * MINUTE, SIX, [], []
    while True:
        decision = decide_schedule(every, until, fired | set(ran), now)
        missed += decision.missed
        until = decision.decided_until
        if decision.run is None:
            break
        ran.append(decision.run)
        until = max(until, decision.run)
    passed = {SIX + number * MINUTE for number in range(1, minutes + 1)}
    assert sorted([*ran, *missed]) == sorted(passed - fired)


# --- Splay and promises --------------------------------------------------------------------------------------------


def test_the_splay_of_a_flow_is_its_own_and_always_the_same():
    spec = ScheduleSpec("0 2 * * *", splay_seconds=300)
    shares = {flow: build_schedule(spec, flow, ZoneInfo("UTC")).splay_us for flow in map(str, range(200))}
    assert shares == {flow: build_schedule(spec, flow, ZoneInfo("UTC")).splay_us for flow in shares}
    assert all(0 <= share < 300 * 1_000_000 for share in shares.values())
    minutes = [sum(share // MINUTE == minute for share in shares.values()) for minute in range(5)]
    assert min(minutes) >= 20, "200 flows that share an hour are spread over the whole splay"


def test_a_splay_shifts_when_a_run_is_due_and_not_what_it_stands_for():
    late = schedule("0 * * * *", splay_seconds=300)
    assert decide_schedule(late, SIX, (), HOURS[0]).run is None
    assert HOURS[0] == decide_schedule(late, SIX, (), HOURS[0] + late.splay_us).run


def test_a_run_that_has_not_started_within_its_allowance_is_late():
    promised = schedule("0 * * * *", start_within_seconds=600)
    assert [] == late_starts(promised, SIX, (), HOURS[0] + 10 * MINUTE)
    assert HOURS[:1] == late_starts(promised, SIX, (), HOURS[0] + 10 * MINUTE + 1)
    assert [] == late_starts(promised, HOURS[0], (), HOURS[0] + 11 * MINUTE)
    assert [] == late_starts(promised, SIX, set(HOURS), HOURS[3] + HOUR)
    assert [] == late_starts(schedule("0 * * * *"), SIX, (), HOURS[3] + HOUR), "nothing is promised unless asked for"


# --- In words ------------------------------------------------------------------------------------------------------


@for_each(
    "text, zone, name",
    [
        ("2026-11-21T02:00+05:30", KOLKATA, "2026-11-21T02:00+0530"),
        ("2026-10-25T02:30+02:00", BERLIN, "2026-10-25T02:30+0200"),
        ("2026-10-25T02:30+01:00", BERLIN, "2026-10-25T02:30+0100"),
        ("2026-11-21T02:00:01+00:00", "UTC", "2026-11-21T02:00:01+0000"),
    ],
)
def test_a_run_is_called_by_its_logical_time_and_two_equal_hours_differ(text, zone, name):
    assert name == logical_name(at(text), ZoneInfo(zone))


@for_each(
    "expression, text, zone, note",
    [
        ("30 2 * * *", "2026-03-29T03:00+02:00", BERLIN, "the first instant after the gap"),
        ("30 2 * * *", "2026-10-25T02:30+02:00", BERLIN, "02:30 twice: the first"),
        ("every 30m", "2026-10-25T02:30+01:00", BERLIN, "02:30 twice: the second"),
        ("0 9 * * *", "2026-03-29T09:00+02:00", BERLIN, "gone forward"),
        ("0 9 * * *", "2026-11-01T09:00-05:00", NEW_YORK, "gone back"),
    ],
)
def test_a_night_in_which_the_clocks_change_is_noted(expression, text, zone, note):
    assert note in daylight_note(schedule(expression, zone), at(text))


def test_on_an_ordinary_day_there_is_nothing_to_note():
    assert "" == daylight_note(schedule("0 9 * * *", BERLIN), at("2026-06-01T09:00+02:00"))
    assert "" == daylight_note(schedule("30 2 * * *", KOLKATA), at("2026-03-29T02:30+05:30"))


# --- When a task is expected ---------------------------------------------------------------------------------------


@for_each(
    "start, clock, expected",
    [
        ("2026-01-05T22:00+01:00", "03:00", "2026-01-06T03:00+01:00"),  # the next one, not that of the same day
        ("2026-01-05T01:00+01:00", "03:00", "2026-01-05T03:00+01:00"),
        ("2026-01-05T03:00+01:00", "03:00", "2026-01-06T03:00+01:00"),
        ("2026-03-28T22:00+01:00", "02:30", "2026-03-29T03:00+02:00"),  # there is no half past two
        ("2026-10-24T22:00+02:00", "02:30", "2026-10-25T02:30+02:00"),  # the first of two
    ],
)
def test_a_task_is_expected_by_the_next_such_time_after_the_start(start, clock, expected):
    assert expected_at(ExpectedBy(clock=clock), at(start), ZoneInfo(BERLIN)) == at(expected)


def test_a_task_is_expected_so_long_after_the_start():
    assert expected_at(ExpectedBy(7200), at("2026-03-28T22:00+01:00"), ZoneInfo(BERLIN)) == at("2026-03-29T00:00+01:00")
