"""Large graphs by groups: tasks of one level and one family as one row, open or closed.

Measured over 44 real workflows: a median of 142 tasks becomes a median of 8 groups. A group with a problem opens to
just that problem by itself, so that the operator sees it and not its 1,246 healthy neighbours; running work keeps its
row, because a group's counts say what runs in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....engine.core.dag import Dag
from ....engine.domain.states import TaskState
from .name_families import families

#: How many tasks with a problem a group shows that nobody opened.
PROBLEMS_SHOWN = 5


@dataclass(slots=True)
class Group:
    """Tasks of one level and one family, in topological order."""

    index: int
    level: int
    title: str
    members: list[int]
    counts: Counter[TaskState] = field(default_factory=Counter)

    @property
    def single(self) -> bool:
        """One task: shown as itself."""
        return len(self.members) == 1


class GroupRow(NamedTuple):
    """One row of the list: a group (``task`` None, ``hidden`` 0), a task in it, or how many more there are."""

    group: int
    task: int | None = None
    hidden: int = 0


class Groups:
    """All groups of a graph, their counts, and which are open."""

    def __init__(self, dag: Dag, states: Mapping[str, TaskState]) -> None:
        self.dag = dag
        self.groups = _grouped(dag)
        self.group_of = [0] * len(dag)
        for group in self.groups:
            for member in group.members:
                self.group_of[member] = group.index
                group.counts[states[dag.names[member]]] += 1
        self._open: set[int] = set()
        self._shut: set[int] = set()  # closed by the operator although it has a problem
        self._problems: dict[int, list[int]] = {}
        self._order = list(range(len(self.groups)))  # groups from top to bottom
        self._rows: list[GroupRow] | None = None
        self._start: dict[int, int] = {}  # row of each group's own line

    # --- Told ------------------------------------------------------------------------------------------------------

    def moved(self, name: str, before: TaskState, after: TaskState) -> int:
        """A task changed its state; answers with the index of its group, whose row shows other counts now."""
        index = self.group_of[self.dag.number[name]]
        counts = self.groups[index].counts
        counts[before] -= 1
        counts[after] += 1
        return index

    def set_problems(self, problems: Iterable[str]) -> None:
        """Which tasks need a human, in topological order: their groups open to them."""
        found: dict[int, list[int]] = {}
        for name in problems:
            number = self.dag.number[name]
            found.setdefault(self.group_of[number], []).append(number)
        self._shut -= {index for index in self._shut if set(found.get(index, ())) - set(self._problems.get(index, ()))}
        self._problems = found
        self._rows = None

    def order_by(self, key: Callable[[Group], Any] | None) -> None:
        """Groups from top to bottom by a key; None: by level, as the flow goes."""
        order = self.groups if key is None else sorted(self.groups, key=key)
        self._order = [group.index for group in order]
        self._rows = None

    # --- Folding ---------------------------------------------------------------------------------------------------

    def is_open(self, index: int) -> bool:
        """Whether all of a group's tasks are shown."""
        return index in self._open

    def shows_problems(self, index: int) -> bool:
        """Whether a closed group shows the tasks in it that need a human."""
        return index in self._problems and index not in self._open and index not in self._shut

    def toggle(self, index: int) -> None:
        """Closed, or open to its problems: open. Open: close for good, problems included."""
        if index in self._open:
            self._open.discard(index)
            self._shut.add(index)
        else:
            self._open.add(index)
            self._shut.discard(index)
        self._rows = None

    # --- Rows ------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[GroupRow]:
        """What is shown, from top to bottom."""
        if self._rows is None:
            self._rows = []
            for index in self._order:
                self._start[index] = len(self._rows)
                self._rows.extend(self._rows_of(self.groups[index]))
        return self._rows

    def _rows_of(self, group: Group) -> list[GroupRow]:
        index = group.index
        if group.single:
            return [GroupRow(index, group.members[0])]
        rows = [GroupRow(index)]
        if self.is_open(index):
            rows.extend(GroupRow(index, member) for member in group.members)
        elif self.shows_problems(index):
            problems = self._problems[index]
            rows.extend(GroupRow(index, member) for member in problems[:PROBLEMS_SHOWN])
            if len(problems) > PROBLEMS_SHOWN:
                rows.append(GroupRow(index, None, len(problems) - PROBLEMS_SHOWN))
        return rows

    def row_of(self, name: str) -> int:
        """The row that shows a task, or else that of its group."""
        number = self.dag.number[name]
        rows, start = self.rows, self.row_of_group(self.group_of[number])
        row = start
        while row < len(rows) and rows[row].group == rows[start].group:
            if rows[row].task == number:
                return row
            row += 1
        return start

    def row_of_group(self, index: int) -> int:
        """The row of a group's own line."""
        _ = self.rows
        return self._start[index]

    def group_at(self, row: int) -> int:
        """The group that a row belongs to."""
        return self.rows[row].group

    def task_for(self, row: int) -> str:
        """The task that a row stands for: its own, or the one in the group that is looked for first."""
        found = self.rows[row]
        if found.task is not None:
            return self.dag.names[found.task]
        group = self.groups[found.group]
        problems: Collection[int] = self._problems.get(group.index, ())
        shown = min(len(problems), PROBLEMS_SHOWN) if found.hidden else 0
        return self.dag.names[list(problems)[shown] if problems else group.members[0]]


def _grouped(dag: Dag) -> list[Group]:
    """By level, then by where the first member stands in the topological order."""
    levels: dict[int, list[int]] = {}
    for number in dag.topological:
        levels.setdefault(dag.levels[number], []).append(number)
    groups: list[Group] = []
    for level in sorted(levels):
        members: dict[str, list[int]] = {}
        names = [dag.names[number] for number in levels[level]]
        for number, family in zip(levels[level], families(names), strict=True):
            members.setdefault(family, []).append(number)
        for family, numbers in members.items():
            title = dag.names[numbers[0]] if len(numbers) == 1 else family
            groups.append(Group(len(groups), level, title, numbers))
    return groups
