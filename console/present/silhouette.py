"""The silhouette of a large graph: how many tasks each level has, how far they are, and the critical path."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...engine.core.projection import TaskRow
from ...engine.core.views import CountedState, work_us
from ...engine.domain.states import TIMED, WAITING, TaskState
from ...engine.domain.text import counted, format_duration
from ..model.graph.rows import Silhouette, SilhouetteColumn
from ..text.figures import number, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, first_that_fits, join, two_sided, width
from ..text.text import cells
from . import states
from .states import shade
from .tasks import RunContext, pace

_FRAME_ROWS = 4  # beside the columns: the heading, the marks, and two rows of the path
_PATH_NAME_CELLS = 20


class CriticalPath(NamedTuple):
    """The tasks that decide when the run ends, from a root on; how long each ran (microseconds); and when it ends."""

    names: Sequence[str] = ()
    durations_us: Sequence[int] = ()
    ends: str = ""


def critical_path_with_times(names: Sequence[str], context: RunContext, left_us: int | None = None) -> CriticalPath:
    """A path with the durations of its tasks: of all attempts, else as usual, else 0. ``left_us``: until its end."""
    ends = f", until about {wall(context.now_us + left_us)[:5]}" if left_us is not None else ""
    return CriticalPath(names, [_duration_us(name, context) for name in names], ends)


def _duration_us(name: str, context: RunContext) -> int:
    row, usual = context.board.row(name), context.board.duration_stats.get(name)
    if row.attempts:
        return work_us(row, context.now_us, context.runner)
    return usual.p50_us if usual is not None else 0


def silhouette_lines(silhouette: Silhouette, path: CriticalPath, rows: int, context: RunContext) -> list[Line]:
    """``rows`` lines: a heading, the levels as columns, room for their marks, and below each the slowest task."""
    height = max(rows - _FRAME_ROWS, 1)
    shaded = zip(silhouette.columns, _shades(silhouette, context), strict=True)
    drawn = [_column(column, silhouette, height, context.glyphs, shade) for column, shade in shaded]
    return [
        _silhouette_heading(silhouette, path, context),
        *([piece for column in drawn for piece in column[y]] for y in reversed(range(height))),
        [],
        *_path_lines(silhouette, path, context),
    ]


MARKS_ROW = -3  # of the lines of a silhouette


def _silhouette_heading(silhouette: Silhouette, path: CriticalPath, context: RunContext) -> Line:
    counts, is_over = context.board.counts, context.board.projection.run.ended_at is not None
    left = [Piece(f"{number(len(silhouette.dag))} tasks in {counted(silhouette.dag.depth, 'level')}")]
    total_us = sum(path.durations_us)
    until = " so far" if all(context.board.row(name).attempts for name in path.names) else " expected"
    when = "" if is_over else until + path.ends
    critical = [Piece(f"critical path {format_duration(total_us)}{when}", Role.CRITICAL)] if total_us else []
    shown = join([left, critical], "   ")
    room = silhouette.size - width(shown) - 2
    return two_sided(shown, states.counts_within(counts, context.glyphs, room, (), context.runner), silhouette.size)


def _shades(silhouette: Silhouette, context: RunContext) -> list[str]:
    """The sign of finished tasks in each column; of a run that has ended by how long those of the column took.

    Beside what is usual where that is known, else beside the longest column.
    """
    heat, usual = context.glyphs.heat, context.board.duration_stats
    if context.board.projection.run.ended_at is None:
        return [heat[-1]] * len(silhouette.columns)
    found = [[context.board.row(name) for name in silhouette.dag.names_of(one.tasks)] for one in silhouette.columns]
    if usual:
        known = [[row for row in rows if row.name in usual] for rows in found]
        return [shade(_pace_of(rows, context), context.glyphs) for rows in known]
    took = [sum(work_us(row, context.now_us, context.runner) for row in rows) / max(len(rows), 1) for rows in found]
    longest = max(took, default=0.0) or 1.0
    return [heat[min(int(lasts / longest * len(heat)), len(heat) - 1)] for lasts in took]


def _pace_of(rows: Sequence[TaskRow], context: RunContext) -> float:
    """The duration of these tasks as a multiple of the usual one."""
    usual_us = sum(context.board.duration_stats[row.name].p50_us for row in rows)
    return pace(sum(work_us(row, context.now_us, context.runner) for row in rows), max(usual_us, 1)).times


def _column(column: SilhouetteColumn, silhouette: Silhouette, height: int, glyphs: Glyphs, shade: str) -> list[Line]:
    """The cells of one column from the bottom up, as a tide: problems, done, running, to be tried again, to be done.

    Its height is a square root, so that small levels show beside large ones. ``shade``: of what is done.
    """
    total = sum(column.counts.values())
    eighths = max(round(8 * height * math.sqrt(total / max(silhouette.tallest, 1))), 1) if total else 0
    problems = sum(1 for found, _ in _COLUMN_PARTS[:2] if any(column.counts.get(state) for state in found))
    full = min(max(-(-eighths // 8), problems), height)
    roles = [role for role, count in _column_parts(column.counts, full) for _ in range(count)]
    signs = {**dict(zip(_TIDE, glyphs.heat[::-1], strict=True)), Role.DONE: shade}
    signs |= {Role.HUMAN: glyphs.dead, Role.FAILED: glyphs.failed}
    gap, lines = silhouette.gap, list[Line]()
    for y in range(height):
        role, filled = (roles[y], eighths - 8 * y) if y < full else (Role.TEXT, 0)
        top = sign = signs.get(role, " ")
        if filled < 8 and role in _TIDE[:3]:  # a light shade has no half cells
            top = glyphs.spark[max(filled, 1) - 1] if y == 0 or sign == glyphs.heat[-1] else sign if filled > 3 else " "
        lines.append([Piece((top if y < full else " ") * (column.cells - gap), role), Piece(" " * gap)])
    parts = _column_parts(column.counts, total)
    beside = [role for role, count in parts if count and role in _TIDE][:1]  # also of what has no row of its own
    for role, count in parts[:2]:
        # the last row of its signs has one for each task at most, and as large a part as they are
        if count and beside and role in roles:
            y, size = roles.index(role) + roles.count(role) - 1, column.cells - gap
            shown = min(max(round(count * full * size / total) - (roles.count(role) - 1) * size, 1), count, size)
            lines[y][:1] = [Piece(signs[role] * shown, role), Piece(signs[beside[0]] * (size - shown), beside[0])]
    rest = sum(column.counts.get(state, 0) for state in states.DONE) * full / max(total, 1) % 1
    edge = roles.index(Role.PENDING) if Role.PENDING in roles else 0
    if edge and roles[edge - 1] is Role.DONE and roles[edge + 1 :] and rest >= 1 / 8:
        lines[edge][0] = Piece(glyphs.spark[int(rest * 8) - 1] * (column.cells - gap), Role.DONE)
    return lines


#: What a column shows from the bottom up. Problems have a cell before all others.
_COLUMN_PARTS: tuple[tuple[Collection[CountedState], Role], ...] = (
    (states.TO_DECIDE, Role.HUMAN),
    (states.FAILED - {TaskState.DEAD_LETTER}, Role.FAILED),
    (states.DONE, Role.DONE),
    ((TaskState.RUNNING,), Role.RUNNING),
    (TIMED, Role.WAITING),
    (WAITING, Role.PENDING),
)
_TIDE = (Role.DONE, Role.RUNNING, Role.WAITING, Role.PENDING)  # from dark to light


def _column_parts(counts: Mapping[CountedState, int], size: int) -> list[tuple[Role, int]]:
    """The cells of each part, of ``size``: one at least as far as they reach, and the rest for the largest."""
    parts = [(role, sum(counts.get(state, 0) for state in found)) for found, role in _COLUMN_PARTS]
    total, left = sum(count for _, count in parts), size
    shares: dict[Role, int] = {}
    for role, count in parts:
        shares[role] = min(max(count * size // max(total, 1), 1), left) if count else 0
        left -= shares[role]
    shares[max(parts, key=lambda part: part[1])[0]] += left
    return list(shares.items())


def silhouette_marks(silhouette: Silhouette, selected: str | None, glyphs: Glyphs) -> Line:
    """The number of tasks of each column that need a human, below it; and the column of the selected task."""
    marks = _Marks(silhouette.size)
    for column in silhouette.columns:
        for piece in states.problem_counts(column.counts, glyphs):
            if piece.text.strip():
                marks.place(column.x, piece)
    if selected is not None:
        column = silhouette.columns[silhouette.index_of(selected)]
        marks.place(column.x + (column.cells - 1) // 2, Piece(glyphs.rows_above, Role.STRONG), is_moved=False)
    return marks.line()


def _path_lines(silhouette: Silhouette, path: CriticalPath, context: RunContext) -> list[Line]:
    """The critical path: how long the task of each column ran, and the names of the longest ones."""
    longest: dict[int, tuple[int, str]] = {}
    for name, duration_us in zip(path.names, path.durations_us, strict=True):
        place = silhouette.index_of(name)
        longest[place] = max(longest.get(place, (0, "")), (duration_us, name))
    most = max([duration_us for duration_us, _ in longest.values()], default=0)
    if not most:
        return [[], []]
    bars: Line = []
    for place, column in enumerate(silhouette.columns):
        duration_us, _ = longest.get(place, (0, ""))
        sign = context.glyphs.spark[round(7 * duration_us / most)] * (column.cells - silhouette.gap)
        if place not in longest:
            bars.append(Piece(" " * column.cells))
        elif duration_us:
            bars += [Piece(sign, Role.CRITICAL), Piece(" " * silhouette.gap)]
        else:
            dots = f"{context.glyphs.dot:^{column.cells}}" if silhouette.gap else context.glyphs.dot * column.cells
            bars.append(Piece(dots, Role.CRITICAL))
    labels = _Marks(silhouette.size)
    for place, (duration_us, name) in sorted(longest.items(), key=lambda found: (-found[1][0], found[0])):
        if duration_us:
            shown = context.names.short(name, _PATH_NAME_CELLS, context.glyphs.more)
            text = f"{shown} {format_duration(duration_us)}"
            labels.place(silhouette.columns[place].x, Piece(text, Role.CRITICAL), is_moved=False)
    return [bars, two_sided(labels.line(), _silhouette_legend(silhouette, labels.end, context), silhouette.size)]


def _silhouette_legend(silhouette: Silhouette, used: int, context: RunContext) -> Line:
    """The legend of height, signs and shades, in the cells that names leave free."""
    heat = context.glyphs.heat
    shades = f"{''.join(heat)} {'quick to slow beside usual' if context.board.duration_stats else 'short to long'}"
    words = ("done", "running", "retries", "to do")
    parts = [Piece(f"{sign} {word}", role) for sign, word, role in zip(heat[::-1], words, _TIDE, strict=True)]
    if context.board.projection.run.ended_at is not None:
        parts[:1] = [Piece(shades, Role.DONE)]
    has = {role for column in silhouette.columns for role, count in _column_parts(column.counts, 8) if count}
    shown = [[part] for part, role in zip(parts, _TIDE, strict=True) if role in has]
    height, below = [Piece("height tasks", Role.DIM)], [Piece("below the critical path", Role.CRITICAL)]
    lines = [join([height, *shown, below]), join([height, *shown]), join(shown), []]
    return first_that_fits(lines, silhouette.size - used - 2)


class _Marks:
    """Texts at places of one line that do not touch each other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: dict[int, Piece] = {}

    def place(self, x: int, piece: Piece, is_moved: bool = True) -> None:
        """Put a text at a place, or where it is taken right of it if it may be moved; else leave it out."""
        size = cells(piece.text)
        x = max(min(x, self._size - size), 0)
        for at, other in sorted(self._found.items()):
            if x < at + cells(other.text) + 1 and at < x + size + 1:
                if not is_moved:
                    return
                x = at + cells(other.text) + 1
        if x + size <= self._size:
            self._found[x] = piece

    @property
    def end(self) -> int:
        """The cell after the last text."""
        return max((x + cells(piece.text) for x, piece in self._found.items()), default=0)

    def line(self) -> Line:
        line: Line = []
        at = 0
        for x, piece in sorted(self._found.items()):
            line += [Piece(" " * (x - at)), piece]
            at = x + cells(piece.text)
        return line
