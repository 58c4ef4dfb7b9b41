"""Lines folded at their words, for texts that must not lose their end on a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .pieces import Line, Piece
from .text import cells

_WORDS = re.compile(r"\s+|\S+")


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
