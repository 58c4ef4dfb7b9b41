"""Figures: durations, instants and sizes in text; bars, columns and tables of numbers as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from ...engine.domain.text import format_duration, format_left  # one format for pages, engine and console

if TYPE_CHECKING:  # importing msgspec would delay the first frame
    from .glyphs import Glyphs

# --- Formats durations, instants and sizes ---------------------------------------------------------------------------
#
# Clocks keep their width while they tick, and never go below zero.
#
# All durations are microseconds, as in the state file.


SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

CLOCK_CELLS = 5
FINGERPRINT_DIGITS = 12  # of the fingerprint of a cause, wherever it is shown; the commands accept them


def clock(duration_us: int) -> str:
    """``format_duration`` in whole seconds and five cells, for what ticks: ``  41s``, `` 1m43``, `` 2h00``."""
    return f"{format_duration(duration_us // SECOND * SECOND):>{CLOCK_CELLS}}"


def column(duration_us: int) -> str:
    """``format_duration`` in five cells, for what has ended."""
    return f"{format_duration(duration_us):>{CLOCK_CELLS}}"


_WHOLE_TIMES = 9.95  # from so many on, no tenths
_LEAST_TIMES = 0.1


def times_text(times: float) -> str:
    """A multiple of the usual: ``1.4``, ``12``, ``<0.1``."""
    if times < _LEAST_TIMES:
        return f"<{_LEAST_TIMES}"
    return f"{times:.1f}" if times < _WHOLE_TIMES else number(round(times))


def age(duration_us: int) -> str:
    """An age in at most five cells, which changes once a minute: ``41s``, ``14m``, ``3h05``, ``12d``."""
    if MINUTE <= duration_us < HOUR:
        return f"{duration_us // MINUTE}m"
    return f"{duration_us // DAY}d" if duration_us >= 2 * DAY else clock(duration_us).strip()


def countdown(due_at: int, now: int) -> str:
    """``in  7s`` before the instant ``due_at``, which keeps its width for a minute; ``due 4s ago`` after it."""
    left = due_at - now
    return f"in {format_left(left):>3}" if left > 0 else f"due {format_duration(-left)} ago"


def offset(duration_us: int) -> str:
    """A duration with its sign, as in ``+0.3s``."""
    return ("-" if duration_us < 0 else "+") + format_duration(abs(duration_us))


def wall(at: int) -> str:
    """An instant as ``03:11:20``, by the clock of this machine."""
    return _local(at).strftime("%H:%M:%S")


def wall_day(at: int) -> str:
    """An instant with its day: ``04-25 03:11:20``."""
    return _local(at).strftime("%m-%d %H:%M:%S")


def instant(at_us: int, now_us: int) -> str:
    """A time of day; with its date if more than 12 hours have passed, for 06:00 read at 02:00 was yesterday."""
    return (wall if now_us - at_us < DAY // 2 else wall_day)(at_us)


def wall_date(at: int) -> str:
    """An instant with its date: ``2026-04-25 03:11:20``."""
    return _local(at).strftime("%Y-%m-%d %H:%M:%S")


def local_day(at: int) -> date:
    """The day of an instant on this machine."""
    return _local(at).date()


def _local(at: int) -> datetime:
    return datetime.fromtimestamp(at // SECOND)  # noqa: DTZ006  # its zone, which is not shown, costs most


def number(count: int) -> str:
    """A count with thousands separators: ``1,247``."""
    return f"{count:,}"


def need_human(count: int) -> str:
    """The words after a count of things: ``needs a human``, ``need a human``."""
    return "needs a human" if count == 1 else "need a human"


# --- Bars, column charts and tables of numbers as plain text ---------------------------------------------------------


_BLANK = " "


def bar(value: float, most: float, size: int, glyphs: Glyphs) -> str:
    """A bar of up to ``size`` cells; any value above zero is visible."""
    steps = len(glyphs.bar) - 1
    whole, rest = divmod(_level(value, most, size * steps), steps)
    text = glyphs.bar_done * whole + (glyphs.bar[rest] if rest else "")
    return text if text.strip() or value <= 0 else glyphs.dot


def number_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: the first column aligned left, all others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def column_chart(values: Sequence[float], most: float, rows: int, glyphs: Glyphs) -> Iterator[str]:
    """Lines of a chart, the top one first; each value is a column of up to ``rows`` cells."""
    steps = len(glyphs.spark)
    heights = [_level(value, most, rows * steps) for value in values]
    for row in reversed(range(rows)):
        above = [min(max(height - row * steps, 0), steps) for height in heights]
        yield "".join(glyphs.spark[step - 1] if step else _BLANK for step in above).rstrip()


def _level(value: float, most: float, levels: int) -> int:
    """Return how many of the levels show a value: at least one if it is above zero."""
    if value <= 0 or most <= 0:
        return 0
    return max(1, min(levels, round(value / most * levels)))
