"""What a terminal sends is cut into keys and sequences, and a sequence in pieces never becomes keys."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.terminal.escape_parser import (
    EscapeKey,
    EscapeParser,
    EscapeSequence,
    InputToken,
    PastedText,
    TypedText,
)
from support.marks import for_each

ESCAPE_SECONDS = 0.1
SEQUENCES = (
    "\x1b[A",
    "\x1b[D",
    "\x1b[1;5C",
    "\x1b[Z",
    "\x1b[3~",
    "\x1b[15~",
    "\x1bOR",
    "\x1bOP",
    "\x1b[[A",
    "\x1b[<0;10;5M",
    "\x1b[<35;120;40m",
    "\x1b[M !!",
    "\x1b[I",
    "\x1b[12;40R",
    "\x1b[?2026;2$y",
    "\x1b[?62;22c",
    "\x1b[97;5u",
)
#: Answers to questions that this program never asks; they are read as a whole, but not across a cut behind their ESC.
STRINGS = ("\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1b]10;?\x07", "\x1bP1$r0m\x1b\\")


def read(*pieces: str, pause: float = 0.0) -> list[InputToken]:
    """Feed pieces that come ``pause`` seconds apart, with the ticks that are due between them; then wait long."""
    reader = EscapeParser(ESCAPE_SECONDS)
    tokens: list[InputToken] = []
    now = 0.0
    for piece in pieces:
        while (due := reader.expires_at()) is not None and due <= now:
            tokens += reader.expire(due)
        tokens += reader.feed(piece, now)
        now += pause
    tokens += reader.expire(now + 100)
    return tokens


def typed(tokens: list[InputToken]) -> str:
    return "".join(token.text for token in tokens if isinstance(token, TypedText))


def test_keys_pass_as_they_come() -> None:
    assert read("jk/", "q") == [TypedText("jk/"), TypedText("q")]


def test_bytes_that_waited_unread_belong_to_their_escape() -> None:
    reader = EscapeParser(ESCAPE_SECONDS)
    assert reader.feed("\x1b", 0.0) == []
    assert reader.feed("[B", 5.0) == [EscapeSequence("\x1b[B")]


@for_each("sequence", SEQUENCES + STRINGS)
def test_a_whole_sequence_is_one_token_between_keys(sequence: str) -> None:
    assert read(f"j{sequence}k") == [TypedText("j"), EscapeSequence(sequence), TypedText("k")]


@for_each("sequence", SEQUENCES)
@for_each("pause", [0.05, 0.15, 0.3, 0.4])
def test_a_sequence_cut_anywhere_never_becomes_keys(sequence: str, pause: float) -> None:
    for cut in range(1, len(sequence)):
        tokens = read(sequence[:cut], sequence[cut:], pause=pause)
        assert typed(tokens) == "", (sequence, cut)


@for_each("sequence", SEQUENCES)
def test_a_sequence_that_comes_byte_by_byte_is_whole_again(sequence: str) -> None:
    assert read(*sequence, pause=0.05) == [EscapeSequence(sequence)]


@pytest.mark.parametrize("string", STRINGS)
def test_an_answer_in_pieces_never_becomes_keys(string: str) -> None:
    for cut in range(2, len(string)):
        assert typed(read(string[:cut], string[cut:], pause=0.3)) == ""


@given(st.integers(0, 2**32), st.lists(st.sampled_from(SEQUENCES), min_size=1, max_size=6))
def test_many_sequences_in_random_pieces_never_become_keys(seed: int, sequences: list[str]) -> None:
    dice = random.Random(seed)
    reader = EscapeParser(ESCAPE_SECONDS)
    tokens: list[InputToken] = []
    now = 0.0
    for sequence in sequences:
        cut = dice.randrange(1, len(sequence))
        for piece in (sequence[:cut], sequence[cut:]):
            while (due := reader.expires_at()) is not None and due <= now:
                tokens += reader.expire(due)
            tokens += reader.feed(piece, now)
            now += dice.uniform(0.05, 0.4)
    assert typed(tokens + reader.expire(now + 100)) == ""


def test_a_lone_escape_is_a_key_as_of_its_arrival() -> None:
    reader = EscapeParser(ESCAPE_SECONDS)
    assert reader.feed("\x1b", 5.0) == []
    assert reader.expires_at() == 5.0 + ESCAPE_SECONDS
    assert reader.expire(5.0 + ESCAPE_SECONDS) == [EscapeKey(5.0)]


def test_escape_and_a_later_key_are_two_keys() -> None:
    assert read("\x1b", "j", pause=0.05) == [EscapeKey(0.0), TypedText("j")]


def test_alt_and_a_key_come_together() -> None:
    assert read("\x1br") == [EscapeSequence("\x1br")]


def test_two_escapes_are_two_keys() -> None:
    assert read("\x1b\x1b") == [EscapeKey(0.0), EscapeKey(0.0)]


def test_a_bracket_long_after_escape_is_a_key() -> None:
    assert read("\x1b", "[", pause=1.0) == [EscapeKey(0.0), TypedText("[")]


def test_a_sequence_that_is_never_finished_is_dropped_and_keys_go_on() -> None:
    assert read("\x1b[1;", "j", pause=3.0) == [TypedText("j")]


def test_a_paste_is_one_token_whatever_is_in_it() -> None:
    assert read("\x1b[200~rm -rf\n\x1b[A\x1b[201~j") == [PastedText("rm -rf\n\x1b[A"), TypedText("j")]


def test_a_paste_in_pieces_is_one_token() -> None:
    text = "\x1b[200~" + "x" * 10000 + "\x1b[201~"
    for size in (1, 3, 7, 4096):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(*pieces, pause=0.001) == [PastedText("x" * 10000)]


def test_a_paste_whose_end_was_lost_ends_in_silence() -> None:
    reader = EscapeParser(ESCAPE_SECONDS)
    assert reader.feed("\x1b[200~abc", 0.0) == []
    due = reader.expires_at()
    assert due is not None
    assert reader.expire(due) == [PastedText("abc")]
    assert reader.feed("\x1b[201~j", due + 1) == [TypedText("j")]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_noise_breaks_nothing(noise: str) -> None:
    reader = EscapeParser(ESCAPE_SECONDS)
    reader.feed(noise, 0.0)
    reader.expire(100.0)
    reader.expire(200.0)
    assert reader.feed("j", 300.0) == [TypedText("j")]


def test_an_endless_sequence_is_given_up() -> None:
    reader = EscapeParser(ESCAPE_SECONDS)
    assert typed(reader.feed("\x1b[" + "1;" * 100_000 + "j", 0.0))[-1] == "j"
