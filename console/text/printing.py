"""The one place where commands print: every line is made safe for terminals and other readers here.

Texts come from tasks, state files, other hosts and answers of executors. A caller may clean its texts earlier, to
align them; ``echo`` and ``json_line`` do so whatever the caller did.
"""

from __future__ import annotations

import json

import click

from .text import escape_unsafe, sanitize_lines


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text on standard output, or on standard error. ``nl``: with a newline at the end."""
    click.echo(sanitize_lines(text), err=err, nl=nl)


def json_line(value: object) -> str:
    """One line of JSON in which unsafe characters are ``\\u`` escapes."""
    return escape_unsafe(json.dumps(value, ensure_ascii=False))


def echo_json(value: object) -> None:
    """Print a value as one line of JSON."""
    echo(json_line(value))
