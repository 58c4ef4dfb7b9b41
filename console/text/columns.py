"""Lists in columns: a list has one table of its columns, and the screen, the shell and JSON are made of it.

A new column is one entry of that table. ``fit`` is the only place that divides the width of a screen among columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from . import pieces
from .pieces import Line, Piece, Role
from .text import cells, one_line, pad, pad_left, shorten_middle

Row = TypeVar("Row")
Context = TypeVar("Context")
Cell = str | Piece | Line  # a text of anybody, which is made safe here; or pieces that are safe
FILL = 1 << 20  # as ``most``: all the cells that the other columns leave


class Column(NamedTuple, Generic[Row, Context]):
    """One fact about each row of a list. Its functions take the row and what else the list needs, as the time.

    Attributes:
        name: the key of the JSON value.
        title: above the column; None: it is not in the table of the shell.
        value: the JSON value; None: JSON does not have it.
        words: what its cell says; None: the value itself, nothing for None.
        least: cells that it needs on the screen; None: it is not there.
        most: cells that it can use; None: no more than ``least``.
        rank: of the columns with a rank the highest is left out first where there is no room; those with 0 stay.
        gap: blanks before it.
        is_right: its end is aligned, not its start.
        is_name: what is too long loses its middle, because names often differ at their ends; others lose their end.
        screen: what its cell says on the screen, where that differs from ``words``, as by a sign before the word.
    """

    name: str
    title: str | None = None
    value: Callable[[Row, Context], object] | None = None
    words: Callable[[Row, Context], Cell] | None = None
    least: int | None = None
    most: int | None = None
    rank: int = 0
    gap: int = 1
    is_right: bool = False
    is_name: bool = False
    screen: Callable[[Row, Context], Cell] | None = None


Columns = Sequence[Column[Row, Context]]
Fitted = Sequence[tuple[Column[Row, Context], int]]  # the columns that have room, each with its cells


def fit(columns: Columns[Row, Context], size: int, longest: Mapping[str, int] | None = None) -> Fitted[Row, Context]:
    """The columns that ``size`` cells have room for, with the cells of each.

    Each has its least; what is left goes to those that can use it, in their order, ``FILL`` at last. ``longest``: by
    name, the cells of the longest text of a column.
    """
    shown = [(column, column.least) for column in columns if column.least is not None]
    while (left := size - sum(least + column.gap for column, least in shown)) < 0 and any(c.rank for c, _ in shown):
        shown.remove(max(shown, key=lambda one: one[0].rank))
    found: dict[str, int] = {}
    for column, least in sorted(shown, key=lambda one: one[0].most == FILL):
        most = least if column.most is None else min(column.most, (longest or {}).get(column.name, FILL))
        found[column.name] = max(least + left, 0) if most == FILL else least + max(min(most - least, left), 0)
        left -= found[column.name] - least
    return [(column, found[column.name]) for column, _ in shown]


def screen_line(fitted: Fitted[Row, Context], row: Row, context: Context, more: str = "…") -> Line:
    """A row on the screen."""
    line: Line = []
    for column, size in fitted:
        cell = column.screen(row, context) if column.screen is not None else _words(column, row, context)
        line += [Piece(" " * column.gap), *_sized(cell, column, size, more)]
    return line


def screen_titles(fitted: Fitted[Row, Context]) -> Line:
    """The titles above the rows."""
    cells = ((pad_left if column.is_right else pad)(column.title or "", size) for column, size in fitted)
    parts = (" " * column.gap + cell for (column, _), cell in zip(fitted, cells, strict=True))
    return [Piece("".join(parts).rstrip(), Role.DIM)]


def shell_rows(columns: Columns[Row, Context], rows: Sequence[Row], context: Context) -> list[list[str | Piece]]:
    """The titles and the rows of a table in the shell, of cells with one role each."""
    listed = [column for column in columns if column.title is not None]
    cells = [[_joined(_words(column, row, context)) for column in listed] for row in rows]
    return [[column.title or "" for column in listed], *cells]


def json_value(columns: Columns[Row, Context], row: Row, context: Context) -> dict[str, object]:
    """A row as JSON."""
    return {column.name: column.value(row, context) for column in columns if column.value is not None}


def longest_cells(texts: Sequence[str]) -> int:
    """The cells of the longest of some names."""
    return max((cells(one_line(text)) for text in texts), default=0)


def _words(column: Column[Row, Context], row: Row, context: Context) -> Cell:
    if column.words is not None:
        return column.words(row, context)
    value = None if column.value is None else column.value(row, context)
    return "" if value is None else str(value)


def _sized(cell: Cell, column: Column[Row, Context], size: int, more: str) -> Line:
    """A cell in exactly ``size`` cells; the blanks that pad it have no role."""
    line = [Piece(one_line(cell))] if isinstance(cell, str) else [cell] if isinstance(cell, Piece) else cell
    if column.is_name and len(line) == 1:
        line = [line[0]._replace(text=shorten_middle(line[0].text, size, more))]
    free = size - pieces.width(line)
    return [Piece(" " * free), *line] if column.is_right and free > 0 else pieces.fit(line, size, more)


def _joined(cell: Cell) -> str | Piece:
    """A cell in one role, that of its first piece."""
    return cell if isinstance(cell, str | Piece) else Piece(pieces.plain(cell), cell[0].role if cell else Role.TEXT)
