"""What a line on the screen is made of: pieces of text with the role that each plays.

A role says what a piece means; which colours it gets is the business of ``themes/*.toml``. Lines are plain lists of
tuples, so that they can be compared in tests and cut to a viewport without a screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from .text import cells, cut


class Role(StrEnum):
    """Every meaning that a theme must give a look."""

    TEXT = "text"  # the operator's own foreground and background
    DIM = "dim"  # facts of second rank
    STRONG = "strong"  # names of what is looked at
    RULE = "rule"  # lines between panes, edges of the graph
    TITLE = "title"
    # states of tasks
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    PENDING = "pending"
    FAILED = "failed"
    HUMAN = "human"  # the one accent: somebody must decide
    SKIPPED = "skipped"
    # what the operator does
    CURSOR = "cursor"  # the selected row
    MARK = "mark"  # chosen for an act on many
    MATCH = "match"  # found by the search
    RELATED = "related"  # above and below the selected task
    CRITICAL = "critical"  # on the path that decides when the run ends
    KEY = "key"  # a key that can be pressed
    # the picture itself
    WARNING = "warning"  # an age, a slack, a limit to look at
    STALE = "stale"  # everything, while the picture is old
    NOW = "now"  # the line of now


class Piece(NamedTuple):
    """Text without control characters, and its role."""

    text: str
    role: Role = Role.TEXT


Line = list[Piece]


def width(line: Iterable[Piece]) -> int:
    """Cells that a line takes."""
    return sum(cells(piece.text) for piece in line)


def plain(line: Iterable[Piece]) -> str:
    """The text alone: for ``--plain``, for the clipboard and for tests."""
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
    """Exactly ``size`` cells: padded, or cut with a sign that there is more."""
    taken = width(line)
    if taken <= size:
        return [*line, Piece(" " * (size - taken))] if taken < size else line
    mark = more[: max(size, 0)]
    return [*crop(line, 0, size - cells(mark)), Piece(mark, Role.DIM)]


def join(parts: Iterable[Line], gap: str = "  ") -> Line:
    """The parts that are not empty, with a gap between them."""
    joined: Line = []
    for part in parts:
        if part:
            if joined:
                joined.append(Piece(gap))
            joined.extend(part)
    return joined


def two_sided(left: Line, right: Line, size: int, more: str = "…") -> Line:
    """``left`` and ``right`` at the ends of ``size`` cells; where both do not fit, the right side gives way first."""
    room = size - width(left) - 1
    if room < width(right):
        right = fit(right, room, more) if room >= 8 else []
    return [*fit(left, size - width(right), more), *right]
