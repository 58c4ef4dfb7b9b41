"""A task's attempts as bars on a time axis, and the label left of them."""

from __future__ import annotations

from collections.abc import Iterator

from ....engine.core.outlook import ALIVE, RunnerStatus
from ....engine.core.projection import AttemptRow, TaskRow
from ....engine.domain.states import TIMED, TaskState
from ...model.time_span import Span
from ...text.durations import CLOCK_CELLS, SECOND, clock, column, format_duration
from ...text.glyphs import Glyph, Glyphs
from ...text.pieces import Line, Piece, Role
from ...text.text import one_line, pad, shorten_middle
from ..states import STATE_STYLES, state_sign
from ..task_names import TaskNames
from ..tasks import duration_of
from .cells import BarCells, CellRank, end_of_past

FOLD_CELLS = 3  # the sign that opens a group, with its margins
FOLD_INDENT = 2  # members of a group stand to the right of its sign
_LABEL_COLUMNS_MAX = 40
TOOK_CELLS = CLOCK_CELLS + 1  # how long the attempts ran, with a gap
_MARKS_ROOM = 2  # cells that deadline, SIGTERM and SIGKILL need beside each other


# --- Bars ----------------------------------------------------------------------------------------------------------


def bar_line(row: TaskRow, axis: Span, now_us: int | None, glyphs: Glyphs, runner: RunnerStatus = ALIVE) -> Line:
    """The past of a task as bars, and its future if an executor lives. ``now_us``: None if the run is over."""
    canvas, until = BarCells(axis, now_us, glyphs), end_of_past(axis, now_us, runner)
    resumes, generation = until if row.state in TIMED else None, row.generation
    for attempt in _attempts_in(row, axis):
        end = attempt.ended_at if attempt.ended_at is not None else until
        if resumes is not None and attempt.ended_at is not None and attempt.generation == generation:
            canvas.fill(axis.cell(end), axis.cell(resumes), glyphs.backoff, Role.WAITING, CellRank.GAP)
        _paint_attempt(canvas, row, attempt, end, now_us if runner.is_alive else None, glyphs)
        resumes, generation = attempt.started_at, attempt.generation
    _paint_decision(canvas, row, glyphs)
    if now_us is not None and runner.is_alive:
        _paint_ahead(canvas, row, now_us, glyphs)
    return canvas.line()


def _attempts_in(row: TaskRow, axis: Span) -> Iterator[AttemptRow]:
    """The visible attempts and the one before them, the latest first."""
    for attempt in reversed(row.attempts.values()):
        yield attempt
        if attempt.ended_at is not None and attempt.ended_at < axis.start:
            return


#: outcome -> role of the bar; the others are dim
_BAR_ROLES = {"running": Role.RUNNING, "success": Role.DONE}

#: outcome -> (glyph, role) of the mark at its end; the others have none
_ENDS = {
    "error": (Glyph.RUN_FAIL, Role.FAILED),
    "timed_out": (Glyph.RUN_FAIL, Role.FAILED),
    "lost": (Glyph.LOST, Role.WAITING),
    "cancelled": (Glyph.CANCELLED, Role.SKIPPED),
    "skipped": (Glyph.SKIPPED, Role.SKIPPED),
    "deferred": (Glyph.SENSING, Role.WAITING),
}


def _paint_attempt(
    canvas: BarCells, row: TaskRow, attempt: AttemptRow, end: int, now_us: int | None, glyphs: Glyphs
) -> None:
    axis, first, last = canvas.axis, canvas.axis.cell(attempt.started_at), canvas.axis.cell(end)
    role = _BAR_ROLES.get(attempt.outcome, Role.DIM)
    canvas.fill(first, last, glyphs.run, role, CellRank.BAR)
    if attempt.sigterm_at is not None or attempt.sigkill_at is not None:
        _paint_kill_steps(canvas, attempt, last, glyphs)
    elif attempt.ended_at is not None and attempt.outcome in _ENDS:
        (glyph, end_role), rank = _ENDS[attempt.outcome], CellRank.MARK
        if attempt.attempt == row.attempt and row.state is TaskState.DEAD_LETTER:
            glyph, end_role, rank = Glyph.DEAD, Role.HUMAN, CellRank.DECISION
        canvas.put(last, glyphs.of(glyph), end_role, rank)
    if attempt.ended_at is None and now_us is not None:
        canvas.put(axis.cell(now_us), glyphs.running, Role.RUNNING, CellRank.HEAD)
        canvas.write(axis.cell(now_us) + 2, _progress(row), Role.DIM)


def _paint_kill_steps(canvas: BarCells, attempt: AttemptRow, last: int, glyphs: Glyphs) -> None:
    """Deadline, SIGTERM, grace, SIGKILL: side by side if there is room, else only the last of them."""
    axis = canvas.axis
    instants = (
        (attempt.deadline_at, glyphs.deadline, Role.WARNING),
        (attempt.sigterm_at, glyphs.sigterm, Role.WARNING),
        (attempt.sigkill_at, glyphs.sigkill, Role.FAILED),
    )
    marks = [(axis.cell(at), character, role) for at, character, role in instants if at is not None]
    if last - marks[0][0] < _MARKS_ROOM and attempt.ended_at is not None:
        marks = [(last, *marks[-1][1:])]
    before: int | None = None
    for cell, character, role in marks:
        cell = cell if before is None else max(cell, before + 1)
        if before is not None and character == glyphs.sigkill:
            canvas.fill(before + 1, cell - 1, glyphs.grace, Role.DIM, CellRank.MARK)
        canvas.put(cell, character, role, CellRank.MARK)
        before = cell
    if attempt.sigkill_at is None and before is not None:
        canvas.fill(before + 1, last, glyphs.grace, Role.DIM, CellRank.BAR)


def _paint_decision(canvas: BarCells, row: TaskRow, glyphs: Glyphs) -> None:
    """The end of a task by an operator's skip or cancel."""
    if row.state in (TaskState.SKIPPED, TaskState.CANCELLED) and row.ended_at is not None:
        canvas.put(
            canvas.axis.cell(row.ended_at),
            state_sign(row.state, glyphs),
            STATE_STYLES[row.state].role,
            CellRank.DECISION,
        )


def _progress(row: TaskRow) -> str:
    """The progress that a running task reports, as ``63%``; empty if it reports none."""
    done, total = row.progress_done, row.progress_total
    return f"{100 * done // total}%" if done is not None and total else ""


def _paint_ahead(canvas: BarCells, row: TaskRow, now_us: int, glyphs: Glyphs) -> None:
    """To the right of now: when the task continues, or its deadline."""
    axis, attempt = canvas.axis, row.attempts.get(row.attempt)
    now_cell = axis.cell(now_us)
    if row.state is TaskState.RUNNING and attempt is not None and attempt.timeout_us:
        deadline = axis.cell(attempt.started_at + attempt.timeout_us)
        if deadline > now_cell:
            canvas.put(deadline, glyphs.deadline, Role.DIM, CellRank.AHEAD)
        return
    place = due_cell(row, axis, now_us, glyphs)
    if place is not None:
        canvas.fill(now_cell + 1, place - 1, glyphs.backoff, Role.WAITING, CellRank.GAP)
        assert row.next_retry_at is not None
        canvas.write(place, due_text(row.next_retry_at, now_us, glyphs), Role.WAITING)


def due_cell(row: TaskRow, axis: Span, now_us: int, glyphs: Glyphs) -> int | None:
    """The cell of the countdown of a waiting task; None if there is none in view."""
    waits = row.state in TIMED or (row.state is TaskState.PENDING and row.next_retry_at is not None)
    now_cell = axis.cell(now_us)
    if not waits or row.next_retry_at is None or not 0 <= now_cell < axis.cells:
        return None
    room = axis.cells - len(due_text(row.next_retry_at, now_us, glyphs))
    return max(min(axis.cell(row.next_retry_at), room), now_cell + 1)


def due_text(due_at: int, now_us: int, glyphs: Glyphs) -> str:
    """The countdown, at most as wide as the space to the right of now."""
    left = due_at - now_us
    when = clock(left + SECOND - 1).strip() if left > 0 else f"due {format_duration(-left // SECOND * SECOND)}"
    return f"{glyphs.due} {when}"


# --- Labels --------------------------------------------------------------------------------------------------------


def label_line(
    row: TaskRow,
    columns: int,
    glyphs: Glyphs,
    role: Role = Role.TEXT,
    names: TaskNames | None = None,
    indent: int = 0,
    took: str = "",
) -> Line:
    """The sign of a task's state and its name, padded, and ``took``; together ``columns`` wide."""
    style, room = STATE_STYLES[row.state], columns - indent - 3 - len(took)
    name = names.short(row.name, room, glyphs.more) if names else shorten_middle(one_line(row.name), room, glyphs.more)
    lead = [Piece(" " * (indent + 1)), Piece(glyphs.of(style.glyph), style.role), Piece(f" {pad(name, room)}", role)]
    return [*lead, Piece(took, Role.DIM)] if took else lead


def duration_text(row: TaskRow, now_us: int) -> str:
    """How long the attempts of a task ran together, until now if one still runs; blank before the first."""
    if not row.attempts:
        return " " * TOOK_CELLS
    spent = sum(duration_of(attempt, now_us) for attempt in row.attempts.values())
    return f" {clock(spent) if row.state is TaskState.RUNNING else column(spent)}"


def fit_label_columns(name_cells: int, columns: int) -> int:
    """Width of the labels left of the bars: enough for names of so many cells, at most a third of the screen."""
    return max(min(name_cells + 4, columns // 3, _LABEL_COLUMNS_MAX), 12)
