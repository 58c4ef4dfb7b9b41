"""One run in one row of the list of runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.core.fold import RunRow
from ...engine.core.states import RunState, TaskState
from . import counts
from .durations import clock, wall_day
from .glyphs import Glyphs
from .pieces import Line, Piece, Role, fit
from .states import BLOCKED, PAUSED, RUN_LOOKS, Look
from .text import one_line, pad, shorten_middle

_WORD_CELLS = 8
_BAR_CELLS = 8
_NAME_CELLS = (12, 40)
_WIDE = 112


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


def run_row(view: RunView, now_us: int, columns: int, glyphs: Glyphs) -> Line:
    """State, name, progress, how long, and the counts that matter."""
    run, look = view.run, look_of(view.run)
    total = sum(view.counts.values())
    done = view.counts.get(TaskState.SUCCESS, 0) + view.counts.get(TaskState.SKIPPED, 0)
    took = clock((run.ended_at if run.ended_at is not None else now_us) - run.started_at)
    fixed: Line = [
        *counts.bar(view.counts, glyphs, _BAR_CELLS),
        Piece(f" {f'{done}/{total}':>9}  {took}  "),
        *counts.in_words(view.counts, glyphs, without=(TaskState.SUCCESS, TaskState.PENDING)),
    ]
    if view.beside:
        fixed += [Piece("  "), Piece(view.beside, Role.WARNING)]
    low, high = _NAME_CELLS
    cells = max(min(columns - 56, high), low)
    name = shorten_middle(f"{one_line(run.dag_name)} {glyphs.dot} {one_line(run.run_id)}", cells, glyphs.more)
    line = [
        Piece(f" {getattr(glyphs, look.glyph)} {pad(look.word, _WORD_CELLS)}", look.role),
        Piece(f" {pad(name, cells)} "),
        *fixed,
    ]
    if columns < _WIDE:
        return line
    return [*fit(line, columns - 16, glyphs.more), Piece(f" {wall_day(run.started_at, None)}", Role.DIM)]
