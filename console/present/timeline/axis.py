"""The time axis: clock times at round instants, shortened pauses, and now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from ...model.time_span import Span
from ...text.durations import MINUTE, SECOND, format_duration, wall, wall_day
from ...text.glyphs import Glyphs
from ...text.pieces import Line, Piece, Role

#: Round distances between labels of the axis.
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080)
_TICKS = (*(round(seconds * SECOND) for seconds in _SECONDS), *(minutes * MINUTE for minutes in _MINUTES))
_LABEL_GAP = 5


def axis_line(axis: Span, now_us: int | None, glyphs: Glyphs) -> Line:
    """Clock times at round instants, each starting at its cell, and a mark for now."""
    step = next((tick for tick in _TICKS if tick // axis.per_cell >= _label_cells(tick) + _LABEL_GAP), _TICKS[-1])
    now_cell = axis.cell(now_us) if now_us is not None else -1
    text = [" "] * axis.cells
    for start, end in _linear_parts(axis):
        for at in range(start + (-(start + _offset_us(start))) % step, end, step):
            label, cell = _label(at, step), axis.cell(at)
            clear = not cell - _LABEL_GAP < now_cell < cell + len(label) + 1
            if cell + len(label) <= min(axis.cell(end), axis.cells) and clear:
                text[cell : cell + len(label)] = label
    for start, end in axis.shortened:
        _write_pause(text, axis.cell(start), axis.cell(end), format_duration(end - start), glyphs.elided)
    line = [Piece("".join(text), Role.DIM)]
    if not 0 <= now_cell < axis.cells:
        return line
    word = "now" if now_cell + 3 <= axis.cells else glyphs.down
    return [
        Piece("".join(text[:now_cell]), Role.DIM),
        Piece(word, Role.NOW),
        Piece("".join(text[now_cell + len(word) :]), Role.DIM),
    ]


def _linear_parts(axis: Span) -> Iterator[tuple[int, int]]:
    """The visible parts between shortened pauses."""
    start = axis.start
    for pause_start, pause_end in axis.shortened:
        if start < pause_start < axis.end:
            yield start, pause_start
        start = max(start, pause_end)
    if start < axis.end:
        yield start, axis.end


def _write_pause(text: list[str], first: int, last: int, words: str, sign: str) -> None:
    """Write the length of a pause into its cells, as in ``┄┄ 38m ┄┄``."""
    for cell, character in enumerate(f" {words} ".center(last - first, sign), start=first):
        if 0 <= cell < len(text):
            text[cell] = character


def _offset_us(at: int) -> int:
    """UTC offset of the local time zone, so that labels are at round local times."""
    local = datetime.fromtimestamp(at / SECOND, UTC).astimezone()
    offset = local.utcoffset()
    return round(offset.total_seconds()) * SECOND if offset is not None else 0


def _label_cells(tick: int) -> int:
    return len(_label(0, tick))


def _label(at: int, tick: int) -> str:
    text = wall(at, None)
    if tick < SECOND:
        return f"{text}.{at % SECOND * 10 // SECOND}"
    if tick < MINUTE:
        return text
    return wall_day(at, None)[:5] if text == "00:00:00" else text[:5]
