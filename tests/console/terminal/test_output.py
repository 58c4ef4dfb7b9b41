"""Only what changed is written, only the newest state, and never a wait."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.terminal import flow_control
from redrive.console.terminal.capabilities import Colours
from redrive.console.terminal.cell_encoder import CellEncoder
from redrive.console.terminal.flow_control import FlowControl
from redrive.console.terminal.output import ScreenBuffer, TerminalOutput
from rich.segment import Segment
from rich.style import Style
from support.waiting import LIMIT_SECONDS

WIDTH, HEIGHT = 30, 6
TYPESETTER = CellEncoder(Colours.SIXTEEN)
STYLES = (None, Style(color="red"), Style(reverse=True), Style(bold=True, bgcolor="blue"), Style(dim=True))
TEXTS = st.text(st.sampled_from("abc  ·●世界é✓e\u0301 "), max_size=40)
DRAWS = st.lists(
    st.tuples(st.integers(0, WIDTH - 1), st.integers(0, HEIGHT), TEXTS, st.sampled_from(STYLES)), max_size=8
)


def all_of(picture: ScreenBuffer) -> str:
    parts = []
    while picture.has_changes:
        parts.append(picture.next_chunk()[0])
    return "".join(parts)


def draw(picture: ScreenBuffer, x: int, y: int, text: str, style: Style | None = None) -> None:
    picture.draw(x, y, TYPESETTER.encode([Segment(text, style)]))


class Shown:
    """A terminal that shows what it is sent."""

    def __init__(self, width: int = WIDTH, height: int = HEIGHT) -> None:
        self.screen = pyte.Screen(width, height)
        self.screen.reset_mode(7, private=True)  # no automatic wrap, as the driver sets it
        self._stream = pyte.Stream(self.screen)

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    def cells(self) -> list[list[tuple[str, str, str, bool, bool]]]:
        def cell_at(x: int, y: int) -> tuple[str, str, str, bool, bool]:
            char = self.screen.buffer[y][x]
            return (char.data, char.fg, char.bg, char.bold, char.reverse)

        return [[cell_at(x, y) for x in range(self.screen.columns)] for y in range(self.screen.lines)]


@given(st.lists(DRAWS, min_size=1, max_size=5))
def test_after_any_changes_the_terminal_shows_what_a_full_repaint_shows(rounds: list[list[tuple]]) -> None:
    picture, shown = ScreenBuffer(), Shown()
    picture.resize(WIDTH, HEIGHT)
    for draws in rounds:
        for x, y, text, style in draws:
            draw(picture, x, y, text, style)
        shown.feed(all_of(picture))
    redrawn = Shown()
    picture.invalidate()
    redrawn.feed(all_of(picture))
    assert shown.cells() == redrawn.cells()


@given(DRAWS)
def test_what_was_drawn_is_what_is_read(draws: list[tuple]) -> None:
    picture, shown = ScreenBuffer(), Shown()
    picture.resize(WIDTH, HEIGHT)
    expected = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, y, text, style in draws:
        text = re.sub("[^abc ●✓·]", "x", text)
        draw(picture, x, y, text, style)
        if y < HEIGHT:
            expected[y] = (expected[y][:x] + list(text) + expected[y][x + len(text) :])[:WIDTH]
    shown.feed(all_of(picture))
    assert shown.screen.display == ["".join(row) for row in expected]


def test_the_same_again_costs_nothing() -> None:
    picture = ScreenBuffer()
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 0, "hello", Style(color="red"))
    all_of(picture)
    draw(picture, 0, 0, "hello", Style(color="red"))
    assert all_of(picture) == ""


def test_one_cell_costs_a_few_bytes() -> None:
    picture = ScreenBuffer()
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 2, "retry in 00:07")
    all_of(picture)
    draw(picture, 0, 2, "retry in 00:06")
    assert all_of(picture) == "\x1b[3;14H6"


def test_cells_that_are_close_are_written_in_one_go() -> None:
    picture = ScreenBuffer()
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 0, "00:10")
    all_of(picture)
    draw(picture, 0, 0, "01:11")
    assert all_of(picture) == "\x1b[1;2H1:11"


def test_the_empty_end_of_a_row_is_erased_and_not_written() -> None:
    picture = ScreenBuffer()
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 0, "x" * WIDTH)
    all_of(picture)
    draw(picture, 0, 0, "y" + " " * (WIDTH - 1))
    assert all_of(picture) == "\x1b[1Hy\x1b[K"


def test_long_blanks_beside_what_stays_are_erased_and_not_written() -> None:
    picture = ScreenBuffer()
    picture.resize(40, HEIGHT)
    draw(picture, 0, 0, "x" * 39 + "|")
    all_of(picture)
    draw(picture, 0, 0, "y" + " " * 20 + "z" + " " * 17)
    assert all_of(picture) == "\x1b[1Hy\x1b[20X\x1b[20Cz\x1b[17X"


def test_a_character_of_contested_width_cannot_shift_its_neighbours() -> None:
    picture = ScreenBuffer()
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 0, "🔥 hot")
    text = all_of(picture)
    assert "  \x1b[2D🔥\x1b[1;3H hot" in text


def test_half_of_a_wide_character_is_never_left_behind() -> None:
    picture, shown = ScreenBuffer(), Shown()
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 0, "世界世界")
    shown.feed(all_of(picture))
    draw(picture, 1, 0, "abc")
    shown.feed(all_of(picture))
    assert shown.screen.display[0].startswith(" abc世界")


def test_a_size_change_draws_everything_again() -> None:
    picture, shown = ScreenBuffer(), Shown(10, 3)
    picture.resize(WIDTH, HEIGHT)
    draw(picture, 0, 0, "old picture")
    all_of(picture)
    picture.resize(10, 3)
    draw(picture, 0, 1, "new one   ")
    shown.feed(all_of(picture))
    assert shown.screen.display == [" " * 10, "new one   ", " " * 10]


def test_rows_that_change_while_their_frame_is_written_do_not_keep_it_open() -> None:
    picture = ScreenBuffer()
    picture.resize(4000, HEIGHT)
    for y in range(HEIGHT):
        draw(picture, 0, y, "a" * 3999)
    ends = False
    for _ in range(HEIGHT):
        text, ends = picture.next_chunk()
        assert text
        draw(picture, 0, 0, "b" * 3999)
        if ends:
            break
    assert ends


# --- on a real descriptor that does not block -------------------------------------------------------------------------


class Line:
    """A pipe in the place of the terminal, and an output that writes to it."""

    def __init__(self, pacing: FlowControl | None = None) -> None:
        self.read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(self.read_end, False)
        self.lost = 0
        self.quiet = 0
        self.output = TerminalOutput(write_end, self._on_lost, self._on_quiet, pacing)
        self.output.buffer.resize(80, 24)

    def _on_lost(self) -> None:
        self.lost += 1

    def _on_quiet(self) -> None:
        self.quiet += 1

    def frame(self, number: int) -> None:
        for y in range(24):
            draw(self.output.buffer, 0, y, f"frame {number:06} row {y:02} ".ljust(80, "abcdefg"[number % 7]))
        self.output.flush()

    def read(self) -> str:
        try:
            return os.read(self.read_end, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def fill(self) -> int:
        """Show frames until the reader would have to read; the number of the last one."""
        number = 0
        while number < 10_000:
            number += 1
            self.frame(number)
            if self.output.is_busy:
                return number
        raise AssertionError("a pipe without end")

    def close(self) -> None:
        self.output.close()
        os.close(self.read_end)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    yield line
    line.close()


async def test_a_reader_that_sleeps_holds_nothing_up_and_costs_no_memory(line: Line) -> None:
    number = line.fill()
    written = line.output.bytes_written
    for later in range(number, number + 500):
        line.frame(later)
    assert line.output.bytes_written == written
    assert len(line.output._pending) < 20_000


async def test_a_reader_that_wakes_up_gets_the_newest_frame_and_no_replay(line: Line) -> None:
    number = line.fill()
    frames = line.output.frames
    for later in range(number + 1, number + 501):
        line.frame(later)
    shown = Shown(80, 24)
    text = ""
    async with asyncio.timeout(LIMIT_SECONDS):
        while line.output.is_busy:
            text += line.read()
            await asyncio.sleep(0)
        text += line.read()
    shown.feed(text)
    assert all(f"frame {number + 500:06}" in row for row in shown.screen.display)
    assert line.output.frames - frames <= 2  # the one that was cut short, and the newest
    assert line.quiet == 1


async def test_a_terminal_that_is_gone_is_reported_once_and_then_left_alone(line: Line) -> None:
    os.close(line.read_end)
    line.frame(1)
    line.frame(2)
    line.read_end = os.open(os.devnull, os.O_RDONLY)
    assert line.lost == 1
    assert not line.output.bytes_written


async def test_modes_and_frames_keep_their_order(line: Line) -> None:
    line.output.send_control("\x1b[?1049h")
    line.frame(1)
    line.output.send_control("\x07")
    assert re.fullmatch(r"\x1b\[\?1049h.*row 23.*\x07", line.read(), re.DOTALL)


async def test_far_too_many_modes_are_dropped_and_not_piled_up(line: Line) -> None:
    for _ in range(100):
        line.output.send_control("x" * 100_000)
    assert line.output._controls_bytes <= 1 << 18


async def test_frames_are_bracketed_when_the_terminal_knows_how(line: Line) -> None:
    line.output.supports_synchronized = True
    line.frame(1)
    text = line.read()
    assert text.startswith("\x1b[?2026h") and text.endswith("\x1b[?2026l")
    assert text.count("\x1b[?2026h") == text.count("\x1b[?2026l") == 1


async def test_an_unchanged_frame_writes_no_byte(line: Line) -> None:
    line.output.supports_synchronized = True
    line.frame(1)
    line.read()
    line.frame(1)
    assert line.read() == ""


async def test_over_a_network_no_more_is_sent_than_the_far_terminal_has_answered_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        flow_control, "REPORT_TIMEOUT_SECONDS", LIMIT_SECONDS
    )  # this machine may be slow, the far one is not
    monkeypatch.setattr(flow_control, "SLOW_SECONDS", LIMIT_SECONDS)
    line = Line(FlowControl())
    line.output.on_position_report()
    for number in range(100):
        line.frame(number)
    text = line.read()
    assert len(text) < 24_000
    assert "\x1b[6n" in text
    assert line.output.is_busy
    for _ in range(20):
        line.output.on_position_report()
        text += line.read()
    assert not line.output.is_busy
    shown = Shown(80, 24)
    shown.feed(text.replace("\x1b[6n", ""))
    assert all("frame 000099" in row for row in shown.screen.display)
    line.close()


# --- the bell --------------------------------------------------------------------------------------------------------


async def test_the_bell_is_one_byte(line: Line) -> None:
    line.frame(1)
    line.read()
    line.output.ring()
    assert line.read() == "\a"


async def test_the_bell_rings_outside_of_frames_and_once_for_a_terminal_that_slept(line: Line) -> None:
    """A terminal that is woken after an hour is not rung for each page of that hour."""
    line.output.supports_synchronized = True
    line.fill()
    for _ in range(50):
        line.output.ring()
    text = ""
    async with asyncio.timeout(LIMIT_SECONDS):
        while line.output.is_busy:
            text += line.read()
            await asyncio.sleep(0)
    text += line.read()
    before, rung, _ = text.partition("\a")
    assert rung and text.count("\a") == 1
    assert before.count("\x1b[?2026h") == before.count("\x1b[?2026l")


async def test_between_the_parts_of_a_frame_without_brackets_nothing_rings(line: Line) -> None:
    line.output.buffer.resize(4000, HEIGHT)
    for y in range(HEIGHT):
        draw(line.output.buffer, 0, y, "a" * 3999)
    while line.output._prepare_pending() and not line.output._is_mid_frame:
        line.output._pending = b""
    assert line.output._is_mid_frame, "the frame has more than one part"
    line.output._bell = True
    parts = []
    while line.output._prepare_pending():
        parts.append(line.output._pending)
    assert [part for part in parts if b"\a" in part] == [b"\a"] == parts[-1:]
