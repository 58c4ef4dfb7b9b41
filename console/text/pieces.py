"""Lines on the screen as lists of pieces: text, each with a role.

A role states the meaning of a piece; ``themes/*.toml`` gives it colours. Lines are plain lists of tuples, so tests can
compare them, and they can be cut to a viewport without a screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import get_character_cell_size

from .text import aligned, before_number, cells, cut, one_line

if TYPE_CHECKING:
    from rich.style import Style


class Role(StrEnum):
    """The meanings that every theme gives a style."""

    TEXT = "text"  # the terminal's foreground and background
    DIM = "dim"  # secondary facts
    STRONG = "strong"  # headings
    RULE = "rule"  # lines between panes, edges of the graph
    TITLE = "title"
    # states of tasks
    DONE = "done"
    RUNNING = "running"
    PROGRESS = "progress"  # the part of a running task's name that is filled
    WAITING = "waiting"
    PENDING = "pending"
    FAILED = "failed"
    HUMAN = "human"  # the one accent: a human must decide
    SKIPPED = "skipped"
    # selection and input
    CURSOR = "cursor"  # the selected row
    MARK = "mark"  # marked for an act
    MATCH = "match"  # found by the search
    RELATED = "related"  # ancestors and descendants of the selected task
    CRITICAL = "critical"  # on the critical path
    KEY = "key"  # a key that can be pressed
    # the state of the screen
    WARNING = "warning"  # an age, a slack, a limit to look at
    STALE = "stale"  # everything, while the data is stale
    NOW = "now"  # the present instant


class Piece(NamedTuple):
    """Text without control characters, and its role: of ``Role``, or a style of its own."""

    text: str
    role: str = Role.TEXT


Line = list[Piece]


def line_of(words: str | Line, role: str = Role.TEXT) -> Line:
    """A text of anybody as a line, made safe; a line as it is."""
    return [Piece(one_line(words), role)] if isinstance(words, str) else words


def width(line: Iterable[Piece]) -> int:
    """Width in cells."""
    return sum(cells(piece.text) for piece in line)


def plain(line: Iterable[Piece]) -> str:
    """The text without roles: for ``--plain``, the clipboard and tests."""
    return "".join(piece.text for piece in line)


def crop(line: Iterable[Piece], start: int, end: int) -> Line:
    """The cells from ``start`` to before ``end``; half of a wide character becomes a space."""
    found: Line = []
    at = 0
    for piece in line:
        size = cells(piece.text)
        low, high = max(start - at, 0), min(end - at, size)
        if low < high:
            found.append(piece if high - low == size else Piece(cut(piece.text, low, high), piece.role))
        at += size
        if at >= end:
            break
    return found


def fit(line: Line, size: int, more: str = "…") -> Line:
    """Exactly ``size`` cells: padded, or cut with ``more`` at the end."""
    used = width(line)
    if used <= size:
        return [*line, Piece(" " * (size - used))] if used < size else line
    mark = more[: max(size, 0)]
    text = plain(crop(line, 0, size - cells(mark)))
    text = before_number(text, plain(line))  # no other number than that of the line
    if text.endswith("  "):  # a column is left out
        text = text.rstrip() + " "
    end = cells(text)
    return [*crop(line, 0, end), Piece(mark + " " * (size - end - cells(mark)), Role.DIM)]


def stripped(line: Line) -> Line:
    """The line without blanks at its end."""
    rest = list(line)
    while rest and not rest[-1].text.rstrip():
        rest.pop()
    return [*rest[:-1], Piece(rest[-1].text.rstrip(), rest[-1].role)] if rest else []


_TABLE_GAP = 2


def table(rows: Sequence[Sequence[str | Piece]]) -> Iterator[Line]:
    """Rows with aligned columns, as ``table_lines`` has them; the cells of the first row are headings."""
    texts = aligned([cell if isinstance(cell, str) else cell.text for cell in row] for row in rows)
    for place, (row, padded) in enumerate(zip(rows, texts, strict=True)):
        line: Line = []
        for cell, text in zip(row, padded, strict=True):
            role = cell.role if isinstance(cell, Piece) else Role.TEXT if place else Role.STRONG
            word = text.rstrip()
            line += [Piece(word, role), Piece(" " * (cells(text) - cells(word) + _TABLE_GAP))]
        yield stripped(line)


def first_that_fits(lines: Sequence[Line], size: int) -> Line:
    """The first line of at most ``size`` cells; if there is none, the last."""
    return next((line for line in lines if width(line) <= size), lines[-1])


def join(parts: Iterable[Line], gap: str = "  ") -> Line:
    """Join the parts that are not empty with a gap."""
    joined: Line = []
    for part in parts:
        if part:
            if joined:
                joined.append(Piece(gap))
            joined.extend(part)
    return joined


def two_sided(left: Line, right: Line, size: int, more: str = "…") -> Line:
    """``left`` and ``right`` at the ends of ``size`` cells; without room for both the right side is cut first."""
    room = size - width(left) - 1
    if room < width(right):
        right = fit(right, room, more) if room >= 8 else []
    return [*fit(left, size - width(right), more), *right]


# --- Wraps lines at words, for texts that must stay whole on a narrow screen -----------------------------------------


_HANGING_INDENT = 2  # cells by which continuation rows are indented further
_WIDE_TAIL = "\0"
_MARKED_BLANK = "\1"


def wrap(line: Iterable[Piece], size: int, indent: int | None = 0) -> list[Line]:
    """Wrap a line to rows of at most ``size`` cells; a word longer than a row, such as a path, goes on in the next.

    ``indent``: of all rows but the first; None: a little more than that of the line.
    """
    pieces = list(line)
    (first, *rest), blanks = _row_spans(plain(pieces), size, indent)
    below = ([Piece(" " * blanks)] if blanks else [] for _ in rest)
    return [crop(pieces, *first), *([*lead, *crop(pieces, *span)] for lead, span in zip(below, rest, strict=True))]


def wrap_within(line: Iterable[Piece], size: int, rows: int, indent: int = 0, more: str = "…") -> list[Line]:
    """Wrap a line to at most ``rows`` rows; what has no room there is cut with ``more``."""
    found = wrap(line, size, indent)
    if len(found) <= rows:
        return found
    return [*found[: rows - 1], fit([*found[rows - 1], Piece(" "), *found[rows][bool(indent) :]], size, more)]


def indented(text: str, columns: int, role: str = Role.TEXT, indent: int = 1) -> list[Line]:
    """A text wrapped in ``columns`` with blanks before each row."""
    return wrap([Piece(" " * indent), Piece(one_line(text), role)], columns - 1, indent)


def count_rows(line: Line, size: int) -> int:
    """Number of rows of ``size`` cells that a line wraps to."""
    return len(_row_spans(plain(line), size)[0])


def wrapped_row(line: Line, size: int, row: int) -> Line:
    """Row number ``row`` of a wrapped line. All but the first are indented a little further."""
    spans, indent = _row_spans(plain(line), size)
    start, end = spans[min(row, len(spans) - 1)]
    return [Piece(" " * indent), *crop(line, start, end)] if row else crop(line, start, end)


@lru_cache(maxsize=512)
def _row_spans(text: str, size: int, indent: int | None = None) -> tuple[list[tuple[int, int]], int]:
    """The first and past-the-end cell of each row, and the indentation of all rows but the first.

    Rows end at blanks; a word longer than a row is cut at the end of the row.
    """
    text = text.rstrip() if text.isascii() else _one_character_per_cell(text.rstrip())
    depth = len(text) - len(text.lstrip(" "))
    indent = min(depth + _HANGING_INDENT if indent is None else indent, size // 2)
    spans: list[tuple[int, int]] = []
    start, room = 0, max(size, 1)
    while len(text) - start > room:
        end = _end_of_row(text, start or min(depth, room // 2), start + room, size - indent)
        spans.append((start, end))
        start = end + len(text[end:]) - len(text[end:].lstrip(" "))
        room = max(size - indent, 1)
    return [*spans, (start, len(text))], indent


def _end_of_row(text: str, start: int, limit: int, longest: int) -> int:
    blank = text.rfind(" ", start + 1, limit + 1)
    if blank < 0 or len(text[blank + 1 : blank + 2 + longest].split(" ", 1)[0]) > longest:
        blank = limit - (text[limit] == _WIDE_TAIL)
    return max(blank, start + 1)


def _one_character_per_cell(text: str) -> str:
    """Pad wide characters so that the text has one character per cell. A blank with an accent is not a blank."""
    found: list[str] = []
    for character in text:
        size = get_character_cell_size(character)
        if size:
            found.append(character + _WIDE_TAIL * (size - 1))
        elif found and found[-1] == " ":
            found[-1] = _MARKED_BLANK
    return "".join(found)


# --- The colours that a task gave its output, as roles: the gate through which they reach the screen -----------------
#
# Only SGR sequences (``ESC [ ... m``) are understood, and of these only colours and the styles of letters: nothing
# moves the cursor, blinks or hides. The text itself comes through ``text.sanitize``.


SGR_ROLE = "sgr "  # begins the role of a piece; a style of rich follows
_SGR = re.compile(r"\x1b\[[0-9;:]{0,200}m")
_SEQUENCES_MAX = 200  # of one line; the rest has the style of the last
_STYLES = ("bold", "dim", "italic", "underline", "reverse", "strike")


def coloured_spans(raw: str) -> Iterator[tuple[int, str]]:
    """Yield where in ``raw`` a style begins, and its role."""
    style: Style | None = None
    for match in islice(_SGR.finditer(raw), _SEQUENCES_MAX):
        style = _style_after(style, match[0])
        yield match.end(), _role_of(style)


@lru_cache(1024)  # the decoder takes 40 µs for one, and a log that scrolls has the same few in each line
def _style_after(style: Style | None, sequence: str) -> Style:
    """The style that a sequence makes of the one before it."""
    from rich.ansi import AnsiDecoder  # here: the listings of the command line show no colours of tasks

    decoder = AnsiDecoder()
    decoder.style = style or decoder.style
    if all(int(code) < 256 for code in re.findall(r"\d+", sequence)):
        decoder.decode_line(sequence.replace(":", ";"))
    return decoder.style


@lru_cache(1024)
def _role_of(style: Style) -> str:
    """The role of what has ``style``; ``Role.TEXT`` without a style of its own."""
    words = [name for name in _STYLES if getattr(style, name)]
    text, background = ("" if one is None or one.is_default else one.name for one in (style.color, style.bgcolor))
    if text != background:  # otherwise it would be unreadable
        words += [text] if text else []
        words += ["on", background] if background else []
    return SGR_ROLE + " ".join(words) if words else Role.TEXT


def coloured_pieces(text: str, spans: list[tuple[int, str]], role: Role) -> Line:
    """``text`` in pieces: from each place of ``spans`` on in its role; ``role``: of what has no style of its own."""
    pieces: Line = []
    places = [(0, str(Role.TEXT)), *spans, (len(text), str(Role.TEXT))]
    for (start, style), (end, _) in pairwise(places):
        if start < end:
            pieces.append(Piece(text[start:end], role if style == Role.TEXT else style))
    return pieces
