"""The list of circuit breakers, pages and quarantined rows.

Idle items come last in every section, and only a few of them are shown until the user expands them. No clock is read
here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from ...engine.core.breaker import HOLDING, SHUT, BreakerState, BreakerStatus
from ...engine.core.ready_queue import spec_of
from ...engine.core.spec import json_object
from ...engine.core.waiting import BREAKER_WAITS
from ...engine.domain.events import Json
from ...engine.domain.rows import BreakerRow, PageRow
from ...engine.domain.states import TaskState
from ...engine.statefile.lists import GroupKey, QuarantineGroup, QuarantineRow
from ..text.pieces import Line
from .board import Board
from .lists import Filter
from .snapshot import PAGE_REFUSED

SEVERITIES = ("critical", "high", "normal")
SHOWN_AT_FIRST = 20  # held tasks that an expanded breaker shows before "more"
IDLE_BREAKERS_SHOWN = 8  # closed ones that are shown before "more"; idle pages and rows begin hidden


class Section(StrEnum):
    """The three parts of the list."""

    BREAKERS = "breakers"
    PAGES = "pages"
    ROWS = "rows"


Item: TypeAlias = BreakerStatus | PageRow | QuarantineGroup


class SystemsRow(NamedTuple):
    """A row of the list: the head of a section (``key`` None), an item, a task that a breaker holds, or the number
    of further rows (``hidden``)."""

    section: Section
    key: Hashable = None
    task: str = ""
    hidden: int = 0

    @property
    def is_head(self) -> bool:
        return self.key is None and not self.hidden


class ChosenRows(msgspec.Struct, frozen=True):
    """Held rows of one task that a command is about.

    ``options``: of the command; they name the rows by id, or as groups up to the last row that was seen. ``lines``: the
    rows as shown in the confirmation, where they are few enough.
    """

    task: str
    count: int
    options: Mapping[str, Json]
    lines: Sequence[Line] = ()


RowsAct = Literal["requeue", "discard"]


def held_rows_in(group: QuarantineGroup) -> ChosenRows:
    """Choose all held rows of a group, up to the last one that was seen."""
    groups = [[group.key.task, group.key.fingerprint, group.last_id]]
    return ChosenRows(group.key.task, group.held, {"groups": groups})


class Systems(msgspec.Struct):
    """The list. The ``load_...`` methods fill it; ``board`` is the run that it belongs to."""

    board: Board
    breakers: dict[str, BreakerStatus] = {}
    pages: dict[int, PageRow] = {}
    groups: dict[GroupKey, QuarantineGroup] = {}
    longest_name: str = ""  # of a task with such rows
    loaded_sections: set[Section] = set()  # sections that were read at least once
    filter: Filter = msgspec.field(default_factory=Filter)
    free_rows: int = 0  # a list that fits in so many rows shows idle items as well
    _callers: dict[str, tuple[str, ...]] = {}
    _expanded: set[SystemsRow] = set()

    def __post_init__(self) -> None:
        self._callers = callers_of(self.board)

    def with_board(self, board: Board) -> Systems:
        """Return the same list for another board; expanded rows stay expanded."""
        found = replace(self, board=board)
        if board.projection.run.run_id != self.board.projection.run.run_id:
            found.groups = {}
            found.loaded_sections = found.loaded_sections - {Section.ROWS}
        return found

    # --- Loading --------------------------------------------------------------------------------------------------

    def load_breakers(self, rows: Iterable[BreakerRow], now_us: int) -> None:
        """Load rows of the list BREAKERS; rows for downstreams of other flows are ignored."""
        self.board.update_lists(rows)
        self.loaded_sections.add(Section.BREAKERS)
        self.refresh(now_us)

    def refresh(self, now_us: int) -> bool:
        """Update the breakers of the board with the tasks that they hold. True if they changed."""
        before, self.breakers = self.breakers, counted_breakers(self.board, self._callers, now_us)
        return before != self.breakers

    def load_pages(self, rows: Iterable[PageRow]) -> None:
        """Load rows of the list PAGE_HEADS, which the board counts, too."""
        self.pages = {row.id: row for row in rows}
        self.board.update_lists(pages=sorted(self.pages.values(), key=lambda page: -page.updated_at))
        self.loaded_sections.add(Section.PAGES)

    def load_row_groups(self, rows: Iterable[QuarantineGroup]) -> None:
        self.groups = {row.key: row for row in rows}
        self.longest_name = max((row.name for row in self.groups.values()), key=len, default="")
        self.loaded_sections.add(Section.ROWS)

    def load_snapshot(self, now_us: int) -> None:
        """Show the breakers of a past snapshot of the board, and the tasks that they held."""
        self.pages.clear()
        self.groups.clear()
        self.loaded_sections = {Section.BREAKERS}
        self.refresh(now_us)

    # --- Queries -------------------------------------------------------------------------------------------------

    def toggle(self, row: SystemsRow) -> None:
        """Expand or collapse a row: the tasks of a breaker, or the rest of a section."""
        self._expanded ^= {_without_count(row)}

    def is_open(self, row: SystemsRow) -> bool:
        return _without_count(row) in self._expanded

    def rows(self) -> list[SystemsRow]:
        """Return the whole list, section by section."""
        with_idle = [row for section in Section for row in self._rows_of(section, shows_idle=True)]
        if len(with_idle) <= self.free_rows:
            return with_idle
        return [row for section in Section for row in self._rows_of(section)]

    def _rows_of(self, section: Section, shows_idle: bool = False) -> Iterator[SystemsRow]:
        yield SystemsRow(section)
        urgent, idle = self._keys(section)
        shown_idle = IDLE_BREAKERS_SHOWN if section is Section.BREAKERS else 0
        if shows_idle or self.filter or SystemsRow(section, hidden=1) in self._expanded:
            shown_idle = len(idle)
        for key in (*urgent, *idle[:shown_idle]):
            row = SystemsRow(section, key)
            yield row
            if section is Section.BREAKERS and row in self._expanded:
                yield from self._held_task_rows(str(key))
        if len(idle) > shown_idle:
            yield SystemsRow(section, hidden=len(idle) - shown_idle)

    def _held_task_rows(self, downstream: str) -> Iterator[SystemsRow]:
        held = self.breakers[downstream].held
        whole = SystemsRow(Section.BREAKERS, downstream, hidden=1) in self._expanded
        shown = len(held) if whole else SHOWN_AT_FIRST
        for name in held[:shown]:
            yield SystemsRow(Section.BREAKERS, downstream, task=name)
        if len(held) > shown:
            yield SystemsRow(Section.BREAKERS, downstream, hidden=len(held) - shown)

    def _keys(self, section: Section) -> tuple[list[Hashable], list[Hashable]]:
        """Return the keys of urgent items and of idle items, each in order."""
        urgent: list[Hashable] = []
        idle: list[Hashable] = []
        rank, words = _RANKS[section], _WORDS[section]
        for key, item in sorted(self._items(section).items(), key=lambda one: rank(one[1])):
            if self.filter.matches(words(item).casefold()):
                (idle if item.is_idle else urgent).append(key)
        return urgent, idle

    def _items(self, section: Section) -> Mapping[Hashable, Item]:
        found: Mapping[Section, Mapping[Any, Item]] = {
            Section.BREAKERS: self.breakers,
            Section.PAGES: self.pages,
            Section.ROWS: self.groups,
        }
        return found[section]

    def items_needing_human(self) -> list[SystemsRow]:
        """Return the rows of items that need a human, in the order shown."""
        return [row for row in self.rows() if not row.task and (item := self.item(row)) and item.needs_human]

    def item(self, row: SystemsRow) -> Item | None:
        """Return the item of a row; None for heads, for "more", and for items that are gone."""
        return None if row.hidden else self._items(row.section).get(row.key)

    def tasks_of(self, row: SystemsRow) -> Sequence[str]:
        """Return the tasks of this run that a row is about."""
        item = self.item(row)
        names: Sequence[str] = ()
        if row.task:
            names = (row.task,)
        elif isinstance(item, BreakerStatus):
            names = item.held
        elif isinstance(item, PageRow):
            names = (item.task or "",) if item.run_id == self.board.projection.run.run_id else ()
        elif item is not None:
            names = (item.name,)
        return tuple(name for name in names if name in self.board.projection.tasks)


def sender_names(options: str) -> tuple[str, ...]:
    """Return the names of the senders of pages in the ``options`` of a run, without their secrets."""
    senders = json_object(options).get("pages")
    names = (one.get("sender") for one in senders or () if isinstance(one, dict))
    return tuple(dict.fromkeys(str(name) for name in names if name))


def _without_count(row: SystemsRow) -> SystemsRow:
    """Return the row without its changing number of hidden rows, as a key."""
    return row._replace(hidden=1) if row.hidden else row


_BREAKER_RANKS = {
    BreakerState.OPEN: 0,
    BreakerState.FORCED_OPEN: 1,
    BreakerState.HALF_OPEN: 2,
    BreakerState.DISABLED: 3,
    **dict.fromkeys((BreakerState.CLOSED, BreakerState.METRICS_ONLY), 4),
}
_PAGE_RANKS = {"open": 0, "snoozed": 1, "acked": 2}


def _page_rank(page: PageRow) -> tuple[int, int, int]:
    severity = SEVERITIES.index(page.severity) if page.severity in SEVERITIES else len(SEVERITIES)
    return _PAGE_RANKS.get(page.state, 3), severity, -page.id


#: The place of an item in its section: what needs a human first, then what recovers by itself; what is idle is last.
_RANKS: Mapping[Section, Callable[[Any], tuple[Any, ...]]] = {
    Section.BREAKERS: lambda one: (_BREAKER_RANKS[one.state], one.name),
    Section.PAGES: _page_rank,
    Section.ROWS: lambda one: (-one.held, one.name, one.first_at),
}
#: What a filter searches.
_WORDS: Mapping[Section, Callable[[Any], str]] = {
    Section.BREAKERS: lambda one: f"{one.name} {one.state} {one.why}",
    Section.PAGES: lambda one: f"{one.title} {one.severity} {one.state} {one.acked_by or ''}",
    Section.ROWS: lambda one: f"{one.name} {one.error}",
}


# --- Which tasks a breaker holds -------------------------------------------------------------------------------------


def callers_of(board: Board) -> dict[str, tuple[str, ...]]:
    """Return the tasks of each downstream, in the order of the flow."""
    found: dict[str, list[str]] = {}
    for name, row in board.projection.tasks.items():
        downstream = spec_of(row).downstream
        if downstream is not None:
            found.setdefault(downstream, []).append(name)
    return {downstream: tuple(names) for downstream, names in found.items()}


def counted_breakers(board: Board, callers: Mapping[str, Iterable[str]], now_us: int) -> dict[str, BreakerStatus]:
    """Return the breakers of a run with the tasks that they hold now, and the calls in progress."""
    calls = (row for row in map(board.row, board.active) if row.state is TaskState.RUNNING)
    running = Counter(spec_of(row).downstream for row in calls)
    found = board.snapshot.breakers_of_run()
    return {
        name: replace(one, held=_held_by(board, one, callers.get(name, ()), now_us), running=running[name])
        for name, one in found.items()
    }


def _held_by(board: Board, status: BreakerStatus, callers: Iterable[str], now_us: int) -> tuple[str, ...]:
    """Return the tasks that wait for a breaker or its budget; an open one ends those that may not wait."""
    is_held = status.state in HOLDING or status.breaker.is_releasing(now_us) or status.reserve_at is not None
    is_ending = status.is_blocking and status.spec.on_open != "hold"
    waits = board.waits(callers, now_us) if is_held and not is_ending else {}
    return tuple(name for name, reason in waits.items() if reason in BREAKER_WAITS)


def blocking_downstream(board: Board, name: str, now_us: int) -> str | None:
    """Return the downstream whose breaker keeps a task from starting; None if none does."""
    return spec_of(board.row(name)).downstream if board.waits([name], now_us)[name] in BREAKER_WAITS else None


# --- The number of breakers, pages and tasks that need a human, for the tab line of every screen ---------------------


class BadgeCounts:
    """Counts from the board alone, without reading a list."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._downstreams = frozenset(board.snapshot.downstreams)
        self._with_bad_rows = {name for name, row in board.projection.tasks.items() if row.bad_rows}

    def update(self, names: Iterable[str]) -> None:
        """Update the counts for tasks that have changed."""
        for name in names:
            if self._board.row(name).bad_rows:
                self._with_bad_rows.add(name)
            else:
                self._with_bad_rows.discard(name)

    @property
    def count(self) -> int:
        """Blocking breakers, pages that a sender has refused, and tasks with quarantined rows.

        A page that was sent is about what the inbox counts.
        """
        snapshot = self._board.snapshot
        shut = sum(1 for name in self._downstreams & snapshot.breakers.keys() if snapshot.breakers[name].state in SHUT)
        refused = list(snapshot.page_notes.values()).count(PAGE_REFUSED)
        return shut + refused + len(self._with_bad_rows)


# --- A window of a long list of quarantined rows: reads the visible pages, and caches the pages used last ------------
#
# A row is identified by its index: quarantined rows are never deleted, so the index of a row never changes.


PAGE_ROWS = 100  # rows that are read at a time
PAGES_MAX = 30  # in the cache


class RowWindow:
    """``total``: the number of rows in the list."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._pages: OrderedDict[int, Sequence[QuarantineRow]] = OrderedDict()
        self._stale_pages: set[int] = set()  # pages whose rows may have changed

    def row(self, index: int) -> QuarantineRow | None:
        """Return the row at an index, None if it has not been read."""
        page = self._pages.get(index // PAGE_ROWS, ())
        return page[index % PAGE_ROWS] if index % PAGE_ROWS < len(page) else None

    def store(self, page: int, rows: Sequence[QuarantineRow]) -> None:
        """Store the rows that were read from the index ``page * PAGE_ROWS`` on."""
        self._pages[page] = rows
        self._pages.move_to_end(page)
        self._stale_pages.discard(page)
        while len(self._pages) > PAGES_MAX:
            self._stale_pages.discard(self._pages.popitem(last=False)[0])

    def invalidate(self, total: int) -> None:
        """Mark all pages as stale; their rows are shown until they were read again."""
        self.total = total
        self._stale_pages = set(self._pages)

    def missing(self, first: int, last: int) -> list[int]:
        """Return the pages to be read for the indices from ``first`` to before ``last``."""
        last = min(last, self.total)
        if first >= last:
            return []
        pages = range(first // PAGE_ROWS, (last - 1) // PAGE_ROWS + 1)
        return [page for page in pages if page not in self._pages or page in self._stale_pages]
