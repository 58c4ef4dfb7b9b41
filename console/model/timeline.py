"""The time axis with the pauses that it shortens; the rows of the timeline, and what they show."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from heapq import nlargest
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple

import msgspec

from ...engine.core.breaker import PASSING
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.event_payloads import BreakerChanged
from ...engine.domain.events import Event
from ...engine.domain.states import FAILED_OUTCOMES, NEEDS_HUMAN, TIMED, UNDER_WAY, TaskState
from .board import Board, Delta
from .graph.groups import GraphGroup, Zoom, first_zoom, groups_of
from .lists import parse_task_filter

# --- The visible span of a time axis: which cell an instant falls into -----------------------------------------------
#
# Long pauses are shortened.


SECOND = 1_000_000
#: Microseconds per cell; each step is readable as a round number on the axis.
STEPS = tuple(
    round(seconds * SECOND)
    for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
)
#: Steps between those of zooming, so that a fitted period fills the width.
_FIT_STEPS = tuple(step * quarters // 4 for step in STEPS for quarters in (4, 5, 6, 7))
PAUSE_CELLS = 9  # a shortened pause: room for its length


class Span(msgspec.Struct, frozen=True):
    """The visible time span. Instants are microseconds UTC; long ``pauses`` take ``PAUSE_CELLS`` cells each."""

    start: int
    per_cell: int
    cells: int
    pauses: tuple[tuple[int, int], ...] = ()  # start and end of each, in order

    @property
    def end(self) -> int:
        """The instant behind the last cell."""
        return self.instant(self.cells)

    @property
    def shortened(self) -> list[tuple[int, int]]:
        """The pauses that are shortened at this scale: those of at least twice ``PAUSE_CELLS``."""
        return [pause for pause in self.pauses if pause[1] - pause[0] >= 2 * PAUSE_CELLS * self.per_cell]

    @property
    def shape(self) -> tuple[int, ...]:
        """What decides into which cells the past falls; a pause that lasts until now grows without changing it."""
        bounds = [at for pause in self.shortened for at in pause]
        return self.start, self.per_cell, self.cells, *bounds[:-1]

    def cell(self, at: int) -> int:
        """The cell that holds an instant; outside of 0 to ``cells`` if it is not shown."""
        return (self._position(at) - self._position(self.start)) // self.per_cell

    def instant(self, cell: int) -> int:
        """The instant at which a cell begins; the inverse of ``cell``."""
        position = self._position(self.start) + cell * self.per_cell
        removed = 0
        shown = PAUSE_CELLS * self.per_cell
        for start, end in self.shortened:
            if position <= start - removed:
                break
            inside = position - (start - removed)
            if inside < shown:
                return start + (end - start) * inside // shown
            removed += end - start - shown
        return position + removed

    def _position(self, at: int) -> int:
        """Microseconds of shown time before an instant, from an arbitrary zero."""
        removed = 0
        shown = PAUSE_CELLS * self.per_cell
        for start, end in self.shortened:
            if at <= start:
                break
            removed += (min(at, end) - start) * (end - start - shown) // (end - start)
        return at - removed


def fitting_span(start: int, end: int, cells: int, ahead: int = 0, pauses: Sequence[tuple[int, int]] = ()) -> Span:
    """The span of the finest step that shows a period, with ``ahead`` free cells after it."""
    spans = (Span(start - start % step, step, cells, tuple(pauses)) for step in _FIT_STEPS)
    fitting = (span for span in spans if span.cell(max(end - 1, start)) + ahead < cells)
    return next(fitting, Span(start, STEPS[-1], cells, tuple(pauses)))


# --- When a run did something, and the idle pauses between: a time axis shortens them --------------------------------


PAUSES_MAX = 20  # the longest of a run; more would leave no room for bars


class Pause(NamedTuple):
    """A time without activity, in microseconds UTC."""

    start: int
    end: int


class RunActivity(NamedTuple):
    """``pauses``: between two activities, in order. ``end``: of the latest activity; ``is_active``: it goes on."""

    pauses: tuple[Pause, ...]
    end: int
    is_active: bool


def activity_of(rows: Iterable[TaskRow], start: int, runner: RunnerStatus) -> RunActivity:
    """The activity of a run that began at ``start``: attempts, and the waits between attempts of one generation.

    Without an executor nothing goes on: what was under way ended with it.
    """
    pauses: list[Pause] = []
    end, is_active = start, False
    for begin, until in sorted((period for row in rows for period in _periods(row, runner)), key=itemgetter(0)):
        if begin > end and not is_active:
            pauses.append(Pause(end, begin))
        is_active = is_active or until is None
        end = max(end, begin, until or begin)  # an attempt ends before its start if the clock was set back
    longest = nlargest(PAUSES_MAX, pauses, key=lambda pause: pause.end - pause.start)
    return RunActivity(tuple(sorted(longest)), end, is_active)


def _periods(row: TaskRow, runner: RunnerStatus) -> Iterator[tuple[int, int | None]]:
    """Start and end of each generation of a task. The last has no end while the task runs or has a time to go on."""
    start: int | None = None
    end: int | None = None
    generation = 0
    for attempt in row.attempts.values():
        if start is not None and attempt.generation != generation:
            yield start, end
            start = None
        start = attempt.started_at if start is None else start
        end, generation = attempt.ended_at, attempt.generation
    if start is not None:
        moves = row.state in UNDER_WAY and generation == row.generation
        gone_at = runner.gone_at if moves and not runner.is_alive else None
        yield start, (gone_at if gone_at is not None else None if moves and runner.is_alive else end or start)


# --- The rows of the timeline: tasks in an order; of a large run one row per group, which opens to its tasks ---------
#
# A group stands where its first task would stand, so every order of tasks is an order of groups.


RowKey = str | int  # a task by its name, or a group by its index


class HangRow(NamedTuple):
    """The row below a task of which an attempt hung until it was killed."""

    task: str


def killed_attempt(row: TaskRow) -> AttemptRow | None:
    """The latest attempt that was killed at its timeout; None if none was."""
    killed = (one for one in reversed(row.attempts.values()) if one.outcome == "timed_out" and one.sigterm_at)
    return next(killed, None)


class TaskOrder(StrEnum):
    """The order of rows; tasks that have not begun come last, in the order of the flow."""

    START = "start"  # as they began
    DURATION = "longest"
    PATH = "path"  # parents before children
    PROBLEMS = "problem"  # what needs a human first, then failures, retries and what runs


#: The state of a task -> its rank by problem; all others come after these, as they began.
_PROBLEM_RANKS = {
    state: place
    for place, state in enumerate(
        (
            *(TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED, TaskState.RETRYING),
            *(TaskState.RUNNING, TaskState.SENSING, TaskState.READY),
        )
    )
}


class TimelineRows:
    """The rows of one board, their order, and which groups are open."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.order = TaskOrder.START
        self._groups = groups_of(board) if first_zoom(board.dag) is Zoom.GROUPS else None
        self._index = {name: group.index for group in self.groups for name in board.dag.names_of(group.members)}
        self._started: list[str] = []
        self._waiting: list[str] = []
        self._begun: set[int | None] = set()  # groups of tasks that have begun
        self._open: set[int] = set()
        self._shown_task: str | None = None  # shown below its group although that is closed
        self.lists_problems = False  # below their groups, also if these are closed
        self._activities: dict[int, GroupActivity] = {}
        self._whole_activity: GroupActivity | None = None
        self._bands: list[LevelBand] = []
        self.changes = 0  # updates of tasks so far: what is drawn of their past stays valid between them
        self.sort(self.order)

    # --- Groups ----------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> Sequence[GraphGroup]:
        """The groups that have a row: those of more than one task."""
        return [group for group in self._groups.groups if not group.is_single] if self._groups is not None else []

    def group(self, index: int) -> GraphGroup:
        assert self._groups is not None
        return self._groups.groups[index]

    def group_of(self, name: str) -> int | None:
        """The index of the group that a task is listed in; None if the task stands alone."""
        return self._index.get(name)

    def members(self, index: int) -> Sequence[str]:
        """The tasks of a group, in the order of the flow."""
        return self._board.dag.names_of(self.group(index).members)

    def problems(self, index: int) -> Sequence[str]:
        return [name for name in self.members(index) if self._board.row(name).state in NEEDS_HUMAN]

    def worst_tasks(self, index: int, count: int) -> list[str]:
        """The first tasks of a group by problem."""
        found: dict[int, list[str]] = {}
        for name in self.members(index):
            place = _PROBLEM_RANKS.get(self._board.row(name).state, len(_PROBLEM_RANKS))
            names = found.setdefault(place, [])
            if len(names) < count:
                names.append(name)
        return [name for place in sorted(found) for name in found[place]][:count]

    def activity(self, index: int) -> GroupActivity:
        """When the tasks of a group ran; computed at first use, then updated."""
        if index not in self._activities:
            self._activities[index] = GroupActivity(self._board.row(name) for name in self.members(index))
        return self._activities[index]

    @property
    def whole_activity(self) -> GroupActivity:
        """When the tasks of the run ran; computed at first use, then updated."""
        if self._whole_activity is None:
            self._whole_activity = GroupActivity(self._board.projection.tasks.values())
        return self._whole_activity

    @property
    def levels(self) -> int:
        """How many levels have rows in the heat map: those of a large run."""
        return self._board.dag.depth if self._groups is not None else 0

    def level_bands(self, count: int) -> Sequence[LevelBand]:
        """The levels of a large run in at most ``count`` bands of equal depth."""
        levels = self.levels
        depth = -(-levels // max(count, 1))
        if not self._bands or self._bands[0].depth != depth:
            names: list[list[str]] = [[] for _ in range(0, levels, depth)]
            for number in self._board.dag.topological:
                names[self._board.dag.levels[number] // depth].append(self._board.dag.names[number])
            self._bands = [
                LevelBand(
                    place * depth,
                    min(depth, levels - place * depth),
                    len(found),
                    GroupActivity(map(self._board.row, found)),
                )
                for place, found in enumerate(names)
            ]
        return self._bands

    # --- Updates ---------------------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> bool:
        """Apply a change of the board. True if rows may have moved."""
        if not delta.is_graph_changed:  # else these rows were made after the change
            self._update_groups(delta)
        has_moved = self._move_started([name for name in delta.tasks if self._board.row(name).attempts])
        return has_moved or (self.lists_problems and delta.are_problems_changed)

    def _update_groups(self, delta: Delta) -> None:
        if self._groups is not None:
            for name, before, after in delta.moves:
                self._groups.apply_move(name, before, after)
        self.changes += len(delta.tasks)
        for name in delta.tasks:
            index, row = self.group_of(name), self._board.row(name)
            if self._bands:
                level = self._board.dag.levels[self._board.dag.number[name]]
                self._bands[level // self._bands[0].depth].activity.update(row)
            if index in self._activities:
                self._activities[index].update(row)
            if self._whole_activity is not None:
                self._whole_activity.update(row)

    def _move_started(self, names: Sequence[str]) -> bool:
        """Tasks that run for the first time follow those that ran before. False if no row moves."""
        first = set(names).intersection(self._waiting) if names else set()
        rows = sorted((self._board.row(name) for name in first), key=_start_key)
        self._started += [row.name for row in rows]
        if first:
            self._waiting = [name for name in self._waiting if name not in first]
        groups = {self.group_of(name) for name in first}
        is_seen = not groups <= self._begun or any(index is None or self.is_open(index) for index in groups)
        self._begun |= groups
        return is_seen

    def sort(self, order: TaskOrder) -> None:
        """Sort by an order."""
        self.order, tasks = order, self._board.projection.tasks
        first = sorted((row for row in tasks.values() if row.attempts), key=_SORT_KEYS[order])
        self._started = [row.name for row in first]
        self._waiting = [name for name in self._board.dag.order if not tasks[name].attempts]
        self._begun = {self.group_of(name) for name in self._started}

    # --- Opening ---------------------------------------------------------------------------------------------------

    def is_open(self, index: int) -> bool:
        """Whether all tasks of a group are listed."""
        return index in self._open

    def shows_tasks(self, index: int) -> bool:
        """Whether any task of a group is listed."""
        return self.is_open(index) or (self._shown_task is not None and self.group_of(self._shown_task) == index)

    def _is_listed_problem(self, name: str) -> bool:
        return self.lists_problems and self._board.row(name).state in NEEDS_HUMAN

    def open(self, index: int) -> None:
        self._open.add(index)

    def close(self, index: int) -> None:
        """List no task of a group."""
        self._open.discard(index)
        if self._shown_task is not None and self.group_of(self._shown_task) == index:
            self._shown_task = None

    def show_task(self, name: str) -> bool:
        """List a task also if its group is closed. True if rows change."""
        index = self.group_of(name)
        if index is None or self.is_open(index) or name == self._shown_task:
            return False
        self._shown_task = name
        return True

    def rows_of(self, names: Iterable[str]) -> set[RowKey]:
        """The rows of tasks, and those of their groups."""
        names = set(names)
        return {*names, *(self._index[name] for name in names if name in self._index)}

    # --- Rows ------------------------------------------------------------------------------------------------------

    def rows(self, filter_text: str = "") -> list[RowKey]:
        """The rows from top to bottom; a filter lists the tasks that match, without groups."""
        order = self._board.dag.order if self.order is TaskOrder.PATH else [*self._started, *self._waiting]
        wanted = parse_task_filter(filter_text)
        if wanted:
            rows = (self._board.row(name) for name in order)
            return [row.name for row in rows if wanted.matches_task(f"{row.name} {row.state}".casefold(), row.state)]
        return list(order) if self._groups is None else list(self._grouped(order))

    def with_hangs(self, filter_text: str = "") -> Iterator[RowKey | HangRow]:
        """The rows, and without groups below each task that was killed the row where it hung."""
        for key in self.rows(filter_text):
            yield key
            if isinstance(key, str) and self.has_hung(key):
                yield HangRow(key)

    def has_hung(self, name: str) -> bool:
        """Whether an attempt of a task was killed at its timeout, and the run has room to say where it hung."""
        return self._groups is None and killed_attempt(self._board.row(name)) is not None

    def _grouped(self, order: Iterable[str]) -> Iterator[RowKey]:
        rows: list[RowKey] = []
        listed: dict[int, list[str]] = {}
        for name in order:
            index = self.group_of(name)
            if index is None:
                rows.append(name)
                continue
            if index not in listed:
                listed[index] = []
                rows.append(index)
            if index in self._open or name == self._shown_task or self._is_listed_problem(name):
                listed[index].append(name)
        for key in rows:
            yield key
            if isinstance(key, int):
                yield from listed[key]


def _start_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: start of the first attempt, position."""
    return next(iter(row.attempts.values())).started_at, row.position


def _duration_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: time of all attempts, the longest first; a running attempt counts as the longest."""
    ended = ((attempt, attempt.ended_at) for attempt in row.attempts.values() if attempt.ended_at is not None)
    times = (end - attempt.started_at if attempt.duration_us is None else attempt.duration_us for attempt, end in ended)
    return row.state is not TaskState.RUNNING, -sum(times)


def _problem_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: problem, start of the first attempt."""
    return _PROBLEM_RANKS.get(row.state, len(_PROBLEM_RANKS)), _start_key(row)[0]


_SORT_KEYS: dict[TaskOrder, Callable[[TaskRow], tuple[int, int]]] = {
    TaskOrder.START: _start_key,
    TaskOrder.DURATION: _duration_key,
    TaskOrder.PATH: _start_key,
    TaskOrder.PROBLEMS: _problem_key,
}


# --- Breakers over time ----------------------------------------------------------------------------------------------


class BreakerPeriods:
    """When the breakers of a run let no call through, or a probe alone: by downstream, the state from each instant."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._states: dict[str, list[tuple[int, str]]] = {}
        self._seq = 0
        self.add(events)

    def add(self, events: Iterable[Event]) -> None:
        """Add later events; those of other kinds are ignored."""
        for event in events:
            if event.seq > self._seq and isinstance(event.payload, BreakerChanged):
                self._seq = event.seq
                self._states.setdefault(event.payload.downstream, []).append((event.at, event.payload.state))

    @property
    def downstreams(self) -> list[str]:
        """The downstreams whose breakers did not only let calls pass."""
        return [name for name, found in self._states.items() if any(state not in PASSING for _, state in found)]

    def of(self, downstream: str) -> list[tuple[int, int | None, str]]:
        """The start, the end and the state of each period in which it was not closed; the end is None if it lasts."""
        found = self._states[downstream]
        ends = [*(at for at, _ in found[1:]), None]
        return [(at, end, state) for (at, state), end in zip(found, ends, strict=True) if state not in PASSING]


# --- When the tasks of a group ran, waited and failed, as sorted instants --------------------------------------------
#
# A cell of a time axis costs a few bisections, however many tasks there are, and a change of one task a few insertions.


class CellActivity(NamedTuple):
    """What falls into one cell: attempts that run, waits between attempts, failures after which a task was tried again,
    failures that ended a task, and dead letters."""

    running: int
    waiting: int
    retried: int
    failures: int
    dead_letters: int


class _Instants(NamedTuple):
    """The instants of one task, microseconds UTC."""

    starts: Sequence[int]
    ends: Sequence[int]
    unended: Sequence[int]  # starts of attempts that run
    wait_starts: Sequence[int]
    wait_ends: Sequence[int]
    retried: Sequence[int]
    failures: Sequence[int]
    dead_letters: Sequence[int]
    due: Sequence[int]  # when the next attempt begins


class GroupActivity:
    """The instants of all tasks of a group."""

    def __init__(self, rows: Iterable[TaskRow]) -> None:
        self._of_task = {row.name: _instants_of(row) for row in rows}
        found = self._of_task.values()
        self._sorted: list[list[int]] = [
            sorted(chain.from_iterable(map(itemgetter(place), found))) for place in range(len(_Instants._fields))
        ]

    def update(self, row: TaskRow) -> None:
        """Replace the instants of a task that changed."""
        before, after = self._of_task.get(row.name, _NOTHING), _instants_of(row)
        self._of_task[row.name] = after
        for instants, old, new in zip(self._sorted, before, after, strict=True):
            if old != new:
                for at in old:
                    del instants[bisect_left(instants, at)]
                for at in new:
                    insort(instants, at)

    def cells(self, borders: Sequence[int]) -> list[CellActivity]:
        """The activity of the cells between these instants. What goes on reaches through all later cells."""
        nothing = [0] * len(borders)
        starts, ends, _, wait_starts, wait_ends, retried, failures, dead_letters, _ = (
            [bisect_left(instants, at) for at in borders] if instants else nothing for instants in self._sorted
        )
        return [
            CellActivity(
                starts[cell + 1] - ends[cell],
                wait_starts[cell + 1] - wait_ends[cell],
                retried[cell + 1] - retried[cell],
                failures[cell + 1] - failures[cell],
                dead_letters[cell + 1] - dead_letters[cell],
            )
            for cell in range(len(borders) - 1)
        ]

    def peaks(self, borders: Sequence[int], until_us: int) -> list[int]:
        """The most attempts that ran at once within each cell between these instants, up to ``until_us``.

        The cost is that of the attempts that start within the cells, and a few bisections per cell.
        """
        starts, ends = self._sorted[:2]
        if not starts:
            return [0] * (len(borders) - 1)
        found = []
        for begin, end in pairwise(borders):
            running = bisect_right(starts, begin) - bisect_right(ends, begin) if begin < until_us else 0
            first, last = bisect_right(starts, begin), bisect_left(starts, min(end, until_us))
            later = (place + 1 - bisect_right(ends, starts[place]) for place in range(first, last))
            found.append(max(running, max(later, default=0)))
        return found

    @property
    def first_start(self) -> int | None:
        """When the first attempt began."""
        return self._at(0)

    @property
    def last_end(self) -> int | None:
        """When the latest of the ended attempts ended."""
        return self._at(1, -1)

    @property
    def oldest_running(self) -> int | None:
        """When the oldest attempt that still runs began; None if none runs."""
        return self._at(2)

    @property
    def goes_on(self) -> bool:
        """Whether a task runs, or waits for its next attempt."""
        return self.oldest_running is not None or self.next_due is not None

    @property
    def next_due(self) -> int | None:
        """When the next waiting task continues."""
        return self._at(8)

    @property
    def work_us(self) -> int:
        """The time of all ended attempts together."""
        starts, ends, unended = self._sorted[:3]
        return sum(ends) - sum(starts) + sum(unended)

    def _at(self, place: int, index: int = 0) -> int | None:
        instants = self._sorted[place]
        return instants[index] if instants else None


class LevelBand(NamedTuple):
    """The tasks of ``depth`` levels of the graph, from level ``first`` on."""

    first: int
    depth: int
    tasks: int
    activity: GroupActivity


_NOTHING = _Instants(*[()] * len(_Instants._fields))


def _instants_of(row: TaskRow) -> _Instants:
    if not row.attempts:
        return _NOTHING
    attempts = list(row.attempts.values())
    last = attempts[-1]
    is_plain = row.state is TaskState.SUCCESS and len(attempts) == 1 and last.outcome not in FAILED_OUTCOMES
    if is_plain and last.ended_at is not None:
        return _Instants((last.started_at,), (last.ended_at,), *_NOTHING[2:])  # fast: most tasks of a large run
    pairs = [(one.ended_at, two.started_at) for one, two in pairwise(attempts) if one.generation == two.generation]
    waits = [(end, start) for end, start in pairs if end is not None]
    is_timed = row.state in TIMED and last.generation == row.generation and last.ended_at is not None
    final = last.ended_at if row.state in NEEDS_HUMAN else None
    retried = attempts if final is None else attempts[:-1]
    return _Instants(
        [one.started_at for one in attempts],
        [one.ended_at for one in attempts if one.ended_at is not None],
        [one.started_at for one in attempts if one.ended_at is None],
        [end for end, _ in waits] + ([last.ended_at] if is_timed and last.ended_at is not None else []),
        [start for _, start in waits],
        [one.ended_at for one in retried if one.ended_at is not None and one.outcome in FAILED_OUTCOMES],
        [final] if final is not None and row.state is TaskState.FAILED else [],
        [final] if final is not None and row.state is TaskState.DEAD_LETTER else [],
        [row.next_retry_at] if row.state in TIMED and row.next_retry_at is not None else [],
    )
