"""The output of commands: versions of JSON lines, lines in colours, lists; new files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from ..present.states import RowContext
from ..terminal.capabilities import shows_colours
from ..text.columns import Columns, Context, Row, json_value, shell_rows
from ..text.glyphs import glyphs_for
from ..text.pieces import Line, Piece, plain, table
from ..text.text import COLUMN_CELLS_MAX, JsonLine, echo, json_line, sanitize_lines, table_lines

if TYPE_CHECKING:
    from rich.style import Style

    from ..sessions.session import Session

# --- The name and version of each line that ``--json`` prints --------------------------------------------------------
#
# The first key of a line is ``"schema": "redrive.tasks/1"``. Within a version fields are only added; a field that
# changes its meaning or goes away makes the next version of that line. So far each line is in its first. The page
# ``json`` of the manual explains every field.


#: Listing -> its columns that are JSON text in the state file. A line has their values, so that ``.params.day`` is one.
JSON_COLUMNS = {"runs": ("params", "options", "pool_waits"), "tasks": ("result", "overrides")}


def with_schema(name: str, value: Mapping[str, object]) -> dict[str, object]:
    """Return a line with its schema as the first key."""
    decoded = {column: _decoded(value[column]) for column in JSON_COLUMNS.get(name, ())}
    return {"schema": f"redrive.{name}/1", **value, **decoded}


def _decoded(column: object) -> object:
    """Return the value of JSON text; the text itself if it is none, as in a malformed state file."""
    if not isinstance(column, str):
        return column
    try:
        value: object = json.loads(column, parse_constant=_reject)
        json.dumps(value)  # what is nested as deep as the parser allows cannot be printed
    except (ValueError, RecursionError):
        return column
    return value


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# --- New files -------------------------------------------------------------------------------------------------------


def write_new_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file that is not there: all of it, or none on a full disk. Raises FileExistsError, OSError.

    ``mode``: less what the umask takes.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise


# --- Lines of lists: plain text, or pieces with roles, which have colours on a terminal -------------------------------
#
# ``painted`` is the only place where a list writes an escape sequence for colours: around a text that is safe before,
# by the role of its piece. A text of a task has no way to choose a role.


Shown = str | Line
ReadRows = Callable[["Session"], Awaitable[Iterable[Shown]]]  # what a listing shows of a file
_LINES_PER_WRITE = 500


def shell_context(now_us: int) -> RowContext:
    """The context of the rows of a list on standard output."""
    return RowContext(now_us, glyphs_for(sys.stdout.encoding))


def print_list(
    name: str, columns: Columns[Row, Context], rows: Sequence[Row], context: Context, *, as_json: bool, empty: str
) -> None:
    """Print a list; without a row the sentence ``empty``."""
    if rows or as_json:
        print_lines(list_lines(name, columns, rows, context, as_json=as_json))
    else:
        echo(empty)


def list_lines(
    name: str, columns: Columns[Row, Context], rows: Iterable[Row], context: Context, *, as_json: bool, **more: object
) -> Iterable[Shown]:
    """The lines of a list: its table, or a line of JSON of this name for each row, which has ``more`` as well.

    Lines of JSON are made as they are printed: together those of a run take more memory than the run.
    """
    if as_json:
        return (json_line(with_schema(name, {**json_value(columns, row, context), **more})) for row in rows)
    if not sys.stdout.isatty():
        return shown_table(shell_rows(columns, [*rows], context))
    from shutil import get_terminal_size  # here: what goes into a pipe does without

    return shown_table(shell_rows(columns, [*rows], context, get_terminal_size().columns))


def print_table(rows: Sequence[Sequence[str | Piece]]) -> None:
    """Print rows with aligned columns; the first has their headings."""
    print_lines(shown_table(rows))


def shown_table(rows: Sequence[Sequence[str | Piece]]) -> Iterable[Shown]:
    """The lines of ``table``; without colours their text, which costs a third."""
    if _styles():
        return table(rows)
    texts = ([cell if isinstance(cell, str) else cell.text for cell in row] for row in rows)
    return table_lines(texts, COLUMN_CELLS_MAX if sys.stdout.isatty() else None)  # acts want whole names


def print_lines(lines: Iterable[Shown]) -> None:
    """Print lines on standard output, in colours if it shows them; many with one write."""
    rest = iter(lines)
    while some := list(islice(rest, _LINES_PER_WRITE)):
        click.echo(_painted_lines(some, _styles()), color=True)


def write_unchanged(text: str) -> None:
    """Write what a task wrote byte for byte, for a file or a pipe: a terminal would obey it."""
    click.echo(text.encode("utf-8", "replace"), nl=False)


def plain_text(line: Shown) -> str:
    """The text of a line without colours."""
    return line if isinstance(line, str) else plain(line)


def painted(line: Shown) -> str:
    """A line as it is written: its texts safe for a terminal, its roles as colours if standard output shows them."""
    return _painted(line, _styles())


def _painted_lines(lines: Sequence[Shown], styles: Mapping[str, Style]) -> str:
    """The lines as they are written; without colours, they are made safe together."""
    if styles or isinstance(lines[0], JsonLine):
        return "\n".join([_painted(line, styles) for line in lines])
    return sanitize_lines("\n".join(map(plain_text, lines)))


def _painted(line: Shown, styles: Mapping[str, Style]) -> str:
    if isinstance(line, JsonLine):
        return line
    if isinstance(line, str) or not styles:
        return sanitize_lines(plain_text(line))
    return "".join(_painted_piece(sanitize_lines(text), styles.get(role)) for text, role in line)


def _painted_piece(text: str, style: Style | None) -> str:
    from rich.color import ColorSystem

    return text if style is None else style.render(text, color_system=ColorSystem.STANDARD)


def _styles() -> Mapping[str, Style]:
    """The style of each role; none where no colours are shown."""
    return _terminal_styles() if shows_colours(os.environ, is_terminal=sys.stdout.isatty()) else {}


@cache
def _terminal_styles() -> Mapping[str, Style]:
    """The styles of the theme that keeps the ground of the terminal, on which lists are printed."""
    from ..app.theme import DEFAULT, load_theme

    return load_theme(DEFAULT).styles
