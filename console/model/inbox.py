"""The inbox: what needs a human, one row per cause and not per task.

A cause is the loose fingerprint of the latest failure, and the downstream: 1,247 tasks with the same bug are one
decision, and one helper that two services refuse is two. Causes are ordered by what they hold up; each knows since
when, which tasks, and whether anything changed between the attempts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ...engine.core.explain import short_error
from ...engine.core.projection import AttemptRow, RunFold, TaskRow
from ...engine.domain.command import Target
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from .board import Board, Delta
from .evidence import failures_of
from .filters import Filter


class Sort(StrEnum):
    """What comes first."""

    HELD = "held"  # the most tasks that wait
    COUNT = "count"  # the most tasks that failed
    LATEST = "latest"  # the last to fail
    OLDEST = "oldest"  # the longest without a decision


@dataclass(frozen=True, slots=True)
class Entry:
    """One task that needs a human. Instants in microseconds UTC."""

    name: str
    state: str
    position: int
    fingerprint: str  # loose
    downstream: str | None
    strict: str | None
    title: str  # "UnicodeDecodeError parser.py:31 in read_row"
    message: str
    kind: str | None  # of the dead letter
    first_seen: int  # the first attempt that failed like this
    since: int  # when it came to need a human
    haystack: str  # what filters look through

    @property
    def cause(self) -> str:
        """The key of its cause."""
        return _key(self.fingerprint, self.downstream)


@dataclass(frozen=True, slots=True)
class Cause:
    """Tasks that failed alike. ``held``: distinct tasks that wait below any of them."""

    fingerprint: str
    downstream: str | None
    title: str
    message: str
    tasks: tuple[str, ...]
    dead: int  # how many are dead letters; the others have FAILED
    held: int
    first_seen: int
    last_seen: int
    oldest: int  # since when the first of them waits for a decision

    @property
    def key(self) -> str:
        """What it is known by among the causes of its run."""
        return _key(self.fingerprint, self.downstream)

    @property
    def count(self) -> int:
        """How many tasks failed like this."""
        return len(self.tasks)


class InboxRow(NamedTuple):
    """One row of the list: a cause, by its key (``task`` None, ``hidden`` 0), a task of it, or how many more."""

    cause: str
    task: str | None = None
    hidden: int = 0


#: Tasks that an open cause shows before "more".
SHOWN_AT_FIRST = 20


class Inbox:
    """Everything of one run that needs a human. Kept up to date by ``apply``; lists are made when asked for."""

    def __init__(self, board: Board | RunFold) -> None:
        self.board = board if isinstance(board, Board) else Board(board)
        self.sort = Sort.HELD
        self.filter = Filter()
        self._entries: dict[str, Entry] = {}
        self._open: dict[str, int] = {}  # key -> how many tasks are shown
        self._families: dict[str, list[Entry]] | None = None  # by cause, each in the order of the flow
        self._whole: dict[str, Cause] = {}  # causes of which the filter keeps every task
        self._causes: list[Cause] | None = None
        for name in self.board.problems:
            self._entries[name] = entry_of(self.board.row(name))

    # --- Told ------------------------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> bool:
        """Take what the board answered. True: the list is another one."""
        changed = False
        for name in delta.tasks:
            row = self.board.row(name)
            known = self._entries.get(name)
            if row.state in NEEDS_HUMAN:
                entry = entry_of(row)
                changed |= entry != known
                self._entries[name] = entry
            elif known is not None:
                del self._entries[name]
                changed = True
        if changed:
            self._families = None
            self.recount()
        return changed

    def recount(self) -> None:
        """Count again what is held, and order by it: other tasks have moved. Once a second is often enough."""
        self._whole.clear()
        self._causes = None

    def order_by(self, sort: Sort) -> None:
        """Another order."""
        self.sort = sort
        self._causes = None

    def show_only(self, chosen: Filter) -> None:
        """Only tasks that the filter keeps."""
        self.filter = chosen
        self._causes = None

    # --- Asked -----------------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Tasks that need a human, filter or not."""
        return len(self._entries)

    @property
    def dead_letters(self) -> int:
        """How many of them are dead letters."""
        return self.board.dead_letters

    def entry(self, name: str) -> Entry:
        """One task. Raises KeyError if it does not need a human (any more)."""
        return self._entries[name]

    def groups(self) -> list[Cause]:
        """The causes that the filter leaves, in order."""
        if self._causes is None:
            self._causes = self._grouped()
        return self._causes

    def cause(self, key: str) -> Cause | None:
        """A cause by its key, if it is listed."""
        return next((cause for cause in self.groups() if cause.key == key), None)

    def matching(self) -> tuple[str, ...]:
        """Every task that the filter leaves, in the order shown: what "mark all" means."""
        return tuple(name for cause in self.groups() for name in cause.tasks)

    def _grouped(self) -> list[Cause]:
        if self._families is None:
            self._families = _families(self._entries.values())
        causes = [self._kept(key, entries) for key, entries in self._families.items()]
        return sorted((cause for cause in causes if cause is not None), key=_ORDERS[self.sort])

    def _kept(self, key: str, entries: list[Entry]) -> Cause | None:
        """What the filter leaves of a cause; most often all of it or nothing."""
        keeps = self.filter.keeps
        kept = [entry for entry in entries if keeps(entry.haystack)] if self.filter else entries
        if len(kept) < len(entries):
            return self._cause(kept) if kept else None
        if key not in self._whole:
            self._whole[key] = self._cause(kept)
        return self._whole[key]

    def _cause(self, entries: list[Entry]) -> Cause:
        tasks = tuple([entry.name for entry in entries])
        since = [entry.since for entry in entries]
        return Cause(
            fingerprint=entries[0].fingerprint,
            downstream=entries[0].downstream,
            title=_commonest([entry.title for entry in entries]),
            message=entries[0].message,
            tasks=tasks,
            dead=[entry.state for entry in entries].count(TaskState.DEAD_LETTER),
            held=self.board.held_by(*tasks),
            first_seen=min([entry.first_seen for entry in entries]),
            last_seen=max(since),
            oldest=min(since),
        )

    # --- Folding ---------------------------------------------------------------------------------------------------

    def is_open(self, key: str) -> bool:
        """Whether a cause shows its tasks."""
        return key in self._open

    def toggle(self, row: InboxRow) -> None:
        """Open or close a cause; on "more", show all of it."""
        if row.hidden:
            self._open[row.cause] = len(self._entries)
        elif row.cause in self._open:
            del self._open[row.cause]
        else:
            self._open[row.cause] = SHOWN_AT_FIRST

    def rows(self) -> list[InboxRow]:
        """What is shown, from top to bottom."""
        rows: list[InboxRow] = []
        for cause in self.groups():
            rows.append(InboxRow(cause.key))
            shown = self._open.get(cause.key, 0)
            if shown:
                rows.extend(InboxRow(cause.key, name) for name in cause.tasks[:shown])
                if cause.count > shown:
                    rows.append(InboxRow(cause.key, None, cause.count - shown))
        return rows


_ORDERS: dict[Sort, Callable[[Cause], tuple[int, ...]]] = {
    Sort.HELD: lambda cause: (-cause.held, -cause.count, cause.oldest),
    Sort.COUNT: lambda cause: (-cause.count, -cause.held, cause.oldest),
    Sort.LATEST: lambda cause: (-cause.last_seen, -cause.held),
    Sort.OLDEST: lambda cause: (cause.oldest, -cause.held),
}


def _key(fingerprint: str, downstream: str | None) -> str:
    return fingerprint if downstream is None else f"{fingerprint} {downstream}"


def _families(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """By cause, in the order in which causes came; the tasks of each in the order of the flow."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.cause, []).append(entry)
    for family in found.values():
        family.sort(key=attrgetter("position"))
    return found


def _commonest(titles: list[str]) -> str:
    return titles[0] if len(set(titles)) == 1 else Counter(titles).most_common(1)[0][0]


def entry_of(row: TaskRow) -> Entry:
    """What the inbox says of one task."""
    latest = row.attempts.get(row.attempt)
    fingerprint = _cause_of(row, latest)
    title = title_of(row, latest)
    message = row.error or (latest.error if latest is not None else None) or ""
    alike = [attempt for attempt in failures_of(row) if _loose(attempt) == fingerprint]
    since = row.ended_at or row.changed_at
    ends = [attempt.ended_at for attempt in alike if attempt.ended_at is not None]
    downstream = row.spec.downstream if row.spec is not None else None
    marks = (row.dead_letter_kind, row.failure_fingerprint, fingerprint, downstream)
    words = (row.name, row.state, title, message, *marks)
    return Entry(
        name=row.name,
        state=str(row.state),
        position=row.position,
        fingerprint=fingerprint,
        downstream=downstream,
        strict=row.failure_fingerprint,
        title=title,
        message=message,
        kind=row.dead_letter_kind,
        first_seen=min(ends, default=since),
        since=since,
        haystack="\n".join(word for word in words if word).casefold(),
    )


def _cause_of(row: TaskRow, latest: AttemptRow | None) -> str:
    """The loose fingerprint; without one the strict one, or what the engine calls it: never all in one group."""
    loose = _loose(latest) if latest is not None else None
    return loose or row.failure_fingerprint or row.dead_letter_kind or title_of(row, latest)


def _loose(attempt: AttemptRow) -> str | None:
    return attempt.fingerprint_loose or attempt.fingerprint


def title_of(row: TaskRow, latest: AttemptRow | None) -> str:
    """A failure in a few words, as exactly as is known."""
    if latest is not None and latest.explain:
        return latest.explain
    if latest is not None and latest.error_type:
        return short_error(latest.error_type)
    return row.dead_letter_kind or str(row.state)


def causes_of(board: Board, names: Iterable[str]) -> list[Cause]:
    """The causes of those of ``names`` that need a human, each with all of its tasks."""
    wanted = {entry_of(row).cause for row in map(board.row, names) if row.state in NEEDS_HUMAN}
    return [cause for cause in Inbox(board).groups() if cause.key in wanted]


def targets_of(board: Board, names: Iterable[str]) -> tuple[Target, ...]:
    """The frozen list that a ``Command`` carries."""
    rows: Sequence[TaskRow] = [board.row(name) for name in names]
    return tuple(Target(row.name, str(row.state), row.generation) for row in rows)
