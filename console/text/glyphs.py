"""The signs that the console draws with: one table for terminals with UTF-8, one in pure ASCII.

Every sign is one cell wide. Both tables have the same fields, so drawing code names a meaning, not a character.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .strokes import DOWN, LEFT, RIGHT, UP


class Glyph(StrEnum):
    """Signs that tables refer to. The value is the field of ``Glyphs``."""

    DONE = "done"
    RUNNING = "running"
    RETRYING = "retrying"
    SENSING = "sensing"
    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    UPSTREAM = "upstream"
    DEAD = "dead"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    DOT = "dot"
    BAR_QUIET = "bar_quiet"
    BAR_ACTIVE = "bar_active"
    RUN_FAIL = "run_fail"
    DEADLINE = "deadline"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. ``lines`` is indexed by the arms of a cell (``text/strokes.py``)."""

    # states
    done: str
    running: str
    retrying: str
    sensing: str
    ready: str
    pending: str
    failed: str
    upstream: str
    dead: str
    skipped: str
    cancelled: str
    # lines
    lines: tuple[str, ...]
    nodes: tuple[str, ...]  # a task among rails, by the arms of its cell
    rule: str
    rule_stale: str  # the frame of a stale screen
    rule_past: str  # the frame of a past instant
    divider: str
    tee_down: str  # where a divider meets a rule
    elided: str  # more is there than is drawn
    cut_left: str  # a drawing goes on there
    cut_right: str
    # marks
    cursor: str
    mark: str
    open: str
    closed: str
    more: str
    dot: str
    times: str
    arrow: str
    past: str
    play: str
    up: str
    down: str
    rows_above: str
    rows_below: str
    # bars, from nothing to full; and their ends
    bar: tuple[str, ...]
    bar_done: str
    bar_quiet: str  # finished tasks: thin, so that problems stand out
    bar_active: str
    bar_pending: str
    bar_rest: str
    bar_left: str
    bar_right: str
    # timeline
    run: str
    run_fail: str
    backoff: str
    deadline: str
    sigterm: str
    grace: str
    sigkill: str
    lost: str
    due: str
    now: str
    spark: tuple[str, ...] = field(default=())

    def of(self, glyph: Glyph) -> str:
        """The character of a glyph that a table names."""
        character: str = getattr(self, glyph.value)
        return character


def _line_table(plain: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(plain.get(arms, " ") for arms in range(16))


UTF8 = Glyphs(
    done="✓",
    running="●",
    retrying="↻",
    sensing="◷",
    ready="◌",
    pending="·",
    failed="✗",
    upstream="⊘",
    dead="◆",
    skipped="»",
    cancelled="⊗",
    lines=_line_table(
        {
            LEFT: "╴",
            RIGHT: "╶",
            UP: "╵",
            DOWN: "╷",
            LEFT | RIGHT: "─",
            UP | DOWN: "│",
            DOWN | RIGHT: "╭",
            DOWN | LEFT: "╮",
            UP | RIGHT: "╰",
            UP | LEFT: "╯",
            UP | DOWN | RIGHT: "├",
            UP | DOWN | LEFT: "┤",
            LEFT | RIGHT | DOWN: "┬",
            LEFT | RIGHT | UP: "┴",
            LEFT | RIGHT | UP | DOWN: "┼",
        }
    ),
    nodes=("╺", "╹", "╻", "┃", "╸", "┛", "┓", "┫", "╺", "┗", "┏", "┣", "━", "┻", "┳", "╋"),
    rule="─",
    rule_stale="╌",
    rule_past="═",
    divider="│",
    tee_down="┬",
    elided="┄",
    cut_left="‹",
    cut_right="›",
    cursor="▌",
    mark="▪",
    open="▾",
    closed="▸",
    more="…",
    dot="·",
    times="×",
    arrow="→",
    past="◂",
    play="▸",
    up="↑",
    down="↓",
    rows_above="▴",
    rows_below="▾",
    bar=(" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"),
    bar_done="█",
    bar_quiet="━",
    bar_active="═",
    bar_pending="─",
    bar_rest="░",
    bar_left="▕",
    bar_right="▏",
    run="▆",
    run_fail="✗",
    backoff="┄",
    deadline="▏",
    sigterm="T",
    grace="┈",
    sigkill="K",
    lost="?",
    due="▸",
    now="│",
    spark=("▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"),
)

ASCII = Glyphs(
    done="o",
    running=">",
    retrying="~",
    sensing="?",
    ready=":",
    pending=".",
    failed="x",
    upstream="/",
    dead="!",
    skipped="-",
    cancelled="*",
    lines=_line_table(
        {
            LEFT: "-",
            RIGHT: "-",
            UP: "|",
            DOWN: "|",
            LEFT | RIGHT: "-",
            UP | DOWN: "|",
            DOWN | RIGHT: ".",
            DOWN | LEFT: ".",
            UP | RIGHT: "`",
            UP | LEFT: "'",
            UP | DOWN | RIGHT: "+",
            UP | DOWN | LEFT: "+",
            LEFT | RIGHT | DOWN: "+",
            LEFT | RIGHT | UP: "+",
            LEFT | RIGHT | UP | DOWN: "+",
        }
    ),
    nodes=("@",) * 16,
    rule="-",
    rule_stale=".",
    rule_past="=",
    divider="|",
    tee_down="+",
    elided="$",
    cut_left="{",
    cut_right="}",
    cursor=">",
    mark="*",
    open="v",
    closed=">",
    more="$",
    dot="-",
    times="x",
    arrow=">",
    past="<",
    play=">",
    up="^",
    down="v",
    rows_above="^",
    rows_below="v",
    bar=(" ", " ", " ", "-", "-", "-", "#", "#", "#"),
    bar_done="#",
    bar_quiet="-",
    bar_active="=",
    bar_pending=".",
    bar_rest=".",
    bar_left="[",
    bar_right="]",
    run="=",
    run_fail="x",
    backoff=".",
    deadline="|",
    sigterm="T",
    grace="~",
    sigkill="K",
    lost="?",
    due=">",
    now="|",
    spark=("_", ".", "-", "=", "+", "*", "#", "#"),
)


def glyphs_for(encoding: str | None) -> Glyphs:
    """The signs for a terminal's encoding: UTF-8 signs for any UTF, else ASCII."""
    return UTF8 if encoding and encoding.lower().replace("_", "-").startswith("utf") else ASCII
