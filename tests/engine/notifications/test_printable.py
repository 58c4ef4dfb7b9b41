"""The readable text of a page is shown by programs that act on control characters."""

from __future__ import annotations

from redrive.engine.domain.text import printable
from support.marks import for_each


@for_each("letter", ["\x1b", "\x07", "\x00", "\x7f", "\x9b", "\x9d", "\u202e", "\u2066", "\u2028", "\ud800"])
def test_what_a_terminal_would_act_on_becomes_a_space(letter: str) -> None:
    assert printable(f"Jürgen: no{letter}route\nnext") == "Jürgen: no route\nnext"
