"""How much may be under way to a terminal behind a network."""

from __future__ import annotations

from redrive.console.terminal.flow_control import (
    REPORT_TIMEOUT_SECONDS,
    TIMEOUTS_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    WINDOW_BYTES_START,
    FlowControl,
)


def answering() -> FlowControl:
    """The pacing of a terminal that has answered once."""
    pacing = FlowControl()
    pacing.record_report(0.0)
    return pacing


def fill(pacing: FlowControl, at: float) -> int:
    """Send frames of 500 bytes until the window is full; how many questions were sent with them."""
    questions = 0
    while pacing.has_room(at):
        questions += pacing.record_sent(500, at)
    return questions


def test_small_frames_pass_without_a_question() -> None:
    pacing = FlowControl()
    assert not pacing.record_sent(100, 0.0)
    assert pacing.has_room(0.0)
    assert pacing.next_check_at() is None


def test_a_full_window_waits_for_an_answer() -> None:
    pacing = answering()
    assert fill(pacing, 0.0) > 1
    assert not pacing.has_room(1.0)
    pacing.record_report(1.0)
    assert pacing.has_room(1.0)


def test_quick_answers_widen_the_window_up_to_a_bound() -> None:
    pacing = answering()
    for _ in range(20):
        for _ in range(fill(pacing, 0.0)):
            pacing.record_report(0.1)
    assert pacing.window_bytes == WINDOW_BYTES_MAX


def test_slow_answers_narrow_it_down_to_a_bound() -> None:
    pacing = answering()
    for _ in range(20):
        for _ in range(fill(pacing, 0.0)):
            pacing.record_report(2.0)
    assert pacing.window_bytes == WINDOW_BYTES_MIN


def test_a_lost_answer_stops_nothing_for_long() -> None:
    pacing = answering()
    fill(pacing, 0.0)
    assert not pacing.has_room(REPORT_TIMEOUT_SECONDS - 0.1)
    assert pacing.next_check_at() == REPORT_TIMEOUT_SECONDS
    assert pacing.has_room(REPORT_TIMEOUT_SECONDS)


def test_a_terminal_that_never_answered_is_not_waited_for() -> None:
    pacing = FlowControl()
    for _ in range(1000):
        assert pacing.has_room(0.0)
        pacing.record_sent(5000, 0.0)
    assert pacing.next_check_at() is None
    assert pacing.unconfirmed_bytes <= 5000


def test_a_terminal_that_stopped_answering_is_not_waited_for_until_it_answers_again() -> None:
    pacing = answering()
    for number in range(TIMEOUTS_MAX):
        fill(pacing, number * REPORT_TIMEOUT_SECONDS)
        assert pacing.has_room((number + 1) * REPORT_TIMEOUT_SECONDS)
    for _ in range(100):
        pacing.record_sent(5000, 100.0)
    assert pacing.has_room(100.0)
    pacing.record_report(100.0)
    fill(pacing, 100.0)
    assert not pacing.has_room(100.0)


def test_an_answer_that_nobody_waits_for_is_ignored() -> None:
    pacing = FlowControl()
    pacing.record_report(0.0)
    assert pacing.window_bytes == WINDOW_BYTES_START
