"""Untrusted text becomes cells: nothing that steers a terminal gets through, and every width is known."""

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.text.pieces import Piece, fit, plain, width
from redrive.console.text.text import (
    cells,
    cut,
    one_line,
    pad,
    pad_left,
    sanitize,
    shorten,
    shorten_middle,
    table_lines,
    two_lines,
)
from rich.cells import get_character_cell_size
from support.marks import for_each

#: What reached the terminal through every path that was tried, by kind.
ATTACKS = {
    "escape, OSC, CSI": "\x1b]0;pwned\x07\x1b[2J\x1b[31m",
    "C1": "\x9b31m\x9dtitle\x9c\x85",
    "delete and null": "\x00a\x7fb",
    "bidi": "\u202egnp.exe\u2066\u2069\u061c\u200f",
    "zero width": "a\u200bb\u2060c\ufeffd\u00ade",
    "joiner and variation": "👩\u200d💻 ❤\ufe0f",
    "line separators": "a\u2028b\u2029c",
    "tags": "\U000e0041\U000e007f",
    "lone surrogates": "\ud800a\udfff",
    "flags and skin": "🇩🇪 👍🏽",
    "fillers that look empty": "\u3164\u115f\uffa0",
    "for private use, and not yet a character": "\ue000\U0010fffd\u0378",
}

anything = st.text(st.characters(codec=None), max_size=60)


@for_each("text", ATTACKS.values())
def test_nothing_that_steers_a_terminal_gets_through(text):
    clean = sanitize(text)
    assert all(get_character_cell_size(character) > 0 for character in clean)
    assert clean.encode()
    assert len(clean) == len(text), "each bad character leaves a visible one behind"


def test_control_characters_become_their_pictures():
    assert sanitize("\x1b[2J\x07\x7f") == "␛[2J␇␡"


def test_plain_text_of_any_language_is_left_alone():
    for text in ("load_part_0001", "日本語テスト", "приём заказов", "naïve café", "Größe²", "חשבון"):
        assert sanitize(text) == text


def test_spaces_of_any_width_are_one():
    assert sanitize("a\u00a0b\u3000c\u2009d") == "a b c d"


def test_marks_may_stand_on_a_letter_but_not_in_towers_and_not_on_nothing():
    assert sanitize("e\u0301") == "e\u0301"
    assert sanitize("e" + "\u0301" * 30) == "e\u0301\u0301"
    assert sanitize("\u0301e") == "\ufffde"


@given(anything)
def test_sanitized_text_takes_the_cells_of_its_characters_and_stays_as_it_is(text):
    clean = sanitize(text)
    assert sanitize(clean) == clean
    assert cells(clean) == sum(get_character_cell_size(character) for character in clean)
    assert clean.isprintable()


@given(anything)
def test_one_line_is_one_line(text):
    clean = one_line(text)
    assert len(clean.splitlines()) <= 1
    assert clean == clean.strip()
    assert "  " not in clean


def test_an_endless_text_costs_only_what_is_examined():
    assert len(sanitize("x" * 10_000_000)) == 4096


@given(anything, st.integers(0, 40), st.integers(0, 40))
def test_a_cut_has_exactly_the_cells_that_were_asked_for(text, low, high):
    clean = sanitize(text)
    start, end = min(low, high), max(low, high)
    assert cells(cut(clean, start, end)) == max(min(end, cells(clean)) - start, 0)


def test_half_of_a_wide_character_is_a_space():
    assert cut("日本語", 1, 5) == " 本 "
    assert cut("日本語", 0, 4) == "日本"
    assert cut("a日", 0, 2) == "a "


def test_part_of_a_number_of_a_line_is_not_shown_as_another() -> None:
    assert shorten("ZeroDivisionError demo.py:136 in push", 28) == "ZeroDivisionError demo.py…"
    assert shorten("ZeroDivisionError demo.py:136 in push", 30) == "ZeroDivisionError demo.py:136…"
    cut = fit([Piece("demo.py"), Piece(":136 in push")], 11)
    assert (plain(cut), width(cut)) == ("demo.py…   ", 11)


@given(anything, st.integers(0, 30))
def test_shortening_never_takes_more_room_than_there_is(text, size):
    clean = sanitize(text)
    for short in (shorten(clean, size), shorten_middle(clean, size)):
        assert cells(short) <= size
    assert cells(pad(clean, size)) == cells(pad_left(clean, size)) == size


def test_what_is_cut_off_leaves_a_sign():
    assert shorten("extract_orders", 8) == "extract…"
    assert shorten_middle("load_part_0001", 10) == "load_…0001"
    assert shorten("日本語テスト", 6) == "日本…"
    assert shorten("short", 8) == "short"
    assert (pad("ab", 4), pad_left("ab", 4)) == ("ab  ", "  ab")


def test_a_long_name_breaks_behind_the_separator_at_which_least_is_lost():
    assert two_lines("CUTADAPT", 12, "…") == ("CUTADAPT", "")
    assert two_lines("FASTQ_TRIM_FASTP_FASTQC", 12, "…") == ("FASTQ_TRIM_", "FASTP_FASTQC")
    assert two_lines("FASTQ_TRIM_FASTP_FASTQC", 11, "…") == ("FASTQ_TRIM_", "FASTP…ASTQC")
    assert two_lines("PICARD_COLLECTMULTIPLEMETRICS", 11, "…") == ("PICARD_", "COLLE…TRICS")


@given(st.text(alphabet="ab_-./é日", max_size=30), st.integers(1, 30))
def test_both_lines_of_a_name_fit(name, size):
    assert all(cells(line) <= size for line in two_lines(name, size, "…"))


# --- Columns of a table ----------------------------------------------------------------------------------------------


def test_a_column_is_as_wide_as_its_cells_and_not_as_its_characters():
    rows = [("TASK", "STATE"), ("日本語の抽出処理", "ok"), ("売上集計の報告処理", "ok"), ("a", "ok")]
    lines = list(table_lines(rows))
    assert [line.split()[0] for line in lines[1:]] == ["日本語の抽出処理", "売上集計の報告処理", "a"]
    assert len({cells(line.removesuffix("ok")) for line in lines[1:]}) == 1


def test_long_names_lose_their_middle_on_a_terminal_and_nothing_in_a_pipe():
    names = [f"{'a_very_long_name_of_a_task_' * 3}{end}" for end in "xy"]
    rows = [("TASK", "STATE"), *((name, "ok") for name in names)]
    assert len(set(table_lines(rows))) == 3
    assert [line.split()[0] for line in list(table_lines(rows, most=None))[1:]] == names


def test_a_cut_line_has_its_sign_behind_the_last_word():
    line = [Piece("28 % done"), Piece("         20 MB"), Piece("  row 216000")]
    assert plain(fit(line, 16)) == "28 % done …" + " " * 5
    assert plain(fit(line, 25)) == "28 % done         20 MB …"
