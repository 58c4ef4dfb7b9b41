"""A page of the manual as lines: headings, code and aligned tables. Paragraphs keep the line breaks of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from ..text.pieces import Line, Piece, Role, plain, width

_FENCE = "```"
_CODE = re.compile(r"`([^`]+)`")
_CELL_BORDER = re.compile(r"\s*\|\s*")
_GAP = Piece("  ")


def page_lines(markdown: str) -> list[Line]:
    """The lines of a page, without the marks of Markdown."""
    lines: list[Line] = []
    is_code = False
    for is_table, texts in groupby(markdown.splitlines(), key=lambda text: text.startswith("|")):
        if is_table and not is_code:
            lines.extend(_table_lines(list(texts)))
            continue
        for text in texts:
            if text.startswith(_FENCE):
                is_code = not is_code
            elif is_code:
                lines.append([Piece(f"  {text}", Role.KEY)])
            elif text.startswith("#"):
                lines.append([Piece(text.lstrip("# "), Role.STRONG)])
            else:
                lines.append(_inline(text))
    return lines


def _table_lines(texts: Sequence[str]) -> Iterator[Line]:
    """The rows with aligned columns; the second row of a Markdown table only separates the heading."""
    rows = [[_inline(cell) for cell in _CELL_BORDER.split(text)[1:-1]] for text in (texts[0], *texts[2:])]
    widths = [max(width(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = row if number else [[Piece(plain(cell), Role.STRONG)] for cell in row]
        yield [piece for cell, size in zip(cells, widths, strict=True) for piece in _padded(cell, size)][:-1]


def _padded(cell: Line, size: int) -> Line:
    return [*cell, Piece(" " * (size - width(cell))), _GAP]


def _inline(text: str) -> Line:
    """Every second part of the split is the content of a pair of backquotes."""
    roles = (Role.TEXT, Role.KEY)
    return [Piece(part, roles[place % 2]) for place, part in enumerate(_CODE.split(text)) if part]
