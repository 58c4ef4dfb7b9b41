"""What stands between tasks and the world: circuit breakers, pages, and rows that were set aside.

Rows of the tables become values here, in the order in which somebody looks for them: first what wants a human, then
what heals by itself, then what is quiet, of which only a few are shown until somebody asks. Nothing here asks for the
time.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

from ...engine.core.breaker import PASSING, Breaker, BreakerState
from ...engine.core.cause_history import Memory
from ...engine.json_types import Json
from ...engine.statefile.queries import BreakerRow, PageHead, QuarantineGroup
from ..text.pieces import Line
from .board import Board
from .breaker_view import Guard, callers_of, guard_of, held_by, specs_of
from .filters import Filter

SEVERITIES = ("critical", "high", "normal")
SHOWN_AT_FIRST = 20  # tasks that an opened breaker shows before "more"
QUIET_BREAKERS = 8  # closed ones that are shown before "more"; quiet pages and rows begin hidden


class Section(StrEnum):
    """The three parts of the list."""

    BREAKERS = "breakers"
    PAGES = "pages"
    ROWS = "rows"


class GroupKey(NamedTuple):
    """Rows of one task that failed alike; ``fingerprint`` is the loose one, None where the task named no exception."""

    task: str
    fingerprint: str | None


class SystemsRow(NamedTuple):
    """One row of the list: the head of a section (``key`` None), a thing in it, a task that a breaker holds, or how
    many more (``hidden``) of either there are."""

    section: Section
    key: Hashable = None
    task: str = ""
    hidden: int = 0

    @property
    def is_head(self) -> bool:
        """Nothing can be done with it."""
        return self.key is None and not self.hidden


@dataclass(frozen=True, slots=True)
class Page:
    """One row of table ``page`` without its body. Instants in microseconds UTC."""

    id: int
    cause: str
    severity: str
    title: str
    state: str  # open acked snoozed resolved
    count: int
    first_at: int
    changed_at: int  # counted up, or somebody did something about it
    run_id: str | None = None
    task: str | None = None
    sent_at: int | None = None
    send_error: str | None = None
    snoozed_until: int | None = None
    acked_by: str | None = None

    @property
    def wants_human(self) -> bool:
        """Nobody has said that he looks after it."""
        return self.state == "open"

    @property
    def is_quiet(self) -> bool:
        """Nobody has to do anything any more."""
        return self.state == "resolved"

    @property
    def is_unsent(self) -> bool:
        """It should go out, and a sender does not take it."""
        return self.send_error is not None and self.state == "open"


@dataclass(frozen=True, slots=True)
class PageBody:
    """What a page says, as far as it is shown here. ``deadline_at``: microseconds UTC."""

    why: str | None = None
    diagnostic: str | None = None
    error: str | None = None
    changed: Sequence[str] | None = None  # between the last two attempts
    memory: Memory | None = None
    held: int | None = None  # tasks below
    deadline_at: int | None = None
    owner: str | None = None
    downstream: str | None = None
    command: str | None = None


def body_of(body: Json) -> PageBody:
    """Read the body of a page; one that is damaged says nothing."""
    try:
        return msgspec.convert(body, PageBody)
    except msgspec.ValidationError:
        return PageBody()


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one task that failed alike. ``counts``: state -> rows; ``last_id``: the latest row that is held."""

    key: GroupKey
    counts: Mapping[str, int]
    error: str
    first_at: int
    last_at: int
    last_id: int

    @property
    def held(self) -> int:
        """Rows that wait for a decision."""
        return self.counts.get("held", 0)

    @property
    def total(self) -> int:
        """Rows, whatever became of them."""
        return sum(self.counts.values())

    @property
    def wants_human(self) -> bool:
        """Somebody has to decide."""
        return self.held > 0

    @property
    def is_quiet(self) -> bool:
        """All of them came through or were dropped."""
        return not any(self.counts.get(state) for state in ("held", "requeued", "provisional"))


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Held rows of one task that an act is about.

    ``options`` name them to the engine: by their ids, or as groups up to the last row that was seen. ``lines``: as they
    are shown before the act, where they are few enough to be listed.
    """

    task: str
    count: int
    options: Mapping[str, Any]
    lines: Sequence[Line] = ()


RowsAct = Literal["requeue", "discard"]


def chosen_group(group: Group) -> ChosenRows:
    """All rows of a group that are held, up to the last one that was seen."""
    groups = [[group.key.task, group.key.fingerprint, group.last_id]]
    return ChosenRows(group.key.task, group.held, {"groups": groups})


@dataclass(slots=True)
class Systems:
    """The list. Fed by ``learn`` with what was read; ``board`` is the run that it belongs to."""

    board: Board
    guards: dict[str, Guard] = field(default_factory=dict)
    pages: dict[int, Page] = field(default_factory=dict)
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    known: set[Section] = field(default_factory=set)  # what was read at least once
    filter: Filter = field(default_factory=Filter)
    _callers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _opened: set[SystemsRow] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._callers = callers_of(self.board)

    def beside(self, board: Board) -> Systems:
        """The same things beside another picture; what was open stays open."""
        found = Systems(board, dict(self.guards), dict(self.pages), dict(self.groups), set(self.known), self.filter)
        found._opened = set(self._opened)
        if board.fold.run.run_id != self.board.fold.run.run_id:
            found.groups.clear()
            found.known.discard(Section.ROWS)
        return found

    # --- Told -----------------------------------------------------------------------------------------------------

    def learn_breakers(self, rows: Iterable[BreakerRow], now_us: int) -> None:
        """Rows of the list BREAKERS; downstreams that this flow does not know belong to another one."""
        read = {row.downstream: row for row in rows}
        self.guards = {name: guard_of(spec, read.get(name)) for name, spec in specs_of(self.board).items()}
        self.known.add(Section.BREAKERS)
        self.recount(now_us)

    def recount(self, now_us: int) -> bool:
        """Look again who is held. True: it is not who it was."""
        before, self.guards = (
            self.guards,
            {
                name: held_by(self.board, guard, self._callers.get(name, ()), now_us)
                for name, guard in self.guards.items()
            },
        )
        return before != self.guards

    def learn_pages(self, rows: Iterable[PageHead]) -> None:
        """Rows of the list PAGE_HEADS."""
        self.pages = {row.id: _page_of(row) for row in rows}
        self.known.add(Section.PAGES)

    def learn_groups(self, rows: Iterable[QuarantineGroup]) -> None:
        """Rows of the list QUARANTINE_GROUPS."""
        self.groups = _groups_of(rows)
        self.known.add(Section.ROWS)

    def learn_moment(self, now_us: int) -> None:
        """What the board itself knows, of another moment than now: how breakers stood, and whom they held."""
        known = self.board.moment.breakers
        self.guards = {}
        for name, spec in specs_of(self.board).items():
            view = known.get(name)
            breaker = Breaker() if view is None else Breaker(BreakerState(view.state), reopens_at=view.reopens_at)
            self.guards[name] = Guard(spec, breaker, spec.bucket_capacity)
        self.pages.clear()
        self.groups.clear()
        self.known = {Section.BREAKERS}
        self.recount(now_us)

    # --- Asked ----------------------------------------------------------------------------------------------------

    def toggle(self, row: SystemsRow) -> None:
        """Show or hide what is behind a row: the tasks of a breaker, more of a section."""
        self._opened ^= {_unnumbered(row)}

    def is_open(self, row: SystemsRow) -> bool:
        """Whether that is shown."""
        return _unnumbered(row) in self._opened

    def rows(self) -> list[SystemsRow]:
        """The whole list, section by section."""
        return [row for section in Section for row in self._rows_of(section)]

    def _rows_of(self, section: Section) -> Iterator[SystemsRow]:
        yield SystemsRow(section)
        loud, quiet = self._things(section)
        shown_quiet = QUIET_BREAKERS if section is Section.BREAKERS else 0
        if self.filter or SystemsRow(section, hidden=1) in self._opened:
            shown_quiet = len(quiet)
        for key in (*loud, *quiet[:shown_quiet]):
            row = SystemsRow(section, key)
            yield row
            if section is Section.BREAKERS and row in self._opened:
                yield from self._held_rows(str(key))
        if len(quiet) > shown_quiet:
            yield SystemsRow(section, hidden=len(quiet) - shown_quiet)

    def _held_rows(self, downstream: str) -> Iterator[SystemsRow]:
        held = self.guards[downstream].held
        whole = SystemsRow(Section.BREAKERS, downstream, hidden=1) in self._opened
        shown = len(held) if whole else SHOWN_AT_FIRST
        for name in held[:shown]:
            yield SystemsRow(Section.BREAKERS, downstream, task=name)
        if len(held) > shown:
            yield SystemsRow(Section.BREAKERS, downstream, hidden=len(held) - shown)

    def _things(self, section: Section) -> tuple[list[Hashable], list[Hashable]]:
        """Keys of what is loud and of what is quiet, each in the order in which they are looked for."""
        loud: list[Hashable] = []
        quiet: list[Hashable] = []
        for key, is_quiet, text in self._ordered(section):
            if self.filter.keeps(text.casefold()):
                (quiet if is_quiet else loud).append(key)
        return loud, quiet

    def _ordered(self, section: Section) -> Iterator[tuple[Hashable, bool, str]]:
        """Key, whether it is quiet, and what filters look through."""
        if section is Section.BREAKERS:
            for guard in sorted(self.guards.values(), key=lambda one: (_GUARD_RANKS[one.state], one.name)):
                yield guard.name, guard.is_quiet, f"{guard.name} {guard.state} {guard.why}"
        elif section is Section.PAGES:
            for page in sorted(self.pages.values(), key=_page_rank):
                yield page.id, page.is_quiet, f"{page.title} {page.severity} {page.state} {page.acked_by or ''}"
        else:
            for group in sorted(self.groups.values(), key=lambda one: (-one.held, one.key.task, one.first_at)):
                yield group.key, group.is_quiet, f"{group.key.task} {group.error}"

    def wanting(self) -> list[SystemsRow]:
        """What wants a human, in the order shown."""
        return [row for row in self.rows() if not row.task and self.wants_human(row)]

    def wants_human(self, row: SystemsRow) -> bool:
        """Whether somebody has to decide about what a row stands for."""
        thing = self.thing(row)
        return thing is not None and thing.wants_human

    def thing(self, row: SystemsRow) -> Guard | Page | Group | None:
        """What a row stands for; None for heads, for "more", and for what has gone."""
        if row.hidden:
            return None
        if row.section is Section.BREAKERS:
            return self.guards.get(row.key) if isinstance(row.key, str) else None
        if row.section is Section.PAGES:
            return self.pages.get(row.key) if isinstance(row.key, int) else None
        return self.groups.get(row.key) if isinstance(row.key, GroupKey) else None

    def tasks_of(self, row: SystemsRow) -> Sequence[str]:
        """The tasks that a row is about, as far as they are of this run."""
        thing = self.thing(row)
        names: Sequence[str] = ()
        if row.task:
            names = (row.task,)
        elif isinstance(thing, Guard):
            names = thing.held
        elif isinstance(thing, Page):
            names = (thing.task or "",) if thing.run_id == self.board.fold.run.run_id else ()
        elif thing is not None:
            names = (thing.key.task,)
        return tuple(name for name in names if name in self.board.fold.tasks)


def senders_of(options: str) -> tuple[str, ...]:
    """How pages leave the machine, as the flow of a run names it (``RunRow.options``); never with their secrets."""
    try:
        said = json.loads(options).get("pages") or ()
        return tuple(dict.fromkeys(str(one["sender"]) for one in said))
    except (ValueError, AttributeError, TypeError, KeyError):
        return ()


def _unnumbered(row: SystemsRow) -> SystemsRow:
    """How many more there are changes while it stays the same row."""
    return row._replace(hidden=1) if row.hidden else row


_GUARD_RANKS = {
    BreakerState.OPEN: 0,
    BreakerState.FORCED_OPEN: 1,
    BreakerState.HALF_OPEN: 2,
    BreakerState.DISABLED: 3,
    **dict.fromkeys(PASSING - {BreakerState.DISABLED}, 4),
}
_PAGE_RANKS = {"open": 0, "snoozed": 1, "acked": 2}


def _page_rank(page: Page) -> tuple[int, int, int]:
    severity = SEVERITIES.index(page.severity) if page.severity in SEVERITIES else len(SEVERITIES)
    return _PAGE_RANKS.get(page.state, 3), severity, -page.id


def _page_of(row: PageHead) -> Page:
    return Page(
        id=row.id,
        cause=row.cause,
        severity=row.severity,
        title=row.title,
        state=row.state,
        count=row.counted,
        first_at=row.created_at,
        changed_at=row.updated_at,
        run_id=row.run_id,
        task=row.task,
        sent_at=row.sent_at,
        send_error=row.send_error,
        snoozed_until=row.snoozed_until,
        acked_by=row.acked_by,
    )


def _groups_of(rows: Iterable[QuarantineGroup]) -> dict[GroupKey, Group]:
    """One group of the rows that the list has for each state."""
    by_key: dict[GroupKey, list[QuarantineGroup]] = {}
    for row in rows:
        by_key.setdefault(GroupKey(row.name, row.fingerprint), []).append(row)
    found = {}
    for key, parts in by_key.items():
        held = [part for part in parts if part.state == "held"]
        told = held[0] if held else parts[0]
        found[key] = Group(
            key,
            {part.state: part.rows for part in parts},
            told.error or "",
            min(part.first_at for part in parts),
            max(part.last_at for part in parts),
            told.last_id,
        )
    return found
