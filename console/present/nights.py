"""The last nights of a flow, a day with runs each: a cell in lists, a line where a screen has room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date

from ...engine.core.views import RUN_STYLES, StateStyle, run_style
from ...engine.domain.states import RunState
from ...engine.domain.text import format_duration
from ...engine.statefile.durations import quantile
from ...engine.statefile.supervisor_file import NightSummary, ServedSchedule
from ..model.runs import FleetEntry, Pace, pace_of
from ..text.columns import Column, Width
from ..text.figures import column, local_day, times_text
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role
from ..text.text import cells, one_line, pad
from .states import height, sign_and_word
from .tasks import section

RUNNING = RUN_STYLES[RunState.RUNNING]
NIGHTS = Width(7, 14, 2, 2, is_right=True)
_NIGHTS_MAX, _ROWS_MIN = 14, 6  # nights of a schedule; rows that are worth reading
_DAY_CELLS, _STATE_CELLS, _FACT_CELLS = 12, 11, 46  # with all that stands beside a bar
_BAR_CELLS_MIN, _BAR_CELLS_MAX = 4, 36


def night_signs(nights: Sequence[NightSummary], latest: StateStyle, glyphs: Glyphs) -> Line:
    """A cell for each night: its height is the duration beside the usual one, a sign says what did not end well.

    ``latest``: the state of an unfinished night.
    """
    found = []
    for night in nights:
        style, pace = _style_of(night, latest), _pace_of(night, nights)
        if pace is None:
            found.append(Piece(glyphs.of(style.sign), Role(style.role)))
        else:
            found.append(Piece(height(pace.times, glyphs), Role.WARNING if pace.is_slow else Role.DIM))
    return found


def night_lines(
    nights: Sequence[NightSummary], latest: StateStyle, columns: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """The nights in at most ``rows`` lines, the latest first: how each ended, and its duration as a bar."""
    known = sorted(one.lasts_us for one in nights if one.lasts_us is not None)
    if rows < _ROWS_MIN or len(nights) < 2 or not known:
        return []
    size = max(min(columns - _FACT_CELLS, _BAR_CELLS_MAX), _BAR_CELLS_MIN)
    lines = [*section("Last nights", f"usually {format_duration(quantile(known, 0.5))}")]
    for night in list(reversed(nights))[: rows - len(lines)]:
        style, pace = _style_of(night, latest), _pace_of(night, nights)
        state = sign_and_word(style, glyphs)
        lines.append([Piece(f"   {pad(_day_text(night.day), _DAY_CELLS)}", Role.DIM), state])
        if night.lasts_us is not None and pace is not None:
            bar = glyphs.run * max(round(night.lasts_us * size / max(known[-1], 1)), 1)
            words = f"  {times_text(pace.times)}{glyphs.times} usual" if pace.is_slow else ""
            role = Role.WARNING if pace.is_slow else Role.DONE
            took = f" {' ' * (_STATE_CELLS - cells(state.text))}{column(night.lasts_us)}  "
            lines[-1] += [Piece(took), Piece(f"{bar}{words}", role)]
    return lines


def _style_of(night: NightSummary, latest: StateStyle) -> StateStyle:
    return latest if night.state == RunState.RUNNING else RUN_STYLES[night.state]


def _pace_of(night: NightSummary, nights: Sequence[NightSummary]) -> Pace | None:
    """The pace of a night that ended well; None: another one, or nothing to compare it with."""
    others = sorted(one.lasts_us for one in nights if one.lasts_us is not None and one is not night)
    return pace_of(night.lasts_us, others) if night.lasts_us is not None and night.state == RunState.SUCCESS else None


def _day_text(day: str) -> str:
    """``Sat 28 Nov`` of ``2026-11-28``."""
    try:
        return format(date.fromisoformat(day), "%a %d %b")
    except ValueError:  # of another version
        return one_line(day)


# --- Of a state file -------------------------------------------------------------------------------------------------


def latest_style(entry: FleetEntry) -> StateStyle:
    """The state of the latest run, which is that of an unfinished night."""
    return RUNNING if entry.run is None else run_style(entry.run, entry.runner, entry.counts)


# --- Of a schedule ---------------------------------------------------------------------------------------------------


def nights_of(row: ServedSchedule) -> Sequence[NightSummary]:
    """The last nights of a schedule; the supervisor has those that ended, and the run that goes on is tonight's."""
    if row.last_state != RunState.RUNNING or row.last_started_at is None:
        return row.nights
    tonight = NightSummary(RunState.RUNNING, None, f"{local_day(row.last_started_at):%Y-%m-%d}")
    return [*(one for one in row.nights if one.day != tonight.day), tonight][-_NIGHTS_MAX:]


def nights_of_schedule(glyphs: Glyphs) -> Column[ServedSchedule, int]:
    """The column of the list of schedules."""

    def shown(row: ServedSchedule, now_us: int) -> Callable[[int], Line]:
        return lambda size: night_signs(nights_of(row), RUNNING, glyphs)[-size:]

    return Column("nights", "LAST 14 NIGHTS", None, None, NIGHTS, shown)
