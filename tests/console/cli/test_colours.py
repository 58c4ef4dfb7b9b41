"""Colours of lists: on a terminal alone, by the role of a state, and never from the text of a task."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from redrive.console.cli import following, output
from redrive.console.terminal.capabilities import shows_colours
from redrive.console.text.pieces import Piece, Role, plain, table
from redrive.console.text.text import table_lines
from support.commands import run_redrive
from support.hostile_text import FORBIDDEN, texts
from support.marks import parametrize_mostly_long
from support.pty_terminal import PtyTerminal
from support.state_file import StateFileBuilder

_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_FORCED = {"FORCE_COLOR": "1", "TERM": "xterm"}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A task of each kind of state; the error of one tries to be a colour."""
    builder = StateFileBuilder(tmp_path / "s.db")
    builder.finish("task_00000")
    builder.start("task_00001")
    builder.finish("task_00002", "DEAD_LETTER", error="\x1b[32mDEAD_LETTER\x1b[0m \x9b32m")
    builder.close()
    yield builder.path


def printed(*words: object, **environ: str) -> str:
    given = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    done = run_redrive(*words, env={**given, **environ})
    assert done.stderr == ""
    return done.stdout


def coloured_words(text: str) -> set[tuple[str, str]]:
    """The parameters of each style, with the text that has it."""
    return set(re.findall(r"\x1b\[([0-9;]+)m([^\x1b]*)\x1b\[0m", text))


@parametrize_mostly_long(
    "words", [("tasks",), ("runs",), ("inbox",), ("events",), ("runs", "--tasks"), ("why", "task_00005")], quick=3
)
def test_without_its_colours_a_list_is_what_a_pipe_gets(state: Path, words: tuple[str, ...]) -> None:
    command = (words[0], state, *words[1:])
    in_colours, in_a_pipe = printed(*command, **_FORCED), printed(*command)
    assert "\x1b" not in in_a_pipe and "\x1b" in in_colours
    timeless = re.compile(r"\d+(\.\d+)?(ms|s|m\d\d)\b")
    assert timeless.sub("", _SGR.sub("", in_colours)) == timeless.sub("", in_a_pipe)


def test_a_state_has_the_colour_of_its_role(state: Path) -> None:
    found = coloured_words(printed("tasks", state, **_FORCED))
    assert {("2", "SUCCESS"), ("33", "CUT OFF"), ("1;7;35", "DEAD_LETTER"), ("2", "PENDING"), ("1", "STATE")} <= found
    assert not any("32" in style for style, _ in found)


def test_json_has_no_colours(state: Path) -> None:
    assert "\x1b" not in printed("tasks", state, "--json", **_FORCED)


@pytest.mark.parametrize(
    ("environ", "has_colours"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "vt100"}, False),
        ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True),
    ],
)
def test_a_terminal_gets_colours_unless_it_is_told_otherwise(environ: Mapping[str, str], has_colours: bool) -> None:
    assert shows_colours({"TERM": "xterm", **environ}, is_terminal=True) == has_colours


@pytest.mark.parametrize(("environ", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_list_on_a_terminal_is_in_colours(state: Path, environ: Mapping[str, str], has_colours: bool) -> None:
    terminal = PtyTerminal([sys.executable, "-P", "-m", "redrive.console", "tasks", str(state)], environ=environ)
    assert terminal.wait() == 0 and "DEAD_LETTER" in terminal.text
    assert (b"\x1b[1;7;35mDEAD_LETTER\x1b[0m" in terminal.raw) == has_colours
    assert (b"\x1b[" in terminal.raw) == has_colours
    terminal.close()


def test_a_followed_list_is_drawn_in_colours_and_wrapped_at_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((12, 9)))
    monkeypatch.setattr(output, "_styles", output._terminal_styles)
    following.RedrawnView().print([[Piece("a task "), Piece("RUNNING", Role.RUNNING)]])
    assert "a task\x1b[K\n  \x1b[36mRUNNING\x1b[0m\x1b[K\n" in capsys.readouterr().out


def test_a_followed_list_in_a_terminal_of_one_row_is_a_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((12, 1)))
    following.RedrawnView().print(["one", "two"])
    assert "... 2 more lines" in capsys.readouterr().out


@given(texts, texts, texts)
def test_a_table_in_pieces_reads_as_one_of_text(first: str, second: str, third: str) -> None:
    rows = [("A", "B", "C"), (first, second, third), (third, first, second)]
    styled = [[Piece(cell, Role.HUMAN) for cell in row] for row in rows]
    lines = list(table(styled))
    assert [plain(line) for line in lines] == list(table_lines(rows))
    assert not FORBIDDEN & {letter for line in lines for letter in plain(line)}
