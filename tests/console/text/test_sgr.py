"""Colours of tasks: the gate lets through looks of letters and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.text.pieces import SGR_ROLE, Role, coloured_pieces, coloured_spans, plain
from rich.ansi import AnsiDecoder
from rich.style import Style
from support.marks import for_each


@for_each(
    "sequences, role",
    [
        ("\x1b[31m", "sgr color(1)"),
        ("\x1b[1;97;44m", "sgr bold color(15) on color(4)"),
        ("\x1b[38;2;255;0;128m", "sgr #ff0080"),
        ("\x1b[38:5:9m", "sgr color(9)"),
        ("\x1b[1m\x1b[2m\x1b[22m", "text"),
        ("\x1b[4;31m\x1b[39m", "sgr underline"),
        ("\x1b[31m\x1b[m", "text"),
        ("\x1b[5m\x1b[8m", "text"),  # neither blinks nor hides
        ("\x1b[31;41m", "text"),  # nobody could read it
        ("\x1b[38;5m", "text"),
        ("\x1b[38;5;300m", "text"),
        ("\x1b[999999999999m", "text"),
        ("\x1b[2J\x1b[10;10H", "text"),
    ],
)
def test_the_style_after_some_sequences(sequences: str, role: str) -> None:
    styles = [style for _, style in coloured_spans(sequences + "x")]
    assert (styles or ["text"])[-1] == role


def test_the_same_sequences_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that scrolls asks for each line in view, and a decoder takes a hundred times as long as a look-up."""
    decoded: list[str] = []
    monkeypatch.setattr(AnsiDecoder, "decode_line", lambda decoder, text: decoded.append(text))
    for _ in range(50):
        list(coloured_spans("\x1b[3;36mINFO\x1b[23m started"))
    assert len(decoded) <= 2


@given(st.text("\x1b[]m;:0123456789xé"))
def test_whatever_is_written_every_role_is_a_style(raw: str) -> None:
    for place, role in coloured_spans(raw):
        assert 0 < place <= len(raw)
        if role != Role.TEXT:
            assert not Style.parse(role.removeprefix(SGR_ROLE)).blink


def test_pieces_join_to_the_text() -> None:
    pieces = coloured_pieces("one two", [(3, "sgr bold"), (3, "text"), (4, "sgr color(1)")], Role.FAILED)
    assert plain(pieces) == "one two"
    assert [piece.role for piece in pieces] == [Role.FAILED, Role.FAILED, "sgr color(1)"]
