"""Nothing that changes a run sits where a bad line or a paste could press it."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.keys.actions import ACTIONS, Action, ActionEffect, ScreenName, actions_of
from redrive.console.keys.keymap import (
    BURST_SECONDS,
    CALM_SECONDS,
    ESCAPE_SECONDS,
    FLOOD_KEYS,
    UNSEEN_SECONDS,
    KeyGuard,
    KeyPress,
    Refusal,
    guarded_keys,
    key_label,
    key_name,
    keys_of,
)
from support.marks import for_each
from textual.keys import _character_to_key

#: What M-4 measured, and what terminals answer: letters that can be keys nobody pressed.
FAKEABLE = "ABCDEFHIOMmPQRSZ~[<;ycntRu0123456789"


#: Characters of escape sequences and of replies: those above, the kitty protocol's, and the keys of rxvt.
SEQUENCE_CHARACTERS = {*FAKEABLE, *"u^$@]>?;:=!"}


@for_each("action", [one for one in ACTIONS if one.effect is ActionEffect.CHANGE])
def test_what_changes_a_run_is_on_plain_characters_that_no_escape_sequence_has(action: Action) -> None:
    """Not on Enter, Space or arrows, which are pressed without looking, nor on keys that shells and terminals take."""
    assert all(len(key) == 1 and key not in SEQUENCE_CHARACTERS for key in action.keys)


@for_each("place", ScreenName)
def test_no_key_has_two_actions_on_one_screen(place: ScreenName) -> None:
    keys = [key for action in actions_of(place) for key in keys_of(action.name)]
    assert len(keys) == len(set(keys))


@for_each("character", string.printable.strip())
def test_keys_have_the_names_that_textual_gives_them(character: str) -> None:
    assert key_name(character) == _character_to_key(character)
    assert key_label(key_name(character)) == character


@for_each("place", ScreenName)
def test_the_guard_covers_all_keys_that_change_something(place: ScreenName) -> None:
    guarded = guarded_keys(place)
    for action in actions_of(place):
        for key in keys_of(action.name):
            assert (key in guarded) == (action.effect > ActionEffect.NONE), action.name
    assert guarded <= guarded_keys()


# --- the guard --------------------------------------------------------------------------------------------------------


class KeyPresser:
    """Presses keys at given instants and collects what came through. ``r`` and ``s`` act."""

    def __init__(self) -> None:
        self.guard: KeyGuard[None] = KeyGuard(lambda key: key in "rs")
        self.passed: list[KeyPress[None]] = []

    def press(self, keys: str, at: float, apart: float = 0.0) -> KeyPresser:
        for key in keys:
            self.poll(at)
            self.guard.press("escape" if key == "^" else key, at, None)
            self.poll(at)
            at += apart
        return self

    def poll(self, now: float) -> None:
        self.passed += self.guard.ready(now)

    def settle(self, now: float = 1000.0) -> str:
        self.poll(now)
        return "".join("" if press.refusal else press.key[0] for press in self.passed)

    def refusals(self) -> list[Refusal]:
        return [press.refusal for press in self.passed if press.refusal]


def test_a_key_that_changes_nothing_passes_at_once() -> None:
    hand = KeyPresser()
    hand.guard.press("j", 1.0, None)
    assert [press.key for press in hand.guard.ready(1.0)] == ["j"]


def test_a_key_that_acts_waits_until_a_burst_would_be_over() -> None:
    hand = KeyPresser().press("r", 1.0)
    assert hand.passed == []
    assert hand.guard.due() == 1.0 + BURST_SECONDS
    assert hand.settle(1.0 + BURST_SECONDS) == "r"


def test_keys_behind_it_wait_with_it_so_that_it_acts_where_it_was_pressed() -> None:
    hand = KeyPresser().press("rj", 1.0, apart=0.01)
    assert hand.passed == []
    assert hand.settle() == "rj"


def test_a_burst_never_acts_wherever_the_key_stands_in_it() -> None:
    for place in range(4):
        keys = "jjj"[:place] + "r" + "jjj"[place:]
        hand = KeyPresser().press(keys, 1.0, apart=0.005)
        assert hand.settle() == "jjj"
        assert hand.refusals() == [Refusal.BURST]


def test_four_keys_in_more_than_thirty_milliseconds_are_a_quick_hand() -> None:
    assert KeyPresser().press("jjjr", 1.0, apart=0.0101).settle() == "jjjr"


def test_the_end_of_a_paste_that_was_held_up_does_not_act() -> None:
    hand = KeyPresser().press("jjjj", 1.0).press("r", 1.0 + CALM_SECONDS - 0.01)
    assert hand.settle() == "jjjj"
    assert KeyPresser().press("jjjj", 1.0).press("r", 1.01 + CALM_SECONDS).settle() == "jjjjr"


@given(st.integers(4, 2000))
def test_of_a_long_paste_nothing_acts(length: int) -> None:
    hand = KeyPresser()
    for number in range(length):
        hand.guard.press("rsj"[number % 3], 1.0 + number * 0.001, None)
    assert set(hand.settle()) <= {"j"}


def test_a_held_key_repeats_without_being_a_burst() -> None:
    assert KeyPresser().press("r" * 20, 1.0, apart=1 / 30).settle() == "r" * 20


def test_right_after_escape_nothing_acts() -> None:
    hand = KeyPresser().press("^", 1.0).press("r", 1.0 + ESCAPE_SECONDS - 0.01)
    assert hand.settle() == "e"
    assert hand.refusals() == [Refusal.ESCAPE]


def test_some_time_after_escape_keys_act_again() -> None:
    assert KeyPresser().press("^", 1.0).press("r", 1.01 + ESCAPE_SECONDS).settle() == "er"


def test_what_a_key_means_is_asked_when_its_turn_comes() -> None:
    """Behind ``/`` the letter ``r`` is text: it must neither wait nor be refused."""
    typing = False

    def acts(key: str) -> bool:
        return key == "r" and not typing

    guard: KeyGuard[None] = KeyGuard(acts)
    for key in "/rrr":
        guard.press(key, 1.0, None)
    passed = []
    for press in guard.ready(1.0):
        typing = typing or press.key == "/"
        passed.append((press.key, press.refusal))
    assert passed == [("/", None), ("r", None), ("r", None), ("r", None)]


def test_a_flood_is_bounded() -> None:
    guard: KeyGuard[None] = KeyGuard(lambda key: True)
    taken = [guard.press("r", 1.0 + number * 1e-3, None) for number in range(100_000)]
    assert taken == [True] * FLOOD_KEYS + [False] * (100_000 - FLOOD_KEYS)
    passed = list(guard.ready(1000.0))
    assert len(passed) == FLOOD_KEYS and all(press.refusal for press in passed)
    assert guard.press("r", 1001.0, None)


def test_keys_of_the_same_read_do_not_answer_what_they_have_opened() -> None:
    guard: KeyGuard[None] = KeyGuard(lambda key: key in ("z", "enter"))
    for key in ("z", "enter"):
        guard.press(key, 1.0, None)
    passed = []
    for press in guard.ready(1.0 + BURST_SECONDS):
        passed.append((press.key, press.refusal))
        if press.key == "z":
            guard.dialog_changed(1.0 + BURST_SECONDS, refuses_all=False)
    assert passed == [("z", None), ("enter", Refusal.UNSEEN)]


def test_after_a_question_has_closed_even_marks_are_refused_for_a_moment() -> None:
    guard: KeyGuard[None] = KeyGuard(lambda key: key == "r")
    guard.dialog_changed(1.0, refuses_all=True)
    for key, at in (("a", 1.1), ("r", 1.2), ("a", 1.01 + UNSEEN_SECONDS), ("r", 1.4 + UNSEEN_SECONDS)):
        guard.press(key, at, None)
    passed = [(press.key, press.refusal) for press in guard.ready(9.0)]
    assert passed == [("a", Refusal.UNSEEN), ("r", Refusal.UNSEEN), ("a", None), ("r", None)]


def test_text_for_a_field_that_has_just_opened_is_taken() -> None:
    guard: KeyGuard[None] = KeyGuard(lambda key: key == "enter")
    guard.dialog_changed(1.0, refuses_all=False)
    guard.press("1", 1.05, None)
    assert [press.refusal for press in guard.ready(9.0)] == [None]
