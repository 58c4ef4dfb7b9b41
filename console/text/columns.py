"""Lists in columns: a list has one table of its columns, and the screen, the shell and JSON are made of it.

A new column is one entry of that table. Only ``_fit`` divides the width of a screen among columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from . import pieces
from .pieces import Line, Piece, Role
from .text import cells, one_line, shorten, shorten_middle

Row = TypeVar("Row")
Context = TypeVar("Context")
ColumnText = str | Piece | Line  # a text of anybody, which is made safe here; or pieces that are safe
CellText = ColumnText | Callable[[int], ColumnText]  # on the screen also what it says in so many cells
FILL = 1 << 20  # as ``most``: all the cells that the other columns leave
_CUT_MIN = 4  # cells that the last piece of a cell keeps when it is cut


class Width(NamedTuple):
    """The room of a column on the screen, in cells.

    Attributes:
        least: what it needs.
        most: what it can use; None: no more than ``least``.
        rank: of the columns with a rank the highest is left out first where there is no room; those with 0 stay.
        gap: blanks before it.
        is_spare: left out before a column gets less than it can use; its rank is above 0.
        is_right: its end is aligned, not its start.
        is_name: what is too long loses its middle, because names often differ at their ends; others lose their end.
    """

    least: int
    most: int | None = None
    rank: int = 0
    gap: int = 1
    is_spare: bool = False
    is_right: bool = False
    is_name: bool = False


class Column(NamedTuple, Generic[Row, Context]):
    """A fact about each row of a list. Its functions take the row and what else the list needs, as the time.

    Attributes:
        name: the key of the JSON value.
        title: above the column; None: it is not in the table of the shell.
        value: the JSON value; None: JSON does not have it.
        words: what its cell says; None: the value itself, nothing for None.
        width: on the screen; None: it is not there.
        screen: what its cell says on the screen, where that differs from ``words``, as by a sign before the word.
    """

    name: str
    title: str | None = None
    value: Callable[[Row, Context], object] | None = None
    words: Callable[[Row, Context], ColumnText] | None = None
    width: Width | None = None
    screen: Callable[[Row, Context], CellText] | None = None


Columns = Sequence[Column[Row, Context]]


def field(
    name: str,
    title: str | None = None,
    words: Callable[[Any, Any], ColumnText] | None = None,
    width: Width | None = None,
    screen: Callable[[Any, Any], CellText] | None = None,
) -> Column[Any, Any]:
    """A column whose value is the field of the row with its name."""
    return Column(name, title, lambda row, context: getattr(row, name), words, width, screen)


def with_fields(
    columns: Columns[Row, Context], names: Iterable[str], part: Callable[[Row], object] = lambda row: row
) -> Columns[Row, Context]:
    """Return the columns, and for JSON one more for each field of the row, or of a part of it, that has none."""
    known = {column.name for column in columns}
    return (*columns, *(_field_of(part, name) for name in names if name not in known))


def _field_of(part: Callable[[Row], object], name: str) -> Column[Row, Any]:
    return Column(name, value=lambda row, context: getattr(part(row), name))


def chosen(columns: Columns[Row, Context], *names: str) -> Columns[Row, Context]:
    """Columns by name, in this order."""
    by_name = {column.name: column for column in columns}
    return [by_name[name] for name in names]


def row_line(size: int, *row: tuple[Width, CellText], more: str = "…") -> Line:
    """A row of the screen in at most ``size`` cells: what its columns say, those that have room.

    The blanks that pad a cell have no role; there are none behind the last.
    """
    line: Line = []
    blanks = 0  # behind the cell before
    for place, room in sorted(_fit([width for width, _ in row], size).items()):
        width, cell = row[place]
        shown = _sized(cell, width, room, more)
        line += [Piece(" " * (blanks + width.gap)), *shown]
        blanks = room - pieces.width(shown)
    return line if pieces.width(line) <= size else pieces.fit(line, size, more)


def _fit(widths: Sequence[Width], size: int) -> dict[int, int]:
    """The places of the columns that have room, with the cells of each.

    Each has its least; what is left goes to those that can use it, in their order, ``FILL`` at last.
    """
    shown, found = dict(enumerate(widths)), dict[int, int]()
    _leave_out(shown, size, _most, lambda width: width.is_spare)
    _leave_out(shown, size, attrgetter("least"), lambda width: width.rank > 0)
    left = size - sum(width.gap + width.least for width in shown.values())
    for place, width in sorted(shown.items(), key=lambda one: one[1].most == FILL):
        more = left if width.most == FILL else max(min(_most(width) - width.least, left), 0)
        found[place] = max(width.least + more, 0)
        left -= found[place] - width.least
    return found


def _leave_out(
    shown: dict[int, Width], size: int, needed: Callable[[Width], int], may_go: Callable[[Width], bool]
) -> None:
    """Remove what may go, the highest rank first, until the rest has what it needs."""
    ranks = {place: width.rank for place, width in shown.items() if may_go(width)}
    while ranks and sum(width.gap + needed(width) for width in shown.values()) > size:
        place = max(ranks, key=ranks.__getitem__)
        del shown[place], ranks[place]


def _most(width: Width) -> int:
    """Return the cells that a column can use; of one that takes what is left, its least."""
    return width.least if width.most in (None, FILL) else max(width.most or 0, width.least)


def that_fit(size: int, *parts: tuple[int, Line]) -> list[Line]:
    """The parts of a line, each behind its rank, as of ``Width``; those that have no room are empty."""
    left = size - sum(pieces.width(part) for rank, part in parts if not rank)
    shown = [part if not rank else [] for rank, part in parts]
    for place in sorted(range(len(parts)), key=lambda place: parts[place][0]):
        rank, part = parts[place]
        if rank and pieces.width(part) <= left:
            shown[place] = part
            left -= pieces.width(part)
    return shown


def screen_row(columns: Columns[Row, Context], row: Row, context: Context, size: int, more: str = "…") -> Line:
    """A row of a list on the screen."""
    return row_line(size, *((one.width, _shown(one, row, context)) for one in columns if one.width), more=more)


def screen_titles(columns: Columns[Row, Context], size: int) -> Line:
    """The titles above the rows of a list on the screen; one without room for all its words has the last."""
    return row_line(size, *((one.width, _title(one.title or "")) for one in columns if one.width))


def _title(words: str) -> Callable[[int], ColumnText]:
    return lambda room: Piece(words if cells(words) <= room else words.rpartition(" ")[2], Role.DIM)


def measured(columns: Columns[Row, Context], rows: Sequence[Row], context: Context) -> Columns[Row, Context]:
    """Columns as wide as these rows need them, without those that may go and say nothing.

    One without a ``most``, or with ``FILL``, keeps its width: what it says changes with time, or fills the row.
    """
    found: list[Column[Row, Context]] = []
    for column in columns:
        width = column.width
        if width is not None and width.most not in (None, FILL):
            most = _most(width)
            longest = max((pieces.width(_line(_shown(column, row, context), most)) for row in rows), default=0)
            if not longest and width.rank:
                continue
            column = limited(column, width, longest)
        found.append(column)
    return found


def limited(column: Column[Row, Context], width: Width, longest: int) -> Column[Row, Context]:
    """A column that takes no more cells than ``longest``."""
    least = min(width.least, max(longest, cells((column.title or "").rpartition(" ")[2])))
    return column._replace(width=width._replace(least=least, most=min(width.most or 0, longest)))


def shell_rows(
    columns: Columns[Row, Context], rows: Sequence[Row], context: Context, size: int | None = None
) -> list[list[str | Piece]]:
    """The titles and the rows of a table in the shell, of cells with one role each.

    ``size``: the cells of a terminal, where the columns that have no room are left out, and the text of one that fills
    the row is cut.
    """
    listed = [column for column in columns if column.title is not None]
    found = [[_joined(_words(column, row, context)) for column in listed] for row in rows]
    if size is not None and rows and any(column.width is not None and column.width.most == FILL for column in listed):
        sizes = [[pieces.width(_line(cell, 0)) for cell in row] for row in found]
        widths = [*map(_shell_width, listed, map(max, zip(*sizes, strict=True)))]
        rooms = sorted(_fit(widths, size + _SHELL_GAP).items())
        listed = [listed[place] for place, _ in rooms]
        found = [[_joined(_sized(row[at], widths[at], room or FILL, "…")) for at, room in rooms] for row in found]
    return [[column.title or "" for column in listed], *found]


_SHELL_GAP = 2
_UNSHOWN, _EMPTY = 100, 101  # ranks of columns: without a place on the screen; that say nothing


def _shell_width(column: Column[Row, Context], longest: int) -> Width:
    """The room of a column in the shell. A sentence beside the rows, which has no title, goes on in the next line."""
    width, needed = column.width or Width(0, rank=_UNSHOWN), max(longest, cells(column.title or ""))
    if not column.title:
        return Width(0, gap=0)
    is_filling = width.most == FILL
    least = min(needed, _most(width)) if is_filling or width.is_name else needed
    rank = width.rank * (not is_filling) if longest else _EMPTY
    return Width(least, FILL if is_filling else needed, rank, _SHELL_GAP, is_name=width.is_name)


def json_value(columns: Columns[Row, Context], row: Row, context: Context) -> dict[str, object]:
    """A row as JSON."""
    return {column.name: column.value(row, context) for column in columns if column.value is not None}


def longest_cells(texts: Iterable[str]) -> int:
    """The cells of the longest of some names."""
    return max((cells(one_line(text)) for text in texts), default=0)


def _shown(column: Column[Row, Context], row: Row, context: Context) -> CellText:
    return column.screen(row, context) if column.screen is not None else _words(column, row, context)


def _words(column: Column[Row, Context], row: Row, context: Context) -> ColumnText:
    if column.words is not None:
        return column.words(row, context)
    value = None if column.value is None else column.value(row, context)
    return "" if value is None else str(value)


def _line(cell: CellText, size: int) -> Line:
    """Return the text of a cell where it has ``size`` cells."""
    words = cell(size) if callable(cell) else cell
    return [Piece(one_line(words))] if isinstance(words, str) else [words] if isinstance(words, Piece) else words


def _sized(cell: CellText, width: Width, size: int, more: str) -> Line:
    """A cell in at most ``size`` cells."""
    line = _line(cell, size)
    free = size - pieces.width(line)
    if free >= 0:
        return [Piece(" " * free), *line] if width.is_right else line
    if len(line) == 1:
        text, role = line[0]
        return [Piece((shorten_middle if width.is_name else shorten)(text, size, more), role)]
    left = size - pieces.width(line[:-1])
    return line[:-1] if 0 <= left < _CUT_MIN else pieces.fit(line, size, more)


def _joined(cell: ColumnText) -> str | Piece:
    """A cell in one role, that of its first piece."""
    return cell if isinstance(cell, str | Piece) else Piece(pieces.plain(cell), cell[0].role if cell else Role.TEXT)
