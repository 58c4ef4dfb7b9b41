"""Text to be read: it follows, folds, finds, and keeps the reader at his line."""

from __future__ import annotations

import re

import pytest
from redrive.console.text.pieces import Line, Piece, Role, plain
from redrive.console.widgets.text_view import LinesView, highlighted


def texts(count: int, start: int = 0) -> list[Line]:
    return [[Piece(f"line {number}")] for number in range(start, start + count)]


async def test_it_starts_at_the_start_and_pages_keep_one_line(stage) -> None:
    view = LinesView(texts(100))
    async with stage(view) as app:
        assert app.lines[0] == "line 0"
        await app.press("pagedown")
        assert app.lines[0] == "line 9"
        await app.press("space")
        assert app.lines[0] == "line 18"
        await app.press("G")
        assert app.lines[9] == "line 99"
        assert view.span == (90, 100)
        await app.press("k")
        assert view.span == (89, 99)


async def test_a_followed_end_stays_in_view(stage) -> None:
    log = texts(5)
    view = LinesView(log, follow=True)
    async with stage(view) as app:
        log += texts(50, start=5)
        view.lines_changed()
        await app.pilot.pause()
        assert app.lines[9] == "line 54"


async def test_scrolling_back_stops_following_and_the_position_stays(stage) -> None:
    log = texts(50)
    view = LinesView(log, follow=True)
    async with stage(view) as app:
        view.lines_changed()
        await app.press("k")
        assert not view.is_following
        log += texts(50, start=50)
        view.lines_changed()
        await app.pilot.pause()
        assert app.lines[0] == "line 39"
        await app.press("f")
        assert app.lines[9] == "line 99"


async def test_lines_that_are_dropped_at_the_start_do_not_move_what_is_read(stage) -> None:
    log = texts(100)
    view = LinesView(log)
    async with stage(view) as app:
        await app.press("pagedown", "pagedown", "pagedown")
        assert app.lines[0] == "line 27"
        del log[:20]
        log += texts(10, start=100)
        view.lines_changed(dropped=20)
        await app.pilot.pause()
        assert app.lines[0] == "line 27"


async def test_what_is_read_may_be_dropped_as_well(stage) -> None:
    log = texts(100)
    view = LinesView(log)
    async with stage(view) as app:
        await app.press("pagedown")
        del log[:50]
        view.lines_changed(dropped=50)
        await app.pilot.pause()
        assert app.lines[0] == "line 50"


async def test_lines_in_view_that_did_not_change_are_not_painted_again(stage, painted) -> None:
    log = texts(100)
    view = LinesView(log)
    async with stage(view):
        painted(view)
        log += texts(1, start=100)
        view.lines_changed()
        assert painted(view) == []


async def test_long_lines_are_cut_or_folded(stage) -> None:
    view = LinesView([[Piece("a" * 25)], [Piece("b")]])
    async with stage(view, size=(10, 4)) as app:
        assert app.lines[:2] == ["a" * 9 + "…", "b"]
        await app.press("w")
        assert app.lines == ["a" * 10, "  " + "a" * 8, "  " + "a" * 7, "b"]


async def test_cut_lines_can_be_read_to_their_end(stage) -> None:
    view = LinesView([[Piece("0123456789abcdefghij")], [Piece("x")]])
    async with stage(view, size=(10, 4)) as app:
        await app.press("l", "l", "l", "l")
        assert app.lines[0] == "abcdefghij"
        await app.press("h")
        assert app.lines[0] == "56789abcd…"


async def test_in_folded_lines_every_row_can_be_reached(stage) -> None:
    view = LinesView([[Piece("a" * 95)], [Piece("b" * 15)]], wrap=True)
    async with stage(view, size=(10, 4)) as app:
        await app.press("G")
        assert app.lines == ["  " + "a" * 8, "  " + "a" * 5, "b" * 10, "  " + "b" * 5]
        await app.press("k")
        assert app.lines == ["  " + "a" * 8, "  " + "a" * 8, "  " + "a" * 5, "b" * 10]
        await app.press("g")
        assert view.span == (0, 1)


async def test_lines_that_fill_the_view_and_go_on_below_it_are_painted(stage) -> None:
    lines = texts(3)
    view = LinesView(lines)
    async with stage(view) as app:
        lines += texts(30, start=3)
        view.lines_changed()
        await app.pilot.pause()
        assert app.lines == [f"line {number}" for number in range(10)]
        view.set_lines(texts(30, start=100))
        await app.pilot.pause()
        assert app.lines[0] == "line 100"


async def test_search_finds_whatever_the_case_and_goes_around(stage) -> None:
    lines = texts(100)
    lines[30] = [Piece("an Error here")]
    lines[70] = [Piece("ERROR there")]
    view = LinesView(lines)
    async with stage(view) as app:
        view.search("error")
        assert view.find_next() == 30
        await app.pilot.pause()
        assert "an Error here" in app.lines
        assert view.find_next() == 70
        assert view.find_next() == 30
        assert view.find_next(forward=False) == 70
        view.search("nowhere")
        assert view.find_next() is None


async def test_what_was_found_is_seen_without_colour(stage) -> None:
    view = LinesView([[Piece("one two one")]])
    async with stage(view, size=(20, 2)) as app:
        view.search("one")
        await app.pilot.pause()
        assert [(text, style) for text, style in app.styles_of(0) if "underline" in style] == [
            ("one", "underline"),
            ("one", "underline"),
        ]


async def test_markup_and_patterns_in_a_search_are_plain_text(stage) -> None:
    view = LinesView([[Piece("a [b] (c) .*")]])
    async with stage(view) as app:
        view.search("[b] (c) .*")
        assert view.find_next() == 0
        await app.pilot.pause()
        assert app.lines[0] == "a [b] (c) .*"


@pytest.mark.parametrize("count", [0, 1])
async def test_little_text_is_no_problem(stage, count: int) -> None:
    view = LinesView(texts(count), wrap=True)
    async with stage(view) as app:
        await app.press("G", "k", "pagedown", "pageup", "w", "l", "h", "f", "g")
        assert view.span == (0, count)
        view.set_lines(texts(30))
        await app.pilot.pause()
        assert view.span == (0, 10)


async def test_a_shorter_sequence_than_announced_does_not_break_the_picture(stage) -> None:
    log = texts(100)
    view = LinesView(log)
    async with stage(view) as app:
        del log[3:]
        view.refresh()
        await app.pilot.pause()
        assert app.lines[:4] == ["line 0", "line 1", "line 2", ""]


async def test_folded_lines_follow_the_width(stage) -> None:
    view = LinesView([[Piece("a" * 30)]] * 10, wrap=True, follow=True)
    async with stage(view, size=(10, 6)) as app:
        view.lines_changed()
        assert view.span == (8, 10)
        await app.pilot.resize_terminal(30, 6)
        await app.pilot.pause()
        assert view.span == (4, 10)
        assert app.lines == ["a" * 30] * 6


def test_a_match_across_pieces_is_whole() -> None:
    line = [Piece("ab", Role.DIM), Piece("cd", Role.KEY)]
    found = highlighted(line, re.compile("bc"))
    assert found == [Piece("a", Role.DIM), Piece("b", Role.MATCH), Piece("c", Role.MATCH), Piece("d", Role.KEY)]
    assert plain(found) == "abcd"


def test_an_empty_match_changes_nothing() -> None:
    line = [Piece("abc")]
    assert highlighted(line, re.compile("x*")) == line
