"""The last gate: whatever comes in, known cells, visible characters and allowed colours go out."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.terminal.capabilities import Colours
from redrive.console.terminal.cell_encoder import Cell, CellEncoder
from redrive.console.text.glyphs import UTF8
from rich.cells import cell_len
from rich.color import Color
from rich.segment import ControlType, Segment
from rich.style import Style
from support.marks import for_each

ANY_TEXT = st.text(st.characters(), max_size=60)
HOSTILE = (
    "\x1b]0;pwned\x07\x1b[2J\x1b[31m",
    "\x9b31m\x9dpwned\x9c",
    "a\x00b\x08c\td\re\nf\x0e\x7f",
    "\u202egnp.exe\u2066\u200f\u061c",
    "\ufeff\u2028\u2029\u00ad\u200b\u200d\u2060",
    "\ud800\udfff",
    "e" + "\u0301" * 40,
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️",
    "\U000e0041\U000e007f",
)
ALL = CellEncoder(Colours.TRUE)


def set_text(text: str, typesetter: CellEncoder = ALL, style: Style | None = None) -> list[Cell]:
    return typesetter.encode([Segment(text, style)])


def sgr(style: Style, colours: Colours, text: str = "x") -> str:
    return set_text(text, CellEncoder(colours), style)[0][1]


@given(ANY_TEXT)
def test_there_are_as_many_cells_as_textual_counted(text: str) -> None:
    assert len(set_text(text)) == cell_len(text)
    assert len(set_text(text, CellEncoder(Colours.NONE, has_unicode=False))) == cell_len(text)


@given(ANY_TEXT)
def test_nothing_that_a_terminal_obeys_gets_out(text: str) -> None:
    shown = "".join(cell for cell, _ in set_text(text))
    bad = [char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert bad == []


@for_each("text", HOSTILE)
def test_the_known_attacks_do_not_get_out(text: str) -> None:
    shown = "".join(cell for cell, _ in set_text(text))
    assert not re.search("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]", shown)


@given(ANY_TEXT)
def test_a_locale_without_utf8_gets_ascii_only(text: str) -> None:
    shown = "".join(cell for cell, _ in set_text(text, CellEncoder(Colours.TRUE, has_unicode=False)))
    assert shown.isascii() and (not shown or shown.isprintable())


@given(st.lists(ANY_TEXT, max_size=5))
def test_every_right_half_has_its_left_half(texts: list[str]) -> None:
    row = [cell for text in texts for cell in set_text(text)]
    for left, right in zip([("", ""), *row], row, strict=False):
        if right[0] == "":
            assert cell_len(left[0]) == 2


def test_few_marks_stand_on_a_character() -> None:
    (cell,) = set_text("e" + "\u0301" * 40)
    assert cell[0] == "e\u0301\u0301"


def test_a_joined_picture_is_its_first_part() -> None:
    assert [text for text, _ in set_text("👩‍👧")] == ["👩", ""]


def test_our_own_signs_pass_in_utf8_and_have_one_cell() -> None:
    signs = [getattr(UTF8, name) for name in UTF8.__struct_fields__]
    characters = "".join(sign if isinstance(sign, str) else "".join(sign) for sign in signs)
    assert [text for text, _ in set_text(characters)] == list(characters)


def test_our_own_lines_have_a_likeness_in_ascii() -> None:
    row = set_text("─│┌┐└┘├┤┬┴┼╭╮╰╯…✓●↻◆█", CellEncoder(Colours.NONE, has_unicode=False))
    assert "".join(text for text, _ in row) == "-|+++++++++..`'.o>~!#"


def test_control_segments_are_no_cells() -> None:
    assert ALL.encode([Segment("\x1b[2J", None, [(ControlType.CLEAR,)])]) == []


def test_colours_are_what_the_terminal_can() -> None:
    style = Style(color="#ff8800", bgcolor="blue", bold=True)
    assert sgr(style, Colours.TRUE) == "1;38;2;255;136;0;44"
    assert sgr(style, Colours.INDEXED) == "1;38;5;208;44"
    assert re.fullmatch(r"1;(3|9)\d;44", sgr(style, Colours.SIXTEEN))
    assert sgr(style, Colours.NONE) == "1"


def test_no_color_keeps_what_is_not_a_colour() -> None:
    style = Style(color="red", bgcolor="green", bold=True, dim=True, reverse=True, underline=True)
    assert sgr(style, Colours.NONE) == "1;2;4;7"


def test_the_operators_own_colours_are_no_parameter() -> None:
    assert sgr(Style(color=Color.default(), bgcolor=Color.default()), Colours.TRUE) == ""


def test_nothing_blinks_or_hides() -> None:
    assert sgr(Style(blink=True, blink2=True, conceal=True, frame=True, link="https://x"), Colours.TRUE) == ""


def test_blanks_carry_only_what_is_seen_on_them() -> None:
    assert sgr(Style(color="red", bold=True), Colours.TRUE, " ") == ""
    assert sgr(Style(color="red", reverse=True), Colours.TRUE, " ") == "7;31"
    assert sgr(Style(bgcolor="red"), Colours.TRUE, " ") == "41"


# --- A terminal that draws signs two cells wide ----------------------------------------------------------------------


@for_each(
    "text, shown",
    [
        ("✓ 日本語の抽出処理 1/3", "o 日本語の抽出処理 1/3"),
        ("◆ 売上集計 │ déjà vu", "! 売上集計 | deja vu"),
        ("─●▆…", "->=."),
        ("○ ⊗ ✓", "% * o"),
        ("한국어 ▸ x", "한국어 > x"),
    ],
)
def test_signs_become_ascii_and_texts_stay_as_they_are(text: str, shown: str) -> None:
    encoder = CellEncoder(Colours.NONE, has_wide_signs=True)
    for _ in range(2):  # also what is known already
        row = set_text(text, encoder)
        assert "".join(cell for cell, _ in row) == shown
        assert len(row) == cell_len(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("◆ $großer_Über_Tag é", "! $großer_Über_Tag é"), ("─● 日本 ✓…", "-> 日本 o."), ("имя_задачи ▸", "имя_задачи >")],
)
def test_signs_asked_for_in_ascii_change_no_letter(text: str, shown: str) -> None:
    row = set_text(text, CellEncoder(Colours.NONE, has_ascii_signs=True))
    assert "".join(cell for cell, _ in row) == shown and len(row) == cell_len(text)


def test_two_names_of_one_length_do_not_read_alike() -> None:
    encoder = CellEncoder(Colours.NONE, has_wide_signs=True)
    assert set_text("抽出処理", encoder) != set_text("集計報告", encoder)
