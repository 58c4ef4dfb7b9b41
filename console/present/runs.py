"""One run in one row of the list of runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...engine.core.deadline import passed_reason
from ...engine.core.outlook import ALIVE, RunnerKind, RunnerStatus
from ...engine.core.projection import RunRow
from ...engine.domain.counting import counted
from ...engine.domain.states import FINISHED, NEEDS_HUMAN, RunState, TaskState
from ..model.columns import ALL_COLUMNS
from ..model.waiting_runs import WaitingRun
from ..text.durations import clock, column, format_duration, number, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, width
from ..text.text import one_line, pad, shorten_middle
from . import counts
from .schedules import late_us
from .states import BLOCKED, IDLE, NO_EXECUTOR, PAUSED, RUN_STYLES, SERVED, StateStyle

_WORD_CELLS = 8
_BAR_CELLS, _WIDE_BAR_CELLS = 8, 24
_BAR_ENDS_CELLS = 2
_NAME_CELLS = (12, 40)
_OTHER_COLUMNS_CELLS = 56  # state, bar, progress, how long and counts
_WIDEST, _WIDE, _WORDS_FROM, _NARROW = 150, 112, 96, 64
_SIGNS_CELLS = 16
_NAMED_RUNS_MAX = 2
#: What hidden columns leave to the names.
_COLUMN_CELLS = {"bar": _BAR_CELLS + _BAR_ENDS_CELLS, "done": 9, "took": 7, "counts": 12}
_UNREMARKABLE = (TaskState.SUCCESS, TaskState.PENDING)


@dataclass(frozen=True, slots=True)
class RunListEntry:
    """A run and its counts. ``warning``: why it makes no progress, in a few words."""

    run: RunRow
    counts: counts.Counts
    warning: str = ""

    @property
    def style(self) -> StateStyle:
        """Sign, word and role; the word has room for eight cells."""
        style = run_style(self.run)
        return IDLE if self.warning and style is RUN_STYLES[RunState.RUNNING] else style


def run_style(run: RunRow, runner: RunnerStatus = ALIVE) -> StateStyle:
    """Sign, word and role of a run; only a run with an executor is "running"."""
    if run.state is not RunState.RUNNING:
        return RUN_STYLES[run.state]
    if run.blocked_since is not None:
        return BLOCKED
    if run.paused_since is not None:
        return PAUSED
    if not runner.is_alive:
        return SERVED if runner.kind is RunnerKind.SERVED else NO_EXECUTOR
    return RUN_STYLES[run.state]


def deadline_note(run: RunRow) -> str:
    """That the deadline has ended a run, to follow its state; empty if it has not."""
    passed = passed_reason(run)
    return "" if passed is None else f" ({passed})"


def absence_text(run: RunRow, runner: RunnerStatus) -> str:
    """Why an unfinished run makes no progress, in a few words; empty if an executor runs it."""
    if run.ended_at is not None or runner.is_alive:
        return ""
    is_waiting = run.blocked_since is not None and runner.kind is not RunnerKind.DEAD
    return "" if is_waiting else run_style(run, runner).word if runner.kind is RunnerKind.SERVED else NO_EXECUTOR.word


def run_name(run: RunRow, glyphs: Glyphs) -> str:
    """Flow and run."""
    return f"{one_line(run.dag_name)} {glyphs.dot} {one_line(run.run_id)}"


def place_line(run: RunRow | None, address: str) -> str:
    """Flow, run and state file: the first line of every listing and answer; without a run, the state file."""
    return one_line(address if run is None else f"{run.dag_name} {run.run_id} in {address}")


def waiting_sentence(waiting: Sequence[WaitingRun]) -> str:
    """Which other runs of the file need a human, in a few words."""
    named = ", ".join(waiting_text(one) for one in waiting[:_NAMED_RUNS_MAX])
    more = f" and {len(waiting) - _NAMED_RUNS_MAX} more" if len(waiting) > _NAMED_RUNS_MAX else ""
    return f"{len(waiting)} other run{' needs' if len(waiting) == 1 else 's need'} a human: {named}{more}"


def waiting_text(one: WaitingRun) -> str:
    """A run and why it needs a human: ``night-1 (BLOCKED, 2 dead letters)``."""
    whys = ["BLOCKED" if one.run.blocked_since is not None else "no executor" if one.is_lost else ""]
    whys += [counted(one.dead, "dead letter")] if one.dead else []
    return f"{one_line(one.run.run_id)} ({', '.join(filter(None, whys))})"


def heading_line(
    shown: int, known: int, waiting: int, filter_text: str, sort: str, glyphs: Glyphs, coming: str = ""
) -> tuple[Line, Line]:
    """Left and right side of the line above the list.

    ``waiting``: number of runs that need a human; ``coming``: the next scheduled run.
    """
    dot = Piece(f" {glyphs.dot} ", Role.DIM)
    left = [Piece(" "), Piece(counted(known, "run"), Role.STRONG)]
    if filter_text:
        left += [dot, Piece(f"/{one_line(filter_text)}: {number(shown)}", Role.MATCH)]
    left += counts.waiting_pieces(waiting, glyphs)
    if coming:
        left += [dot, Piece(coming)]
    return left, counts.order_line(sort, glyphs)


def run_row(
    view: RunListEntry,
    now_us: int,
    columns: int,
    glyphs: Glyphs,
    longest_name: int = 0,
    shown: Collection[str] = ALL_COLUMNS,
) -> Line:
    """State, name, progress, duration and counts. ``longest_name``: of all rows, in cells; ``shown``: columns."""
    run, style = view.run, view.style
    total = sum(view.counts.values())
    done = sum(view.counts.get(state, 0) for state in FINISHED)
    elapsed = clock(now_us - run.started_at) if run.ended_at is None else column(run.ended_at - run.started_at)
    if columns < _NARROW:
        return _narrow_row(view, f"{done}/{total}" if "done" in shown else "", columns, glyphs, "counts" in shown)
    low, high = _NAME_CELLS
    free = sum(cells for column, cells in _COLUMN_CELLS.items() if column not in shown)
    name_cells, room = min(longest_name or high, high), columns - _OTHER_COLUMNS_CELLS + free
    bar = _bar_cells(name_cells, room, columns) if "bar" in shown else 0
    progress = f" {f'{done}/{total}':>{9 if columns >= _WORDS_FROM else 7}}" if "done" in shown else ""
    fixed: Line = [
        *(counts.bar(view.counts, glyphs, bar) if bar else ()),
        Piece(f"{progress}{f'  {elapsed}' if 'took' in shown else ''}  "),
        *(_counted(view.counts, columns, glyphs) if "counts" in shown else ()),
        *(_notes(view, now_us, columns) if "notes" in shown else ()),
    ]
    cells = max(min(room if bar else room + _BAR_CELLS + _BAR_ENDS_CELLS, name_cells), low)
    name = shorten_middle(run_name(run, glyphs), cells, glyphs.more)
    line = [
        Piece(" "),
        Piece(f"{glyphs.of(style.glyph)} {style.word}", style.role),
        Piece(" " * (_WORD_CELLS - len(style.word) + 1)),
        Piece(f"{pad(name, cells)} "),
        *fixed,
    ]
    if columns < _WIDE or "started" not in shown:
        return line
    return [*fit(line, columns - 16, glyphs.more), Piece(f" {wall_day(run.started_at, None)}", Role.DIM)]


def _notes(view: RunListEntry, now_us: int, columns: int) -> Line:
    """How late the run is, and why it makes no progress."""
    late = late_us(view.run, now_us)
    notes = [f"late {format_duration(late)}" if late else "", view.warning]
    gap = Piece("  " if columns >= _WORDS_FROM else "")
    return [piece for note in notes if note for piece in (gap, Piece(note, Role.WARNING))]


def _bar_cells(name_cells: int, room: int, columns: int) -> int:
    """Width of the bar; 0 if names need its room, because runs of one flow must stay distinguishable."""
    if columns >= _WIDEST:
        return _WIDE_BAR_CELLS
    return _BAR_CELLS if name_cells <= room else 0


def _narrow_row(view: RunListEntry, progress: str, columns: int, glyphs: Glyphs, has_counts: bool) -> Line:
    """A row without bar, for narrow screens."""
    style = view.style
    signs = counts.counts_signs(_problems(view.counts), glyphs, 10) if has_counts else []
    right: Line = [Piece(f" {progress} "), *signs]
    room = columns - _WORD_CELLS - 4 - width(right)
    return [
        Piece(" "),
        Piece(f"{glyphs.of(style.glyph)} {style.word}", style.role),
        Piece(" " * (_WORD_CELLS - len(style.word) + 1)),
        Piece(pad(shorten_middle(run_name(view.run, glyphs), room, glyphs.more), room)),
        *right,
    ]


def _counted(found: counts.Counts, columns: int, glyphs: Glyphs) -> Line:
    """Counts of states that are neither done nor pending; as signs where words have no room."""
    if columns >= _WORDS_FROM:
        return counts.counts_line(found, glyphs, without=_UNREMARKABLE)
    noted = {state: count for state, count in found.items() if state not in _UNREMARKABLE}
    return counts.counts_signs(noted, glyphs, _SIGNS_CELLS)


def _problems(found: counts.Counts) -> counts.Counts:
    return {state: count for state, count in found.items() if state in NEEDS_HUMAN}
