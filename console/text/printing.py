"""The one place where commands print: every line is made safe for terminals and other readers here.

Texts come from tasks, state files, other hosts and answers of executors. A caller may clean its texts earlier, to
align them; ``echo`` and ``json_line`` do so for every caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import click

from .text import escape_unsafe, one_line, pad, sanitize_lines


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text on standard output, or on standard error. ``nl``: with a newline at the end."""
    click.echo(sanitize_lines(text), err=err, nl=nl)


def json_line(value: object) -> str:
    """One line of JSON in which unsafe characters are ``\\u`` escapes."""
    return escape_unsafe(json.dumps(value, ensure_ascii=False))


def echo_json(value: object) -> None:
    """Print a value as one line of JSON."""
    echo(json_line(value))


def echo_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print each of several lines."""
    for line in lines:
        echo(line, err=err)


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows with aligned columns."""
    echo_lines(table_lines(rows))


def table_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Rows with aligned columns; control characters are removed from the cells."""
    cleaned = [[one_line(cell) for cell in row] for row in rows]
    widths = [min(60, max(len(row[column]) for row in cleaned)) for column in range(len(cleaned[0]))]
    for row in cleaned:
        cells = [pad(cell, width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()
