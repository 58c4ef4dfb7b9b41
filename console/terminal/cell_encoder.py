"""Encode Textual's strips as terminal cells; every character and colour on the screen passes here.

For any strip the output is printable text of known width, and SGR parameters that the terminal supports.
The number of cells never changes, so a bad character cannot shift its neighbours. Pure; fast for plain text.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from ..text.text import sanitize
from .capabilities import Colours

#: Text of one cell and the SGR parameters that it is shown with. The right half of a wide character is "".
Cell = tuple[str, str]

BLANK: Cell = (" ", "")

_CACHED_STYLES_MAX = 4096
_KNOWN_CHARACTERS_MAX = 8192
_KNOWN_SEGMENTS_MAX = 2048
_MARKS_MAX = 2

_COLOUR_SYSTEMS = {
    Colours.SIXTEEN: ColorSystem.STANDARD,
    Colours.INDEXED: ColorSystem.EIGHT_BIT,
    Colours.TRUE: ColorSystem.TRUECOLOR,
}

#: Attributes that are passed on. Blinking, concealed, framed and the like are not: the screen is calm and says all.
_ATTRIBUTES = (("bold", "1"), ("dim", "2"), ("italic", "3"), ("underline", "4"), ("reverse", "7"), ("strike", "9"))
_VISIBLE_ON_BLANKS = ("underline", "reverse", "strike")

_ZERO_WIDTH_JOINER = "\u200d"

#: For terminals whose locale is not UTF-8. What is not listed becomes "?".
_ASCII = str.maketrans(
    {
        **dict.fromkeys("─━┄┅┈┉╌╍═╴╶╸╺╼╾▔▁—–‐‑", "-"),
        **dict.fromkeys("│┃┆┇┊┋╎╏║╵╷╹╻▏▕▎▍▌▐", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬┝┥┯┷┿┠┨┰┸╂", "+"),
        **dict.fromkeys("█▓▇▆▅▊▉■▪", "#"),
        **dict.fromkeys("▒░▄▃▂▀□▫", "="),
        **dict.fromkeys("›»▸▶→⇒❯", ">"),
        **dict.fromkeys("‹«◂◀←⇐❮", "<"),
        **dict.fromkeys("↑▴▲", "^"),
        **dict.fromkeys("↓▾▼", "v"),
        **dict.fromkeys("·•∙…․", "."),
        **dict.fromkeys("‘’′", "'"),
        **dict.fromkeys("“”″", '"'),
        "✓": "+",
        "●": ">",
        "○": "o",
        "↻": "~",
        "◷": "?",
        "◌": ":",
        "✗": "x",
        "⊘": "/",
        "◆": "!",
        "×": "x",
        "±": "~",
        "≤": "<",
        "≥": ">",
        "\u00a0": " ",
        "╱": "/",
        "╲": "\\",
        "╳": "x",
    }
)


class CellEncoder:
    """Encodes strips for one terminal.

    Args:
        colours: the colours of the terminal; with NONE no colour parameter is written, also if the theme has colours.
        unicode: False turns everything into ASCII.
    """

    def __init__(self, colours: Colours, unicode: bool = True) -> None:
        self._colour_system = _COLOUR_SYSTEMS.get(colours)
        self._unicode = unicode
        self._parameters: dict[Style, tuple[str, str]] = {}
        self._plain = set(map(chr, range(0x20, 0x7F)))  # characters known to be one cell and harmless
        self._encoded: dict[tuple[str, Style | None], list[Cell]] = {}  # words, signs and gaps come again and again

    def encode(self, segments: Iterable[Segment]) -> list[Cell]:
        """One cell for each cell that Textual counted in ``segments``."""
        row: list[Cell] = []
        known = self._encoded.get
        for text, style, control in segments:
            if not control:
                row += known((text, style)) or self._encode_segment(text, style)
        return row

    def _encode_segment(self, text: str, style: Style | None) -> list[Cell]:
        sgr, blank_sgr = self._sgr(style)
        if self._plain.issuperset(text):
            cells = list(zip(text, repeat(blank_sgr if text.isspace() else sgr)))
        else:
            cells = self._encode_unusual(text, sgr)
        if len(self._encoded) >= _KNOWN_SEGMENTS_MAX:
            self._encoded.clear()
        self._encoded[text, style] = cells
        return cells

    def _encode_unusual(self, text: str, sgr: str) -> list[Cell]:
        """Encode text with new, wide, combining or unprintable characters."""
        size = cell_len(text)
        row: list[Cell] = []
        joined = False
        for character in text:
            if joined or character == _ZERO_WIDTH_JOINER:
                joined = not joined  # terminals disagree on joined characters: the first of them stands for all
                continue
            self._add(row, character, sgr)
        del row[size:]
        row.extend(repeat((" ", sgr), size - len(row)))
        return row

    def _add(self, row: list[Cell], character: str, sgr: str) -> None:
        width = get_character_cell_size(character)
        if width == 0:
            self._add_mark(row, character)
            return
        shown = character if sanitize(character) == character else "\ufffd"
        if not self._unicode:
            shown = shown.translate(_ASCII)
            row.extend(repeat((shown if shown.isascii() else "?", sgr), width))
        elif width == 2:
            row.extend(((shown, sgr), ("", sgr)) if shown == character else repeat((shown, sgr), 2))
        else:
            row.append((shown, sgr))
            if shown == character and len(self._plain) < _KNOWN_CHARACTERS_MAX:
                self._plain.add(character)

    def _add_mark(self, row: list[Cell], mark: str) -> None:
        """Add a zero-width character: accents join the cell before them, others are dropped."""
        at = len(row) - 1
        while at > 0 and not row[at][0]:
            at -= 1
        if at < 0 or not self._unicode:
            return
        base, sgr = row[at]
        if base != " " and len(base) <= _MARKS_MAX and sanitize(base + mark) == base + mark:
            row[at] = (base + mark, sgr)

    def _sgr(self, style: Style | None) -> tuple[str, str]:
        """The SGR parameters of a style: for text, and for blanks, on which most of them do not show."""
        if style is None:
            return "", ""
        found = self._parameters.get(style)
        if found is None:
            if len(self._parameters) >= _CACHED_STYLES_MAX:
                self._parameters.clear()
            found = self._parameters[style] = self._parameters_of(style)
        return found

    def _parameters_of(self, style: Style) -> tuple[str, str]:
        attributes = [(name, code) for name, code in _ATTRIBUTES if getattr(style, name)]
        background = self._colour_codes(style, foreground=False)
        codes = [code for _, code in attributes] + self._colour_codes(style, foreground=True) + background
        text = ";".join(codes)
        seen = background or any(name in _VISIBLE_ON_BLANKS for name, _ in attributes)
        return text, text if seen else ""

    def _colour_codes(self, style: Style, foreground: bool) -> list[str]:
        colour = style.color if foreground else style.bgcolor
        if colour is None or self._colour_system is None or colour.is_default:
            return []
        return list(colour.downgrade(self._colour_system).get_ansi_codes(foreground))
