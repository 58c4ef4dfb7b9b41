"""Durations, instants and sizes: the same width while they tick, never below zero, never standing at zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.text.durations import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    brief,
    clock,
    countdown,
    format_bytes,
    format_duration,
    number,
    offset,
    wall,
    wall_day,
)


@given(st.integers(-10 * DAY, 40_000 * DAY))
def test_a_clock_never_changes_its_width(duration):
    assert len(clock(duration)) == 5


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (-5 * SECOND, "00:00"),
        (41 * SECOND, "00:41"),
        (59 * MINUTE + 59 * SECOND, "59:59"),
        (HOUR + 4 * MINUTE, " 1h04"),
        (99 * HOUR, "99h00"),
        (100 * HOUR, "4d04h"),
        (123 * DAY, " 123d"),
    ],
)
def test_a_clock_reads_as_one_expects(duration, text):
    assert clock(duration) == text


def test_a_countdown_never_stands_at_zero():
    assert countdown(10 * SECOND, 3 * SECOND) == "in 00:07"
    assert countdown(10 * SECOND, 10 * SECOND - 1) == "in 00:01"
    assert countdown(10 * SECOND, 10 * SECOND) == "due 0.0 s ago"
    assert countdown(10 * SECOND, 14 * SECOND) == "due 4 s ago"


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (400_000, "0.4s"),
        (16 * SECOND, "16s"),
        (150 * SECOND, "2m30"),
        (5 * MINUTE, "5m"),
        (HOUR + 4 * MINUTE, "1h04"),
        (3 * DAY, "3d"),
        (-1, "0s"),
    ],
)
def test_a_brief_duration_is_as_short_as_it_can_be(duration, text):
    assert brief(duration) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (400_000, "0.4 s"),
        (119 * SECOND, "119 s"),
        (14 * MINUTE, "14 min"),
        (3 * HOUR + 5 * MINUTE, "3 h 05 min"),
        (50 * HOUR, "2 days"),
        (-9, "0.0 s"),
    ],
)
def test_a_spoken_duration_fits_a_sentence(duration, text):
    assert format_duration(duration) == text


def test_an_offset_has_its_sign_and_instants_their_zone():
    assert (offset(3 * SECOND), offset(-3 * SECOND)) == ("+00:03", "-00:03")
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
