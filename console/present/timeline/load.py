"""How many tasks of the whole run ran at once, as a chart on the time axis."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.time_span import Span
from ...text.durations import number
from ...text.glyphs import Glyphs
from ...text.pieces import Line, Piece, Role
from ...text.text import pad, pad_left


def load_lines(
    running: Sequence[int], axis: Span, now_us: int | None, label_columns: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """``rows`` lines, as tall as the most tasks that ran at once. ``running``: of each cell up to now."""
    peak = max(running, default=0)
    now_cell = axis.cell(now_us) if now_us is not None else -1
    labels = [f" running {pad_left(number(peak), label_columns - 10)} ", *[""] * (rows - 1)]
    lines: list[Line] = []
    for row, label in enumerate(labels):
        signs = [_sign(count, peak, rows, rows - 1 - row, glyphs) for count in running]
        signs += [" "] * (axis.cells - len(signs))
        before, after = "".join(signs[: max(now_cell, 0)]), "".join(signs[max(now_cell + 1, 0) :])
        now = Piece(glyphs.now if 0 <= now_cell < axis.cells else "", Role.NOW)
        lines.append(
            [Piece(pad(label, label_columns), Role.DIM), Piece(before, Role.DONE), now, Piece(after, Role.DONE)]
        )
    return lines


def _sign(count: int, peak: int, rows: int, height: int, glyphs: Glyphs) -> str:
    """The sign of a count in the row ``height`` rows above the lowest: below its top it is shaded, to be quiet."""
    steps = len(glyphs.spark)
    filled = -(-count * rows * steps // peak) - height * steps if peak else 0
    if filled > steps:
        return glyphs.bar_rest
    return glyphs.spark[filled - 1] if filled > 0 else " "
