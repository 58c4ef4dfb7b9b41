"""The inbox: the tasks that need a human, one row per cause; also tasks that only a human can let start.

A cause is the loose fingerprint of the latest failure plus the downstream: 1,247 tasks with the same bug are one
decision, and one helper that two downstreams refuse is two. Causes are ordered by the number of waiting tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ...engine.core.causes import CauseHistory
from ...engine.core.explain import short_error
from ...engine.core.outcome import ENVIRONMENT_FIELDS
from ...engine.core.projection import AttemptRow, RunProjection, TaskRow
from ...engine.core.waiting import HUMAN_WAITS, RunnerStatus, WaitReason, pause_author
from ...engine.domain.acts import Target
from ...engine.domain.events import Event
from ...engine.domain.states import FAILED_OUTCOMES, NEEDS_HUMAN, REJECTED, UNANSWERED, TaskState, cause_fingerprint
from ...engine.domain.text import format_clock, shell_word
from ...engine.statefile.lists import PastAttemptRow, QuarantineRow
from ...engine.statefile.logs import AttemptText
from .board import Board, Delta
from .lists import Filter
from .log import LogLine


class InboxOrder(StrEnum):
    """The order of causes: which come first."""

    HELD = "held"  # most waiting descendants
    COUNT = "count"  # most failed tasks
    LATEST = "latest"  # latest failure
    OLDEST = "oldest"  # longest without a decision


class InboxCause(msgspec.Struct, frozen=True):
    """A task that needs a human, or several that failed alike. Instants in microseconds UTC."""

    fingerprint: str  # what tasks of one cause share: that of the failure, or words
    downstream: str | None
    title: str  # "UnicodeDecodeError parser.py:31 in read_row"
    message: str
    tasks: tuple[str, ...]
    dead: int  # number of dead letters; the other tasks have FAILED
    held: int  # of a cause: distinct tasks that wait below any of its tasks
    first_seen: int  # the first attempt that failed like this
    last_seen: int  # when the last of them started to wait for a decision
    oldest: int  # when the first of them did
    messages: int = 1  # how many different ones the tasks have; ``message`` is the first
    kind: str | None = None  # of the dead letter that its first task is
    wait: WaitReason | None = None  # of tasks that a human lets start
    search_text: str = ""  # of one task: the text that filters search

    @property
    def key(self) -> str:
        return " ".join(filter(None, ("waits for" if self.wait else "", self.fingerprint, self.downstream)))

    @property
    def count(self) -> int:
        return len(self.tasks)


class InboxRow(NamedTuple):
    """A row of the list: a cause, by its key (``task`` None, ``hidden`` 0), a task of it, the number of further tasks
    (``hidden``), or another run (``run``; no cause)."""

    cause: str
    task: str | None = None
    hidden: int = 0
    run: str | None = None


#: Tasks that an expanded cause shows before "more".
SHOWN_AT_FIRST = 20


class Inbox:
    """The tasks of one run that need a human. ``apply`` updates them; lists are computed on request."""

    def __init__(self, board: Board | RunProjection, *, names_commands: bool = True) -> None:
        """``names_commands``: messages name the command of the shell that ends a wait."""
        self._names_commands = names_commands
        self.board = board if isinstance(board, Board) else Board(board)
        self.sort = InboxOrder.HELD
        self.filter = Filter()
        self._entries: dict[str, InboxCause] = {}
        self._tasks_shown: dict[str, int] = {}  # number of tasks shown, by the key of expanded causes
        self._families: dict[str, list[InboxCause]] | None = None  # by cause, each in the order of the flow
        self._whole: dict[str, InboxCause] = {}  # causes whose tasks all match the filter
        self._causes: list[InboxCause] | None = None
        self._held: Mapping[str, WaitReason] = {}  # tasks that only a human can let start
        for name in self.board.problems:
            self._entries[name] = entry_of(self.board.row(name))
        self._update_held()

    # --- Updates ---------------------------------------------------------------------------------------------------

    def apply(self, delta: Delta) -> bool:
        """Apply a change of the board. True if the list changed."""
        changed = False
        for name in delta.tasks - self._held.keys():
            row = self.board.row(name)
            known = self._entries.get(name)
            if row.state in NEEDS_HUMAN:
                entry = entry_of(row)
                changed |= entry != known
                self._entries[name] = entry
            elif known is not None:
                del self._entries[name]
                changed = True
        changed |= self._update_held()
        if changed:
            self._families = None
            self.refresh()
        return changed

    def _update_held(self) -> bool:
        """Update the tasks that only a human can let start. True if they changed."""
        held = self.board.held_tasks()
        if held == self._held:
            return False
        for name in self._held.keys() - held.keys():
            del self._entries[name]
            row = self.board.row(name)
            if row.state in NEEDS_HUMAN:
                self._entries[name] = entry_of(row)
        self._held = held
        for name, reason in held.items():
            self._entries[name] = held_entry_of(self.board, name, reason, self._names_commands)
        return True

    def refresh(self) -> None:
        """Recompute waiting descendants and the order, because other tasks moved; once a second is enough."""
        self._whole.clear()
        self._causes = None

    def order_by(self, sort: InboxOrder) -> None:
        """Set the order."""
        self.sort = sort
        self._causes = None

    def set_filter(self, chosen: Filter) -> None:
        self.filter = chosen
        self._causes = None

    # --- Queries --------------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """The number of tasks that need a human, before filtering."""
        return len(self._entries)

    @property
    def dead_letters(self) -> int:
        return self.board.dead_letters

    @property
    def failed(self) -> int:
        return sum(self.board.row(name).state is TaskState.FAILED for name in self._entries)

    @property
    def held(self) -> Counter[WaitReason]:
        """The number of tasks that did not fail and wait for a human, by what they wait for."""
        return Counter(self._held.values())

    def needs_human(self, name: str) -> bool:
        return name in self._entries

    def entry(self, name: str) -> InboxCause:
        """Return the entry of a task. Raises KeyError if it does not need a human."""
        return self._entries[name]

    def causes(self) -> list[InboxCause]:
        """Return the causes that match the filter, in order."""
        if self._causes is None:
            self._causes = self._grouped()
        return self._causes

    def matching(self) -> tuple[str, ...]:
        """Return every task that matches the filter, in the order shown, for "mark all"."""
        return tuple(name for cause in self.causes() for name in cause.tasks)

    def _grouped(self) -> list[InboxCause]:
        if self._families is None:
            self._families = self._by_cause()
        causes = [self._filter_cause(key, entries) for key, entries in self._families.items()]
        return sorted((cause for cause in causes if cause is not None), key=_ORDERS[self.sort])

    def _filter_cause(self, key: str, entries: list[InboxCause]) -> InboxCause | None:
        """Return the cause with its matching tasks; usually all or none of them match."""
        matches = self.filter.matches
        kept = [entry for entry in entries if matches(entry.search_text)] if self.filter else entries
        if len(kept) < len(entries):
            return self._cause(kept) if kept else None
        if key not in self._whole:
            self._whole[key] = self._cause(kept)
        return self._whole[key]

    def _by_cause(self) -> dict[str, list[InboxCause]]:
        """Group the tasks by cause, those of each in the order of the flow."""
        found: dict[str, list[InboxCause]] = {}
        for name in sorted(self._entries, key=lambda name: self.board.row(name).position):
            found.setdefault(self._entries[name].key, []).append(self._entries[name])
        return found

    def _cause(self, entries: list[InboxCause]) -> InboxCause:
        tasks = tuple([entry.tasks[0] for entry in entries])
        return replace(
            entries[0],
            title=Counter([entry.title for entry in entries]).most_common(1)[0][0],
            tasks=tasks,
            dead=sum([entry.dead for entry in entries]),
            held=self.board.waiting_below(*tasks),
            first_seen=min([entry.first_seen for entry in entries]),
            last_seen=max([entry.last_seen for entry in entries]),
            oldest=min([entry.oldest for entry in entries]),
            messages=len({entry.message for entry in entries}),
        )

    # --- Expanding ------------------------------------------------------------------------------------------------

    def is_open(self, key: str) -> bool:
        """Whether a cause is expanded."""
        return key in self._tasks_shown

    def toggle(self, row: InboxRow) -> None:
        """Expand or collapse a cause; on "more", show all of its tasks."""
        if row.hidden:
            self._tasks_shown[row.cause] = len(self._entries)
        elif row.cause in self._tasks_shown:
            del self._tasks_shown[row.cause]
        else:
            self._tasks_shown[row.cause] = SHOWN_AT_FIRST

    def rows(self) -> list[InboxRow]:
        """Return the rows from top to bottom."""
        rows: list[InboxRow] = []
        for cause in self.causes():
            rows.append(InboxRow(cause.key))
            shown = self._tasks_shown.get(cause.key, 0)
            if shown:
                rows.extend(InboxRow(cause.key, name) for name in cause.tasks[:shown])
                if cause.count > shown:
                    rows.append(InboxRow(cause.key, None, cause.count - shown))
        return rows


_ORDERS: dict[InboxOrder, Callable[[InboxCause], tuple[int, ...]]] = {
    InboxOrder.HELD: lambda cause: (-cause.held, -cause.count, cause.oldest),
    InboxOrder.COUNT: lambda cause: (-cause.count, -cause.held, cause.oldest),
    InboxOrder.LATEST: lambda cause: (-cause.last_seen, -cause.held),
    InboxOrder.OLDEST: lambda cause: (cause.oldest, -cause.held),
}


def entry_of(row: TaskRow) -> InboxCause:
    latest = row.latest
    title = title_of(row, latest)
    fingerprint = _fingerprint_of_failure(row) or row.dead_letter_kind or title
    message = row.error or (latest.error if latest is not None else None) or ""
    same_failures = [one for one in failures_of(row) if fingerprint_of_attempt(one) == fingerprint]
    since = row.ended_at or row.changed_at
    ends = [attempt.ended_at for attempt in same_failures if attempt.ended_at is not None]
    downstream = row.spec.downstream if row.spec is not None else None
    labels = (row.dead_letter_kind, row.failure_fingerprint, fingerprint, downstream)
    words = (row.name, row.state, title, message, *labels)
    return InboxCause(
        fingerprint=fingerprint,
        downstream=downstream,
        title=title,
        message=message,
        tasks=(row.name,),
        dead=int(row.state is TaskState.DEAD_LETTER),
        held=0,
        first_seen=min(ends, default=since),
        last_seen=since,
        oldest=since,
        kind=row.dead_letter_kind,
        search_text="\n".join(word for word in words if word).casefold(),
    )


def held_entry_of(board: Board, name: str, reason: WaitReason, names_command: bool) -> InboxCause:
    """Return the entry of a task that could start if a human ended its wait."""
    entry, wait = entry_of(board.row(name)), HUMAN_WAITS[reason]
    whys = {
        WaitReason.PAUSE: f"paused {pause_author(board.projection.run)}",
        WaitReason.DEADLINE: entry.message,
        WaitReason.APPROVAL: _approval_text(board.row(name)),
        WaitReason.NOTHING: "all tasks above it have ended, and nothing starts it",
    }
    view = None if reason in whys else board.snapshot.breakers.get(entry.downstream or "")
    why = whys.get(reason, "") if view is None else view.breaker.why
    named = {WaitReason.APPROVAL: name}.get(reason) if view is None else entry.downstream
    has_end = reason is WaitReason.APPROVAL and board.row(name).expires_at is not None  # an answer after it is refused
    words = (f"{why};", "until then" if has_end else "", wait.how, named and shell_word(named))
    title, message = wait.inbox, " ".join(filter(None, words)) if names_command else why
    since = _waits_since(board, name, reason)
    return replace(
        entry,
        wait=reason,
        first_seen=since,
        oldest=since,
        last_seen=since,
        fingerprint=f"{reason} {name}" if reason is WaitReason.APPROVAL else str(reason),  # each is a decision
        downstream=None if view is None else entry.downstream,
        title=title,
        message=message,
        search_text=f"{entry.search_text}\n{title}\n{message}".casefold(),
    )


def _waits_since(board: Board, name: str, reason: WaitReason) -> int:
    """Since when a task waits for a human: what holds it may have come later than its state."""
    row, run = board.row(name), board.projection.run
    began = row.started_at if reason is WaitReason.APPROVAL else row.ended_at or row.changed_at
    held = run.paused_since if reason is WaitReason.PAUSE else None
    return max(began or 0, held or 0) or run.blocked_since or run.started_at


COMPARED_MAX = 200  # tasks of one cause that are compared for a verdict
_WAITS_FOR_HUMAN = HUMAN_WAITS.keys() - {WaitReason.DECISION}


def human_wait(board: Board, names: Sequence[str], now_us: int, runner: RunnerStatus) -> WaitReason | None:
    """The wait of all of ``names``, if that is one that a human ends and no failure; else None."""
    common: WaitReason | None = None
    for name in names[:COMPARED_MAX]:
        reason = board.view(name, now_us, runner).reason
        if reason not in _WAITS_FOR_HUMAN or reason is not (common or reason):
            return None
        common = reason
    return common


def kind_of(row: TaskRow, reason: WaitReason | None) -> str:
    """Why a task is in the inbox, in a few words. ``reason``: what it waits for."""
    if row.state in NEEDS_HUMAN:
        return row.dead_letter_kind or "failed"
    if reason is None:
        return str(row.state).lower()
    return HUMAN_WAITS[reason].inbox if reason in HUMAN_WAITS else str(reason)


def _approval_text(row: TaskRow) -> str:
    ends = "" if row.expires_at is None else f", and it fails at {format_clock(row.expires_at)} without an answer"
    return f"asked at {format_clock(row.started_at or row.changed_at)}{ends}"


def fingerprint_of_attempt(attempt: AttemptRow) -> str:
    """The fingerprint of a failure's cause, as commands name it; empty for an attempt that was lost or is well."""
    return cause_fingerprint(attempt.fingerprint_loose, attempt.fingerprint) or ""


def fingerprint_of_task(row: TaskRow) -> str:
    """The fingerprint of the failure for which a task is in its state, as commands name it; empty without one."""
    return (row.failure_fingerprint is not None and _fingerprint_of_failure(row)) or ""


def title_of(row: TaskRow, latest: AttemptRow | None) -> str:
    """Describe a failure in a few words."""
    if latest is not None and latest.explain:
        return latest.explain
    if latest is not None and latest.error_type:
        return short_error(latest.error_type)
    answer = row.failure_class if row.failure_class in (REJECTED, UNANSWERED) else None
    return row.dead_letter_kind or answer or str(row.state)


def causes_of(board: Board, names: Iterable[str]) -> list[InboxCause]:
    """Return the causes of those of ``names`` that need a human, each with all of its tasks."""
    keys = {entry_of(row).key for row in map(board.row, names) if row.state in NEEDS_HUMAN}
    return [cause for cause in Inbox(board).causes() if cause.key in keys]


def has_fingerprint(cause: InboxCause, tasks: Mapping[str, TaskRow]) -> bool:
    """Whether an act can name the cause by its fingerprint: lost attempts have none, and a wait is no failure."""
    return any(_fingerprint_of_failure(tasks[name]) == cause.fingerprint for name in cause.tasks[:1])


def _fingerprint_of_failure(row: TaskRow) -> str | None:
    """The fingerprint by which acts name why a task failed."""
    latest = row.latest
    of_attempt = () if latest is None else (latest.fingerprint_loose, latest.fingerprint)
    return cause_fingerprint(*of_attempt, row.failure_fingerprint)


def is_sole_cause(board: Board, cause: InboxCause) -> bool:
    """Whether the fingerprint of a cause names its tasks and no others."""
    return [one.key for one in Inbox(board).causes() if one.fingerprint == cause.fingerprint] == [cause.key]


def targets_of(board: Board, names: Iterable[str]) -> tuple[Target, ...]:
    rows: Sequence[TaskRow] = [board.row(name) for name in names]
    return tuple(Target(row.name, str(row.state), row.generation) for row in rows)


# --- A comparison of failed attempts, and what changed between them --------------------------------------------------
#
# If nothing changed between two identical failures, another retry cannot help.


#: Columns of the result of an attempt, and their words.
_RESULTS = {"fingerprint": "place of the failure", "error_type": "error", "exit_code": "exit code", "signal": "signal"}


class AttemptComparison(msgspec.Struct, frozen=True):
    """A comparison of the attempts of one generation.

    ``environment``: words of what differed before they ran; ``results``: of their results; ``unknown``: of what was not
    recorded of the environment.
    """

    attempts: tuple[int, ...]
    environment: tuple[str, ...]
    results: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def is_same_failure(self) -> bool:
        """Whether at least two attempts failed, all at one place and of one kind."""
        return len(self.attempts) > 1 and not self.results

    @property
    def is_deterministic(self) -> bool:
        """Whether the failure was the same and the environment did not change."""
        return self.is_same_failure and not self.environment


def failures_of(row: TaskRow) -> list[AttemptRow]:
    """Return the attempts of the current generation that failed by themselves, oldest first."""
    attempts = [row.attempts[number] for number in sorted(row.attempts)]
    return [
        one for one in attempts if one.generation == row.generation and one.outcome in FAILED_OUTCOMES and not one.late
    ]


def compare(attempts: Sequence[AttemptRow]) -> AttemptComparison:
    """Compare each attempt with the one before."""
    known = {column for column in ENVIRONMENT_FIELDS if any(getattr(one, column) is not None for one in attempts)}
    return AttemptComparison(
        attempts=tuple(one.attempt for one in attempts),
        environment=_differences(attempts, ENVIRONMENT_FIELDS),
        results=_differences(attempts, _RESULTS),
        unknown=tuple(word for column, word in ENVIRONMENT_FIELDS.items() if column not in known),
    )


def _differences(attempts: Sequence[AttemptRow], columns: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        word for column, word in columns.items() if len({getattr(attempt, column) for attempt in attempts}) > 1
    )


def verdict(comparison: AttemptComparison, *, is_brief: bool = False) -> str:
    """Return the conclusion of a comparison in one sentence. ``is_brief``: without what was compared."""
    times = len(comparison.attempts)
    if times < 2:
        return "one failure so far: nothing to compare it with"
    if comparison.environment:
        words = " and ".join(comparison.environment)
        same = "the same failure" if comparison.is_same_failure else "another failure"
        return f"{same} although the {words} changed between"
    if not comparison.is_same_failure:
        return f"{times} different failures; nothing changed between"
    how_often = "twice" if times == 2 else f"{times} times"
    checked = ", ".join(word for word in ENVIRONMENT_FIELDS.values() if word not in comparison.unknown)
    what = f" ({checked})" if checked and not is_brief else ""
    return f"same failure {how_often}; nothing changed between{what}"


# --- What is read for a page of evidence ------------------------------------------------------------------------------


class AttemptTexts(NamedTuple):
    """The long texts of one attempt, and the lines at the end of its log, as far as they have been read.

    ``output_bytes``: what it has written by then; None: unknown.
    """

    attempt: int
    long: AttemptText = AttemptText()
    log: Sequence[LogLine] = ()
    output_bytes: int | None = None


class EvidenceData(msgspec.Struct, frozen=True):
    """The data of a task that were read besides the board.

    ``history``: its attempts in all runs of the file, latest first; ``rows``: its rows in quarantine. Of an approval
    ``answers``: the acts that answered it before, the latest last; ``logs``: what the tasks above it wrote.
    """

    texts: Sequence[AttemptTexts] = ()
    history: Sequence[PastAttemptRow] = ()
    rows: Sequence[QuarantineRow] = ()
    cause_history: CauseHistory | None = None
    answers: Sequence[Event] = ()
    logs: Mapping[str, Sequence[LogLine]] = {}
