"""Lines on the screen as lists of pieces: text, each with a role.

A role states the meaning of a piece; ``themes/*.toml`` gives it colours. Lines are plain lists of tuples, so tests can
compare them, and they can be cut to a viewport without a screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from .text import cells, cut


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
    """Text without control characters, and its role: of ``Role``, or a style of its own (``sgr.py``)."""

    text: str
    role: str = Role.TEXT


Line = list[Piece]


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
    taken = width(line)
    if taken <= size:
        return [*line, Piece(" " * (size - taken))] if taken < size else line
    mark = more[: max(size, 0)]
    return [*crop(line, 0, size - cells(mark)), Piece(mark, Role.DIM)]


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
