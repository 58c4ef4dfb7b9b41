"""Folding at words: nothing is lost, no row is too long, roles stay with their words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.present.folding import folded
from redrive.console.present.pieces import Piece, Role, plain, width

WORDS = st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=9), min_size=1, max_size=30)


def test_a_sentence_is_folded_at_its_spaces():
    rows = folded([Piece("3 tasks run again, with a fresh budget.")], 20)
    assert [plain(row).rstrip() for row in rows] == ["3 tasks run again,", "with a fresh budget."]


def test_later_rows_are_indented():
    rows = folded([Piece("r  ", Role.KEY), Piece("run again: one at once")], 14, indent=3)
    assert [plain(row).rstrip() for row in rows] == ["r  run again:", "   one at once"]


def test_roles_stay_with_their_words():
    rows = folded([Piece("held by "), Piece("clean_refunds", Role.HUMAN)], 14)
    assert rows[1] == [Piece("clean_refunds", Role.HUMAN)]


@given(WORDS, st.integers(9, 40))
def test_no_row_is_too_long_and_no_word_is_lost(words: list[str], size: int):
    rows = folded([Piece(" ".join(words))], size)
    assert all(width(row) <= size + 1 for row in rows)
    assert all(len(plain(row).rstrip()) <= size for row in rows)
    assert " ".join(plain(row) for row in rows).split() == words
