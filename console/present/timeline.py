"""The timeline in cells: the axis, the bars of tasks and groups, and the breakers of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache
from itertools import groupby, zip_longest
from typing import NamedTuple

from ...engine.core import views
from ...engine.core.breaker import SHUT
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.waiting import ALIVE, RunnerStatus, WaitReason
from ...engine.domain.states import FAILED_OUTCOMES, TIMED, TaskState
from ...engine.domain.text import format_duration
from ..model.graph.groups import GraphGroup
from ..model.group_activity import CellActivity, GroupActivity
from ..model.time_axis import Span
from ..model.timeline import BreakerPeriods, killed_attempts
from ..text.figures import CLOCK_CELLS, MINUTE, SECOND, clock, column, number, wall, wall_day
from ..text.glyphs import LEFT, RIGHT, UP, Glyphs
from ..text.pieces import Line, Piece, Role, fit, width
from ..text.text import cells, one_line, pad, shorten, shorten_middle
from . import states, tasks
from .states import row_sign, state_sign
from .tasks import RunContext

# --- Several things may fall into one cell ---------------------------------------------------------------------------
#
# The higher ``CellRank`` wins, so that the bar of the next attempt never covers a failure, at any zoom.


class CellRank(IntEnum):
    """The rank of a cell's content: the highest one wins."""

    NOTHING = 0
    NOW = 1
    GAP = 2
    BAR = 3
    AHEAD = 4  # a future deadline
    MARK = 5
    DECISION = 6  # the mark of the task's state: it covers marks of its attempts
    HEAD = 7
    WORDS = 8


class BarContext(NamedTuple):
    """The context of all bars of a picture. ``now_us``: None if the run is over."""

    axis: Span
    now_us: int | None
    glyphs: Glyphs
    runner: RunnerStatus = ALIVE

    @property
    def end_of_past(self) -> int:
        """Until when anything ran: now, the end of the axis if the run is over, or when the executor ended."""
        until = self.now_us if self.now_us is not None else self.axis.end
        return views.end_of_work(until, self.runner, until)


class BarCells:
    """A row of cells, with the line of the present."""

    def __init__(self, context: BarContext) -> None:
        axis, now_us, glyphs, _ = context
        self.axis, self.glyphs = axis, glyphs
        self._cells: list[tuple[CellRank, str, str]] = [(CellRank.NOTHING, " ", Role.TEXT)] * axis.cells
        if now_us is not None:
            self.put(axis.cell(now_us), glyphs.now, Role.NOW, CellRank.NOW)

    def put(self, cell: int, character: str, role: str, rank: CellRank) -> None:
        """Set one cell if it is visible and has no content of a higher rank."""
        if 0 <= cell < len(self._cells) and self._cells[cell][0] <= rank:
            self._cells[cell] = (rank, character, role)

    def fill(self, first: int, last: int, character: str, role: Role, rank: CellRank) -> None:
        """Set the cells from ``first`` to ``last``, both included."""
        for cell in range(max(first, 0), min(last + 1, len(self._cells))):
            self.put(cell, character, role, rank)

    def write(self, cell: int, text: str, role: Role) -> None:
        """Write a text from ``cell`` on."""
        for place, character in enumerate(text):
            self.put(cell + place, character, role, CellRank.WORDS)

    def is_free(self, first: int, last: int) -> bool:
        """Whether the cells from ``first`` to before ``last`` are empty."""
        return all(found[0] <= CellRank.NOW for found in self._cells[first:last])

    def write_before(self, name: str) -> None:
        """Write a name before the first bar, if that begins far from the label of its row."""
        first = next((cell for cell, found in enumerate(self._cells) if found[0] > CellRank.NOW), 0)
        if first >= NAME_AT_BAR_CELLS + _FAR_CELLS:
            self.write(first - 1 - cells(name), name, Role.DIM)

    def line(self) -> Line:
        """The cells, grouped into pieces."""
        return [
            Piece("".join(character for _, character, _ in group), role)
            for role, group in groupby(self._cells, key=lambda cell: cell[2])
        ]


# --- The time axis: clock times at round instants, shortened pauses, and now -----------------------------------------


#: Round distances between labels of the axis.
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080)
_TICKS = (*(round(seconds * SECOND) for seconds in _SECONDS), *(minutes * MINUTE for minutes in _MINUTES))
_LABEL_GAP = 5


def axis_line(axis: Span, now_us: int | None, glyphs: Glyphs) -> Line:
    """Clock times at round instants, each starting at its cell, and a mark for now."""
    step = next((tick for tick in _TICKS if tick // axis.per_cell >= len(_label(0, tick)) + _LABEL_GAP), _TICKS[-1])
    now_cell = axis.cell(now_us) if now_us is not None else -1
    text = [" "] * axis.cells
    for start, end in _linear_parts(axis):
        for at in range(start + (-(start + _offset_us(start))) % step, end, step):
            label, cell = _label(at, step), axis.cell(at)
            clear = not cell - _LABEL_GAP < now_cell < cell + len(label) + 3
            if cell + len(label) <= min(axis.cell(end), axis.cells) and clear:
                text[cell : cell + len(label)] = label
    place = max(min(now_cell, axis.cells - 3), 0)
    for start, end, _ in axis.shortened:
        last = min(axis.cell(end), place) if axis.cell(end) == now_cell else axis.cell(end)
        _write_pause(text, axis.cell(start), last, format_duration(end - start), glyphs.elided)
    whole = "".join(text)
    if not 0 <= now_cell < axis.cells:
        return [Piece(whole, Role.DIM)]
    before, after = Piece(whole[:place], Role.DIM), Piece(whole[place + 3 :], Role.DIM)
    return [before, Piece("now"[: axis.cells], Role.NOW), after]


def _linear_parts(axis: Span) -> Iterator[tuple[int, int]]:
    """The visible parts between shortened pauses."""
    start = axis.start
    for pause_start, pause_end, _ in axis.shortened:
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


def _label(at: int, tick: int) -> str:
    text = wall(at)
    if tick < SECOND:
        return f"{text}.{at % SECOND * 10 // SECOND}"
    if tick < MINUTE:
        return text
    return wall_day(at)[:5] if text == "00:00:00" else text[:5]


# --- A task's attempts as bars on a time axis, and the label left of them --------------------------------------------


FOLD_CELLS = 3  # the sign that opens a group, with its margins
FOLD_INDENT = 2  # members of a group stand to the right of its sign
_LABEL_COLUMNS_MAX = 40
TOOK_CELLS = CLOCK_CELLS + 1  # how long the latest attempt ran, with a gap
NAME_AT_BAR_CELLS = 24
_FAR_CELLS = 12  # from the label to such a name
_MARKS_ROOM = 2  # cells that deadline, SIGTERM and SIGKILL need beside each other


# --- Bars ----------------------------------------------------------------------------------------------------------


def bar_line(row: TaskRow, context: BarContext, due_at: int | None = None, name: str = "", wait: str = "") -> Line:
    """The past of a task as bars, and its future if an executor lives.

    ``due_at``: when the next step of a waiting task is taken, if anybody takes it; ``name``: stands before bars that
    begin far from the label of the row; ``wait``: as ``wait_words``.
    """
    axis, now_us, glyphs, runner = context
    canvas, until = BarCells(context), context.end_of_past
    resumes, generation = until if row.state in TIMED else None, row.generation
    for attempt in _attempts_in(row, axis):
        view = views.attempt_view(attempt, until, runner, row)
        is_kept = attempt.ended_at is None and runner.keeps_end_of(row)
        unended = attempt.started_at + view.clock if is_kept else views.end_of_work(until, runner, row.changed_at)
        end = attempt.ended_at if attempt.ended_at is not None else unended
        if resumes is not None and attempt.ended_at is not None and attempt.generation == generation:
            canvas.fill(axis.cell(end), axis.cell(resumes), glyphs.backoff, Role.WAITING, CellRank.GAP)
        _paint_attempt(canvas, row, attempt, view.style, end)
        if view.is_moving and now_us is not None:
            _paint_head(canvas, row, now_us)
        resumes, generation = attempt.started_at, attempt.generation
    _paint_decision(canvas, row)
    if now_us is not None and wait:
        _paint_wait(canvas, row, now_us, wait)
    if now_us is not None and runner.is_alive:
        _paint_ahead(canvas, row, due_at, now_us)
    if row.attempts:
        canvas.write_before(name)
    return canvas.line()


def wait_words(row: TaskRow, view: views.TaskView) -> str:
    """The wait of a task that has begun and has no end by itself; else empty."""
    if row.state is TaskState.DEAD_LETTER or view.reason is WaitReason.APPROVAL:
        return "waits for you" if row.state is TaskState.DEAD_LETTER else "waits for your yes or no"
    return one_line(view.fact) if row.state is TaskState.READY and view.instant is None else ""


def _paint_wait(canvas: BarCells, row: TaskRow, now_us: int, words: str) -> None:
    """Paint the wait of a task up to now, with the words in it, or before it where they have no room and it is free."""
    attempt, end = row.latest, canvas.axis.cell(now_us)
    is_dead = row.state is TaskState.DEAD_LETTER and attempt is not None and attempt.ended_at is not None
    first = canvas.axis.cell(attempt.ended_at if is_dead and attempt and attempt.ended_at else row.changed_at) + is_dead
    canvas.fill(first, end - 1, canvas.glyphs.backoff, Role.WAITING, CellRank.GAP)
    room = cells(words) + 2
    place = max(first, 0) + 1 if end - max(first, 0) > room + 1 else end - room
    if place > 0 and canvas.is_free(place, min(first, place + room)):
        canvas.write(place, f" {words} ", Role.WAITING)


def hang_line(row: TaskRow, context: BarContext, cpu: Sequence[int] = ()) -> Line:
    """Below the bars of killed attempts: the CPU of each as a line, where it hung, and what it did not obey.

    ``cpu``: of the latest, in each second before its timeout, from 0 to 9; before them, and without them, the line is
    the mean.
    """
    canvas, axis, killed = BarCells(context), context.axis, killed_attempts(row)
    for attempt, later in zip_longest(killed, killed[1:]):
        if attempt.ended_at is not None:
            end = axis.cells if later is None else axis.cell(later.started_at) - 1  # a blank before the next one
            _paint_hang(canvas, attempt, axis.cell(attempt.ended_at), end, cpu if later is None else ())
    return canvas.line()


def _paint_hang(canvas: BarCells, attempt: AttemptRow, last: int, end: int, cpu: Sequence[int]) -> None:
    """One killed attempt. ``last``: the cell in which it ended; ``end``: the cell before which its words end."""
    axis, glyphs, first = canvas.axis, canvas.glyphs, canvas.axis.cell(attempt.started_at)
    place = place_of(attempt) or "killed at its timeout"
    where = one_line(attempt.where or "")
    brief = place.rpartition(", ")[0] or place, *((f"it was in {where}", where.partition(" in ")[0]) if where else ())
    words = next((one for one in (place, *brief) if cells(one) <= end - first - 2), "")
    if not words or first < 0:
        if end == axis.cells:
            _write_up_to(canvas, min(last, end - 1), shorten(place, end - 2, glyphs.more))
        return
    _paint_cpu(canvas, attempt, first, last, cpu)
    canvas.write(first, glyphs.lines[UP | RIGHT], Role.RULE)
    canvas.put(last, glyphs.lines[UP | LEFT], Role.RULE, CellRank.BAR)
    after = first + cells(words) + 2
    canvas.write(first + 1, f" {words}{' ' * (last > after)}", Role.TEXT)
    steps, at = "; ".join(views.describe_kill(attempt)[1:]), max(last, after) + 2
    if at + cells(steps) <= end:
        canvas.write(at, steps, Role.DIM)


def _write_up_to(canvas: BarCells, last: int, words: str) -> None:
    """Words that end below the end of an attempt."""
    room = cells(words) + 2
    last = max(last, room - 1)
    canvas.write(last, canvas.glyphs.lines[UP | LEFT], Role.RULE)
    canvas.write(last + 1 - room, words, Role.TEXT)


def _paint_cpu(canvas: BarCells, attempt: AttemptRow, first: int, last: int, cpu: Sequence[int]) -> None:
    """The CPU of an attempt between its first and its last cell: the mean, and of each second that is known."""
    axis, glyphs, ended_at = canvas.axis, canvas.glyphs, attempt.ended_at or attempt.started_at
    used = (attempt.cpu_user_us or 0) + (attempt.cpu_system_us or 0)
    part = min(used / max(ended_at - attempt.started_at, 1), 1.0)
    canvas.fill(first + 1, last - 1, glyphs.spark[round(part * 7)], Role.DIM, CellRank.GAP)
    deadline = attempt.sigterm_at or ended_at
    for cell in range(max(axis.cell(deadline - len(cpu) * SECOND), first + 1), min(axis.cell(deadline), last)):
        before = (deadline - axis.instant(cell) - 1) // SECOND
        if 0 <= before < len(cpu):
            canvas.put(cell, glyphs.spark[round(cpu[-1 - before] * 7 / 9)], Role.DIM, CellRank.GAP)


def place_of(attempt: AttemptRow) -> str:
    """The place of a killed attempt, by its autopsy, else by its stack; empty if neither was taken."""
    return tasks.hang_of(attempt) or (f"it was in {one_line(attempt.where)}" if attempt.where else "")


def _attempts_in(row: TaskRow, axis: Span) -> Iterator[AttemptRow]:
    """The visible attempts and the one before them, the latest first."""
    for attempt in reversed(row.attempts.values()):
        yield attempt
        if attempt.ended_at is not None and attempt.ended_at < axis.start:
            return


#: The roles of bars by the sign of their attempt; the others are dim.
_BAR_ROLES: Mapping[views.Sign, Role] = {
    views.Sign.RUNNING: Role.RUNNING,
    views.Sign.CUT_OFF: Role.WAITING,
    views.Sign.DONE: Role.DONE,
}


def _paint_attempt(canvas: BarCells, row: TaskRow, attempt: AttemptRow, style: views.StateStyle, end: int) -> None:
    first, last, glyphs = canvas.axis.cell(attempt.started_at), canvas.axis.cell(end), canvas.glyphs
    canvas.fill(first, last, glyphs.run, _BAR_ROLES.get(views.Sign(style.sign), Role.DIM), CellRank.BAR)
    if attempt.sigterm_at is not None or attempt.sigkill_at is not None:
        _paint_kill_steps(canvas, attempt, last)
    elif attempt.attempt == row.attempt and row.state is TaskState.DEAD_LETTER:
        canvas.put(last, glyphs.dead, Role.HUMAN, CellRank.DECISION)
    elif style.sign not in (views.Sign.DONE, views.Sign.RUNNING):
        sign = views.Sign.FAILED if attempt.outcome in FAILED_OUTCOMES else style.sign
        canvas.put(last, glyphs.of(sign), style.role, CellRank.MARK)


def _paint_head(canvas: BarCells, row: TaskRow, now_us: int) -> None:
    """At now: that the attempt runs, and how far it is."""
    place = canvas.axis.cell(now_us)
    canvas.put(place, canvas.glyphs.running, Role.RUNNING, CellRank.HEAD)
    canvas.write(place + 2, _progress(row), Role.DIM)


def _paint_kill_steps(canvas: BarCells, attempt: AttemptRow, last: int) -> None:
    """Deadline, SIGTERM, grace, SIGKILL: side by side if there is room, else only the last of them."""
    axis, glyphs = canvas.axis, canvas.glyphs
    marks = [(axis.cell(at), glyphs.of(step.sign), str(step.role)) for step, at in views.kill_steps(attempt)]
    if last - marks[0][0] < _MARKS_ROOM and attempt.ended_at is not None:
        marks = [(last, *marks[-1][1:])]
    before: int | None = None
    for cell, character, role in marks:
        cell = cell if before is None else max(cell, before + 1)
        if before is not None and character == glyphs.sigkill:
            canvas.fill(before + 1, cell - 1, glyphs.grace, Role.DIM, CellRank.MARK)
        canvas.put(cell, character, role, CellRank.MARK)
        before = cell
    if before is not None:  # it lives on until it obeys, or until the kernel has ended it
        canvas.fill(before + 1, last, glyphs.grace, Role.DIM, CellRank.BAR)


def _paint_decision(canvas: BarCells, row: TaskRow) -> None:
    """The end of a task by an operator's skip or cancel."""
    if row.state in (TaskState.SKIPPED, TaskState.CANCELLED) and row.ended_at is not None:
        canvas.put(canvas.axis.cell(row.ended_at), *row_sign(row, canvas.glyphs, ALIVE), CellRank.DECISION)


def _progress(row: TaskRow) -> str:
    """The progress that a running task reports, as ``63%``; empty if it reports none."""
    done, total = row.progress_done, row.progress_total
    return f"{100 * done // total}%" if done is not None and total else ""


def _paint_ahead(canvas: BarCells, row: TaskRow, due_at: int | None, now_us: int) -> None:
    """To the right of now: when the task continues, or its deadline."""
    axis, attempt = canvas.axis, row.latest
    glyphs, now_cell = canvas.glyphs, axis.cell(now_us)
    if row.state is TaskState.RUNNING and attempt is not None and attempt.timeout_us:
        deadline = axis.cell(attempt.started_at + attempt.timeout_us)
        if deadline > now_cell:
            canvas.put(deadline, glyphs.deadline, Role.DIM, CellRank.AHEAD)
        return
    place = due_cell(due_at, axis, now_us, glyphs)
    if place is not None and due_at is not None:
        canvas.fill(now_cell + 1, place - 1, glyphs.backoff, Role.WAITING, CellRank.GAP)
        canvas.write(place, due_text(due_at, now_us, glyphs), Role.WAITING)


def due_cell(due_at: int | None, axis: Span, now_us: int, glyphs: Glyphs) -> int | None:
    """The cell of the countdown of a waiting task; None if there is none in view."""
    now_cell = axis.cell(now_us)
    if due_at is None or not 0 <= now_cell < axis.cells:
        return None
    room = axis.cells - len(due_text(due_at, now_us, glyphs))
    return max(min(axis.cell(due_at), room), now_cell + 1)


def due_text(due_at: int, now_us: int, glyphs: Glyphs) -> str:
    """The countdown, at most as wide as the space to the right of now."""
    left = due_at - now_us
    when = clock(left + SECOND - 1).strip() if left > 0 else f"due {format_duration(-left // SECOND * SECOND)}"
    return f"{glyphs.due} {when}"


# --- Labels --------------------------------------------------------------------------------------------------------


def label_line(
    row: TaskRow, columns: int, context: RunContext, role: Role = Role.TEXT, indent: int = 0, took: str = ""
) -> Line:
    """The sign of a task's state and its name, padded, and ``took``; together ``columns`` wide."""
    room = columns - indent - 3 - len(took)
    name = pad(context.names.short(row.name, room, context.glyphs.more), room)
    lead = [Piece(" " * (indent + 1)), row_sign(row, context.glyphs, context.runner), Piece(f" {name}", role)]
    return [*lead, Piece(took, Role.DIM)] if took else lead


def duration_text(row: TaskRow, context: RunContext) -> str:
    """The duration of a task's latest attempt, as in all lists, until now if it runs; blank before the first."""
    if row.latest is None:
        return " " * TOOK_CELLS
    view = context.attempt(row.latest)
    return f" {clock(view.clock) if view.is_moving else column(view.clock)}"


def fit_label_columns(name_cells: int, columns: int) -> int:
    """Width of the labels left of the bars: enough for names of so many cells, at most a third of the screen."""
    return max(min(name_cells + 4, columns // 3, _LABEL_COLUMNS_MAX), 12)


# --- A group of tasks as one bar -------------------------------------------------------------------------------------
#
# The taller, the more of them ran at once; failures and dead letters stand in front.


_FACTS_CELLS = 6  # beside two counts: signs and gaps
_TOOK_FROM = 110  # columns
_LEVELS = 6  # heights of a bar; the tallest is that of a task's bar


def group_bar_line(group: GraphGroup, activity: GroupActivity, context: BarContext, name: str = "") -> Line:
    """The past of a group as one bar, and what runs now; ``name``: as for ``bar_line``."""
    axis, now_us, _, runner = context
    canvas, past = BarCells(context), min(max(axis.cell(context.end_of_past) + 1, 0), axis.cells)
    found = activity.cells(_borders(axis)[: past + 1]) if past else []
    running_from = axis.cell(activity.oldest_running) if activity.oldest_running is not None else axis.cells
    peak = max((cell.running for cell in found), default=0)
    running = Role(views.state_style(TaskState.RUNNING, runner).role)  # without an executor nothing runs
    for place, cell in enumerate(found):
        _paint_cell(canvas, place, cell, peak, running if place >= running_from else Role.DONE)
    if now_us is not None and runner.is_alive:
        _paint_now(canvas, group, activity, now_us)
    canvas.write_before(name)
    return canvas.line()


@lru_cache(maxsize=1)
def _borders(axis: Span) -> Sequence[int]:
    """The instants between the cells of an axis, which all groups of a picture share."""
    return [axis.instant(cell) for cell in range(axis.cells + 1)]


def _paint_cell(canvas: BarCells, place: int, cell: CellActivity, peak: int, role: Role) -> None:
    """The worst of what falls into a cell."""
    glyphs = canvas.glyphs
    if cell.dead_letters:
        canvas.put(place, glyphs.dead, Role.HUMAN, CellRank.DECISION)
    elif cell.failures:
        canvas.put(place, glyphs.failed, Role.FAILED, CellRank.MARK)
    elif cell.retried:
        canvas.put(place, glyphs.retrying, Role.WAITING, CellRank.MARK)
    elif cell.running:
        canvas.put(place, glyphs.spark[-(-cell.running * _LEVELS // peak) - 1], role, CellRank.BAR)
    elif cell.waiting:
        canvas.put(place, glyphs.backoff, Role.WAITING, CellRank.GAP)


def _paint_now(canvas: BarCells, group: GraphGroup, activity: GroupActivity, now_us: int) -> None:
    """At now and right of it: how many run, or when the next of the waiting ones continues."""
    now_cell, running = canvas.axis.cell(now_us), group.counts[TaskState.RUNNING]
    if running:
        canvas.put(now_cell, canvas.glyphs.running, Role.RUNNING, CellRank.HEAD)
        canvas.write(now_cell + 2, number(running), Role.RUNNING)
    elif activity.next_due is not None:
        canvas.write(now_cell + 1, due_text(activity.next_due, now_us, canvas.glyphs), Role.WAITING)


def group_label_line(
    group: GraphGroup, columns: int, context: RunContext, *, is_open: bool, role: Role = Role.TEXT, took: str = ""
) -> Line:
    """Whether the group is open, the sign of its worst state, its title, and how many tasks are done."""
    glyphs, state = context.glyphs, states.leading_state(group.counts)
    facts = states.progress(group.counts, glyphs)
    facts = [*facts, Piece(took, Role.DIM)] if took else facts
    sign = state_sign(state, glyphs, context.runner)
    lead = [Piece(f" {glyphs.open if is_open else glyphs.closed} ", Role.DIM), sign, Piece(" ")]
    room = columns - width(lead) - width(facts) - 1
    title = pad(context.titles.short(group.title, room, glyphs.more), room)
    return fit([*lead, Piece(f"{title} ", role), *facts], columns, glyphs.more)


def group_duration_text(activity: GroupActivity, now_us: int) -> str:
    """The duration of a group from its first attempt on, until now if it goes on; blank before the first."""
    start, end = activity.first_start, now_us if activity.is_active else activity.last_end
    return " " * TOOK_CELLS if start is None or end is None else f" {column(end - start)}"


def group_label_columns(groups: Sequence[GraphGroup], context: RunContext, columns: int) -> int:
    """Width of the labels of groups and tasks."""
    names, took = context.names.longest, TOOK_CELLS if has_duration_column(columns, context) else 0
    if not groups:
        return fit_label_columns(names, columns) + took
    most = max(len(number(len(group.members))) for group in groups)
    facts = 2 * most + _FACTS_CELLS
    name_cells = max(names + 2 * FOLD_INDENT, context.titles.longest + FOLD_INDENT + facts)
    return fit_label_columns(name_cells, columns) + took


def has_duration_column(columns: int, context: RunContext) -> bool:
    """Whether rows of ``columns`` cells show how long the latest attempts ran."""
    return context.has_durations and columns >= _TOOK_FROM


# --- Breakers on the time axis ---------------------------------------------------------------------------------------


def breaker_lines(periods: BreakerPeriods, context: BarContext, label_columns: int) -> list[Line]:
    """A band for each breaker that was not only closed: solid while it was open, light while it let a probe through."""
    lines, until_us = list[Line](), context.end_of_past
    axis, now_us, glyphs, _ = context
    for name in periods.downstreams:
        canvas = BarCells(context)
        for start, ended_at, state in periods.of(name):
            if start > until_us:
                break  # of a time after the instant that is shown
            is_on = ended_at is None or ended_at > until_us
            shade = glyphs.run if state in SHUT else glyphs.heat[0]
            end = axis.cell(until_us if is_on or ended_at is None else ended_at)
            canvas.fill(axis.cell(start), end, shade, Role.WAITING, CellRank.BAR)
            if is_on and now_us is not None:
                canvas.write(axis.cell(until_us) + 2, state.replace("_", "-").lower(), Role.WAITING)
        label = f" breaker {shorten_middle(one_line(name), label_columns - len(' breaker ') - 1, glyphs.more)}"
        lines.append([Piece(pad(label, label_columns), Role.DIM), *canvas.line()])
    return lines
