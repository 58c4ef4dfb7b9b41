"""Bytes that reach a terminal: no colours or signs that it must not get, and nothing of a task that it would obey."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.marks import parametrize_mostly_long
from support.pty_terminal import in_time

#: All that this program may send: printable text, the sequences of output.py and tty.py, and the frame's brackets.
ALLOWED = re.compile(
    rb"\x1b\[[0-9;]*[mHCKDX]|\x1b\[\?(?:25|7|1000|1002|1003|1004|1006|1049|2004|2026)[hl]|\x1b>|\x1b\[\?2026\$p|\x1b\[6n"
    rb"|\x1b\[[HJ]|\x18|[\r\n\x07]"
)
#: textual-limits part 7, and cases of width.
CORPUS = (
    "\x1b]0;pwned\x07\x1b[2J\x1b[31mred",
    "\x1b]52;c;cHduZWQ=\x07\x1bP+q\x1b\\\x1b_x\x1b\\",
    "\x9b31m\x9d0;pwned\x9c\x85\x8d",
    "\x00\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x7f",
    "[red]x[/] [/broken] [link=https://evil] [@click=app.exit]y",
    "\u202egnp.exe\u2066x\u2069\u200f\u061c\u2028\u2029",
    "\u200b\u200d\ufeff\u00ad\u2060\ufe0f\U000e0041",
    "\ud800\udfffx",
    "世界 👩‍👩‍👧‍👦 🇩🇪 👍🏽 e" + "\u0301" * 30,
    "x" * 5000,
)


def rest(raw: bytes) -> bytes:
    """What remains of the bytes when everything allowed is taken out."""
    return ALLOWED.sub(b"", raw)


def forbidden(text: str) -> list[str]:
    pattern = "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufe0f\U000e0000-\U000e0fff]"
    return re.findall(pattern, text)


@pytest.mark.long
def test_text_of_tasks_is_never_obeyed(demo, tmp_path: Path) -> None:
    """Names that went through the first gate, and a header that nobody cleaned before the last one."""
    file = tmp_path / "hostile"
    file.write_text(json.dumps(CORPUS))
    app = demo("--hostile", str(file))
    app.terminal.send("j")
    app.settle()
    assert forbidden(rest(bytes(app.terminal.raw)).decode()) == []
    rows = app.terminal.lines[3:22]
    assert all("retry in" in row for row in rows), app.terminal.text
    assert {row.index("retry in") for row in rows if row.isascii()} <= {39}
    assert [row[1:13] for row in rows[1::2]][:3] == ["● task_00001", "✗ task_00003", "✓ task_00005"]


@pytest.mark.long
def test_the_whole_alphabet_of_the_program_is_known(demo) -> None:
    app = demo("--tick", "0.1", "--full", ready="tick 5")
    for key in ("j", "\x1b[6~", "s", "\x1b", "/", "x", "\x1b"):
        app.terminal.send(key)
        app.terminal.read_for(0.3)
    app.quit()
    assert forbidden(rest(bytes(app.terminal.raw)).decode()) == []


@parametrize_mostly_long("environ", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "COLORTERM": "truecolor"}, {"TERM": "vt100"}])
def test_without_colours_no_colour_is_sent_and_the_cursor_is_still_seen(demo, environ: dict[str, str]) -> None:
    app = demo(environ=environ)
    app.terminal.send("j")
    app.terminal.until(lambda: app.cursor_row() == 4)
    assert app.terminal.colour_codes() == set()
    assert not app.terminal.screen.buffer[5][3].reverse


@pytest.mark.long
@parametrize_mostly_long("term", ["linux", "screen", "xterm"])
def test_a_terminal_of_sixteen_colours_gets_no_more(demo, term: str) -> None:
    app = demo(environ={"TERM": term})
    app.terminal.send("s")
    app.terminal.until("Cancel")
    app.settle()
    codes = app.terminal.colour_codes()
    assert codes and codes.isdisjoint({"38", "48"})


@pytest.mark.long
@parametrize_mostly_long("environ", [{"LANG": "C"}, {"LC_ALL": "POSIX"}, {"LANG": "en_US.ISO-8859-1"}, {"LANG": ""}])
def test_a_locale_that_is_not_utf8_gets_ascii(demo, environ: dict[str, str]) -> None:
    app = demo(environ=environ)
    app.terminal.send("s")
    app.terminal.until("Cancel")
    app.settle()
    assert bytes(app.terminal.raw).isascii()
    assert any("| Skip 3 tasks" in line for line in app.terminal.lines)


def test_a_dumb_terminal_gets_plain_text(demo) -> None:
    app = demo(environ={"TERM": "dumb"}, ready="")
    assert app.terminal.wait() == 0
    assert bytes(app.terminal.raw) == b"plain: TERM=dumb cannot place text on the screen\r\n"


def test_the_first_cells_come_before_textual_is_even_imported(demo) -> None:
    app = demo(ready="redrive - demo")
    assert b"redrive - demo" in app.terminal.raw
    assert app.terminal.raw.startswith(b"\x1b[?1049h")


@pytest.mark.long
def test_the_mouse_is_the_terminals_own_over_ssh(demo) -> None:
    assert 1000 in demo().terminal.modes


@pytest.mark.long
def test_over_ssh_the_mouse_is_not_taken(demo) -> None:
    assert demo(environ={"SSH_TTY": "/dev/pts/9"}).terminal.modes.isdisjoint({1000, 1002, 1003, 1006})


@pytest.mark.long
def test_the_terminal_is_never_asked_for_every_move_of_the_mouse_or_for_other_keyboards(demo) -> None:
    app = demo()
    assert 1003 not in app.terminal.modes and 1004 not in app.terminal.modes
    assert not re.search(rb"\x1b\[[<>=][0-9;]*u", bytes(app.terminal.raw))


@pytest.mark.long
def test_a_terminal_that_answers_nothing_is_no_problem(demo) -> None:
    app = demo("--tick", "0.05", "--full", answers=False, environ={"SSH_TTY": "x"}, ready="tick 5")
    app.terminal.until("tick 40")  # much more than any window
    app.terminal.send("q")
    assert app.terminal.wait() == 0
    assert app.terminal.is_given_back()


@pytest.mark.long
def test_what_is_copied_goes_to_the_terminal_between_two_frames(demo) -> None:
    app = demo()
    app.terminal.send("y")
    app.terminal.until(lambda: b"\x1b]52;c;dGFza18wMDAwMA==\x07" in app.terminal.raw)


@pytest.mark.long
def test_a_terminal_that_draws_our_signs_too_wide_gets_ascii(demo) -> None:
    def gets_ascii() -> bool:
        app = demo(ready="", answers=False)
        app.terminal.until(lambda: b"\x1b[6n" in app.terminal.raw)
        app.terminal.send(b"\x1b[1;10R")
        app.terminal.until(" task_00001")
        app.settle()
        return "> task_00001" in app.terminal.text and "●" not in app.terminal.text

    in_time(gets_ascii)  # an answer that comes after two seconds is none


def test_the_signs_that_measure_the_terminal_are_wiped_at_once(demo) -> None:
    app = demo(ready="", answers=False)
    app.terminal.until(lambda: b"\x1b[6n" in app.terminal.raw)
    probe = app.terminal.raw.partition(b"\x1b[6n")
    assert probe[0].endswith("\x1b[999;1H●◆↻✓·".encode())
    app.terminal.until(lambda: app.terminal.raw.partition(b"\x1b[6n")[2].startswith(b"\r\x1b[K"))
