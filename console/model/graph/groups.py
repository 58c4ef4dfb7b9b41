"""Large graphs as groups: the tasks of a group share a row that can be expanded.

A group that the flow declares is one. Other tasks are grouped by their names: 203 tasks of a pipeline become 22 groups,
8,931 packages 33. A group with problems shows only these by itself, so that the operator sees them without 1,246
healthy neighbours; its counts cover the other tasks.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from ....engine.core.dag import Dag
from ....engine.core.views import PROBLEMS, CountedState, counted_state
from ....engine.errors import CycleError
from ...text.text import shared_prefix
from ..board import Board
from .drawing import is_chain

#: The number of problem tasks that a collapsed group shows where there is no room for more.
PROBLEMS_SHOWN = 5
LEVEL_PARTS_MAX = 12  # groups into which one that has most of a large graph is split


class GraphGroup(msgspec.Struct):
    """Tasks of one group of the flow, or with similar names, in topological order."""

    index: int
    title: str
    members: Sequence[int]
    counts: Counter[CountedState] = msgspec.field(default_factory=Counter)
    work_us: Sequence[int] | None = None  # of each member, as the view has counted it since the last move

    def counts_in(self, name: str, state: CountedState) -> bool:
        """Whether a member is counted: the end of a map, which has the name of the group, only if it needs a human."""
        return name != self.title or self.is_single or state in PROBLEMS

    @property
    def is_single(self) -> bool:
        """Whether the group has one task, which is shown instead."""
        return len(self.members) == 1


class GroupRow(NamedTuple):
    """A row of the list: a group (``task`` None, ``hidden`` 0), a task in it, or the number of further tasks."""

    group: int
    task: int | None = None
    hidden: int = 0


class Groups:
    """All groups of a graph, their counts, and which are expanded. ``declared``: task -> the group in the flow."""

    def __init__(self, dag: Dag, states: Mapping[str, CountedState], declared: Mapping[str, str] | None = None) -> None:
        self.tasks = dag
        self.groups = [
            GraphGroup(index, title, members) for index, (title, members) in enumerate(_split(dag, declared or {}))
        ]
        self.group_of = [0] * len(dag)
        for group in self.groups:
            for member in group.members:
                self.group_of[member] = group.index
            group.counts.update(
                states[name] for name in dag.names_of(group.members) if group.counts_in(name, states[name])
            )
        self.longest_title = max((len(group.title) for group in self.groups if not group.is_single), default=0)
        self._expanded: set[int] = set()
        self._collapsed: set[int] = set()  # collapsed by the operator although they have problems
        self._problems: dict[int, list[int]] = {}
        self._rows: list[GroupRow] | None = None
        self._height = 0  # rows that the list fills
        self._most = PROBLEMS_SHOWN  # problems that a collapsed group shows now
        self._first_rows: dict[int, int] = {}  # the row of each group itself
        self._task_rows: dict[int, int] = {}  # the row of each task that has one

    @cached_property
    def dag(self) -> Dag | None:
        """The groups as a graph, named by their indexes, without edges that others imply.

        None if groups depend on each other both ways.
        """
        of = self.group_of
        edges = {(of[child], of[above]) for child, found in enumerate(self.tasks.parent_numbers) for above in found}
        parents: list[list[str]] = [[] for _ in self.groups]
        for group, above in sorted(edges):
            if above != group:
                parents[group].append(str(above))
        try:
            return _without_implied(Dag((str(group.index), parents[group.index]) for group in self.groups))
        except CycleError:
            return None

    # --- Updates ---------------------------------------------------------------------------------------------------

    def apply_move(self, name: str, before: CountedState, after: CountedState) -> int:
        """Update the counts for a task that changed its state. Returns the index of its group."""
        index = self.group_of[self.tasks.number[name]]
        group = self.groups[index]
        group.work_us = None
        group.counts[before] -= group.counts_in(name, before)
        group.counts[after] += group.counts_in(name, after)
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

    def set_height(self, rows: int) -> None:
        """Set how many rows the list fills: groups show more problems where these would be empty."""
        if rows != self._height:
            self._height, self._rows = rows, None

    @property
    def problems_shown(self) -> int:
        """The number of problem tasks that a collapsed group shows."""
        shown = [index for index in self._problems if self.shows_problems(index)]
        opened = sum(len(self.groups[index].members) for index in self._expanded)
        free = self._height - len(self.groups) - opened
        return max(PROBLEMS_SHOWN, free // len(shown) - 1) if shown else PROBLEMS_SHOWN

    @property
    def least_rows(self) -> int:
        """The number of rows if no group is expanded and each shows its first problems."""
        problems = (min(len(found), PROBLEMS_SHOWN + 1) for found in self._problems.values())
        return len(self.groups) + sum(problems)

    @property
    def rows(self) -> list[GroupRow]:
        """The rows from top to bottom."""
        if self._rows is None:
            self._rows, self._most = [], self.problems_shown
            for group in self.groups:
                self._first_rows[group.index] = len(self._rows)
                self._rows.extend(self._rows_of(group))
            self._task_rows = {row.task: place for place, row in enumerate(self._rows) if row.task is not None}
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
            rows.extend(GroupRow(index, member) for member in problems[: self._most])
            if len(problems) > self._most:
                rows.append(GroupRow(index, None, len(problems) - self._most))
        return rows

    def row_of(self, name: str) -> int:
        """Return the row of a task, or else that of its group."""
        number, _ = self.tasks.number[name], self.rows
        row = self._task_rows.get(number)
        return self._first_rows[self.group_of[number]] if row is None else row

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
        shown = len(problems) - found.hidden if found.hidden else 0
        return self.tasks.names[list(problems)[shown] if problems else group.members[0]]


def groups_of(board: Board) -> Groups:
    """The groups of a run: those that its flow declares, and families of names."""
    rows = board.projection.tasks
    declared = {
        name: spec.group for name, row in rows.items() if (spec := row.spec) is not None and spec.group is not None
    }
    return Groups(board.dag, {name: counted_state(row) for name, row in rows.items()}, declared)


class _Split(NamedTuple):
    """The title and the members of each group, in topological order of their first members."""

    declared: Mapping[str, str]
    groups: Sequence[tuple[str, Sequence[int]]]


#: By graph, for as long as it lives: the screens of a run show the same groups.
_SPLITS: WeakKeyDictionary[Dag, _Split] = WeakKeyDictionary()


def _split(dag: Dag, declared: Mapping[str, str]) -> Sequence[tuple[str, Sequence[int]]]:
    known = _SPLITS.get(dag)
    if known is None or known.declared != declared:
        known = _SPLITS[dag] = _Split(declared, _make_split(dag, declared))
    return known.groups


def _make_split(dag: Dag, declared: Mapping[str, str]) -> list[tuple[str, Sequence[int]]]:
    guessed = [number for number in dag.topological if dag.names[number] not in declared]
    prefix = len(shared_prefix(dag.names))
    titles = name_groups([dag.names[number][prefix:] for number in guessed])
    keys = dict(zip(guessed, _split_by_level(dag, guessed, titles), strict=True))
    found: dict[tuple[bool, str], list[int]] = {}  # by whether the flow declares it, and title
    for number in dag.topological:
        name = dag.names[number]
        is_guess = number in keys and (False, name) not in found  # the end of a map has the name of its group
        key = is_guess, keys[number] if is_guess else declared.get(name, name)
        found.setdefault(key, []).append(number)
    return [(dag.names[members[0]] if len(members) == 1 else title, members) for (_, title), members in found.items()]


def _without_implied(dag: Dag) -> Dag:
    """Leave out each edge beside which a longer path leads from its parent to its child."""
    below = [dag.bits_below(number) for number in range(len(dag))]
    kept: list[tuple[str, list[str]]] = []
    for number, parents in enumerate(dag.parent_numbers):
        nearest = [one for one in parents if not any(below[one] >> other & 1 for other in parents if other != one)]
        kept.append((dag.names[number], [dag.names[one] for one in nearest]))
    return Dag(kept)


def _split_by_level(dag: Dag, numbers: Sequence[int], titles: Sequence[str]) -> list[str]:
    """Split a group that has most of a large graph: names that say nothing are told apart by their levels."""
    size = -(-dag.depth // LEVEL_PARTS_MAX)
    most = {title for title, count in Counter(titles).items() if count > max(len(dag) // 2, GRAPH_MAX)}
    parts = [dag.levels[number] // size * size for number in numbers]
    if len({part for part, title in zip(parts, titles, strict=True) if title in most}) < 2:
        return list(titles)
    ends = {part: min(part + size, dag.depth) - 1 for part in parts}
    words = {part: f" L{part}" if part == end else f" L{part}-{end}" for part, end in ends.items()}
    return [title + words[part] if title in most else title for part, title in zip(parts, titles, strict=True)]


# --- The zoom levels of the graph screen, what each shows, and the order of tasks ------------------------------------


GRAPH_MAX = 60  # tasks that are shown individually at first
FAN_MAX = 24  # the same, of one level


class ZoomStep(StrEnum):
    """The step of a zoom, from far to near: the groups, the tasks as a list, or drawn; or what a filter found."""

    GROUPS = "groups"
    ROWS = "rows"
    DRAWING = "drawing"
    FOUND = "found"


def first_zoom(dag: Dag) -> ZoomStep:
    """Return the initial zoom: the tasks of a small graph or a chain, else the groups; these also of a fan."""
    if is_chain(dag) or len(dag) <= FAN_MAX or (dag.depth == 1 and len(dag) <= GRAPH_MAX):
        return ZoomStep.ROWS
    is_fan = max(Counter(dag.levels).values()) > FAN_MAX and 3 * len({*name_groups(dag.names)}) <= len(dag)
    return ZoomStep.GROUPS if is_fan or len(dag) > GRAPH_MAX else ZoomStep.ROWS


def has_map(board: Board) -> bool:
    """Whether a map has its elements, which are one group with its end."""
    return any(row.spec is not None and row.spec.item is not None for row in board.projection.tasks.values())


# --- Groups of names -------------------------------------------------------------------------------------------------


_BRACKETS = re.compile(r"\s*[(\[{].*[)\]}]\s*$", re.DOTALL)
_NUMBERS = re.compile(r"(?:[-_.:/#@ ]*(?:ID|id)?\d+)+$")
_BRACKET_ENDS = frozenset(")]}" + string.whitespace)
_FIRST_PART = re.compile(r"([^.:/]*[^.:/\d\s][^.:/]*?)\s*[.:/]+\s*(?=\S)")  # ALIGN of ALIGN.SORT, no number
_FIRST_WORD = re.compile(r"(?:.*[.:/])?[^-_ ]+[-_ ]")  # py_ of py_numpy
_SINGLES_MAX = 12  # small groups that stay what they are; more are merged by their first word,
_WORD_MIN = 3  # which so many share,
_REST_MAX = 40  # or, if more are left over, by their first letter
_SMALL_PART = 500  # of so many tasks, one alone is a small group


def stem(name: str) -> str:
    """Return the name without trailing numbers and brackets, or the name itself if nothing else remains."""
    has_brackets = name[-1:] in _BRACKET_ENDS
    return _NUMBERS.sub("", _BRACKETS.sub("", name) if has_brackets else name) or name


def _first_part(name: str) -> re.Match[str] | None:
    has_separator = "." in name or ":" in name or "/" in name  # a search for each takes a tenth of the match
    return _FIRST_PART.match(name) if has_separator else None


def name_groups(names: Sequence[str]) -> list[str]:
    """Return the title of the group of each name.

    ``ALIGN.SORT_3`` belongs to ``ALIGN``, and ``load_7`` to ``load``. If most names begin with the same part, the
    next one counts as well. Many small groups are merged by their first word (``py_*``) or letter (``h*``).
    """
    return _merge_small(_by_parts(names)) if names else []


def _by_parts(names: Sequence[str]) -> list[str]:
    parts = [_first_part(name) for name in names]
    titles = [stem(name) if part is None else part[1] for name, part in zip(names, parts, strict=True)]
    (most, size), *_ = Counter(titles).most_common(1)
    inside = [index for index, part in enumerate(parts) if part is not None and part[1] == most]
    if 2 * size > len(names) and len(inside) > _WORD_MIN:
        starts = {index: part.end() for index in inside if (part := parts[index]) is not None}
        inner = _by_parts([names[index][start:] for index, start in starts.items()])
        for (index, start), title in zip(starts.items(), inner, strict=True):
            titles[index] = names[index][:start] + title
    return titles


def _merge_small(titles: Sequence[str]) -> list[str]:
    """Merge small groups by their first word, and those that share none by their first letter."""
    sizes = Counter(titles)
    least = max(len(titles) // _SMALL_PART, 2)
    small = [title for title in titles if sizes[title] < least]
    if len(small) <= _SINGLES_MAX:
        return list(titles)
    words = Counter(map(_first_word, small))
    shared = {word for word, count in words.items() if word and count >= max(least, _WORD_MIN)}
    rest = {title for title in small if _first_word(title) not in shared}
    found = {title: f"{_first_word(title)}*" for title in small if title not in rest}
    if len(rest) > _REST_MAX:
        found.update({title: f"{title[:1].casefold()}*" for title in rest})
    return [found.get(title, title) for title in titles]


def _first_word(title: str) -> str:
    found = _FIRST_WORD.match(title)
    return found[0] if found is not None else ""
