"""One run in one row of the list of runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.core.fold import RunRow
from ...engine.core.states import NEEDS_HUMAN, RunState, TaskState
from . import counts
from .durations import clock, wall_day
from .glyphs import Glyphs
from .pieces import Line, Piece, Role, fit, width
from .states import BLOCKED, PAUSED, RUN_LOOKS, Look
from .text import one_line, pad, shorten_middle

_WORD_CELLS = 8
_BAR_CELLS = 8
_NAME_CELLS = (12, 40)
_WIDE, _NARROW = 112, 64


@dataclass(frozen=True, slots=True)
class RunView:
    """What is known of a run. ``beside``: what else must be said, as "executor gone"."""

    run: RunRow
    counts: counts.Counts
    beside: str = ""


def look_of(run: RunRow) -> Look:
    """The sign and the word of a run: blocked and paused are told apart from running."""
    if run.state is not RunState.RUNNING:
        return RUN_LOOKS[run.state]
    if run.blocked_since is not None:
        return BLOCKED
    return PAUSED if run.paused_since is not None else RUN_LOOKS[run.state]


def run_name(run: RunRow, glyphs: Glyphs) -> str:
    """Flow and run."""
    return f"{one_line(run.dag_name)} {glyphs.dot} {one_line(run.run_id)}"


def run_row(view: RunView, now_us: int, columns: int, glyphs: Glyphs, longest_name: int = 0) -> Line:
    """State, name, progress, how long, and the counts that matter. ``longest_name``: cells, of all rows."""
    run, look = view.run, look_of(view.run)
    total = sum(view.counts.values())
    done = view.counts.get(TaskState.SUCCESS, 0) + view.counts.get(TaskState.SKIPPED, 0)
    took = clock((run.ended_at if run.ended_at is not None else now_us) - run.started_at)
    if columns < _NARROW:
        return _narrow_row(view, f"{done}/{total}", columns, glyphs)
    fixed: Line = [
        *counts.bar(view.counts, glyphs, _BAR_CELLS),
        Piece(f" {f'{done}/{total}':>9}  {took}  "),
        *counts.in_words(view.counts, glyphs, without=(TaskState.SUCCESS, TaskState.PENDING)),
    ]
    if view.beside:
        fixed += [Piece("  "), Piece(view.beside, Role.WARNING)]
    low, high = _NAME_CELLS
    cells = max(min(columns - 56, high, longest_name or high), low)
    name = shorten_middle(run_name(run, glyphs), cells, glyphs.more)
    line = [
        Piece(" "),
        Piece(f"{getattr(glyphs, look.glyph)} {look.word}", look.role),
        Piece(" " * (_WORD_CELLS - len(look.word) + 1)),
        Piece(f"{pad(name, cells)} "),
        *fixed,
    ]
    if columns < _WIDE:
        return line
    return [*fit(line, columns - 16, glyphs.more), Piece(f" {wall_day(run.started_at, None)}", Role.DIM)]


def _narrow_row(view: RunView, progress: str, columns: int, glyphs: Glyphs) -> Line:
    """Where a bar would leave no room for what it means."""
    look = look_of(view.run)
    right: Line = [Piece(f" {progress} "), *counts.in_signs(_problems(view.counts), glyphs, 10)]
    room = columns - _WORD_CELLS - 4 - width(right)
    return [
        Piece(" "),
        Piece(f"{getattr(glyphs, look.glyph)} {look.word}", look.role),
        Piece(" " * (_WORD_CELLS - len(look.word) + 1)),
        Piece(pad(shorten_middle(run_name(view.run, glyphs), room, glyphs.more), room)),
        *right,
    ]


def _problems(found: counts.Counts) -> counts.Counts:
    return {state: count for state, count in found.items() if state in NEEDS_HUMAN}
