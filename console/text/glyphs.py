"""The signs that the console draws with: one table, with each sign for terminals with UTF-8 and in pure ASCII.

Every sign is one cell wide. Drawing code names a meaning, not a character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any

import msgspec


class Glyph(StrEnum):
    """Signs of the console alone; those of states are ``Sign`` of the engine. The value is the field of ``Glyphs``."""

    DOT = "dot"
    BAR_QUIET = "bar_quiet"
    BAR_ACTIVE = "bar_active"


def _sign(utf8: str | tuple[str, ...], ascii: str | tuple[str, ...]) -> Any:
    """Return the row of a sign: the default of its field, from which both sets are made."""
    return utf8, ascii


class Glyphs(msgspec.Struct, frozen=True):
    """A set of signs: ``UTF8`` or ``ASCII``.

    ``lines`` and ``nodes`` are indexed by the arms of a cell (``text/glyphs.py``).
    """

    # states
    done: str = _sign("✓", "o")
    running: str = _sign("●", ">")
    cut_off: str = _sign("○", "%")
    retrying: str = _sign("↻", "~")
    sensing: str = _sign("◷", "?")
    ready: str = _sign("◌", ":")
    pending: str = _sign("·", ".")
    failed: str = _sign("✗", "x")
    upstream: str = _sign("⊘", "/")
    dead: str = _sign("◆", "!")
    skipped: str = _sign("»", "-")
    cancelled: str = _sign("⊗", "*")
    # lines
    lines: tuple[str, ...] = _sign(
        (" ", "╵", "╷", "│", "╴", "╯", "╮", "┤", "╶", "╰", "╭", "├", "─", "┴", "┬", "┼"),
        (" ", "|", "|", "|", "-", "'", ".", "+", "-", "`", ".", "+", "-", "+", "+", "+"),
    )
    rule: str = _sign("─", "-")
    rule_lit: str = _sign("━", "#")  # above the pane that has the keys
    rule_stale: str = _sign("╌", ".")  # the frame of a stale screen
    rule_past: str = _sign("═", "=")  # the frame of a past instant
    divider: str = _sign("│", "|")
    tee_down: str = _sign("┬", "+")  # where a divider meets a rule
    elided: str = _sign("┄", ",")  # more is there than is drawn
    cut_left: str = _sign("‹", "{")  # a drawing goes on there
    cut_right: str = _sign("›", "}")
    # marks
    cursor: str = _sign("▌", ">")
    mark: str = _sign("▪", "*")
    open: str = _sign("▾", "v")
    closed: str = _sign("▸", ">")
    more: str = _sign("…", "$")
    dot: str = _sign("·", "-")
    times: str = _sign("×", "x")
    arrow: str = _sign("→", ">")
    past: str = _sign("◂", "<")
    play: str = _sign("▸", ">")
    up: str = _sign("↑", "^")
    down: str = _sign("↓", "v")
    rows_above: str = _sign("▴", "^")
    rows_below: str = _sign("▾", "v")
    # bars, from nothing to full; and their ends
    bar: tuple[str, ...] = _sign(
        (" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"),
        (" ", " ", " ", "-", "-", "-", "#", "#", "#"),
    )
    bar_done: str = _sign("█", "#")
    bar_quiet: str = _sign("━", "-")  # finished tasks: thin, so that problems stand out
    bar_active: str = _sign("═", "=")
    bar_pending: str = _sign("─", ".")
    bar_rest: str = _sign("░", ".")
    bar_left: str = _sign("▕", "[")
    bar_right: str = _sign("▏", "]")
    # timeline
    run: str = _sign("▆", "=")
    backoff: str = _sign("┄", ".")
    deadline: str = _sign("▏", "|")
    sigterm: str = _sign("T", "T")
    grace: str = _sign("┈", "~")
    sigkill: str = _sign("K", "K")
    lost: str = _sign("?", "?")
    due: str = _sign("▸", ">")
    now: str = _sign("│", "|")
    spark: tuple[str, ...] = _sign(
        ("▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"),
        ("_", ".", "-", "=", "+", "*", "#", "#"),
    )

    #: few to many, in the cells of a heat map
    heat: tuple[str, ...] = _sign(("░", "▒", "▓", "█"), (".", "+", "*", "#"))

    def of(self, sign: StrEnum) -> str:
        """The character of a sign that a table names: of ``Glyph``, or of the engine's ``Sign``."""
        character: str = getattr(self, sign.value)
        return character


_ROWS: Sequence[Any] = msgspec.structs.astuple(Glyphs())
UTF8, ASCII = (Glyphs(*signs) for signs in zip(*_ROWS, strict=True))
#: Each sign of the first set in the second; of one with several meanings that of the first field, scales last.
IN_ASCII: Mapping[str, str] = {
    **dict(chain.from_iterable(zip(*row, strict=True) for row in _ROWS if isinstance(row[0], tuple))),
    **dict(row for row in reversed(_ROWS) if isinstance(row[0], str)),
}


def glyphs_for(encoding: str | None) -> Glyphs:
    """The signs for a terminal's encoding: UTF-8 signs for any UTF, else ASCII."""
    return UTF8 if encoding and encoding.lower().replace("_", "-").startswith("utf") else ASCII


# --- The four arms of a box-drawing cell as bits: layouts use them without naming a character ------------------------


UP = 1
DOWN = 2
LEFT = 4
RIGHT = 8
ACROSS = LEFT | RIGHT
