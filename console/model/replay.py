"""Snapshots of a run at any event, computed from its events without keeping all of them in memory.

Applying 100,000 events takes a second, too long for a key press. A replay index applies all events once and stores a
frame of the run at regular intervals; a snapshot is the frame before it plus the events since. Frames share the rows
that did not change between them, so that a frame costs a pointer per task and the changed rows; above FRAMES_MAX every
second frame is dropped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ...engine.core.breaker import BreakerStatus
from ...engine.core.projection import RunProjection, TaskRow, is_operator_act
from ...engine.core.views import KILL_STYLES
from ...engine.domain.acts import UNDOABLE
from ...engine.domain.event_payloads import BreakerChanged, OperatorActed, RunChange, RunChanged, TaskChanged, TaskMoved
from ...engine.domain.events import Event, EventKind
from ...engine.domain.rows import RunRow
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from ...engine.errors import RedriveError
from ..keys.actions import shell_line
from ..text.event_text import describe_event, event_subject, target_tasks
from ..text.figures import wall_day
from .lists import Filter, places_after
from .snapshot import RunSnapshot
from .times import parse_time

FRAME_EVENTS = 1_000  # between two frames
FRAMES_MAX = 128  # a run of a million events has a frame every 8,000 events
BURST_US = 5_000_000  # failures of one cause that are closer than this count as one problem
NUMBER_MAX = 2**40  # instants in microseconds are larger than this, numbers of events smaller


class EventWindow(NamedTuple):
    """The events between a frame and a snapshot: at most ``limit`` of the run after the event ``after``."""

    after: int
    limit: int


class _ReplayFrame(msgspec.Struct, frozen=True):
    """The run as of ``seq``; its rows must not be modified."""

    seq: int
    rows: tuple[TaskRow, ...]
    run: RunRow
    breakers: dict[str, BreakerStatus]
    page_notes: dict[str, str]


class ReplayIndex:
    """Snapshots of one run up to ``seq``. ``projection``: any projection of it; ``extend`` adds its events in order."""

    def __init__(
        self, projection: RunProjection, frame_events: int = FRAME_EVENTS, frames_max: int = FRAMES_MAX
    ) -> None:
        self.run_id = projection.run.run_id
        self._projection = replace(projection)  # whose graph does not change
        self._frame_events = frame_events
        self._frames_max = frames_max
        self._frames = [_frame_of(RunSnapshot(initial_projection(projection)))]
        self._cursor = _Cursor(self._frames[0], projection)
        self._events_since_frame = 0
        self._numbers = array("q")  # of all events
        self._instants = array("q")  # of each event; never decreasing, also where the clock went back
        self._steps = array("q")  # numbers of the events that change the board
        self._problem_seqs = array("q")  # numbers of the events that are problems
        self._latest_problem: tuple[str, int] = ("", 0)  # the latest one: its key, and its time

    # --- Building ---------------------------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._cursor.snapshot.projection.seq

    @property
    def first(self) -> int:
        """The number of the event that created the run."""
        return self._steps[0]

    def extend(self, events: Iterable[Event]) -> None:
        """Append events; events of other runs are skipped.

        Raises RedriveError if the first events of the run were pruned from the file.
        """
        for event in events:
            if event.run_id == self.run_id and event.seq > self.seq:
                if not self._steps:
                    _require_created(event)
                self._append(event)

    def _append(self, event: Event) -> None:
        if self._events_since_frame == self._frame_events:
            self._add_frame()
        self._cursor.apply(event)
        self._events_since_frame += 1
        self._numbers.append(event.seq)
        self._instants.append(max(event.at, self._instants[-1] if self._instants else event.at))
        if is_step(event):
            self._steps.append(event.seq)
            self._index_problem(event)

    def _index_problem(self, event: Event) -> None:
        cause = problem_of(event)
        if cause is not None:
            before, at = self._latest_problem
            if cause != before or event.at - at > BURST_US:
                self._problem_seqs.append(event.seq)
            self._latest_problem = cause, event.at

    def _add_frame(self) -> None:
        if len(self._frames) == self._frames_max:
            del self._frames[1::2]
            self._frame_events *= 2
        self._frames.append(_frame_of(self._cursor.snapshot))
        self._cursor.share()
        self._events_since_frame = 0

    # --- Queries ---------------------------------------------------------------------------------------------------

    def window_for(self, seq: int) -> EventWindow:
        """Return the events that ``snapshot_at`` needs for ``seq`` and its neighbours."""
        return EventWindow(self._frame_before(seq).seq, self._frame_events)

    def snapshot_at(self, seq: int, events: Iterable[Event]) -> RunSnapshot:
        """Return the snapshot after the event ``seq``. ``events``: those of ``window_for``, at least up to ``seq``."""
        cursor = _Cursor(self._frame_before(seq), self._projection)
        for event in events:
            if event.seq > seq:
                break
            cursor.apply(event)
        return cursor.snapshot

    def _frame_before(self, seq: int) -> _ReplayFrame:
        return self._frames[max(bisect_left(self._frames, seq, key=attrgetter("seq")) - 1, 0)]

    def step(self, seq: int, count: int) -> int | None:
        """Return the event ``count`` steps after ``seq`` (negative: before it); None beyond the last."""
        steps = self._steps
        if not steps:
            return None
        if count < 0:
            return steps[max(bisect_left(steps, seq) + count, 0)]
        place = bisect_right(steps, seq) + count - 1
        return steps[place] if place < len(steps) else None

    def next_problem(self, seq: int, direction: int) -> int | None:
        """Return the next problem after ``seq``, or with ``direction`` -1 the one before; None if there is none."""
        seqs = self._problem_seqs
        place = bisect_left(seqs, seq) - 1 if direction < 0 else bisect_right(seqs, seq)
        return seqs[place] if 0 <= place < len(seqs) else None

    def seq_at(self, instant: int) -> int:
        """Return the last event up to an instant in microseconds UTC, or the first event."""
        return self._numbers[max(bisect_right(self._instants, instant) - 1, 0)]

    def instant_of(self, seq: int) -> int:
        """Return the time of the event ``seq``."""
        return self._instants[max(bisect_right(self._numbers, seq) - 1, 0)]

    def next_instant(self, seq: int) -> int | None:
        """Return the time of the next event after ``seq``; None at the end."""
        place = bisect_right(self._numbers, seq)
        return self._instants[place] if place < len(self._instants) else None


class _Cursor:
    """A snapshot that events advance, with copy on write of the rows of its frame."""

    def __init__(self, frame: _ReplayFrame, of: RunProjection) -> None:
        tasks = dict(zip(of.tasks, frame.rows, strict=True))
        projection = RunProjection(frame.run, tasks, of.parents, of.children, frame.seq)
        self.snapshot = RunSnapshot(projection, dict(frame.breakers), dict(frame.page_notes), is_past=True)
        self._own_rows: set[str] = set()

    def apply(self, event: Event) -> None:
        if event.kind == EventKind.MAPPED:
            return  # the projection has the tasks already
        name, tasks = event.task, self.snapshot.projection.tasks
        if name is not None and name not in self._own_rows and name in tasks:
            tasks[name] = _copy_row(tasks[name])
            self._own_rows.add(name)
        self.snapshot.apply(event)

    def share(self) -> None:
        """Mark all rows as shared with a frame."""
        self._own_rows.clear()


def _copy_row(row: TaskRow) -> TaskRow:
    copied = copy(row)
    copied.attempts = {number: copy(attempt) for number, attempt in row.attempts.items()}
    return copied


def _frame_of(snapshot: RunSnapshot) -> _ReplayFrame:
    projection = snapshot.projection
    return _ReplayFrame(
        projection.seq,
        tuple(projection.tasks.values()),
        projection.run,
        dict(snapshot.breakers),
        dict(snapshot.page_notes),
    )


def initial_projection(projection: RunProjection) -> RunProjection:
    """Return the run before its first event."""
    run = RunRow(projection.run.run_id, dag_name=projection.run.dag_name)
    tasks = {
        name: TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
        for name, row in projection.tasks.items()
    }
    return RunProjection(run, tasks, projection.parents, projection.children)


# --- Steps and problems ----------------------------------------------------------------------------------------------

_SHOWN_KINDS = frozenset(
    [
        EventKind.TASK,
        EventKind.RUN,
        *KILL_STYLES,
        EventKind.ATTEMPT_STACK,
        EventKind.ATTEMPT_SILENT,
        EventKind.ATTEMPT_RECLAIMED,
        EventKind.BREAKER,
    ]
)
_PROGRESS_COLUMNS = frozenset(["progress_done", "progress_total", "last_heartbeat_at"])
_FAILED = NEEDS_HUMAN | {TaskState.RETRYING}


def is_step(event: Event) -> bool:
    """Whether an event changes the board by more than progress, or is an operator's command."""
    if isinstance(event.payload, TaskChanged):
        return not _PROGRESS_COLUMNS.issuperset(event.payload.set)
    return event.kind in _SHOWN_KINDS or is_operator_act(event)


def problem_of(event: Event) -> str | None:
    """Return the key of a problem: a failure, a hang, an open breaker, an operator's command; None for other events."""
    payload = event.payload
    if isinstance(payload, TaskMoved) and event.new in _FAILED:
        return f"{event.new} {payload.attempt_set.get('fingerprint_loose') or event.task}"
    if event.kind == EventKind.ATTEMPT_DEADLINE:
        return f"hang {event.task}"
    if isinstance(payload, BreakerChanged) and payload.state == "OPEN":
        return f"breaker {payload.downstream}"
    return f"act {event.seq}" if is_operator_act(event) else None


def _require_created(event: Event) -> None:
    """Raises RedriveError if the first event of a run is not its creation."""
    payload = event.payload
    is_beginning = isinstance(payload, RunChanged) and payload.what == RunChange.CREATED
    if is_step(event) and not is_beginning:
        raise RedriveError(
            f"what happened before {wall_day(event.at)} was removed from the file: the past cannot be shown"
        )


def parse_when(text: str, run: RunRow, now_us: int) -> int:
    """Parse a time as microseconds UTC, or the number of an event, which is below NUMBER_MAX.

    ``03:12`` is the first such time after the start of the run. Raises RedriveError for an invalid time, and for one
    that was before the run and comes again only later than ``now_us``.
    """
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return min(int(text), NUMBER_MAX - 1)
    start = datetime.fromtimestamp(run.started_at / 1e6).astimezone()
    try:
        instant = parse_time(text, since=start.replace(microsecond=0))
        when = round(instant.timestamp() * 1e6)
    except (ValueError, OverflowError):
        why = f"{text!r} is not a time; write 03:12, 03:12:30, 2026-04-25T03:12:00, or an event's number"
        raise RedriveError(why) from None
    is_later_day = "-" not in text and instant.date() != start.date()
    if is_later_day and when > now_us:
        raise RedriveError(f"{text} is before run {run.run_id} began: {start:%Y-%m-%d %H:%M:%S}")
    return when


# --- The journal -----------------------------------------------------------------------------------------------------
#
# The events of a run in memory, oldest first; and the command line that repeats an operator's command.


IS_PROBLEM = "is:problem"  # a filter that leaves failures, hangs, open breakers and acts
EVENTS_MAX = 20_000  # earlier events are read again when the user scrolls there
_DROPPED_AT_ONCE = 2_000


def last_undoable(events: Sequence[Event]) -> tuple[Event, OperatorActed] | None:
    """The latest act of ``events`` (oldest first) that changed something and was not undone."""
    undone: set[str] = set()
    for event in reversed(events):
        acted = event.payload
        if not isinstance(acted, OperatorActed) or not acted.answer.get("ok"):
            continue
        if acted.act == "undo":
            undone.add(str(acted.options.get("command")))
        elif acted.act in UNDOABLE and (acted.was or acted.was_run) and event.command_id not in undone:
            return event, acted
    return None


def command_line(event: Event, target: str, ssh_arguments: Sequence[str] = ()) -> str | None:
    """Return the shell command that repeats an operator's command, safe to paste; None if there is none.

    ``target``: the state file or its ssh address. ``ssh_arguments``: what reaches it.
    """
    payload = event.payload
    if not isinstance(payload, OperatorActed) or not is_operator_act(event):
        return None
    tasks, reason = target_tasks(event), event.reason or ""
    return shell_line(payload.act or "", target, event.run_id, tasks, reason, payload.options, ssh_arguments)


def is_notable(event: Event) -> bool:
    """Whether an operator acted, or a task came to need a human."""
    return is_operator_act(event) or (event.new is not None and event.task is not None and event.new in NEEDS_HUMAN)


class EventJournal:
    """The events of one run, and those of the state file without a run.

    Attributes:
        order: the numbers of the events that match the filter, oldest first.
        is_complete: whether the first event of the run is loaded.
        newer_dropped: how many newer events were dropped to make room for earlier ones.
        acts: how many of the loaded events are operators' commands.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.order: list[int] = []
        self.is_complete = False
        self.newer_dropped = 0
        self.acts = 0
        self.filter = Filter()
        self._numbers: list[int] = []
        self._events: dict[int, Event] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Event:
        return self._events[number]

    @property
    def first(self) -> int | None:
        """The number of the earliest loaded event."""
        return self._numbers[0] if self._numbers else None

    @property
    def last(self) -> int:
        """The number of the latest loaded event; 0 if there is none."""
        return self._numbers[-1] if self._numbers else 0

    def append(self, events: Iterable[Event]) -> bool:
        """Append newer events. Returns whether ``order`` changed."""
        new = [event for event in events if event.seq > self.last and event.run_id in (self.run_id, None)]
        if self.newer_dropped:
            self.newer_dropped += len(new)
            return False
        shown = len(self.order)
        self._add(new)
        self._numbers += [event.seq for event in new]
        self.order += [event.seq for event in new if self._matches(event)]
        if len(self._numbers) > EVENTS_MAX:
            self._remove(self._numbers[: len(self._numbers) - EVENTS_MAX + _DROPPED_AT_ONCE])
            self.is_complete = False
            return True
        return len(self.order) != shown

    def prepend(self, events: Sequence[Event]) -> None:
        """Prepend earlier events; above EVENTS_MAX the newest are dropped."""
        earlier = [event for event in events if self.first is None or event.seq < self.first]
        self._add(earlier)
        self._numbers[:0] = [event.seq for event in earlier]
        self.order[:0] = [event.seq for event in earlier if self._matches(event)]
        if len(self._numbers) > EVENTS_MAX:
            gone = self._numbers[EVENTS_MAX:]
            self.newer_dropped += len(gone)
            self._remove(gone)

    def set_filter(self, filter: Filter) -> None:
        """Set the filter; an empty one matches every event."""
        self.filter = filter
        self.order = [number for number in self._numbers if self._matches(self._events[number])]

    def next_notable(self, after: int, step: int = 1) -> int | None:
        """Return the number of the next notable event, cyclically; None if there is none."""
        for place in places_after(len(self.order), bisect_left(self.order, after), step):
            if is_notable(self._events[self.order[place]]):
                return self.order[place]
        return None

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events[event.seq] = event
            self.acts += is_operator_act(event)

    def _remove(self, numbers: Sequence[int]) -> None:
        """Remove consecutive events at either end."""
        low, high = numbers[0], numbers[-1]
        for number in numbers:
            self.acts -= is_operator_act(self._events.pop(number))
        self._numbers = [number for number in self._numbers if not low <= number <= high]
        self.order = [number for number in self.order if not low <= number <= high]

    def _matches(self, event: Event) -> bool:
        return not self.filter or self.filter.matches(text_of(event).casefold())


def text_of(event: Event) -> str:
    """Return the text of an event that filters search."""
    problem = IS_PROBLEM if problem_of(event) is not None else ""
    words = (event.kind, event.new, event_subject(event), describe_event(event), event.actor, event.reason, problem)
    return " ".join(word for word in words if word)
