"""Folding at words: nothing is lost, no row is too long, roles stay with their words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.text.pieces import Piece, Role, plain, width, wrap, wrap_within
from redrive.console.text.text import sanitize

WORDS = st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=9), min_size=1, max_size=30)


def test_a_sentence_is_folded_at_its_spaces():
    rows = wrap([Piece("3 tasks run again, with a fresh budget.")], 20)
    assert [plain(row).rstrip() for row in rows] == ["3 tasks run again,", "with a fresh budget."]


def test_a_blank_after_a_full_row_does_not_make_it_longer():
    assert [plain(row) for row in wrap([Piece("look for the key r/1")], 16)] == ["look for the key", "r/1"]


def test_what_has_no_room_in_the_last_row_is_cut_with_a_mark():
    line = [Piece("move the other file away && rm it")]
    assert [plain(row).rstrip() for row in wrap_within(line, 14, 2, 2)] == ["move the other", "  file away &…"]
    assert wrap_within(line, 40, 2) == wrap(line, 40)


def test_later_rows_are_indented():
    rows = wrap([Piece("r  ", Role.KEY), Piece("run again: one at once")], 14, indent=3)
    assert [plain(row).rstrip() for row in rows] == ["r  run again:", "   one at once"]


def test_roles_stay_with_their_words():
    rows = wrap([Piece("held by "), Piece("clean_refunds", Role.HUMAN)], 14)
    assert rows[1] == [Piece("clean_refunds", Role.HUMAN)]


@given(WORDS, st.integers(9, 40))
def test_no_row_is_too_long_and_no_word_is_lost(words: list[str], size: int):
    rows = wrap([Piece(" ".join(words))], size)
    assert all(width(row) <= size for row in rows)
    assert " ".join(plain(row) for row in rows).split() == words


def test_what_a_line_goes_on_with_hangs_a_little_further_in():
    line = [Piece("  File", Role.DIM), Piece(" settle.py, line 87, in settle")]
    assert [plain(row) for row in wrap(line, 22, None)] == ["  File settle.py, line", "    87, in settle"]
    assert wrap(line, 22, None)[0][0] == Piece("  File", Role.DIM)


def test_a_word_longer_than_a_row_begins_where_it_stands():
    line = [Piece("see https://example.org/a/very/long/path now")]
    assert [plain(row) for row in wrap(line, 16, None)] == [
        "see https://exam",
        "  ple.org/a/very",
        "  /long/path now",
    ]


def test_wide_characters_are_not_cut_in_halves():
    assert [plain(row) for row in wrap([Piece("世界世界世界世")], 7, None)] == ["世界世", "  界世", "  界世"]


@given(st.text(alphabet="ab \u4e16e\u0301", max_size=80), st.integers(4, 30))
def test_no_row_is_wider_than_it_may_be_and_nothing_but_blanks_is_lost(text: str, size: int):
    line = [Piece(sanitize(text))]
    rows = wrap(line, size, None)
    assert all(width(row) <= size for row in rows)
    assert "".join(plain(row) for row in rows).replace(" ", "") == plain(line).replace(" ", "")


def test_an_accent_on_a_blank_is_not_lost_at_the_end_of_a_row():
    assert "".join(plain(row) for row in wrap([Piece("aaaa \u0301")], 4, None)).endswith("\u0301")
