"""The colours that a task gave its output, as roles: the gate through which they reach the screen.

Only SGR sequences (``ESC [ ... m``) are understood, and of these only colours and the styles of letters: nothing moves
the cursor, blinks or hides. The text itself comes through ``text.sanitize``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from .pieces import Line, Piece, Role

SGR_ROLE = "sgr "  # begins the role of a piece; a style of rich follows
_SGR = re.compile(r"\x1b\[([0-9;:]*)m")
_SEQUENCES_MAX = 200  # of one line; the rest has the style of the last
_STYLES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_STYLES_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}


class SgrState:
    """The style that the sequences so far have set."""

    def __init__(self) -> None:
        self._styles: dict[str, None] = {}
        self._foreground = ""
        self._background = ""

    @property
    def role(self) -> str:
        """The role of what follows; ``Role.TEXT`` without a style of its own."""
        words = list(self._styles)
        if self._foreground != self._background:  # otherwise it would be unreadable
            words += [self._foreground] if self._foreground else []
            words += ["on", self._background] if self._background else []
        return SGR_ROLE + " ".join(words) if words else Role.TEXT

    def apply(self, parameters: str) -> None:
        """Apply the parameters of one sequence; unknown ones change nothing."""
        codes = iter([int(code[:3]) if code else 0 for code in re.split("[;:]", parameters)])
        for code in codes:
            if code in (38, 48):
                self._set_colour(code == 38, _extended_colour(codes))
            else:
                self._apply_code(code)

    def _apply_code(self, code: int) -> None:
        if code == 0:
            self._styles, self._foreground, self._background = {}, "", ""
        elif code in _STYLES:
            self._styles[_STYLES[code]] = None
        elif code in _STYLES_OFF:
            for style in _STYLES_OFF[code]:
                self._styles.pop(style, None)
        elif code in (39, 49):
            self._set_colour(code == 39, "")
        else:
            for first, base in ((30, 0), (90, 8)):
                if first <= code < first + 8 or first + 10 <= code < first + 18:
                    self._set_colour(code < first + 10, f"color({(code - first) % 10 + base})")

    def _set_colour(self, is_foreground: bool, colour: str | None) -> None:
        if colour is None:
            return
        if is_foreground:
            self._foreground = colour
        else:
            self._background = colour


def _extended_colour(codes: Iterator[int]) -> str | None:
    """A colour of 256, or of 16 million; None if it is cut short or out of range."""
    kind = next(codes, None)
    parts = [next(codes, 256) for _ in range({5: 1, 2: 3}.get(kind or 0, 0))]
    if not parts or max(parts) > 255:
        return None
    return f"color({parts[0]})" if kind == 5 else "#{:02x}{:02x}{:02x}".format(*parts)


def coloured_spans(raw: str) -> Iterator[tuple[int, str]]:
    """Yield where in ``raw`` a style begins, and its role."""
    state = SgrState()
    for count, match in enumerate(_SGR.finditer(raw)):
        if count == _SEQUENCES_MAX:
            return
        state.apply(match[1])
        yield match.end(), state.role


def coloured_pieces(text: str, spans: list[tuple[int, str]], role: Role) -> Line:
    """``text`` in pieces: from each place of ``spans`` on in its role; ``role``: of what has no style of its own."""
    pieces: Line = []
    places = [(0, str(Role.TEXT)), *spans, (len(text), str(Role.TEXT))]
    for (start, style), (end, _) in pairwise(places):
        if start < end:
            pieces.append(Piece(text[start:end], role if style == Role.TEXT else style))
    return pieces
