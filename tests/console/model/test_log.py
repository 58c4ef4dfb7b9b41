"""Lines from pieces that end anywhere: in the middle of a word, of a sequence, of a progress bar."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.log import LINE_CHARACTERS_MAX, LogLine, LogText, gap_line, is_error_line
from redrive.engine.statefile.logs import LogChunk
from support.marks import for_each


def chunks(*texts: str, start: int = 1, dropped: int = 0) -> list[LogChunk]:
    return [LogChunk(start + number, number, text, 0 if number else dropped) for number, text in enumerate(texts)]


def lines_of(*texts: str) -> list[LogLine]:
    text = LogText()
    text.append(chunks(*texts))
    return text.lines


@for_each(
    "written, shown",
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\n\ntwo", ["one", "", "two"]),
        ("windows\r\nlines\r\n", ["windows", "lines"]),
        ("10 %\r20 %\r30 %\n", ["30 %"]),
        ("10 %\r20 %\r", ["20 %"]),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;5;9mmore\x1b[m", ["red and more"]),
        ("\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", ["text link"]),
        ("50 %\x1b[K\r\x1b[2K100 %\n", ["100 %"]),
        ("|\b/\b-\bdone", ["done"]),
        ("b\bbo\bol\bld\bd", ["bold"]),
        ("a\tb", ["a       b"]),
        ("\x1b]0;never ended", ["␛]0;never ended"]),
        ("[bold]no markup[/bold]", ["[bold]no markup[/bold]"]),
        ("\x00\x9b\u202e", ["␀��"]),
        ("", []),
    ],
)
def test_a_person_reads_what_was_seen_last(written: str, shown: list[str]) -> None:
    assert lines_of(written) == shown


def test_pieces_may_end_in_the_middle_of_anything() -> None:
    assert lines_of("fir", "st\nsec", "ond\n10 %", "\r20 ", "%\n\x1b[3", "1mred") == ["first", "second", "20 %", "red"]


def test_an_open_line_is_shown_and_grows() -> None:
    text = LogText()
    text.append(chunks("whole\nhal"))
    assert text.lines == ["whole", "hal"]
    text.append(chunks("f\nnext", start=2))
    assert text.lines == ["whole", "half", "next"]


def test_chunks_that_were_read_before_change_nothing() -> None:
    text = LogText()
    text.append(chunks("one\n", "two\n"))
    text.append(chunks("one\n", "two\n", "three\n"))
    text.prepend(chunks("one\n"))
    assert text.lines == ["one", "two", "three"]


_PIECES = st.lists(st.text("ab\r\n \t", min_size=1, max_size=6), min_size=1, max_size=12)


@given(pieces=_PIECES, cut=st.integers(0, 12), again=st.integers(0, 12))
def test_it_does_not_matter_from_where_one_began_to_read(pieces: list[str], cut: int, again: int) -> None:
    """Any window of the pieces, grown at either end, gives the lines of the whole."""
    every = chunks(*pieces)
    low, high = sorted((min(cut, len(every)), min(again, len(every))))
    text = LogText()
    text.append(every[low:high] or every)
    text.append(every[high:])
    text.prepend(every)
    assert text.lines == lines_of("".join(pieces))
    assert text.characters == len("".join(pieces))


def test_a_line_without_an_end_is_reported_in_parts_and_costs_no_more_than_it_is_long() -> None:
    text = LogText()
    began = time.thread_time()
    for number in range(20_000):
        text.append([LogChunk(number + 1, 0, "." * 25)])
    assert time.thread_time() - began < 5
    assert "".join(text.lines) == "." * 500_000
    assert max(map(len, text.lines)) == LINE_CHARACTERS_MAX


# --- Gaps ------------------------------------------------------------------------------------------------------------


GAP = gap_line(1_000)


def head_and_tail() -> tuple[list[LogChunk], list[LogChunk]]:
    return chunks("first\nbroken o"), chunks("ff\nlast\n", start=9, dropped=1_000)


def test_where_output_was_dropped_stands_a_gap_and_nothing_is_joined() -> None:
    head, tail = head_and_tail()
    text = LogText()
    text.append(head + tail)
    assert text.lines == ["first", "broken o", GAP, "ff", "last"]


def test_the_gap_is_found_when_the_head_is_read_after_the_tail() -> None:
    head, tail = head_and_tail()
    text = LogText()
    text.append(tail)
    assert text.lines == [GAP, "ff", "last"]
    assert text.prepend(head + tail) == 2
    assert text.lines == ["first", "broken o", GAP, "ff", "last"]


def test_a_gap_between_two_reads_leaves_a_gap_in_what_is_followed() -> None:
    text = LogText()
    text.append(chunks("old"))
    text.append(chunks("new\n", start=2, dropped=1_000))
    assert text.lines == ["old", GAP, "new"]


def test_each_line_has_the_time_and_the_chunk_of_its_end() -> None:
    text = LogText()
    text.append([LogChunk(7, 100, "one\ntw"), LogChunk(8, 200, "o\nthree")])
    text.prepend([LogChunk(6, 50, "zero\nand ")])
    assert [(str(line), line.at, line.id) for line in text.lines] == [
        ("zero", 50, 6),
        ("and one", 100, 7),
        ("two", 200, 8),
        ("three", 200, 8),
    ]


# --- Finding ---------------------------------------------------------------------------------------------------------


@for_each(
    "line",
    [
        "Traceback (most recent call last):",
        "ZeroDivisionError: division by zero",
        "[error] cannot connect",
        "2026-04-25 FATAL: password authentication failed",
        "Killed",
        "java.lang.NullPointerException at x",
    ],
)
def test_these_lines_are_errors(line: str) -> None:
    assert is_error_line(line)


@for_each("line", ["0 errors", "12 passed, 0 failed", "no error so far", "mirror set up", "finished without error"])
def test_these_do_not(line: str) -> None:
    assert not is_error_line(line)


def test_lines_put_in_front_are_counted() -> None:
    every = chunks("GET /a\n", "PUT /b\n", "GET /c\n")
    text = LogText()
    text.append(every[2:])
    assert text.prepend(every) == 2
    assert text.lines == ["GET /a", "PUT /b", "GET /c"]


def test_a_hundred_thousand_lines_are_read_without_a_wait() -> None:
    text = LogText()
    began = time.thread_time()
    text.append(chunks("".join(f"row {number:06} settled\n" for number in range(100_000))))
    assert time.thread_time() - began < 10
    assert len(text.lines) == 100_000
