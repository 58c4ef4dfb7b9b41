"""Bars, column charts and tables of numbers as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from .glyphs import Glyphs

_BLANK = " "


def bar(value: float, most: float, size: int, glyphs: Glyphs) -> str:
    """A bar of up to ``size`` cells; any value above zero is visible."""
    steps = len(glyphs.bar) - 1
    eighths = round(value / most * size * steps) if most > 0 else 0
    if value > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, steps)
    text = glyphs.bar_done * whole + (glyphs.bar[rest] if rest else "")
    return text if text.strip() or value <= 0 else glyphs.dot


def downsample(values: Sequence[float], size: int) -> list[float]:
    """At most ``size`` values: the maximum of each group of neighbours, so that peaks stay."""
    if len(values) <= size:
        return list(values)
    edges = [round(place * len(values) / size) for place in range(size + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: the first column aligned left, all others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def column_chart(values: Sequence[float], most: float, rows: int, glyphs: Glyphs) -> Iterator[str]:
    """Lines of a chart, the top one first; each value is a column of up to ``rows`` cells."""
    steps = len(glyphs.spark)
    heights = [_height(value, most, rows * steps) for value in values]
    for row in reversed(range(rows)):
        above = [min(max(height - row * steps, 0), steps) for height in heights]
        yield "".join(glyphs.spark[step - 1] if step else _BLANK for step in above).rstrip()


def _height(value: float, most: float, levels: int) -> int:
    if value <= 0 or most <= 0:
        return 0
    return max(1, min(levels, round(value / most * levels)))
