"""Durations, instants and sizes: the same width while they tick, never below zero, never standing at zero."""

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.text.figures import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    age,
    clock,
    column,
    countdown,
    number,
    offset,
    wall,
    wall_day,
)
from redrive.engine.domain.text import format_bytes, format_duration
from support.marks import for_each


@given(st.integers(-10 * DAY, 9_000 * DAY))
def test_a_clock_never_changes_its_width(duration):
    assert len(clock(duration)) == 5


@for_each(
    "duration, text",
    [
        (-5 * SECOND, "   0s"),
        (3 * SECOND + 400_000, "   3s"),
        (41 * SECOND, "  41s"),
        (59 * MINUTE + 59 * SECOND, "59m59"),
        (HOUR + 4 * MINUTE, " 1h04"),
        (23 * HOUR, "23h00"),
        (100 * HOUR, "4d04h"),
        (123 * DAY, " 123d"),
    ],
)
def test_a_clock_reads_as_one_expects(duration, text):
    assert clock(duration) == text


def test_a_countdown_never_stands_at_zero():
    assert countdown(10 * SECOND, 3 * SECOND) == "in  7s"
    assert countdown(10 * SECOND, 10 * SECOND - 1) == "in  1s"
    assert countdown(10 * SECOND, 10 * SECOND) == "due 0s ago"
    assert countdown(10 * SECOND, 14 * SECOND) == "due 4s ago"


@for_each(
    "duration, text",
    [
        (-9, "0s"),
        (400, "<1ms"),
        (40_000, "40ms"),
        (400_000, "0.4s"),
        (9_990_000, "9.9s"),
        (16 * SECOND, "16s"),
        (119 * SECOND, "1m59"),
        (5 * MINUTE, "5m00"),
        (HOUR + 4 * MINUTE, "1h04"),
        (DAY - SECOND, "23h59"),
        (50 * HOUR, "2d02h"),
        (5 * DAY, "5d00h"),
        (123 * DAY, "123d"),
    ],
)
def test_there_is_one_format_of_durations(duration, text):
    assert format_duration(duration) == text


@given(st.integers(-10 * DAY, 9_000 * DAY))
def test_a_duration_takes_five_cells_at_most(duration):
    assert len(format_duration(duration)) <= 5 and len(column(duration)) == 5 and len(age(duration)) <= 5


@for_each(
    "duration, text",
    [
        (-1, "0s"),
        (41 * SECOND, "41s"),
        (14 * MINUTE + 7 * SECOND, "14m"),
        (3 * HOUR + 5 * MINUTE, "3h05"),
        (DAY, "1d00h"),
        (12 * DAY, "12d"),
    ],
)
def test_an_age_changes_once_a_minute(duration, text):
    assert age(duration) == text


def test_an_offset_has_its_sign_and_instants_their_zone():
    assert (offset(3 * SECOND), offset(-3 * SECOND)) == ("+3s", "-3s")
    assert wall(1_777_000_000 * SECOND) == "03:06:40"
    assert wall_day(1_777_000_000 * SECOND) == "04-24 03:06:40"


@given(st.integers(0, 999 * 10**12))
def test_a_size_in_bytes_takes_six_cells_at_most(count):
    assert len(format_bytes(count)) <= 6


def test_sizes_and_counts_read_as_one_expects():
    assert [format_bytes(count) for count in (0, 999, 1_500, 12_000_000, -3)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "12 MB",
        "0 B",
    ]
    assert number(1_247) == "1,247"
