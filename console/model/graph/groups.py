"""Large graphs as groups: the tasks of a group share a row that can be expanded.

A group that the flow declares is one, whatever its levels. Other tasks are grouped by their level and family of names.

Measured over 44 real workflows: a median of 142 tasks becomes a median of 8 groups. A group with problems shows only
these by itself, so that the operator sees them without 1,246 healthy neighbours; its counts cover the other tasks.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from ....engine.core.dag import Dag
from ....engine.domain.states import TaskState
from ....engine.errors import CycleError
from ..board import Board
from .drawing import is_chain

#: The number of problem tasks that a collapsed group shows.
PROBLEMS_SHOWN = 5


@dataclass(slots=True)
class GraphGroup:
    """Tasks of one group of the flow, or of one level and one family, in topological order."""

    index: int
    level: int
    title: str
    members: list[int]
    counts: Counter[TaskState] = field(default_factory=Counter)

    @property
    def is_single(self) -> bool:
        """Whether the group has one task, which is shown instead."""
        return len(self.members) == 1


class GroupRow(NamedTuple):
    """One row of the list: a group (``task`` None, ``hidden`` 0), a task in it, or the number of further tasks."""

    group: int
    task: int | None = None
    hidden: int = 0


class Groups:
    """All groups of a graph, their counts, and which are expanded. ``declared``: task -> the group in the flow."""

    def __init__(self, dag: Dag, states: Mapping[str, TaskState], declared: Mapping[str, str] | None = None) -> None:
        self.tasks = dag
        self.groups = _make_groups(dag, declared or {})
        self.group_of = [0] * len(dag)
        for group in self.groups:
            for member in group.members:
                self.group_of[member] = group.index
                group.counts[states[dag.names[member]]] += 1
        self.longest_title = max((len(group.title) for group in self.groups if not group.is_single), default=0)
        self._expanded: set[int] = set()
        self._collapsed: set[int] = set()  # collapsed by the operator although they have problems
        self._problems: dict[int, list[int]] = {}
        self._order = list(range(len(self.groups)))  # groups from top to bottom
        self._rows: list[GroupRow] | None = None
        self._first_rows: dict[int, int] = {}  # the row of each group itself

    @cached_property
    def dag(self) -> Dag | None:
        """The groups as a graph, named by their indexes; None if declared groups depend on each other both ways."""
        of = self.group_of
        edges = {(of[child], of[above]) for child, found in enumerate(self.tasks.parent_numbers) for above in found}
        parents: list[list[str]] = [[] for _ in self.groups]
        for group, above in sorted(edges):
            if above != group:
                parents[group].append(str(above))
        try:
            return Dag((str(group.index), parents[group.index]) for group in self.groups)
        except CycleError:
            return None

    # --- Updates ---------------------------------------------------------------------------------------------------

    def apply_move(self, name: str, before: TaskState, after: TaskState) -> int:
        """Update the counts for a task that changed its state. Returns the index of its group."""
        index = self.group_of[self.tasks.number[name]]
        counts = self.groups[index].counts
        counts[before] -= 1
        counts[after] += 1
        return index

    def set_problems(self, problems: Iterable[str]) -> None:
        """Set the tasks that need a human, in topological order; their groups show them."""
        found: dict[int, list[int]] = {}
        for name in problems:
            number = self.tasks.number[name]
            found.setdefault(self.group_of[number], []).append(number)
        self._collapsed -= {
            index for index in self._collapsed if set(found.get(index, ())) - set(self._problems.get(index, ()))
        }
        self._problems = found
        self._rows = None

    def order_by(self, key: Callable[[GraphGroup], tuple[int, ...]] | None) -> None:
        """Order groups by a key; None: by level."""
        order = self.groups if key is None else sorted(self.groups, key=key)
        self._order = [group.index for group in order]
        self._rows = None

    # --- Expanding ------------------------------------------------------------------------------------------------

    def is_open(self, index: int) -> bool:
        """Whether a group is expanded."""
        return index in self._expanded

    def shows_problems(self, index: int) -> bool:
        """Whether a collapsed group shows its tasks that need a human."""
        return index in self._problems and index not in self._expanded and index not in self._collapsed

    def toggle(self, index: int) -> None:
        """Expand a group; collapse an expanded one together with its problems."""
        if index in self._expanded:
            self._expanded.discard(index)
            self._collapsed.add(index)
        else:
            self._expanded.add(index)
            self._collapsed.discard(index)
        self._rows = None

    # --- Rows ------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[GroupRow]:
        """The rows from top to bottom."""
        if self._rows is None:
            self._rows = []
            for index in self._order:
                self._first_rows[index] = len(self._rows)
                self._rows.extend(self._rows_of(self.groups[index]))
        return self._rows

    def _rows_of(self, group: GraphGroup) -> list[GroupRow]:
        index = group.index
        if group.is_single:
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
        """Return the row of a task, or else that of its group."""
        number = self.tasks.number[name]
        rows, start = self.rows, self.row_of_group(self.group_of[number])
        row = start
        while row < len(rows) and rows[row].group == rows[start].group:
            if rows[row].task == number:
                return row
            row += 1
        return start

    def row_of_group(self, index: int) -> int:
        """Return the row of a group itself."""
        _ = self.rows
        return self._first_rows[index]

    def group_at(self, row: int) -> int:
        """Return the index of the group of a row."""
        return self.rows[row].group

    def task_for(self, row: int) -> str:
        """Return the task of a row, or for a group its first problem or first task."""
        found = self.rows[row]
        if found.task is not None:
            return self.tasks.names[found.task]
        group = self.groups[found.group]
        problems: Collection[int] = self._problems.get(group.index, ())
        shown = min(len(problems), PROBLEMS_SHOWN) if found.hidden else 0
        return self.tasks.names[list(problems)[shown] if problems else group.members[0]]


def groups_of(board: Board) -> Groups:
    """The groups of a run: those that its flow declares, and families of names."""
    rows = board.projection.tasks
    specs = {name: row.spec for name, row in rows.items() if row.spec is not None}
    declared = {name: spec.group for name, spec in specs.items() if spec.group is not None}
    return Groups(board.dag, {name: row.state for name, row in rows.items()}, declared)


def _make_groups(dag: Dag, declared: Mapping[str, str]) -> list[GraphGroup]:
    """Make the groups in topological order of their first members."""
    prefix = len(shared_prefix(dag.names))
    levels: dict[int, list[int]] = {}
    for number in dag.topological:
        levels.setdefault(dag.levels[number], []).append(number)
    found: dict[tuple[int | None, str], GraphGroup] = {}  # by level, None for a group that the flow declares
    for level in sorted(levels):
        guessed = [number for number in levels[level] if dag.names[number] not in declared]
        family_of = dict(zip(guessed, families([dag.names[number][prefix:] for number in guessed]), strict=True))
        for number in levels[level]:
            is_guess = number in family_of
            key = (level, family_of[number]) if is_guess else (None, declared[dag.names[number]])
            if key not in found:
                found[key] = GraphGroup(len(found), level, key[1], [])
            found[key].members.append(number)
    groups = list(found.values())
    sizes = Counter(group.title for group in groups)
    for group in groups:
        if group.is_single:
            group.title = dag.names[group.members[0]]
        elif sizes[group.title] > 1:
            group.title += f" L{group.level}"
    return groups


# --- The zoom levels of the graph screen, what each shows, and the order of tasks ------------------------------------


GRAPH_MAX = 60  # tasks that are shown individually at first
GROUPS_MAX = 120  # groups that are shown at first
MATRIX_MAX = 2_000


class Zoom(IntEnum):
    """The zoom levels, from far to near."""

    BANDS = 0
    GROUPS = 1
    MATRIX = 2
    GRAPH = 3


class GraphForm(IntEnum):
    """The form of the nearest zoom level."""

    RAILS = 0
    DRAWING = 1


class Step(StrEnum):
    """What the screen shows: a zoom level, the nearest one in either form, or the tasks that a filter found."""

    BANDS = "bands"
    GROUPS = "groups"
    SIGNS = "signs"
    ROWS = "rows"
    DRAWING = "drawing"
    FOUND = "found"


FAR_STEPS = {Zoom.BANDS: Step.BANDS, Zoom.GROUPS: Step.GROUPS, Zoom.MATRIX: Step.SIGNS}


class GraphOrder(StrEnum):
    """The order of tasks, as far as the edges allow."""

    FLOW = "as the flow goes"
    PROBLEMS = "problems first"  # fixed when chosen, so that rows do not move under the cursor


def first_zoom(dag: Dag, group_rows: int) -> Zoom:
    """Return the initial zoom: the graph if small or a chain, groups if few, the matrix or bands otherwise."""
    if len(dag) <= GRAPH_MAX or is_chain(dag):
        return Zoom.GRAPH
    if group_rows <= GROUPS_MAX:
        return Zoom.GROUPS
    return Zoom.MATRIX if len(dag) <= MATRIX_MAX else Zoom.BANDS


# --- Families of names -----------------------------------------------------------------------------------------------
#
# Families of task names: names that differ only in their numbers, as ``load_part_0001`` and ``load_part_0002``.


_BRACKETS = re.compile(r"\s*[(\[{].*[)\]}]\s*$", re.DOTALL)
_NUMBERS = re.compile(r"(?:[-_.:/#@ ]*(?:ID|id)?\d+)+$")
_BRACKET_ENDS = frozenset(")]}" + string.whitespace)
_WORD = re.compile(r"[-_.:/ ]")
_SINGLES_MAX = 6  # families of one task that are listed before they are merged


_SEPARATORS = ".:/"
_PREFIX_MIN = 6  # characters; a shorter prefix is part of the names
_PREFIXED_MIN = 3  # names


def common_start(names: Sequence[str]) -> str:
    """Return the characters that all names begin with."""
    pairs = zip(min(names), max(names), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shared_prefix(names: Sequence[str]) -> str:
    """Return what all names begin with, up to a separator; "" if it is very short or a whole name."""
    if len(names) < _PREFIXED_MIN:
        return ""
    shared = common_start(names)
    end = max(shared.rfind(separator) for separator in _SEPARATORS) + 1
    return shared[:end] if end >= _PREFIX_MIN and min(map(len, names)) > end else ""


def stem(name: str) -> str:
    """Return the name without trailing numbers and brackets, or the name itself if nothing else remains."""
    has_brackets = name[-1:] in _BRACKET_ENDS
    return _NUMBERS.sub("", _BRACKETS.sub("", name) if has_brackets else name) or name


def families(names: Sequence[str]) -> list[str]:
    """Return the family of each name. Many families of one are merged by their first word, or as ``others``."""
    stems = [stem(name) for name in names]
    sizes = Counter(stems)
    singles = [one for one in stems if sizes[one] == 1]
    if len(singles) <= _SINGLES_MAX:
        return stems
    heads = Counter(_head(one) for one in singles)
    return [_family_of_single(one, heads) if sizes[one] == 1 else one for one in stems]


def _head(name: str) -> str:
    return _WORD.split(name, maxsplit=1)[0]


def _family_of_single(name: str, heads: Counter[str]) -> str:
    head = _head(name)
    return f"{head}…" if head and heads[head] > 1 else "others"
