"""Strips as cells: every character and colour on the screen passes here.

For any strip the output is printable text of known width, and SGR parameters that the terminal supports. The number of
cells never changes, so a bad character cannot shift its neighbours. Pure; fast for plain text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat
from unicodedata import east_asian_width, normalize

from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from ..text.glyphs import IN_ASCII
from ..text.text import sanitize
from .capabilities import Colours

#: Text of one cell and the SGR parameters that it is shown with. The right half of a wide character is "".
Cell = tuple[str, str]

BLANK: Cell = (" ", "")

_CACHED_STYLES_MAX = 4096
_KNOWN_CHARACTERS_MAX = 8192
_CACHED_SEGMENTS_MAX = 2048
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

#: For terminals whose locale is not UTF-8: signs of the console, and what tasks draw. What is not listed becomes "?".
_ASCII = str.maketrans(
    {
        **dict.fromkeys("┅┉╍╸╺╼╾▔—–‐‑", "-"),
        **dict.fromkeys("┃┆┇┊┋╎╏║╹╻▐", "|"),
        **dict.fromkeys("┌┐└┘┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬┝┥┯┷┿┠┨┰┸╂", "+"),
        **dict.fromkeys("■▀", "#"),
        **dict.fromkeys("□▫", "="),
        **dict.fromkeys("▶⇒❯", ">"),
        **dict.fromkeys("«◀←⇐❮", "<"),
        **dict.fromkeys("•∙․", "."),
        **dict.fromkeys("‘’′", "'"),
        **dict.fromkeys("“”″", '"'),
        **dict(zip("▲▼±≤≥\u00a0╱╲╳", "^v~<> /\\x", strict=True)),
        **IN_ASCII,
        "…": ".",  # in the texts of tasks
    }
)


def _never(character: str) -> bool:
    return False


def _is_sign(character: str) -> bool:
    return ord(character) in _ASCII


def _may_be_wide(character: str) -> bool:
    """Whether a terminal for East Asia draws a character two cells wide that is counted as one."""
    return _is_sign(character) or east_asian_width(character) == "A"


def _in_ascii(character: str) -> str:
    """A sign in ASCII, a letter without its accent; of all else nothing that could be read remains."""
    shown = character.translate(_ASCII)
    return shown if shown.isascii() else normalize("NFKD", shown)[:1]


class CellEncoder:
    """Encodes strips for one terminal.

    Args:
        colours: the colours of the terminal; with NONE no colour parameter is written, also if the theme has colours.
        has_unicode: False turns everything into ASCII.
        has_ascii_signs: signs are turned into ASCII, and texts stay as they are.
        has_wide_signs: the terminal draws signs, and all that is of ambiguous width, two cells wide: these alone are
            turned into ASCII, and texts stay as they are.
    """

    def __init__(
        self, colours: Colours, has_unicode: bool = True, *, has_ascii_signs: bool = False, has_wide_signs: bool = False
    ) -> None:
        self._colour_system = _COLOUR_SYSTEMS.get(colours)
        self._has_unicode = has_unicode
        self._becomes_ascii = _may_be_wide if has_wide_signs else _is_sign if has_ascii_signs else _never
        self._plain = set(map(chr, range(0x20, 0x7F)))  # characters known to be one cell and harmless
        self._sgr = lru_cache(_CACHED_STYLES_MAX)(self._parameters_of)
        self._cells_of = lru_cache(_CACHED_SEGMENTS_MAX)(self._encode_segment)  # words, signs and gaps come again

    def encode(self, segments: Iterable[Segment]) -> list[Cell]:
        """Return a cell for each cell that Textual counted in ``segments``."""
        row: list[Cell] = []
        cells_of = self._cells_of
        for text, style, control in segments:
            if not control:
                row += cells_of(text, style)
        return row

    def _encode_segment(self, text: str, style: Style | None) -> list[Cell]:
        sgr, blank_sgr = self._sgr(style)
        if self._plain.issuperset(text):
            return list(zip(text, repeat(blank_sgr if text.isspace() else sgr)))
        return self._encode_unusual(text, sgr)

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
        if not self._has_unicode or self._becomes_ascii(shown):
            shown = _in_ascii(shown)
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
        if at < 0 or not self._has_unicode:
            return
        base, sgr = row[at]
        if base != " " and len(base) <= _MARKS_MAX and sanitize(base + mark) == base + mark:
            row[at] = (base + mark, sgr)

    def _parameters_of(self, style: Style | None) -> tuple[str, str]:
        """Return the SGR parameters of a style: for text, and for blanks, on which most of them do not show."""
        if style is None:
            return "", ""
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
