"""Wraps lines at words, for texts that must stay whole on a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from rich.cells import get_character_cell_size

from .pieces import Line, Piece, crop, plain
from .text import cells

_WORDS = re.compile(r"\s+|\S+")
_HANGING_INDENT = 2  # cells by which continuation rows are indented further
_WIDE_TAIL = "\0"
_MARKED_BLANK = "\1"


def wrap(line: Iterable[Piece], size: int, indent: int = 0) -> list[Line]:
    """Wrap a line to rows of at most ``size`` cells, all but the first indented by ``indent``.

    A word longer than a row stays whole; drawing cuts it.
    """
    rows: list[Line] = [[]]
    room = size
    for text, role in line:
        for word in _WORDS.findall(text):
            if cells(word) > room and not word.isspace() and rows[-1]:
                rows.append([Piece(" " * indent)] if indent else [])
                room = size - indent
            elif word.isspace() and len(rows) > 1 and room == size - indent:
                continue  # no blank at the start of a row
            rows[-1].append(Piece(word, role))
            room -= cells(word)
    return rows


def count_rows(line: Line, size: int) -> int:
    """Number of rows of ``size`` cells that a line wraps to."""
    return len(_row_spans(plain(line), size)[0])


def wrapped_row(line: Line, size: int, row: int) -> Line:
    """Row number ``row`` of a wrapped line. All but the first are indented a little further."""
    spans, indent = _row_spans(plain(line), size)
    start, end = spans[min(row, len(spans) - 1)]
    return [Piece(" " * indent), *crop(line, start, end)] if row else crop(line, start, end)


def wrapped_rows(line: Line, size: int) -> list[Line]:
    """All rows of a wrapped line; a word longer than a row, such as a path, continues in the next row."""
    return [wrapped_row(line, size, row) for row in range(count_rows(line, size))]


@lru_cache(maxsize=512)
def _row_spans(text: str, size: int) -> tuple[list[tuple[int, int]], int]:
    """The first and past-the-end cell of each row, and the indentation of all rows but the first.

    Rows end at blanks; a word longer than a row is cut at the end of the row.
    """
    text = text.rstrip() if text.isascii() else _one_character_per_cell(text.rstrip())
    depth = len(text) - len(text.lstrip(" "))
    indent = min(depth + _HANGING_INDENT, size // 2)
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
