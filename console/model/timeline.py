"""The rows of the timeline: tasks as they began; of a large run one row per group, which opens to its tasks.

A group stands where its first task would stand. What has not begun comes last, in the order of the flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...engine.core.breaker import HOLDING
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.domain.event_payloads import BreakerChanged
from ...engine.domain.events import Event
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from .board import Board, Delta
from .graph.groups import GraphGroup, ZoomStep, first_zoom, groups_of
from .group_activity import GroupActivity
from .lists import parse_filter, searched_text

RowKey = str | int  # a task by its name, or a group by its index


class HangRow(NamedTuple):
    """The row below a task of which an attempt hung until it was killed."""

    task: str


def killed_attempts(row: TaskRow) -> list[AttemptRow]:
    """The attempts that were killed at their timeout."""
    return [one for one in row.attempts.values() if one.outcome == "timed_out" and one.sigterm_at]


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
        self._groups = groups_of(board) if first_zoom(board.dag) is ZoomStep.GROUPS else None
        self._index = {name: group.index for group in self.groups for name in board.dag.names_of(group.members)}
        self._started: list[str] = []
        self._waiting: list[str] = []
        self._begun: set[int | None] = set()  # groups of tasks that have begun
        self._open: set[int] = set()
        self._shown_task: str | None = None  # shown below its group although that is closed
        self.lists_problems = False  # below their groups, also if these are closed
        self._activities: dict[int, GroupActivity] = {}
        self._sort()

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
        return [name for name in self._board.problems if self.group_of(name) == index]

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
        """The instants of the tasks of a group; computed at first use, then updated."""
        if index not in self._activities:
            self._activities[index] = GroupActivity(self._board.row(name) for name in self.members(index))
        return self._activities[index]

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
        for name in delta.tasks:
            index = self.group_of(name)
            if index in self._activities:
                self._activities[index].update(self._board.row(name))

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

    def _sort(self) -> None:
        tasks = self._board.projection.tasks
        self._started = [row.name for row in sorted((row for row in tasks.values() if row.attempts), key=_start_key)]
        self._waiting = [name for name in self._board.dag.order if not tasks[name].attempts]
        self._begun = {self.group_of(name) for name in self._started}

    # --- Opening ---------------------------------------------------------------------------------------------------

    def is_open(self, index: int) -> bool:
        """Whether all tasks of a group are listed."""
        return index in self._open

    def shows_tasks(self, index: int) -> bool:
        """Whether any task of a group is listed."""
        return self.is_open(index) or (self._shown_task is not None and self.group_of(self._shown_task) == index)

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
        order = [*self._started, *self._waiting]
        wanted = parse_filter(filter_text)
        if wanted:
            rows = (self._board.row(name) for name in order)
            return [row.name for row in rows if wanted.matches(searched_text(row))]
        return list(order) if self._groups is None else list(self._grouped(order))

    def with_hangs(self, filter_text: str = "") -> Iterator[RowKey | HangRow]:
        """The rows, and without groups below each task that was killed the row where it hung."""
        for key in self.rows(filter_text):
            yield key
            if isinstance(key, str) and self.has_hung(key):
                yield HangRow(key)

    def has_hung(self, name: str) -> bool:
        """Whether an attempt of a task was killed at its timeout, and the run has room to say where it hung."""
        return self._groups is None and bool(killed_attempts(self._board.row(name)))

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
            is_problem = self.lists_problems and self._board.row(name).state in NEEDS_HUMAN
            if index in self._open or name == self._shown_task or is_problem:
                listed[index].append(name)
        for key in rows:
            yield key
            if isinstance(key, int):
                yield from listed[key]


def _start_key(row: TaskRow) -> tuple[int, int]:
    """Sort key: start of the first attempt, position."""
    return next(iter(row.attempts.values())).started_at, row.position


# --- Breakers over time ----------------------------------------------------------------------------------------------


class BreakerPeriods:
    """The periods in which breakers let no call pass, or a probe alone: by downstream, the state from each instant."""

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
        return [name for name, found in self._states.items() if any(state in HOLDING for _, state in found)]

    def of(self, downstream: str) -> list[tuple[int, int | None, str]]:
        """The start, the end and the state of each period in which it was not closed; the end is None if it lasts."""
        found = self._states[downstream]
        ends = [*(at for at, _ in found[1:]), None]
        return [(at, end, state) for (at, state), end in zip(found, ends, strict=True) if state in HOLDING]
