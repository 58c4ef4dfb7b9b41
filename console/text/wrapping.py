"""Lines folded at their words, for texts that must not lose their end on a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from rich.cells import get_character_cell_size

from .pieces import Line, Piece, crop, plain
from .text import cells

_WORDS = re.compile(r"\s+|\S+")
_HANG = 2  # what a line goes on with stands a little further in
_WIDE_TAIL = "\0"


def folded(line: Iterable[Piece], size: int, indent: int = 0) -> list[Line]:
    """The line in rows of at most ``size`` cells, all but the first behind ``indent`` blanks.

    A word longer than a row stays whole: whoever draws it cuts it.
    """
    rows: list[Line] = [[]]
    room = size
    for text, role in line:
        for word in _WORDS.findall(text):
            if cells(word) > room and not word.isspace() and rows[-1]:
                rows.append([Piece(" " * indent)] if indent else [])
                room = size - indent
            elif word.isspace() and len(rows) > 1 and room == size - indent:
                continue  # a row does not begin with the blank that it was folded at
            rows[-1].append(Piece(word, role))
            room -= cells(word)
    return rows


def fold_count(line: Line, size: int) -> int:
    """How many rows of ``size`` cells a line is folded into."""
    return len(_folds(plain(line), size)[0])


def fold(line: Line, size: int, row: int) -> Line:
    """One of those rows. All but the first hang a little further in than the line begins."""
    spans, hang = _folds(plain(line), size)
    start, end = spans[min(row, len(spans) - 1)]
    return [Piece(" " * hang), *crop(line, start, end)] if row else crop(line, start, end)


@lru_cache(maxsize=512)
def _folds(text: str, size: int) -> tuple[list[tuple[int, int]], int]:
    """The cells of each row, first and after the last; and how far in the rows after the first begin.

    Rows end at blanks; a word that is longer than a row is cut where the row ends.
    """
    text = text.rstrip() if text.isascii() else _spread(text.rstrip())
    depth = len(text) - len(text.lstrip(" "))
    hang = min(depth + _HANG, size // 2)
    spans: list[tuple[int, int]] = []
    start, room = 0, max(size, 1)
    while len(text) - start > room:
        end = _end_of_row(text, start or min(depth, room // 2), start + room, size - hang)
        spans.append((start, end))
        start = end + len(text[end:]) - len(text[end:].lstrip(" "))
        room = max(size - hang, 1)
    return [*spans, (start, len(text))], hang


def _end_of_row(text: str, start: int, limit: int, longest: int) -> int:
    blank = text.rfind(" ", start + 1, limit + 1)
    if blank < 0 or len(text[blank + 1 : blank + 2 + longest].split(" ", 1)[0]) > longest:
        blank = limit - (text[limit] == _WIDE_TAIL)
    return max(blank, start + 1)


def _spread(text: str) -> str:
    """As many characters as cells."""
    sizes = [(character, get_character_cell_size(character)) for character in text]
    return "".join(character + _WIDE_TAIL * (size - 1) for character, size in sizes if size)
