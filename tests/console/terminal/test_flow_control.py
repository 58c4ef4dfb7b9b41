"""How much may be under way to a terminal behind a network."""

from __future__ import annotations

from redrive.console.terminal.flow_control import (
    SILENCE_SECONDS,
    SILENCES_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    WINDOW_BYTES_START,
    Pacing,
)


def answering() -> Pacing:
    """The pacing of a terminal that has answered once."""
    pacing = Pacing()
    pacing.answered(0.0)
    return pacing


def fill(pacing: Pacing, at: float) -> int:
    """Send frames of 500 bytes until the window is full; how many questions were sent with them."""
    questions = 0
    while pacing.may_send(at):
        questions += pacing.sent(500, at)
    return questions


def test_small_frames_pass_without_a_question() -> None:
    pacing = Pacing()
    assert not pacing.sent(100, 0.0)
    assert pacing.may_send(0.0)
    assert pacing.due() is None


def test_a_full_window_waits_for_an_answer() -> None:
    pacing = answering()
    assert fill(pacing, 0.0) > 1
    assert not pacing.may_send(1.0)
    pacing.answered(1.0)
    assert pacing.may_send(1.0)


def test_quick_answers_widen_the_window_up_to_a_bound() -> None:
    pacing = answering()
    for _ in range(20):
        for _ in range(fill(pacing, 0.0)):
            pacing.answered(0.1)
    assert pacing.window_bytes == WINDOW_BYTES_MAX


def test_slow_answers_narrow_it_down_to_a_bound() -> None:
    pacing = answering()
    for _ in range(20):
        for _ in range(fill(pacing, 0.0)):
            pacing.answered(2.0)
    assert pacing.window_bytes == WINDOW_BYTES_MIN


def test_a_lost_answer_stops_nothing_for_long() -> None:
    pacing = answering()
    fill(pacing, 0.0)
    assert not pacing.may_send(SILENCE_SECONDS - 0.1)
    assert pacing.due() == SILENCE_SECONDS
    assert pacing.may_send(SILENCE_SECONDS)


def test_a_terminal_that_never_answered_is_not_waited_for() -> None:
    pacing = Pacing()
    for _ in range(1000):
        assert pacing.may_send(0.0)
        pacing.sent(5000, 0.0)
    assert pacing.due() is None
    assert pacing.unanswered_bytes <= 5000


def test_a_terminal_that_stopped_answering_is_not_waited_for_until_it_answers_again() -> None:
    pacing = answering()
    for number in range(SILENCES_MAX):
        fill(pacing, number * SILENCE_SECONDS)
        assert pacing.may_send((number + 1) * SILENCE_SECONDS)
    for _ in range(100):
        pacing.sent(5000, 100.0)
    assert pacing.may_send(100.0)
    pacing.answered(100.0)
    fill(pacing, 100.0)
    assert not pacing.may_send(100.0)


def test_an_answer_that_nobody_waits_for_is_ignored() -> None:
    pacing = Pacing()
    pacing.answered(0.0)
    assert pacing.window_bytes == WINDOW_BYTES_START
