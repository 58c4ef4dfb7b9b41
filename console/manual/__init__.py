"""The manual: one Markdown page per topic in this folder, for ``redrive help`` and the console.

The first line of a page is ``# topic: what it explains``. Tables may be wider than the text around them; their
cells are aligned when the page is shown. The tests run the examples of all pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby
from typing import NamedTuple

from ...engine.domain.text import did_you_mean
from ...engine.errors import RedriveError
from ..text.pieces import Line, Piece, Role, plain, width

#: The topics in the order in which a newcomer needs them.
TOPICS = (
    *("flow", "results", "params", "shell", "groups", "secrets", "repository", "testing"),
    *("states", "retries", "poison", "timeouts", "inbox", "approvals", "logs", "pagers", "metrics", "code"),
    *("schedules", "deadlines", "cron", "import", "systemd", "deploying", "state-files", "upgrades", "ssh", "dask"),
    *("commands", "keys", "words", "json", "exit-codes", "environment", "figures", "recipes", "changes"),
)


class UnknownTopic(RedriveError):
    """The manual has no page of this name."""

    def __init__(self, name: str, commands: Sequence[str] = ()) -> None:
        """``commands``: which help describes as well."""
        meant = did_you_mean(name, [*commands, *TOPICS])
        super().__init__(f"the manual has no topic {name!r}, redrive help lists the topics{meant}")


class Topic(NamedTuple):
    """A page: its name, one line about it, and its whole Markdown text."""

    name: str
    summary: str
    text: str


def load_topic(name: str) -> Topic:
    """Read the page of a topic. Raises UnknownTopic."""
    if name not in TOPICS:
        raise UnknownTopic(name)
    text = resources.files(__package__).joinpath(f"{name}.md").read_text("utf-8")
    heading = text.partition("\n")[0]
    return Topic(name, heading.partition(": ")[2], text)


def load_topics() -> list[Topic]:
    """Read all pages, in the order of ``TOPICS``."""
    return [load_topic(name) for name in TOPICS]


# --- A page as lines; paragraphs keep its line breaks ----------------------------------------------------------------


FENCE = "```"
CODE = re.compile(r"`([^`]+)`")
CELL_BORDER = re.compile(r"\s*\|\s*")
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
            if text.startswith(FENCE):
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
    rows = [[_inline(cell) for cell in CELL_BORDER.split(text)[1:-1]] for text in (texts[0], *texts[2:])]
    widths = [max(width(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = row if number else [[Piece(plain(cell), Role.STRONG)] for cell in row]
        yield [piece for cell, size in zip(cells, widths, strict=True) for piece in _padded(cell, size)][:-1]


def _padded(cell: Line, size: int) -> Line:
    return [*cell, Piece(" " * (size - width(cell))), _GAP]


def _inline(text: str) -> Line:
    """Every second part of the split is the content of a pair of backquotes."""
    roles = (Role.TEXT, Role.KEY)
    return [Piece(part, roles[place % 2]) for place, part in enumerate(CODE.split(text)) if part]
