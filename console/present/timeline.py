"""A task's attempts as bars on a time axis, and the same as sentences.

Several things may fall into one cell: the higher ``_Rank`` wins, so that the bar of the next attempt never covers a
failure, at any zoom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from itertools import groupby
from typing import Protocol

from ...engine.core.outlook import ALIVE, RunnerStatus
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.domain.states import FAILED_OUTCOMES, TIMED, TaskState
from ..model.board import Board
from ..text.durations import MINUTE, SECOND, clock, format_duration, wall, wall_day
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Line, Piece, Role, fit
from ..text.text import cells, one_line, pad, shorten_middle
from ..text.wrapping import wrap
from .states import STATE_STYLES, state_sign
from .tasks import Scene, attempts_text, duration_of, hang_of, state_facts

#: Round distances between labels of the axis.
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080)
_TICKS = (*(round(seconds * SECOND) for seconds in _SECONDS), *(minutes * MINUTE for minutes in _MINUTES))
_LABEL_GAP = 5
_TEXT_INDENT = 7
_MARKS_ROOM = 2  # cells that deadline, SIGTERM and SIGKILL need beside each other


class Axis(Protocol):
    """The visible time span: ``cells`` cells of ``per_cell`` microseconds each, from ``start`` on."""

    @property
    def start(self) -> int:
        """Microseconds UTC."""

    @property
    def per_cell(self) -> int:
        """Microseconds."""

    @property
    def cells(self) -> int:
        """Number of visible cells."""

    @property
    def end(self) -> int:
        """The instant behind the last cell, microseconds UTC."""

    @property
    def shortened(self) -> Sequence[tuple[int, int]]:
        """Pauses that take fewer cells than their length: start and end of each, in order."""

    def cell(self, at: int) -> int:
        """The cell of an instant; outside of 0 to ``cells`` if it is not visible."""


# --- The axis ------------------------------------------------------------------------------------------------------


def axis_line(axis: Axis, now_us: int | None, glyphs: Glyphs) -> Line:
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


def _linear_parts(axis: Axis) -> Iterator[tuple[int, int]]:
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


# --- Bars ----------------------------------------------------------------------------------------------------------


class _Rank(IntEnum):
    """Which content wins a cell: the highest rank."""

    NOTHING = 0
    NOW = 1
    GAP = 2
    BAR = 3
    AHEAD = 4  # a future deadline
    MARK = 5
    DECISION = 6  # the mark of the task's state: it covers marks of its attempts
    HEAD = 7
    WORDS = 8


class _Canvas:
    """One row of cells."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self._cells: list[tuple[_Rank, str, Role]] = [(_Rank.NOTHING, " ", Role.TEXT)] * axis.cells

    def put(self, cell: int, character: str, role: Role, rank: _Rank) -> None:
        """Set one cell if it is visible and has no content of a higher rank."""
        if 0 <= cell < len(self._cells) and self._cells[cell][0] <= rank:
            self._cells[cell] = (rank, character, role)

    def fill(self, first: int, last: int, character: str, role: Role, rank: _Rank) -> None:
        """Set the cells from ``first`` to ``last``, both included."""
        for cell in range(max(first, 0), min(last + 1, len(self._cells))):
            self.put(cell, character, role, rank)

    def write(self, cell: int, text: str, role: Role) -> None:
        """Write a text from ``cell`` on."""
        for place, character in enumerate(text):
            self.put(cell + place, character, role, _Rank.WORDS)

    def line(self) -> Line:
        """The cells, grouped into pieces."""
        return [
            Piece("".join(character for _, character, _ in group), role)
            for role, group in groupby(self._cells, key=lambda cell: cell[2])
        ]


def bar_line(row: TaskRow, axis: Axis, now_us: int | None, glyphs: Glyphs, runner: RunnerStatus = ALIVE) -> Line:
    """The past of a task as bars, and its future if an executor lives. ``now_us``: None if the run is over."""
    canvas = _Canvas(axis)
    if now_us is not None:
        canvas.put(axis.cell(now_us), glyphs.now, Role.NOW, _Rank.NOW)
    until = now_us if now_us is not None else axis.end
    if runner.gone_at is not None:
        until = min(until, runner.gone_at)
    resumes, generation = until if row.state in TIMED else None, row.generation
    for attempt in _attempts_in(row, axis):
        end = attempt.ended_at if attempt.ended_at is not None else until
        if resumes is not None and attempt.ended_at is not None and attempt.generation == generation:
            canvas.fill(axis.cell(end), axis.cell(resumes), glyphs.backoff, Role.WAITING, _Rank.GAP)
        _paint_attempt(canvas, row, attempt, end, now_us if runner.is_alive else None, glyphs)
        resumes, generation = attempt.started_at, attempt.generation
    _paint_decision(canvas, row, glyphs)
    if now_us is not None and runner.is_alive:
        _paint_ahead(canvas, row, now_us, glyphs)
    return canvas.line()


def _attempts_in(row: TaskRow, axis: Axis) -> Iterator[AttemptRow]:
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
    canvas: _Canvas, row: TaskRow, attempt: AttemptRow, end: int, now_us: int | None, glyphs: Glyphs
) -> None:
    axis, first, last = canvas.axis, canvas.axis.cell(attempt.started_at), canvas.axis.cell(end)
    role = _BAR_ROLES.get(attempt.outcome, Role.DIM)
    canvas.fill(first, last, glyphs.run, role, _Rank.BAR)
    if attempt.sigterm_at is not None or attempt.sigkill_at is not None:
        _paint_kill_steps(canvas, attempt, last, glyphs)
    elif attempt.ended_at is not None and attempt.outcome in _ENDS:
        (glyph, end_role), rank = _ENDS[attempt.outcome], _Rank.MARK
        if attempt.attempt == row.attempt and row.state is TaskState.DEAD_LETTER:
            glyph, end_role, rank = Glyph.DEAD, Role.HUMAN, _Rank.DECISION
        canvas.put(last, glyphs.of(glyph), end_role, rank)
    if attempt.ended_at is None and now_us is not None:
        canvas.put(axis.cell(now_us), glyphs.running, Role.RUNNING, _Rank.HEAD)
        canvas.write(axis.cell(now_us) + 2, _progress(row), Role.DIM)


def _paint_kill_steps(canvas: _Canvas, attempt: AttemptRow, last: int, glyphs: Glyphs) -> None:
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
            canvas.fill(before + 1, cell - 1, glyphs.grace, Role.DIM, _Rank.MARK)
        canvas.put(cell, character, role, _Rank.MARK)
        before = cell
    if attempt.sigkill_at is None and before is not None:
        canvas.fill(before + 1, last, glyphs.grace, Role.DIM, _Rank.BAR)


def _paint_decision(canvas: _Canvas, row: TaskRow, glyphs: Glyphs) -> None:
    """The end of a task by an operator's skip or cancel."""
    if row.state in (TaskState.SKIPPED, TaskState.CANCELLED) and row.ended_at is not None:
        canvas.put(
            canvas.axis.cell(row.ended_at), state_sign(row.state, glyphs), STATE_STYLES[row.state].role, _Rank.DECISION
        )


def _progress(row: TaskRow) -> str:
    """The progress that a running task reports, as ``63%``; empty if it reports none."""
    done, total = row.progress_done, row.progress_total
    return f"{100 * done // total}%" if done is not None and total else ""


def _paint_ahead(canvas: _Canvas, row: TaskRow, now_us: int, glyphs: Glyphs) -> None:
    """To the right of now: when the task continues, or its deadline."""
    axis, attempt = canvas.axis, row.attempts.get(row.attempt)
    now_cell = axis.cell(now_us)
    if row.state is TaskState.RUNNING and attempt is not None and attempt.timeout_us:
        deadline = axis.cell(attempt.started_at + attempt.timeout_us)
        if deadline > now_cell:
            canvas.put(deadline, glyphs.deadline, Role.DIM, _Rank.AHEAD)
        return
    place = due_cell(row, axis, now_us, glyphs)
    if place is not None:
        canvas.fill(now_cell + 1, place - 1, glyphs.backoff, Role.WAITING, _Rank.GAP)
        canvas.write(place, _due_text(row, now_us, glyphs), Role.WAITING)


def due_cell(row: TaskRow, axis: Axis, now_us: int, glyphs: Glyphs) -> int | None:
    """The cell of the countdown of a waiting task; None if there is none in view."""
    waits = row.state in TIMED or (row.state is TaskState.PENDING and row.next_retry_at is not None)
    now_cell = axis.cell(now_us)
    if not waits or row.next_retry_at is None or not 0 <= now_cell < axis.cells:
        return None
    room = axis.cells - len(_due_text(row, now_us, glyphs))
    return max(min(axis.cell(row.next_retry_at), room), now_cell + 1)


def _due_text(row: TaskRow, now_us: int, glyphs: Glyphs) -> str:
    """The countdown, at most as wide as the space to the right of now."""
    assert row.next_retry_at is not None
    left = row.next_retry_at - now_us
    when = clock(left + SECOND - 1).strip() if left > 0 else f"due {format_duration(-left // SECOND * SECOND)}"
    return f"{glyphs.due} {when}"


# --- Labels --------------------------------------------------------------------------------------------------------


def label_line(row: TaskRow, columns: int, glyphs: Glyphs, role: Role = Role.TEXT) -> Line:
    """The sign of a task's state and its name, padded to ``columns``."""
    style = STATE_STYLES[row.state]
    name = shorten_middle(one_line(row.name), columns - 3, glyphs.more)
    return [Piece(" "), Piece(glyphs.of(style.glyph), style.role), Piece(f" {pad(name, columns - 3)}", role)]


def label_columns(names: Sequence[str], columns: int) -> int:
    """Width of the labels left of the bars: enough for the names, at most a third of the screen."""
    wanted = max((cells(one_line(name)) for name in names), default=0) + 4
    return max(min(wanted, columns // 3, 40), 12)


# --- Words ---------------------------------------------------------------------------------------------------------


def task_lines(row: TaskRow, scene: Scene, columns: int, rows: int) -> list[Line]:
    """The selected task in sentences: its state, then its attempts, the latest first."""
    head = [Piece(" "), Piece(one_line(row.name), Role.TITLE), Piece("  ")]
    head.append(Piece(f"{state_sign(row.state, scene.glyphs)} ", STATE_STYLES[row.state].role))
    tried = attempts_text(row)
    head += [*state_facts(row, scene), Piece(f"   {tried}" if tried else "", Role.DIM)]
    lines = [fit(head, columns, scene.glyphs.more)]
    for attempt in list(reversed(row.attempts.values()))[: rows - 1]:
        number = Piece(pad(f"   #{attempt.attempt}", _TEXT_INDENT), Role.DIM)
        said = Piece(one_line(describe_attempt(attempt, scene.now_us, scene.runner)))
        lines += wrap([number, said], columns - 1, _TEXT_INDENT)
    return [fit(line, columns, scene.glyphs.more) for line in lines[:rows]]


def describe_attempt(attempt: AttemptRow, now_us: int, runner: RunnerStatus = ALIVE) -> str:
    """One attempt as a sentence."""
    duration = format_duration(duration_of(attempt, now_us))
    start = f"{wall(attempt.started_at, None)}, "
    if attempt.deadline_at is not None or attempt.sigterm_at is not None:
        return start + "; ".join(_describe_kill(attempt))
    if attempt.ended_at is None and not runner.is_alive:
        return f"{start}cut off with its executor"
    if attempt.ended_at is None:
        limit = f" of {format_duration(attempt.timeout_us)}" if attempt.timeout_us else ""
        return f"{start}runs for {duration}{limit}"
    why = attempt.explain or attempt.error or ""
    said = _OUTCOME_WORDS.get(attempt.outcome, attempt.outcome)
    text = f"{start}{said} after {duration}" + (f": {why}" if why else "")
    if attempt.delay_us is not None:
        ceiling = f" of up to {format_duration(attempt.ceiling_us)}" if attempt.ceiling_us else ""
        shortened = (
            f", shortened from {format_duration(attempt.shortened_us)} for the deadline" if attempt.shortened_us else ""
        )
        text += f"; then waited {format_duration(attempt.delay_us)}{ceiling}{shortened}"
    return text


_OUTCOME_WORDS: Mapping[str, str] = {
    "success": "succeeded",
    "error": "failed",
    "timed_out": "timed out",
    "lost": "lost with its executor",
    "cancelled": "stopped",
    "deferred": "checked, not ready,",
    "skipped": "skipped itself",
}


def legend_line(glyphs: Glyphs) -> Line:
    """What the signs of the bars mean."""
    signs = (
        (glyphs.run, Role.DONE, "ran"),
        (glyphs.backoff, Role.WAITING, "waits"),
        (glyphs.deadline, Role.WARNING, "timeout"),
        (glyphs.sigterm, Role.WARNING, "SIGTERM"),
        (glyphs.sigkill, Role.FAILED, "SIGKILL"),
        (glyphs.run_fail, Role.FAILED, "failed"),
        (glyphs.dead, Role.HUMAN, "dead letter"),
        (glyphs.lost, Role.WAITING, "lost"),
    )
    return [piece for sign, role, word in signs for piece in (Piece(f" {sign}", role), Piece(f" {word} ", Role.DIM))]


def describe_path(board: Board, path: Sequence[str], now_us: int) -> str:
    """One sentence about the critical path: its time, its longest task, and what its failures cost."""
    rows = [board.row(name) for name in path]
    if not rows:
        return "no task has run yet"
    times = {row.name: sum(duration_of(attempt, now_us) for attempt in row.attempts.values()) for row in rows}
    longest = max(times, key=lambda name: times[name])
    words = f"{len(rows)} tasks decide the end: {format_duration(sum(times.values()))} of work"
    if times[longest]:
        words += f", the longest {one_line(longest)} {format_duration(times[longest])}"
    lost = sum(duration_of(a, now_us) for row in rows for a in row.attempts.values() if a.outcome in FAILED_OUTCOMES)
    return f"{words}; failed attempts cost {format_duration(lost)}" if lost else words


def _describe_kill(attempt: AttemptRow) -> Iterator[str]:
    """``deadline 3s passed at 02:29:27; SIGTERM; ignored for 2s; SIGKILL at 02:29:29; it was in demo.py:41``."""
    if attempt.deadline_at is not None:
        timeout = f"{format_duration(attempt.timeout_us)} " if attempt.timeout_us else ""
        yield f"deadline {timeout}passed at {wall(attempt.deadline_at, None)}"
    if attempt.sigterm_at is not None:
        yield "SIGTERM" if attempt.deadline_at is not None else f"SIGTERM at {wall(attempt.sigterm_at, None)}"
    if attempt.sigkill_at is not None:
        if attempt.sigterm_at is not None:
            yield f"ignored for {format_duration(attempt.sigkill_at - attempt.sigterm_at)}"
        yield f"SIGKILL at {wall(attempt.sigkill_at, None)}"
    elif attempt.sigterm_at is not None and attempt.ended_at is not None:
        after = attempt.ended_at - attempt.sigterm_at
        yield f"gone after {format_duration(after)}" if after >= SECOND // 20 else "gone at once"
    if hang := hang_of(attempt):
        yield hang
    elif attempt.where:
        yield f"it was in {attempt.where}"
